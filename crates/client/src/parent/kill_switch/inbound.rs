//! Connections that others have opened to this machine, which a kill switch would cut off.
//!
//! It reads what the kernel lists; what can't be read counts as not there. INVARIANT: a session
//! counts only if the kernel has its connection in this network namespace; a connection of a
//! stranger, who is not logged in, counts for nothing, nor does one of this machine to itself, or
//! to a port at which a user without root listens: each account can make those.

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use vpnd_journal::kill_switch::KillSwitchRecord;
use vpnd_sys::change::is_plausible_local;

const ESTABLISHED: &str = "01";
const LISTENS: &str = "0A";
/// The user of sshd's sockets.
const ROOT: &str = "0";

/// A TCP connection that another host has opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Inbound {
    pub(super) peer: IpAddr,
    pub(super) peer_port: u16,
    /// The port of this machine.
    pub(super) port: u16,
    /// Whether root listens there, as for logins.
    pub(super) is_roots: bool,
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
/// a user is logged in, to a port of root's.
pub(super) fn session<'i>(
    open: &[&'i Inbound],
    sessions: &[SocketAddr],
    logged_in: &[IpAddr],
) -> Option<&'i Inbound> {
    let is_one = |inbound: &&&Inbound| {
        let Inbound { peer, peer_port, is_roots, .. } = **inbound;
        sessions.contains(&SocketAddr::new(*peer, *peer_port)) || *is_roots && logged_in.contains(peer)
    };
    open.iter().find(is_one).copied()
}

/// A socket of the kernel's list.
struct Listed<'t> {
    own: SocketAddr,
    peer: SocketAddr,
    state: &'t str,
    user: &'t str,
}

fn of_tables(tables: &[String]) -> Vec<Inbound> {
    let all: Vec<Listed<'_>> = tables.iter().flat_map(|table| table.lines()).filter_map(listed).collect();
    let established = || all.iter().filter(|socket| socket.state == ESTABLISHED);
    // A socket that only listens may be bound to an address that is not this machine's.
    let own: HashSet<IpAddr> = established().map(|socket| socket.own.ip()).collect();
    let listening =
        |port: u16| all.iter().filter(move |socket| socket.state == LISTENS && socket.own.port() == port);
    let open = established().filter(|socket| {
        // Those of this machine to itself pass a kill switch, by the loopback interface.
        let is_internal = socket.own.ip().is_loopback() || own.contains(&socket.peer.ip());
        !is_internal && listening(socket.own.port()).next().is_some()
    });
    open.map(|Listed { own, peer, .. }| Inbound {
        peer: peer.ip(),
        peer_port: peer.port(),
        port: own.port(),
        is_roots: listening(own.port()).any(|socket| socket.user == ROOT),
    })
    .collect()
}

fn listed(line: &str) -> Option<Listed<'_>> {
    let mut words = line.split_whitespace().skip(1);
    let (own, peer, state) = (end(words.next()?)?, end(words.next()?)?, words.next()?);
    // Behind queues and timers.
    Some(Listed { own, peer, state, user: words.nth(3)? })
}

/// An address and a port as the kernel prints them: hexadecimal, each word in the machine's order.
fn end(text: &str) -> Option<SocketAddr> {
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
    Some(SocketAddr::new(plain(address), port))
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

    /// A line as the kernel prints it.
    fn line(own: &str, peer: &str, state: &str, user: u32) -> String {
        let end = |text: &str| {
            let end: SocketAddr = text.parse().unwrap();
            let bytes = match end.ip() {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            };
            let words = bytes.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
            let address: String = words.map(|word| format!("{word:08X}")).collect();
            format!("{address}:{:04X}", end.port())
        };
        let (own, peer) = (end(own), end(peer));
        format!(
            "   1: {own} {peer} {state} 00000000:00000000 00:00000000 00000000  {user}        0 12345 1\n"
        )
    }

    #[test]
    fn inbound_connections_are_found_and_outbound_ones_are_not() {
        let four = [
            line("0.0.0.0:5000", "0.0.0.0:0", LISTENS, 1_000),
            line("192.0.2.1:5000", "192.0.2.7:50123", ESTABLISHED, 1_000),
            line("192.0.2.1:50124", "192.0.2.7:443", ESTABLISHED, 1_000),
            line("127.0.0.1:5000", "127.0.0.1:50125", ESTABLISHED, 1_000),
            line("192.0.2.7:6000", "0.0.0.0:0", LISTENS, 1_000),
        ];
        let six = [
            line("[::]:22", "[::]:0", LISTENS, 0),
            line("[::ffff:192.0.2.1]:22", "[::ffff:192.0.2.7]:50126", ESTABLISHED, 0),
            line("[2001:db8::1]:22", "[2001:db8::7]:50127", ESTABLISHED, 0),
            line("[2001:db8::1]:22", "[2001:db8::8]:50128", "06", 0),
        ];
        let inbound = |peer: &str, peer_port, port, is_roots| Inbound {
            peer: peer.parse().unwrap(),
            peer_port,
            port,
            is_roots,
        };
        assert_eq!(
            of_tables(&[four.concat(), six.concat()]),
            [
                inbound("192.0.2.7", 50_123, 5_000, false),
                inbound("192.0.2.7", 50_126, 22, true),
                inbound("2001:db8::7", 50_127, 22, true),
            ]
        );
    }

    #[test]
    fn a_connection_of_the_machine_to_itself_is_not_inbound() {
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
            let tables = ["tcp", "tcp6"]
                .map(|name| fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap())
                .concat();
            let sockets: Vec<_> = tables.lines().filter_map(listed).collect();
            for stream in [&four, &six] {
                let (client, server) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
                let is_end = |socket: &&Listed<'_>| socket.own == server && socket.peer == client;
                let end = sockets.iter().find(is_end).expect("the kernel lists it");
                assert_eq!(end.state, ESTABLISHED);
            }
            let listens = sockets.iter().find(|socket| socket.state == LISTENS).unwrap();
            assert!(listens.user.parse::<u32>().is_ok(), "{}", listens.user);
            assert_eq!(established(), []);
            drop(listener);
        });
    }

    #[test]
    fn a_strangers_connection_is_no_session() {
        let peer = |n| IpAddr::from([192, 0, 2, n]);
        let own = Inbound { peer: peer(7), peer_port: 50_123, port: 22, is_roots: true };
        let strangers = Inbound { peer: peer(8), ..own.clone() };
        let other = Inbound { peer_port: 50_124, ..own.clone() };
        let at = |inbound: &Inbound| SocketAddr::new(inbound.peer, inbound.peer_port);
        let open = [&strangers, &other, &own];
        assert_eq!(session(&open, &[], &[]), None);
        assert_eq!(session(&open, &[at(&own)], &[]), Some(&own));
        assert_eq!(session(&open, &[], &[peer(8)]), Some(&strangers), "another person's who is logged in");
        assert_eq!(session(&[&strangers], &[at(&own)], &[peer(7)]), None);
        let users = Inbound { port: 5_000, is_roots: false, ..own.clone() };
        assert_eq!(session(&[&users], &[], &[peer(7)]), None, "no port for logins");
        assert_eq!(session(&[&users], &[at(&users)], &[]), Some(&users), "one's own session");
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
