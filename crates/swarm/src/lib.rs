//! Load in vpnd's own protocol, or WireGuard's: many sessions from few processes, each as an
//! ordinary client would keep it.
//!
//! A coordinator (`vpnd-endurance sessions`, `vpnd-endurance soak`) starts processes
//! ([`processes`]) that run [`run`]. Each gets [`message::Command`]s on standard input and writes
//! [`message::Report`]s to standard output, which [`tally`] adds up; [`hold`] does the same in a
//! thread. Nothing here knows
//! laboratories, namespaces or gateways: a process works where its coordinator has put it.

#![allow(
    missing_docs,
    reason = "nothing here is an interface for other programs; a line that repeats a name is worse than none"
)]

pub mod churn;
mod dial;
pub mod load;
mod member;
pub mod message;
mod ping;
pub mod processes;
mod swarm;
mod sys;
pub mod tally;
pub mod wireguard;

pub use swarm::{SwarmError, hold, run};

use rustix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC, which coordinator and processes share: an instant in a report means the same to
/// each of them.
pub fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// The clock by which the kernel notes when a datagram arrived.
fn wall_ns() -> u64 {
    nanoseconds(ClockId::Realtime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    // INVARIANT: both clocks count up from zero, so neither field is negative.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
