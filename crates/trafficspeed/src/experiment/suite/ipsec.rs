//! Experiment 2: what authentication and encryption cost streams, transactions, a loaded CPU and
//! live video.
//!
//! The original's measurements (KAME IPsec, 1999) with today's equivalents: no protection,
//! authentication only, encryption with authentication; IPv4 and IPv6 inside. Its authors left open
//! how the results depend on key length, payload size, MTU and rate; those are the sweeps.

use std::time::Duration;

use super::{Case, Quantity, Stage, SuiteOptions, SuitePlan};
use crate::experiment::generate::Search;
use crate::experiment::pair_run::Times;
use crate::lab::LinkSettings;
use crate::load::exchange::Exchange;
use crate::load::message::Messages;
use crate::load::task::{Protocol, Sockets, Task};
use crate::load::tcp::{Job, Shape, Way};
use crate::system::{Cipher, Kind, Subject};

/// The ciphers in the order of the report: no protection first, then what protects more.
pub const CIPHERS: [Cipher; 6] = [
    Cipher::None,
    Cipher::AuthOnly,
    Cipher::Aes128Gcm,
    Cipher::Aes256Gcm,
    Cipher::ChaCha20Poly1305,
    Cipher::Aes256CbcHmacSha256,
];
/// Socket buffers of the original's TCP streams.
const WINDOWS: [u32; 2] = [57_344, 32_768];
/// UDP at the highest rate that is carried.
pub const UDP_SECTION: &str = "UDP stream, highest rate with at most 0.1 % lost";
/// The loss up to which a rate counts as carried, in percent.
pub(super) const ALLOWED_LOSS: f64 = 0.1;
/// The original's live video: payload in bit/s, and bytes of each datagram.
const VIDEO_RATE: u64 = 13_000_000;
const VIDEO_PAYLOAD: u32 = 500;
/// Bytes of a datagram whose rate is swept.
const RATE_PAYLOAD: u32 = 1_200;

/// An open question of the original.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sweep {
    /// How throughput and loss depend on the payload of datagrams.
    Payload,
    /// How throughput depends on the MTU of the links.
    Mtu,
    /// How loss and delay depend on the rate.
    Rate,
}

/// A part of the original's measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SuitePart {
    /// TCP streams.
    Stream,
    /// UDP at the highest rate without loss.
    Datagram,
    /// Requests and responses.
    Transaction,
    /// One TCP transfer over time, on an idle machine and with CPU hogs.
    Time,
    /// Live video, on an idle machine and with CPU hogs.
    Video,
}

/// The user's choices.
#[derive(Clone, Debug)]
pub struct Options {
    /// The links are those without the sweep of their MTU.
    pub suite: SuiteOptions,
    /// Few short measurements instead of many long ones.
    pub quick: bool,
    /// The parts of the original.
    pub parts: Vec<SuitePart>,
    pub sweeps: Vec<Sweep>,
    /// CPU hogs of the loaded measurements.
    pub hogs: u32,
    /// The one IP version of the measured connections; both, or what the original had, if absent.
    pub ip: Option<u8>,
}

pub fn plan(options: &Options) -> SuitePlan {
    let suite = &options.suite;
    let stage = |subject| suite.stage(subject, cases(options, subject));
    let mut stages: Vec<Stage> = suite.plain_and_subjects().into_iter().map(stage).collect();
    if suite.control {
        stages.extend(Stage::control(&stages));
    }
    if options.sweeps.contains(&Sweep::Mtu) {
        stages.extend(mtu_stages(options));
    }
    let about = format!(
        "What authentication and encryption cost streams, transactions, a loaded CPU and live video; each \
         measurement {} s after {} s of warm-up.",
        suite.times.duration.as_secs_f64(),
        suite.times.warmup.as_secs_f64()
    );
    SuitePlan { await_load: !options.quick, ..suite.plan("ipsec", about, stages) }
}

