//! Stock WireGuard clients at the other end: the original in Go; Tailscale's fork, which does not
//! learn a peer's address from its handshake; boringtun, whose replay window is smaller; and
//! gotatun.
//!
//! ```text
//!  application --- tun device --- wireguard-go --- UDP over loopback --- our end, which sends every packet back
//!   10.99.0.2                      127.0.0.1                               127.0.0.1     10.99.0.1
//! ```
//!
//! All of it is in separate namespaces, which end with the test: it runs itself again in them.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

#[path = "../model/node.rs"]
mod node;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use rand::Rng as _;
use vpnd_crypto::Secret;
use vpnd_packet::Packet;
use vpnd_proto::admission::sketch::Rate;
use vpnd_proto::plane::Endpoint;
use vpnd_proto::session::Random;
use vpnd_proto::time::Time;
use vpnd_wireguard::gate::Limits;
use vpnd_wireguard::handshakes::Known;
use vpnd_wireguard::key::{PublicKey, StaticKey};
use vpnd_wireguard::peers::{Event, PeerId};

use node::Node;

/// Set for the run in the namespaces.
const INSIDE: &str = "VPND_WIREGUARD_INSIDE";
const DEVICE: &str = "wg0";
const OWN_PRIVATE: [u8; 32] = [0x11; 32];
const THEIR_PRIVATE: [u8; 32] = [0x22; 32];
const PRESHARED: [u8; 32] = [0x33; 32];
/// Machines of CI are slow and busy: this long may anything take there.
const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn wireguard_go_is_served() {
    in_namespaces("wireguard_go_is_served", "wireguard-go");
}

#[test]
fn tailscales_wireguard_go_is_served() {
    in_namespaces("tailscales_wireguard_go_is_served", "wireguard-go-tailscale");
}

#[test]
fn boringtun_is_served() {
    in_namespaces("boringtun_is_served", "boringtun-cli");
}

#[test]
fn gotatun_is_served() {
    in_namespaces("gotatun_is_served", "gotatun");
}

