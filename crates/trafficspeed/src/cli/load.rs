//! The generators' own commands: `stream`, `rr`, `udp`. Flags that iperf3 has mean what they mean
//! there.

use std::time::Duration;

use clap::Args;

use super::hosts::HostsArgs;
use super::{IpVersion, OutputArgs, SystemArgs, seconds, seconds_or_none};
use crate::experiment::generate::{LabPath, LoadPlan, MeasuredPath, NamedTask};
use crate::experiment::pair_run::Times;
use crate::experiment::testbed::RemoteEnd;
use crate::lab::MAX_CLIENTS;
use crate::load::congestion::CongestionControl;
use crate::load::exchange::Exchange;
use crate::load::message::Messages;
use crate::load::task::{MAX_THREADED_STREAMS, Protocol, Sockets, Task};
use crate::load::tcp::{Job, MAX_STREAMS, Shape, Way};

/// From one round trip to the next of those that are measured under other load, in microseconds.
const PING_EVERY_US: u32 = 10_000;
/// Bytes of a datagram unless the user names another size: fits every path.
const DATAGRAM_BYTES: u32 = 1200;
/// Bytes of a paced TCP message unless the user names another size.
const MESSAGE_BYTES: u32 = 8192;
/// Bytes of a request with a separate connection, as a browser sends it.
const FLOW_REQUEST_BYTES: u32 = 400;
/// The rate of UDP unless the user names one, as in iperf3.
const UDP_RATE: u64 = 1_000_000;

/// Arguments that make no sense between real hosts: those about the lab and its systems.
const LAB_ONLY: [&str; 18] = [
    "priority",
    "no_control",
    "gateway_cpu",
    "vpn",
    "cipher",
    "no_encryption",
    "vpnd",
    "busy_poll",
    "named_programs",
    "command_up",
    "command_down",
    "offload",
    "mtu",
    "topology",
    "LinkArgs",
    "clients",
    "to",
    "ip",
];

