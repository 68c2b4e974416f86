//! The capacity of a gateway: what active sessions cost it as they grow, whether each gets its
//! part, and the delay.
//!
//! Real clients would need most of a machine that they share with the gateway. So one process holds
//! all sessions and makes their traffic as cheaply as it can (`vpnd_swarm::load`): sessions send to
//! each other in pairs through the gateway, or to and from a socket on the gateway's own machine,
//! which stands for the campus. Real clients with TCP connections can be measured on the same
//! gateway, to see that the load is a fair stand-in: the figure to compare is the gateway's
//! CPU time for each Gbit. All cases take turns within each round, every second round from the last
//! to the first, so that drift of the machine hits all alike and no case gains by its place. The
//! case that costs are compared with is measured a second time in each round (A/A): a ratio of two
//! cases means something only beyond that of this one to itself.

pub mod results;
pub mod words;

use std::time::{Duration, Instant};

use vpnd_swarm::load::{Counts, Direction, Plan as LoadPlan};
use vpnd_swarm::message::{Command, Job};
use vpnd_swarm::processes::Processes;
use vpnd_swarm::tally::Tally;

use super::held_sessions::{
    self, SessionsError, add_users, holder, job, real_work, take_reports, with_gateway,
};
use results::{CapacityResults, Case, Figures, Row, Traffic, base_sessions};
use trafficspeed::clock;
use trafficspeed::experiment::cpu::CpuMeter;
use trafficspeed::experiment::environment::Environment;
use trafficspeed::experiment::outcome::CpuUse;
use trafficspeed::experiment::progress::Progress;
use trafficspeed::experiment::traffic::{TrafficPlan, run_up};
use trafficspeed::experiment::turns::order;
use trafficspeed::interrupt::Interrupt;
use trafficspeed::lab::cpu_limit::{self, CpuLimit};
use trafficspeed::lab::device::{Counters, Traffic as Received};
use trafficspeed::lab::{Lab, LinkSettings};
use trafficspeed::stats::{Spread, jain};
use trafficspeed::system::vpnd::{Room, Vpnd};
use trafficspeed::system::{ClientAddress, Programs, Subject, System, SystemInfo};
use words::{name, row_name};

/// Bytes on their way at most: so few that no queue of a gateway without a limit overflows.
const IN_FLIGHT: u64 = 2 << 20;
/// With a limited CPU. The scheduler lets it use up several periods' quota at once and then
/// stand still, for 4 ms each with 250 ticks a second, so there has to be work for as long; and
/// this little is what the queues of one shard hold, should all sessions be there.
const LIMITED_IN_FLIGHT: u64 = 6 << 20;
/// Short bursts take more room there than they have bytes: only a few packets fit.
const LIMITED_BURSTS: u64 = 600;
/// About the bytes of a packet that is as long as the tunnel takes.
const FULL_PACKET: u16 = 1_412;
/// Time that the coordinator waits for a report before it looks at the clock.
const POLL: Duration = Duration::from_millis(20);
/// Time for the process to report its counts.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Users that the sessions belong to.
const USERS: u32 = 16;
/// Logins under way at once.
const AT_ONCE: u32 = 200;
/// From logins to the first traffic, and between two cases: what is under way arrives.
const SETTLE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct CapacityPlan {
    /// vpnd with its cipher and priority.
    pub subject: Subject,
    pub cases: Vec<Case>,
    /// Bytes on their way at most, if not the usual.
    pub in_flight: Option<u64>,
    /// Merged runs of a flow for each one that is authenticated.
    pub sample: u32,
    pub seconds: f64,
    pub warmup_seconds: f64,
    pub repeats: u32,
    /// Time for all sessions to come up.
    pub login_timeout: Duration,
    pub programs: Programs,
}

impl CapacityPlan {
    fn links(&self) -> LinkSettings {
        // Any will do: each case sets its own.
        let gateway_cpu = self.cases.iter().find_map(|case| case.gateway_cpu());
        LinkSettings { gateway_cpu, ..LinkSettings::default() }
    }

    /// The case that is measured twice in each round: the first of those that costs are compared
    /// with.
    fn control(&self) -> Option<Case> {
        let base = base_sessions(self.cases.iter().copied());
        let is_base = |case: &&Case| case.traffic().is_some() && Some(case.sessions()) == base;
        self.cases.iter().find(is_base).or_else(|| self.cases.first()).copied()
    }

