//! Behaviour: stock WireGuard clients, as they are made, are clients of the gateway: addresses,
//! policy, status and limits as for our own; they roam, and a gateway that is killed, restarted or
//! upgraded has them back within seconds without a person doing anything. `VPND_WIREGUARD_DEVICES`
//! says how many come back at once; times are printed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod drained;
pub(crate) mod fleet;
mod hostile;
mod paths;
mod tools;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value as Json;
use vpnd_config::access_profile::WALLED;
use vpnd_crypto::Secret;
use vpnd_store::WireGuardDevices as _;
use vpnd_store::sqlite::Sqlite;
use vpnd_wireguard::PublicKey;
use vpnd_wireguard::key::StaticKey;

use crate::client::Client;
use crate::gateway::{Gateway, must};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, GATEWAY_V4, GATEWAY_V6, Lab, UPLINK, eventually};
use crate::namespace::Namespace;
use crate::process::{self, Process};
use crate::traffic::{ping, ping_until, transfer};

const SECOND: Duration = Duration::from_secs(1);
/// Machines of CI are slow and busy.
const PATIENCE: Duration = Duration::from_secs(60);
/// By when a stock client is back after whatever happened to the gateway.
const BACK: Duration = Duration::from_secs(5);
const DEVICE: &str = "wg0";
/// Programs that are not everywhere: one needs a newer Go than Debian 12 has, one takes minutes to
/// build.
const MAY_BE_MISSING: [&str; 2] = ["wireguard-go-tailscale", "gotatun"];

/// A stock client's program, as `./x setup` builds it; or a word why it is not there.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools");
    let found = [tools.as_path(), Path::new("/var/cache/trafficspeed/bin")].map(|folder| folder.join(name));
    let found = found.iter().find(|program| program.exists()).and_then(|program| program.canonicalize().ok());
    if found.is_none() {
        // It takes minutes to build.
        let maker = if name == "gotatun" { "./x nightly" } else { "./x setup" };
        let word = format!("a stock client as a client of the gateway needs {name}: {maker}\n");
        assert!(MAY_BE_MISSING.contains(&name) || std::env::var_os("CI").is_none(), "{word}");
        eprint!("SKIPPED: {word}");
        if let Some(record) = std::env::var_os("VPND_SKIPPED_RECORD") {
            let record = std::fs::OpenOptions::new().create(true).append(true).open(record);
            record.unwrap().write_all(word.as_bytes()).unwrap();
        }
    }
    found
}

/// A client's file, by section and key.
pub(crate) struct Configuration(BTreeMap<String, String>);

