//! Behaviour: junk logins, and connections that ask for nothing, do not keep an honest newcomer
//! waiting.
//!
//! Junk comes from clients that do all that the protocol wants and have a wrong password, each at
//! its own address, from real networks: no proof of an address stops them. Honest logins come
//! from new addresses, and from new devices wherever the load leaves those their turn, which have
//! no standing. A password costs what `vpnd init` makes it cost.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use vpnd_proto::control::Message;

use super::{Form, OnDrop, SECOND};
use crate::gateway::{Gateway, Login, must};
use crate::lab::Lab;
use crate::process;
use crate::theft::Speaker;

/// Junk logins each second.
const RATE: u32 = 60;
/// Clients that send them, each of which has an address.
const CROWD: u32 = 250;
/// Honest logins come so far apart, whether or not the one before has an answer.
const HONEST_INTERVAL: Duration = Duration::from_millis(500);
/// Connections that each of two addresses tries to hold: together as many as a gateway has places
/// for.
const HELD: usize = 128;
/// Pause of a refused client before it tries again.
const RETRY_INTERVAL: Duration = SECOND;
/// The number of the device that comes back.
const RETURNING: u32 = u32::MAX;
/// Limit for an honest login.
const LONGEST: Duration = SECOND;

/// A load, by the addresses it comes from.
struct Load {
    name: &'static str,
    sources: fn(u32) -> IpAddr,
    kind: Kind,
    honest: Honest,
}

#[derive(Clone, Copy)]
enum Kind {
    /// Connections that ask for nothing.
    Held,
    /// Logins, each for another user, none of which exists.
    Strangers,
    /// Logins for the honest user.
    OwnName,
}

/// The user whose login is measured.
#[derive(Clone, Copy)]
enum Honest {
    /// A new device each time, without standing.
    Newcomer,
    /// One that has logged in before.
    Returning,
}

/// Outcomes of one side's attempts, counted.
#[derive(Default)]
struct Tally(Mutex<BTreeMap<String, u64>>);

impl Tally {
    fn count(&self, what: impl Into<String>) {
        *self.0.lock().expect("nobody panics with it").entry(what.into()).or_default() += 1;
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        self.0.lock().expect("nobody panics with it").clone()
    }
}

#[test]
fn two_addresses_that_hold_all_their_places_leave_room() {
    measure(&Load {
        name: "two addresses hold places",
        sources: |client| Ipv4Addr::new(if client.is_multiple_of(2) { 100 } else { 203 }, 0, 113, 1).into(),
        kind: Kind::Held,
        honest: Honest::Newcomer,
    });
}

#[test]
fn junk_logins_from_an_ipv6_provider_delay_no_login() {
    measure(&Load {
        name: "junk logins from a /48",
        sources: of_an_ipv6_provider,
        kind: Kind::Strangers,
        honest: Honest::Newcomer,
    });
}

#[test]
fn junk_logins_from_an_ipv4_site_delay_no_login() {
    measure(&Load {
        name: "junk logins from a /24",
        sources: |client| Ipv4Addr::new(203, 0, 113, 1 + client as u8).into(),
        kind: Kind::Strangers,
        honest: Honest::Newcomer,
    });
}

#[test]
fn junk_logins_under_a_users_name_do_not_lock_the_user_out() {
    measure(&Load {
        name: "junk logins from a /48 for the honest user",
        sources: of_an_ipv6_provider,
        kind: Kind::OwnName,
        honest: Honest::Newcomer,
    });
}

#[test]
fn junk_logins_from_everywhere_do_not_delay_a_returning_device() {
    measure(&Load {
        name: "junk logins from 250 providers; the honest device has been there before",
        sources: |client| Ipv4Addr::new(100, client as u8, 113, 1).into(),
        kind: Kind::Strangers,
        honest: Honest::Returning,
    });
}

/// Puts each in a separate /64, two of them in each /56.
fn of_an_ipv6_provider(client: u32) -> IpAddr {
    let subnet = (((client / 2) << 8) | (client % 2)) as u16;
    Ipv6Addr::new(0x2001, 0xdb8, 1, subnet, 0, 0, 0, 1).into()
}