    /// A row for each case, and a last one for the control.
    fn rows(&self) -> Vec<Row> {
        let row = |case: Case, again: bool| {
            let in_flight = case.traffic().map(|traffic| self.in_flight(traffic, case.gateway_cpu()));
            Row { case, again, in_flight, runs: Vec::new() }
        };
        let cases = self.cases.iter().map(|&case| row(case, false));
        cases.chain(self.control().map(|case| row(case, true))).collect()
    }

    fn most(&self, of: impl Fn(&Case) -> Option<u32>) -> u32 {
        self.cases.iter().filter_map(of).max().unwrap_or(0)
    }

    /// Sessions of the process that makes traffic.
    fn sessions(&self) -> u32 {
        self.most(|case| match case {
            Case::Made { sessions, traffic, .. } => Some(sessions + traffic.calls),
            Case::Real { .. } => None,
        })
    }

    fn real_clients(&self) -> u32 {
        self.most(|case| match case {
            Case::Made { .. } => None,
            Case::Real { clients, .. } => Some(*clients),
        })
    }

    /// Bytes on their way at most of such traffic to a gateway with this limit.
    fn in_flight(&self, traffic: Traffic, limit: Option<CpuLimit>) -> u64 {
        let packet = u64::from(traffic.packet.unwrap_or(FULL_PACKET));
        let bursts = LIMITED_BURSTS * u64::from(traffic.burst) * packet;
        let usual = if limit.is_some() { bursts.min(LIMITED_IN_FLIGHT) } else { IN_FLIGHT };
        self.in_flight.unwrap_or(usual)
    }

    fn load(&self, sessions: u32, traffic: Traffic, limit: Option<CpuLimit>) -> LoadPlan {
        let Traffic { direction, packet, burst, rate, small, greedy, calls, acknowledge, ack_delay_ms } =
            traffic;
        let (in_flight, sample) = (self.in_flight(traffic, limit), self.sample);
        LoadPlan {
            sessions,
            direction,
            packet,
            burst,
            in_flight,
            sample,
            rate,
            small,
            greedy,
            calls,
            acknowledge,
            ack_delay_ms,
        }
    }

    fn system(&self) -> Vpnd {
        let room = Room {
            clients: self.real_clients() as usize,
            sessions: self.sessions() + self.real_clients(),
            per_user: self.sessions().div_ceil(USERS).max(1),
            rekey_after_s: None,
        };
        Vpnd::with_room(self.programs.clone(), self.subject, room)
    }
}

/// Refuses what this machine can't run, before anything is changed.
///
/// # Errors
/// The first thing that is missing.
pub fn check(plan: &CapacityPlan) -> Result<(), SessionsError> {
    held_sessions::check(plan.links(), &plan.system())
}

/// Runs the whole measurement.
///
/// # Errors
/// If lab, gateway or process can't be had. Sessions that don't come up are a problem of the
/// results.
pub fn run(
    plan: &CapacityPlan,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<CapacityResults, SessionsError> {
    let lab = (plan.real_clients() + 1, plan.links());
    with_gateway(lab, plan.system(), interrupt, |lab, system, addresses| {
        let mut measurement = Measurement {
            plan,
            lab,
            system,
            addresses,
            process: Processes::default(),
            results: begin(plan),
            progress,
            interrupt,
        };
        measurement.run()?;
        Ok(measurement.results)
    })
}

fn begin(plan: &CapacityPlan) -> CapacityResults {
    CapacityResults {
        subject: plan.subject,
        busy_poll_us: plan.programs.busy_poll_us(),
        sessions: plan.sessions(),
        sample: plan.sample,
        seconds: plan.seconds,
        repeats: plan.repeats,
        // Limits are the cases' own.
        environment: Environment::read(Some(LinkSettings { gateway_cpu: None, ..plan.links() })),
        facts: SystemInfo::default(),
        rows: plan.rows(),
        interrupted: false,
        problems: Vec::new(),
    }
}

/// One measurement under way.
struct Measurement<'a> {
    plan: &'a CapacityPlan,
    lab: &'a Lab,
    system: &'a mut Vpnd,
    addresses: Vec<ClientAddress>,
    /// The one that makes traffic.
    process: Processes,
    results: CapacityResults,
    progress: &'a Progress,
    interrupt: &'a Interrupt,
}

