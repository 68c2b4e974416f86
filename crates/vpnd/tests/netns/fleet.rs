//! Behaviour: two gateways with one database are one service. A client whose gateway is gone goes
//! on at the other one without a login, with its inner addresses and its open connections; a
//! session is never at both.
//!
//! ```text
//!                        ┌── gw1 ──10.200.0.0/24──┐
//!   client 1 ─── net ────┤                        ├── campus (host, and router by the gateways' routes)
//!           (PostgreSQL) └── gw2 ──10.201.0.0/24──┘
//! ```
//!
//! gw2 is in the place of client 2.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod bird;
mod crowd;
mod devices;
mod faults;
mod guide;
mod kicks;

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value as Json;
use vpnd_store::postgres::testing::Cluster;

use crate::audit::{exported, now};
use crate::client::{self, Client};
use crate::database::configure_at;
use crate::drain::{SECOND_GATEWAY, drain};
use crate::gateway::{Gateway, Login, edit_toml, must, strings};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, GATEWAY_V4, Lab, UPLINK, eventually};
use crate::namespace::Namespace;
use crate::process::{self, Process};
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);
/// Limit for whatever a test waits for; it goes on as soon as that is there.
const LIMIT: Duration = Duration::from_secs(60);
/// The database server's address, in `net`.
const DATABASE: &str = "198.18.0.1";
/// The kernel's table for routes to clients.
const TABLE: &str = "5118";
/// A user's connection may stand still for this long.
const MAX_GAP: Duration = Duration::from_secs(10);

/// Datagrams that may be lost while the campus's routers change their minds, one each 2 ms.
const MAX_LOST: u64 = 100;

/// Both gateways, not started, and their user.
struct Fleet<'l> {
    lab: &'l Lab,
    cluster: Cluster,
    database: String,
    first: Gateway<'l>,
    second: Gateway<'l>,
    ann: Login,
}

/// A database server in `net`.
fn cluster(lab: &Lab) -> Option<Cluster> {
    cluster_by(lab, &[], "")
}

/// A database server in `net` with more settings, and with programs that are started by these
/// words.
fn cluster_by(lab: &Lab, words: &'static [&'static str], settings: &str) -> Option<Cluster> {
    let net = lab.net.name().to_owned();
    let in_net = move |program: &str| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &net]).args(words).arg(program);
        command
    };
    Cluster::start(DATABASE, in_net, settings)
}

impl<'l> Fleet<'l> {
    fn new(lab: &'l Lab) -> Option<Self> {
        let cluster = cluster(lab)?;
        let database = cluster.database();
        Some(Self::on(lab, cluster, database, &[]))
    }

    /// With more settings.
    fn on(lab: &'l Lab, cluster: Cluster, database: String, settings: &[(&str, toml::Value)]) -> Self {
        let first = Gateway::init(lab);
        let second = another(lab, &first, 1);
        for (gateway, name) in [(&first, "gw1"), (&second, "gw2")] {
            join(gateway, name, (&cluster, &database), settings);
        }
        let ann = first.add_user("ann");
        edit_toml(&ann.profile, |profile| {
            let addresses = [GATEWAY_V4.to_string(), SECOND_GATEWAY.to_owned()];
            let addresses = addresses.map(|address| format!("{address}:4433").into());
            let server = profile["server"].as_table_mut().unwrap();
            assert_eq!(server.insert("spread".to_owned(), false.into()), Some(true.into()));
            server.insert("addresses".to_owned(), toml::Value::Array(addresses.into()));
        });
        link_to_campus(lab, 1, "second0");
        // A route to a client comes from its gateway alone.
        lab.campus.ip_batch(&format!("route del default via 10.200.0.1 dev {UPLINK}\n"));
        Self { lab, cluster, database, first, second, ann }
    }

    fn start(&mut self) {
        self.first.start();
        self.second.start();
    }

    /// The name of the gateway that has the only session, by the database.
    fn carrier(&self) -> String {
        let sql = "SELECT name FROM vpnd.holder JOIN vpnd.carriers USING (gateway)";
        self.cluster.sql(&self.database, sql)
    }

    /// Routes to clients that the gateway in this place announces, with their metrics.
    fn announced(&self, is_second: bool) -> BTreeMap<String, u64> {
        announced(self.lab, is_second)
    }
}

