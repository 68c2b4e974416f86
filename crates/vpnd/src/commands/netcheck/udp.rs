//! Probes over UDP: QUIC packets of a version that does not exist, which a gateway answers with the
//! versions it has (RFC 9000 §6) and forgets.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rand::Rng as _;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use tokio::net::UdpSocket;
use tokio::time::{sleep, timeout};

use super::headers;

/// A version that is reserved to be answered so (RFC 9000 §15).
const VERSION: [u8; 4] = [0x0A, 0x1A, 0x2A, 0x3A];
/// Probes for round trips and loss, and the time between two.
const PROBES: u32 = 20;
const INTERVAL: Duration = Duration::from_millis(50);
/// The least datagram that is answered (RFC 9000 §14.1).
const LEAST: usize = 1_200;
/// Sizes of packets that are tried, with the headers of IP, each a few times.
const SIZES: [usize; 8] = [1_280, 1_320, 1_360, 1_400, 1_440, 1_480, 1_492, 1_500];
const TRIES: u32 = 3;
/// Time for the last answers.
const TIMEOUT: Duration = Duration::from_secs(2);
const ID_LEN: usize = 8;

/// Identifiers of one probe: the answer has both.
type Ids = [u8; 2 * ID_LEN];

/// The probes that went, and what came of them.
#[derive(Debug, Default)]
pub(super) struct Probed {
    /// In the order of their length.
    round_trips: Vec<Duration>,
    pub(super) loss: Loss,
    /// The largest packet that arrived at the gateway.
    pub(super) largest: usize,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Loss {
    pub(super) sent: u32,
    pub(super) lost: u32,
}

impl Probed {
    pub(super) fn median(&self) -> Option<Duration> {
        self.round_trips.get(self.round_trips.len() / 2).copied()
    }

    pub(super) fn slowest(&self) -> Option<Duration> {
        self.round_trips.last().copied()
    }
}

/// A probe on its way.
struct Sent {
    at: Instant,
    size: usize,
    is_for_loss: bool,
}

/// Probes the gateway at `address`.
///
/// # Errors
/// If nothing can be sent there.
pub(super) async fn probe(address: SocketAddr) -> io::Result<Probed> {
    let any: SocketAddr = if address.is_ipv4() { ([0; 4], 0).into() } else { ([0; 16], 0).into() };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(address).await?;
    // Neither the kernel nor a router may cut them.
    if address.is_ipv4() {
        sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?;
    } else {
        sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)?;
    }
    let (mut sent, mut probed) = (HashMap::new(), Probed::default());
    for _ in 0..PROBES {
        send(&socket, LEAST + headers(address.ip()), headers(address.ip()), true, &mut sent).await?;
        receive(&socket, INTERVAL, &mut sent, &mut probed).await;
    }
    for size in SIZES {
        for _ in 0..TRIES {
            send(&socket, size, headers(address.ip()), false, &mut sent).await?;
            receive(&socket, INTERVAL / 5, &mut sent, &mut probed).await;
        }
    }
    receive(&socket, TIMEOUT, &mut sent, &mut probed).await;
    let lost = sent.values().filter(|sent| sent.is_for_loss).count() as u32;
    probed.loss = Loss { sent: PROBES, lost };
    probed.round_trips.sort();
    Ok(probed)
}

/// Sends one probe in a packet of `size` bytes. One that is longer than a link of this machine is
/// lost, as is one that is refused on the way.
async fn send(
    socket: &UdpSocket,
    size: usize,
    headers: usize,
    is_for_loss: bool,
    sent: &mut HashMap<Ids, Sent>,
) -> io::Result<()> {
    let mut ids: Ids = [0; 2 * ID_LEN];
    rand::rng().fill_bytes(&mut ids);
    let outcome = socket.send(&datagram(&ids, size - headers)).await;
    sent.insert(ids, Sent { at: Instant::now(), size, is_for_loss });
    match outcome.map_err(|error| (error.kind(), error)) {
        Err((io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable, error)) => Err(error),
        _ => Ok(()),
    }
}

