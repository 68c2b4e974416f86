//! Behaviour: users of one gateway are in different access profiles at once, each with its
//! networks, name servers and rules; what changes a user's profile holds for sessions that are up,
//! and opens nothing for a moment.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use vpnd_store::sqlite::Sqlite;

use crate::client::{self, Client, TUN};
use crate::factors;
use crate::gateway::{Gateway, edit_toml, must};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, Lab, UPLINK, eventually};
use crate::limits::{is_kept, mbit};
use crate::ordinary::Over;
use crate::process;
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);
/// Limit for what takes half a second on a machine that has nothing else to do. Longer than the 25
/// s of a control connection's keep-alive, by which a client notices an upgrade whose close it
/// missed.
const TIMEOUT: Duration = Duration::from_secs(40);
/// A second network of the campus.
const LIBRARY: Ipv4Addr = Ipv4Addr::new(10, 201, 0, 2);
const STAFF: &str = "[[profile]]\nname = \"staff\"\ngroups = [\"staff\"]\nroutes = [\"10.200.0.0/24\"]\ndns = [\"10.200.0.2\"]\n";
const GUESTS: &str =
    "[[profile]]\nname = \"guests\"\ngroups = [\"guests\"]\nroutes = [\"10.201.0.0/24\"]\ndns = []\n";

/// Gives the gateway these profiles, from its next start or reload on.
pub(crate) fn configure(gateway: &Gateway<'_>, profiles: &str) {
    let parsed: toml::Table = profiles.parse().expect("it is TOML");
    edit_toml(&gateway.config(), |table| {
        table.remove("profile");
        table.extend(parsed);
    });
}

fn join(gateway: &Gateway<'_>, user: &str, group: &str) {
    must(process::run(gateway.user(&["modify", user, "--add-group", group])));
}

fn leave(gateway: &Gateway<'_>, user: &str, group: &str) {
    must(process::run(gateway.user(&["modify", user, "--remove-group", group])));
}

/// A campus with a library, which only the gateway has a route to.
fn laboratory(clients: u8) -> Option<Lab> {
    let lab = Lab::new(clients)?;
    lab.campus.ip_batch(&format!("addr add {LIBRARY}/24 dev {UPLINK}\n"));
    lab.gateway.ip_batch("route add 10.201.0.0/24 via 10.200.0.2 dev campus0\n");
    Some(lab)
}

/// Has the client send into the tunnel whatever is for the host, although that was not pushed.
fn insist(client: &Client<'_>, host: Ipv4Addr) {
    client.namespace().ip_batch(&format!("route replace {host}/32 dev {TUN}\n"));
}

fn profile_of(gateway: &Gateway<'_>, user: &str) -> String {
    let sessions = gateway.sessions();
    let session = sessions.iter().find(|session| session["user"] == user);
    session.and_then(|session| session["profile"].as_str()).unwrap_or("none").to_owned()
}

fn resolver(lab: &Lab, number: usize) -> String {
    std::fs::read_to_string(process::etc(lab, &lab.clients[number - 1]).join("resolv.conf"))
        .unwrap_or_default()
}