/// The path that is measured, and how often.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("pairs", |arg| arg.conflicts_with_all(LAB_ONLY)))]
pub struct PathArgs {
    #[command(flatten)]
    pub systems: SystemArgs,
    #[command(flatten, next_help_heading = "Between real hosts, where `trafficspeed serve` runs")]
    pub hosts: HostsArgs,
    /// Clients that measure at once, each with its own partner at the gateway (or behind it);
    /// figures are sums over all, and each client does what the other options say.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CLIENTS)))]
    pub clients: u32,
    /// The other end: the gateway itself, or a second client behind it.
    #[arg(long, value_enum, default_value = "gateway")]
    pub to: RemoteEnd,
    /// IP version inside.
    #[arg(long, value_enum, default_value = "4")]
    pub ip: IpVersion,
    /// Measured seconds.
    #[arg(short = 't', long, default_value_t = 10.0, value_parser = seconds)]
    pub seconds: f64,
    /// Seconds before counting begins.
    #[arg(short = 'O', long, default_value_t = 0.5, value_parser = seconds_or_none)]
    pub warmup: f64,
    /// Seconds between the points of the time series.
    #[arg(short = 'i', long, default_value_t = 1.0, value_parser = interval)]
    pub interval: f64,
    /// How often each measurement is made; systems take turns.
    #[arg(long, default_value_t = super::ROUNDS, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Congestion control of the measured connections, and in the lab of VPNs over TCP; of several
    /// each is measured.
    #[arg(short = 'C', long, value_delimiter = ',', default_value = "cubic")]
    pub congestion: Vec<CongestionControl>,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// The directions of a stream, and what it carries.
#[derive(Clone, Debug, Args)]
pub struct FlowArgs {
    /// Streams at once.
    #[arg(short = 'P', long = "parallel", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_STREAMS)))]
    pub streams: u32,
    /// From the far end to the client.
    #[arg(short = 'R', long, conflicts_with = "bidir")]
    pub reverse: bool,
    /// Both directions at once.
    #[arg(long)]
    pub bidir: bool,
    /// Bytes of each message or datagram; of each send call for TCP without a rate. K and M are
    /// understood.
    #[arg(short = 'l', long, value_parser = size)]
    pub length: Option<u32>,
    /// Payload rate of each stream in bit/s, for example 13M; 0: as fast as possible.
    #[arg(short = 'b', long, value_parser = rate)]
    pub bitrate: Option<u64>,
    /// Bytes of the socket buffers. K and M are understood.
    #[arg(short = 'w', long, value_parser = size)]
    pub window: Option<u32>,
    /// Also measure round trips (UDP, 64 bytes, 100 a second, each when it is due) under the load.
    #[arg(long)]
    pub ping: bool,
}

/// `trafficspeed stream`.
#[derive(Clone, Debug, Args)]
pub struct StreamArgs {
    #[command(flatten)]
    pub path: PathArgs,
    #[command(flatten)]
    pub flow: FlowArgs,
    /// Use UDP (as `trafficspeed udp`).
    #[arg(short = 'u', long)]
    pub udp: bool,
    /// Largest TCP segment in bytes, TCP options included.
    #[arg(short = 'M', long, value_parser = clap::value_parser!(u32).range(88..=65_495))]
    pub set_mss: Option<u32>,
    /// Send numbered messages and measure their one-way delay, also without a rate.
    #[arg(long)]
    pub stamped: bool,
}

/// `trafficspeed udp`.
#[derive(Clone, Debug, Args)]
pub struct UdpArgs {
    #[command(flatten)]
    pub path: PathArgs,
    #[command(flatten)]
    pub flow: FlowArgs,
    /// Search the highest rate without loss instead; -t is then the length of each trial.
    #[arg(long, conflicts_with_all = ["bitrate", "bidir", "ping"])]
    pub search: bool,
    /// Datagrams of three sizes, whose IPv4 packets have 64, 576 and 1,400 bytes, 7 to 4 to 1.
    #[arg(long, conflicts_with_all = ["length", "ping"])]
    pub imix: bool,
    /// The loss that the search allows, in percent.
    #[arg(long, default_value_t = 0.1, value_parser = percent, requires = "search")]
    pub search_loss: f64,
}

/// `trafficspeed rr`.
#[derive(Clone, Debug, Args)]
pub struct RrArgs {
    #[command(flatten)]
    pub path: PathArgs,
    /// Use UDP.
    #[arg(short = 'u', long)]
    pub udp: bool,
    /// Bytes of request and response.
    #[arg(long, default_value = "1/1", value_name = "REQUEST/RESPONSE", value_parser = sizes)]
    pub size: (u32, u32),
    /// Each request over a separate connection, asking for these bytes in turn, such as 10K,1M; its
    /// time is from the handshake to the last byte.
    #[arg(long, value_delimiter = ',', value_name = "SIZE", value_parser = size, conflicts_with_all = ["udp", "size"])]
    pub flows: Vec<u32>,
    /// Requests at once.
    #[arg(short = 'P', long = "parallel", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_THREADED_STREAMS)))]
    pub streams: u32,
}

impl PathArgs {
    fn plan(&self, command: &'static str, tasks: Vec<NamedTask>) -> Result<LoadPlan, String> {
        if let Some(problem) = tasks.iter().find_map(|named| named.task.problem()) {
            return Err(problem);
        }
        if self.clients > 1 && self.to == RemoteEnd::Client {
            return Err(format!(
                "--clients {} takes --to gateway: each client measures with its own partner there; for clients that measure with \
                 each other: trafficspeed --clients {}",
                self.clients,
                self.clients.next_multiple_of(2),
            ));
        }
        let seconds = Duration::from_secs_f64;
        let path = self.hosts.host_pairs().map_or_else(
            || self.lab().map(|lab| MeasuredPath::Lab(Box::new(lab))),
            |hosts_plan| Ok(MeasuredPath::Hosts(hosts_plan)),
        )?;
        Ok(LoadPlan {
            command,
            path,
            clients: self.clients,
            tasks,
            ip: self.ip.number(),
            times: Times {
                warmup: seconds(self.warmup),
                duration: seconds(self.seconds),
                interval: seconds(self.interval),
            },
            repeats: self.repeat,
            congestion: self.congestion.clone(),
            search: None,
        })
    }