/// A gateway in the place of client `number` + 1, with the certificate of the first one.
fn another<'l>(lab: &'l Lab, first: &Gateway<'_>, number: usize) -> Gateway<'l> {
    let (directory, name) = (format!("gateway{}", number + 1), format!("198.18.{}.2", number + 1));
    let gateway = Gateway::init_elsewhere(lab, &directory, &lab.clients[number], &[&name]);
    for file in ["server.pem", "server-key.pem", "ca.pem", "ca-key.pem"] {
        fs::write(gateway.file(file), fs::read(first.file(file)).unwrap()).unwrap();
    }
    gateway
}

/// Makes a gateway one of the fleet with this database.
fn join(
    gateway: &Gateway<'_>,
    name: &str,
    (cluster, database): (&Cluster, &str),
    settings: &[(&str, toml::Value)],
) {
    configure_at(gateway, DATABASE, cluster, database);
    gateway.configure("fleet.id", "campus");
    gateway.configure("fleet.name", name);
    settings.iter().for_each(|(key, value)| gateway.configure(key, value.clone()));
}

/// Links the gateway in the place of client `number` + 1 to the campus, where its interface has
/// this name.
fn link_to_campus(lab: &Lab, number: usize, interface: &str) {
    let (place, campus) = (&lab.clients[number], &lab.campus);
    place.ip_batch(&format!(
        "link add campus{number} index 20{number} type veth peer name {interface} netns {}\n\
         addr add 10.20{number}.0.1/24 dev campus{number}\n\
         link set campus{number} up\n\
         route add 10.200.0.0/24 via 10.20{number}.0.2\n",
        campus.name()
    ));
    campus.ip_batch(&format!(
        "addr add 10.20{number}.0.2/24 dev {interface}\n\
         link set {interface} up\n"
    ));
}

fn announced(lab: &Lab, is_second: bool) -> BTreeMap<String, u64> {
    announced_at(if is_second { &lab.clients[1] } else { &lab.gateway })
}

fn announced_at(place: &Namespace) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for family in ["-4", "-6"] {
        let listed = place.ip(&["-j", family, "route", "show", "table", "all", "proto", "118"]);
        let routes: Json = serde_json::from_str(&listed).unwrap_or_default();
        let routes = routes.as_array().into_iter().flatten().filter(|route| route["table"] == TABLE);
        let entry = |route: &Json| Some((route["dst"].as_str()?.to_owned(), route["metric"].as_u64()?));
        found.extend(routes.filter_map(entry));
    }
    found
}

/// The campus's router: sends packets for each client to the gateway with the lowest metric, as
/// BIRD with the filter of docs/FLEET.md does, until it is stopped.
fn route(lab: &Lab, is_over: &AtomicBool) {
    route_by(lab, &[&lab.gateway, &lab.clients[1]], is_over);
}

/// Routes as [`route`] does, to the gateways in these places.
fn route_by(lab: &Lab, places: &[&Namespace], is_over: &AtomicBool) {
    let mut known: BTreeMap<String, &str> = BTreeMap::new();
    while !is_over.load(Ordering::Relaxed) {
        let mut best: BTreeMap<String, (u64, &str)> = BTreeMap::new();
        for (place, router) in places.iter().zip(["10.200.0.1", "10.201.0.1", "10.202.0.1"]) {
            for (client, metric) in announced_at(place).into_iter().filter(|(to, _)| to.contains('.')) {
                let best = best.entry(client).or_insert((metric, router));
                *best = (metric, router).min(*best);
            }
        }
        let best: BTreeMap<String, &str> =
            best.into_iter().map(|(client, (_, router))| (client, router)).collect();
        for (client, router) in &best {
            if known.get(client) != Some(router) {
                lab.campus.ip(&["route", "replace", client, "via", router]);
            }
        }
        for client in known.keys().filter(|client| !best.contains_key(*client)) {
            lab.campus.ip(&["route", "del", client]);
        }
        known = best;
        thread::sleep(Duration::from_millis(20));
    }
}

/// The longest pause of a connection that the campus sends on all the time, and of pings.
#[derive(Clone, Copy, Debug, Default)]
struct Pauses {
    connection: Duration,
    pings: Duration,
}

