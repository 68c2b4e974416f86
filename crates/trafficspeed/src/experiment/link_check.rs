//! The emulated links alone: what was asked for and what packets really meet, so that the
//! emulator's own error is known before anything is measured through it.
//!
//! Between one client and the gateway small datagrams carry their number and the instant at which
//! they were sent; all namespaces of a machine share its clock, so the receiver knows each one's
//! one-way delay, and which are missing, came twice or were overtaken. Then a load shows the rate:
//! datagrams a little above the rate asked for or, without one, a TCP connection as fast as it
//! goes.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use rustix::net::sockopt::{set_socket_recv_buffer_size_force, set_socket_send_buffer_size_force};
use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::outcome::rate;
use crate::clock;
use crate::lab::emulator::impairment::{Impairment, Rate};
use crate::lab::emulator::{Emulation, Figures};
use crate::lab::namespace::Namespace;
use crate::lab::{Lab, LabError, LinkSettings};
use crate::load::delays::{DelaySummary, Delays};

/// Time in which a late probe may still arrive after the last one, in addition to the link's delay.
const GRACE: Duration = Duration::from_millis(500);
/// Socket buffers, so that no end loses what the link carried.
const BUFFER_BYTES: usize = 16 << 20;
/// Payload of a probe: its number and when it was sent.
const PROBE_BYTES: usize = 16;
/// Payload of a datagram of the load, and its bytes on the link: Ethernet, IPv4 and UDP headers.
const LOAD_PAYLOAD: usize = 1200;
const LOAD_FRAME: u64 = LOAD_PAYLOAD as u64 + 14 + 20 + 8;
/// The load exceeds the rate asked for by this factor.
const EXCESS: f64 = 1.2;
/// Longest wait of a reader before it looks at the clock.
const READ_TIMEOUT: Duration = Duration::from_millis(100);
const MAX_PROBES: u64 = 100_000_000;

#[derive(Clone, Copy, Debug)]
pub struct LinkCheckPlan {
    pub links: LinkSettings,
    /// The emulation, which is always there.
    pub emulation: Emulation,
    /// Time to probe, and time to load.
    pub duration: Duration,
    /// Probes per second, each way.
    pub probes_per_second: u32,
}

/// Asked for and got, both ways.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkChecked {
    pub environment: Environment,
    /// The link in words.
    pub link: String,
    /// Super-packets of up to 64 KiB cross whole.
    pub super_packets: bool,
    /// From the client to the gateway.
    pub up: Way,
    /// From the gateway to the client.
    pub down: Way,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Way {
    pub asked: Asked,
    /// The findings of the probes.
    pub probes: Probes,
    /// Rate of the load in bits of frames (UDP) or of payload (TCP) per second.
    pub bits_per_second: f64,
    /// The emulator's own account.
    pub emulator: Option<Figures>,
}

/// The link that was asked for, as numbers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Asked {
    pub delay_us: f64,
    /// Give or take, µs.
    pub jitter_us: f64,
    pub loss_percent: f64,
    pub reorder_percent: f64,
    pub bits_per_second: Option<u64>,
}

/// The findings of the probes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Probes {
    pub sent: u64,
    /// Numbers that arrived at least once.
    pub arrived: u64,
    /// Arrivals of a number that had arrived before.
    pub twice: u64,
    /// Arrivals behind a later number.
    pub overtaken: u64,
    /// Mean length of a run of lost numbers.
    pub mean_burst: f64,
    pub delay: DelaySummary,
}

impl Probes {
    pub fn lost_percent(&self) -> f64 {
        percent(self.sent - self.arrived.min(self.sent), self.sent)
    }

    /// Came twice, percent of those that came.
    pub fn twice_percent(&self) -> f64 {
        percent(self.twice, self.arrived)
    }

