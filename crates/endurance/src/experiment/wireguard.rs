//! Load of a WireGuard server by clients that cost little: vpnd's gateway and others, treated
//! the same.
//!
//! Stock clients need most of a machine that they share with the server, so a measurement with them
//! shows what all can do together. Here one process holds all clients (`vpnd_swarm::wireguard`) and
//! makes their traffic as `capacity` does. Servers take turns within each round, in shuffled
//! order, and the first is measured twice in each (A/A).

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::Serialize;
use vpnd_swarm::load::{Counts, Direction, Plan as LoadPlan, USUAL_ACK_DELAY_MS, USUAL_ACKNOWLEDGE};
use vpnd_swarm::message::Command;
use vpnd_swarm::processes::Processes;
use vpnd_swarm::tally::Tally;
use vpnd_swarm::wireguard::{Client, Job};

use super::held_sessions::{SessionsError, holder, take_reports};
use trafficspeed::experiment::cpu::CpuMeter;
use trafficspeed::experiment::environment::Environment;
use trafficspeed::experiment::outcome::CpuUse;
use trafficspeed::experiment::progress::Progress;
use trafficspeed::experiment::turns;
use trafficspeed::interrupt::Interrupt;
use trafficspeed::lab::{Lab, LinkSettings};
use trafficspeed::system::wireguard::server::{Served, server};
use trafficspeed::system::{Programs, Subject, SystemInfo};

/// Time that the coordinator waits for a report before it looks at the clock.
const POLL: Duration = Duration::from_millis(20);
/// Time for all handshakes, and for a report.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The port of the first client.
const FIRST_PORT: u16 = 20_000;

#[derive(Clone, Debug)]
pub struct WireGuardPlan {
    pub servers: Vec<Subject>,
    pub clients: Vec<u32>,
    pub directions: Vec<Direction>,
    /// Bytes of inner packets, if not as many as the tunnel takes.
    pub packet: Option<u16>,
    pub burst: u16,
    /// Bytes on their way at most.
    pub in_flight: u64,
    pub seconds: f64,
    pub warmup_seconds: f64,
    pub repeats: u32,
    pub links: LinkSettings,
    pub programs: Programs,
}

/// One server with its number of clients.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub server: String,
    /// Measured a second time, as a control.
    pub again: bool,
    pub clients: u32,
    pub direction: Direction,
    pub facts: SystemInfo,
    pub runs: Vec<Figures>,
    #[serde(skip)]
    subject: Option<Subject>,
}

/// The figures of one round.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    pub round: u32,
    /// Payload bits per second that arrived, of all clients.
    pub goodput: f64,
    pub packets_per_second: f64,
    /// CPU seconds of all processes of the server for each Gbit of payload.
    pub server_seconds_per_gbit: f64,
    /// CPU seconds that the server used in a second.
    pub server_cores: f64,
    /// CPU seconds of the process that has all clients, for each Gbit.
    pub load_seconds_per_gbit: f64,
    pub lost_percent: f64,
    /// Opened packets that came behind a later one.
    pub reordered: u64,
    pub delay_ms: vpnd_swarm::tally::Percentiles,
    pub steal_percent: Option<f64>,
    pub foreign_percent: Option<f64>,
}

#[derive(Debug, Serialize)]
pub struct WireGuardResults {
    pub seconds: f64,
    pub repeats: u32,
    pub environment: Environment,
    pub rows: Vec<Row>,
    pub interrupted: bool,
    pub problems: Vec<String>,
}

impl WireGuardResults {
    pub fn is_whole(&self) -> bool {
        self.problems.is_empty() && !self.interrupted
    }
}

impl WireGuardPlan {
    fn rows(&self) -> Vec<Row> {
        let again = self.servers.first().map(|first| first.again());
        let mut rows = Vec::new();
        for &clients in &self.clients {
            for &direction in &self.directions {
                rows.extend(self.servers.iter().copied().chain(again).map(|subject| Row {
                    server: subject.label(),
                    again: subject.again,
                    clients,
                    direction,
                    facts: SystemInfo::default(),
                    runs: Vec::new(),
                    subject: Some(subject),
                }));
            }
        }
        rows
    }

    fn load(&self, row: &Row) -> LoadPlan {
        LoadPlan {
            sessions: row.clients,
            direction: row.direction,
            packet: self.packet,
            burst: self.burst,
            in_flight: self.in_flight,
            sample: 8,
            rate: None,
            small: 0,
            greedy: 1,
            calls: 0,
            acknowledge: USUAL_ACKNOWLEDGE,
            ack_delay_ms: USUAL_ACK_DELAY_MS,
        }
    }
}

/// Refuses what this machine can't run, before anything is changed.
///
/// # Errors
/// The first thing that is missing.
pub fn check(plan: &WireGuardPlan) -> Result<(), SessionsError> {
    Lab::check(plan.links)?;
    Ok(plan.servers.iter().try_for_each(|subject| server(*subject, &plan.programs)?.check())?)
}

/// Runs the whole measurement. A server that does not come up is a problem of the results.
pub fn run(plan: &WireGuardPlan, progress: &Progress, interrupt: &Interrupt) -> WireGuardResults {
    let mut results = WireGuardResults {
        seconds: plan.seconds,
        repeats: plan.repeats,
        environment: Environment::read(Some(plan.links)),
        rows: plan.rows(),
        interrupted: false,
        problems: Vec::new(),
    };
    for round in 1..=plan.repeats {
        for number in turns::order(0..results.rows.len(), round) {
            if interrupt.is_set() {
                break;
            }
            turns::pause();
            let row = &mut results.rows[number];
            let title = format!("{}, {} clients, {:?}", row.server, row.clients, row.direction);
            match measure(plan, row, interrupt) {
                Ok(mut figures) => {
                    figures.round = round;
                    progress.note(&format!(
                        "{title:<52} round {round}: {:.2} Gbit/s, server {:.4} CPU s/Gbit",
                        figures.goodput / 1e9,
                        figures.server_seconds_per_gbit
                    ));
                    row.runs.push(figures);
                }
                Err(_) if interrupt.is_set() => {}
                Err(reason) => {
                    progress.note(&format!("{title}: {reason}"));
                    results.problems.push(format!("{title}: {reason}"));
                }
            }
        }
    }
    results.interrupted = interrupt.is_set();
    results
}

