//! Any bytes as a stream of control messages, in pieces of any size: nothing panics, pieces make no difference, and what
//! is read can be written and is then read as the same.
//!
//! Input: one byte that chooses the pieces' size, and the stream.

use vpnd_proto::control::{
    Decoder, MAX_MESSAGE, MAX_ROUTES, Message, MessageError, ROUTES_IN_MESSAGE, encode,
};

/// Bytes of the length in front of a message.
const LENGTH_LEN: usize = 4;

/// Checks one input.
pub(crate) fn run(data: &[u8]) {
    let Some((size, stream)) = data.split_first() else { return };
    let whole = read(stream, stream.len().max(1));
    let pieces = read(stream, usize::from(*size) + 1);
    assert_eq!(whole, pieces);
    for message in &whole.0 {
        check_written(message);
    }
    // Without its length, so that mutations need not keep that right.
    if let Ok(message) = Message::parse(stream) {
        check_written(&message);
    }
}

/// The messages in a stream up to its end or its first fault.
fn read(stream: &[u8], size: usize) -> (Vec<Message>, Option<MessageError>) {
    let mut decoder = Decoder::new();
    let mut messages = Vec::new();
    for piece in stream.chunks(size) {
        decoder.push(piece);
        loop {
            match decoder.next_message() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return (messages, Some(error)),
            }
        }
    }
    (messages, None)
}

fn check_written(message: &Message) {
    let written = encode(message);
    assert!(written.len() <= MAX_ROUTES.div_ceil(ROUTES_IN_MESSAGE) * (LENGTH_LEN + MAX_MESSAGE));
    if let Message::Routes(_) = message {
        assert_eq!(Message::parse(&written[LENGTH_LEN..]).as_ref(), Ok(message));
    } else {
        assert_eq!(read(&written, written.len()), (vec![message.clone()], None));
    }
    let _ = format!("{message:?}");
}
