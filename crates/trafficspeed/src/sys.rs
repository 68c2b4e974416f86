//! The operating system where no safe wrapper exists: the only `unsafe` code of trafficspeed.
//!
//! Each module wraps one service in a safe interface.

pub mod realtime;
pub mod tap;
