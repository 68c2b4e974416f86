//! Seeded simulation: a gateway and many clients in virtual time, over a network that loses,
//! doubles, delays and reorders, while a simple model checks what must always hold.
//!
//! ```text
//!  device 0 ── lanes ──┐                          ┌── shard 0 ┐
//!  device 1 ── lanes ──┼── paths (loss, delay …) ─┼── shard 1 ┼── campus
//!     …                │                          │     …     │
//!                      └── control channels ──────┴── control ┘
//! ```
//!
//! The data planes and control cores are the real ones. The control channel is modelled: reliable
//! messages whose delay grows with loss, and a secret that both ends of a connection share.
//!
//! `SIM_SEED=n` runs one seed again, `SIM_RUNS=n` tries more seeds. A failure prints its seed.
//! `SIM_PAIRS=n` makes the run that looks for repeated nonces longer.

mod behaviour;
mod channel;
mod device;
mod hub;
mod inner;
#[path = "../../../../fuzz/bodies/model.rs"]
mod model;
mod oracle;
mod path;
mod runs;
mod world;
