//! `vpnd-stages`: measures each stage of vpnd's data path on this machine and prints the figures as
//! JSON.
//!
//! The stages of system calls are measured only between two network namespaces that the caller
//! names; nothing is made elsewhere. `trafficspeed model` is the caller that fits, predicts and
//! compares.

use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use serde::Serialize;
use vpnd_benches::devices::{self, Place};
use vpnd_benches::handover::{self, Arrangement};
use vpnd_benches::live::{self, Live, Traffic};
use vpnd_benches::sample::{Sampled, sample};
use vpnd_benches::shard::{self, Burst};
use vpnd_benches::stage::{Side, Stage};
use vpnd_benches::{aead, offload, packet, traffic};
use vpnd_crypto::backend::choose;
use vpnd_crypto::{Backend, Preference, Suite};

/// The form of the output; grows when a reader of an older form could misread it.
const FORM: u32 = 3;

/// Lengths of packets and of super-packets in packets, for the streams through whole shards.
const LIVE: [(usize, usize); 6] = [(1408, 48), (1408, 16), (1408, 6), (1408, 2), (700, 64), (700, 12)];
/// How often inline and handed-over crypto are compared.
const HAND_OVER_REPEATS: usize = 7;
/// How often a run that fails is tried.
const LIVE_ATTEMPTS: usize = 3;
/// Factor by which that takes longer than a stage.
const LIVE_FACTOR: u32 = 8;
/// The least: many round trips.
const LIVE_LEAST: Duration = Duration::from_millis(100);

/// Measures each stage of vpnd's data path on this machine and prints the figures as JSON.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Milliseconds for each stage and size.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    millis: u64,
    /// Cipher suites.
    #[arg(long, value_delimiter = ',', default_value = "aes-256-gcm,chacha20-poly1305,none")]
    suite: Vec<Suite>,
    /// The library of each suite, in their order; the fastest of those that are not named.
    #[arg(long, value_delimiter = ',')]
    backend: Vec<Preference>,
    /// How often each stream is carried through whole shards.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Carry these streams alone.
    #[arg(long)]
    streams_alone: bool,
    /// Where to measure the system calls.
    #[command(flatten)]
    place: Place,
    /// Be one end of a tunnel, for this program itself.
    #[arg(long, hide = true, value_name = "SPEC")]
    live_end: Option<String>,
}

#[derive(Serialize)]
struct Output {
    form: u32,
    /// Payload of each slice, in bytes; of the whole packet, with headers.
    mss: usize,
    mtu: usize,
    /// Slices of the longest super-packet.
    max_slices: usize,
    suites: Vec<SuiteOutput>,
    stages: Vec<Sampled>,
    handover: Vec<HandOverOutput>,
    live: Vec<Live>,
}

#[derive(Serialize)]
struct SuiteOutput {
    name: &'static str,
    backend: &'static str,
}

#[derive(Serialize)]
struct HandOverOutput {
    suite: &'static str,
    flows: usize,
    workers: usize,
    threads: usize,
    /// The median of all repetitions; the least and the most.
    bits_per_second: f64,
    range: [f64; 2],
    repeats: usize,
    cpu_ns_per_byte: f64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(spec) = &args.live_end {
        return live::serve(spec);
    }
    let time = Duration::from_millis(args.millis);
    let preferences = args.backend.iter().copied().chain(std::iter::repeat(Preference::Auto));
    let suites = args
        .suite
        .iter()
        .zip(preferences)
        .map(|(&suite, preference)| Ok((suite, choose(suite, preference)?.backend)));
    let suites: Vec<(Suite, Backend)> = suites.collect::<anyhow::Result<_>>()?;
    // Before anything takes time: what is missing is said at once.
    let stages = if args.streams_alone {
        Vec::new()
    } else {
        let devices = devices::stages(&args.place)?.unwrap_or_default();
        computed(&suites).into_iter().chain(devices).collect()
    };
    let live = live(&args.place, &suites, time, args.rounds)?;
    let handed_over = suites.iter().filter(|_| !args.streams_alone);
    let output = Output {
        form: FORM,
        mss: traffic::MSS,
        mtu: traffic::MTU,
        max_slices: traffic::MAX_SLICES,
        suites: suites.iter().map(|(s, b)| SuiteOutput { name: s.name(), backend: b.name() }).collect(),
        stages: stages.into_iter().map(|mut stage| sample(&mut stage, time)).collect(),
        handover: handed_over.flat_map(|&(suite, backend)| hand_over(suite, backend, time)).collect(),
        live,
    };
    serde_json::to_writer(std::io::stdout().lock(), &output).context("writing to standard output")?;
    println!();
    Ok(())
}

