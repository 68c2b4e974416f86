//! The shared secret between a coordinator and `trafficspeed serve`, and the proof that both hold
//! it.
//!
//! Challenge and response with HMAC-SHA-256: both sides send 32 random bytes, then each proves the
//! token over both challenges and its own role, the coordinator first. The token never crosses the
//! network. Every later line carries a code under a key derived from the token and both challenges,
//! with its direction and number, so that no attacker can alter, repeat or insert commands. The
//! lines are not secret: they hold measurements.
//!
//! It is no protection against guessing a poor token offline. Tokens made by `trafficspeed token`
//! have 256 bits.

use std::fs;
use std::io::{self, BufRead, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::line::{LineError, LineKey, hex, read_bounded, unhex};

const CHALLENGE_BYTES: usize = 32;
const MIN_TOKEN_BYTES: usize = 16;
const MAX_TOKEN_BYTES: u64 = 4096;
const GREETING: &str = "trafficspeed 1";
const MAX_HANDSHAKE_LINE: usize = 128;

/// Why there is no authenticated connection.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The token file cannot be used.
    #[error("token file {}: {reason}", path.display())]
    File { path: PathBuf, reason: String },
    #[error("{0}")]
    Line(#[from] LineError),
    /// The other side speaks something else.
    #[error("the other side does not speak `{GREETING}`")]
    NotOurs,
    /// The other side does not hold the token. Deliberately says no more.
    #[error("the other side does not hold the same token")]
    Refused,
}

impl From<io::Error> for TokenError {
    fn from(error: io::Error) -> Self {
        Self::Line(LineError::Io(error))
    }
}

/// A shared secret. It is never printed.
pub struct Token(Zeroizing<Vec<u8>>);

impl Token {
    /// Reads a token; its file must not be open to others.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let refuse = |reason: String| TokenError::File { path: path.to_owned(), reason };
        let meta = fs::metadata(path).map_err(|error| refuse(error.to_string()))?;
        if meta.mode() & 0o077 != 0 {
            return Err(refuse(format!("others can read it; run `chmod 600 {}`", path.display())));
        }
        if meta.len() > MAX_TOKEN_BYTES {
            return Err(refuse(format!("longer than {MAX_TOKEN_BYTES} bytes")));
        }
        let bytes = Zeroizing::new(fs::read(path).map_err(|error| refuse(error.to_string()))?);
        let secret = bytes.trim_ascii();
        if secret.len() < MIN_TOKEN_BYTES {
            return Err(refuse(format!(
                "shorter than {MIN_TOKEN_BYTES} bytes; make one with `trafficspeed token`"
            )));
        }
        Ok(Self(Zeroizing::new(secret.to_vec())))
    }

    /// Writes a new random token to a file that must not exist yet, readable by its owner only.
    pub fn create(path: &Path) -> Result<(), TokenError> {
        let text = Zeroizing::new(hex(&rand::random::<[u8; CHALLENGE_BYTES]>()));
        let write = || {
            let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
            file.write_all(text.as_bytes())?;
            file.write_all(b"\n")
        };
        write()
            .map_err(|error: io::Error| TokenError::File { path: path.to_owned(), reason: error.to_string() })
    }

    /// A key for another purpose than this connection's lines; no other purpose has the same.
    pub fn derive(&self, purpose: &[u8]) -> Zeroizing<[u8; 32]> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        // Codes of a role cover its length, its name and two challenges, and so are of other
        // messages than this.
        mac.update(b"trafficspeed key for ");
        mac.update(purpose);
        Zeroizing::new(mac.finalize().into_bytes().into())
    }

    #[cfg(test)]
    pub(crate) fn for_tests(secret: &[u8]) -> Self {
        Self(Zeroizing::new(secret.to_vec()))
    }

    fn mac(&self, role: &[u8], challenges: &[u8; 2 * CHALLENGE_BYTES]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        // The length keeps a role from running into what follows it.
        mac.update(&[u8::try_from(role.len()).expect("roles are short constants")]);
        mac.update(role);
        mac.update(challenges);
        mac
    }
}