/// Sends without end on a connection that the client has opened, and measures its pauses.
fn download(lab: &Lab, from: &Namespace, is_over: &AtomicBool, pauses: &Mutex<Pauses>) {
    let campus = SocketAddr::new(CAMPUS_V4.into(), 7_000);
    let listener = lab.campus.within(|| TcpListener::bind(campus)).unwrap();
    let mut reader = from.within(|| TcpStream::connect_timeout(&campus, LIMIT)).unwrap();
    let (mut writer, _) = listener.accept().unwrap();
    reader.set_read_timeout(Some(LIMIT)).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0_u64.. {
                if is_over.load(Ordering::Relaxed) || writer.write_all(&number.to_be_bytes()).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        let (mut last, mut bytes) = (Instant::now(), [0; 8]);
        for number in 0_u64.. {
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            if let Err(error) = reader.read_exact(&mut bytes) {
                assert!(is_over.load(Ordering::Relaxed), "the connection goes on: {error}");
                return;
            }
            assert_eq!(u64::from_be_bytes(bytes), number, "nothing is lost");
            let pause = std::mem::replace(&mut last, Instant::now()).elapsed();
            let mut pauses = pauses.lock().unwrap();
            pauses.connection = pauses.connection.max(pause);
        }
    });
}

/// Pings the campus all the time, and measures the longest time without an answer.
fn pings(from: &Namespace, is_over: &AtomicBool, pauses: &Mutex<Pauses>) {
    let mut last = Instant::now();
    while !is_over.load(Ordering::Relaxed) {
        if ping(from, CAMPUS_V4.into(), 56, Duration::from_millis(50)) {
            let pause = std::mem::replace(&mut last, Instant::now()).elapsed();
            let mut pauses = pauses.lock().unwrap();
            pauses.pings = pauses.pings.max(pause);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Stops what runs during a test, however that ends.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Has traffic flow and the campus route by what gateways announce, while `work` runs; the pauses
/// of the traffic.
fn with_traffic(lab: &Lab, client: &Client<'_>, work: impl FnOnce()) -> Pauses {
    with_traffic_by(lab, &[&lab.gateway, &lab.clients[1]], client.namespace(), work)
}

/// Has traffic flow as [`with_traffic`] does, by the gateways in these places.
fn with_traffic_by(lab: &Lab, places: &[&Namespace], from: &Namespace, work: impl FnOnce()) -> Pauses {
    let (is_over, pauses) = (AtomicBool::new(false), Mutex::new(Pauses::default()));
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| route_by(lab, places, &is_over));
        ping_until(from, CAMPUS_V4.into(), LIMIT);
        scope.spawn(|| download(lab, from, &is_over, &pauses));
        scope.spawn(|| pings(from, &is_over, &pauses));
        thread::sleep(SECOND);
        work();
        thread::sleep(SECOND);
    });
    *pauses.lock().unwrap()
}

/// Numbered datagrams that a client sends to the campus and gets back.
#[derive(Default)]
struct Echoes {
    sent: AtomicU64,
    arrived: AtomicU64,
    returned: AtomicU64,
}

impl Echoes {
    /// Sends one each 2 ms until it is over, and for a moment more waits for those on their way.
    fn run(&self, lab: &Lab, from: &Namespace, is_over: &AtomicBool) {
        let campus = SocketAddr::new(CAMPUS_V4.into(), 7_007);
        let echo = lab.campus.within(|| UdpSocket::bind(campus)).unwrap();
        let client = from.within(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
        client.connect(campus).unwrap();
        for socket in [&echo, &client] {
            socket.set_read_timeout(Some(SECOND / 2)).unwrap();
        }
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            let (echo, back, is_done) = (&echo, &client, &is_done);
            scope.spawn(move || {
                let (mut bytes, mut seen) = ([0; 8], HashSet::new());
                while !is_done.load(Ordering::Relaxed) {
                    let Ok((_, sender)) = echo.recv_from(&mut bytes) else { continue };
                    self.arrived.fetch_add(u64::from(seen.insert(bytes)), Ordering::Relaxed);
                    let _ = echo.send_to(&bytes, sender);
                }
            });
            scope.spawn(move || {
                let (mut bytes, mut seen) = ([0; 8], HashSet::new());
                while !is_done.load(Ordering::Relaxed) {
                    let is_new = back.recv(&mut bytes).is_ok() && seen.insert(bytes);
                    self.returned.fetch_add(u64::from(is_new), Ordering::Relaxed);
                }
            });
            while !is_over.load(Ordering::Relaxed) {
                let number = self.sent.fetch_add(1, Ordering::Relaxed);
                client.send(&number.to_be_bytes()).unwrap();
                thread::sleep(Duration::from_millis(2));
            }
            thread::sleep(SECOND);
            is_done.store(true, Ordering::Relaxed);
        });
    }

    /// The numbers of those that were lost on their way out and on their way back.
    fn lost(&self) -> (u64, u64) {
        let [sent, arrived, returned] =
            [&self.sent, &self.arrived, &self.returned].map(|count| count.load(Ordering::Relaxed));
        (sent - arrived, arrived - returned)
    }
}