/// The stages that need no kernel.
fn computed(suites: &[(Suite, Backend)]) -> Vec<Stage> {
    let mut stages = Vec::new();
    for len in traffic::PACKET_LENS {
        stages.extend(packet::stages(len));
        for &(suite, backend) in suites {
            stages.extend([aead::seal(suite, backend, len), aead::open(suite, backend, len)]);
        }
    }
    let peer = offload::PEERS[0].1;
    for slices in traffic::SLICES {
        stages.extend([offload::slice(slices, peer), offload::rebuild(slices, peer)]);
    }
    for &(suite, backend) in suites {
        for side in [Side::Sender, Side::Receiver, Side::Hub] {
            for burst in [Burst::super_packet(traffic::MAX_SLICES), Burst::SMALL] {
                stages.push(shard::stage(side, suite, backend, burst));
            }
        }
    }
    stages
}

/// Inline and with workers, at one thread and at two, in turns.
fn hand_over(suite: Suite, backend: Backend, time: Duration) -> Vec<HandOverOutput> {
    let arrangements = [(1, 0), (1, 1), (2, 0)].map(|(flows, workers)| Arrangement { flows, workers });
    let counts = arrangements.map(|arrangement| {
        let tried = handover::run(suite, backend, arrangement, 16);
        let more = 4.0 * time.as_secs_f64() / tried.wall.as_secs_f64();
        (16.0 * more).clamp(16.0, 1e6) as u64
    });
    let mut measured = arrangements.map(|_| Vec::new());
    for _ in 0..HAND_OVER_REPEATS {
        for ((arrangement, count), all) in arrangements.into_iter().zip(counts).zip(&mut measured) {
            let done = handover::run(suite, backend, arrangement, count);
            let bytes = done.bytes as f64;
            all.push((8.0 * bytes / done.wall.as_secs_f64(), done.cpu.as_secs_f64() * 1e9 / bytes));
        }
    }
    let outputs = arrangements.into_iter().zip(&mut measured).map(|(arrangement, all)| {
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (bits_per_second, cpu_ns_per_byte) = all[all.len() / 2];
        HandOverOutput {
            suite: suite.name(),
            flows: arrangement.flows,
            workers: arrangement.workers,
            threads: arrangement.threads(),
            bits_per_second,
            range: [all[0].0, all[all.len() - 1].0],
            repeats: all.len(),
            cpu_ns_per_byte,
        }
    });
    outputs.collect()
}

/// Streams through whole shards, in pieces of several sizes.
fn live(
    place: &Place,
    suites: &[(Suite, Backend)],
    time: Duration,
    rounds: u32,
) -> anyhow::Result<Vec<Live>> {
    if place.near.is_none() {
        return Ok(Vec::new());
    }
    let mut runs = Vec::new();
    for _ in 0..rounds {
        for &suite in suites {
            for (packet, pieces) in LIVE {
                let traffic = Traffic { packet, pieces, streams: 1 };
                let time = (LIVE_FACTOR * time).max(LIVE_LEAST);
                // Clocks around calls slow them down, so what all of it takes is measured without
                // them, too.
                for clocked in [false, true] {
                    // On a machine that is busy with other work a connection may not come about in
                    // time.
                    let mut run = live::run(place, suite, (traffic, clocked), time);
                    for _ in 1..LIVE_ATTEMPTS {
                        if run.is_err() {
                            run = live::run(place, suite, (traffic, clocked), time);
                        }
                    }
                    runs.push(run.with_context(|| format!("a stream of {packet}-byte packets"))?);
                }
            }
        }
    }
    Ok(runs)
}