#[test]
fn users_are_in_different_profiles_at_once() {
    let Some(lab) = laboratory(3) else { return };
    let mut gateway = Gateway::init(&lab);
    let [ann, bob, eve] = ["ann", "bob", "eve"].map(|name| gateway.add_user(name));
    join(&gateway, "ann", "staff");
    join(&gateway, "bob", "guests");
    configure(&gateway, &format!("{STAFF}{GUESTS}"));
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    let two = Client::connect(&lab, 2, &bob);
    let (campus, library) = (IpAddr::from(CAMPUS_V4), IpAddr::from(LIBRARY));
    ping_until(one.namespace(), campus, TIMEOUT);
    ping_until(two.namespace(), library, TIMEOUT);
    assert_eq!(["ann", "bob"].map(|user| profile_of(&gateway, user)), ["staff", "guests"]);
    assert!(resolver(&lab, 1).contains("10.200.0.2") && !resolver(&lab, 2).contains("10.200.0.2"));

    // The other profile's networks are closed, whatever a client does with its routes.
    insist(&one, LIBRARY);
    insist(&two, CAMPUS_V4);
    let before = gateway.counter("policy");
    assert!(!ping(one.namespace(), library, 56, SECOND) && !ping(two.namespace(), campus, 56, SECOND));
    assert!(gateway.counter_above("policy", before) >= before + 2, "each was counted");

    // An administrator can ask about all of that.
    let may = |user: &str, to: IpAddr| {
        let to = format!("{to}:22/tcp");
        let mut command = gateway.vpnd(&["policy", "test", "--user", user, "--to", &to, "--config"]);
        command.arg(gateway.config());
        let output = process::run(command);
        (output.status.code(), process::text(&output))
    };
    assert_eq!(may("ann", campus).0, Some(0));
    let (code, said) = may("ann", library);
    assert!(code == Some(1) && said.contains("deny: profile staff: no rule matches"), "{said}");
    assert_eq!((may("bob", library).0, may("bob", campus).0), (Some(0), Some(1)));
    assert!(may("eve", campus).1.contains("no access profile is for eve"));
    assert_eq!(may("nobody", campus).0, Some(2));

    // A user in no profile is refused like a wrong password; the administrator sees why.
    let (_, output) = Client::refused(&lab, 3, &eve, &[]);
    assert!(
        output.contains("whether your account is admitted") && !output.contains("not admitted"),
        "{output}"
    );
    assert_eq!(gateway.status()["counters"]["logins"]["no_profile"], 0);
    assert!(gateway.process().output().contains("reason=\"no-profile\""), "{}", gateway.process().output());
    must(gateway.upgrade());
    ping_until(one.namespace(), campus, TIMEOUT);
    assert_eq!(["ann", "bob"].map(|user| profile_of(&gateway, user)), ["staff", "guests"]);
    assert!(!ping(two.namespace(), campus, 56, SECOND));
}

#[test]
fn a_name_server_at_the_gateway_answers_the_profiles_that_push_it() {
    const OWN: Ipv4Addr = Ipv4Addr::new(10, 86, 0, 1);
    let Some(lab) = laboratory(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let [ann, bob] = ["ann", "bob"].map(|name| gateway.add_user(name));
    join(&gateway, "ann", "staff");
    join(&gateway, "bob", "guests");
    configure(&gateway, &format!("{}{GUESTS}", STAFF.replace("10.200.0.2\"", &format!("{OWN}\""))));
    gateway.start();
    let (one, two) = (Client::connect(&lab, 1, &ann), Client::connect(&lab, 2, &bob));
    let server = lab.gateway.within(|| UdpSocket::bind((OWN, 53))).unwrap();
    server.set_read_timeout(Some(SECOND / 10)).unwrap();
    let is_asked = |client: &Client<'_>| {
        let socket = client.namespace().within(|| UdpSocket::bind((client.v4(), 0))).unwrap();
        let _ = socket.send_to(b"query", (OWN, 53));
        server.recv(&mut [0; 16]).is_ok()
    };
    // A route takes a device that is up.
    ping_until(one.namespace(), CAMPUS_V4.into(), TIMEOUT);
    ping_until(two.namespace(), LIBRARY.into(), TIMEOUT);
    for client in [&one, &two] {
        insist(client, OWN);
        ping_until(client.namespace(), OWN.into(), TIMEOUT);
    }
    eventually("the query of who has the name server", TIMEOUT, || is_asked(&one).then_some(()));
    let before = gateway.counter("policy");
    assert!(!(0..10).any(|_| is_asked(&two)), "it is staff's");
    gateway.counter_above("policy", before);
    // It is seen if it comes.
    configure(
        &gateway,
        &STAFF.replace("10.200.0.2\"", &format!("{OWN}\"")).replace("[\"staff\"]", "[\"staff\", \"guests\"]"),
    );
    must(gateway.ask(&["reload"]));
    eventually("the query of who has it now", TIMEOUT, || is_asked(&two).then_some(()));
}

