//! Keeping packets within the path: the search for its MTU, and larger packets (PROTOCOL §13).
//!
//! Sizes come in two kinds and are never mixed: an *inner MTU* counts the bytes of an inner packet
//! from its IP header on; a *datagram size* counts the UDP payload of an outer datagram. This
//! module must not know sockets, sessions or how probes are sealed.

pub mod oversize;
mod search;

pub use search::{BASE_SIZE, MAX_PROBE_ID, PathMtu, Probe, SearchConfig};