    /// Were overtaken, percent of those that came.
    pub fn overtaken_percent(&self) -> f64 {
        percent(self.overtaken, self.arrived)
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

impl From<&Impairment> for Asked {
    fn from(way: &Impairment) -> Self {
        Self {
            delay_us: way.delay.ns as f64 / 1e3,
            jitter_us: way.jitter.ns as f64 / 1e3,
            loss_percent: way.loss.fraction() * 100.0,
            reorder_percent: way.reorder.fraction() * 100.0,
            bits_per_second: way.rate.map(|rate| rate.bits_per_second),
        }
    }
}

/// Builds a link, measures it both ways and removes it.
pub fn run(plan: &LinkCheckPlan) -> Result<LinkChecked, LabError> {
    let lab = Lab::build(1, plan.links)?;
    let (client, gateway) = (&lab.clients()[0], lab.gateway());
    let (client_at, gateway_at) = (IpAddr::from(Lab::client_v4(1)), IpAddr::from(Lab::gateway_v4(1)));
    let Emulation { up, down, .. } = plan.emulation;
    // The first packet would wait for the neighbour's address; that is no delay of the link.
    probe(plan, &up, (client, gateway, gateway_at), Duration::from_millis(100))?;
    let (up_probes, down_probes) = std::thread::scope(|scope| {
        let up = scope.spawn(|| probe(plan, &up, (client, gateway, gateway_at), plan.duration));
        let down = probe(plan, &down, (gateway, client, client_at), plan.duration);
        (up.join().expect("probing does not panic"), down)
    });
    let up_rate = load(plan, &up, (client, gateway, gateway_at))?;
    let down_rate = load(plan, &down, (gateway, client, client_at))?;
    let mut observed =
        lab.emulator().map(|emulator| emulator.observed().map(|way| way.figures())).into_iter();
    let [up_figures, down_figures] = observed.next().map_or([None; 2], |figures| figures.map(Some));
    let way = |asked: &Impairment, probes, bits_per_second, emulator| Way {
        asked: asked.into(),
        probes,
        bits_per_second,
        emulator,
    };
    Ok(LinkChecked {
        environment: Environment::read(Some(plan.links)),
        link: plan.emulation.to_string(),
        super_packets: lab.emulator().is_some_and(crate::lab::emulator::Emulator::super_packets),
        up: way(&up, up_probes?, up_rate, up_figures),
        down: way(&down, down_probes?, down_rate, down_figures),
    })
}

/// From which namespace to which, and where the second is reached.
type Path<'a> = (&'a Namespace, &'a Namespace, IpAddr);

fn failed(action: &str) -> impl Fn(io::Error) -> LabError {
    move |source| LabError::System { action: action.to_owned(), source }
}

/// The longest that a packet may be under way.
fn longest(way: &Impairment) -> Duration {
    let queue_ns = way.rate.map_or(0, |rate| queue_ns(way, rate));
    Duration::from_nanos(way.delay.ns + way.jitter.ns + way.reorder_late.ns + queue_ns) + GRACE
}

fn queue_ns(way: &Impairment, rate: Rate) -> u64 {
    use crate::lab::emulator::impairment::QueueLimit::{Bytes, Packets, Time};
    let bytes = match way.queue_limit(rate) {
        Time(span) => return span.ns,
        Bytes(bytes) => bytes,
        Packets(packets) => packets.saturating_mul(1514),
    };
    // At most ten seconds are waited for a queue, however long it could be.
    let ns = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(rate.bits_per_second);
    ns.min(10_000_000_000) as u64
}

fn socket_in(namespace: &Namespace, address: IpAddr) -> Result<UdpSocket, LabError> {
    namespace.within(|| {
        let make = || {
            let socket = UdpSocket::bind(SocketAddr::new(address, 0))?;
            set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES)?;
            set_socket_send_buffer_size_force(&socket, BUFFER_BYTES)?;
            socket.set_read_timeout(Some(READ_TIMEOUT))?;
            Ok(socket)
        };
        make().map_err(failed("making a socket for probes"))
    })
}

/// A sender and a receiver that know each other.
fn sockets((from, to, address): Path<'_>) -> Result<(UdpSocket, UdpSocket), LabError> {
    let receiver = socket_in(to, address)?;
    let sender = socket_in(from, IpAddr::from([0, 0, 0, 0]))?;
    let peer = receiver.local_addr().map_err(failed("asking for the port of the probes"))?;
    sender.connect(peer).map_err(failed("finding the way of the probes"))?;
    Ok((sender, receiver))
}

/// Sends probes for `duration` and says what became of them.
fn probe(
    plan: &LinkCheckPlan,
    way: &Impairment,
    path: Path<'_>,
    duration: Duration,
) -> Result<Probes, LabError> {
    let (sender, receiver) = sockets(path)?;
    let interval_ns = 1_000_000_000 / u64::from(plan.probes_per_second);
    let count = (duration.as_nanos() as u64 / interval_ns).clamp(1, MAX_PROBES);
    let start_ns = clock::now_ns() + 10_000_000;
    let end_ns = start_ns + count * interval_ns + longest(way).as_nanos() as u64;
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| receive_probes(&receiver, count, end_ns));
        for number in 0..count {
            clock::sleep_until(start_ns + number * interval_ns);
            let mut probe = [0; PROBE_BYTES];
            probe[..8].copy_from_slice(&number.to_le_bytes());
            probe[8..].copy_from_slice(&clock::now_ns().to_le_bytes());
            // One that the kernel does not take counts as lost: it was sent as far as this program
            // can tell.
            let _ = sender.send(&probe);
        }
        receiving.join().expect("receiving does not panic")
    })
    .map_err(failed("receiving probes"))
}