fn cases(options: &Options, subject: Subject) -> Vec<Case> {
    let versions = options.ip.map_or(vec![4, 6], |ip| vec![ip]);
    let all_versions =
        |part: fn(&Options, u8) -> Vec<Case>| versions.iter().flat_map(|&ip| part(options, ip)).collect();
    let part = |part: &SuitePart| match part {
        SuitePart::Stream => all_versions(streams),
        SuitePart::Datagram => all_versions(datagrams),
        SuitePart::Transaction => all_versions(transactions),
        SuitePart::Time => over_time(options),
        SuitePart::Video => video(options),
    };
    let mut cases: Vec<Case> = options.parts.iter().flat_map(part).collect();
    // The sweeps have only those ciphers that show what protection costs at all.
    if subject.kind == Kind::None
        || matches!(subject.cipher, Cipher::None | Cipher::AuthOnly | Cipher::Aes256Gcm)
    {
        if options.sweeps.contains(&Sweep::Payload) {
            cases.extend(payloads(options));
        }
        if options.sweeps.contains(&Sweep::Rate) {
            cases.extend(rates(options));
        }
    }
    cases
}

/// Measures at the highest rate that is carried. What a sender that floods the path gets through is
/// what its queues happen to drop, often next to nothing, and no figure of what the path carries.
fn searched(options: &Options, case: Case) -> Case {
    let (resolution, trial_seconds) = if options.quick { (0.05, 0.4) } else { (0.02, 2.0) };
    let trial_seconds = Some(options.suite.times.duration.as_secs_f64().min(trial_seconds));
    Case { search: Some(Search { allowed_percent: ALLOWED_LOSS, resolution, trial_seconds }), ..case }
}

fn bulk(write_bytes: u32, window: Option<u32>) -> Task {
    Task::Bulk(Job { write_bytes, shape: Shape { way: Way::Forward, window, mss: None }, ..Job::default() })
}

fn messages(protocol: Protocol, length: u32, bits_per_second: Option<u64>, window: Option<u32>) -> Messages {
    let sockets = Sockets { window, ..Sockets::default() };
    let streams = 1;
    Messages { protocol, streams, length, bits_per_second, sockets, ..Messages::default() }
}

fn streams(options: &Options, ip: u8) -> Vec<Case> {
    let name = |buffers: &str| format!("IPv{ip}, {buffers}");
    let section = "TCP stream";
    let shown = [Quantity::Throughput];
    let mut cases: Vec<Case> = WINDOWS
        .iter()
        .map(|window| {
            let name = name(&format!("socket buffers of {window} bytes"));
            options.suite.case(section, name, bulk(4_096, Some(*window)), ip, &shown)
        })
        .collect();
    let name = name("the kernel's buffers");
    cases.push(options.suite.case(section, name, bulk(256 * 1024, None), ip, &shown));
    cases
}

fn datagrams(options: &Options, ip: u8) -> Vec<Case> {
    let one = |length: u32| {
        let name = format!("IPv{ip}, datagrams of {length} bytes");
        let task = Task::Messages(messages(Protocol::Udp, length, None, None));
        let shown = [Quantity::Throughput, Quantity::Packets, Quantity::Loss];
        searched(options, options.suite.case(UDP_SECTION, name, task, ip, &shown))
    };
    [4_096, 1_024].map(one).to_vec()
}

fn transactions(options: &Options, ip: u8) -> Vec<Case> {
    let one = |(protocol, word, request, response)| {
        let sockets = Sockets::default();
        let task = Task::Exchange(Exchange { protocol, request, response, sockets, ..Exchange::default() });
        let name = format!("IPv{ip}, {word} {request}/{response} bytes");
        let shown = [Quantity::Transactions, Quantity::RoundTrip];
        options.suite.case("Request and response", name, task, ip, &shown)
    };
    [(Protocol::Tcp, "TCP", 1, 1), (Protocol::Udp, "UDP", 1, 1), (Protocol::Udp, "UDP", 516, 4)]
        .map(one)
        .to_vec()
}

/// One measurement on an idle machine and with CPU hogs.
fn idle_and_loaded(options: &Options, idle: Case) -> Vec<Case> {
    let seconds = idle.times.duration.as_secs_f64() / 40.0;
    let interval = Duration::from_secs_f64(seconds.clamp(0.02, 1.0));
    let times = Times { interval, ..idle.times };
    let named = |words: &str| format!("{}, {words}", idle.name);
    let loaded = Case { name: named("with CPU hogs"), hogs: options.hogs, times, ..idle.clone() };
    vec![Case { name: named("idle machine"), times, ..idle }, loaded]
}