impl Configuration {
    pub(crate) fn parse(text: &str) -> Self {
        let mut keys = BTreeMap::new();
        let mut section = "";
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                section = name;
            } else if let Some((key, value)) = line.split_once('=').filter(|_| !line.starts_with('#')) {
                keys.insert(format!("{section}.{}", key.trim()), value.trim().to_owned());
            }
        }
        Self(keys)
    }

    fn get(&self, key: &str) -> &str {
        self.0.get(key).unwrap_or_else(|| panic!("the file has no {key}: {:?}", self.0.keys()))
    }

    /// The configuration with another private key, which is unknown.
    fn of_a_stranger(mut self) -> Self {
        self.0.insert("Interface.PrivateKey".to_owned(), BASE64.encode([0x42; 32]));
        self
    }

    /// The gateway's port.
    fn port(&self) -> u16 {
        self.get("Peer.Endpoint").rsplit_once(':').unwrap().1.parse().unwrap()
    }

    /// The configuration with this value.
    fn with(mut self, key: &str, value: &str) -> Self {
        self.0.insert(key.to_owned(), value.to_owned());
        self
    }

    /// The configuration without IPv6 in the tunnel.
    fn without_ipv6(mut self) -> Self {
        for key in ["Interface.Address", "Peer.AllowedIPs"] {
            let v4: Vec<_> = self.get(key).split(", ").filter(|net| !net.contains(':')).collect();
            let v4 = v4.join(", ");
            self.0.insert(key.to_owned(), v4);
        }
        self
    }

    fn hex(&self, key: &str) -> Option<String> {
        let bytes = BASE64.decode(self.0.get(key)?).unwrap();
        Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// The file of a new device, as an administrator hands it out.
fn device_file(gateway: &Gateway<'_>, user: &str, name: &str) -> String {
    let mut command = gateway.vpnd(&["device", "add", "--user", user, "--wireguard", "--name", name]);
    command.arg("--config").arg(gateway.config());
    String::from_utf8_lossy(&must(process::run(command)).stdout).into_owned()
}

fn add_device_for(gateway: &Gateway<'_>, user: &str, name: &str) -> Configuration {
    Configuration::parse(&device_file(gateway, user, name))
}

pub(crate) fn add_device(gateway: &Gateway<'_>, user: &str) -> Configuration {
    add_device_for(gateway, user, "phone")
}

/// The gateway's public key, as the file of a new device of this user names it.
pub(crate) fn key_of(gateway: &Gateway<'_>, user: &str) -> PublicKey {
    add_device(gateway, user).get("Peer.PublicKey").parse().unwrap()
}

/// Starts a stock client's program, and waits for its socket.
fn spawn(lab: &Lab, place: &Namespace, name: &str, program: &Path, device: &str) -> (Process, PathBuf) {
    if !process::run_of(lab, place).exists() {
        process::share_run(lab, place, Path::new("/"));
    }
    let folder = process::run_of(lab, place).join("wireguard");
    std::fs::create_dir_all(&folder).unwrap();
    let mut command = process::command(lab, place, program);
    let in_foreground: &[&str] = match program.file_name().and_then(|name| name.to_str()) {
        // Its connected sockets stay at an address that the machine has no more.
        Some("boringtun-cli") => &["--foreground", "--disable-drop-privileges", "--disable-connected-udp"],
        Some("gotatun") => &["--foreground", "--disable-drop-privileges"],
        _ => &["-f"],
    };
    command.args(in_foreground).arg(device);
    let process = Process::start(lab, name, command);
    let socket = folder.join(format!("{device}.sock"));
    eventually("the stock client is up", PATIENCE, || UnixStream::connect(&socket).ok());
    (process, socket)
}

/// Asks a stock client's program.
fn ask(socket: &Path, verb: &str, text: &str) -> String {
    let mut socket = UnixStream::connect(socket).unwrap();
    write!(socket, "{verb}\n{text}\n").unwrap();
    let mut answer = String::new();
    for line in BufReader::new(socket).lines().map(Result::unwrap).take_while(|line| !line.is_empty()) {
        answer += &line;
        answer.push('\n');
    }
    answer
}

/// A stock client that runs.
pub(crate) struct Stock<'l> {
    number: usize,
    pub(crate) place: &'l Namespace,
    _process: Process,
    socket: PathBuf,
    addresses: Vec<IpAddr>,
}

impl<'l> Stock<'l> {
    pub(crate) fn start(lab: &'l Lab, number: usize, program: &Path, configuration: &Configuration) -> Self {
        Self::start_towards(lab, number, program, configuration, GATEWAY_V4.into())
    }

    /// Starts one towards this address of the gateway.
    pub(crate) fn start_towards(
        lab: &'l Lab,
        number: usize,
        program: &Path,
        configuration: &Configuration,
        gateway: IpAddr,
    ) -> Self {
        let place = &lab.clients[number - 1];
        let (process, socket) = spawn(lab, place, &format!("stock{number}"), program, DEVICE);
        let addresses = configuration.get("Interface.Address").split(',');
        let addresses: Vec<IpAddr> =
            addresses.map(|net| net.trim().split('/').next().unwrap().parse().unwrap()).collect();
        let this = Self { number, place, _process: process, socket, addresses };
        this.configure(configuration, SocketAddr::new(gateway, configuration.port()));
        this
    }

