//! Emulated links: delay, jitter, loss, reordering, rate and queue, each direction by itself,
//! seeded.
//!
//! ```text
//!   gateway: cN (TAP)  <── thread ──  eth0 (TAP): client N
//!                       ── thread ──>
//! ```
//!
//! Instead of a veth pair the two ends are TAP devices, and a thread for each direction carries the
//! frames from one to the other in user space, whatever system runs above. `decision` decides about
//! each packet, `transit` holds those that are under way, `pump` is the thin shell around them.
//!
//! INVARIANT: what is held under way is bounded by [`HELD_BYTES`] for each direction and
//! [`HELD_BYTES_TOTAL`] for all; a packet beyond it is dropped and counted as *overrun*, so a
//! figure that the emulator spoilt can be told.

pub mod decision;
pub mod impairment;
mod pump;
pub mod transit;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};

use super::LabError;
use super::namespace::Namespace;
use crate::load::delays::Delays;
use crate::sys::tap::Tap;
use decision::Decisions;
use impairment::{Impairment, ImpairmentError};
use pump::Pump;

/// Most bytes held for one direction: 64 ms at 16 Gbit/s.
pub const HELD_BYTES: usize = 128 << 20;
/// Most bytes held for all directions of a lab.
pub const HELD_BYTES_TOTAL: usize = 2 << 30;

/// The impairments of every client's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emulation {
    /// From the client to the gateway.
    pub up: Impairment,
    /// From the gateway to the client.
    pub down: Impairment,
    /// Seed of all chance; each direction of each link gets another from it.
    pub seed: u64,
}

impl Emulation {
    /// A link that does nothing but take `delay` each way.
    pub fn delay(delay: impairment::Span) -> Self {
        let way = Impairment { delay, ..Impairment::default() };
        Self { up: way, down: way, seed: 1 }
    }

    /// Whether frames must cross one by one (see [`Impairment::needs_single_packets`]).
    pub fn needs_single_packets(&self) -> bool {
        self.up.needs_single_packets() || self.down.needs_single_packets()
    }

    /// Says what makes no sense.
    ///
    /// # Errors
    /// [`ImpairmentError`] of the first direction that does not.
    pub fn check(&self) -> Result<(), ImpairmentError> {
        self.up.check().and(self.down.check())
    }

    /// Finds out whether this machine can do it, before anything is made.
    ///
    /// # Errors
    /// [`LabError::Missing`], with what to do about it.
    pub fn prepare(&self) -> Result<(), LabError> {
        if Path::new("/dev/net/tun").exists() {
            return Ok(());
        }
        Err(LabError::Missing(
            "emulated links need /dev/net/tun; load it with `modprobe tun` or give the container the device"
                .into(),
        ))
    }
}

impl fmt::Display for Emulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let means = "in user space between TAP devices";
        if self.up == self.down {
            write!(f, "each way {} ({means}, seed {})", self.up, self.seed)
        } else {
            write!(f, "up {}; down {} ({means}, seed {})", self.up, self.down, self.seed)
        }
    }
}

/// The account of one direction, or of several together.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Frames that entered; a super-packet is one.
    pub entered: u64,
    /// Frames that left.
    pub left: u64,
    /// Lost because it was asked for.
    pub lost: u64,
    /// Dropped at the queue in front of a link of limited rate.
    pub queue_full: u64,
    /// Dropped because more was under way than may be held: the emulator's own fault.
    pub overrun: u64,
    /// Frames that the receiving device would not take, for example while it was down.
    pub refused: u64,
    /// How late frames left, compared with the instant decided.
    pub lateness: Delays,
    /// CPU time of the thread, ns.
    pub cpu_ns: u64,
}

impl Observed {
    /// Adds what another direction did.
    pub fn add(&mut self, other: &Self) {
        self.entered += other.entered;
        self.left += other.left;
        self.lost += other.lost;
        self.queue_full += other.queue_full;
        self.overrun += other.overrun;
        self.refused += other.refused;
        self.lateness.add(&other.lateness);
        self.cpu_ns += other.cpu_ns;
    }

