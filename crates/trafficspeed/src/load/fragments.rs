//! Leftovers of earlier traffic in the kernel's queue of fragments.
//!
//! A datagram that is longer than a packet arrives as fragments, and if one of them is lost, the
//! others wait for it until `ipfrag_time` is over (30 s by default). The queue has a limit (4 MiB
//! by default), and a full one refuses the fragments of every datagram: after a flood the next
//! measurement finds a path that carries nothing, at any rate.

use std::fs;
use std::time::{Duration, Instant};

use super::tcp::ConnectError;

/// Memory of waiting fragments that leaves room for a measurement: a sixteenth of the default
/// limit.
const HARMLESS_BYTES: u64 = 256 << 10;
/// The default of `ipfrag_time`, and a little.
const TIMEOUT: Duration = Duration::from_secs(31);
const PAUSE: Duration = Duration::from_millis(50);

/// Waits until next to no fragments wait in the namespace of this thread, at most for the kernel's
/// default of their time.
///
/// # Errors
/// [`ConnectError::Stopped`] when `stopped` returns true first.
pub fn await_few(stopped: &mut dyn FnMut() -> bool) -> Result<(), ConnectError> {
    wait_while(|| waiting_bytes() > HARMLESS_BYTES, stopped)
}

fn wait_while(
    mut is_full: impl FnMut() -> bool,
    stopped: &mut dyn FnMut() -> bool,
) -> Result<(), ConnectError> {
    let deadline = Instant::now() + TIMEOUT;
    while is_full() && Instant::now() < deadline {
        if stopped() {
            return Err(ConnectError::Stopped);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// The memory of the fragments that wait for others of their datagram.
fn waiting_bytes() -> u64 {
    let tables =
        ["sockstat", "sockstat6"].map(|name| fs::read_to_string(format!("/proc/thread-self/net/{name}")));
    tables.into_iter().flatten().map(|table| waiting_in(&table)).max().unwrap_or(0)
}

/// The memory in one of the kernel's tables; the two IP versions have a queue each.
fn waiting_in(table: &str) -> u64 {
    let line = table.lines().find(|line| line.starts_with("FRAG"));
    let memory = line.and_then(|line| line.split_whitespace().skip_while(|word| *word != "memory").nth(1));
    memory.and_then(|memory| memory.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_fragments_is_found_in_the_tables_of_both_ip_versions() {
        assert_eq!(
            waiting_in("UDP: inuse 3 mem 7\nRAW: inuse 0\nFRAG: inuse 1212 memory 4196064\n"),
            4_196_064
        );
        assert_eq!(waiting_in("RAW6: inuse 1\nFRAG6: inuse 2 memory 96\n"), 96);
        assert_eq!(waiting_in("sockets: used 1\n"), 0);
    }

    #[test]
    fn waiting_ends_with_an_empty_queue_or_a_stop() {
        let mut looks = 0;
        let emptied = wait_while(
            || {
                looks += 1;
                looks < 3
            },
            &mut || false,
        );
        assert!(emptied.is_ok() && looks == 3);
        assert!(matches!(wait_while(|| true, &mut || true), Err(ConnectError::Stopped)));
    }
}
