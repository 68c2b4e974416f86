//! The operating-system layer of vpnd: devices, sockets, routes, name servers, firewall, files and
//! the process itself.
//!
//! Each module wraps one service of the kernel or of files and does not use sessions, keys or
//! policy: it takes what to do as an argument and reports what the kernel gave. This is the only
//! crate of the daemon in which `unsafe` is allowed; each block has its reason.
// A library in form only: its users are the daemon's other crates.
#![allow(missing_docs)]
#![allow(unsafe_code)]

pub mod account;
pub mod address_race;
pub mod aio;
pub mod allowance;
pub mod allowances;
pub mod bpf;
pub mod browser;
pub mod change;
pub mod clock;
pub mod conntrack;
pub mod control_socket;
pub mod date;
pub mod dial;
pub mod dns;
pub mod file_watch;
pub mod firewall_copy;
pub mod kernel_clock;
pub mod lock;
pub mod log_limit;
pub mod logging;
pub mod namespace;
mod netfilter;
pub mod netlink;
pub mod nft;
pub mod nft_listing;
pub mod own_file;
pub mod port_blocks;
pub mod process;
pub mod random;
pub mod renewal_log;
pub mod resume_watch;
pub mod sandbox;
pub mod seccomp;
pub mod secret_file;
pub mod service_manager;
pub mod sysctl;
pub mod terminal;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod text;
pub mod tool;
pub mod tun;
pub mod udp;