fn over_time(options: &Options) -> Vec<Case> {
    let ip = options.ip.unwrap_or(4);
    let task = Task::Messages(messages(Protocol::Tcp, 8_192, None, Some(32_768)));
    let shown = [
        Quantity::Throughput,
        Quantity::Delay,
        Quantity::Delay99,
        Quantity::Jitter,
        Quantity::Variation50,
        Quantity::Variation95,
        Quantity::Variation99,
    ];
    let name = format!("IPv{ip}, messages of 8192 bytes, socket buffers of 32768");
    idle_and_loaded(options, options.suite.case("One TCP transfer over time", name, task, ip, &shown))
}

fn video(options: &Options) -> Vec<Case> {
    let ip = options.ip.unwrap_or(6);
    let work = messages(Protocol::Udp, VIDEO_PAYLOAD, Some(VIDEO_RATE), None);
    let task = Task::Messages(work.when_due());
    let shown = [
        Quantity::Throughput,
        Quantity::Packets,
        Quantity::Delivered,
        Quantity::Loss,
        Quantity::Jitter,
        Quantity::Variation50,
        Quantity::Variation95,
        Quantity::Variation99,
        Quantity::Delay99,
    ];
    let name = format!("IPv{ip}, {} Mbit/s in datagrams of {VIDEO_PAYLOAD} bytes", VIDEO_RATE / 1_000_000);
    idle_and_loaded(options, options.suite.case("Live video over UDP", name, task, ip, &shown))
}

fn payloads(options: &Options) -> Vec<Case> {
    let ip = options.ip.unwrap_or(4);
    let few: &[u32] = &[64, 512, 1_400];
    let many: &[u32] =
        &[32, 64, 128, 256, 384, 512, 640, 768, 896, 1_024, 1_152, 1_280, 1_400, 2_800, 8_000, 32_000];
    let one = |length: &u32| {
        let task = Task::Messages(messages(Protocol::Udp, *length, None, None));
        let shown = [Quantity::Throughput, Quantity::Packets, Quantity::Loss];
        let name = format!("IPv{ip}, {length} bytes");
        searched(options, options.suite.case("Sweep: payload of datagrams", name, task, ip, &shown))
    };
    if options.quick { few } else { many }.iter().map(one).collect()
}

fn rates(options: &Options) -> Vec<Case> {
    let ip = options.ip.unwrap_or(4);
    let few: &[u64] = &[50, 500];
    let many: &[u64] = &[1, 10, 50, 100, 200, 300, 400, 500, 700, 1_000, 1_500, 2_000];
    let one = |mbit: &u64| {
        // Sent alike at every rate, as one curve needs: paced, since no sender sends each message
        // of the highest when it is due.
        let task = Task::Messages(messages(Protocol::Udp, RATE_PAYLOAD, Some(mbit * 1_000_000), None));
        let shown = [Quantity::Throughput, Quantity::Delivered, Quantity::Loss, Quantity::Delay99];
        let name = format!("IPv{ip}, {mbit} Mbit/s in datagrams of {RATE_PAYLOAD} bytes");
        options.suite.case("Sweep: rate", name, task, ip, &shown)
    };
    if options.quick { few } else { many }.iter().map(one).collect()
}

