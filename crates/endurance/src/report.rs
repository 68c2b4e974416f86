//! How the results are shown. Reports are pure functions of an experiment's plain data.

pub mod capacity;
pub mod sessions;
pub mod soak;
pub mod wireguard;