    fn lab(&self) -> Result<LabPath, String> {
        let subjects = self.systems.subjects_and_control();
        let links = self.systems.links_of_one(self.congestion[0])?;
        Ok(LabPath { subjects, far: self.to, links, programs: self.systems.programs()? })
    }
}

impl FlowArgs {
    fn ways(&self) -> &'static [bool] {
        match (self.reverse, self.bidir) {
            (_, true) => &[false, true],
            (true, false) => &[true],
            (false, false) => &[false],
        }
    }

    fn sockets(&self) -> Sockets {
        Sockets { window: self.window, ..Sockets::default() }
    }

    fn messages(
        &self,
        protocol: Protocol,
        rate: Option<u64>,
        length: u32,
        sockets: &Sockets,
    ) -> Vec<NamedTask> {
        let task = |&backward: &bool| {
            let name = named(if protocol == Protocol::Udp { "UDP" } else { "TCP messages" }, backward);
            let (sockets, length) = (sockets.clone(), self.length.unwrap_or(length));
            let bits_per_second = rate.filter(|rate| *rate > 0);
            let streams = self.streams;
            let task = Messages {
                protocol,
                streams,
                backward,
                length,
                bits_per_second,
                sockets,
                ..Messages::default()
            };
            NamedTask { name, task: Task::Messages(task.when_due()) }
        };
        self.with_ping(self.ways().iter().map(task).collect())
    }

    fn bulk(&self, sockets: &Sockets) -> Vec<NamedTask> {
        let task = |&backward: &bool| {
            let way = if backward { Way::Backward } else { Way::Forward };
            let task = Task::Bulk(Job {
                streams: self.streams,
                write_bytes: self.length.unwrap_or(256 * 1024),
                congestion: sockets.congestion,
                shape: Shape { way, window: sockets.window, mss: sockets.mss },
                ..Job::default()
            });
            NamedTask { name: named("TCP", backward), task }
        };
        self.with_ping(self.ways().iter().map(task).collect())
    }

    fn with_ping(&self, mut tasks: Vec<NamedTask>) -> Vec<NamedTask> {
        if self.ping {
            let task = exchange(Protocol::Udp, (64, 64), 1, Some(PING_EVERY_US));
            tasks.push(NamedTask { name: "ping under the load".into(), task });
        }
        tasks
    }
}

fn named(protocol: &str, backward: bool) -> String {
    format!("{protocol} {}", if backward { "to the client" } else { "from the client" })
}

fn exchange(
    protocol: Protocol,
    (request, response): (u32, u32),
    streams: u32,
    every_us: Option<u32>,
) -> Task {
    Task::Exchange(Exchange { protocol, streams, request, response, every_us, ..Exchange::default() })
}

impl StreamArgs {
    /// # Errors
    /// In words, if something does not fit together.
    pub fn plan(&self) -> Result<LoadPlan, String> {
        let sockets = Sockets { mss: self.set_mss, ..self.flow.sockets() };
        let flow = &self.flow;
        let tasks = if self.udp {
            flow.messages(Protocol::Udp, flow.bitrate.or(Some(UDP_RATE)), DATAGRAM_BYTES, &sockets)
        } else if self.stamped || flow.bitrate.is_some() {
            flow.messages(Protocol::Tcp, flow.bitrate, MESSAGE_BYTES, &sockets)
        } else {
            flow.bulk(&sockets)
        };
        self.path.plan("stream", tasks)
    }
}

impl UdpArgs {
    /// # Errors
    /// See [`StreamArgs::plan`].
    pub fn plan(&self) -> Result<LoadPlan, String> {
        let rate = self.flow.bitrate.or(Some(UDP_RATE));
        let mut tasks = self.flow.messages(Protocol::Udp, rate, DATAGRAM_BYTES, &self.flow.sockets());
        for task in tasks.iter_mut().map(|named| &mut named.task).filter(|_| self.imix) {
            if let Task::Messages(work) = task {
                *work = work.clone().mixed().when_due();
            }
        }
        let plan = self.path.plan("udp", tasks)?;
        if self.search && self.path.hosts.pairs.len() > 1 {
            return Err(
                "--search takes a single --pair: pairs that are measured at once disturb each other".into()
            );
        }
        Ok(LoadPlan { search: self.search.then_some(self.search_loss), ..plan })
    }
}