fn mtu_stages(options: &Options) -> Vec<Stage> {
    let few: &[u32] = &[1_280, 9_000];
    let many: &[u32] = &[1_280, 1_400, 1_500, 2_000, 3_000, 4_000, 6_000, 9_000];
    let mut suite = options.suite.clone();
    suite.ciphers.retain(|cipher| *cipher == Cipher::Aes256Gcm);
    let mut stages = Vec::new();
    for &mtu in if options.quick { few } else { many } {
        suite.links = LinkSettings { mtu, ..suite.links };
        let name = format!("IPv4, links with an MTU of {mtu}");
        let case = suite.case("Sweep: MTU", name, bulk(256 * 1024, None), 4, &[Quantity::Throughput]);
        let subjects = suite.plain_and_subjects().into_iter();
        stages.extend(subjects.map(|subject| suite.stage(subject, vec![case.clone()])));
    }
    stages
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    fn options(quick: bool) -> Options {
        with_ciphers(quick, false, &CIPHERS)
    }

    fn with_ciphers(quick: bool, control: bool, ciphers: &[Cipher]) -> Options {
        Options {
            suite: SuiteOptions { ciphers: ciphers.to_vec(), ..super::super::options::sample(control) },
            quick,
            parts: SuitePart::value_variants().to_vec(),
            sweeps: vec![Sweep::Payload, Sweep::Mtu, Sweep::Rate],
            hogs: 2,
            ip: None,
        }
    }

    #[test]
    fn every_part_of_the_original_is_there_for_every_cipher_and_both_ip_versions() {
        let plan = plan(&Options { sweeps: Vec::new(), ..options(false) });
        assert_eq!(plan.stages.len(), 1 + CIPHERS.len());
        for stage in &plan.stages {
            let has = |section: &str, ip: u8| {
                stage.cases.iter().any(|case| case.section == section && case.ip == ip)
            };
            for section in ["TCP stream", UDP_SECTION, "Request and response"] {
                assert!(has(section, 4) && has(section, 6), "{section}");
            }
            assert!(has("One TCP transfer over time", 4) && has("Live video over UDP", 6));
            assert_eq!(stage.cases.iter().filter(|case| case.hogs == 2).count(), 2);
        }
    }

    #[test]
    fn the_control_is_one_cipher_measured_again_after_all_others_but_in_no_sweep() {
        let plan = plan(&with_ciphers(false, true, &CIPHERS));
        let again: Vec<&Stage> = plan.stages.iter().filter(|stage| stage.subject.again).collect();
        let [control] = again[..] else { panic!("{} controls", again.len()) };
        assert_eq!(control.label(), "aes-256-gcm (again)");
        assert!(
            control.cases.len() > 10 && control.cases.iter().all(|case| !case.section.starts_with("Sweep"))
        );
        let only = with_ciphers(true, true, &[Cipher::AuthOnly]);
        let labels: Vec<String> = super::plan(&only).stages.iter().map(Stage::label).collect();
        assert_eq!(labels[..3], ["plain routing", "auth-only", "auth-only (again)"]);
    }

    #[test]
    fn no_figure_is_of_a_flood_over_udp() {
        let plan = plan(&options(true));
        let mut searched = 0;
        for case in plan.stages.iter().flat_map(|stage| &stage.cases) {
            let Task::Messages(work) = &case.task else { continue };
            if work.protocol == Protocol::Udp && work.bits_per_second.is_none() {
                assert!(case.search.is_some(), "{}", case.name);
                searched += 1;
            }
        }
        assert!(searched > 30, "{searched}");
    }

    #[test]
    fn video_is_open_loop_and_the_rate_sweep_is_paced() {
        let plan = plan(&options(false));
        let open = |section: &str| {
            let cases =
                plan.stages.iter().flat_map(|stage| &stage.cases).filter(|case| case.section == section);
            let open =
                cases.map(|case| matches!(&case.task, Task::Messages(work) if work.open_loop.is_some()));
            open.collect::<Vec<_>>()
        };
        assert!(
            !open("Live video over UDP").is_empty() && open("Live video over UDP").iter().all(|open| *open)
        );
        assert!(!open("Sweep: rate").is_empty() && open("Sweep: rate").iter().all(|open| !open));
    }

    #[test]
    fn sweeps_change_one_thing_each() {
        let plan = plan(&options(false));
        let mtus: Vec<u32> = plan.stages.iter().map(|stage| stage.links.mtu).collect();
        assert!(mtus.contains(&1_280) && mtus.contains(&9_000));
        let sections = |name: &str| {
            let all = plan.stages.iter().flat_map(|stage| &stage.cases);
            all.filter(|case| case.section == name).count()
        };
        assert_eq!(sections("Sweep: payload of datagrams"), 4 * 16);
        assert_eq!(sections("Sweep: rate"), 4 * 12);
        assert_eq!(sections("Sweep: MTU"), 2 * 8);
    }
}