#[test]
fn a_change_of_groups_or_profiles_reaches_live_sessions() {
    let Some(lab) = laboratory(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let [ann, bob] = ["ann", "bob"].map(|name| gateway.add_user(name));
    join(&gateway, "ann", "staff");
    join(&gateway, "bob", "guests");
    configure(&gateway, &format!("{STAFF}{GUESTS}"));
    gateway.start();
    let mut one = Client::connect(&lab, 1, &ann);
    let two = Client::connect(&lab, 2, &bob);
    let (campus, library) = (IpAddr::from(CAMPUS_V4), IpAddr::from(LIBRARY));
    ping_until(one.namespace(), campus, TIMEOUT);
    ping_until(two.namespace(), library, TIMEOUT);
    let before = [one.addresses(), two.addresses()];

    // Another group: the same session in the other profile, with its routes.
    join(&gateway, "bob", "staff");
    ping_until(two.namespace(), campus, TIMEOUT);
    insist(&two, LIBRARY);
    assert!(!ping(two.namespace(), library, 56, SECOND));
    assert_eq!(profile_of(&gateway, "bob"), "staff");
    leave(&gateway, "bob", "staff");
    ping_until(two.namespace(), library, TIMEOUT);

    // Another order: staff are guests now.
    configure(&gateway, &format!("{}{STAFF}", GUESTS.replace("[\"guests\"]", "[\"guests\", \"staff\"]")));
    must(gateway.ask(&["reload"]));
    ping_until(one.namespace(), library, TIMEOUT);
    assert_eq!(profile_of(&gateway, "ann"), "guests");
    assert_eq!([one.addresses(), two.addresses()], before, "addresses stay");

    // A configuration with a mistake changes nothing, and says where it is.
    configure(&gateway, &format!("{STAFF}{}", GUESTS.replace("10.201.0.0/24", "10.201.0.0/33")));
    let refused = gateway.ask(&["reload"]);
    let said = process::text(&refused);
    assert!(!refused.status.success() && said.contains("server.toml:"), "{said}");
    assert!(ping(one.namespace(), library, 56, SECOND));

    // The profile is gone, and no other is for her.
    configure(&gateway, GUESTS);
    must(gateway.ask(&["reload"]));
    let ended = one.process().wait(TIMEOUT);
    let output = one.process().output();
    assert!(!ended.success() && output.contains("not admitted to this gateway"), "{output}");
    assert!(ping(two.namespace(), library, 56, SECOND), "others don't notice");
    drop(one);
    // The auth process knows it, too, and tells no user by a password alone.
    let (_, output) = Client::refused(&lab, 1, &ann, &[]);
    assert!(output.contains("whether your account is admitted"), "{output}");
}

/// Two profiles change their rules and their users at the same time, so that policy of before with
/// sessions of after would let through what both configurations deny, and the other way round.
#[test]
fn a_change_of_profiles_opens_nothing_for_a_moment() {
    const RELOADS: usize = 20;
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    let profiles = |of_ann: &str, of_nobody: &str| {
        let profile = |name: &str, user: &str, rules: &str| {
            format!(
                "[[profile]]\nname = \"{name}\"\nusers = [\"{user}\"]\nroutes = [\"10.200.0.0/24\"]\n{rules}"
            )
        };
        let closed = "[[profile.rules]]\naction = \"deny\"\nto = \"10.200.0.2\"\nprotocol = \"udp\"\nports = \"7777\"\n";
        profile(of_ann, "ann", closed) + &profile(of_nobody, "nobody", "")
    };
    configure(&gateway, &profiles("one", "two"));
    gateway.start();
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    let [closed, open] = [7777, 7778].map(|port| SocketAddr::new(CAMPUS_V4.into(), port));
    let receivers = [closed, open].map(|address| {
        let receiver = lab.campus.within(|| UdpSocket::bind(address)).unwrap();
        receiver.set_read_timeout(Some(SECOND / 10)).unwrap();
        receiver
    });
    let (over, arrived, sent) = (AtomicBool::new(false), [0, 0].map(AtomicUsize::new), AtomicUsize::new(0));
    thread::scope(|scope| {
        let _over = Over(&over);
        for (receiver, arrived) in receivers.iter().zip(&arrived) {
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    arrived.fetch_add(usize::from(receiver.recv(&mut [0; 8]).is_ok()), Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            client.namespace().within(|| {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                while !over.load(Ordering::Relaxed) {
                    let _ = socket.send_to(b"closed", closed);
                    sent.fetch_add(usize::from(socket.send_to(b"open", open).is_ok()), Ordering::Relaxed);
                    thread::sleep(SECOND / 2_000);
                }
            });
        });
        for reload in 0..RELOADS {
            let names = if reload % 2 == 0 { ("two", "one") } else { ("one", "two") };
            configure(&gateway, &profiles(names.0, names.1));
            must(gateway.ask(&["reload"]));
            assert_eq!(profile_of(&gateway, "ann"), names.0);
            let before = arrived[1].load(Ordering::Relaxed);
            eventually("packets go on", TIMEOUT, || {
                (arrived[1].load(Ordering::Relaxed) > before + 20).then_some(())
            });
        }
    });
    let [of_closed, of_open] = arrived.map(AtomicUsize::into_inner);
    println!(
        "{RELOADS} reloads, {of_open} of {} packets arrived, {of_closed} that are denied",
        sent.into_inner()
    );
    assert_eq!(of_closed, 0, "what both configurations deny came through");
    assert!(of_open > 20 * RELOADS);
    // It is seen if it comes.
    configure(&gateway, &profiles("one", "two").replace("7777", "7779"));
    must(gateway.ask(&["reload"]));
    eventually("the port is open", TIMEOUT, || {
        let _ = client.namespace().within(|| UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"open", closed));
        receivers[0].recv(&mut [0; 8]).ok()
    });
}

