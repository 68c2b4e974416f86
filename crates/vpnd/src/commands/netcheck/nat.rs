//! Which port of an address translator stands for one of this machine (RFC 4787 §4.1), and whether
//! it does so after a silence.
//!
//! A gateway's Retry has a token for the address and port that it saw (RFC 9000 §8.1.2). Shown at
//! another address of the gateway, or later, a token that is good brings no answer, since nothing
//! behind it makes sense, and another one brings another Retry. So the gateway sends no more than
//! to anybody, and says no address.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rand::Rng as _;
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep, timeout_at};

/// Size of a datagram that may begin a connection (RFC 9000 §14.1).
const SIZE: usize = 1_200;
const ID_LEN: usize = 8;
/// Tag at the end of a Retry.
const TAG_LEN: usize = 16;
const MAX_TOKEN: usize = 256;
/// Datagrams that are sent for one answer, and the time for each.
const TRIES: u32 = 3;
const ANSWER_TIMEOUT: Duration = Duration::from_millis(700);
/// The silence that is tried: longer than between two keep-alives of an idle tunnel, and shorter
/// than a token is good for.
const SILENCE: Duration = Duration::from_secs(27);

/// The translator's treatment of one port of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mapping {
    /// It is the same for both addresses of the gateway.
    Same,
    /// It is another one for each, or the addresses are two gateways'.
    Differs,
    /// Too little was answered.
    Unknown,
}

/// Findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// `None` where the gateway has no second address.
    pub(super) mapping: Option<Mapping>,
    /// Whether the same port stands for this machine's after a silence; `None` if that was not
    /// tried, or nothing was answered.
    pub(super) outlives_silence: Option<bool>,
}

/// The silence that [`look`] tries, in seconds.
pub(super) const fn silence_s() -> u64 {
    SILENCE.as_secs()
}

/// Looks by these two addresses of the gateway, and waits for the time of a silence if `waits`.
///
/// # Errors
/// If nothing can be sent there.
pub(super) async fn look(address: SocketAddr, other: Option<SocketAddr>, waits: bool) -> io::Result<Found> {
    if other.is_none() && !waits {
        return Ok(Found { mapping: None, outlives_silence: None });
    }
    let any: SocketAddr = if address.is_ipv4() { ([0; 4], 0).into() } else { ([0; 16], 0).into() };
    let one = Asker(UdpSocket::bind(any).await?);
    let Some(token) = one.ask(address, &[]).await? else {
        return Ok(Found { mapping: other.map(|_| Mapping::Unknown), outlives_silence: None });
    };
    // A host that does not take its token is not one gateway, or is too busy.
    let is_taken = one.ask(address, &token).await?.is_none();
    let mapping = match other {
        None => None,
        Some(_) if !is_taken => Some(Mapping::Unknown),
        Some(other) => Some(one.compare(other, &token).await?),
    };
    let mut outlives_silence = None;
    if waits && is_taken {
        // The port that has carried nothing since is a new one.
        let silent = Asker(UdpSocket::bind(any).await?);
        if let Some(token) = silent.ask(address, &[]).await? {
            sleep(SILENCE).await;
            let is_same = silent.ask(address, &token).await?.is_none();
            // No answer means something only if there would be one.
            let is_there = silent.ask(address, &[]).await?.is_some();
            outlives_silence = is_there.then_some(is_same);
        }
    }
    Ok(Found { mapping, outlives_silence })
}

/// A port of this machine.
struct Asker(UdpSocket);

impl Asker {
    async fn compare(&self, to: SocketAddr, token: &[u8]) -> io::Result<Mapping> {
        if self.ask(to, &[]).await?.is_none() {
            return Ok(Mapping::Unknown);
        }
        Ok(if self.ask(to, token).await?.is_none() { Mapping::Same } else { Mapping::Differs })
    }

    /// Shows a token, or none, to the gateway; the token of the Retry that it brings.
    async fn ask(&self, to: SocketAddr, token: &[u8]) -> io::Result<Option<Vec<u8>>> {
        for _ in 0..TRIES {
            let mut ids = [0; 2 * ID_LEN];
            rand::rng().fill_bytes(&mut ids);
            let (destination, source) = ids.split_at(ID_LEN);
            self.0.send_to(&initial(destination, source, token), to).await?;
            let until = Instant::now() + ANSWER_TIMEOUT;
            let mut buffer = [0; 2_048];
            while let Ok(received) = timeout_at(until, self.0.recv_from(&mut buffer)).await {
                // A host on the way may have refused one.
                let Ok((len, from)) = received else { break };
                if from == to
                    && let Some(token) = token_of(&buffer[..len], source)
                {
                    return Ok(Some(token.to_vec()));
                }
            }
        }
        Ok(None)
    }
}