    fn configure(&self, file: &Configuration, endpoint: SocketAddr) {
        let allowed = file.get("Peer.AllowedIPs").split(',').map(str::trim);
        let mut text = format!(
            "private_key={}\nreplace_peers=true\npublic_key={}\n",
            file.hex("Interface.PrivateKey").unwrap(),
            file.hex("Peer.PublicKey").unwrap()
        );
        if let Some(key) = file.hex("Peer.PresharedKey") {
            text += &format!("preshared_key={key}\n");
        }
        text += &format!("endpoint={endpoint}\n");
        if let Some(keepalive) = file.0.get("Peer.PersistentKeepalive") {
            text += &format!("persistent_keepalive_interval={keepalive}\n");
        }
        let mut lines = String::new();
        for address in &self.addresses {
            lines += &format!("addr add {address} dev {DEVICE}\n");
        }
        lines += &format!("link set {DEVICE} mtu {} up\n", file.get("Interface.MTU"));
        for net in allowed {
            text += &format!("allowed_ip={net}\n");
            lines += &format!("route add {net} dev {DEVICE}\n");
        }
        assert_eq!(self.ask("set=1", &text), "errno=0\n");
        self.place.ip_batch(&lines);
    }

    fn ask(&self, verb: &str, text: &str) -> String {
        ask(&self.socket, verb, text)
    }

    pub(crate) fn v4(&self) -> IpAddr {
        *self.addresses.iter().find(|address| address.is_ipv4()).unwrap()
    }

    fn change_address(&self, from: u8, to: u8) {
        let net = format!("198.18.{}", self.number);
        self.place.ip_batch(&format!(
            "addr del {net}.{from}/24 dev {UPLINK}\naddr add {net}.{to}/24 dev {UPLINK}\n\
             route replace default via {net}.1 dev {UPLINK}\n"
        ));
    }
}

/// A gateway for stock clients, with `ann` and a file for her phone.
fn gateway_for_phone(lab: &Lab) -> (Gateway<'_>, Configuration) {
    gateway_with(lab, |_| {})
}

/// A gateway with other settings.
fn gateway_with<'l>(lab: &'l Lab, configure: impl FnOnce(&Gateway<'l>)) -> (Gateway<'l>, Configuration) {
    let mut gateway = Gateway::init(lab);
    gateway.configure("wireguard.enabled", true);
    gateway.configure("server.shards", 2);
    gateway.configure("policy.client_to_client", true);
    gateway.configure("policy.campus_to_client", true);
    configure(&gateway);
    gateway.add_user("ann");
    let file = add_device(&gateway, "ann");
    gateway.start();
    (gateway, file)
}

pub(crate) fn sessions_of(gateway: &Gateway<'_>, protocol: &str) -> Vec<Json> {
    let mut sessions = gateway.sessions();
    sessions.retain(|session| session["protocol"] == protocol);
    sessions
}

/// Sessions that reach more than the pages.
pub(crate) fn before_the_wall(gateway: &Gateway<'_>) -> usize {
    gateway.sessions().iter().filter(|session| session["profile"] != WALLED).count()
}

/// The client tries again and again, by itself, and has nothing but the pages.
pub(crate) fn stays_out(gateway: &Gateway<'_>, client: &Stock<'_>) {
    for _ in 0..5 {
        assert!(!ping(client.place, CAMPUS_V4.into(), 56, Duration::from_secs(1)), "it is in again");
        assert_eq!(before_the_wall(gateway), 0);
    }
}

pub(crate) fn handshakes(gateway: &Gateway<'_>, name: &str) -> u64 {
    gateway.status()["counters"]["handshakes"][format!("wireguard_{name}")].as_u64().unwrap_or(0)
}

