//! Names: those of the gateway, by which clients find it, and the name servers that it pushes.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use ipnet::IpNet;
use tokio::time::timeout;

use super::Finding;
use vpnd_config::ServerConfig;
use vpnd_config::certificate;
use vpnd_config::endpoint::Endpoint;
use vpnd_pki::leaf::Leaf;

/// Limit for one look-up, as clients have it.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit for a name server's answer; it is asked twice, since a datagram may be lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const DNS_PORT: u16 = 53;

/// Whether the names in the gateway's certificate lead anywhere, and where.
pub(super) async fn gateway_names(config: &ServerConfig) -> Vec<Finding> {
    let pem = certificate::read(&config.tls.certificate).unwrap_or_default();
    let leaf = vpnd_pki::leaf::chain(&pem).first().and_then(|leaf| Leaf::parse(leaf));
    let names = leaf.map(|leaf| leaf.names).unwrap_or_default();
    let names = names.iter().filter(|name| !name.contains('*') && name.parse::<IpAddr>().is_err());
    futures_util::future::join_all(names.map(|name| gateway_name(name, config.server.listen.port()))).await
}

/// The addresses of a name, as this machine finds them.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] if nothing answers, or what the look-up says.
pub(in crate::commands) async fn look_up(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let found = timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host((name, port))).await;
    let silent = |_| {
        let seconds = LOOKUP_TIMEOUT.as_secs();
        io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {seconds} s"))
    };
    Ok(found.map_err(silent)??.collect())
}

async fn gateway_name(name: &str, port: u16) -> Finding {
    const CHECK: &str = "names";
    let addresses: Vec<IpAddr> = match look_up(name, port).await {
        Ok(found) => found.into_iter().map(|address| address.ip()).collect(),
        Err(error) if error.kind() != io::ErrorKind::TimedOut => {
            let advice = "clients look it up: give it an address in the public DNS, or rename the gateway ('vpnd init --name')";
            return Finding::warning(CHECK, format!("{name} can't be looked up here: {error}"), advice);
        }
        Err(_) => {
            let found = format!("{name} could not be looked up within {} s", LOOKUP_TIMEOUT.as_secs());
            return Finding::unknown(
                CHECK,
                found,
                "is this machine's name server in reach? See /etc/resolv.conf",
            );
        }
    };
    let (own, others): (Vec<IpAddr>, Vec<IpAddr>) = addresses.iter().partition(|address| is_own(**address));
    let list =
        |addresses: &[IpAddr]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if others.is_empty() {
        return Finding::good(CHECK, format!("{name} is {}, of this machine", list(&own)));
    }
    let found = format!("{name} is {}, no address of this machine", list(&others));
    Finding::warning(
        CHECK,
        found,
        format!("right if a router there forwards UDP port {port} to this machine; else correct the DNS"),
    )
}

/// Whether WireGuard devices would send their own datagrams into the tunnel: their files leave out
/// the addresses that this machine or the configuration has, and a name may lead to another.
pub(super) async fn device_endpoint(config: &ServerConfig) -> Option<Finding> {
    config.wireguard.as_ref()?;
    let Endpoint { address, outer } = Endpoint::of(config).ok()?;
    let found = look_up(&address.host, address.port).await.ok()?;
    let networks: Vec<IpNet> = config.tunnel.pools().chain(config.profiles.routes()).collect();
    let inside = found.iter().map(SocketAddr::ip).find(|found| is_swallowed(*found, &networks, &outer))?;
    Some(Finding::warning(
        "wireguard.endpoint",
        format!("{} is {inside}, in a network that WireGuard devices send into the tunnel", address.host),
        format!(
            "write \"{inside}:{}\" into 'addresses' of [server], behind the name, and restart: files made then leave it out",
            address.port
        ),
    ))
}

/// Whether an address lies in a network of a client's file, but for a default route, which clients
/// lead around the gateway by themselves.
fn is_swallowed(address: IpAddr, networks: &[IpNet], outer: &[IpAddr]) -> bool {
    let mut smaller = networks.iter().filter(|network| network.prefix_len() > 0);
    !outer.contains(&address) && smaller.any(|network| network.contains(&address))
}