impl Measurement<'_> {
    fn run(&mut self) -> Result<(), SessionsError> {
        self.results.facts = self.system.facts().clone();
        // Logins take the gateway most of its time, and are not what is measured.
        let lifted = self.limit(None);
        self.results.problems.extend(lifted.err());
        if self.plan.sessions() > 0 && !self.over() {
            self.log_in()?;
        }
        for round in 1..=self.plan.repeats {
            for number in order(0..self.results.rows.len(), round) {
                if self.over() {
                    break;
                }
                self.measure(number, round);
            }
        }
        self.results.interrupted = self.interrupt.is_set();
        Ok(())
    }

    /// Nothing more can be measured.
    fn over(&self) -> bool {
        self.interrupt.is_set() || !self.results.problems.is_empty()
    }

    fn log_in(&mut self) -> Result<(), SessionsError> {
        let users = add_users(self.system, USERS)?;
        let namespace = self.lab.clients().last().expect("there is one beside those of real clients");
        let count = self.plan.sessions();
        let campus = Some(self.lab.gateway().path());
        let job = Job { own_sockets: true, campus, ..job(self.system, (0, count), AT_ONCE, &users)? };
        self.process.start(holder(namespace)?, &Command::Open(job))?;
        let (mut tally, deadline) = (Tally::new(clock::now_ns()), Instant::now() + self.plan.login_timeout);
        while tally.up() < count && tally.broken.is_none() && tally.gave_up() == 0 && !self.late(deadline) {
            take_reports(&self.process, &mut tally, POLL);
            self.progress.live(&format!("{} of {count} sessions logged in", tally.up()));
        }
        if tally.up() < count && !self.interrupt.is_set() {
            let reason = tally.broken.take().unwrap_or_else(|| failures(&tally));
            self.results.problems.push(format!("{} of {count} sessions are up: {reason}", tally.up()));
        }
        self.pause(SETTLE);
        Ok(())
    }

    fn late(&self, deadline: Instant) -> bool {
        self.interrupt.is_set() || Instant::now() > deadline
    }

    fn pause(&self, time: Duration) {
        let deadline = Instant::now() + time;
        while !self.late(deadline) {
            std::thread::sleep(POLL);
        }
    }

    fn measure(&mut self, number: usize, round: u32) {
        let (case, title) = (self.results.rows[number].case, row_name(&self.results.rows[number]));
        let before = self.received();
        let measured = match case {
            Case::Made { sessions, traffic, gateway_cpu } => {
                let load = self.plan.load(sessions, traffic, gateway_cpu);
                let woken = self.limit(None).and_then(|()| self.wake(load.all_sessions() as u32));
                woken.and_then(|()| self.limit(gateway_cpu)).and_then(|()| self.made(load, gateway_cpu))
            }
            Case::Real { clients, gateway_cpu } => {
                self.limit(gateway_cpu).and_then(|()| self.real(clients, gateway_cpu))
            }
        };
        match measured {
            Ok(mut figures) => {
                let received = before.zip(self.received()).map(|(before, after)| after.since(before));
                figures.round = round;
                figures.received_at_once = received.and_then(Received::bytes_each);
                self.progress.note(&format!(
                    "{title:<44} round {round}: {:.2} Gbit/s, gateway {:.4} CPU s/Gbit",
                    figures.goodput / 1e9,
                    figures.gateway_seconds_per_gbit
                ));
                self.results.rows[number].runs.push(figures);
            }
            // Half a measurement is none.
            Err(_) if self.interrupt.is_set() => {}
            Err(reason) => self.results.problems.push(format!("{title}: {reason}")),
        }
    }

    /// Bytes that the links have brought to the gateway until now.
    fn received(&self) -> Option<Received> {
        Counters::received_over_links(self.lab.gateway()).ok()
    }

    /// Gives the gateway's programs what this case leaves them of the CPU.
    fn limit(&self, limit: Option<CpuLimit>) -> Result<(), String> {
        if self.plan.links().gateway_cpu.is_none() {
            return Ok(());
        }
        cpu_limit::change(self.lab.gateway().name(), limit).map_err(|error| error.to_string())
    }

    /// Waits until the first `count` sessions have keys: those of sessions that were not used for
    /// minutes have run out. The others are left alone, since a session in use renews its keys
    /// later, while something else is measured.
    fn wake(&mut self, count: u32) -> Result<(), String> {
        self.process.send(0, &Command::Verify(count));
        let (mut tally, deadline) = (Tally::new(clock::now_ns()), Instant::now() + self.plan.login_timeout);
        while tally.answered() < count && tally.broken.is_none() && !self.late(deadline) {
            take_reports(&self.process, &mut tally, POLL);
        }
        if tally.answered() < count {
            return Err(format!("{} of {count} sessions answered", tally.answered()));
        }
        Ok(())
    }

    fn made(&mut self, load: LoadPlan, limit: Option<CpuLimit>) -> Result<Figures, String> {
        self.process.send(0, &Command::Load(Some(load)));
        self.pause(Duration::from_secs_f64(self.plan.warmup_seconds));
        let gateway = self.system.processes().0;
        let mut meter = CpuMeter::new((gateway, self.process.ids()));
        let polled = self.polled();
        self.counts()?;
        meter.read();
        self.pause(Duration::from_secs_f64(self.plan.seconds));
        let counts = self.counts()?;
        meter.read();
        // It takes longer than the measurement, so what counts is its share of the time.
        let polling = polled.zip(self.polled()).map(|((from, before), (to, after))| {
            (after - before).max(0.0) / (to - from).as_secs_f64().max(1e-3)
        });
        self.process.send(0, &Command::Load(None));
        self.pause(SETTLE);
        let used = meter.used().ok_or("no CPU time was read")?;
        figures(&load, &counts, used, (limit, polling))
    }

    /// Seconds that the gateway has polled until now, if it does.
    fn polled(&self) -> Option<(Instant, f64)> {
        self.plan.programs.busy_poll_us().filter(|microseconds| *microseconds > 0)?;
        let counters = self.system.held()?.counters;
        Some((Instant::now(), *counters.polling.get("time_ms")? as f64 / 1e3))
    }

    /// The counts since the last time.
    fn counts(&mut self) -> Result<Counts, String> {
        self.process.send(0, &Command::CountLoad);
        let (mut tally, deadline) = (Tally::new(clock::now_ns()), Instant::now() + REPORT_TIMEOUT);
        while tally.loaded.is_none() && tally.broken.is_none() && !self.late(deadline) {
            take_reports(&self.process, &mut tally, POLL);
        }
        match (tally.loaded, tally.broken) {
            (_, Some(reason)) => Err(reason),
            (Some(counts), None) => Ok(counts),
            (None, None) => Err("the sessions' process does not report".into()),
        }
    }

    fn real(&self, clients: u32, limit: Option<CpuLimit>) -> Result<Figures, String> {
        let plan = TrafficPlan {
            subjects: vec![self.plan.subject],
            clients: vec![clients],
            settings: real_work(self.plan.seconds, self.plan.warmup_seconds, 1),
            links: self.plan.links(),
            programs: self.plan.programs.clone(),
        };
        let addresses = &self.addresses[..clients as usize];
        let gateway: (_, &dyn System, &[_]) = (self.lab, &*self.system, addresses);
        let title = name(Case::Real { clients, gateway_cpu: limit });
        let run = run_up(&plan, gateway, &title, &Progress::new(true), self.interrupt);
        if !run.is_whole() || !run.problems().is_empty() {
            return Err(run.problems().join("; "));
        }
        let (gateway, all) = run.seconds_per_gbit().ok_or("no CPU time was read")?;
        let cores = run.cpu.map_or(0.0, |cpu| cpu.gateway / cpu.seconds);
        Ok(Figures {
            goodput: run.goodput(),
            gateway_seconds_per_gbit: gateway,
            gateway_wakes_per_gbit: run.gateway_wakes_per_gbit().unwrap_or(0.0),
            gateway_cores: cores,
            quota_percent: quota_percent(cores, limit),
            load_seconds_per_gbit: all - gateway,
            load_wakes_per_gbit: run.client_wakes_per_gbit().unwrap_or(0.0),
            fairness: run.pair_fairness(),
            steal_percent: run.steal_percent(),
            foreign_percent: run.foreign_percent(),
            ..Figures::default()
        })
    }
}