    /// Its figures for a report.
    pub fn figures(&self) -> Figures {
        let late = self.lateness.summary().unwrap_or_default();
        Figures {
            entered: self.entered,
            left: self.left,
            lost: self.lost,
            queue_full: self.queue_full,
            overrun: self.overrun,
            refused: self.refused,
            late_median_us: late.p50_us,
            late_p99_us: late.p99_us,
            late_max_us: late.max_us,
            cpu_seconds: self.cpu_ns as f64 / 1e9,
        }
    }
}

/// [`Observed`] as a report shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Frames that entered; a super-packet is one.
    pub entered: u64,
    /// Frames that left.
    pub left: u64,
    /// Lost because it was asked for.
    pub lost: u64,
    /// Dropped at the queue.
    pub queue_full: u64,
    /// Dropped by the emulator's own limit.
    pub overrun: u64,
    /// Not taken by the receiving device.
    pub refused: u64,
    /// The emulator's own error: how late frames left, µs.
    pub late_median_us: f64,
    /// The 99th percentile of it, µs.
    pub late_p99_us: f64,
    /// The latest of all, µs.
    pub late_max_us: f64,
    /// CPU seconds of the emulator's threads.
    pub cpu_seconds: f64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} frames entered, {} left; {} lost and {} dropped at the queue as asked; frames left {:.0} us late \
             (median), {:.0} us (99 %), {:.0} us (latest); {:.2} CPU s",
            self.entered,
            self.left,
            self.lost,
            self.queue_full,
            self.late_median_us,
            self.late_p99_us,
            self.late_max_us,
            self.cpu_seconds,
        )?;
        if self.overrun + self.refused > 0 {
            write!(
                f,
                "; NOT ASKED FOR: {} dropped because too much was under way, {} refused by the device",
                self.overrun, self.refused
            )?;
        }
        Ok(())
    }
}

/// The offloads that a device may leave undone, and the bounds of a direction.
#[derive(Clone, Copy, Debug)]
pub struct Carriage {
    /// Super-packets cross whole.
    pub super_packets: bool,
    /// Most bytes held for each direction.
    pub held_bytes: usize,
}

impl Carriage {
    /// For a lab of `clients` links; `offload` is what the user wants of super-packets.
    pub fn new(emulation: &Emulation, offload: bool, clients: usize) -> Self {
        let share = HELD_BYTES_TOTAL / (2 * clients.max(1));
        Self {
            super_packets: offload && !emulation.needs_single_packets(),
            held_bytes: share.min(HELD_BYTES),
        }
    }
}

/// The threads that carry the frames of all links; dropping it ends them and removes the devices.
#[derive(Debug)]
pub struct Emulator {
    emulation: Emulation,
    carriage: Carriage,
    stop: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
    /// Up and down of every link, in order.
    observed: Vec<[Arc<Mutex<Observed>>; 2]>,
}

