//! Any bytes as a stream of control messages, in pieces of any size: nothing panics, pieces make no
//! difference, and what is read can be written and is then read as the same.
//!
//! Input: one byte that chooses the pieces' size, and the stream.

use vpnd_proto::control::{
    Decoder, End, MAX_MESSAGE, MAX_ROUTES, Message, MessageError, ROUTES_IN_MESSAGE, encode,
};

/// Bytes of the length in front of a message.
const LENGTH_LEN: usize = 4;

/// Checks one input.
pub(crate) fn run(data: &[u8]) {
    let Some((size, stream)) = data.split_first() else { return };
    for from in [End::Client, End::Gateway] {
        let whole = read(from, stream, stream.len().max(1));
        let pieces = read(from, stream, usize::from(*size) + 1);
        assert_eq!(whole, pieces);
        let mut written = Vec::new();
        for message in &whole.0 {
            assert!(message.sender().is_none_or(|sender| sender == from));
            written.extend_from_slice(&write(message));
        }
        assert_eq!(read(from, &written, written.len().max(1)), (whole.0, None));
    }
    // Without its length, so that mutations need not keep that right.
    if let Ok(message) = Message::parse(stream) {
        assert_eq!(Message::parse(&write(&message)[LENGTH_LEN..]), Ok(message));
    }
}

/// The messages in a stream up to its end or its first fault.
fn read(from: End, stream: &[u8], size: usize) -> (Vec<Message>, Option<MessageError>) {
    let mut decoder = Decoder::new(from);
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

/// The bytes of a message, which stay within their bound, as its description does.
fn write(message: &Message) -> Vec<u8> {
    let written = encode(message).to_vec();
    assert!(written.len() <= MAX_ROUTES.div_ceil(ROUTES_IN_MESSAGE) * (LENGTH_LEN + MAX_MESSAGE));
    let _ = format!("{message:?}");
    written
}