/// A long header of QUIC with these identifiers, padded to `len` bytes.
fn datagram(ids: &Ids, len: usize) -> Vec<u8> {
    let (destination, source) = ids.split_at(ID_LEN);
    let mut datagram = vec![0xC0];
    datagram.extend(VERSION);
    for id in [destination, source] {
        datagram.push(ID_LEN as u8);
        datagram.extend(id);
    }
    datagram.resize(len, 0);
    datagram
}

/// The identifiers of the probe that this answers.
fn answered(datagram: &[u8]) -> Option<Ids> {
    let (header, versions) = datagram.split_at_checked(7 + 2 * ID_LEN)?;
    let [first, 0, 0, 0, 0, rest @ ..] = header else { return None };
    let [len, rest @ ..] = rest else { return None };
    let (source, rest) = rest.split_at(ID_LEN);
    let [other_len, destination @ ..] = rest else { return None };
    let is_one = first & 0x80 != 0 && [len, other_len].iter().all(|len| usize::from(**len) == ID_LEN);
    let mut ids = [0; 2 * ID_LEN];
    ids[..ID_LEN].copy_from_slice(destination);
    ids[ID_LEN..].copy_from_slice(source);
    (is_one && !versions.is_empty() && versions.len().is_multiple_of(4)).then_some(ids)
}

/// Takes answers for this time, or until there is nothing to wait for.
async fn receive(socket: &UdpSocket, time: Duration, sent: &mut HashMap<Ids, Sent>, probed: &mut Probed) {
    let until = Instant::now() + time;
    let mut buffer = [0; 2_048];
    while !sent.is_empty() || time < TIMEOUT {
        let left = until.saturating_duration_since(Instant::now());
        match timeout(left, socket.recv(&mut buffer)).await {
            Err(_) => return,
            // A host on the way has refused one.
            Ok(Err(_)) => sleep(INTERVAL.min(left) / 5).await,
            Ok(Ok(len)) => {
                let Some(probe) = answered(&buffer[..len]).and_then(|ids| sent.remove(&ids)) else {
                    continue;
                };
                probed.round_trips.push(probe.at.elapsed());
                probed.largest = probed.largest.max(probe.size);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_identifiers_of_its_probe_the_other_way_round() {
        let ids: Ids = std::array::from_fn(|place| place as u8);
        let probe = datagram(&ids, 1_200);
        assert_eq!((probe.len(), &probe[..6]), (1_200, &[0xC0, 0x0A, 0x1A, 0x2A, 0x3A, 8][..]));
        let mut answer = vec![0x80, 0, 0, 0, 0, 8];
        answer.extend(&ids[ID_LEN..]);
        answer.push(8);
        answer.extend(&ids[..ID_LEN]);
        assert_eq!(answered(&answer), None, "it names no version");
        answer.extend([0, 0, 0, 1]);
        assert_eq!(answered(&answer), Some(ids));
        for len in 0..answer.len() {
            assert_eq!(answered(&answer[..len]), None, "{len} bytes");
        }
        answer[5] = 7;
        assert_eq!(answered(&answer), None);
    }

    #[tokio::test]
    async fn what_is_lost_is_counted() {
        let gateway = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = gateway.local_addr().unwrap();
        let answers = async {
            let mut buffer = [0; 2_048];
            for number in 0.. {
                let (len, from) = gateway.recv_from(&mut buffer).await.unwrap();
                let ids: Ids = [&buffer[6..14], &buffer[15..23]].concat().try_into().unwrap();
                let mut answer = vec![0x80, 0, 0, 0, 0, 8];
                answer.extend(&ids[ID_LEN..]);
                answer.push(8);
                answer.extend(&ids[..ID_LEN]);
                answer.extend([0, 0, 0, 1]);
                if number % 4 != 0 && len + 28 <= 1_400 {
                    gateway.send_to(&answer, from).await.unwrap();
                }
            }
        };
        let probed = tokio::select! {
            () = answers => unreachable!(),
            probed = probe(address) => probed.unwrap(),
        };
        assert_eq!((probed.loss.sent, probed.loss.lost, probed.largest), (20, 5, 1_400));
        assert!(probed.median() <= probed.slowest());
    }
}
