//! Behaviour: two gateways with one database are one service. A client whose gateway is gone goes on at
//! the other one without a login, with its inner addresses and its open connections; a session is
//! never at both.
//!
//! ```text
//!                        ┌── gw1 ──10.200.0.0/24──┐
//!   client 1 ─── net ────┤                        ├── campus (host, and router by the gateways' routes)
//!           (PostgreSQL) └── gw2 ──10.201.0.0/24──┘
//! ```
//!
//! gw2 is in the place of client 2.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value as Json;
use vpnd_store::postgres::testing::Cluster;

use crate::client::Client;
use crate::database::configure_at;
use crate::drain::SECOND_GATEWAY;
use crate::gateway::{Gateway, Login, edit_toml, must};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, UPLINK, eventually};
use crate::namespace::Namespace;
use crate::process;
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);
/// Limit for whatever a test waits for; it goes on as soon as that is there.
const LIMIT: Duration = Duration::from_secs(60);
/// The database server's address, in `net`.
const DATABASE: &str = "198.18.0.1";
/// The kernel's table for routes to clients.
const TABLE: &str = "5118";
/// A user's connection may stand still for so long.
const MAX_GAP: Duration = Duration::from_secs(10);

/// Both gateways, not started, and their user.
struct Fleet<'l> {
    lab: &'l Lab,
    cluster: Cluster,
    database: String,
    first: Gateway<'l>,
    second: Gateway<'l>,
    ann: Login,
}

impl<'l> Fleet<'l> {
    fn new(lab: &'l Lab) -> Option<Self> {
        let net = lab.net.name().to_owned();
        let in_net = move |program: &str| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &net, program]);
            command
        };
        let cluster = Cluster::start(DATABASE, in_net, "")?;
        let database = cluster.database();
        let first = Gateway::init(lab);
        let place = &lab.clients[1];
        let second = Gateway::init_elsewhere(lab, "second", place, &[SECOND_GATEWAY]);
        for file in ["server.pem", "server-key.pem", "ca.pem", "ca-key.pem"] {
            fs::write(second.file(file), fs::read(first.file(file)).unwrap()).unwrap();
        }
        for (gateway, name) in [(&first, "gw1"), (&second, "gw2")] {
            configure_at(gateway, DATABASE, &cluster, &database);
            gateway.configure("fleet.id", "campus");
            gateway.configure("fleet.name", name);
        }
        let ann = first.add_user("ann");
        edit_toml(&ann.profile, |profile| {
            let addresses = [GATEWAY_V4.to_string(), SECOND_GATEWAY.to_owned()];
            let addresses = addresses.map(|address| format!("{address}:4433").into());
            let server = profile["server"].as_table_mut().unwrap();
            assert_eq!(server.insert("spread".to_owned(), false.into()), Some(true.into()));
            server.insert("addresses".to_owned(), toml::Value::Array(addresses.into()));
        });
        let fleet = Self { lab, cluster, database, first, second, ann };
        fleet.link_second();
        Some(fleet)
    }

    /// Links the second gateway to the campus.
    fn link_second(&self) {
        let (second, campus) = (&self.lab.clients[1], &self.lab.campus);
        second.ip_batch(&format!(
            "link add campus1 index 201 type veth peer name second0 netns {}\n\
             addr add 10.201.0.1/24 dev campus1\n\
             link set campus1 up\n\
             route add 10.200.0.0/24 via 10.201.0.2\n",
            campus.name()
        ));
        // A route to a client comes from its gateway alone.
        campus.ip_batch(&format!(
            "addr add 10.201.0.2/24 dev second0\n\
             link set second0 up\n\
             route del default via 10.200.0.1 dev {UPLINK}\n"
        ));
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

fn announced(lab: &Lab, is_second: bool) -> BTreeMap<String, u64> {
    let place = if is_second { &lab.clients[1] } else { &lab.gateway };
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

/// The campus's router: sends packets for each client to the gateway with the lowest metric, as BIRD
/// with the filter of docs/FLEET.md does, until it is stopped.
fn route(lab: &Lab, is_over: &AtomicBool) {
    let mut known: BTreeMap<String, &str> = BTreeMap::new();
    while !is_over.load(Ordering::Relaxed) {
        let mut best: BTreeMap<String, (u64, &str)> = BTreeMap::new();
        for (is_second, router) in [(false, "10.200.0.1"), (true, "10.201.0.1")] {
            for (client, metric) in announced(lab, is_second).into_iter().filter(|(to, _)| to.contains('.')) {
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

/// Stops what runs beside a test, however that ends.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Has traffic flow and the campus route by what gateways announce, while `work` runs; the pauses of
/// the traffic.
fn with_traffic(lab: &Lab, client: &Client<'_>, work: impl FnOnce()) -> Pauses {
    let (is_over, pauses) = (AtomicBool::new(false), Mutex::new(Pauses::default()));
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| route(lab, &is_over));
        ping_until(client.namespace(), CAMPUS_V4.into(), LIMIT);
        scope.spawn(|| download(lab, client.namespace(), &is_over, &pauses));
        scope.spawn(|| pings(client.namespace(), &is_over, &pauses));
        thread::sleep(SECOND);
        work();
        thread::sleep(SECOND);
    });
    *pauses.lock().unwrap()
}

fn session(gateway: &Gateway<'_>) -> Option<String> {
    gateway.sessions().first().and_then(|session| Some(session["id"].as_str()?.to_owned()))
}

fn at(gateway: &Gateway<'_>) -> impl FnMut() -> Option<()> {
    || (gateway.sessions().len() == 1).then_some(())
}

#[test]
fn a_client_whose_gateway_is_killed_goes_on_at_the_other_one() {
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
fn a_gateway_cut_off_from_the_database_withdraws_the_route_of_a_client_that_has_left() {
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