/// Counts what the ports of the campus host have received: packets, and when the last came.
#[derive(Default)]
struct Arrivals(Mutex<(usize, Option<Instant>)>);

impl Arrivals {
    fn count(&self, receiver: &UdpSocket, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            if receiver.recv(&mut [0; 8]).is_ok() {
                let mut arrived = self.0.lock().unwrap();
                *arrived = (arrived.0 + 1, Some(Instant::now()));
            }
        }
    }

    fn now(&self) -> (usize, Option<Instant>) {
        *self.0.lock().unwrap()
    }
}

/// A profile that allows all but the port that none allows, and another one.
fn closing(name: &str, closed: &str) -> String {
    let (closed, udp) = (format!("ports = [\"7778\", \"{closed}\"]"), "protocol = \"udp\"");
    format!(
        "[[profile]]\nname = \"{name}\"\n{}\nroutes = [\"10.200.0.0/24\"]\n[[profile.rules]]\naction = \"deny\"\nto = \"10.200.0.2\"\n\
         {udp}\n{closed}\n",
        if name == "two" { "groups = [\"two\"]" } else { "users = [\"ann\"]" },
    )
}

/// A user goes from one group to the other and back under traffic: of three ports each of the
/// profiles allows one, and none allows the third.
#[test]
fn a_change_of_groups_reaches_a_session_within_a_second_and_opens_nothing_for_a_moment() {
    const CHANGES: usize = 10;
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    configure(&gateway, &(closing("two", "7777") + &closing("one", "7779")));
    gateway.start();
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    let ports = [7777, 7778, 7779].map(|port| SocketAddr::new(CAMPUS_V4.into(), port));
    let receivers = ports.map(|address| {
        let receiver = lab.campus.within(|| UdpSocket::bind(address)).unwrap();
        receiver.set_read_timeout(Some(SECOND / 10)).unwrap();
        receiver
    });
    let (over, arrivals) = (AtomicBool::new(false), [(); 3].map(|()| Arrivals::default()));
    let mut delays = Vec::new();
    thread::scope(|scope| {
        let _over = Over(&over);
        for (receiver, arrivals) in receivers.iter().zip(&arrivals) {
            let over = &over;
            scope.spawn(move || arrivals.count(receiver, over));
        }
        scope.spawn(|| {
            client.namespace().within(|| {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                while !over.load(Ordering::Relaxed) {
                    for port in ports {
                        let _ = socket.send_to(b"packet", port);
                    }
                    thread::sleep(SECOND / 1_000);
                }
            });
        });
        eventually("the first profile's port", TIMEOUT, || (arrivals[0].now().0 > 0).then_some(()));
        for change in 0..CHANGES {
            let (closing, opening) = if change % 2 == 0 { (0, 2) } else { (2, 0) };
            let before = arrivals[opening].now().0;
            if change % 2 == 0 {
                join(&gateway, "ann", "two")
            } else {
                leave(&gateway, "ann", "two")
            }
            // From now on it is acknowledged.
            let since = Instant::now();
            let opened = eventually("the other profile's port is open", TIMEOUT, || {
                let (count, last) = arrivals[opening].now();
                last.filter(|_| count > before)
            });
            let then = arrivals[opening].now().0;
            eventually("packets go on", TIMEOUT, || (arrivals[opening].now().0 > then + 20).then_some(()));
            let closed = arrivals[closing].now().1.expect("it was open");
            delays.push(opened.max(closed).saturating_duration_since(since));
        }
    });
    delays.sort();
    println!(
        "{CHANGES} changes of groups under traffic, from the command's end to the last packet of before and the first of after: {:.2?} \
         (median), {:.2?} at most; {} packets that are denied before and after",
        delays[CHANGES / 2],
        delays[CHANGES - 1],
        arrivals[1].now().0
    );
    assert_eq!(arrivals[1].now().0, 0, "what both profiles deny came through");
    // It is seen if it comes.
    configure(&gateway, &(closing("two", "7777") + &closing("one", "7779")).replace("\"7778\", ", ""));
    must(gateway.ask(&["reload"]));
    eventually("the port is open", TIMEOUT, || {
        let _ =
            client.namespace().within(|| UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"open", ports[1]));
        receivers[1].recv(&mut [0; 8]).ok()
    });
}

