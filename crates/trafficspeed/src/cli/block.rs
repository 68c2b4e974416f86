//! The command line of `trafficspeed block`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::hosts::HostsArgs;
use super::load::size;
use super::{OutputArgs, ProgramArgs, Switch};
use crate::experiment::block::{BlockPlan, Writes, sealing_as};
use crate::experiment::hosts::block;
use crate::experiment::hosts::host_pairs::HostPairsPlan;
use crate::lab::cpu_limit::CpuLimit;
use crate::lab::emulator::impairment::{Rate, Span};
use crate::load::block::place::PlaceOptions;
use crate::load::block::{BLOCK_BYTES, MAX_AHEAD};
use crate::load::congestion::CongestionControl;
use crate::load::task::MAX_WINDOW;
use crate::system::{Cipher, Kind, Priority, Subject};

/// The smallest TCP buffer that holds a few full packets.
const LEAST_WINDOW: u32 = 32 << 10;

/// Arguments that make no sense between real hosts: those about the lab, its system and its target.
const LAB_ONLY: [&str; 11] = [
    "delays",
    "rate",
    "target_cpu",
    "window",
    "target",
    "overwrite",
    "vpn",
    "priority",
    "cipher",
    "vpnd",
    "named_programs",
];

/// Block writes over long delays: encrypted above TCP with several blocks in progress, against
/// waiting for each answer through a VPN's tunnel.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("pairs", |arg| arg.conflicts_with_all(LAB_ONLY)))]
pub struct BlockArgs {
    /// Fewer delays, sizes, blocks in progress and seconds: about five minutes instead of hours.
    #[arg(long)]
    pub quick: bool,
    /// One-way delays.
    #[arg(long, value_delimiter = ',', value_name = "TIME")]
    pub delays: Vec<Span>,
    /// Bytes of a block: 8K, 1M or a plain number.
    #[arg(long, value_delimiter = ',', value_name = "SIZE", value_parser = block_size)]
    pub sizes: Vec<u32>,
    /// Blocks in progress: 1,2,4,6,8,10, or 2,10 if --quick.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_AHEAD)))]
    pub ahead: Vec<u32>,
    /// Measured seconds of each case.
    #[arg(short = 't', long, value_parser = super::seconds)]
    pub seconds: Option<f64>,
    /// Congestion control of both ends, and in the lab of VPNs over TCP.
    #[arg(short = 'C', long, default_value_t)]
    pub congestion: CongestionControl,
    /// How often each case is measured; the ways take turns in shuffled order.
    #[arg(long, default_value_t = super::ROUNDS, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Do not measure the tunnel a second time in each round, with one block in progress and with
    /// the most, which shows how far it differs from itself.
    #[arg(long)]
    pub no_control: bool,
    /// Answer once the kernel has a block, before it is on disk: to measure without the disk.
    #[arg(long)]
    pub no_sync: bool,
    /// Have the target ask for each block before its data are sent, as the original's iSCSI did:
    /// two round trips for a block instead of one. By default both are measured, with --quick and
    /// between hosts the original's alone.
    #[arg(long, value_enum, value_delimiter = ',', num_args = 0..=1, default_missing_value = "on")]
    pub r2t: Vec<Switch>,
    /// Rate of the link each way, for example 100mbit; as fast as the machine can by default. Of
    /// several each is measured.
    #[arg(long, value_delimiter = ',')]
    pub rate: Vec<Rate>,
    /// CPU of the target and the VPN's programs on its side, in cores such as 0.5, or as 50%: the
    /// original's CPU was its bottleneck. Of several each is measured, at every rate.
    #[arg(long, value_name = "CORES", value_delimiter = ',')]
    pub target_cpu: Vec<CpuLimit>,
    /// TCP's buffers at both ends and of a VPN over TCP at most; the default is the original's. 64M
    /// limits no link that is measured here.
    #[arg(long, value_name = "SIZE", default_value = "8M", value_parser = window_size)]
    pub window: u32,
    /// The file or block device to write to, or a directory for a file that is removed at the end;
    /// by default the directory for temporary files.
    #[arg(long, value_name = "PATH")]
    pub target: Option<PathBuf>,
    /// The target's contents may be destroyed.
    #[arg(long, requires = "target")]
    pub overwrite: bool,
    /// MiB of the target that are written, again and again.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub span: u32,
    /// Seed of the blocks' content.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The system with the tunnel.
    #[arg(long, value_enum, default_value = "vpnd")]
    pub vpn: Kind,
    /// Its cipher; AES-256-GCM by default, or its own choice if it can't be told to use that.
    /// Blocks are sealed with the same above TCP if it is aes-128-gcm, aes-256-gcm or
    /// chacha20-poly1305, and with AES-256-GCM otherwise.
    #[arg(long, value_enum)]
    pub cipher: Option<Cipher>,
    /// Its CPU priority: what it takes by itself, or that of any other process, as other VPNs have
    /// it.
    #[arg(long, value_enum, default_value = "own")]
    pub priority: Priority,
    #[command(flatten)]
    pub programs: ProgramArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Or real hosts: the first one holds the target, in the place that `serve --block-target`
    /// names there.
    #[command(flatten, next_help_heading = "Between real hosts, where `trafficspeed serve` runs")]
    pub hosts: HostsArgs,
}

