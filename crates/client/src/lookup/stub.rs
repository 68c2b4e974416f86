//! A resolver that asks name servers over sockets that it was given: they carry the tunnel's mark,
//! which passes the kill switch, where what the C library sends does not.
//!
//! INVARIANT: bytes that a name server sends never panic, and cost a bounded time; an answer counts
//! only for the question that was asked, from the server that was asked (the sockets are
//! connected). An answer that was cut short counts if it has an address; without one the server is
//! asked over TCP, once, and a slow one is ended by this process's parent.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use socket2::Socket;

use crate::messages::MAX_ADDRESSES;

const HOSTS: &str = "/etc/hosts";
/// Time for one server to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Each server is asked so often.
const ROUNDS: usize = 2;
/// The largest answer that is asked for: it fits every path.
const ANSWER_SIZE: u16 = 1_232;
const HEADER: usize = 12;
const A: u16 = 1;
const AAAA: u16 = 28;
const OPT: u16 = 41;
const INTERNET: u16 = 1;
const NO_SUCH_NAME: u8 = 3;
/// The bit TC of the third byte.
const CUT_SHORT: u8 = 0x02;
/// The longest name, and the longest of its labels, in bytes.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// A name server, by the sockets to it.
pub(super) struct NameServer {
    udp: UdpSocket,
    /// For one connection, which is not made yet.
    tcp: Option<Socket>,
}

/// One question.
struct Question {
    id: u16,
    name: Vec<u8>,
    kind: u16,
}

/// A server's word on a question.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Addresses(Vec<IpAddr>),
    /// Without an address, and there may be some.
    CutShort,
    NoSuchName,
    /// The server can't answer.
    Failed,
}

/// The addresses of `host`: of the file of hosts, or as one of these servers answers.
///
/// # Errors
/// If it has none, or no server answers.
pub(super) fn resolve(host: &str, servers: &mut [NameServer]) -> anyhow::Result<Vec<IpAddr>> {
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    let listed = in_hosts(&fs::read_to_string(HOSTS).unwrap_or_default(), host);
    if !listed.is_empty() {
        return Ok(listed);
    }
    let name = encoded(host).with_context(|| format!("{host} is no name that can be looked up"))?;
    let count = servers.len();
    for n in 0..ROUNDS * count {
        match servers[n % count].ask(&name) {
            Ok(Answer::Addresses(mut addresses)) => {
                addresses.truncate(MAX_ADDRESSES);
                ensure!(!addresses.is_empty(), "the name {host} has no address");
                return Ok(addresses);
            }
            Ok(Answer::NoSuchName) => bail!("the name {host} can't be resolved: there is no such name"),
            Ok(Answer::Failed | Answer::CutShort) => {}
            Err(error) => tracing::debug!(%error, "a name server does not answer"),
        }
    }
    bail!("the name {host} can't be resolved: no name server answers")
}

impl NameServer {
    /// By a connected socket for datagrams, and one for a connection.
    pub(super) fn new(udp: OwnedFd, tcp: Option<OwnedFd>) -> Self {
        Self { udp: udp.into(), tcp: tcp.map(Socket::from) }
    }

    /// Asks for addresses of both versions.
    fn ask(&mut self, name: &[u8]) -> io::Result<Answer> {
        let questions = [A, AAAA].map(|kind| Question { id: rand::random(), name: name.to_vec(), kind });
        let mut answers = ask_by_datagrams(&self.udp, &questions)?;
        if answers.contains(&Some(Answer::CutShort))
            && let Some(tcp) = self.tcp.take()
        {
            let whole = self.udp.peer_addr().and_then(|server| {
                tcp.connect_timeout(&server.into(), ANSWER_TIMEOUT)?;
                ask_by_stream(tcp.into(), &questions)
            });
            match whole {
                Ok(whole) => answers = whole,
                Err(error) => tracing::debug!(%error, "a name server can't be asked over TCP"),
            }
        }
        Ok(together(answers))
    }
}

fn ask_by_datagrams(server: &UdpSocket, questions: &[Question; 2]) -> io::Result<[Option<Answer>; 2]> {
    for question in questions {
        server.send(&question.to_bytes())?;
    }
    let end = Instant::now() + ANSWER_TIMEOUT;
    let mut answers = [None, None];
    let mut buffer = [0; ANSWER_SIZE as usize];
    while answers.iter().any(Option::is_none) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        server.set_read_timeout(Some(left))?;
        let length = match server.recv(&mut buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if is_timeout(&error) => break,
            Err(error) => return Err(error),
        };
        for (question, answer) in questions.iter().zip(&mut answers) {
            *answer = answer.take().or_else(|| question.answered_by(&buffer[..length]));
        }
    }
    Ok(answers)
}