/// The id of the session of a user.
fn session_of(gateway: &Gateway<'_>, user: &str) -> Option<String> {
    let sessions = gateway.sessions();
    let session = sessions.iter().find(|session| session["user"] == user)?;
    session["id"].as_str().map(str::to_owned)
}

#[test]
fn limits_are_those_of_the_profile_and_a_reload_changes_them_for_live_sessions() {
    let Some(lab) = Lab::new(3) else { return };
    let mut gateway = Gateway::init(&lab);
    let [ann, bob] = ["ann", "bob"].map(|name| gateway.add_user(name));
    gateway.configure("policy.campus_to_client", true);
    let profiles = |rate: &str, lifetime: &str| {
        let profile = |user: &str, limits: &str| {
            format!(
                "[[profile]]\nname = \"of-{user}\"\nusers = [\"{user}\"]\nroutes = [\"10.200.0.0/24\"]\n{limits}\n"
            )
        };
        let of_bob = format!("session_rate_down = \"{rate}\"\nmax_sessions_per_user = 1\n{lifetime}");
        profile("ann", "session_rate_down = \"16mbit\"") + &profile("bob", &of_bob)
    };
    configure(&gateway, &profiles("4mbit", ""));
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    let mut two = Client::connect(&lab, 2, &bob);
    for client in [&one, &two] {
        ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    }
    is_kept(&lab.campus, one.namespace(), one.v4(), mbit(16));
    is_kept(&lab.campus, two.namespace(), two.v4(), mbit(4));
    let log = gateway.process().output();
    assert!(["ann", "bob"].iter().all(|user| log.contains(&format!("profile=\"of-{user}\""))), "{log}");

    // One session is all that bob may have.
    let third = process::Process::start(&lab, "client3", client::command(&lab, 3, &bob, &[]));
    let refused = || gateway.status()["counters"]["logins"]["too_many"].as_u64().filter(|count| *count > 0);
    eventually("the second session is refused and counted", TIMEOUT, refused);
    eventually("the client shows why", TIMEOUT, || {
        third.output().contains("too many sessions").then_some(())
    });
    drop(third);

    let before = ["ann", "bob"].map(|user| session_of(&gateway, user));
    configure(&gateway, &profiles("8mbit", ""));
    must(gateway.ask(&["reload"]));
    is_kept(&lab.campus, two.namespace(), two.v4(), mbit(8));
    assert_eq!(["ann", "bob"].map(|user| session_of(&gateway, user)), before, "they go on");

    // Bob's time is over by a reload; his client logs in again, and no other user notices.
    configure(&gateway, &profiles("8mbit", "session_lifetime_s = 1"));
    must(gateway.ask(&["reload"]));
    eventually("the session is over", TIMEOUT, || {
        two.process().output().contains("the session's lifetime is over").then_some(())
    });
    configure(&gateway, &profiles("8mbit", ""));
    must(gateway.ask(&["reload"]));
    eventually("bob is back", TIMEOUT, || {
        session_of(&gateway, "bob").filter(|id| before[1].as_ref() != Some(id))
    });
    ping_until(two.namespace(), CAMPUS_V4.into(), TIMEOUT);
    assert_eq!(session_of(&gateway, "ann"), before[0]);
}