/// The lost ones of the datagrams that a client sends while `work` runs.
fn echoed(lab: &Lab, client: &Client<'_>, work: impl FnOnce()) -> (u64, u64) {
    let (is_over, echoes) = (AtomicBool::new(false), Echoes::default());
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| echoes.run(lab, client.namespace(), &is_over));
        thread::sleep(SECOND / 2);
        work();
        thread::sleep(SECOND);
    });
    println!("{} datagrams, lost (out, back): {:?}", echoes.sent.load(Ordering::Relaxed), echoes.lost());
    echoes.lost()
}

/// `vpnd status --fleet`, by the names of the gateways.
fn gateways(gateway: &Gateway<'_>) -> BTreeMap<String, Json> {
    let shown = must(gateway.ask(&["status", "--fleet", "--json"]));
    let shown: Vec<Json> = serde_json::from_slice(&shown.stdout).unwrap();
    shown.into_iter().map(|gateway| (gateway["name"].as_str().unwrap().to_owned(), gateway)).collect()
}

/// `vpnd audit whois --fleet` about this moment.
fn whois(gateway: &Gateway<'_>, address: &str) -> Json {
    let mut command = gateway.vpnd(&["audit", "whois", address, "--at", &now(), "--reason", "x", "--fleet"]);
    command.args(["--json", "--config"]).arg(gateway.config());
    let output = process::run(command);
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", process::text(&output)))
}

/// The refusal of a drain that is to be safe for the fleet.
fn refusal_of_drain(gateway: &Gateway<'_>) -> String {
    let refused = gateway.ask(&["drain", "--fleet-safe", "--no-wait"]);
    assert!(!refused.status.success());
    String::from_utf8_lossy(&refused.stderr).into_owned()
}

fn session(gateway: &Gateway<'_>) -> Option<String> {
    gateway.sessions().first().and_then(|session| Some(session["id"].as_str()?.to_owned()))
}

fn at(gateway: &Gateway<'_>) -> impl FnMut() -> Option<()> {
    || (gateway.sessions().len() == 1).then_some(())
}

#[test]
fn a_client_of_a_killed_gateway_continues_at_another() {
    let Some(lab) = Lab::new(2) else { return };
    let Some(mut fleet) = Fleet::new(&lab) else { return };
    fleet.start();
    assert_eq!(fleet.first.status()["fleet"]["name"], "gw1");
    let mut client = Client::connect(&lab, 1, &fleet.ann);
    eventually("the first gateway has the session", LIMIT, at(&fleet.first));
    let (addresses, before) = (client.addresses(), session(&fleet.first));
    eventually("it announces its addresses", LIMIT, || {
        (fleet.announced(false).len() == addresses.len()).then_some(())
    });
    assert_eq!((fleet.carrier().as_str(), fleet.announced(true).len()), ("gw1", 0));

    let Fleet { first, second, .. } = &mut fleet;
    let pauses = with_traffic(&lab, &client, || {
        first.process().signal_all(Signal::KILL);
        eventually("the second gateway has the session", LIMIT, at(second));
        ping_until(client.namespace(), CAMPUS_V4.into(), LIMIT);
    });
    println!("killed: {:.2?} without pings, {:.2?} on the connection", pauses.pings, pauses.connection);
    assert!(pauses.pings < MAX_GAP && pauses.connection < MAX_GAP, "{pauses:?}");
    assert_eq!(session(&fleet.second), before, "it is the same session");
    assert_eq!(client.addresses(), addresses);
    assert_eq!(fleet.second.status()["counters"]["logins"]["accepted"], 0, "nobody has logged in");
    assert_eq!(fleet.carrier(), "gw2");
    client.process().assert_running();

    // A gateway that starts again has neither the session nor a route to it.
    fleet.first.start();
    assert!(fleet.first.sessions().is_empty() && fleet.announced(false).is_empty());
    assert_eq!(fleet.carrier(), "gw2");
    must(process::run(fleet.first.user(&["disable", "ann"])));
    let disabled = Instant::now();
    eventually("a user who is disabled at one is out at the other", LIMIT, || {
        fleet.second.sessions().is_empty().then_some(())
    });
    println!("disabled at the other gateway: out after {:.2?}", disabled.elapsed());
    eventually("its route is gone, too", LIMIT, || fleet.announced(true).is_empty().then_some(()));
}

