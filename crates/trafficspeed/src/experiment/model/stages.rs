//! The figures of `vpnd-stages`, measured in their own lab.

use std::io::{Read, Seek};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::ModelPlan;
use crate::interrupt::Interrupt;
use crate::lab::Lab;
use crate::system::program::{Program, Source};

pub static STAGES: Program = Program {
    name: "vpnd-stages",
    version: &["--version"],
    places: &[],
    source: Source::Workspace { package: "vpnd-benches" },
};

/// The form of output that is understood.
const FORM: u32 = 3;
/// Longer output is an error of the program.
const MOST_BYTES: u64 = 16 << 20;
/// Time that the program may take in addition to its samples.
const REPLY_TIMEOUT: Duration = Duration::from_secs(180);
/// Stages and sizes that it measures at most, each for the time that it is given.
const MOST_SAMPLES: u32 = 4000;
const POLL: Duration = Duration::from_millis(20);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Raw {
    /// The form of the rest.
    pub form: u32,
    /// Payload of each slice, in bytes.
    pub mss: usize,
    /// Length of each slice, in bytes.
    pub mtu: usize,
    /// Slices of the longest super-packet.
    pub max_slices: usize,
    /// The suites, in the order in which they were asked for.
    pub suites: Vec<Suite>,
    /// Each stage at each size.
    pub stages: Vec<Sample>,
    /// Inline crypto and crypto workers.
    pub handover: Vec<HandOver>,
    /// Streams through whole shards on real devices.
    pub live: Vec<Live>,
}

/// A suite and the library behind it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Suite {
    pub name: String,
    pub backend: String,
}

/// One stage at one size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub stage: String,
    /// `sender`, `receiver` or `hub`.
    pub side: String,
    /// `packet` or `super-packet`.
    pub unit: String,
    /// The suite, where it matters.
    pub suite: Option<String>,
    /// True for the sum of other stages.
    pub whole: bool,
    /// Inner packets in each call.
    pub packets: usize,
    pub bytes: usize,
    /// Median nanoseconds for each call.
    pub ns: f64,
    pub quartiles: [f64; 2],
    pub samples: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HandOver {
    pub suite: String,
    pub flows: usize,
    /// Crypto workers of each; 0: inline.
    pub workers: usize,
    pub threads: usize,
    pub bits_per_second: f64,
    /// The least and the most of all repetitions.
    pub range: [f64; 2],
    pub repeats: usize,
    /// CPU time of all threads.
    pub cpu_ns_per_byte: f64,
}

/// A TCP stream through the shards of a client and a gateway, with all that the kernel does for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Live {
    /// Length of the longest inner packet, in bytes.
    pub packet: usize,
    /// The longest super-packet and the longest run of datagrams, in packets.
    pub pieces: usize,
    pub streams: usize,
    pub suite: String,
    /// Each system call was timed. Otherwise only `cpu_ns` of each end is a time.
    pub clocked: bool,
    pub client: LiveEnd,
    pub gateway: LiveEnd,
}

/// One shard's account.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LiveEnd {
    /// CPU time of its thread.
    pub cpu_ns: f64,
    /// How often it slept and was woken.
    pub wake_ups: u64,
    /// System calls: from and to the TUN device, from and to the socket.
    pub read: Calls,
    pub send: Calls,
    pub receive: Calls,
    pub write: Calls,
    /// Its own work between these on the way from the TUN device.
    pub transmit_ns: f64,
    /// And on the way to it.
    pub deliver_ns: f64,
}

/// System calls of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calls {
    /// Those that moved something.
    pub work: Timed,
    /// Those that found nothing.
    pub empty: Timed,
    /// Super-packets, or runs of datagrams.
    pub messages: u64,
    /// With headers, those of the TUN device's own included.
    pub bytes: u64,
}

/// Calls and their CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    pub calls: u64,
    pub ns: f64,
}

/// Headers of each super-packet at the TUN device, in bytes: virtio, IPv4, TCP with time stamps.
const TUN_HEADERS: u64 = 10 + 52;

impl Live {
    /// Bytes of payload that the client's shard read.
    pub fn client_payload(&self) -> f64 {
        self.client.read.bytes.saturating_sub(TUN_HEADERS * self.client.read.messages) as f64
    }

    /// And that the gateway's shard wrote.
    pub fn gateway_payload(&self) -> f64 {
        self.gateway.write.bytes.saturating_sub(TUN_HEADERS * self.gateway.write.messages) as f64
    }

    /// Whether the figures can be.
    fn is_sound(&self) -> bool {
        let sound = |end: &LiveEnd| {
            let times = [end.cpu_ns, end.transmit_ns, end.deliver_ns];
            times.iter().all(|ns| ns.is_finite() && *ns >= 0.0)
        };
        let carried = self.client_payload() > 0.0 && self.gateway_payload() > 0.0;
        self.packet > 100 && self.pieces > 0 && carried && sound(&self.client) && sound(&self.gateway)
    }
}

/// The stages alone and, in as many rounds, the streams through whole shards.
///
/// # Errors
/// If the program cannot run, fails, is interrupted or says something else.
pub fn measure(plan: &ModelPlan, rounds: u32, interrupt: &Interrupt) -> anyhow::Result<Raw> {
    run(plan, &["--rounds", &rounds.to_string()], interrupt)
}

