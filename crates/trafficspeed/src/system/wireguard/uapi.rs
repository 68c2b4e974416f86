//! WireGuard's configuration protocol: lines of `key=value` over a socket that every user-space
//! implementation has.
//!
//! Specified at <https://www.wireguard.com/xplatform/#configuration-protocol>. The text is made and
//! read by pure functions; [`ask`] alone talks to a socket.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use aws_lc_rs::agreement::{PrivateKey, X25519};
use zeroize::Zeroizing;

/// Time that an implementation may take to answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// A longer answer is none: a peer takes less than 1 KiB, and a lab has at most 254 of them.
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// A Curve25519 key pair of one host.
pub struct KeyPair {
    private: Zeroizing<[u8; 32]>,
    /// The public half.
    pub public: [u8; 32],
}

impl KeyPair {
    pub fn random() -> Self {
        Self::from_private(Zeroizing::new(rand::random()))
    }

    pub fn from_private(private: Zeroizing<[u8; 32]>) -> Self {
        let key = PrivateKey::from_private_key(&X25519, private.as_slice());
        let public = key.and_then(|key| Ok(key.compute_public_key()?)).expect("any 32 bytes are a key");
        Self { public: public.as_ref().try_into().expect("public keys have 32 bytes"), private }
    }

    /// The half that only its host knows.
    pub fn private(&self) -> &[u8; 32] {
        &self.private
    }
}

/// Another host as one host knows it.
pub struct Peer {
    pub public: [u8; 32],
    pub endpoint: SocketAddr,
    /// The inner addresses that are its own.
    pub allowed: Vec<String>,
    /// How often to send something when there is nothing to send, in seconds; this host then begins
    /// the handshake.
    pub keepalive: Option<u16>,
}

/// The text that sets up a host: its key, its UDP port and all its peers.
pub fn set(own: &KeyPair, port: u16, peers: &[Peer]) -> Zeroizing<String> {
    // Room for everything, so that the text is not moved and the key does not stay where it was.
    let mut text = Zeroizing::new(String::with_capacity(256 + 512 * peers.len()));
    let mut line = |key: &str, value: &str| writeln!(text, "{key}={value}").expect("writing to a string");
    line("set", "1");
    line("private_key", &Zeroizing::new(hex(own.private.as_slice())));
    line("listen_port", &port.to_string());
    line("replace_peers", "true");
    for peer in peers {
        line("public_key", &hex(&peer.public));
        line("endpoint", &peer.endpoint.to_string());
        if let Some(seconds) = peer.keepalive {
            line("persistent_keepalive_interval", &seconds.to_string());
        }
        line("replace_allowed_ips", "true");
        for prefix in &peer.allowed {
            line("allowed_ip", prefix);
        }
    }
    text.push('\n');
    text
}

/// Sends a command and reads the answer up to its empty line.
///
/// # Errors
/// Those of the socket; [`io::ErrorKind::InvalidInput`] if the implementation answers with an error
/// number.
pub fn ask(socket: &Path, command: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
    stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
    stream.write_all(command.as_bytes())?;
    let mut answer = String::new();
    for line in BufReader::new(stream.take(MAX_ANSWER_BYTES)).lines() {
        let line = line?;
        if line.is_empty() {
            break;
        }
        answer.push_str(&line);
        answer.push('\n');
    }
    match value(&answer, "errno") {
        Some("0") => Ok(answer),
        Some(number) => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it says errno={number}"))),
        None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "its answer has no end")),
    }
}

/// Whether an answer to `get=1` shows a handshake with each of `peers` peers.
pub fn all_shook_hands(answer: &str, peers: usize) -> bool {
    let times = |line: &&str| line.starts_with("last_handshake_time_");
    let mut done = 0;
    for peer in answer.split("public_key=").skip(1) {
        let mut values = peer.lines().filter(times).filter_map(|line| line.split_once('='));
        // Some tell the time of day and some the time since, so a zero of one of the two says
        // nothing.
        done += usize::from(values.any(|(_, time)| time.parse::<u64>().is_ok_and(|time| time > 0)));
    }
    done == peers
}

fn value<'a>(answer: &'a str, key: &str) -> Option<&'a str> {
    answer.lines().filter_map(|line| line.split_once('=')).find(|(name, _)| *name == key).map(|(_, v)| v)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Alice's key of RFC 7748, section 6.1.
    const PRIVATE: &str = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a";

    fn fixed() -> KeyPair {
        let mut bytes = Zeroizing::new([0; 32]);
        for (at, pair) in PRIVATE.as_bytes().chunks(2).enumerate() {
            bytes[at] = u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        }
        KeyPair::from_private(bytes)
    }

    #[test]
    fn a_host_is_set_up_line_by_line_and_only_the_last_line_is_empty() {
        let peer = Peer {
            public: [0xab; 32],
            endpoint: "198.18.0.1:51820".parse().unwrap(),
            allowed: vec!["10.87.0.0/16".into(), "fd87::/64".into()],
            keepalive: Some(25),
        };
        let text = set(&fixed(), 51820, &[peer]);
        let expected = format!(
            "set=1\nprivate_key={PRIVATE}\nlisten_port=51820\nreplace_peers=true\npublic_key={}\n\
             endpoint=198.18.0.1:51820\npersistent_keepalive_interval=25\nreplace_allowed_ips=true\n\
             allowed_ip=10.87.0.0/16\nallowed_ip=fd87::/64\n\n",
            "ab".repeat(32),
        );
        assert_eq!(text.as_str(), expected);
    }

    #[test]
    fn the_public_key_is_that_of_rfc_7748() {
        assert_eq!(hex(&fixed().public), "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a");
        assert_ne!(KeyPair::random().public, KeyPair::random().public);
    }

    #[test]
    fn handshakes_are_counted_in_both_ways_of_telling_the_time() {
        let answer = "listen_port=1\npublic_key=aa\nlast_handshake_time_sec=0\nlast_handshake_time_nsec=0\n\
                      public_key=bb\nlast_handshake_time_sec=0\nlast_handshake_time_nsec=123\nerrno=0\n";
        assert!(!all_shook_hands(answer, 2));
        assert!(all_shook_hands(&answer.replace("sec=0\nlast_handshake_time_nsec=0", "sec=1700000000"), 2));
        assert!(!all_shook_hands("errno=0\n", 1), "a peer that is not there has not answered");
        assert!(!all_shook_hands("public_key=aa\nerrno=0\n", 1));
    }

    #[test]
    fn an_error_number_and_an_answer_without_an_end_are_errors() {
        for (answer, expected) in [
            ("listen_port=7\nerrno=0\n\n", None),
            ("errno=22\n\n", Some("errno=22")),
            ("listen_port=7\n", Some("has no end")),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("x.sock");
            let listener = UnixListener::bind(&path).unwrap();
            let served = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut command = [0; 7];
                stream.read_exact(&mut command).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            });
            let got = ask(&path, "get=1\n\n");
            served.join().unwrap();
            match expected {
                None => assert_eq!(got.unwrap(), "listen_port=7\nerrno=0\n"),
                Some(words) => assert!(got.unwrap_err().to_string().contains(words)),
            }
        }
    }
}
