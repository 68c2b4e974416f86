//! Behaviour: gateway and client are killed with SIGKILL at any moment, over and over. What was
//! acknowledged is there afterwards, a client that had a session gets it back without a login, and
//! machines are as they were.
//!
//! `./x crash` runs it for long: `VPND_CRASH_POINTS` says how many kills, `VPND_CRASH_SEED` which,
//! `VPND_CRASH_LIMIT_MS` how long a machine may take to be as before once cleaning up has begun.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::process::Signal;

use crate::cleanup::{Machine, look_at};
use crate::client::{self, Client};
use crate::gateway::{Gateway, Login, must};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::process::{self, Process};
use crate::traffic::ping_until;

const SECOND: Duration = Duration::from_secs(1);
const DEFAULT_POINTS: u64 = 7;
/// Machines of CI are slow and busy; `./x crash` asks for more.
const DEFAULT_LIMIT_MS: u64 = 5_000;

/// The process that is killed, and the operation it is killed in.
#[derive(Clone, Copy, Debug)]
enum Point {
    /// A gateway while it starts.
    GatewayStarts,
    /// A gateway while a client logs in.
    GatewayAdmits,
    /// A gateway with a client that rekeys every second, while an administrator changes users.
    GatewayWorks,
    /// A gateway that was stopped in order.
    GatewayStops,
    /// A client while it logs in.
    ClientConnects,
    /// A client that rekeys every second.
    ClientWorks,
    /// A client that was stopped in order.
    ClientStops,
}

const POINTS: [Point; 7] = [
    Point::GatewayStarts,
    Point::ClientConnects,
    Point::GatewayWorks,
    Point::ClientWorks,
    Point::GatewayAdmits,
    Point::ClientStops,
    Point::GatewayStops,
];

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

#[test]
fn any_process_killed_at_any_time_leaves_a_clean_state() {
    let Some(lab) = Lab::new(1) else { return };
    let points = number("VPND_CRASH_POINTS", DEFAULT_POINTS);
    let seed = number("VPND_CRASH_SEED", u64::from(std::process::id()));
    println!("VPND_CRASH_SEED={seed}");
    let mut trial = Trial::new(&lab, seed);
    let offset = usize::try_from(seed % POINTS.len() as u64).unwrap();
    for (number, point) in (0..points).zip(POINTS.iter().cycle().skip(offset)) {
        println!("kill {number} of seed {seed}: {point:?}");
        trial.run(*point);
    }
    println!("{points} kills; a machine took {:?} at most to be as before", trial.slowest);
    assert!(trial.slowest <= trial.limit, "it took {:?}, with seed {seed}", trial.slowest);
}

/// A gateway, a client, and what both machines were before.
struct Trial<'l> {
    lab: &'l Lab,
    gateway: Gateway<'l>,
    ann: Login,
    before: [Machine; 2],
    random: StdRng,
    /// Whether the command that enabled bob has succeeded.
    bob_enabled: bool,
    limit: Duration,
    slowest: Duration,
}

impl<'l> Trial<'l> {
    fn new(lab: &'l Lab, seed: u64) -> Self {
        let gateway = Gateway::init(lab);
        gateway.configure("timeouts.rekey_after_s", 1);
        let ann = gateway.add_user("ann");
        gateway.add_user("bob");
        Self {
            lab,
            gateway,
            ann,
            before: [look_at(lab, &lab.gateway), look_at(lab, &lab.clients[0])],
            random: StdRng::seed_from_u64(seed),
            bob_enabled: true,
            limit: Duration::from_millis(number("VPND_CRASH_LIMIT_MS", DEFAULT_LIMIT_MS)),
            slowest: Duration::ZERO,
        }
    }

    /// One kill, from two machines without a VPN to two machines without a VPN.
    fn run(&mut self, point: Point) {
        match point {
            Point::GatewayStarts => {
                let command = self.gateway.server(&[]);
                let mut starting = Process::start(self.lab, "killed", command);
                self.pause(900);
                starting.kill();
                let begun = Instant::now();
                self.gateway.tear_down();
                self.wait_for(0, begun);
            }
            Point::GatewayAdmits => {
                self.gateway.start();
                let client = self.connecting();
                self.pause(1_500);
                self.gateway.kill();
                self.gateway.start();
                self.leave(client);
            }
            Point::GatewayWorks | Point::GatewayStops => self.kill_gateway_at_work(point),
            Point::ClientConnects | Point::ClientWorks | Point::ClientStops => self.kill_client(point),
        }
        self.check_users();
        self.restore_gateway();
    }