/// Asks over a connection, where each message follows its length (RFC 7766).
fn ask_by_stream(mut stream: TcpStream, questions: &[Question; 2]) -> io::Result<[Option<Answer>; 2]> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    let messages: Vec<u8> = questions
        .iter()
        .flat_map(|question| {
            let bytes = question.to_bytes();
            let length = u16::try_from(bytes.len()).expect("a name is shorter").to_be_bytes();
            [length.as_slice(), &bytes].concat()
        })
        .collect();
    stream.write_all(&messages)?;
    let mut answers = [None, None];
    for _ in questions {
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut message = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut message)?;
        for (question, answer) in questions.iter().zip(&mut answers) {
            *answer = answer.take().or_else(|| question.answered_by(&message));
        }
    }
    Ok(answers)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Both answers as one: some addresses are enough.
fn together(answers: [Option<Answer>; 2]) -> Answer {
    let mut all = Vec::new();
    let (mut is_failed, mut is_unknown) = (false, false);
    for answer in answers {
        match answer {
            Some(Answer::Addresses(found)) => all.extend(found),
            Some(Answer::NoSuchName) => is_unknown = true,
            Some(Answer::Failed | Answer::CutShort) | None => is_failed = true,
        }
    }
    match (all.is_empty(), is_unknown, is_failed) {
        (false, ..) => Answer::Addresses(all),
        (true, true, _) => Answer::NoSuchName,
        (true, false, true) => Answer::Failed,
        (true, false, false) => Answer::Addresses(all),
    }
}

impl Question {
    /// RFC 1035 §4.1, with the size of an answer of RFC 6891.
    fn to_bytes(&self) -> Vec<u8> {
        // Recursion desired; one question, one additional record.
        let counts: [u16; 5] = [0x0100, 1, 0, 0, 1];
        let mut bytes = self.id.to_be_bytes().to_vec();
        counts.iter().for_each(|count| bytes.extend(count.to_be_bytes()));
        bytes.extend(&self.name);
        [self.kind, INTERNET].iter().for_each(|word| bytes.extend(word.to_be_bytes()));
        // The root's name, the record's kind, the size, no flags, no data.
        bytes.push(0);
        [OPT, ANSWER_SIZE, 0, 0, 0].iter().for_each(|word| bytes.extend(word.to_be_bytes()));
        bytes
    }

    /// `None` if these bytes are no answer to it.
    fn answered_by(&self, bytes: &[u8]) -> Option<Answer> {
        let word = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
        let is_answer = bytes.get(2)? & 0x80 != 0;
        let code = bytes.get(3)? & 0x0f;
        let end = HEADER + self.name.len();
        let is_same = word(0)? == self.id
            && is_answer
            && word(4)? == 1
            && bytes.get(HEADER..end)?.eq_ignore_ascii_case(&self.name)
            && (word(end)?, word(end + 2)?) == (self.kind, INTERNET);
        match code {
            _ if !is_same => None,
            0 => match addresses(bytes, end + 4, word(6)?) {
                none if none.is_empty() && bytes[2] & CUT_SHORT != 0 => Some(Answer::CutShort),
                found => Some(Answer::Addresses(found)),
            },
            NO_SUCH_NAME => Some(Answer::NoSuchName),
            _ => Some(Answer::Failed),
        }
    }
}

/// The addresses in this many records, from this position; the names that lead to them are the
/// server's business, and that the gateway is the right one is shown by its certificate.
fn addresses(bytes: &[u8], mut at: usize, records: u16) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for _ in 0..records {
        let Some((kind, data, next)) = record(bytes, at) else { break };
        let address: Option<IpAddr> = match kind {
            A => <[u8; 4]>::try_from(data).ok().map(|octets| Ipv4Addr::from(octets).into()),
            AAAA => <[u8; 16]>::try_from(data).ok().map(|octets| Ipv6Addr::from(octets).into()),
            _ => None,
        };
        found.extend(address);
        at = next;
    }
    found
}

/// The record that begins here: kind, data, and where the next one begins.
fn record(bytes: &[u8], at: usize) -> Option<(u16, &[u8], usize)> {
    let at = behind_name(bytes, at)?;
    let head = bytes.get(at..at + 10)?;
    let length = usize::from(u16::from_be_bytes([head[8], head[9]]));
    let data = bytes.get(at + 10..at + 10 + length)?;
    Some((u16::from_be_bytes([head[0], head[1]]), data, at + 10 + length))
}

fn behind_name(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match usize::from(*bytes.get(at)?) {
            0 => return Some(at + 1),
            // A pointer ends a name.
            length if length >= 0xc0 => return Some(at + 2),
            length if length <= MAX_LABEL => at += 1 + length,
            _ => return None,
        }
    }
}