#[test]
fn a_gateway_that_was_only_paused_drops_the_session_that_has_moved() {
    let Some(lab) = Lab::new(2) else { return };
    let Some(mut fleet) = Fleet::new(&lab) else { return };
    fleet.start();
    let client = Client::connect(&lab, 1, &fleet.ann);
    eventually("the first gateway has the session", LIMIT, at(&fleet.first));
    let before = session(&fleet.first);
    let Fleet { first, second, .. } = &mut fleet;
    let pauses = with_traffic(&lab, &client, || {
        first.process().signal_all(Signal::STOP);
        eventually("the second gateway has the session", LIMIT, at(second));
        let [stale, fresh] = [false, true].map(|is_second| announced(&lab, is_second));
        assert!(!stale.is_empty(), "a process that is paused withdraws nothing");
        for (address, metric) in &fresh {
            assert!(
                stale.get(address).is_none_or(|stale| metric < stale),
                "{address}: the later one is preferred"
            );
        }
        ping_until(client.namespace(), CAMPUS_V4.into(), LIMIT);
        first.process().signal_all(Signal::CONT);
        let resumed = Instant::now();
        eventually("the first gateway withdraws its routes", LIMIT, || {
            announced(&lab, false).is_empty().then_some(())
        });
        println!("resumed: its routes are gone after {:.2?}", resumed.elapsed());
        assert!(first.sessions().is_empty(), "it forwards nothing without the session");
        thread::sleep(2 * SECOND);
    });
    println!("paused: {:.2?} without pings, {:.2?} on the connection", pauses.pings, pauses.connection);
    assert!(pauses.pings < MAX_GAP && pauses.connection < MAX_GAP, "{pauses:?}");
    assert_eq!((session(&fleet.second), fleet.carrier().as_str()), (before, "gw2"));
}

#[test]
fn a_gateway_without_the_database_withdraws_the_route_of_a_moved_client() {
    let Some(lab) = Lab::new(2) else { return };
    let Some(mut fleet) = Fleet::new(&lab) else { return };
    fleet.start();
    let client = Client::connect(&lab, 1, &fleet.ann);
    eventually("the first gateway has the session", LIMIT, at(&fleet.first));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| route(&lab, &is_over));
        ping_until(client.namespace(), CAMPUS_V4.into(), LIMIT);
        let port = fleet.cluster.port;
        lab.net.nft(&format!(
            "add table ip cut\n\
             add chain ip cut in {{ type filter hook input priority 0; }}\n\
             add rule ip cut in ip saddr {GATEWAY_V4} tcp dport {port} drop\n\
             add chain ip cut through {{ type filter hook forward priority 0; }}\n"
        ));
        let until = Instant::now() + 15 * SECOND;
        while Instant::now() < until {
            ping_until(client.namespace(), CAMPUS_V4.into(), LIMIT);
            assert!(!announced(&lab, false).is_empty(), "a client that is heard keeps its route");
            thread::sleep(SECOND / 2);
        }
        lab.net.nft(&format!("add rule ip cut through ip daddr {GATEWAY_V4} udp dport 4433 drop\n"));
        let left = Instant::now();
        eventually("the second gateway has the session", LIMIT, || {
            // A client notices silence only while it sends.
            ping(client.namespace(), CAMPUS_V4.into(), 56, SECOND / 10);
            at(&fleet.second)()
        });
        println!("cut off: at the other gateway after {:.2?}", left.elapsed());
        eventually("the first one withdraws the route", LIMIT, || {
            announced(&lab, false).is_empty().then_some(())
        });
        println!("cut off: the route is withdrawn after {:.2?}", left.elapsed());
        assert_eq!(fleet.first.sessions().len(), 1, "it does not know better");
        ping_until(client.namespace(), CAMPUS_V4.into(), LIMIT);
        lab.net.nft("delete table ip cut\n");
        eventually("it learns that the session is another one's", LIMIT, || {
            fleet.first.sessions().is_empty().then_some(())
        });
        assert_eq!(fleet.carrier(), "gw2");
        ping_until(client.namespace(), CAMPUS_V4.into(), LIMIT);
    });
}