fn is_a_client(program: &Path) {
    let Some(lab) = Lab::new(2) else { return };
    let (gateway, file) = gateway_for_phone(&lab);
    let bob = gateway.add_user("bob");
    let phone = Stock::start(&lab, 1, program, &file);
    ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
    ping_until(phone.place, CAMPUS_V6.into(), PATIENCE);
    assert!(ping(&lab.campus, phone.v4(), 56, PATIENCE), "the campus reaches it");
    // Larger than the tunnel's packets, which are cut and put together again at both ends.
    assert!(ping(phone.place, CAMPUS_V4.into(), 4_000, PATIENCE), "a large ping");
    assert!(ping(&lab.campus, phone.v4(), 4_000, PATIENCE), "a large ping of the campus");
    transfer(phone.place, &lab.campus, CAMPUS_V4.into(), 3_000_000, PATIENCE);
    transfer(phone.place, &lab.campus, CAMPUS_V6.into(), 1_000_000, PATIENCE);
    let sessions = sessions_of(&gateway, "wireguard");
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    assert_eq!(
        (&sessions[0]["user"], &sessions[0]["inner_v4"]),
        (&"ann".into(), &phone.v4().to_string().into())
    );
    let outer = sessions[0]["outer"][0].as_str().unwrap().parse::<SocketAddr>().unwrap();
    assert_eq!(outer.ip(), IpAddr::from([198, 18, 1, 2]));

    // A client of our own joins: they reach each other, in both directions.
    let laptop = Client::connect(&lab, 2, &bob);
    ping_until(laptop.namespace(), phone.v4(), PATIENCE);
    ping_until(phone.place, laptop.v4(), PATIENCE);
    transfer(laptop.namespace(), phone.place, phone.v4(), 1_000_000, PATIENCE);
    assert_eq!(gateway.sessions().len(), 2);

    // It moves to another address.
    phone.change_address(2, 77);
    ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
    assert!(ping(&lab.campus, phone.v4(), 56, PATIENCE), "it is found where it is now");
    let moved = || {
        let outer = sessions_of(&gateway, "wireguard")[0]["outer"][0].as_str()?.parse::<SocketAddr>().ok()?;
        (outer.ip() == IpAddr::from([198, 18, 1, 77])).then_some(())
    };
    eventually("status shows where it is", PATIENCE, moved);
}

#[test]
fn wireguard_go_connects_like_any_client() {
    if let Some(program) = program("wireguard-go") {
        is_a_client(&program);
    }
}

#[test]
fn tailscales_wireguard_go_connects_like_any_client() {
    if let Some(program) = program("wireguard-go-tailscale") {
        is_a_client(&program);
    }
}

#[test]
fn boringtun_connects_like_any_client() {
    if let Some(program) = program("boringtun-cli") {
        is_a_client(&program);
    }
}

#[test]
fn gotatun_connects_like_any_client() {
    if let Some(program) = program("gotatun") {
        is_a_client(&program);
    }
}

#[test]
fn wireguard_go_reconnects_after_a_gateway_restart() {
    comes_back_to("wireguard-go");
}

#[test]
fn tailscales_wireguard_go_reconnects_after_a_gateway_restart() {
    comes_back_to("wireguard-go-tailscale");
}

#[test]
fn boringtun_reconnects_after_a_gateway_restart() {
    comes_back_to("boringtun-cli");
}

#[test]
fn gotatun_reconnects_after_a_gateway_restart() {
    comes_back_to("gotatun");
}

fn comes_back_to(name: &str) {
    let Some(program) = program(name) else { return };
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, file) = gateway_for_phone(&lab);
    let phone = Stock::start(&lab, 1, &program, &file);
    ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
    devices_are_kept(&gateway, 1);
    let back = |what: &str| {
        let began = Instant::now();
        ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
        println!("{what}: traffic is back after {:?}", began.elapsed());
        began.elapsed()
    };
    gateway.kill();
    gateway.start();
    assert!(back("killed") < BACK);
    gateway.terminate();
    gateway.start();
    assert!(back("restarted") < BACK);
    // Both ends may have begun a handshake.
    thread::sleep(2 * SECOND);
    // The second process goes on with what the first has taken over.
    let session = || match &sessions_of(&gateway, "wireguard")[..] {
        [session] => (session["id"].clone(), session["outer"].clone()),
        sessions => panic!("{sessions:?}"),
    };
    let (before, done) = (session(), handshakes(&gateway, "done"));
    for _ in 0..2 {
        must(gateway.upgrade());
        assert!(back("upgraded") < BACK);
        ping_until(&lab.campus, phone.v4(), BACK);
        assert_eq!(session(), before);
    }
    assert_eq!(handshakes(&gateway, "done"), done, "its keys have gone on");
}

/// Waits until the store has where this many devices are. No packet waits for that, and a gateway
/// that is killed before does not begin handshakes with the others: they send nothing by
/// themselves.
fn devices_are_kept(gateway: &Gateway<'_>, devices: usize) {
    let store = Sqlite::open(&gateway.file("state/vpnd.db")).unwrap();
    eventually("the store has where devices are", PATIENCE, || {
        let stored = store.wireguard_devices().unwrap();
        (stored.iter().filter(|device| device.outer.is_some()).count() == devices).then_some(())
    });
}

