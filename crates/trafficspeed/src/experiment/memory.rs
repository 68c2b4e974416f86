//! Whether a measurement fits into this machine's memory, asked before anything is changed.
//!
//! One system runs at a time, so it is the largest number of clients that counts. The estimate is
//! for ordinary daemons and the kernel's default socket buffers; it errs on the side of refusing.

use super::outcome::Settings;
use crate::observe::memory_mib;

/// Gateway, coordinator and the lab itself, in MiB.
const BASE_MIB: u64 = 128;
/// One client's VPN process and generator, in MiB.
const CLIENT_MIB: u64 = 48;
/// Kernel memory for both ends of one connection, in KiB.
const CONNECTION_KIB: u64 = 1024;

/// The machine is too small for what was asked.
#[derive(Debug, thiserror::Error)]
#[error(
    "{clients} clients with {streams} connections per pair need about {needed_mib} MiB of memory and \
     {available_mib} MiB are available; take fewer clients (--clients) or connections (-P)"
)]
pub struct TooLittle {
    clients: u32,
    streams: u32,
    needed_mib: u64,
    available_mib: u64,
}

/// Refuses a measurement with more `clients` than memory allows. A kernel that does not say what it
/// has is believed to have enough.
pub fn check(clients: u32, settings: &Settings) -> Result<(), TooLittle> {
    fits(clients, settings.streams, memory_mib("MemAvailable:"))
}

fn fits(clients: u32, streams: u32, available: Option<u64>) -> Result<(), TooLittle> {
    let needed_mib = needed_mib(clients, streams);
    match available {
        Some(available_mib) if available_mib < needed_mib => {
            Err(TooLittle { clients, streams, needed_mib, available_mib })
        }
        _ => Ok(()),
    }
}

fn needed_mib(clients: u32, streams: u32) -> u64 {
    let connections = u64::from(clients / 2) * u64::from(streams);
    BASE_MIB + u64::from(clients) * CLIENT_MIB + connections * CONNECTION_KIB / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_estimated_and_too_much_is_refused() {
        assert_eq!(needed_mib(2, 32), 128 + 96 + 32);
        assert_eq!(needed_mib(16, 32), 128 + 768 + 256);
        assert!(fits(16, 32, Some(1152)).is_ok() && fits(16, 32, None).is_ok());
        let refusal = fits(16, 32, Some(1151)).unwrap_err().to_string();
        for expected in ["16 clients", "1152 MiB", "1151 MiB are available", "--clients", "-P"] {
            assert!(refusal.contains(expected), "{expected}: {refusal}");
        }
    }

    #[test]
    fn this_machine_says_what_it_has() {
        assert!(memory_mib("MemAvailable:").is_some_and(|mib| mib > 0));
    }
}