impl RrArgs {
    /// # Errors
    /// See [`StreamArgs::plan`].
    pub fn plan(&self) -> Result<LoadPlan, String> {
        let (protocol, word) = if self.udp { (Protocol::Udp, "UDP") } else { (Protocol::Tcp, "TCP") };
        let name = format!("{word} requests {}/{}", self.size.0, self.size.1);
        if self.flows.is_empty() {
            let task = exchange(protocol, self.size, self.streams, None);
            return self.path.plan("rr", vec![NamedTask { name, task }]);
        }
        let (streams, request, flows) = (self.streams, FLOW_REQUEST_BYTES, self.flows.clone());
        let task = Task::Exchange(Exchange { streams, request, flows, ..Exchange::default() });
        let sizes: Vec<String> = self.flows.iter().map(u32::to_string).collect();
        self.path.plan("rr", vec![NamedTask { name: format!("flows of {} bytes", sizes.join(", ")), task }])
    }
}

fn interval(text: &str) -> Result<f64, String> {
    match seconds_or_none(text)? {
        value if value >= 0.01 => Ok(value),
        _ => Err("at least 0.01 seconds between points, please".into()),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    if (0.0..100.0).contains(&value) { Ok(value) } else { Err("from 0 to below 100 percent, please".into()) }
}

/// A number with K, M or G, of which each is `step` times the one before.
fn scaled(text: &str, step: f64) -> Result<f64, String> {
    let (digits, power) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1),
        Some((at, 'm' | 'M')) => (&text[..at], 2),
        Some((at, 'g' | 'G')) => (&text[..at], 3),
        _ => (text, 0),
    };
    let value: f64 = digits.parse().map_err(|_| format!("`{text}` is no number; for example 13M"))?;
    let value = value * step.powi(power);
    if (0.0..=1e15).contains(&value) { Ok(value) } else { Err(format!("`{text}` is out of range")) }
}

/// A rate as iperf3 reads it: decimal prefixes.
pub(super) fn rate(text: &str) -> Result<u64, String> {
    Ok(scaled(text, 1e3)? as u64)
}

/// A size as iperf3 reads it, with binary prefixes; also with a unit, as in 1MiB.
pub(super) fn size(text: &str) -> Result<u32, String> {
    match scaled(text.trim_end_matches(['b', 'B']).trim_end_matches('i'), 1024.0)? {
        value if (1.0..=f64::from(u32::MAX)).contains(&value) => Ok(value as u32),
        _ => Err(format!("`{text}` is out of range")),
    }
}

