//! The experiments: what is run in which order, and what comes out as plain data.
//!
//! An experiment drives labs, systems and fleets and returns an [`outcome::Campaign`]; it prints
//! nothing but its progress and knows nothing of how results are shown.

pub mod block;
pub mod bulk_pairs;
pub mod compare;
pub mod cpu;
pub mod environment;
pub mod figures;
pub mod generate;
pub mod hog;
pub mod home;
pub mod hosts;
pub mod lab_agents;
pub mod link_check;
pub mod memory;
pub mod model;
pub mod outcome;
pub mod pair_run;
pub mod problems;
pub mod progress;
pub mod quantities;
pub mod suite;
pub mod testbed;
pub mod traffic;
pub mod tunnel;
pub mod turns;
pub mod verify;
pub mod watched;
