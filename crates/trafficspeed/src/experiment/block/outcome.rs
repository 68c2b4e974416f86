//! The results of the block experiment as plain data, and the figures that its tables show, each
//! with the spread of its rounds.

use serde::{Deserialize, Serialize};

use super::Writes;
use super::model::Parameters;
use super::rounds::Rounds;
use crate::experiment::environment::Environment;
use crate::experiment::hosts::host_pairs::HostEnd;
use crate::experiment::outcome::{CpuUse, Taken};
use crate::load::block::Protection;
use crate::load::block::seal::Sealing;
use crate::load::congestion::CongestionControl;
use crate::stats::Spread;
use crate::system::{AGAIN, Cipher, SystemInfo};

/// Which way blocks take, and how they are protected on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Route {
    /// Without a VPN and without encryption.
    Plain,
    /// Through the tunnel.
    Tunnel,
    /// Without a VPN, sealed above TCP.
    Sealed,
}

/// How blocks are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Way {
    pub route: Route,
    /// Blocks in progress at most; with one each answer is waited for.
    pub ahead: u32,
    /// Measured a second time in each round, as a control.
    pub again: bool,
}

impl Way {
    /// Without a VPN, waiting for each answer.
    pub const PLAIN: Self = Self::of(Route::Plain, 1);
    /// Through the tunnel, waiting for each answer.
    pub const TUNNEL: Self = Self::of(Route::Tunnel, 1);

    /// A number of blocks in progress on a route.
    pub const fn of(route: Route, ahead: u32) -> Self {
        Self { route, ahead, again: false }
    }

    /// A second measurement: its difference from the first one is no difference of two ways.
    #[must_use]
    pub const fn again(self) -> Self {
        Self { again: true, ..self }
    }

    /// The original's OP-n.
    pub const fn sealed(ahead: u32) -> Self {
        Self::of(Route::Sealed, ahead)
    }

    /// Whether the blocks are sealed above TCP.
    pub fn protection(self) -> Protection {
        if self.route == Route::Sealed { Protection::Sealed } else { Protection::Plain }
    }

    /// Its name in the report.
    pub fn name(self) -> String {
        if self.again {
            return Self { again: false, ..self }.name() + AGAIN;
        }
        match (self.route, self.ahead) {
            (Route::Plain, 1) => "plain".into(),
            (Route::Tunnel, 1) => "tunnel".into(),
            (Route::Plain, ahead) => format!("plain-{ahead}"),
            (Route::Tunnel, ahead) => format!("tunnel-{ahead}"),
            (Route::Sealed, ahead) => format!("OP-{ahead}"),
        }
    }
}

/// All ways that are measured with these numbers of blocks in progress, in the order in which they
/// take turns: the original's, and plain and tunnel with as many in progress, which is what
/// tells queue depth from encrypting ahead; then the tunnel a second time with each number of
/// `controls`, after all others.
pub fn ways(ahead: &[u32], controls: &[u32]) -> Vec<Way> {
    let with = |&ahead: &u32| {
        let controls = [Route::Plain, Route::Tunnel].map(|route| Way::of(route, ahead));
        std::iter::once(Way::sealed(ahead)).chain(controls.into_iter().filter(move |_| ahead > 1))
    };
    let measured = [Way::TUNNEL, Way::PLAIN].into_iter().chain(ahead.iter().flat_map(with));
    measured.chain(controls.iter().map(|&ahead| Way::of(Route::Tunnel, ahead).again())).collect()
}

/// One case: what was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    /// One-way delay asked for, ms.
    pub delay_ms: f64,
    pub block_bytes: u32,
    pub way: Way,
    /// Which repetition, from 1.
    pub repeat: u32,
    /// Bytes of acknowledged blocks per second.
    pub bytes_per_second: Option<f64>,
    /// CPU use at the target in percent of one core: its process and, with the tunnel, the VPN's on
    /// that side.
    pub target_cpu_percent: Option<f64>,
    /// Acknowledged blocks of the whole connection.
    pub acknowledged: u64,
    /// Places of the target that were compared with what was acknowledged.
    pub verified: u64,
    /// Blocks answered by one sync, mean.
    pub blocks_per_sync: f64,
    /// CPU seconds of the writer's process and of the target's, for the whole connection;
    /// `None` if they could not be read.
    pub ends_cpu_seconds: Option<[f64; 2]>,
    /// CPU time meanwhile; lab only.
    pub cpu: Option<CpuUse>,
    /// Why there is no figure, or it is not to be trusted.
    pub problem: Option<String>,
}

