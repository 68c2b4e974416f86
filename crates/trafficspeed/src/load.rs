//! Traffic generators: what an agent does once two hosts are connected.
//!
//! A generator knows its peer, its job and an instant to start at. It must not know of VPNs,
//! namespaces, coordinators or reports.
//!
//! A [`task`] is one kind of load between two hosts: bulk TCP ([`tcp`]), numbered messages one way
//! ([`message`]), requests and responses ([`exchange`]), or pages of several requests at once
//! ([`page`]).

pub mod block;
pub mod congestion;
pub mod delays;
pub mod exchange;
pub mod fragments;
pub mod message;
pub mod pace;
pub mod page;
pub mod payload;
pub mod receiver_stats;
pub mod search;
pub mod task;
pub mod tcp;
pub mod udp;
pub mod worker_pool;
