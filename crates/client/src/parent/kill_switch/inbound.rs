//! Connections that others have opened to this machine, which a kill switch would cut off.
//!
//! It reads what the kernel lists; what can't be read counts as not there. INVARIANT: a session
//! counts only if the kernel has its connection in this network namespace, and a connection of a
//! stranger, who is not logged in, counts for nothing.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use vpnd_journal::kill_switch::KillSwitchRecord;
use vpnd_sys::change::is_plausible_local;

const ESTABLISHED: &str = "01";
const LISTENS: &str = "0A";

/// A TCP connection that another host has opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Inbound {
    pub(super) peer: IpAddr,
    pub(super) peer_port: u16,
    /// The port of this machine.
    pub(super) port: u16,
}

/// The kill switch would cut off the person who switches it on.
#[derive(Debug, thiserror::Error)]
#[error(
    "the kill switch would cut off a connection by which you or others work, from {peer} to TCP port {port} of this machine, which \
     would not be reachable that way any more: --kill-switch-inbound {port}, or kill_switch_inbound in the profile, lets such connections pass; \
     --kill-switch-inbound none if you mean it",
    peer = .0.peer, port = .0.port
)]
pub(in super::super) struct WouldCutOff(pub(super) Inbound);

/// Connections to ports at which this machine listens, from other machines.
pub(super) fn established() -> Vec<Inbound> {
    let read = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    of_tables(&[read("tcp"), read("tcp6")])
}

/// Those that do not pass this kill switch.
pub(super) fn cut_off<'i>(
    open: &'i [Inbound],
    record: &'i KillSwitchRecord,
) -> impl Iterator<Item = &'i Inbound> {
    let passes = |inbound: &Inbound| {
        // Whether it is one of this machine's local networks is for the rules; that it could be
        // is good enough for a warning.
        let host = ipnet::IpNet::from(inbound.peer);
        record.rules.inbound.contains(&inbound.port) || (record.passes_local && is_plausible_local(host))
    };
    open.iter().filter(move |inbound| !passes(inbound))
}

/// The one of these by which a person works on this machine: one of these sessions, or from where
/// a user is logged in.
pub(super) fn session<'i>(
    open: &[&'i Inbound],
    sessions: &[SocketAddr],
    logged_in: &[IpAddr],
) -> Option<&'i Inbound> {
    let is_one = |inbound: &&&Inbound| {
        let Inbound { peer, peer_port, .. } = **inbound;
        sessions.contains(&SocketAddr::new(*peer, *peer_port)) || logged_in.contains(peer)
    };
    open.iter().find(is_one).copied()
}

fn of_tables(tables: &[String]) -> Vec<Inbound> {
    let lines = || {
        tables.iter().flat_map(|table| table.lines()).filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (own, peer) = (end(words.next()?)?, end(words.next()?)?);
            Some((own, peer, words.next()?))
        })
    };
    let ports: Vec<u16> = lines().filter(|(_, _, state)| *state == LISTENS).map(|(own, ..)| own.1).collect();
    let open = lines().filter(|((address, port), _, state)| {
        *state == ESTABLISHED && !address.is_loopback() && ports.contains(port)
    });
    open.map(|((_, port), (peer, peer_port), _)| Inbound { peer, peer_port, port }).collect()
}

/// An address and a port as the kernel prints them: hexadecimal, each word in the machine's order.
fn end(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |n: usize| Some(u32::from_str_radix(address.get(8 * n..8 * n + 8)?, 16).ok()?.to_ne_bytes());
    let address: IpAddr = match address.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            Ipv6Addr::from(<[u8; 16]>::try_from(words.concat()).ok()?).into()
        }
        _ => return None,
    };
    Some((plain(address), port))
}

/// An IPv4 address as such, where a socket of both versions shows it inside one of IPv6.
fn plain(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::*;
    use vpnd_sys::testing::in_namespace_async;

    #[test]
    fn inbound_connections_are_found_and_outbound_ones_are_not() {
        in_namespace_async(async || {
            let commands = ["address add 192.0.2.1/32 dev lo", "address add 2001:db8::1/128 dev lo"];
            for words in commands {
                vpnd_sys::testing::run("ip", &words.split(' ').collect::<Vec<_>>());
            }
            let listener = TcpListener::bind("[::]:7022").unwrap();
            let four = TcpStream::connect("192.0.2.1:7022").unwrap();
            // The kernel adds the route of an address of IPv6 a moment after the address.
            let late = Instant::now() + Duration::from_secs(10);
            let six = loop {
                match TcpStream::connect("[2001:db8::1]:7022") {
                    Err(_) if Instant::now() < late => std::thread::sleep(Duration::from_millis(5)),
                    connected => break connected.unwrap(),
                }
            };
            let loopback = TcpStream::connect("127.0.0.1:7022").unwrap();
            let expected: Vec<Inbound> = [&four, &six]
                .map(|stream| stream.local_addr().unwrap())
                .map(|peer| Inbound { peer: peer.ip(), peer_port: peer.port(), port: 7_022 })
                .into();
            let mut found = established();
            found.sort_by_key(|inbound| inbound.peer);
            assert_eq!(found, expected);
            drop((listener, loopback));
        });
    }

    #[test]
    fn a_strangers_connection_is_no_session() {
        let peer = |n| IpAddr::from([192, 0, 2, n]);
        let own = Inbound { peer: peer(7), peer_port: 50_123, port: 22 };
        let strangers = Inbound { peer: peer(8), ..own.clone() };
        let other = Inbound { peer_port: 50_124, ..own.clone() };
        let at = |inbound: &Inbound| SocketAddr::new(inbound.peer, inbound.peer_port);
        let open = [&strangers, &other, &own];
        assert_eq!(session(&open, &[], &[]), None);
        assert_eq!(session(&open, &[at(&own)], &[]), Some(&own));
        assert_eq!(session(&open, &[], &[peer(8)]), Some(&strangers), "another person's who is logged in");
        assert_eq!(session(&[&strangers], &[at(&own)], &[peer(7)]), None);
    }

    #[test]
    fn malformed_connection_lines_are_ignored() {
        for text in
            ["", "sl local_address", "0: 0100007F 0:1 01", "0: 0100007F:xx 0100007F:1 01", "0: é:1 é:1 01"]
        {
            assert_eq!(of_tables(&[text.to_owned()]), []);
        }
    }
}