/// Whether this machine has the address: only then a socket can have it.
fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Whether the name servers that any clients are given answer this machine, by which clients ask
/// them.
pub(super) async fn name_servers(config: &ServerConfig) -> Vec<Finding> {
    let servers = config.profiles.name_servers().into_iter();
    futures_util::future::join_all(servers.map(|server| name_server((server, DNS_PORT).into()))).await
}

async fn name_server(server: SocketAddr) -> Finding {
    const CHECK: &str = "push.dns";
    let ip = server.ip();
    for _ in 0..2 {
        match timeout(ANSWER_TIMEOUT, answers(server)).await {
            Ok(Ok(())) => return Finding::good(CHECK, format!("the name server {ip} answers")),
            Ok(Err(error)) => {
                let advice =
                    "push another one in 'dns', or let this machine reach it; clients use it for every name";
                return Finding::problem(
                    CHECK,
                    format!("the name server {ip} can't be asked from here: {error}"),
                    advice,
                );
            }
            Err(_) => {}
        }
    }
    let advice = "push another one in 'dns', or let this machine ask it; clients use it for every name";
    Finding::problem(CHECK, format!("the name server {ip} does not answer"), advice)
}

/// Asks for the root's name servers (RFC 1035, section 4.1) until an answer to that comes: any, a
/// refusal too.
async fn answers(server: SocketAddr) -> std::io::Result<()> {
    let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = tokio::net::UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    let id: [u8; 2] = rand::random();
    // Recursion desired, one question: the root, NS, IN.
    let question = [id[0], id[1], 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];
    socket.send(&question).await?;
    let mut answer = [0; 512];
    loop {
        let length = socket.recv(&mut answer).await?;
        if is_answer(&answer[..length], id) {
            return Ok(());
        }
    }
}

fn is_answer(datagram: &[u8], id: [u8; 2]) -> bool {
    datagram.len() >= 12 && datagram[..2] == id && datagram[2] & 0x80 != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Verdict;

    #[tokio::test]
    async fn a_server_that_answers_with_its_own_number_is_good() {
        let server = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let reply = tokio::spawn(async move {
            let mut question = [0; 64];
            let (length, from) = server.recv_from(&mut question).await.unwrap();
            // Another host's answer, then the right one, which refuses.
            let mut answer = question[..length].to_vec();
            answer[2] |= 0x80;
            answer[0] ^= 1;
            server.send_to(&answer, from).await.unwrap();
            answer[0] ^= 1;
            answer[3] = 5;
            server.send_to(&answer, from).await.unwrap();
        });
        assert_eq!(name_server(address).await.verdict, Verdict::Good);
        reply.await.unwrap();
    }

    #[tokio::test]
    async fn a_name_server_that_does_not_answer_is_a_problem() {
        let closed = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(name_server(closed).await.verdict, Verdict::Problem);
    }

    #[test]
    fn a_question_is_no_answer() {
        let question = [7, 8, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        let mut answer = question;
        answer[2] |= 0x80;
        assert!(!is_answer(&question, [7, 8]) && is_answer(&answer, [7, 8]));
        assert!(!is_answer(&answer, [7, 9]) && !is_answer(&answer[..11], [7, 8]));
    }

    #[test]
    fn a_gateway_inside_a_devices_networks_is_found_unless_files_leave_it_out() {
        let networks = ["0.0.0.0/0", "192.0.2.0/24", "2001:db8::/32"].map(|net| net.parse().unwrap());
        let is = |address: &str, outer: &[IpAddr]| is_swallowed(address.parse().unwrap(), &networks, outer);
        assert!(is("192.0.2.7", &[]) && is("2001:db8::7", &["192.0.2.7".parse().unwrap()]));
        assert!(!is("192.0.2.7", &["192.0.2.7".parse().unwrap()]));
        assert!(!is("198.51.100.7", &[]), "a default route is led around it");
    }

    #[tokio::test]
    async fn local_and_remote_names_are_distinguished() {
        let finding = gateway_name("localhost", 4433).await;
        assert_eq!(finding.verdict, Verdict::Good, "{finding:?}");
        assert!(!is_own([192, 0, 2, 1].into()));
    }
}