fn failures(tally: &Tally) -> String {
    let failures = tally.storm().failures;
    let words: Vec<String> =
        failures.into_iter().map(|(reason, count)| format!("{count} times {reason}")).collect();
    if words.is_empty() { "the others did not come up in time (--patience)".into() } else { words.join("; ") }
}

/// Share of its quota that a gateway used.
fn quota_percent(cores: f64, limit: Option<CpuLimit>) -> Option<f64> {
    limit.map(|limit| 100.0 * cores / limit.cores())
}

/// The figures of made traffic at a gateway with this limit, which polled for this share of the
/// time.
fn figures(
    load: &LoadPlan,
    counts: &Counts,
    used: CpuUse,
    (limit, polling): (Option<CpuLimit>, Option<f64>),
) -> Result<Figures, String> {
    let (goodputs, arrived) = (counts.goodputs(), counts.arrived);
    let goodput: f64 = goodputs.iter().sum();
    if arrived == 0 {
        return Err("no packet arrived".into());
    }
    if counts.strange > 0 {
        return Err(format!("{} packets were not authentic or of another flow", counts.strange));
    }
    if counts.reordered > 0 {
        return Err(format!("{} of {} opened packets came out of order", counts.reordered, counts.opened));
    }
    // The two windows are bounded by different processes; rates are what they have in common.
    let per_gbit = |cpu_seconds: f64| cpu_seconds / used.seconds * 1e9 / goodput;
    let gbit = goodput / 1e9 * counts.took_ns as f64 / 1e9;
    let cores = used.gateway / used.seconds;
    Ok(Figures {
        // The caller knows it.
        round: 0,
        goodput,
        packet: Some(counts.packet),
        packets_per_second: Some(arrived as f64 * 1e9 / counts.took_ns as f64),
        gateway_seconds_per_gbit: per_gbit(used.gateway),
        // Known to the measuring program, as of real clients.
        received_at_once: None,
        gateway_wakes_per_gbit: per_gbit(used.gateway_wakes as f64),
        gateway_cores: cores,
        quota_percent: quota_percent(cores, limit),
        polling_seconds_per_gbit: polling.map(|share| share * 1e9 / goodput),
        load_seconds_per_gbit: per_gbit(used.clients),
        load_wakes_per_gbit: per_gbit(used.client_wakes as f64),
        fairness: jain(&goodputs),
        greedy_share: (load.greedy > 1).then(|| greedy_share(&goodputs)).flatten(),
        delivered_percent: load.rate.map(|rate| delivered_percent(load, rate, counts)),
        calls: counts.calls.clone(),
        acknowledgements: counts.acknowledgements,
        acknowledgements_per_gbit: counts.acknowledgements.map(|counts| counts.arrived as f64 / gbit),
        lost_percent: Some(counts.lost_percent()),
        delay_ms: Some(counts.delay_ms),
        opened: Some((counts.opened, arrived)),
        refused: counts.refused,
        steal_percent: used.steal_percent(),
        foreign_percent: used.foreign_percent(),
    })
}