/// A name as questions have it.
fn encoded(host: &str) -> Option<Vec<u8>> {
    let host = host.strip_suffix('.').unwrap_or(host);
    let is_name = !host.is_empty() && host.len() <= MAX_NAME && host.is_ascii();
    let mut name = Vec::with_capacity(host.len() + 2);
    for label in host.split('.') {
        let length =
            u8::try_from(label.len()).ok().filter(|length| (1..=MAX_LABEL as u8).contains(length))?;
        name.push(length);
        name.extend(label.as_bytes());
    }
    name.push(0);
    is_name.then_some(name)
}

/// The addresses of a name in a file of hosts.
fn in_hosts(text: &str, host: &str) -> Vec<IpAddr> {
    let host = host.strip_suffix('.').unwrap_or(host);
    let mut found = Vec::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(Ok(address)) = words.next().map(str::parse) else { continue };
        if words.any(|name| name.eq_ignore_ascii_case(host)) && found.len() < MAX_ADDRESSES {
            found.push(address);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: u16 = 0x1234;

    fn question(kind: u16) -> Question {
        Question { id: ID, name: encoded("gateway.example").unwrap(), kind }
    }

    /// An answer with an alias and these records.
    fn answer(question: &Question, code: u8, records: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = question.to_bytes();
        bytes.truncate(bytes.len() - 11);
        bytes[2] |= 0x80;
        bytes[3] = 0x80 | code;
        bytes[7] = u8::try_from(records.len()).unwrap();
        bytes[11] = 0;
        for (kind, data) in records {
            bytes.extend([0xc0, 0x0c]);
            bytes.extend(kind.to_be_bytes());
            bytes.extend([0, 1, 0, 0, 0, 60]);
            bytes.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
            bytes.extend(*data);
        }
        bytes
    }

    #[test]
    fn addresses_are_read_past_an_alias() {
        let (four, six) = (question(A), question(AAAA));
        let bytes = answer(&four, 0, &[(5, b"\x03www\xc0\x14"), (A, &[192, 0, 2, 1]), (A, &[192, 0, 2, 2])]);
        let expected = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().unwrap()).to_vec();
        assert_eq!(four.answered_by(&bytes), Some(Answer::Addresses(expected)));
        assert_eq!(six.answered_by(&bytes), None, "of another kind");
        let address: Ipv6Addr = "2001:db8::1".parse().unwrap();
        let bytes = answer(&six, 0, &[(AAAA, &address.octets())]);
        assert_eq!(six.answered_by(&bytes), Some(Answer::Addresses(vec![address.into()])));
        assert_eq!(four.answered_by(&answer(&four, 3, &[])), Some(Answer::NoSuchName));
        assert_eq!(four.answered_by(&answer(&four, 2, &[])), Some(Answer::Failed));
    }

    #[test]
    fn a_dns_reply_to_another_question_is_ignored() {
        let asked = question(A);
        let good = answer(&asked, 0, &[(A, &[192, 0, 2, 1])]);
        let other = Question { id: ID + 1, ..question(A) };
        assert_eq!(other.answered_by(&good), None);
        let other = Question { name: encoded("gateway.elsewhere").unwrap(), ..question(A) };
        assert_eq!(other.answered_by(&good), None);
        let mut question_itself = good.clone();
        question_itself[2] &= 0x7f;
        assert_eq!(asked.answered_by(&question_itself), None);
        let upper: Vec<u8> = good.iter().map(u8::to_ascii_uppercase).collect();
        assert!(asked.answered_by(&upper).is_some(), "letters' case does not count");
    }

    #[test]
    fn arbitrary_dns_bytes_neither_panic_nor_invent_addresses() {
        let asked = question(A);
        let good = answer(&asked, 0, &[(A, &[192, 0, 2, 1]), (A, &[192, 0, 2, 2])]);
        for length in 0..good.len() {
            asked.answered_by(&good[..length]);
        }
        for at in 0..good.len() {
            for value in [0, 1, 0x3f, 0x40, 0xc0, 0xff] {
                let mut bytes = good.clone();
                bytes[at] = value;
                if let Some(Answer::Addresses(found)) = asked.answered_by(&bytes) {
                    assert!(found.len() <= 2);
                }
            }
        }
    }

    #[test]
    fn addresses_of_one_family_suffice_and_override_a_failure() {
        let some = || Answer::Addresses(vec![Ipv4Addr::LOCALHOST.into()]);
        assert_eq!(together([Some(some()), None]), some());
        assert_eq!(together([Some(Answer::Failed), Some(some())]), some());
        assert_eq!(together([Some(Answer::Addresses(Vec::new())), None]), Answer::Failed);
        assert_eq!(together([Some(Answer::NoSuchName), None]), Answer::NoSuchName);
        let none = || Some(Answer::Addresses(Vec::new()));
        assert_eq!(together([none(), none()]), Answer::Addresses(Vec::new()));
    }

    #[test]
    fn names_that_fit_no_question_are_refused() {
        for good in ["a", "gateway.example", "gateway.example.", &"a.".repeat(126)] {
            assert!(encoded(good).is_some(), "{good}");
        }
        for wrong in ["", ".", "a..b", ".a", "ä.example", &"a".repeat(64), &"a.".repeat(128)] {
            assert!(encoded(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn the_hosts_file_has_precedence() {
        let text = "127.0.0.1 localhost\n192.0.2.1 other gateway.example # home\n2001:db8::1 GATEWAY.example\n#192.0.2.9 gateway.example\nx gateway.example\n";
        let expected: Vec<IpAddr> = ["192.0.2.1", "2001:db8::1"].map(|text| text.parse().unwrap()).into();
        assert_eq!(in_hosts(text, "gateway.example."), expected);
        assert_eq!(in_hosts(text, "gateway"), Vec::<IpAddr>::new());
    }

    /// A client's way to one server.
    fn way_to(server: &UdpSocket, tcp: Option<OwnedFd>) -> NameServer {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(server.local_addr().unwrap()).unwrap();
        NameServer::new(socket.into(), tcp)
    }

    /// Answers both questions by datagrams that were cut short; over TCP as a whole, unless
    /// `drops`.
    #[test]
    fn an_answer_without_an_address_that_was_cut_short_is_asked_for_over_tcp_once() {
        for drops in [false, true] {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let server = UdpSocket::bind(listener.local_addr().unwrap()).unwrap();
            let socket = Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            let mut servers = [way_to(&server, Some(socket.into()))];
            let asked = |bytes: &[u8]| {
                let name = encoded("gateway.example").unwrap();
                let kind = u16::from_be_bytes([bytes[HEADER + name.len()], bytes[HEADER + name.len() + 1]]);
                Question { id: u16::from_be_bytes([bytes[0], bytes[1]]), name, kind }
            };
            let serving = std::thread::spawn(move || {
                for _ in 0..2 * if drops { ROUNDS } else { 1 } {
                    let mut buffer = [0; 512];
                    let (length, from) = server.recv_from(&mut buffer).unwrap();
                    let mut short = answer(&asked(&buffer[..length]), 0, &[]);
                    short[2] |= CUT_SHORT;
                    server.send_to(&short, from).unwrap();
                }
                let (mut stream, _) = listener.accept().unwrap();
                for data in [&[192, 0, 2, 1][..], &[0x20; 16]].iter().filter(|_| !drops) {
                    let mut length = [0; 2];
                    stream.read_exact(&mut length).unwrap();
                    let mut message = vec![0; u16::from_be_bytes(length).into()];
                    stream.read_exact(&mut message).unwrap();
                    let asked = asked(&message);
                    let whole = answer(&asked, 0, &[(asked.kind, data)]);
                    stream.write_all(&u16::try_from(whole.len()).unwrap().to_be_bytes()).unwrap();
                    stream.write_all(&whole).unwrap();
                }
            });
            let found = resolve("gateway.example", &mut servers);
            match drops {
                false => assert_eq!(found.unwrap().len(), 2),
                true => assert!(found.unwrap_err().to_string().contains("no name server answers")),
            }
            serving.join().unwrap();
        }
    }

    /// A server that is silent, one that fails, and one that answers with noise in front.
    #[test]
    fn the_next_server_is_asked_where_one_does_not_answer() {
        let server = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let (silent, fails, good) = (server(), server(), server());
        let mut sockets: Vec<NameServer> = [&silent, &fails, &good].map(|server| way_to(server, None)).into();
        let serve = |socket: UdpSocket, code: u8| {
            std::thread::spawn(move || {
                for _ in 0..2 {
                    let mut buffer = [0; 512];
                    let (length, from) = socket.recv_from(&mut buffer).unwrap();
                    let id = u16::from_be_bytes([buffer[0], buffer[1]]);
                    let name = encoded("gateway.example").unwrap();
                    let kind =
                        u16::from_be_bytes([buffer[HEADER + name.len()], buffer[HEADER + name.len() + 1]]);
                    let asked = Question { id, name, kind };
                    assert_eq!(asked.to_bytes(), buffer[..length]);
                    let data: &[u8] = if kind == A { &[192, 0, 2, 1] } else { &[0x20; 16] };
                    socket.send_to(b"noise", from).unwrap();
                    socket.send_to(&answer(&asked, code, &[(kind, data)]), from).unwrap();
                }
            })
        };
        let threads = [serve(fails, 2), serve(good, 0)];
        let found = resolve("gateway.example", &mut sockets).unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(resolve("192.0.2.7", &mut []).unwrap(), ["192.0.2.7".parse::<IpAddr>().unwrap()]);
        assert!(resolve("gateway.example", &mut []).unwrap_err().to_string().contains("no name server"));
    }
}
