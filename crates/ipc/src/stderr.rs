//! Relays a child's log. INVARIANT: no child holds a terminal, from which it could read what people
//! type, and whose control sequences could make it answer as if a user had typed; a child's lines
//! reach a terminal through the parent, without control characters.

use std::io::{self, BufRead as _, BufReader, IsTerminal as _, PipeReader, Read as _, Write};
use std::process::Stdio;
use std::thread::JoinHandle;

/// A longer line is passed on in pieces, so that one without an end takes no memory.
const MAX_LINE: u64 = 8 * 1024;

/// The thread that passes on what a child writes. It ends with the child.
pub(super) struct Relay(JoinHandle<()>);

impl Relay {
    /// Waits until all is passed on; the child must have ended.
    pub(super) fn finish(self) {
        // It has nothing to report, and a panic there was printed.
        let _ = self.0.join();
    }
}

/// Standard error for a child that is to be started: this process's, unless that is a terminal.
///
/// # Errors
/// If there are no descriptors or threads left.
pub(super) fn of_child() -> io::Result<(Stdio, Option<Relay>)> {
    if !io::stderr().is_terminal() {
        return Ok((Stdio::inherit(), None));
    }
    let (reader, writer) = io::pipe()?;
    let pass_on = move || {
        // It ends with the child, which would be held up by a pipe that is not read.
        let _ = relay(reader, io::stderr());
    };
    let thread = std::thread::Builder::new().name("log-relay".to_owned()).spawn(pass_on)?;
    Ok((writer.into(), Some(Relay(thread))))
}

fn relay(from: PipeReader, mut to: impl Write) -> io::Result<()> {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? > 0 {
        // A terminal that is gone takes nothing, and there is nowhere else to report that.
        let _ = to.write_all(printable(&String::from_utf8_lossy(&line)).as_bytes());
        line.clear();
    }
    Ok(())
}

/// `text` with each control character, and each that hides or turns text around, as its name, but
/// line breaks and tabs.
fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        if vpnd_sys::text::is_deceptive(c) && !matches!(c, '\n' | '\t') {
            printable.extend(c.escape_default());
        } else {
            printable.push(c);
        }
    }
    printable
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relayed(written: &[u8]) -> Vec<u8> {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut out = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(move || writer.write_all(written).unwrap());
            relay(reader, &mut out).unwrap();
        });
        out
    }

    #[test]
    fn lines_are_passed_on_without_control_sequences() {
        assert_eq!(relayed("ready, J\u{fc}rgen\n\tno\n".as_bytes()), "ready, J\u{fc}rgen\n\tno\n".as_bytes());
        // "Report the window's title" in both spellings, and bytes that are no text.
        assert_eq!(relayed(b"a\x1b[21tb\xc2\x9b21t\r\n"), b"a\\u{1b}[21tb\\u{9b}21t\\r\n");
        assert_eq!(relayed("a\u{202e}b".as_bytes()), b"a\\u{202e}b");
        assert!(!relayed(&(0..=255).collect::<Vec<u8>>()).iter().any(|byte| *byte == 0x1b || *byte == 0x7f));
    }

    #[test]
    fn a_line_without_an_end_is_passed_on_in_pieces() {
        let long = vec![b'x'; 3 * MAX_LINE as usize + 7];
        assert_eq!(relayed(&long), long);
    }
}