/// Throughput of the first one, relative to the median of the others.
fn greedy_share(goodputs: &[f64]) -> Option<f64> {
    let (first, others) = goodputs.split_first()?;
    let others = Spread::of(others).filter(|others| others.median > 0.0)?;
    Some(first / others.median)
}

/// Share of what all flows were to send at this rate that arrived, percent.
fn delivered_percent(load: &LoadPlan, rate: u64, counts: &Counts) -> f64 {
    let flows = f64::from(load.sessions) * if load.direction == Direction::Both { 2.0 } else { 1.0 };
    let seconds = counts.took_ns as f64 / 1e9;
    let wanted = flows * rate as f64 * seconds / 8.0 / f64::from(counts.packet);
    100.0 * counts.arrived as f64 / wanted.max(1.0)
}

#[cfg(test)]
mod tests {
    use vpnd_swarm::load::AcknowledgementCounts;
    use vpnd_swarm::tally::Percentiles;

    use super::results::samples;
    use super::*;
    use trafficspeed::system::{Cipher, Kind};

    fn plan(cases: Vec<Case>) -> CapacityPlan {
        CapacityPlan {
            subject: Subject::new(Kind::Vpnd, Cipher::Auto),
            cases,
            in_flight: None,
            sample: 8,
            seconds: 1.0,
            warmup_seconds: 1.0,
            repeats: 2,
            login_timeout: Duration::from_secs(1),
            programs: Programs::default(),
        }
    }