/// The keys of one connection.
pub struct LineKeys {
    /// For what this side writes.
    pub write: LineKey,
    /// For what this side reads.
    pub read: LineKey,
}

/// The coordinator's side: proves the token and has the agent prove it.
pub fn prove(
    token: &Token,
    input: &mut impl BufRead,
    output: &mut impl Write,
) -> Result<LineKeys, TokenError> {
    let own: [u8; CHALLENGE_BYTES] = rand::random();
    let theirs = greeting(input)?;
    let challenges = both(&theirs, &own);
    let proof = token.mac(b"coordinator", &challenges).finalize().into_bytes();
    writeln!(output, "{} {}", hex(&own), hex(&proof))?;
    output.flush()?;
    let answer = read_bounded(input, MAX_HANDSHAKE_LINE)?.ok_or(TokenError::Refused)?;
    check(token, b"agent", &challenges, &answer)?;
    Ok(keys(token, &challenges, b"to agent", b"to coordinator"))
}

/// The agent's side: has the coordinator prove the token before it proves its own.
///
/// # Errors
/// Like [`prove`].
pub fn demand(
    token: &Token,
    input: &mut impl BufRead,
    output: &mut impl Write,
) -> Result<LineKeys, TokenError> {
    let own: [u8; CHALLENGE_BYTES] = rand::random();
    writeln!(output, "{GREETING} {}", hex(&own))?;
    output.flush()?;
    let line = read_bounded(input, 2 * MAX_HANDSHAKE_LINE)?.ok_or(TokenError::NotOurs)?;
    let (theirs, proof) = line.split_at_checked(2 * CHALLENGE_BYTES).ok_or(TokenError::NotOurs)?;
    let theirs = challenge(theirs)?;
    let challenges = both(&own, &theirs);
    check(token, b"coordinator", &challenges, proof.trim_ascii())?;
    writeln!(output, "{}", hex(&token.mac(b"agent", &challenges).finalize().into_bytes()))?;
    output.flush()?;
    Ok(keys(token, &challenges, b"to coordinator", b"to agent"))
}

fn greeting(input: &mut impl BufRead) -> Result<[u8; CHALLENGE_BYTES], TokenError> {
    let line = read_bounded(input, MAX_HANDSHAKE_LINE)?.ok_or(TokenError::NotOurs)?;
    let rest = line.strip_prefix(GREETING.as_bytes()).ok_or(TokenError::NotOurs)?;
    challenge(rest.trim_ascii())
}

fn challenge(text: &[u8]) -> Result<[u8; CHALLENGE_BYTES], TokenError> {
    unhex(text).and_then(|bytes| bytes.try_into().ok()).ok_or(TokenError::NotOurs)
}

/// The agent's challenge, then the coordinator's.
fn both(agent: &[u8; CHALLENGE_BYTES], coordinator: &[u8; CHALLENGE_BYTES]) -> [u8; 2 * CHALLENGE_BYTES] {
    let mut challenges = [0; 2 * CHALLENGE_BYTES];
    challenges[..CHALLENGE_BYTES].copy_from_slice(agent);
    challenges[CHALLENGE_BYTES..].copy_from_slice(coordinator);
    challenges
}

fn check(
    token: &Token,
    role: &[u8],
    challenges: &[u8; 2 * CHALLENGE_BYTES],
    proof: &[u8],
) -> Result<(), TokenError> {
    let proof = unhex(proof).ok_or(TokenError::Refused)?;
    token.mac(role, challenges).verify_slice(&proof).map_err(|_| TokenError::Refused)
}

