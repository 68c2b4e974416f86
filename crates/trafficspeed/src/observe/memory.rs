//! The memory that a program holds, by /proc/PID/smaps_rollup of its processes.

use std::fs;

use serde::Serialize;

use super::process_tree;

/// Memory of a process or of several, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Resident: pages shared with others count in full.
    pub rss_kib: u64,
    /// Proportional: a page shared by n processes counts as an nth.
    pub pss_kib: u64,
}

impl Memory {
    /// Reads that of the process `root` and all below it; `None` if that one has gone.
    pub fn of_tree(root: u32) -> Option<Self> {
        let mut sum = Self::read(root)?;
        // One that ends meanwhile holds nothing.
        for more in
            process_tree(&[root]).iter().filter(|(pid, _)| *pid != root).flat_map(|(pid, _)| Self::read(*pid))
        {
            sum.rss_kib += more.rss_kib;
            sum.pss_kib += more.pss_kib;
        }
        Some(sum)
    }

    fn read(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let kib = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        Some(Self { rss_kib: kib("Rss:")?, pss_kib: kib("Pss:")? })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

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
        assert_eq!(Memory::of_tree(u32::MAX), None);
    }

    #[test]
    fn processes_below_count() {
        let mut below =
            Command::new("sh").args(["-c", "sleep 60 & echo; wait"]).stdout(Stdio::piped()).spawn().unwrap();
        // It has its own child once it speaks.
        below.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let (alone, all) = (Memory::read(below.id()).unwrap(), Memory::of_tree(below.id()).unwrap());
        for (pid, _) in process_tree(&[below.id()]).iter().rev() {
            let pid = rustix::process::Pid::from_raw(i32::try_from(*pid).unwrap()).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        below.wait().unwrap();
        assert!(all.rss_kib > alone.rss_kib, "{alone:?} {all:?}");
    }
}