/// Measures honest logins under a load.
fn measure(load: &Load) {
    let Some(lab) = Lab::new(2) else { return };
    let form = Form::of_environment();
    route_networks(&lab);
    let mut gateway = Gateway::init(&lab);
    // The honest user comes with a new device each time.
    gateway.configure("limits.max_sessions_per_user", 1024);
    gateway.configure("limits.logins_per_user", 100_000);
    let ann = gateway.add_user("ann");
    // Codes are asked for where any user has them.
    gateway.add_user("tom");
    must(process::run(gateway.user(&["modify", "tom", "--totp"])));
    gateway.start();
    if matches!(load.honest, Honest::Returning) {
        lab.clients[1].within(|| on_a_runtime(first_login(&ann)));
    }
    let (junk, over) = (Arc::new(Tally::default()), AtomicBool::new(false));
    let honest = thread::scope(|scope| {
        let _end = OnDrop(|| over.store(true, Ordering::Relaxed));
        scope.spawn(|| lab.clients[0].within(|| on_a_runtime(attack(load, &ann, &junk, &over))));
        // Long enough to fill a queue that does not empty itself as fast.
        thread::sleep(2 * SECOND);
        lab.clients[1].within(|| on_a_runtime(log_in_again_and_again(load.honest, &ann, form.seconds)))
    });
    let figures = Figures::of(honest);
    println!("{}", load.name);
    println!("  {figures}");
    let junk = junk.counts();
    println!("  junk           {junk:?}");
    let handshakes = &gateway.status()["counters"]["handshakes"];
    println!("  handshakes     {handshakes}");
    println!("  logins         {}", gateway.status()["counters"]["logins"]);
    let begun =
        ["accepted", "retried", "refused"].map(|name| handshakes[name].as_u64().expect("it is counted"));
    // An honest login begins twice at most: the gateway may ask for a proof of its address.
    let honest = 2 * (figures.times.len() + figures.refused.len()) as u64;
    assert!(begun.iter().sum::<u64>() > 10 * form.seconds + honest, "the load has arrived: {junk:?}");
    assert!(!junk.contains_key("let in"), "{junk:?}");
    assert!(figures.refused.is_empty(), "refused: {:?}", figures.refused);
    // How fast is a matter of the machine: promised for one that does nothing else.
    if form.long {
        assert!(figures.percentile(99) <= LONGEST, "{figures}");
    }
}

/// Gives the clients' boxes their own networks, all of whose addresses they have.
fn route_networks(lab: &Lab) {
    let networks = [(1, "203.0.113.0/24"), (1, "100.0.0.0/8"), (1, "2001:db8:1::/48"), (2, "198.51.0.0/16")];
    for (number, network) in networks {
        let client = &lab.clients[number - 1];
        let via =
            if network.contains(':') { format!("fd18:{number}::2") } else { format!("198.18.{number}.2") };
        client.ip_batch(&format!("route add local {network} dev lo\n"));
        client.sysctl("net/ipv6/ip_nonlocal_bind", "1");
        lab.net.ip_batch(&format!("route add {network} via {via}\n"));
    }
}

fn on_a_runtime<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work)
}

fn seed(side: u8, number: u32) -> [u8; 32] {
    let mut seed = [side; 32];
    seed[..4].copy_from_slice(&number.to_be_bytes());
    seed
}

/// Sends junk until it is `over`. What is under way then ends with the runtime.
async fn attack(load: &Load, ann: &Login, junk: &Arc<Tally>, over: &AtomicBool) {
    let first = Speaker::new(&ann.profile, 1);
    let clients = if matches!(load.kind, Kind::Held) { 2 } else { CROWD };
    let client = |number| Arc::new(first.at((load.sources)(number), seed(1, number)));
    let crowd: Vec<_> = (0..clients).map(client).collect();
    if matches!(load.kind, Kind::Held) {
        for client in crowd.iter().flat_map(|client| vec![client; HELD]) {
            tokio::spawn(hold(Arc::clone(client), Arc::clone(junk)));
        }
    }
    let mut ticks = tokio::time::interval(SECOND / RATE);
    for (number, client) in crowd.iter().cycle().enumerate() {
        ticks.tick().await;
        if over.load(Ordering::Relaxed) {
            return;
        }
        let user = match load.kind {
            Kind::Held => continue,
            Kind::Strangers => format!("nobody{number}"),
            Kind::OwnName => "ann".to_owned(),
        };
        tokio::spawn(try_password(Arc::clone(client), user, Arc::clone(junk)));
    }
}