fn keys(token: &Token, challenges: &[u8; 2 * CHALLENGE_BYTES], write: &[u8], read: &[u8]) -> LineKeys {
    let key = |direction| {
        LineKey::new(Zeroizing::new(token.mac(direction, challenges).finalize().into_bytes().into()))
    };
    LineKeys { write: key(write), read: key(read) }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn meet(
        coordinator: &Token,
        agent: Token,
    ) -> (Result<LineKeys, TokenError>, Result<LineKeys, TokenError>) {
        let (a, b) = UnixStream::pair().unwrap();
        let serving = std::thread::spawn(move || demand(&agent, &mut BufReader::new(&b), &mut &b));
        let proved = prove(coordinator, &mut BufReader::new(&a), &mut &a);
        drop(a);
        (proved, serving.join().unwrap())
    }

    #[test]
    fn holders_of_the_same_token_agree_on_keys() {
        let (a, b) = meet(&Token::for_tests(b"the same secret!"), Token::for_tests(b"the same secret!"));
        let (mut a, mut b) = (a.unwrap(), b.unwrap());
        let code = a.write.code(b"line");
        assert!(b.read.verify(code.as_bytes(), b"line"));
        let code = b.write.code(b"line");
        assert!(a.read.verify(code.as_bytes(), b"line"));
        let code = a.write.code(b"line");
        assert!(!a.read.verify(code.as_bytes(), b"line"), "a line does not pass in the other direction");
    }

    #[test]
    fn another_token_is_refused_by_both() {
        let (a, b) = meet(&Token::for_tests(b"the same secret!"), Token::for_tests(b"another secret!!"));
        assert!(matches!(b, Err(TokenError::Refused)));
        assert!(a.is_err());
    }

    #[test]
    fn an_agent_without_the_token_is_refused_by_the_coordinator() {
        // It reflects the coordinator's own proof, which is bound to the other role.
        let (a, b) = UnixStream::pair().unwrap();
        let impostor = std::thread::spawn(move || {
            let mut input = BufReader::new(&b);
            writeln!(&b, "{GREETING} {}", hex(&[9; 32])).unwrap();
            let line = read_bounded(&mut input, 1024).unwrap().unwrap();
            (&b).write_all(&line[65..]).unwrap();
            (&b).write_all(b"\n").unwrap();
        });
        let proved = prove(&Token::for_tests(b"the same secret!"), &mut BufReader::new(&a), &mut &a);
        assert!(matches!(proved, Err(TokenError::Refused)));
        impostor.join().unwrap();
    }

    #[test]
    fn the_token_does_not_cross_the_network() {
        let secret = b"SECRETSECRETSECRET";
        let mut sent = Vec::new();
        let greeting = format!("{GREETING} {}\n", hex(&[3; 32]));
        assert!(prove(&Token::for_tests(secret), &mut greeting.as_bytes(), &mut sent).is_err());
        let text = String::from_utf8(sent).unwrap();
        assert!(!text.contains("SECRET") && !text.contains(&hex(secret)), "{text}");
    }

    #[test]
    fn garbage_instead_of_a_handshake_is_an_error() {
        let token = Token::for_tests(b"the same secret!");
        for garbage in
            [&b""[..], b"\n", b"GET / HTTP/1.1\r\n\r\n", b"zz\n", &[b'a'; 5000], "\u{e9}\n".as_bytes()]
        {
            assert!(demand(&token, &mut &*garbage, &mut Vec::new()).is_err());
            assert!(prove(&token, &mut &*garbage, &mut Vec::new()).is_err());
        }
    }

    #[test]
    fn token_files_must_be_private_and_long_enough() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        Token::create(&path).unwrap();
        assert!(Token::read(&path).is_ok());
        assert!(Token::create(&path).is_err(), "an existing token is not overwritten");

        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Token::read(&path).is_err_and(|error| error.to_string().contains("chmod 600")));

        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "short\n").unwrap();
        assert!(Token::read(&path).is_err_and(|error| error.to_string().contains("shorter than")));
    }
}