/// `vpnd doctor` at the second gateway, once the first one is gone.
fn assert_doctor_names_the_first(gateway: &Gateway<'_>) {
    let mut doctor = gateway.vpnd(&["doctor", "--json", "--config"]);
    doctor.arg(gateway.config());
    let findings: Vec<Json> = serde_json::from_slice(&process::run(doctor).stdout).unwrap();
    let found = |check: &str| findings.iter().find(|finding| finding["check"] == check);
    let silent = found("fleet.gateways").map(|finding| finding["found"].to_string());
    assert!(silent.is_some_and(|silent| silent.contains("1 of 2") && silent.contains("gw1")), "{findings:?}");
    assert!(found("fleet.alone").is_some() && found("fleet.versions").is_none(), "{findings:?}");
}

#[test]
fn a_kick_at_any_gateway_ends_the_sessions_at_all_and_all_are_shown() {
    let Some(lab) = Lab::new(3) else { return };
    let Some(mut fleet) = Fleet::new(&lab) else { return };
    for gateway in [&fleet.first, &fleet.second] {
        gateway.configure("limits.max_sessions_per_user", 1);
    }
    fleet.start();
    let mut client = Client::connect(&lab, 1, &fleet.ann);
    eventually("the first gateway has the session", LIMIT, at(&fleet.first));
    eventually("the second knows that by the first one's report", LIMIT, || {
        let known = gateways(&fleet.second);
        (known.len() == 2 && known["gw1"]["sessions"] == 1 && known["gw2"]["sessions"] == 0).then_some(())
    });
    let known = gateways(&fleet.second);
    for (name, address, is_here) in
        [("gw1", GATEWAY_V4.to_string(), false), ("gw2", SECOND_GATEWAY.to_owned(), true)]
    {
        let gateway = &known[name];
        assert_eq!((&gateway["alive"], &gateway["here"]), (&true.into(), &is_here.into()), "{gateway}");
        assert_eq!(gateway["address"], address, "as the database sees it");
        assert!(
            gateway["heard_s"].as_u64() < Some(12) && gateway["load_percent"].as_u64().is_some(),
            "{gateway}"
        );
    }

    edit_toml(&fleet.ann.profile, |profile| {
        let addresses = profile["server"]["addresses"].as_array_mut().unwrap();
        addresses.remove(0);
    });
    let other = Process::start(&lab, "client3", client::command(&lab, 3, &fleet.ann, &[]));
    eventually("one session is all that ann may have at all gateways", LIMIT, || {
        other.output().contains("too many sessions").then_some(())
    });
    drop(other);
    assert!(fleet.second.sessions().is_empty());

    let address = client.addresses().first().unwrap().to_string();
    let of_first = &whois(&fleet.second, &address)["gateways"];
    assert_eq!((&of_first[0]["gateway"], &of_first[0]["found"]), (&"gw2".into(), &Json::Array(Vec::new())));
    assert_eq!(
        (&of_first[1]["gateway"], &of_first[1]["answered"]),
        (&"gw1".into(), &true.into()),
        "{of_first}"
    );
    assert_eq!(of_first[1]["found"][0]["user"], "ann", "{of_first}");
    let asked = exported(&fleet.first, "whois");
    let is_named = asked[0]["by"].as_str().is_some_and(|name| name.ends_with(" at gw2"));
    assert!(asked.len() == 1 && is_named, "it is on record where it is answered: {asked:?}");

    let mut kick = fleet.second.vpnd(&["kick", "ann", "--config"]);
    kick.arg(fleet.second.config());
    let shown = process::text(&must(process::run(kick)));
    let kicked = Instant::now();
    assert!(shown.contains("1 session ended"), "{shown}");
    eventually("the session at the other gateway is over", LIMIT, || {
        fleet.first.sessions().is_empty().then_some(())
    });
    println!("kicked at the other gateway: out after {:.2?}", kicked.elapsed());
    let status = client.process().wait(LIMIT);
    assert!(!status.success() && client.process().output().contains("administrator"), "{status}");
    let mut again = fleet.second.vpnd(&["kick", "ann", "--config"]);
    again.arg(fleet.second.config());
    assert!(!process::run(again).status.success(), "there is no session any more");

    fleet.first.kill();
    eventually("a gateway that is gone is shown", LIMIT, || {
        (gateways(&fleet.second)["gw1"]["alive"] == false).then_some(())
    });
    let shown = process::text(&must(fleet.second.ask(&["status", "--fleet"])));
    assert!(shown.contains("NOT SEEN for"), "{shown}");
    assert_doctor_names_the_first(&fleet.second);
    let answer = whois(&fleet.second, &address);
    assert_eq!((&answer["gateways"][1]["answered"], &answer["certain"]), (&false.into(), &false.into()));
}