/// Holds a connection that asks for nothing, and another as soon as that is closed.
async fn hold(client: Arc<Speaker>, junk: Arc<Tally>) {
    loop {
        match client.try_dial().await {
            Ok(line) => {
                junk.count("held");
                line.gone().await;
            }
            Err(_) => {
                junk.count("not let in");
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

/// Tries a wrong password, and then keeps the gateway waiting for a code for as long as it does.
async fn try_password(client: Arc<Speaker>, user: String, junk: Arc<Tally>) {
    let Ok(mut line) = client.try_dial().await else { return junk.count("not let in") };
    let login = client.login_with(&line, &user, "a guess");
    match line.ask(&login).await {
        Ok(Message::OneTimeCodeWanted) => {
            junk.count("asked for a code");
            line.gone().await;
        }
        Ok(_) => junk.count("let in"),
        Err(code) => junk.count(format!("{code:?}")),
    }
}

/// Makes the device one that has had a session.
async fn first_login(ann: &Login) {
    let client = Speaker::new(&ann.profile, 1).at(Ipv4Addr::new(198, 51, 255, 1).into(), seed(2, RETURNING));
    let mut line = client.dial().await;
    let login = client.login(&line, "ann");
    assert!(matches!(line.ask(&login).await, Ok(Message::Established(_))));
}

/// Logs in at fixed times, each time at a new address. How long each login took, and what became of
/// it.
async fn log_in_again_and_again(honest: Honest, ann: &Login, seconds: u64) -> Vec<Result<Duration, String>> {
    let first = Speaker::new(&ann.profile, 1);
    let mut logins = JoinSet::new();
    let mut ticks = tokio::time::interval(HONEST_INTERVAL);
    let end = Instant::now() + Duration::from_secs(seconds);
    for number in 0u32.. {
        ticks.tick().await;
        if Instant::now() >= end {
            break;
        }
        let address = Ipv4Addr::new(198, 51, (number / 250) as u8, 1 + (number % 250) as u8);
        let device = if matches!(honest, Honest::Newcomer) { number } else { RETURNING };
        let client = first.at(address.into(), seed(2, device));
        logins.spawn(async move {
            let began = Instant::now();
            let mut line = client.try_dial().await.map_err(|error| error.to_string())?;
            let login = client.login(&line, "ann");
            match line.ask(&login).await {
                Ok(Message::Established(_)) => Ok(began.elapsed()),
                other => Err(format!("{other:?}")),
            }
        });
    }
    logins.join_all().await
}

/// Outcomes of honest logins.
struct Figures {
    /// Durations of successful logins, in order.
    times: Vec<Duration>,
    refused: Vec<String>,
}

impl Figures {
    fn of(logins: Vec<Result<Duration, String>>) -> Self {
        let (mut times, mut refused) = (Vec::new(), Vec::new());
        for login in logins {
            match login {
                Ok(time) => times.push(time),
                Err(reason) => refused.push(reason),
            }
        }
        assert!(!times.is_empty(), "none of {} got in: {refused:?}", refused.len());
        times.sort();
        Self { times, refused }
    }

    /// The time that this many of a hundred logins did not exceed.
    fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.times.len() * percent).div_ceil(100).max(1);
        self.times[rank - 1]
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, p99, most] = [50, 99, 100].map(|percent| self.percentile(percent).as_secs_f64());
        let (count, refused) = (self.times.len(), self.refused.len());
        write!(
            f,
            "honest logins  {count}: median {median:.3} s, p99 {p99:.3} s, most {most:.3} s; {refused} refused"
        )
    }
}