/// Runs the test again in namespaces, or the scenario if this is that run.
fn in_namespaces(test: &str, name: &str) {
    let Some(program) = program(name) else { return };
    if std::env::var_os(INSIDE).is_some() {
        scenario(&program);
        return;
    }
    let run = Command::new("unshare")
        .args(["--net", "--mount", "--pid", "--fork", "--kill-child"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&run.stdout);
    println!("{output}");
    assert!(run.status.success(), "{}", run.status);
    assert!(output.contains("1 passed"), "there is no test of this name: {test}");
}

/// The program, as `./x setup` builds it. `None`, and a loud word, if this process may not make
/// namespaces, or it is not there; a failure instead where `CI` is set, but for Tailscale's fork,
/// which needs a newer Go than Debian 12 has, and gotatun, which takes minutes to build.
fn program(name: &str) -> Option<PathBuf> {
    let missing = |word: &str, may_be: bool| {
        assert!(may_be || std::env::var_os("CI").is_none(), "{word}");
        eprintln!("SKIPPED: {word}");
        // `./x test` shows the record, since the output of a test that passes is not shown.
        if let Some(record) = std::env::var_os("VPND_SKIPPED_RECORD") {
            let record = std::fs::OpenOptions::new().create(true).append(true).open(record);
            writeln!(record.unwrap(), "{word}").unwrap();
        }
        None
    };
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools");
    let found = [tools.as_path(), Path::new("/var/cache/trafficspeed/bin")].map(|folder| folder.join(name));
    let may = Command::new("unshare").args(["--net", "--mount", "true"]).stderr(Stdio::null()).status();
    if !may.is_ok_and(|status| status.success()) || !Path::new("/dev/net/tun").exists() {
        return missing("this test needs root, and /dev/net/tun, for namespaces with a device", false);
    }
    let Some(program) = found.iter().find(|program| program.exists()) else {
        let maker = if name == "gotatun" { "./x nightly" } else { "./x setup" };
        let may_be = ["wireguard-go-tailscale", "gotatun"].contains(&name);
        return missing(&format!("this test needs {name}: {maker}"), may_be);
    };
    Some(program.canonicalize().unwrap())
}

fn run(words: &str) {
    let mut words = words.split_whitespace();
    let program = words.next().unwrap();
    let status = Command::new(program).args(words).status().unwrap();
    assert!(status.success(), "{program}: {status}");
}

/// The client's process, its application, and our end.
struct Lab {
    client: Child,
    application: UdpSocket,
    socket: UdpSocket,
    started: Instant,
    node: Node,
    peer: PeerId,
    /// Someone else sends junk all the time.
    flooded: bool,
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}

impl Lab {
    fn start(program: &Path) -> Self {
        run("ip link set lo up");
        run("mount --make-rprivate /");
        run("mount -t tmpfs none /run");
        std::fs::create_dir("/run/wireguard").unwrap();
        let is_in_rust = ["boringtun-cli", "gotatun"].iter().any(|name| program.ends_with(name));
        let in_foreground =
            if is_in_rust { &["--foreground", "--disable-drop-privileges"][..] } else { &["-f"] };
        let client = Command::new(program).args(in_foreground).arg(DEVICE).spawn().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        wait(|| UnixStream::connect("/var/run/wireguard/wg0.sock").is_ok());
        configure(&format!(
            "private_key={}\nlisten_port=40001\nreplace_peers=true\npublic_key={}\npreshared_key={}\nendpoint={}\n\
             allowed_ip=10.99.0.1/32\n",
            hex(&THEIR_PRIVATE),
            hex(&StaticKey::new(Secret::new(OWN_PRIVATE)).public().0),
            hex(&PRESHARED),
            socket.local_addr().unwrap(),
        ));
        run("ip addr add 10.99.0.2/24 dev wg0");
        run("ip link set wg0 mtu 1420 up");
        let application = UdpSocket::bind("10.99.0.2:0").unwrap();
        application.set_nonblocking(true).unwrap();
        let (node, peer) = node(Time::ZERO, None, Limits::default());
        Self { client, application, socket, started: Instant::now(), node, peer, flooded: false }
    }

    /// Our end ends, and one begins that knows the peer's key alone, or its address too.
    fn restart(&mut self, endpoint: Option<Endpoint>, limits: Limits) {
        (self.node, self.peer) = node(self.now(), endpoint, limits);
    }

    fn now(&self) -> Time {
        Time::from_nanos(self.started.elapsed().as_nanos() as u64 + 1)
    }

    /// Sends back every packet that arrives, for a moment.
    fn turn(&mut self) -> usize {
        let mut buffer = [0; 2048];
        let mut arrived = 0;
        if self.flooded {
            let (now, junk) = (self.now(), self.node.junk());
            self.node.receive(now, at("127.0.0.2:1".parse().unwrap()), junk);
            self.node.sent.clear();
        }
        if let Ok((len, from)) = self.socket.recv_from(&mut buffer) {
            let now = self.now();
            let data = self.node.receive(now, at(from), buffer[..len].to_vec());
            if let Some(data) = data.filter(|data| !data.plaintext.is_empty()) {
                assert_eq!(data.peer, self.peer);
                // Bytes behind the packet's own length are padding.
                let packet = Packet::parse(&data.plaintext).unwrap().bytes().to_vec();
                assert!(data.plaintext.len() - packet.len() < 16);
                arrived += usize::from(self.echo(&packet));
            }
        }
        self.node.timeout(self.now());
        self.flush();
        arrived
    }

    /// Sends a UDP packet back to its sender; without changing its checksums, which do not depend
    /// on the order of addresses.
    fn echo(&mut self, packet: &[u8]) -> bool {
        if packet[9] != 17 || packet[12..16] != [10, 99, 0, 2] {
            return false;
        }
        let mut back = packet.to_vec();
        back[12..16].copy_from_slice(&packet[16..20]);
        back[16..20].copy_from_slice(&packet[12..16]);
        back[20..22].copy_from_slice(&packet[22..24]);
        back[22..24].copy_from_slice(&packet[20..22]);
        let now = self.now();
        self.node.send(now, self.peer, &back)
    }

    fn flush(&mut self) {
        for (to, datagram) in std::mem::take(&mut self.node.sent) {
            self.socket.send_to(&datagram, to.remote).unwrap();
        }
    }

    /// The application sends packets of these sizes until each has come back.
    fn application_is_answered(&mut self, sizes: &[usize]) {
        for size in sizes {
            let text: Vec<u8> = (0..*size).map(|at| at as u8).collect();
            let mut sent_at = None;
            let mut buffer = [0; 2048];
            let end = Instant::now() + TIMEOUT;
            loop {
                assert!(Instant::now() < end, "{size} bytes did not come back: {:?}", self.node.events);
                if sent_at.is_none_or(|at: Instant| at.elapsed() > Duration::from_secs(1)) {
                    self.application.send_to(&text, "10.99.0.1:7").unwrap();
                    sent_at = Some(Instant::now());
                }
                self.turn();
                if self.application.recv(&mut buffer).is_ok_and(|len| buffer[..len] == text) {
                    break;
                }
            }
        }
    }

    fn until(&mut self, done: impl Fn(&Node) -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !done(&self.node) {
            assert!(Instant::now() < end, "{:?}", self.node.events);
            self.turn();
        }
    }
}

fn node(now: Time, endpoint: Option<Endpoint>, limits: Limits) -> (Node, PeerId) {
    let random = || -> Random { Box::new(|bytes| rand::rng().fill_bytes(bytes)) };
    let mut node = Node::new(now, OWN_PRIVATE, limits, [random(), random()]);
    let day = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    node.day = day - now.since(Time::ZERO);
    let known = Known { preshared: Some(Secret::new(PRESHARED)), ..Known::default() };
    let client = StaticKey::new(Secret::new(THEIR_PRIVATE)).public();
    let peer = node.add(now, client, known, endpoint, None);
    (node, peer)
}

fn scenario(program: &Path) {
    let mut lab = Lab::start(program);
    println!("the client begins, with a preshared key");
    lab.application_is_answered(&[1, 100, 1_000, 1_392]);
    assert!(lab.node.events.contains(&Event::HandshakeDone(lab.peer)), "{:?}", lab.node.events);
    assert_eq!(lab.node.peers.endpoint(lab.peer), Some(at("127.0.0.1:40001".parse().unwrap())));

    // gotatun 0.10 ends when it is given another port, and fails to bind its own for another key.
    let may_change = !program.ends_with("gotatun");
    if may_change {
        println!("the client moves to another port");
        configure("listen_port=40002\n");
        lab.application_is_answered(&[200]);
        assert_eq!(lab.node.peers.endpoint(lab.peer), Some(at("127.0.0.1:40002".parse().unwrap())));
    }

    println!("our end restarts, knows the client's address, and begins");
    let endpoint = lab.node.peers.endpoint(lab.peer);
    lab.restart(endpoint, Limits::default());
    let now = lab.now();
    lab.node.send(now, lab.peer, &[0; 16]);
    lab.flush();
    lab.until(|node| node.events.iter().any(|event| matches!(event, Event::HandshakeDone(_))));
    lab.application_is_answered(&[300]);
    assert_eq!(lab.node.peers.gate_counts().passed, 0, "no first message came: we have begun");

    println!("our end restarts under load, and asks the client for a proof of its address");
    lab.restart(None, Limits { all_unproved: Rate { per_s: 1, burst: 1 }, ..Limits::default() });
    lab.flooded = true;
    lab.application_is_answered(&[400]);
    let counts = lab.node.peers.gate_counts();
    assert!(counts.cookies >= 1 && counts.passed >= 1, "{counts:?}");
    assert!(lab.node.events.contains(&Event::HandshakeDone(lab.peer)), "{:?}", lab.node.events);
    lab.flooded = false;

    if !may_change {
        return;
    }
    println!("an unknown key is named");
    configure(&format!("private_key={}\n", hex(&[0x44; 32])));
    let stranger = StaticKey::new(Secret::new([0x44; 32])).public();
    lab.restart(None, Limits::default());
    lab.application.send_to(b"hello", "10.99.0.1:7").unwrap();
    lab.until(|node| node.events.iter().any(|event| is_refusal_of(event, stranger)));
}

fn is_refusal_of(event: &Event, stranger: PublicKey) -> bool {
    use vpnd_wireguard::handshakes::Refused;
    matches!(event, Event::Refused { why: Refused::UnknownKey(key), .. } if *key == stranger)
}

fn at(remote: SocketAddr) -> Endpoint {
    Endpoint { remote, local: None }
}

/// Sets the client up, by the protocol that all implementations have.
fn configure(lines: &str) {
    let mut stream = UnixStream::connect("/var/run/wireguard/wg0.sock").unwrap();
    stream.write_all(format!("set=1\n{lines}\n").as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    assert_eq!(answer, "errno=0\n");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn wait(ready: impl Fn() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !ready() {
        assert!(Instant::now() < end, "nothing listens");
        std::thread::sleep(Duration::from_millis(20));
    }
}
