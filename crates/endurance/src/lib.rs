//! The parts of `vpnd-endurance`, which measures vpnd's gateway alone: many sessions, what active
//! ones cost, hours of churn.
//!
//! `experiment` drives `trafficspeed`'s laboratories and the processes of `vpnd_swarm`, and returns
//! plain data that `report` shows. What compares VPNs is none of its business.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![allow(
    missing_docs,
    reason = "nothing here is an interface; a line that repeats a name is worse than none"
)]

pub mod cli;
pub mod experiment;
pub mod report;