impl BlockArgs {
    /// The pair of hosts that meets instead of the lab, if there is one.
    ///
    /// # Errors
    /// In words, what is wrong with the pairs.
    pub fn host_pairs(&self) -> Result<Option<HostPairsPlan>, String> {
        let hosts_plan = self.hosts.host_pairs();
        hosts_plan.map(|hosts_plan| block::check(&hosts_plan.pairs).map(|()| hosts_plan)).transpose()
    }

    /// Whether the target asks for each block first, of each plan.
    fn asks_first(&self) -> Vec<bool> {
        match self.r2t[..] {
            [] if self.quick || self.hosts.host_pairs().is_some() => vec![true],
            [] => vec![true, false],
            ref chosen => chosen.iter().map(|switch| *switch == Switch::On).collect(),
        }
    }

    /// A plan for every rate, share of the CPU, and number of round trips.
    pub fn plans(&self) -> Vec<BlockPlan> {
        fn each<T: Copy>(values: &[T]) -> Vec<Option<T>> {
            if values.is_empty() { vec![None] } else { values.iter().copied().map(Some).collect() }
        }
        let plan = self.plan();
        let at = |rate| {
            let plan = plan.clone();
            each(&self.target_cpu).into_iter().map(move |cpu| BlockPlan { rate, cpu, ..plan.clone() })
        };
        let all: Vec<BlockPlan> = each(&self.rate).into_iter().flat_map(at).collect();
        let with = |ready_first| {
            let plans = all.iter().cloned();
            plans.map(move |plan| BlockPlan { writes: Writes { ready_first, ..plan.writes }, ..plan })
        };
        self.asks_first().into_iter().flat_map(with).collect()
    }

    /// The plan for the lab; between hosts, only what is written counts.
    pub fn plan(&self) -> BlockPlan {
        let (delays_ms, sizes, ahead, seconds): (&[u64], &[u32], &[u32], f64) = if self.quick {
            (&[0, 16, 64], &[8 << 10, 2 << 20], &[2, 10], 1.0)
        } else {
            const SIZES: [u32; 9] = [8, 16, 32, 64, 128, 256, 512, 1024, 2048];
            (&[0, 1, 2, 4, 8, 16, 32, 64], &SIZES.map(|kib| kib << 10), &[1, 2, 4, 6, 8, 10], 1.0)
        };
        let delays = if self.delays.is_empty() {
            delays_ms.iter().map(|ms| Span { ns: ms * 1_000_000 }).collect()
        } else {
            self.delays.clone()
        };
        let cipher = self.cipher.unwrap_or_else(|| cipher_of(self.vpn));
        BlockPlan {
            delays,
            writes: Writes {
                sizes: if self.sizes.is_empty() { sizes.to_vec() } else { self.sizes.clone() },
                ahead: if self.ahead.is_empty() { ahead.to_vec() } else { self.ahead.clone() },
                duration: Duration::from_secs_f64(self.seconds.unwrap_or(seconds)),
                sync: !self.no_sync,
                span_bytes: u64::from(self.span) << 20,
                seed: self.seed,
                congestion: self.congestion,
                repeats: self.repeat,
                ready_first: self.asks_first()[0],
                sealing: sealing_as(cipher).unwrap_or_default(),
                control: !self.no_control,
            },
            rate: self.rate.first().copied(),
            cpu: self.target_cpu.first().copied(),
            window_bytes: self.window,
            place: PlaceOptions { path: self.target.clone(), overwrite: self.overwrite },
            subject: Subject { priority: self.priority, ..Subject::new(self.vpn, cipher) },
            programs: self.programs.programs(),
        }
    }
}

/// The cipher of the sealed blocks if none is named, where a system has it.
fn cipher_of(kind: Kind) -> Cipher {
    let has = kind.profile().ciphers.contains(&Cipher::Aes256Gcm);
    if has { Cipher::Aes256Gcm } else { Cipher::Auto }
}

fn window_size(text: &str) -> Result<u32, String> {
    let bytes = size(text).ok().filter(|bytes| (LEAST_WINDOW..=MAX_WINDOW).contains(bytes));
    bytes.ok_or_else(|| format!("`{text}` is no size between 32K and 64M; for example 8M"))
}