impl Emulator {
    /// No links yet.
    pub fn new(emulation: Emulation, carriage: Carriage) -> Result<Self, LabError> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| failed("making an event", error.into()))?;
        Ok(Self { emulation, carriage, stop: Arc::new(stop), threads: Vec::new(), observed: Vec::new() })
    }

    /// Makes a link: the device `gateway_device` in the gateway, `client_device` in the client, and
    /// its two threads.
    pub fn link(
        &mut self,
        (gateway, gateway_device): (&Namespace, &str),
        (client, client_device): (&Namespace, &str),
    ) -> Result<(), LabError> {
        let super_packets = self.carriage.super_packets;
        let make = |namespace: &Namespace, device: &str| {
            namespace.within(|| {
                Tap::create(device, super_packets)
                    .map(Arc::new)
                    .map_err(|error| failed(&format!("making the TAP device {device}"), error))
            })
        };
        let (near, far) = (make(gateway, gateway_device)?, make(client, client_device)?);
        let Emulation { up, down, seed, .. } = self.emulation;
        let number = self.observed.len() as u64;
        let up = self.start(&far, &near, Decisions::new(up, seed_of(seed, number, 0)))?;
        let down = self.start(&near, &far, Decisions::new(down, seed_of(seed, number, 1)))?;
        self.observed.push([up, down]);
        Ok(())
    }

    fn start(
        &mut self,
        from: &Arc<Tap>,
        to: &Arc<Tap>,
        decisions: Decisions,
    ) -> Result<Arc<Mutex<Observed>>, LabError> {
        let observed = Arc::new(Mutex::new(Observed::default()));
        let (from, to, stop) = (Arc::clone(from), Arc::clone(to), Arc::clone(&self.stop));
        let pump = Pump::new(from, to, stop, decisions, self.carriage.held_bytes, Arc::clone(&observed))
            .map_err(|error| failed("making the emulator's timer", error))?;
        let thread = std::thread::Builder::new()
            .name("link".into())
            .spawn(move || pump.run())
            .map_err(|error| failed("starting the emulator's thread", error))?;
        self.threads.push(thread);
        Ok(observed)
    }

    pub fn emulation(&self) -> &Emulation {
        &self.emulation
    }

    /// Whether super-packets cross whole.
    pub fn super_packets(&self) -> bool {
        self.carriage.super_packets
    }

    /// The emulator's part in a measurement, for the report.
    pub fn notes(&self) -> Vec<String> {
        let way =
            |(name, observed): (&str, &Observed)| format!("emulated links, {name}: {}", observed.figures());
        ["up", "down"].into_iter().zip(&self.observed()).map(way).collect()
    }

    /// The account so far: up (from all clients) and down (to all clients).
    pub fn observed(&self) -> [Observed; 2] {
        let mut sums = [Observed::default(), Observed::default()];
        for link in &self.observed {
            for (sum, way) in sums.iter_mut().zip(link) {
                sum.add(&way.lock().unwrap_or_else(PoisonError::into_inner));
            }
        }
        sums
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // The counter of an event cannot overflow by one; the threads see it at their next wait.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

fn failed(action: &str, source: std::io::Error) -> LabError {
    LabError::System { action: action.to_owned(), source }
}

/// Seeds of neighbouring links differ in every bit's chance (the finaliser of SplitMix64).
fn seed_of(seed: u64, link: u64, direction: u64) -> u64 {
    let mut mixed = seed.wrapping_add((2 * link + direction + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::impairment::{Share, Span};
    use super::*;

    #[test]
    fn every_direction_of_every_link_has_its_own_seed() {
        let mut seeds: Vec<u64> =
            (0..254).flat_map(|link| [seed_of(1, link, 0), seed_of(1, link, 1)]).collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 508);
    }

    #[test]
    fn all_links_together_hold_no_more_than_the_bound() {
        let emulation = Emulation::delay(Span { ns: 64_000_000 });
        for clients in [1, 8, 9, 254] {
            let carriage = Carriage::new(&emulation, true, clients);
            assert!(carriage.held_bytes <= HELD_BYTES);
            assert!(carriage.held_bytes * 2 * clients <= HELD_BYTES_TOTAL);
            assert!(carriage.super_packets);
        }
        assert!(!Carriage::new(&emulation, false, 1).super_packets);
        let lossy = Emulation { down: Impairment { loss: Share { ppm: 1 }, ..emulation.down }, ..emulation };
        assert!(!Carriage::new(&lossy, true, 1).super_packets, "one direction decides for the link");
    }

    #[test]
    fn unrequested_drops_of_the_emulator_are_reported() {
        let mut observed = Observed { entered: 5, left: 4, lost: 1, ..Observed::default() };
        observed.lateness.record(12_000);
        let text = observed.figures().to_string();
        assert!(text.contains("5 frames entered, 4 left; 1 lost") && text.contains("12 us late"), "{text}");
        assert!(!text.contains("NOT ASKED"), "{text}");
        observed.overrun = 1;
        assert!(observed.figures().to_string().contains("NOT ASKED FOR: 1 dropped"));
    }
}