#[test]
fn a_device_behind_a_firewall_is_reached_from_the_address_that_it_talks_to() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(1) else { return };
    let second = IpAddr::from([198, 18, 0, 9]);
    lab.gateway.ip_batch(&format!("addr add {second}/24 dev {UPLINK}\n"));
    lab.clients[0].nft(&format!(
        "add table inet firewall\n\
         add chain inet firewall input {{ type filter hook input priority 0; }}\n\
         add rule inet firewall input iifname {UPLINK} meta l4proto udp ct state new drop\n"
    ));
    let (mut gateway, file) = gateway_for_phone(&lab);
    let phone = Stock::start_towards(&lab, 1, &program, &file, second);
    ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
    devices_are_kept(&gateway, 1);
    gateway.kill();
    gateway.start();
    let started = Instant::now();
    // The phone sends nothing by itself.
    ping_until(&lab.campus, phone.v4(), BACK);
    assert!(started.elapsed() < BACK);
}

#[test]
fn hundreds_of_devices_reconnect_seconds_after_a_gateway_is_killed() {
    /// Devices of one user, at most.
    const OF_USER: usize = 60;
    let devices = std::env::var("VPND_WIREGUARD_DEVICES").map_or(240, |count| count.parse().unwrap());
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("wireguard.enabled", true);
    // So that they come at once the first time.
    gateway.configure("limits.logins_per_user", 100);
    gateway.configure("limits.max_sessions_per_user", 100);
    gateway.add_user("ann");
    let file = add_device(&gateway, "ann");
    for first in (0..devices).step_by(OF_USER) {
        let user = format!("user{first}");
        gateway.add_user(&user);
        fleet::add(&gateway, &user, first..devices.min(first + OF_USER));
    }
    gateway.start();
    let port = file.port();
    let key = file.get("Peer.PublicKey").parse().unwrap();
    let mut fleet = fleet::Fleet::new(&lab.clients[0], devices, key, port);
    fleet.begin();
    let first = fleet.all_beyond(&vec![0; devices], PATIENCE);
    let before = fleet.done();
    devices_are_kept(&gateway, devices);
    gateway.kill();
    gateway.start();
    let back = fleet.all_beyond(&before, PATIENCE);
    println!("{devices} devices: let in within {first:?}, back {back:?} after the gateway was there again");
    assert_eq!(sessions_of(&gateway, "wireguard").len(), devices);
    assert_eq!(handshakes(&gateway, "busy"), 0, "all had a turn");
}

#[test]
fn an_unknown_key_is_counted_and_in_the_log() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, file) = gateway_for_phone(&lab);
    let stranger = Stock::start(&lab, 1, &program, &file.of_a_stranger());
    let sends = || {
        ping(stranger.place, CAMPUS_V4.into(), 56, SECOND / 10);
        (handshakes(&gateway, "unknown_key") > 0).then_some(())
    };
    eventually("its handshake is counted", PATIENCE, sends);
    assert_eq!(gateway.sessions().len(), 0);
    let line = "a WireGuard handshake was refused why=the key ";
    assert!(gateway.process().output().contains(line), "its key is in the log");
}

#[test]
fn a_kicked_stock_client_passes_no_packet_any_more() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, file) = gateway_for_phone(&lab);
    let phone = Stock::start(&lab, 1, &program, &file);
    ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
    must(gateway.ask(&["kick", "ann"]));
    eventually("it is cut off", 2 * SECOND, || {
        (!ping(phone.place, CAMPUS_V4.into(), 56, SECOND / 5)).then_some(())
    });
    assert_eq!(sessions_of(&gateway, "wireguard").len(), 0);
    // It tries again, which administrators see until it is renewed.
    let turned_away = || gateway.status()["refused_devices"].as_array().unwrap().clone();
    let tries_again = || {
        ping(phone.place, CAMPUS_V4.into(), 56, SECOND / 5);
        turned_away().pop()
    };
    let seen = eventually("it is turned away", PATIENCE, tries_again);
    assert_eq!((&seen["walled"], handshakes(&gateway, "refused")), (&true.into(), 0));
    assert!(handshakes(&gateway, "walled") > 0);
    let shown = String::from_utf8(must(gateway.ask(&["status"])).stdout).unwrap();
    assert!(
        shown.contains(&format!("WireGuard device {}: WALLED", seen["key"].as_str().unwrap())),
        "{shown}"
    );
    let mut renew = gateway.vpnd(&["device", "renew", "phone", "--user", "ann"]);
    renew.arg("--config").arg(gateway.config());
    must(process::run(renew));
    ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
    assert_eq!(turned_away(), [Json::Null; 0]);
}