/// A part of the CPU time that writing blocks takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuPart {
    /// The writer's process.
    Writer,
    /// The VPN's programs on its side.
    WriterVpn,
    /// The target's process.
    Target,
    /// The VPN's programs at the gateway, which is the target's side.
    GatewayVpn,
    /// The target's process and the VPN's programs on its side.
    TargetSide,
    /// Both ends and the VPN's programs on both sides.
    All,
}

impl Case {
    /// A case that could not be measured, and why.
    pub fn failed(delay_ms: f64, (block_bytes, way, repeat): (u32, Way, u32), reason: String) -> Self {
        Self {
            delay_ms,
            block_bytes,
            way,
            repeat,
            bytes_per_second: None,
            target_cpu_percent: None,
            acknowledged: 0,
            verified: 0,
            blocks_per_sync: 0.0,
            ends_cpu_seconds: None,
            cpu: None,
            problem: Some(reason),
        }
    }

    /// CPU seconds of the VPN's programs on the writer's side and at the gateway, as far as they
    /// carried the blocks; `None` where they did and it was not counted.
    pub fn vpn_cpu_seconds(&self) -> Option<[f64; 2]> {
        match self.way.route {
            Route::Tunnel => self.cpu.map(|cpu| [cpu.clients, cpu.gateway]),
            // Whatever they do meanwhile, it is not for these blocks.
            Route::Plain | Route::Sealed => Some([0.0; 2]),
        }
    }

    /// CPU seconds of a part for each GB of acknowledged blocks; `None` where that is not known:
    /// older reports have the target's side alone, and between real hosts it does not see the VPN's
    /// programs.
    fn seconds_per_gb(&self, part: CpuPart) -> Option<f64> {
        let per_gigabyte = |seconds: f64| {
            let gigabytes = self.acknowledged as f64 * f64::from(self.block_bytes) / 1e9;
            (gigabytes > 0.0).then(|| seconds / gigabytes)
        };
        match part {
            CpuPart::Writer => per_gigabyte(self.ends_cpu_seconds?[0]),
            CpuPart::WriterVpn => per_gigabyte(self.vpn_cpu_seconds()?[0]),
            CpuPart::Target => per_gigabyte(self.ends_cpu_seconds?[1]),
            CpuPart::GatewayVpn => per_gigabyte(self.vpn_cpu_seconds()?[1]),
            CpuPart::TargetSide => Some(self.target_cpu_percent? / 100.0 / (self.bytes_per_second? / 1e9)),
            CpuPart::All => {
                let ([writer, target], [near, far]) = (self.ends_cpu_seconds?, self.vpn_cpu_seconds()?);
                per_gigabyte(writer + target + near + far)
            }
        }
    }
}

/// Everything that came out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BlockReport {
    pub environment: Environment,
    /// The machines of the writer and of the target, if they are real hosts.
    pub hosts: Vec<HostEnd>,
    /// The name of the system with the tunnel.
    pub system: String,
    /// Its own account.
    pub facts: SystemInfo,
    pub target: String,
    /// The meaning of an answer.
    pub synced: bool,
    /// Counted seconds of each case.
    pub seconds: f64,
    /// Congestion control of both ends.
    pub congestion: CongestionControl,
    /// Largest TCP window, bytes; 0: whatever the hosts have.
    pub window_bytes: u32,
    /// How often each case was to be measured.
    pub repeats: u32,
    /// With how many blocks in progress the tunnel was measured twice in each round.
    pub controls: Vec<u32>,
    /// The target asked for each block first.
    pub ready_first: bool,
    /// Cipher of OP-n.
    pub sealing: Sealing,
    /// The cipher that the tunnel was asked for; unknown between real hosts and in older reports.
    pub tunnel_asked: Option<Cipher>,
    /// Limits of link and CPU, in words.
    pub limits: Vec<String>,
    /// The rate of the link in bit/s and the cores of the target, where they are limited.
    pub rate_bits: Option<u64>,
    pub cores: Option<f64>,
    /// Delays in ms, block sizes and blocks in progress, as asked for.
    pub asked: (Vec<f64>, Vec<u32>, Vec<u32>),
    pub cases: Vec<Case>,
    /// The model's parameters, measured here.
    pub parameters: Parameters,
    /// The accounts of the emulated links, delay by delay.
    pub links: Vec<String>,
    /// Labs that could not be had.
    pub problems: Vec<String>,
    /// The user ended it early.
    pub interrupted: bool,
}

