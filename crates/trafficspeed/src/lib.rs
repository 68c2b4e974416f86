//! The parts of `trafficspeed`, which measures what a VPN carries as its clients grow.
//!
//! `experiment` drives `lab` (namespaces), `system` (VPNs), `coordinate` (agents on lab clients or
//! real hosts) and `load` (the generators that agents run), and returns plain data that `report`
//! shows. `doctor` says which VPNs this machine can measure. What speaks vpnd's own protocol is the
//! crate `vpnd-endurance`, which uses this one.
//!
//! A library for the program, its tests and `vpnd-endurance`: nothing here is an interface for
//! others, and nothing depends on the internals of any VPN.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![allow(
    missing_docs,
    reason = "nothing here is an interface; a line that repeats a name is worse than none"
)]

pub mod cli;
pub mod clock;
pub mod coordinate;
pub mod csv_table;
pub mod doctor;
pub mod experiment;
pub mod interrupt;
pub mod lab;
pub mod line;
pub mod load;
pub mod observation;
pub mod observe;
pub mod output;
pub mod own_processes;
pub mod report;
pub mod stats;
pub mod sys;
pub mod system;
pub mod terminal;
pub mod unit;

/// The version that `--version` prints: the package's if one is being built.
pub const VERSION: &str = match option_env!("VPND_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};