/// Brings the server of `row` up with all clients, and measures it once.
fn measure(plan: &WireGuardPlan, row: &mut Row, interrupt: &Interrupt) -> Result<Figures, String> {
    let subject = row.subject.ok_or("it was read from a file")?;
    let words = |error: SessionsError| error.to_string();
    let lab = Lab::build(1, plan.links).map_err(|error| words(error.into()))?;
    // Declared behind the lab: its processes end before their namespaces, whatever happens.
    let mut system = server(subject, &plan.programs).map_err(|error| words(error.into()))?;
    let places: Vec<SocketAddr> =
        (0..row.clients as u16).map(|number| (Lab::client_v4(1), FIRST_PORT + number).into()).collect();
    let served = system.up_alone(&lab, &places, interrupt).map_err(|error| words(error.into()));
    let measured = served.and_then(|served| {
        row.facts = system.facts().clone();
        let job = job(&lab, &served);
        let mut process = Processes::default();
        let program = holder(&lab.clients()[0]).map_err(|error| error.to_string())?;
        process.start(program, &Command::OpenWireGuard(job)).map_err(|error| error.to_string())?;
        let mut crowd = Crowd { process, gateway: system.processes().0, interrupt };
        crowd.wait_for("handshakes", |tally| tally.up() >= row.clients)?;
        crowd.process.send(0, &Command::Verify(row.clients));
        crowd.wait_for("answers to pings", |tally| tally.answered() >= row.clients)?;
        crowd.measure(plan, plan.load(row))
    });
    system.down();
    measured
}

fn job(lab: &Lab, served: &Served) -> Job {
    let client = |client: &trafficspeed::system::wireguard::server::Client| Client {
        key: *client.private,
        inner: client.inner,
    };
    Job {
        server: served.address,
        server_key: served.key,
        clients: served.clients.iter().map(client).collect(),
        first: 0,
        first_port: Some(FIRST_PORT),
        sources: vec![Lab::client_v4(1).into()],
        far: served.far,
        mtu: served.mtu as u16,
        at_once: 8,
        campus: Some(lab.gateway().path()),
    }
}

/// The process that holds the clients, and the server's processes.
struct Crowd<'a> {
    process: Processes,
    gateway: Vec<u32>,
    interrupt: &'a Interrupt,
}

impl Crowd<'_> {
    /// Takes reports until `done`.
    fn wait_for(&self, what: &str, done: impl Fn(&Tally) -> bool) -> Result<Tally, String> {
        let (mut tally, deadline) = (Tally::new(0), Instant::now() + TIMEOUT);
        while !done(&tally) {
            if let Some(reason) = tally.broken.take() {
                return Err(reason);
            }
            if self.interrupt.is_set() || Instant::now() > deadline {
                return Err(format!("only {} {what} in {TIMEOUT:?}", tally.up().max(tally.answered())));
            }
            take_reports(&self.process, &mut tally, POLL);
        }
        Ok(tally)
    }

    fn pause(&self, seconds: f64) {
        let deadline = Instant::now() + Duration::from_secs_f64(seconds);
        while Instant::now() < deadline && !self.interrupt.is_set() {
            std::thread::sleep(POLL);
        }
    }

    fn measure(&mut self, plan: &WireGuardPlan, load: LoadPlan) -> Result<Figures, String> {
        self.process.send(0, &Command::Load(Some(load)));
        self.pause(plan.warmup_seconds);
        let mut meter = CpuMeter::new((self.gateway.clone(), self.process.ids()));
        self.counts()?;
        meter.read();
        self.pause(plan.seconds);
        let counts = self.counts()?;
        meter.read();
        figures(&counts, &meter.used().ok_or("no CPU time was read")?)
    }

    /// The counts since the last time.
    fn counts(&mut self) -> Result<Counts, String> {
        self.process.send(0, &Command::CountLoad);
        let tally = self.wait_for("reports", |tally| tally.loaded.is_some())?;
        tally.loaded.ok_or_else(|| "no report".to_owned())
    }
}

fn figures(counts: &Counts, used: &CpuUse) -> Result<Figures, String> {
    let goodput: f64 = counts.goodputs().iter().sum();
    if counts.arrived == 0 {
        return Err("no packet arrived".into());
    }
    if counts.strange > 0 {
        return Err(format!("{} packets were not authentic or of another flow", counts.strange));
    }
    let per_gbit = |cpu_seconds: f64| cpu_seconds / used.seconds * 1e9 / goodput;
    Ok(Figures {
        // The caller knows it.
        round: 0,
        goodput,
        packets_per_second: counts.arrived as f64 * 1e9 / counts.took_ns.max(1) as f64,
        server_seconds_per_gbit: per_gbit(used.gateway),
        server_cores: used.gateway / used.seconds,
        load_seconds_per_gbit: per_gbit(used.clients),
        lost_percent: counts.lost_percent(),
        reordered: counts.reordered,
        delay_ms: counts.delay_ms,
        steal_percent: used.steal_percent(),
        foreign_percent: used.foreign_percent(),
    })
}