impl BlockReport {
    /// A report of `writes` in which nothing is measured yet.
    pub fn begin(writes: &Writes, system: String, target: String, delays_ms: Vec<f64>) -> Self {
        Self {
            environment: Environment::read(None),
            hosts: Vec::new(),
            system,
            facts: SystemInfo::default(),
            target,
            synced: writes.sync,
            seconds: writes.duration.as_secs_f64(),
            congestion: writes.congestion,
            window_bytes: 0,
            repeats: writes.repeats,
            controls: writes.controls(),
            ready_first: writes.ready_first,
            sealing: writes.sealing,
            tunnel_asked: None,
            limits: Vec::new(),
            rate_bits: None,
            cores: None,
            asked: (delays_ms, writes.sizes.clone(), writes.ahead.clone()),
            cases: Vec::new(),
            parameters: Parameters::default(),
            links: Vec::new(),
            problems: Vec::new(),
            interrupted: false,
        }
    }

    /// The throughput of all repetitions of a delay, block size and way that are to be trusted,
    /// bytes per second.
    pub fn rate(&self, delay_ms: f64, block_bytes: u32, way: Way) -> Option<Spread> {
        Spread::of(&self.rates(delay_ms, block_bytes, way))
    }

    /// Every repetition's throughput, bytes per second.
    pub fn rates(&self, delay_ms: f64, block_bytes: u32, way: Way) -> Vec<f64> {
        self.sound(delay_ms, block_bytes, way).filter_map(|case| case.bytes_per_second).collect()
    }

    /// How often the cases that were asked for were really measured: the least of all, and the
    /// most.
    pub fn found(&self) -> (usize, usize) {
        let (delays, sizes, _) = &self.asked;
        let ways = self.ways();
        let grid = delays.iter().flat_map(|&delay| sizes.iter().map(move |&size| (delay, size)));
        let counts =
            grid.flat_map(|(delay, size)| ways.iter().map(move |&way| self.rates(delay, size, way).len()));
        let (least, most) = counts.fold((usize::MAX, 0), |(least, most): (usize, usize), count| {
            (least.min(count), most.max(count))
        });
        (least.min(most), most)
    }

