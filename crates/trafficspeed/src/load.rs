//! Traffic generators: what an agent does once two hosts are connected.
//!
//! A generator knows its peer, its job and an instant to start at. It must not know of VPNs, namespaces,
//! coordinators or reports.

pub mod payload;
pub mod tcp;