#[test]
fn clients_of_a_drained_gateway_move_without_loss() {
    let Some(lab) = Lab::new(2) else { return };
    let Some(mut fleet) = Fleet::new(&lab) else { return };
    fleet.first.start();
    let refusal = refusal_of_drain(&fleet.first);
    assert!(refusal.contains("there is no other"), "{refusal}");
    fleet.second.start();
    let client = Client::connect(&lab, 1, &fleet.ann);
    eventually("the first gateway has the session", LIMIT, at(&fleet.first));
    eventually("the second is known", LIMIT, || {
        (gateways(&fleet.first)["gw2"]["alive"] == true).then_some(())
    });
    let (addresses, before) = (client.addresses(), session(&fleet.first));
    let (mut lost, Fleet { first, second, .. }) = ((0, 0), &fleet);
    let pauses = with_traffic(&lab, &client, || {
        lost = echoed(&lab, &client, || {
            let began = Instant::now();
            drain(first, &["--fleet-safe", "--no-wait"]);
            eventually("the second gateway has the session", LIMIT, at(second));
            println!("drained: at the other gateway after {:.2?}", began.elapsed());
            eventually("the first one is empty", LIMIT, || first.sessions().is_empty().then_some(()));
            println!("drained: the first gateway is empty after {:.2?}", began.elapsed());
        });
    });
    println!("drained: {:.2?} without pings, {:.2?} on the connection", pauses.pings, pauses.connection);
    assert_eq!(lost, (0, 0), "it is made before it is broken");
    assert!(pauses.connection < SECOND, "{pauses:?}");
    assert_eq!((session(second), client.addresses()), (before, addresses), "it is the same session");
    assert_eq!(second.status()["counters"]["logins"]["accepted"], 0, "nobody has logged in");
    assert_eq!(fleet.carrier(), "gw2");
    assert_eq!(first.status()["drain"]["over"], true);

    let refusal = refusal_of_drain(second);
    assert!(refusal.contains("gw1 is being drained"), "{refusal}");
    assert_eq!(second.status()["drain"], Json::Null, "nothing has changed");
    drain(first, &["--cancel"]);
    eventually("the first one takes clients again", LIMIT, || {
        (gateways(second)["gw1"]["draining"] == false).then_some(())
    });
    drain(second, &["--fleet-safe", "--no-wait"]);
}

#[test]
fn a_gateway_knows_its_own_addresses_after_an_upgrade() {
    let Some(lab) = Lab::new(2) else { return };
    let Some(cluster) = cluster(&lab) else { return };
    let (database, own) = (cluster.database(), GATEWAY_V4.to_string());
    let addresses = strings(&[&format!("{own}:4433"), &format!("{SECOND_GATEWAY}:4433")]);
    let mut fleet = Fleet::on(&lab, cluster, database, &[("server.addresses", addresses)]);
    fleet.start();
    let reports_them = || {
        let known = gateways(&fleet.second);
        let reported = |name: &str, address: &str| known[name]["addresses"] == Json::from(vec![address]);
        (known.len() == 2 && reported("gw1", &own) && reported("gw2", SECOND_GATEWAY)).then_some(())
    };
    eventually("each gateway reports its address", LIMIT, reports_them);
    must(fleet.first.upgrade());
    // The report of the worker before does not count: by now there is one of the next.
    thread::sleep(7 * SECOND);
    eventually("each gateway reports its address, as before", LIMIT, reports_them);
}