    fn sound(&self, delay_ms: f64, block_bytes: u32, way: Way) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(move |case| {
            let same = case.delay_ms == delay_ms && case.block_bytes == block_bytes && case.way == way;
            same && case.problem.is_none()
        })
    }

    /// Throughput of one way / that of another: the mean over block sizes within each round.
    pub fn ratio(&self, delay_ms: f64, way: Way, base: Way) -> Option<Spread> {
        let rates = |way| self.rounds(delay_ms, way, |case| case.bytes_per_second);
        rates(way).divided_by(&rates(base)).means(&self.asked.1)
    }

    /// A/A, as the control of [`Self::ratio`]: the tunnel against itself.
    pub fn same(&self, delay_ms: f64, way: Way, base: Way) -> Option<Spread> {
        self.control_of(delay_ms, [way, base], |control| self.ratio(delay_ms, control.again(), control))
    }

    /// The control of a ratio of two ways: what the tunnel differs from itself with one block in
    /// progress or with the most, as each of the two ways has; the wider where they differ in that.
    /// `None` unless all that this takes was measured on a quiet machine.
    fn control_of(
        &self,
        delay_ms: f64,
        ways: [Way; 2],
        itself: impl Fn(Way) -> Option<Spread>,
    ) -> Option<Spread> {
        if self.environment.is_emulated() || self.taken(delay_ms).is_disturbed() {
            return None;
        }
        let deepest = self.deepest_control();
        let [one, other] = ways.map(|way| itself(if way.ahead > 1 { deepest } else { Way::TUNNEL }));
        let (one, other) = one.zip(other)?;
        Some(if other.widest_ratio() > one.widest_ratio() { other } else { one })
    }

    /// The tunnel with the most blocks in progress of those with which it was measured again.
    pub fn deepest_control(&self) -> Way {
        Way::of(Route::Tunnel, self.controls.iter().copied().max().unwrap_or(1))
    }

    /// The ways that were measured a second time in each round.
    pub fn measured_again(&self) -> Vec<Way> {
        self.controls.iter().map(|&ahead| Way::of(Route::Tunnel, ahead)).collect()
    }

    /// A figure of the cases that are to be trusted.
    fn rounds(&self, delay_ms: f64, way: Way, figure: impl Fn(&Case) -> Option<f64>) -> Rounds {
        let same = |case: &&Case| case.delay_ms == delay_ms && case.way == way && case.problem.is_none();
        let cases = self.cases.iter().filter(same);
        cases.filter_map(|case| Some(((case.repeat, case.block_bytes), figure(case)?))).collect()
    }

    /// Share of the machine that others took during the cases at a delay.
    pub fn taken(&self, delay_ms: f64) -> Taken {
        let cases = self.cases.iter().filter(|case| case.delay_ms == delay_ms);
        Taken::most(cases.filter_map(|case| case.cpu.as_ref()))
    }

    /// All ways that were to be measured.
    pub fn ways(&self) -> Vec<Way> {
        ways(&self.asked.2, &self.controls)
    }

    /// Best throughput of any block size: of the one with the highest median.
    pub fn peak(&self, delay_ms: f64, way: Way) -> Option<Spread> {
        let rates = self.asked.1.iter().filter_map(|&size| self.rate(delay_ms, size, way));
        rates.max_by(|a, b| a.median.total_cmp(&b.median))
    }

    /// CPU use at the target in percent of one core: the mean over block sizes within each round.
    pub fn cpu(&self, delay_ms: f64, way: Way) -> Option<Spread> {
        self.rounds(delay_ms, way, |case| case.target_cpu_percent).means(&self.asked.1)
    }

    /// CPU of blocks of one size.
    pub fn cpu_of(&self, delay_ms: f64, block_bytes: u32, way: Way) -> Option<Spread> {
        let values = self.sound(delay_ms, block_bytes, way).filter_map(|case| case.target_cpu_percent);
        Spread::of(&values.collect::<Vec<_>>())
    }

    /// CPU seconds at the target's side for each GB of acknowledged blocks of one size.
    pub fn cost_of(&self, delay_ms: f64, block_bytes: u32, way: Way) -> Option<Spread> {
        let costs = self.sound(delay_ms, block_bytes, way);
        Spread::of(&costs.filter_map(|case| case.seconds_per_gb(CpuPart::TargetSide)).collect::<Vec<_>>())
    }

    /// CPU seconds of a part for each GB of acknowledged blocks: the median over block sizes within
    /// each round.
    pub fn cost(&self, delay_ms: f64, way: Way, part: CpuPart) -> Option<Spread> {
        self.rounds(delay_ms, way, |case| case.seconds_per_gb(part)).medians(&self.asked.1)
    }

    /// Cost of one way relative to that of another, for each block size and round.
    pub fn cost_ratio(&self, delay_ms: f64, (way, base): (Way, Way), part: CpuPart) -> Option<Spread> {
        let costs = |way| self.rounds(delay_ms, way, |case| case.seconds_per_gb(part));
        costs(way).divided_by(&costs(base)).medians(&self.asked.1)
    }

    /// A/A, as the control of [`Self::cost_ratio`].
    pub fn same_cost(&self, delay_ms: f64, (way, base): (Way, Way), part: CpuPart) -> Option<Spread> {
        let itself = |control: Way| self.cost_ratio(delay_ms, (control.again(), control), part);
        self.control_of(delay_ms, [way, base], itself)
    }

    /// Whether everything that was asked for was measured and is right.
    pub fn is_whole(&self) -> bool {
        let (delays, sizes, _) = &self.asked;
        let ways = self.ways().len();
        let sound = |case: &Case| case.problem.is_none() && case.bytes_per_second.is_some();
        self.problems.is_empty()
            && !delays.is_empty()
            && self.cases.len() == delays.len() * sizes.len() * ways * self.repeats as usize
            && self.cases.iter().all(sound)
    }
}