#[test]
fn a_stock_client_is_out_with_its_user_its_profile_and_its_device() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, file) = gateway_for_phone(&lab);
    let phone = Stock::start(&lab, 1, &program, &file);
    let reaches = || ping(phone.place, CAMPUS_V4.into(), 56, SECOND / 5);
    let is_in = |why: &str| eventually(&format!("it is in: {why}"), PATIENCE, || reaches().then_some(()));
    let is_out = |why: &str| {
        eventually(&format!("it is out: {why}"), 2 * SECOND, || (!reaches()).then_some(()));
        assert_eq!(sessions_of(&gateway, "wireguard").len(), 0, "{why}");
        assert!(!ping(phone.place, CAMPUS_V4.into(), 56, 6 * SECOND), "it stays out: {why}");
    };
    is_in("at first");
    must(process::run(gateway.user(&["disable", "ann"])));
    is_out("its user is disabled");
    must(process::run(gateway.user(&["enable", "ann"])));
    is_in("its user is enabled");

    let before = std::fs::read_to_string(gateway.config()).unwrap();
    let without = "\n[[profile]]\nname = \"guests\"\nusers = [\"ann\"]\nwireguard = false\n";
    std::fs::write(gateway.config(), format!("{before}{without}")).unwrap();
    must(gateway.ask(&["reload"]));
    is_out("its profile permits no WireGuard");
    std::fs::write(gateway.config(), before).unwrap();
    must(gateway.ask(&["reload"]));
    is_in("its profile permits WireGuard again");

    let mut remove = gateway.vpnd(&["device", "remove", "phone", "--user", "ann"]);
    remove.arg("--config").arg(gateway.config());
    must(process::run(remove));
    is_out("it is removed");
}

#[test]
fn a_stock_client_is_out_with_its_users_change_of_groups() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, file) = gateway_with(&lab, |gateway| {
        let before = std::fs::read_to_string(gateway.config()).unwrap();
        let guests = "\n[[profile]]\nname = \"guests\"\ngroups = [\"guests\"]\nwireguard = false\n\
                      [[profile]]\nname = \"staff\"\nusers = [\"ann\"]\n";
        std::fs::write(gateway.config(), format!("{before}{guests}")).unwrap();
    });
    let phone = Stock::start(&lab, 1, &program, &file);
    ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
    must(process::run(gateway.user(&["modify", "ann", "--add-group", "guests"])));
    let reaches = || ping(phone.place, CAMPUS_V4.into(), 56, SECOND / 5);
    eventually("it is out", 3 * SECOND, || (!reaches()).then_some(()));
    assert_eq!(sessions_of(&gateway, "wireguard").len(), 0);
    assert!(!ping(phone.place, CAMPUS_V4.into(), 56, 6 * SECOND), "it stays out");
    must(process::run(gateway.user(&["modify", "ann", "--remove-group", "guests"])));
    ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
}

#[test]
fn a_flood_of_first_messages_does_not_touch_a_login_of_our_own() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(2) else { return };
    let (gateway, file) = gateway_for_phone(&lab);
    let bob = gateway.add_user("bob");
    let phone = Stock::start(&lab, 1, &program, &file);
    ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
    let target = SocketAddr::from((GATEWAY_V4, file.port()));
    let flood = phone.place.within(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut message = [0x5A; 148];
            message[..4].copy_from_slice(&[1, 0, 0, 0]);
            let mut number = 0u64;
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                message[8..16].copy_from_slice(&number.to_le_bytes());
                let _ = flood.send_to(&message, target);
                number += 1;
            }
        });
        let laptop = Client::connect(&lab, 2, &bob);
        ping_until(laptop.namespace(), CAMPUS_V4.into(), PATIENCE);
        ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(handshakes(&gateway, "wrong_mac") > 0, "the flood came that far");
}