/// An Initial packet with this token, and nothing behind it that makes sense (RFC 9000 §17.2.2).
fn initial(destination: &[u8], source: &[u8], token: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::with_capacity(SIZE);
    datagram.extend([0xC0, 0, 0, 0, 1]);
    for id in [destination, source] {
        datagram.push(id.len() as u8);
        datagram.extend(id);
    }
    put_length(&mut datagram, token.len());
    datagram.extend(token);
    let rest = SIZE - datagram.len() - 2;
    put_length(&mut datagram, rest);
    datagram.resize(SIZE, 0);
    datagram
}

/// A variable-length integer of two bytes (RFC 9000 §16).
fn put_length(out: &mut Vec<u8>, length: usize) {
    out.extend((0x4000 | length as u16).to_be_bytes());
}

/// The token of a Retry to a connection with this id (RFC 9000 §17.2.5).
fn token_of<'d>(datagram: &'d [u8], own: &[u8]) -> Option<&'d [u8]> {
    let rest = datagram.strip_prefix(&[datagram.first().copied().filter(|first| first & 0xB0 == 0xB0)?])?;
    let rest = rest.strip_prefix(&[0, 0, 0, 1])?;
    let (destination, rest) = id(rest)?;
    let (_, rest) = id(rest)?;
    let token = rest.get(..rest.len().checked_sub(TAG_LEN)?)?;
    (destination == own && (1..=MAX_TOKEN).contains(&token.len())).then_some(token)
}

fn id(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*length))
}

const _: () = assert!(MAX_TOKEN + 64 < SIZE);

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn retry(destination: &[u8], token: &[u8]) -> Vec<u8> {
        let mut packet = vec![0xF0, 0, 0, 0, 1, destination.len() as u8];
        packet.extend(destination);
        packet.extend([4, 9, 9, 9, 9]);
        packet.extend(token);
        packet.extend([0; TAG_LEN]);
        packet
    }

    #[test]
    fn a_retry_has_its_token_between_the_ids_and_the_tag() {
        let own = [7; ID_LEN];
        let packet = retry(&own, b"token");
        assert_eq!(token_of(&packet, &own), Some(&b"token"[..]));
        assert_eq!(token_of(&packet, &[8; ID_LEN]), None, "another connection's");
        assert_eq!(token_of(&retry(&own, b""), &own), None);
        assert_eq!(token_of(&retry(&own, &[1; MAX_TOKEN + 1]), &own), None);
        for len in 0..packet.len() - 5 {
            assert_eq!(token_of(&packet[..len], &own), None, "{len} bytes");
        }
        let mut other = packet.clone();
        other[4] = 2;
        assert_eq!(token_of(&other, &own), None, "another version");
        other[0] = 0x40;
        assert_eq!(token_of(&other, &own), None, "no long header");
    }

    #[test]
    fn what_is_sent_is_as_long_as_it_has_to_be() {
        for token in [&[][..], &[1; 100]] {
            let datagram = initial(&[1; ID_LEN], &[2; ID_LEN], token);
            assert_eq!(datagram.len(), SIZE);
            let at = 5 + 2 * (1 + ID_LEN);
            assert_eq!(datagram[at..at + 2], (0x4000 | token.len() as u16).to_be_bytes());
            assert_eq!(&datagram[at + 2..at + 2 + token.len()], token);
        }
    }

    /// A gateway of two sockets that sees this machine's port as `seen` says, by the port that is
    /// asked.
    async fn gateway(seen: impl Fn(u16) -> u8) -> Found {
        let sockets =
            [UdpSocket::bind("127.0.0.1:0").await.unwrap(), UdpSocket::bind("127.0.0.1:0").await.unwrap()];
        let [one, other] = [0, 1].map(|number| sockets[number].local_addr().unwrap());
        let serve = async |socket: &UdpSocket| {
            let mut buffer = [0; 2_048];
            let sees = seen(socket.local_addr().unwrap().port());
            loop {
                let (_, from) = socket.recv_from(&mut buffer).await.unwrap();
                // The token's length is behind the ids.
                if buffer[23..26] != [0x40, 1, sees] {
                    let source = buffer[15..23].to_vec();
                    socket.send_to(&retry(&source, &[sees]), from).await.unwrap();
                }
            }
        };
        tokio::select! {
            () = serve(&sockets[0]) => unreachable!(),
            () = serve(&sockets[1]) => unreachable!(),
            found = look(one, Some(other), false) => found.unwrap(),
        }
    }

    #[tokio::test]
    async fn a_token_that_is_good_at_both_addresses_shows_one_port() {
        assert_eq!(gateway(|_| 1).await, Found { mapping: Some(Mapping::Same), outlives_silence: None });
    }

    #[tokio::test]
    async fn a_token_that_is_refused_at_the_other_shows_two() {
        let ports = Cell::new(0);
        let seen = |_| {
            ports.set(ports.get() + 1);
            ports.get()
        };
        assert_eq!(gateway(seen).await.mapping, Some(Mapping::Differs));
    }
}
