//! Which program a process runs: its words and the digest of its executable, so that a report names
//! exactly what was measured and a rebuilt program cannot pass for the one before.

use std::fs::{self, File};
use std::io::{self, Read};

use sha2::{Digest, Sha256};

/// The part of a command line that is kept.
const MOST_COMMAND_BYTES: usize = 4096;

/// The command line of process `pid` and the SHA-256 of its executable in hexadecimal (empty if it
/// cannot be read); `None` if there is no such process.
pub fn running_program(pid: u32) -> Option<(String, String)> {
    let mut line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    line.truncate(MOST_COMMAND_BYTES);
    let words: Vec<_> =
        line.split(|byte| *byte == 0).filter(|word| !word.is_empty()).map(String::from_utf8_lossy).collect();
    Some((words.join(" "), digest_of(&format!("/proc/{pid}/exe")).unwrap_or_default()))
}

/// The SHA-256 of the running trafficspeed; empty if its file cannot be read.
pub fn own_digest() -> String {
    digest_of("/proc/self/exe").unwrap_or_default()
}

fn digest_of(path: &str) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => digest.update(&buffer[..count]),
        }
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_described_by_its_command_line_and_digest() {
        let (command, digest) = running_program(std::process::id()).unwrap();
        assert!(command.contains("trafficspeed"), "{command}");
        assert_eq!(digest.len(), 64);
        assert_eq!(digest, own_digest());
        assert_eq!(running_program(u32::MAX), None);
    }

    #[test]
    fn the_digest_is_sha_256() {
        // FIPS 180-4's value for the empty message.
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest_of("/dev/null").unwrap(), empty);
    }
}