/// The addresses of the pools in the status, with how many are taken.
fn taken(gateway: &Gateway<'_>, pool: &str) -> Option<u64> {
    let status = gateway.status();
    status["pools"].as_array()?.iter().find(|found| found["pool"] == pool)?["taken"].as_u64()
}

#[test]
fn each_profile_has_its_pools_and_a_change_moves_affected_clients() {
    let Some(lab) = Lab::new(3) else { return };
    let mut gateway = Gateway::init(&lab);
    let [ann, bob] = ["ann", "bob"].map(|name| gateway.add_user(name));
    let profiles = |staff: &str, guests: &str| {
        let profile = |name: &str, user: &str, pools: &str| {
            format!(
                "[[profile]]\nname = \"{name}\"\nusers = [\"{user}\"]\nroutes = [\"10.200.0.0/24\", \"{CAMPUS_V6}/128\"]\n{pools}\n"
            )
        };
        profile("staff", "ann", staff) + &profile("guests", "bob", guests)
    };
    // One address, for the gateway has the other that hosts could have.
    const TINY: &str = "pool_v4 = \"10.86.0.0/30\"";
    configure(&gateway, &profiles("pool_v4 = \"10.86.16.0/24\"", TINY));
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    let two = Client::connect(&lab, 2, &bob);
    for client in [&one, &two] {
        ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    }
    let is_in = |address: IpAddr, net: &str| net.parse::<ipnet::IpNet>().unwrap().contains(&address);
    assert!(is_in(one.v4(), "10.86.16.0/24") && two.v4() == IpAddr::from([10, 86, 0, 2]), "{}", two.v4());
    assert_eq!((taken(&gateway, "10.86.16.0/24"), taken(&gateway, "10.86.0.0/30")), (Some(1), Some(1)));

    // A full pool is a refusal that the client shows, and is counted; other profiles have room.
    let third = process::Process::start(&lab, "client3", client::command(&lab, 3, &bob, &[]));
    let refused = || gateway.status()["counters"]["logins"]["no_address"].as_u64().filter(|count| *count > 0);
    eventually("the login is refused and counted", TIMEOUT, refused);
    eventually("the client shows why", TIMEOUT, || {
        third.output().contains("no inner address left").then_some(())
    });
    drop(third);

    // The new pool has the address: nothing happens. Then it has not.
    let (before, of_bob) = (session_of(&gateway, "ann"), session_of(&gateway, "bob"));
    let address = one.v4();
    configure(&gateway, &profiles("pool_v4 = \"10.86.16.0/20\"", TINY));
    must(gateway.ask(&["reload"]));
    must(gateway.upgrade());
    ping_until(one.namespace(), CAMPUS_V4.into(), TIMEOUT);
    assert_eq!((session_of(&gateway, "ann"), one.v4()), (before, address));
    configure(&gateway, &profiles("pool_v4 = \"10.86.32.0/20\"", TINY));
    must(gateway.ask(&["reload"]));
    eventually("the client has an address of the new pool alone", TIMEOUT, || {
        let addresses = one.addresses();
        let is_new = addresses.iter().any(|address| is_in(*address, "10.86.32.0/20"));
        (is_new && !addresses.contains(&address)).then_some(())
    });
    ping_until(one.namespace(), CAMPUS_V4.into(), TIMEOUT);
    ping_until(two.namespace(), CAMPUS_V4.into(), TIMEOUT);
    assert_eq!(session_of(&gateway, "bob"), of_bob, "others don't notice");

    // A pool that is no part of the tunnel's is refused, and nothing changes.
    configure(&gateway, &profiles("pool_v4 = \"10.99.0.0/24\"", TINY));
    let refused = process::text(&gateway.ask(&["reload"]));
    assert!(refused.contains("no part of a pool of [tunnel]"), "{refused}");
    ping_until(one.namespace(), CAMPUS_V4.into(), TIMEOUT);

    // Without IPv4, and what is for it does not leave another way.
    configure(&gateway, &profiles("pool_v4 = \"10.86.32.0/20\"", "pool_v4 = \"none\""));
    must(gateway.ask(&["reload"]));
    eventually("IPv6 alone", TIMEOUT, || {
        let addresses = two.addresses();
        (!addresses.is_empty() && addresses.iter().all(IpAddr::is_ipv6)).then_some(())
    });
    ping_until(two.namespace(), CAMPUS_V6.into(), TIMEOUT);
    assert!(!ping(two.namespace(), CAMPUS_V4.into(), 56, SECOND));
    assert!(ping(one.namespace(), CAMPUS_V4.into(), 56, SECOND));
}