/// One more round of the streams through whole shards, with the libraries of the rounds before.
///
/// # Errors
/// Like [`measure`].
pub fn streams(plan: &ModelPlan, suites: &[Suite], interrupt: &Interrupt) -> anyhow::Result<Vec<Live>> {
    let libraries: Vec<&str> = suites.iter().map(|suite| suite.backend.as_str()).collect();
    let options = ["--rounds", "1", "--streams-alone", "--backend", &libraries.join(",")];
    let more = run(plan, &options, interrupt)?;
    anyhow::ensure!(more.suites == suites, "vpnd-stages used other libraries than before");
    Ok(more.live)
}

/// Runs the program between a client's namespace and the gateway's.
fn run(plan: &ModelPlan, options: &[&str], interrupt: &Interrupt) -> anyhow::Result<Raw> {
    let program = plan.programs.find(&STAGES)?;
    let lab = Lab::build(1, plan.links)?;
    let (near, far) = (&lab.clients()[0], lab.gateway());
    // Without a cipher in any case: that is what the ciphers are held against.
    let suites: Vec<&str> = plan.suites().iter().map(|cipher| cipher.name()).collect();
    let mut command = near.command(program.as_os_str(), &[]);
    command.args(["--millis", &plan.millis.to_string(), "--suite", &suites.join(",")]);
    command.args(options);
    command.args(["--near", near.name(), "--near-address", &Lab::client_v4(1).to_string()]);
    command.args(["--far", far.name(), "--far-address", &Lab::gateway_v4(1).to_string()]);
    let timeout = REPLY_TIMEOUT + Duration::from_millis(plan.millis) * MOST_SAMPLES;
    let text = output(&mut command, timeout, interrupt).context("vpnd-stages")?;
    parse(&text, suites.len()).context("vpnd-stages")
}

fn parse(text: &str, suites: usize) -> anyhow::Result<Raw> {
    let raw: Raw = serde_json::from_str(text).context("its output is not understood; build it again")?;
    if raw.form != FORM || raw.suites.len() != suites {
        bail!(
            "its output is of form {}, not {FORM}; build it and trafficspeed from the same source",
            raw.form
        );
    }
    let sound = |sample: &Sample| sample.ns.is_finite() && sample.ns >= 0.0 && sample.bytes > 0;
    let live = raw.live.iter().all(Live::is_sound);
    if !live || !raw.stages.iter().all(sound) || raw.mss == 0 || raw.mtu < raw.mss || raw.max_slices == 0 {
        bail!("its output has figures that cannot be");
    }
    Ok(raw)
}

/// The output of a program that ends well in time.
fn output(command: &mut Command, timeout: Duration, interrupt: &Interrupt) -> anyhow::Result<String> {
    let (mut said, mut complaint) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let child =
        command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(complaint.try_clone()?).spawn()?;
    let status = wait(child, Instant::now() + timeout, interrupt)?;
    let read = |file: &mut std::fs::File| {
        let mut text = String::new();
        file.rewind()?;
        file.take(MOST_BYTES).read_to_string(&mut text)?;
        Ok::<_, std::io::Error>(text)
    };
    if !status.success() {
        bail!("it failed ({status}): {}", read(&mut complaint)?.trim());
    }
    Ok(read(&mut said)?)
}

fn wait(
    mut child: Child,
    deadline: Instant,
    interrupt: &Interrupt,
) -> anyhow::Result<std::process::ExitStatus> {
    let reason = loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if interrupt.is_set() {
            break "it was interrupted";
        }
        if Instant::now() > deadline {
            break "it took too long";
        }
        std::thread::sleep(POLL);
    };
    // Failure means that it has just ended.
    let _ = child.kill();
    child.wait()?;
    bail!(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_figures_that_can_be_are_taken() {
        let sample = Sample { stage: "seal".into(), bytes: 64, ns: 1.0, ..Sample::default() };
        let good = Raw {
            form: FORM,
            mss: 1356,
            mtu: 1408,
            max_slices: 48,
            suites: vec![Suite::default()],
            stages: vec![sample.clone()],
            handover: Vec::new(),
            live: Vec::new(),
        };
        let read = |raw: &Raw| parse(&serde_json::to_string(raw).unwrap(), 1);
        assert_eq!(read(&good).unwrap(), good);
        let negative = Sample { ns: -1.0, ..sample.clone() };
        for bad in [
            Raw { form: FORM - 1, ..good.clone() },
            Raw { live: vec![super::Live::default()], ..good.clone() },
            Raw { suites: Vec::new(), ..good.clone() },
            Raw { mss: 0, ..good.clone() },
            Raw { stages: vec![negative], ..good.clone() },
            Raw { stages: vec![Sample { bytes: 0, ..sample }], ..good.clone() },
        ] {
            assert!(read(&bad).is_err(), "{bad:?}");
        }
        assert!(parse("thread panicked", 1).is_err());
    }

    #[test]
    fn a_program_that_fails_is_quoted() {
        let interrupt = Interrupt::default();
        let run =
            |script: &str, timeout| output(Command::new("sh").args(["-c", script]), timeout, &interrupt);
        let second = Duration::from_secs(10);
        assert_eq!(run("echo figures", second).unwrap(), "figures\n");
        assert!(run("echo no TUN >&2; exit 3", second).unwrap_err().to_string().contains("no TUN"));
        let late = run("exec sleep 60", Duration::from_millis(50)).unwrap_err();
        assert!(late.to_string().contains("too long"), "{late}");
    }
}
