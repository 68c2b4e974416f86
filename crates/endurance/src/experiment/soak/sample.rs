//! The samples of a soak test: what the gateway's processes hold every few seconds, by the kernel
//! and by the gateway's own status.

use std::fs;

use serde::Serialize;

use trafficspeed::observe::memory::Memory;
use trafficspeed::observe::process_tree;
use trafficspeed::system::vpnd::Held;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Sample {
    /// Seconds since the first login.
    pub second: f64,
    /// Memory of the gateway's processes.
    pub memory: Memory,
    pub descriptors: u32,
    pub threads: u32,
    /// CPU seconds that they have used.
    pub cpu_seconds: f64,
    /// Sessions in the gateway's table.
    pub sessions: u32,
    /// Those with a control connection.
    pub connected: u32,
    pub leases: u32,
    /// Bytes in its state directory.
    pub store_bytes: u64,
    /// Packets and datagrams that it dropped, of all kinds.
    pub drops: u64,
    /// Sessions that are up, by their clients.
    pub up: u32,
    /// Sessions whose client left for a while.
    pub away: u32,
}

impl Sample {
    /// The columns of [`Sample::row`].
    pub const HEAD: [&str; 13] = [
        "second",
        "pss_kib",
        "rss_kib",
        "descriptors",
        "threads",
        "cpu_seconds",
        "sessions",
        "connected",
        "leases",
        "store_bytes",
        "drops",
        "up",
        "away",
    ];

    /// A sample of the process `gateway` and those below it; `None` if it has gone.
    pub fn take(gateway: u32, second: f64, held: &Held, (up, away): (u32, u32)) -> Option<Self> {
        let memory = Memory::of_tree(gateway)?;
        let tree = process_tree(&[gateway]);
        let entries = |of: &str| {
            let count =
                |(pid, _): &(u32, _)| fs::read_dir(format!("/proc/{pid}/{of}")).map_or(0, Iterator::count);
            tree.iter().map(count).sum::<usize>() as u32
        };
        Some(Self {
            second,
            memory,
            descriptors: entries("fd"),
            threads: entries("task"),
            cpu_seconds: tree.iter().map(|(_, stat)| stat.cpu_seconds).sum(),
            sessions: held.sessions,
            connected: held.connected,
            leases: held.leases,
            store_bytes: held.store_bytes,
            drops: held.counters.drops.values().sum(),
            up,
            away,
        })
    }

    /// The values of its columns.
    pub fn row(&self) -> [String; 13] {
        [
            format!("{:.1}", self.second),
            self.memory.pss_kib.to_string(),
            self.memory.rss_kib.to_string(),
            self.descriptors.to_string(),
            self.threads.to_string(),
            format!("{:.2}", self.cpu_seconds),
            self.sessions.to_string(),
            self.connected.to_string(),
            self.leases.to_string(),
            self.store_bytes.to_string(),
            self.drops.to_string(),
            self.up.to_string(),
            self.away.to_string(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_what_the_gateway_holds_and_this_process_has_all_of_the_rest() {
        let held = Held { sessions: 3, connected: 2, leases: 3, store_bytes: 9, ..Held::default() };
        let own = Sample::take(std::process::id(), 1.25, &held, (2, 1)).unwrap();
        assert!(own.descriptors >= 3 && own.threads >= 1 && own.memory.pss_kib > 0, "{own:?}");
        assert_eq!(own.row()[6..], ["3", "2", "3", "9", "0", "2", "1"]);
        assert!(Sample::take(u32::MAX, 0.0, &held, (0, 0)).is_none());
    }
}