    #[test]
    fn the_case_that_costs_are_compared_with_is_measured_twice_in_a_round() {
        let made = |sessions| Case::Made { sessions, traffic: samples::traffic(), gateway_cpu: None };
        let real = Case::Real { clients: 8, gateway_cpu: None };
        let turns = |cases: Vec<Case>, round| {
            let rows = order(plan(cases).rows(), round);
            rows.into_iter().map(|row| (row.case.sessions(), row.again)).collect::<Vec<_>>()
        };
        let cases = vec![real, made(2), made(8)];
        for round in [1, 2] {
            let mut shuffled = turns(cases.clone(), round);
            shuffled.sort_unstable();
            assert_eq!(shuffled, [(2, false), (8, false), (8, false), (8, true)]);
        }
        assert_eq!(plan(cases).control(), Some(made(8)), "real clients are no measure of the others");
        let sorted = |cases| {
            let mut turns = turns(cases, 1);
            turns.sort_unstable();
            turns
        };
        assert_eq!(sorted(vec![made(64), made(32)]), [(32, false), (32, true), (64, false)]);
        assert_eq!(sorted(vec![real]), [(8, false), (8, true)]);
    }

    fn load() -> LoadPlan {
        LoadPlan {
            sessions: 2,
            direction: Direction::Pairs,
            packet: None,
            burst: 1,
            in_flight: 1,
            sample: 1,
            rate: Some(2_000_000_000),
            small: 0,
            greedy: 3,
            calls: 0,
            acknowledge: 100,
            ack_delay_ms: 5,
        }
    }

    fn counts() -> Counts {
        Counts {
            took_ns: 2_000_000_000,
            packet: 1_052,
            arrived: 1_000_000,
            payloads: vec![750_000_000, 250_000_000],
            lost: 1_000_000,
            opened: 5,
            acknowledgements: Some(AcknowledgementCounts { arrived: 400, ..Default::default() }),
            delay_ms: Percentiles::default(),
            ..Counts::default()
        }
    }

    #[test]
    fn cpu_time_is_for_the_payload_that_arrived() {
        let used = CpuUse {
            gateway: 1.0,
            gateway_wakes: 80,
            clients: 0.5,
            client_wakes: 40,
            seconds: 2.0,
            ..CpuUse::default()
        };
        let figures = figures(&load(), &counts(), used, ("0.6".parse().ok(), Some(0.2))).unwrap();
        // Half a core for 4 Gbit/s, a fifth of the time of which it polled.
        assert!((figures.quota_percent.unwrap() - 83.3).abs() < 0.1, "{figures:?}");
        assert_eq!(figures.polling_seconds_per_gbit, Some(0.05));
        assert_eq!(figures.acknowledgements_per_gbit, Some(50.0));
        assert_eq!((figures.gateway_wakes_per_gbit, figures.greedy_share), (10.0, Some(3.0)));
        assert!((figures.load_wakes_per_gbit - 5.0).abs() < 1e-9);
        // 2 × 2 Gbit/s for 2 s are 950,570 packets.
        assert!((figures.delivered_percent.unwrap() - 105.2).abs() < 1e-3);
        assert_eq!((figures.goodput, figures.gateway_seconds_per_gbit), (4e9, 0.125));
        assert_eq!((figures.load_seconds_per_gbit, figures.lost_percent), (0.0625, Some(50.0)));
        assert_eq!((figures.fairness, figures.opened), (Some(0.8), Some((5, 1_000_000))));
    }

    #[test]
    fn packets_that_are_not_as_they_were_sent_spoil_a_measurement() {
        let used = CpuUse { seconds: 2.0, ..CpuUse::default() };
        for spoilt in [
            Counts { strange: 1, ..counts() },
            Counts { reordered: 1, ..counts() },
            Counts { arrived: 0, ..counts() },
        ] {
            assert!(figures(&load(), &spoilt, used, (None, None)).is_err(), "{spoilt:?}");
        }
    }
}
