//! What a process holds of the machine's memory, by /proc/PID/smaps_rollup.

use std::fs;

use serde::Serialize;

/// Memory of a process, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Resident: pages shared with others count in full.
    pub rss_kib: u64,
    /// Proportional: a page shared by n processes counts as an nth.
    pub pss_kib: u64,
}

impl Memory {
    /// Reads it; `None` if the process has gone.
    pub fn read(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let of = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        Some(Self { rss_kib: of("Rss:")?, pss_kib: of("Pss:")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_figures_are_found_by_their_names() {
        let text = "55d0-7fff ---p 0 00:00 0 [rollup]\nRss:   5120 kB\nPss:   4000 kB\nPss_Dirty:  1 kB\n";
        assert_eq!(Memory::parse(text), Some(Memory { rss_kib: 5120, pss_kib: 4000 }));
        assert_eq!(Memory::parse("Rss: x kB"), None);
    }

    #[test]
    fn this_process_has_some() {
        let own = Memory::read(std::process::id()).unwrap();
        assert!(own.rss_kib > 1000 && own.pss_kib <= own.rss_kib);
        assert_eq!(Memory::read(u32::MAX), None);
    }
}