#[test]
fn a_profile_that_requires_a_second_factor_takes_no_password_alone() {
    let Some(lab) = Lab::new(3) else { return };
    let mut gateway = Gateway::init(&lab);
    let [ann, bob, cat] = ["ann", "bob", "cat"].map(|name| gateway.add_user(name));
    let profiles = |require: &str| {
        format!(
            "[[profile]]\nname = \"admins\"\nusers = [\"ann\", \"cat\"]\nroutes = [\"10.200.0.0/24\"]\n{require}\n\
             [[profile]]\nname = \"others\"\nroutes = [\"10.200.0.0/24\"]\n"
        )
    };
    configure(&gateway, &profiles(""));
    gateway.start();
    let mut one = Client::connect(&lab, 1, &ann);
    let two = Client::connect(&lab, 2, &bob);
    for client in [&one, &two] {
        ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    }

    // Her session is over, and it says why; her client logs in again, and a password alone is as
    // good as a wrong one.
    let ours = |text: &str| text.contains("the login was refused") && !text.contains("your account needs");
    configure(&gateway, &profiles("require = [\"otp\"]"));
    must(gateway.ask(&["reload"]));
    let ended = one.process().wait(TIMEOUT);
    let output = one.process().output();
    assert!(!ended.success() && output.contains("requires another factor now") && ours(&output), "{output}");
    assert!(ping(two.namespace(), CAMPUS_V4.into(), 56, SECOND), "others don't notice");
    drop(one);
    let (_, output) = Client::refused(&lab, 3, &cat, &[]);
    assert!(ours(&output), "{output}");
    assert_eq!(gateway.status()["counters"]["logins"]["missing_factor"], 0);
    assert_eq!(gateway.process().output().matches("reason=\"missing-factor\"").count(), 2);
    assert_eq!(session_of(&gateway, "ann"), None);

    // With a code she is in, and an upgrade and a restart know that she had one.
    must(process::run(gateway.user(&["modify", "ann", "--totp"])));
    let (one, mut keyboard) = factors::at_terminal(&lab, 1, &ann);
    eventually("she is asked for a code", TIMEOUT, || one.output().contains("ne-time code").then_some(()));
    let users = Sqlite::inspect(&gateway.file("state").join("vpnd.db")).unwrap();
    let secret = users.into_iter().find(|user| user.name == "ann").and_then(|user| user.totp).unwrap();
    let codes = totp_rs::Builder::new().with_secret(totp_rs::Secret::new(secret.expose().into()));
    let now_s = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let code = codes.with_account_name("ann").build().unwrap().generate(now_s).to_string();
    keyboard.write_all(format!("{code}\n").as_bytes()).unwrap();
    let id = eventually("she is in", TIMEOUT, || session_of(&gateway, "ann"));
    must(gateway.upgrade());
    must(gateway.ask(&["reload"]));
    ping_until(&lab.clients[0], CAMPUS_V4.into(), TIMEOUT);
    assert_eq!(session_of(&gateway, "ann"), Some(id));
}
