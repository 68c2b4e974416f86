//! The operating-system layer: devices, sockets, routes, name servers, firewall and the process itself.
//!
//! Each module wraps one service of the kernel and does not use sessions, keys or policy: it takes what to
//! do as an argument and reports what the kernel gave. This is the only place of the crate where `unsafe` is
//! allowed; each block has its reason.
#![allow(unsafe_code)]

pub mod account;
pub mod aio;
pub mod bpf;
pub mod change;
pub mod clock;
pub mod conntrack;
pub mod dns;
pub(crate) mod file_watch;
pub mod firewall_copy;
pub mod lock;
pub mod namespace;
mod netfilter;
pub mod netlink;
pub mod nft;
pub mod nft_listing;
pub mod process;
pub mod sandbox;
pub mod seccomp;
pub mod service_manager;
pub mod sysctl;
#[cfg(test)]
pub mod testing;
pub mod tool;
pub mod tun;
pub mod udp;