fn receive_probes(receiver: &UdpSocket, count: u64, end_ns: u64) -> io::Result<Probes> {
    let mut tally = Tally::new(count);
    let mut buffer = [0; 2048];
    while clock::now_ns() < end_ns {
        match receiver.recv(&mut buffer) {
            Ok(PROBE_BYTES) => {
                let now_ns = clock::now_ns();
                let word = |at: usize| buffer[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
                tally.arrival(word(0), now_ns.saturating_sub(word(8)));
            }
            Ok(_) => {}
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(tally.probes())
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// Counts arrivals by their numbers.
struct Tally {
    seen: Vec<bool>,
    highest: Option<u64>,
    twice: u64,
    overtaken: u64,
    delays: Delays,
}

impl Tally {
    fn new(count: u64) -> Self {
        let seen = vec![false; count as usize];
        Self { seen, highest: None, twice: 0, overtaken: 0, delays: Delays::default() }
    }

    fn arrival(&mut self, number: u64, delay_ns: u64) {
        // A number that was never sent is no probe of ours.
        let Some(seen) = self.seen.get_mut(number as usize) else { return };
        if std::mem::replace(seen, true) {
            self.twice += 1;
            return;
        }
        self.delays.record(delay_ns);
        if self.highest.is_some_and(|highest| highest > number) {
            self.overtaken += 1;
        }
        self.highest = self.highest.max(Some(number));
    }

    fn probes(&self) -> Probes {
        let arrived = self.seen.iter().filter(|seen| **seen).count() as u64;
        let lost = self.seen.len() as u64 - arrived;
        let begins = self.seen.windows(2).filter(|pair| pair[0] && !pair[1]).count()
            + usize::from(self.seen.first() == Some(&false));
        Probes {
            sent: self.seen.len() as u64,
            arrived,
            twice: self.twice,
            overtaken: self.overtaken,
            mean_burst: if begins == 0 { 0.0 } else { lost as f64 / begins as f64 },
            delay: self.delays.summary().unwrap_or_default(),
        }
    }
}

/// The rate that gets through, in bits per second.
fn load(plan: &LinkCheckPlan, way: &Impairment, path: Path<'_>) -> Result<f64, LabError> {
    match way.rate {
        Some(rate) => datagrams(plan, way, path, rate),
        None => stream(plan, path).map_err(failed("loading the link by TCP")),
    }
}

/// Datagrams a little above the rate asked for; counted are the bits of frames between the first
/// and the last arrival.
fn datagrams(plan: &LinkCheckPlan, way: &Impairment, path: Path<'_>, asked: Rate) -> Result<f64, LabError> {
    let (sender, receiver) = sockets(path)?;
    let gap_ns = LOAD_FRAME as f64 * 8e9 / (asked.bits_per_second as f64 * EXCESS);
    let start_ns = clock::now_ns() + 10_000_000;
    let stop_ns = start_ns + plan.duration.as_nanos() as u64;
    let end_ns = stop_ns + longest(way).as_nanos() as u64;
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| receive_load(&receiver, end_ns));
        let payload = [0x5a; LOAD_PAYLOAD];
        let mut sent = 0_u64;
        while clock::now_ns() < stop_ns {
            let due = ((clock::now_ns().saturating_sub(start_ns)) as f64 / gap_ns) as u64;
            while sent < due {
                // One that finds no room is missing from what arrives, which is what is measured.
                let _ = sender.send(&payload);
                sent += 1;
            }
            clock::sleep_until(start_ns + (sent as f64 * gap_ns) as u64);
        }
        receiving.join().expect("receiving does not panic")
    })
    .map_err(failed("receiving the load"))
}

fn receive_load(receiver: &UdpSocket, end_ns: u64) -> io::Result<f64> {
    let mut buffer = [0; 2048];
    let (mut first_ns, mut last_ns, mut count) = (None, 0, 0_u64);
    while clock::now_ns() < end_ns {
        match receiver.recv(&mut buffer) {
            Ok(_) => {
                last_ns = clock::now_ns();
                first_ns = first_ns.or(Some(last_ns));
                count += 1;
            }
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error),
        }
    }
    // The first arrival only starts the watch.
    let seconds = first_ns.map_or(0.0, |first| (last_ns - first) as f64 / 1e9);
    Ok(rate(count.saturating_sub(1) * LOAD_FRAME, seconds))
}

