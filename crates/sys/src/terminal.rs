//! Secrets that a person types at the terminal: they are not shown, from before the question
//! appears.
//!
//! INVARIANT: the terminal is as it was before, however the question ends. Ctrl-C ends the program
//! only after that.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};

use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

/// The longest line, bytes.
const MAX_LINE: usize = 4_096;
const CTRL_C: u8 = 0x03;
const CTRL_D: u8 = 0x04;
const BACKSPACE: u8 = 0x08;
const CTRL_U: u8 = 0x15;
const CTRL_W: u8 = 0x17;
const DELETE: u8 = 0x7F;

/// Asks the person at the process's terminal for a secret.
///
/// # Errors
/// If there is no terminal, it was closed, or the line is too long or no text.
pub fn ask_secretly(question: &str) -> io::Result<Zeroizing<String>> {
    let mut terminal = OpenOptions::new().read(true).write(true).open("/dev/tty")?;
    let typed = ask_at(&mut terminal, question);
    if typed.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::Interrupted) {
        kill_process(getpid(), Signal::INT)?;
    }
    typed
}

fn ask_at(terminal: &mut File, question: &str) -> io::Result<Zeroizing<String>> {
    let mut terminal = Hidden::begin(terminal)?;
    terminal.file.write_all(question.as_bytes())?;
    let line = terminal.line();
    terminal.file.write_all(b"\n")?;
    let line = line?;
    let text = std::str::from_utf8(&line).map_err(|_| io::Error::other("it is not text in UTF-8"))?;
    Ok(Zeroizing::new(text.to_owned()))
}

/// A terminal that shows nothing of what is typed.
struct Hidden<'t> {
    file: &'t mut File,
    before: Termios,
}

impl<'t> Hidden<'t> {
    fn begin(file: &'t mut File) -> io::Result<Self> {
        let before = tcgetattr(&*file)?;
        let mut modes = before.clone();
        modes.local_modes &= !(LocalModes::ECHO | LocalModes::ECHONL | LocalModes::ICANON | LocalModes::ISIG);
        modes.special_codes[SpecialCodeIndex::VMIN] = 1;
        modes.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(&*file, OptionalActions::Now, &modes)?;
        Ok(Self { file, before })
    }

    /// Reads what is typed up to the end of the line.
    fn line(&mut self) -> io::Result<Zeroizing<Vec<u8>>> {
        let mut line = Zeroizing::new(Vec::with_capacity(MAX_LINE));
        let mut byte = Zeroizing::new([0]);
        loop {
            match self.file.read(&mut *byte) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            match byte[0] {
                b'\n' | b'\r' => return Ok(line),
                CTRL_C => return Err(io::ErrorKind::Interrupted.into()),
                CTRL_D if line.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
                CTRL_D => {}
                CTRL_U | CTRL_W => line.clear(),
                BACKSPACE | DELETE => {
                    // A character of several bytes goes as a whole.
                    while line.pop().is_some_and(|last| last & 0xC0 == 0x80) {}
                }
                _ if line.len() == MAX_LINE => return Err(io::Error::other("the line is too long")),
                typed => line.push(typed),
            }
        }
    }
}

impl Drop for Hidden<'_> {
    fn drop(&mut self) {
        let _ = tcsetattr(&*self.file, OptionalActions::Now, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    use super::*;

    const QUESTION: &str = "Password: ";

    /// Returns the result of typing this, and all that the terminal shows.
    fn typed(keys: &str) -> (io::Result<Zeroizing<String>>, String) {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let mut person = File::from(openpt(flags).unwrap());
        grantpt(&person).unwrap();
        unlockpt(&person).unwrap();
        let name = ptsname(&person, Vec::new()).unwrap().into_string().unwrap();
        let open = || OpenOptions::new().read(true).write(true).open(&name).unwrap();
        let terminal = open();
        let before = format!("{:?}", tcgetattr(&terminal).unwrap());
        let mut asking = open();
        let answer = std::thread::spawn(move || ask_at(&mut asking, QUESTION));
        let mut shown = vec![0; QUESTION.len()];
        person.read_exact(&mut shown).unwrap();
        // Keys typed at once are not shown either.
        assert!(!tcgetattr(&terminal).unwrap().local_modes.contains(LocalModes::ECHO));
        person.write_all(keys.as_bytes()).unwrap();
        let answer = answer.join().unwrap();
        assert_eq!(format!("{:?}", tcgetattr(&terminal).unwrap()), before, "the terminal is as it was");
        let mut rest = [0; 256];
        let len = person.read(&mut rest).unwrap();
        shown.extend(&rest[..len]);
        (answer, String::from_utf8(shown).unwrap())
    }

    #[test]
    fn what_is_typed_is_not_shown_from_before_the_question_on() {
        for (keys, expected) in [
            ("open sesame\n", "open sesame"),
            ("\n", ""),
            ("wrong\x15Gr\u{fc}\u{df}e\x7fe\r", "Gr\u{fc}\u{df}e"),
            ("\u{fc}\x7f\x7fa\n", "a"),
        ] {
            let (answer, shown) = typed(keys);
            assert_eq!(*answer.unwrap(), expected);
            assert_eq!(shown, format!("{QUESTION}\r\n"));
        }
    }

    #[test]
    fn an_interrupted_prompt_restores_the_terminal() {
        assert_eq!(typed("half\x03").0.unwrap_err().kind(), io::ErrorKind::Interrupted);
        assert_eq!(typed("\x04").0.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(typed(&format!("{}\n", "x".repeat(MAX_LINE + 1))).0.is_err());
    }
}