    fn kill_gateway_at_work(&mut self, point: Point) {
        self.gateway.start();
        let client = Client::connect(self.lab, 1, &self.ann);
        ping_until(client.namespace(), CAMPUS_V4.into(), 10 * SECOND);
        let addresses = client.addresses();
        self.pause(1_500);
        if matches!(point, Point::GatewayStops) {
            self.gateway.process().signal(Signal::TERM);
            self.pause(100);
        } else {
            self.toggle_bob();
        }
        // It may have ended by itself, if it was stopped in order.
        if self.gateway.process().ended().is_none() {
            self.gateway.kill();
        }
        self.gateway.start();
        ping_until(client.namespace(), CAMPUS_V4.into(), 30 * SECOND);
        assert_eq!(client.addresses(), addresses, "its addresses are the same");
        let logins = self.gateway.status()["counters"]["logins"].clone();
        assert_eq!(logins["accepted"], 0, "nobody had to log in: {logins}");
        self.leave_client(client);
    }

    fn kill_client(&mut self, point: Point) {
        self.gateway.start();
        let mut client = if let Point::ClientConnects = point {
            let client = self.connecting();
            self.pause(1_500);
            client
        } else {
            let mut client = Client::connect(self.lab, 1, &self.ann);
            ping_until(client.namespace(), CAMPUS_V4.into(), 10 * SECOND);
            self.pause(1_500);
            if let Point::ClientStops = point {
                client.process().signal(Signal::INT);
                self.pause(100);
            }
            client.into_process()
        };
        if client.ended().is_none() {
            client.kill();
        }
        let begun = Instant::now();
        must(client::cleanup(self.lab, 1));
        self.wait_for(1, begun);
        // The next client finds a gateway that works.
        let client = Client::connect(self.lab, 1, &self.ann);
        ping_until(client.namespace(), CAMPUS_V4.into(), 10 * SECOND);
        self.leave_client(client);
    }

    /// A client of which nothing is known yet.
    fn connecting(&self) -> Process {
        Process::start(self.lab, "connecting", client::command(self.lab, 1, &self.ann, &[]))
    }

    /// Waits until it is connected, and ends it.
    fn leave(&mut self, mut client: Process) {
        eventually("the client is connected", 40 * SECOND, || {
            client.assert_running();
            self.lab.clients[0].ip(&["-brief", "address", "show"]).contains("10.86.").then_some(())
        });
        ping_until(&self.lab.clients[0], CAMPUS_V4.into(), 20 * SECOND);
        client.signal(Signal::INT);
        assert!(client.wait(10 * SECOND).success(), "{}", client.output());
        assert_eq!(look_at(self.lab, &self.lab.clients[0]), self.before[1]);
    }

    fn leave_client(&mut self, client: Client<'l>) {
        self.leave(client.into_process());
    }

    /// The state is as the administrator's command reported it.
    fn toggle_bob(&mut self) {
        let wanted = !self.bob_enabled;
        let word = if wanted { "enable" } else { "disable" };
        let output = process::run(self.gateway.user(&[word, "bob"]));
        must(output);
        self.bob_enabled = wanted;
    }

    fn check_users(&self) {
        let list = must(process::run(self.gateway.user(&["list", "--json"])));
        let users: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
        let bob = users.as_array().unwrap().iter().find(|user| user["name"] == "bob").expect("bob was added");
        assert_eq!(bob["enabled"], self.bob_enabled, "{users}");
    }

    /// Starts the gateway if need be, which takes over from the one that was killed, ends it as the
    /// system does, and has it give the machine back.
    fn restore_gateway(&mut self) {
        if !self.gateway.is_running() {
            self.gateway.start();
        }
        self.gateway.terminate();
        self.gateway.tear_down();
        assert_eq!(look_at(self.lab, &self.lab.gateway), self.before[0]);
        let output = self.gateway.process().output();
        assert!(!output.contains("panicked") && !output.contains("vpnd: "), "{output}");
    }

    /// Waits until a machine is as before, counting from when cleaning up began.
    fn wait_for(&mut self, machine: usize, begun: Instant) {
        let namespace = [&self.lab.gateway, &self.lab.clients[0]][machine];
        let end = begun + self.limit.max(10 * SECOND);
        loop {
            let now = look_at(self.lab, namespace);
            if now == self.before[machine] {
                break;
            }
            assert!(Instant::now() < end, "{now:#?} is not {:#?}", self.before[machine]);
            thread::sleep(Duration::from_millis(10));
        }
        self.slowest = self.slowest.max(begun.elapsed());
    }

    /// Waits for a random time below `limit_ms`.
    fn pause(&mut self, limit_ms: u64) {
        thread::sleep(Duration::from_micros(self.random.random_range(0..limit_ms * 1_000)));
    }
}
