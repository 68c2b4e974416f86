//! Wire format and sessions of vpnd.
//!
//! Everything here is a pure state machine: no sockets, clock, threads or randomness. Time, random
//! bytes and datagrams are arguments, so that one test can run thousands of clients in virtual
//! time. `docs/PROTOCOL.md` is the specification; modules cite its sections.
#![forbid(unsafe_code)]

pub mod admission;
pub mod attach;
pub mod client;
pub mod control;
pub mod device;
pub mod flows;
pub mod gateway;
pub mod inband;
pub mod lane;
pub mod plane;
pub mod pmtu;
pub mod policy;
pub mod rate;
pub mod replay;
pub mod route;
pub mod session;
pub mod time;
pub mod timer;
pub mod wire;
pub mod wireguard;