fn block_size(text: &str) -> Result<u32, String> {
    size(text)
        .ok()
        .filter(|size| BLOCK_BYTES.contains(size))
        .ok_or_else(|| format!("`{text}` is no block size between 512 and 16M; for example 8K or 2M"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        block: BlockArgs,
    }

    fn read(line: &str) -> Result<BlockPlan, String> {
        let words = std::iter::once("x").chain(line.split_whitespace());
        Program::try_parse_from(words).map(|program| program.block.plan()).map_err(|error| error.to_string())
    }

    #[test]
    fn by_default_the_whole_of_the_original_is_measured_and_quick_takes_minutes() {
        let plan = read("").unwrap();
        assert_eq!((plan.delays.len(), plan.writes.cases().len()), (8, 9 * 20 * 5));
        assert!(plan.writes.sync && plan.place.path.is_none());
        let minutes = |plan: &BlockPlan| plan.estimate().as_secs() / 60;
        assert!((200..500).contains(&minutes(&plan)), "{}", minutes(&plan));
        let quick = read("--quick").unwrap();
        assert!((5..15).contains(&minutes(&quick)), "{}", minutes(&quick));
    }

    #[test]
    fn explicit_options_override_the_scale() {
        let plan =
            read("--quick --delays 3ms,1s --sizes 64K,1MiB,1000 --ahead 3 --no-sync -t 9 --span 8").unwrap();
        assert_eq!(plan.delays.iter().map(|delay| delay.ns).collect::<Vec<_>>(), [3_000_000, 1_000_000_000]);
        let slow = read("--quick --r2t --rate 100mbit --target-cpu 0.25").unwrap();
        assert!(slow.writes.ready_first && slow.rate.is_some() && slow.cpu.is_some());
        let window = |line: &str| read(line).map(|plan| plan.window_bytes);
        assert_eq!((window(""), window("--window 64M")), (Ok(8 << 20), Ok(64 << 20)));
        assert!(window("--window 1K").unwrap_err().contains("between 32K and 64M"));
        let cipher = |line: &str| read(line).unwrap().subject.cipher;
        assert_eq!((cipher(""), cipher("--vpn strongswan")), (Cipher::Aes256Gcm, Cipher::Aes256Gcm));
        assert_eq!((cipher("--vpn wireguard-go"), cipher("--vpn none")), (Cipher::Auto, Cipher::Auto));
        let sealing = |line: &str| read(line).unwrap().writes.sealing.name();
        for cipher in ["aes-128-gcm", "aes-256-gcm", "chacha20-poly1305"] {
            assert_eq!(sealing(&format!("--cipher {cipher}")), cipher, "one cipher on both sides");
        }
        for line in ["", "--cipher none", "--cipher auto", "--vpn wireguard-go"] {
            assert_eq!(sealing(line), "aes-256-gcm", "{line}");
        }
        let trips = |line: &str| -> Vec<bool> {
            let args = Program::try_parse_from(line.split_whitespace()).unwrap().block;
            args.plans().iter().map(|plan| plan.writes.ready_first).collect()
        };
        assert_eq!((trips("x"), trips("x --quick")), (vec![true, false], vec![true]));
        assert_eq!(
            (trips("x --r2t"), trips("x --r2t off"), trips("x --r2t off,on")),
            (vec![true], vec![false], vec![false, true])
        );
        assert_eq!(trips("x --pair a/10.0.0.1=b --token-file t"), [true]);
        let subject = |line: &str| read(line).unwrap().subject.label();
        assert_eq!(subject("--priority same"), "vpnd, aes-256-gcm, no priority");
        let line = "x --quick --rate 100mbit,1gbit --target-cpu 10%,50%";
        let args = Program::try_parse_from(line.split_whitespace()).unwrap().block;
        let limits: Vec<_> =
            args.plans().iter().map(|plan| (plan.rate, plan.cpu.map(CpuLimit::cores))).collect();
        assert_eq!(
            limits.iter().map(|(_, cores)| *cores).collect::<Vec<_>>(),
            [Some(0.1), Some(0.5), Some(0.1), Some(0.5)]
        );
        let overwrite: Vec<bool> = args.plans().iter().map(|plan| plan.place.overwrite).collect();
        assert_eq!(overwrite, [false; 4], "only what was measured before may be overwritten");
        assert!(limits[0].0 == limits[1].0 && limits[1].0 != limits[2].0);
        let Writes { sizes, ahead, sync, duration, span_bytes, .. } = plan.writes;
        assert_eq!(sizes, [65_536, 1 << 20, 1000]);
        assert_eq!((ahead, sync, duration.as_secs(), span_bytes), (vec![3], false, 9, 8 << 20));
    }

    #[test]
    fn bad_input_is_refused_with_what_would_be_right() {
        for (line, expected) in [
            ("--sizes 100", "between 512 and 16M"),
            ("--sizes 17M", "for example 8K"),
            ("--sizes K", "for example 8K"),
            ("--ahead 0", "1..=256"),
            ("--delays 5", "16ms"),
            ("--overwrite", "--target"),
            ("--pair a/10.0.0.1=b", "--token-file"),
            ("--pair a/10.0.0.1=b --token-file t --delays 1ms", "cannot be used with"),
            ("--pair a/10.0.0.1=b --token-file t --target t", "cannot be used with"),
            ("--pair a/10.0.0.1=b --token-file t --rate 1gbit", "cannot be used with"),
            ("--rate fast", "--rate"),
        ] {
            let error = read(line).map(|_| ()).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