/// One TCP connection for the duration, after as long again (at most a second) to get going.
fn stream(plan: &LinkCheckPlan, (from, to, address): Path<'_>) -> io::Result<f64> {
    let listen = || TcpListener::bind(SocketAddr::new(address, 0)).map_err(failed("listening"));
    let listener = to.within(listen).map_err(io::Error::other)?;
    let peer = listener.local_addr()?;
    let (warmup, congestion) = (plan.duration.min(Duration::from_secs(1)), plan.links.congestion);
    std::thread::scope(|scope| {
        let connect = || congestion.connect(peer, Duration::from_secs(20)).map_err(failed("connecting"));
        let mut sender = from.within(connect).map_err(io::Error::other)?;
        let (mut receiver, _) = listener.accept()?;
        receiver.set_read_timeout(Some(Duration::from_secs(20)))?;
        sender.set_write_timeout(Some(Duration::from_secs(20)))?;
        let receiving = scope.spawn(move || {
            let mut buffer = vec![0; 256 << 10];
            let begin_ns = clock::now_ns() + warmup.as_nanos() as u64;
            let end_ns = begin_ns + plan.duration.as_nanos() as u64;
            let mut bytes = 0;
            loop {
                let read = receiver.read(&mut buffer)? as u64;
                let now_ns = clock::now_ns();
                if now_ns > end_ns || read == 0 {
                    return Ok(rate(bytes, plan.duration.as_secs_f64()));
                }
                bytes += if now_ns >= begin_ns { read } else { 0 };
            }
        });
        let chunk = vec![0x5a; 256 << 10];
        // It ends when the receiver has seen enough and closes.
        while sender.write_all(&chunk).is_ok() {}
        receiving.join().expect("receiving does not panic")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tally_distinguishes_loss_copies_and_order() {
        let mut tally = Tally::new(10);
        for (number, delay_us) in [(0, 100), (1, 100), (4, 100), (3, 300), (4, 900), (5, 100), (99, 1)] {
            tally.arrival(number, delay_us * 1000);
        }
        let probes = tally.probes();
        assert_eq!((probes.sent, probes.arrived, probes.twice, probes.overtaken), (10, 5, 1, 1));
        // Lost are 2, and 6 to 9.
        assert!((probes.mean_burst - 2.5).abs() < 1e-9);
        assert!((probes.lost_percent() - 50.0).abs() < 1e-9);
        assert_eq!(probes.delay.count, 5, "a copy is no delay of its own");
        assert!(
            (probes.overtaken_percent() - 20.0).abs() < 1e-9 && (probes.twice_percent() - 20.0).abs() < 1e-9
        );
    }

    #[test]
    fn nothing_sent_is_no_division_by_zero() {
        assert_eq!(Tally::new(0).probes(), Probes::default());
        assert_eq!(Probes::default().lost_percent(), 0.0);
    }

    #[test]
    fn the_wait_for_the_last_packet_covers_a_full_queue_and_is_bounded() {
        let rate = Rate { bits_per_second: 8_000_000 };
        let way =
            |queue: &str| Impairment { queue: queue.parse().ok(), rate: Some(rate), ..Impairment::default() };
        assert_eq!(queue_ns(&way("1mb"), rate), 1_000_000_000);
        assert_eq!(queue_ns(&way("250ms"), rate), 250_000_000);
        assert_eq!(queue_ns(&way("1000p"), rate), 1_514_000_000);
        assert_eq!(queue_ns(&way("1000000000p"), rate), 10_000_000_000);
    }
}