fn sizes(text: &str) -> Result<(u32, u32), String> {
    let (request, response) =
        text.split_once('/').ok_or_else(|| format!("`{text}` is no pair of sizes; for example 516/4"))?;
    Ok((size(request)?, size(response)?))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::load::message::open_loop::OpenLoop;

    fn plan(line: &str) -> Result<LoadPlan, String> {
        match Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())?.command {
            Some(Command::Stream(args)) => args.plan(),
            Some(Command::Udp(args)) => args.plan(),
            Some(Command::Rr(args)) => args.plan(),
            _ => Err("another command".into()),
        }
    }

    fn messages(task: &NamedTask) -> &Messages {
        let Task::Messages(messages) = &task.task else { panic!("{task:?}") };
        messages
    }

    #[test]
    fn iperfs_flags_mean_what_they_mean_there() {
        let two_way =
            plan("trafficspeed stream --vpn none --bidir -P 4 -t 2 -O 1 -i 0.5 -M 1334 -w 32K").unwrap();
        let ways: Vec<_> = two_way.tasks.iter().map(|named| named.name.as_str()).collect();
        assert_eq!(ways, ["TCP from the client", "TCP to the client"]);
        let Task::Bulk(job) = &two_way.tasks[1].task else { panic!("bulk data") };
        assert_eq!(job.shape, Shape { way: Way::Backward, window: Some(32_768), mss: Some(1334) });
        assert_eq!((job.streams, two_way.times.interval), (4, Duration::from_millis(500)));

        let video = plan("trafficspeed udp -b 13M -l 500 -R --ip 6").unwrap();
        let work = messages(&video.tasks[0]);
        assert_eq!((work.bits_per_second, work.length, work.backward), (Some(13_000_000), 500, true));
        assert_eq!((video.ip, video.search), (6, None));
        assert_eq!(work.open_loop, Some(OpenLoop::EVEN), "each when it is due");
        assert_eq!(messages(&plan("trafficspeed udp -b 1G").unwrap().tasks[0]).open_loop, None);
        assert_eq!(
            messages(&plan("trafficspeed stream -u").unwrap().tasks[0]).bits_per_second,
            Some(1_000_000)
        );
        assert_eq!(messages(&plan("trafficspeed udp -b 0").unwrap().tasks[0]).bits_per_second, None);
        assert_eq!(messages(&plan("trafficspeed stream -b 1G").unwrap().tasks[0]).protocol, Protocol::Tcp);
        assert_eq!(plan("trafficspeed udp --search -l 64").unwrap().search, Some(0.1));
    }

    #[test]
    fn requests_have_two_sizes_and_a_ping_runs_with_the_load() {
        let rr = plan("trafficspeed rr -u --size 516/4 -P 3").unwrap();
        let Task::Exchange(work) = &rr.tasks[0].task else { panic!("requests") };
        assert_eq!((work.request, work.response, work.streams), (516, 4, 3));
        let ping = plan("trafficspeed stream --ping").unwrap();
        assert!(matches!(&ping.tasks[1].task, Task::Exchange(work) if work.every_us == Some(PING_EVERY_US)));
    }

    #[test]
    fn each_client_of_several_does_what_one_would_do() {
        let [one, many] =
            ["", "--clients 5"].map(|more| plan(&format!("trafficspeed udp -b 4M -P 2 {more}")).unwrap());
        assert_eq!((one.clients, many.clients), (1, 5));
        assert_eq!(one.tasks[0].task, many.tasks[0].task);
        for line in ["stream --ping", "rr -u", "udp --search", "stream --topology routers --gateway-cpu 1"] {
            assert_eq!(plan(&format!("trafficspeed {line} --clients 254")).unwrap().clients, 254, "{line}");
        }
    }

    #[test]
    fn real_hosts_take_the_place_of_the_lab() {
        let plan =
            plan("trafficspeed rr --pair a=b/10.0.0.1 --pair c=d --token-file t --label wire -t 2").unwrap();
        let MeasuredPath::Hosts(hosts_plan) = &plan.path else { panic!("{plan:?}") };
        assert_eq!((hosts_plan.pairs.len(), hosts_plan.label.as_str()), (2, "wire"));
    }

    #[test]
    fn bad_input_is_refused_with_what_would_be_right() {
        for (line, expected) in [
            ("trafficspeed stream --vpn ciscovpn", "possible values"),
            ("trafficspeed stream --cipher rot13", "chacha20-poly1305"),
            ("trafficspeed stream --to moon", "gateway"),
            ("trafficspeed stream -b x", "for example 13M"),
            ("trafficspeed stream -b -5", "error"),
            ("trafficspeed stream -f x", "k, m, g or t"),
            ("trafficspeed stream -i 0", "at least 0.01"),
            ("trafficspeed stream -R --bidir", "cannot be used with"),
            ("trafficspeed udp -l 10", "24 to 65000"),
            ("trafficspeed udp -l 1M", "24 to 65000"),
            ("trafficspeed udp --search -b 1M", "cannot be used with"),
            ("trafficspeed udp --pair a=b", "--token-file"),
            ("trafficspeed udp --token-file t", "--pair"),
            ("trafficspeed udp --pair a=b --token-file t --vpn none", "cannot be used with '--vpn"),
            ("trafficspeed udp --pair a=b --token-file t --delay 1ms", "cannot be used with"),
            ("trafficspeed udp --pair a=b --token-file t --to client", "cannot be used with '--to"),
            ("trafficspeed udp --pair a=b --pair c=d --token-file t --search", "single --pair"),
            ("trafficspeed rr --pair a=b --token-file t --clients 2", "cannot be used with '--clients"),
            ("trafficspeed rr --clients 3 --to client", "trafficspeed --clients 4"),
            ("trafficspeed rr --clients 0", "1..=254"),
            ("trafficspeed rr --clients 255", "1..=254"),
            ("trafficspeed udp -P 500", "1 to 128"),
            ("trafficspeed rr --size 5", "for example 516/4"),
            ("trafficspeed rr --size 0/4", "out of range"),
            ("trafficspeed rr --size 1/70K", "1 to 60000"),
        ] {
            let error = plan(line).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
