//! How one coordinator directs the hosts of a measurement.
//!
//! An *agent* runs the generator on one host: a child process inside a namespace of the lab, or a
//! session of `trafficspeed serve` on a real machine. Both speak the same lines ([`message`]), and
//! a coordinator holds them as a [`fleet::Fleet`]. Only lines over a network are authenticated
//! ([`token`]); a child's pipes need not be.

pub mod agent;
pub mod fleet;
pub mod message;
pub mod serve;
pub mod token;
