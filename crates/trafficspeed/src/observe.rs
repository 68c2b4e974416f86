//! CPU time and properties of this machine, read from /proc.
//!
//! Readings are plain values; the difference of two is what a measurement used. A process that has
//! gone counts as zero rather than failing a measurement.

pub mod memory;
mod program;

use std::collections::HashMap;
use std::fs;

use serde::{Deserialize, Serialize};

pub use program::{own_digest, running_program};

/// CPU seconds of the machine since boot, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostCpu {
    /// In user space, nice included.
    pub user: f64,
    /// In the kernel on behalf of processes.
    pub system: f64,
    /// In interrupts and soft interrupts; packet forwarding appears here.
    pub interrupt: f64,
    /// Taken by the hypervisor for others.
    pub steal: f64,
    pub idle: f64,
}

impl HostCpu {
    /// Reads the first line of /proc/stat.
    pub fn read() -> Self {
        Self::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let line = text.lines().next().unwrap_or_default();
        let mut ticks = [0.0; 8];
        for (slot, word) in ticks.iter_mut().zip(line.split_whitespace().skip(1)) {
            *slot = word.parse().unwrap_or(0.0);
        }
        let [user, nice, system, idle, iowait, irq, softirq, steal] = ticks.map(|n| n / ticks_per_second());
        Self { user: user + nice, system, interrupt: irq + softirq, steal, idle: idle + iowait }
    }

    /// The difference from an earlier reading.
    pub fn since(self, earlier: Self) -> Self {
        let less = |now: f64, then: f64| (now - then).max(0.0);
        Self {
            user: less(self.user, earlier.user),
            system: less(self.system, earlier.system),
            interrupt: less(self.interrupt, earlier.interrupt),
            steal: less(self.steal, earlier.steal),
            idle: less(self.idle, earlier.idle),
        }
    }

    /// CPU seconds that were neither idle nor stolen.
    pub fn busy(self) -> f64 {
        self.user + self.system + self.interrupt
    }

    pub fn total(self) -> f64 {
        self.busy() + self.steal + self.idle
    }
}

/// CPU seconds (user and system, all threads) that the processes `roots` and all below them have
/// used, those included that have ended and were waited for: their time is with their parents.
pub fn tree_cpu_seconds(roots: &[u32]) -> f64 {
    process_tree(roots).iter().map(|(_, stat)| stat.cpu_seconds + stat.ended_children).sum()
}

/// How often the threads of the processes `roots` and all below them have gone to sleep: the
/// voluntary context switches of all that are alive.
pub fn tree_sleeps(roots: &[u32]) -> u64 {
    let threads = |pid: u32| fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let sleeps_of = |(pid, _)| {
        // A thread that has gone counts no more.
        let texts = threads(pid).filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
        texts.filter_map(|text| sleeps(&text)).sum::<u64>()
    };
    process_tree(roots).into_iter().map(sleeps_of).sum()
}

/// How often a thread has gone to sleep, by its status.
fn sleeps(status: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
}

/// The processes `roots` and all below them, each once.
pub fn process_tree(roots: &[u32]) -> Vec<(u32, ProcessStat)> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    let mut stats: HashMap<u32, ProcessStat> = HashMap::new();
    for pid in process_ids() {
        if let Some(stat) = ProcessStat::read(pid) {
            children.entry(stat.parent).or_default().push(pid);
            stats.insert(pid, stat);
        }
    }
    let mut todo = roots.to_vec();
    let mut tree = Vec::new();
    while let Some(pid) = todo.pop() {
        // Removing keeps a process that is named twice from counting twice.
        tree.extend(stats.remove(&pid).map(|stat| (pid, stat)));
        todo.extend(children.remove(&pid).unwrap_or_default());
    }
    tree
}

/// CPU seconds that processes outside the trees of `own` have used, kernel threads left out. In a
/// process namespace, which hides the processes of other containers, it is an upper bound: all that
/// the machine has used without `own`.
///
/// Time of children that have ended is with the parents that waited for them, so what a short-lived
/// process used between two readings is not lost, and what a long-lived one used before is not
/// counted when it ends.
pub fn foreign_cpu_seconds(own: &[u32]) -> f64 {
    let second = fs::read_to_string("/proc/2/comm").unwrap_or_default();
    if !shows_all_processes(&second) {
        return without_own(HostCpu::read(), tree_cpu_seconds(own));
    }
    foreign(&process_ids().into_iter().filter_map(|pid| Some((pid, ProcessStat::read(pid)?))).collect(), own)
}

/// Whether a process of this name with number 2 shows that no process is hidden.
fn shows_all_processes(second: &str) -> bool {
    second.trim_end() == "kthreadd"
}

/// Interrupts are left out, in which the kernel forwards what is measured.
fn without_own(host: HostCpu, own_seconds: f64) -> f64 {
    host.user + host.system - own_seconds
}

fn foreign(stats: &HashMap<u32, ProcessStat>, own: &[u32]) -> f64 {
    /// The parent of all kernel threads.
    const KTHREADD: u32 = 2;
    let is_own = |pid: u32| {
        let mut at = pid;
        // A chain of parents is shorter than the list of processes, whatever was read while they
        // changed.
        for _ in 0..stats.len() {
            if at == KTHREADD || own.contains(&at) {
                return true;
            }
            match stats.get(&at) {
                Some(stat) => at = stat.parent,
                None => return false,
            }
        }
        false
    };
    let all = stats.iter().filter(|(pid, _)| !is_own(**pid));
    all.map(|(_, stat)| stat.cpu_seconds + stat.ended_children).sum()
}

/// The ids of the processes whose parent is `parent`.
pub fn children_of(parent: u32) -> Vec<u32> {
    let is_child = |pid: &u32| ProcessStat::read(*pid).is_some_and(|stat| stat.parent == parent);
    process_ids().into_iter().filter(is_child).collect()
}

/// The ids of all processes that can be seen.
pub fn process_ids() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// CPU seconds of this process, all threads.
pub fn own_cpu_seconds() -> f64 {
    ProcessStat::read(std::process::id()).map_or(0.0, |stat| stat.cpu_seconds)
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessStat {
    pub parent: u32,
    /// User and system time of all threads, living and dead.
    pub cpu_seconds: f64,
    /// CPU time of children that ended and were waited for.
    pub ended_children: f64,
    /// When the process started, in ticks since boot: together with the id it names a process for
    /// good.
    pub started: u64,
    /// It has ended, and only its entry is left.
    pub has_ended: bool,
}

impl ProcessStat {
    /// Reads one process; `None` if it has gone.
    pub fn read(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The name in parentheses may hold anything; the last one ends it.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let seconds = |ticks: u64| ticks as f64 / ticks_per_second();
        Some(Self {
            parent: u32::try_from(number(1)?).ok()?,
            cpu_seconds: seconds(number(11)? + number(12)?),
            ended_children: seconds(number(13)? + number(14)?),
            started: number(19)?,
            has_ended: matches!(fields.first(), Some(&("Z" | "X"))),
        })
    }
}

fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

/// The facts of a machine that a report shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostInfo {
    pub name: String,
    /// Kernel name, release and machine.
    pub system: String,
    /// Model of the first CPU.
    pub cpu: String,
    /// CPUs that are online.
    pub cpus: u32,
    pub program: String,
}

impl HostInfo {
    pub fn read() -> Self {
        let uname = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        Self {
            name: text(uname.nodename()),
            system: format!("{} {} {}", text(uname.sysname()), text(uname.release()), text(uname.machine())),
            cpu: cpu_info("model name"),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            program: format!("trafficspeed {}", crate::VERSION),
        }
    }
}

/// The CPU flags that decide the speed of ciphers, of those this CPU has.
pub fn cipher_cpu_flags() -> Vec<String> {
    const TELLING: [&str; 11] = [
        "aes",
        "pclmulqdq",
        "vaes",
        "vpclmulqdq",
        "avx2",
        "avx512f",
        "avx512bw",
        "avx512ifma",
        "sha_ni",
        "pmull",
        "hypervisor",
    ];
    let mut line = cpu_info("flags");
    if line.is_empty() {
        line = cpu_info("Features");
    }
    let present: Vec<&str> = line.split_whitespace().collect();
    TELLING.iter().filter(|flag| present.contains(flag)).map(|flag| (*flag).to_owned()).collect()
}

/// The machine's load average of the last minute, if /proc says it.
pub fn load_average() -> Option<f64> {
    first_number(&fs::read_to_string("/proc/loadavg").ok()?)
}

/// A value of /proc/meminfo, such as `MemTotal:`, in MiB.
pub fn memory_mib(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? / 1024)
}

fn first_number(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

/// The first value of `key` in /proc/cpuinfo; empty if there is none.
fn cpu_info(key: &str) -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn the_stat_line_is_read_past_a_hostile_process_name() {
        let text = "42 (a) b (c)) S 7 42 42 0 -1 4194560 1 0 0 0 150 50 9 9 20 0 3 0 12345 1 1";
        let stat = ProcessStat::parse(text).unwrap();
        assert_eq!((stat.parent, stat.started, stat.has_ended), (7, 12345, false));
        assert!(ProcessStat::parse(&text.replace(") S", ") Z")).unwrap().has_ended);
        assert!((stat.cpu_seconds - 200.0 / ticks_per_second()).abs() < 1e-9);
        assert!((stat.ended_children - 18.0 / ticks_per_second()).abs() < 1e-9);
        assert_eq!(ProcessStat::parse("42 (x"), None);
        assert_eq!(ProcessStat::parse("42 (x) S 1"), None);
    }

    #[test]
    fn a_child_is_found_while_it_runs() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let found = children_of(std::process::id()).contains(&child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found && !children_of(std::process::id()).contains(&child.id()));
    }

    #[test]
    fn host_cpu_kinds_are_kept_apart() {
        let scale = ticks_per_second();
        let earlier = HostCpu::parse("cpu 0 0 0 0 0 0 0 0 0 0\n");
        let used = HostCpu::parse("cpu 100 100 300 400 100 50 50 200 7 7\ncpu0 1").since(earlier);
        let close = |a: f64, b: f64| assert!((a * scale - b).abs() < 1e-6, "{a} {b}");
        close(used.user, 200.0);
        close(used.interrupt, 100.0);
        close(used.steal, 200.0);
        close(used.busy(), 600.0);
        close(used.total(), 1300.0);
    }

    #[test]
    fn work_in_a_thread_shows_in_the_tree_of_this_process() {
        let own = || tree_cpu_seconds(&[std::process::id()]);
        let (mut least, deadline) = (own(), Instant::now() + Duration::from_secs(30));
        // On a busy machine a thread gets its time late, but it gets it.
        let mut grown = move || {
            let now = own();
            least = least.min(now);
            now > least + 0.05
        };
        let worked = std::thread::spawn(move || {
            while Instant::now() < deadline {
                if grown() {
                    return true;
                }
            }
            false
        });
        assert!(worked.join().unwrap());
        assert!(
            tree_cpu_seconds(&[u32::MAX]).abs() < f64::EPSILON,
            "a process that is not there counts nothing"
        );
    }

    #[test]
    fn what_a_child_of_a_tree_used_stays_with_the_tree_when_it_ends() {
        let work = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let script = format!("sh -c '{work}'; read line");
        let mut shell = std::process::Command::new("sh");
        let mut shell = shell.args(["-c", &script]).stdin(std::process::Stdio::piped()).spawn().unwrap();
        let roots = [shell.id()];
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut had_child = false;
        loop {
            let count = process_tree(&roots).len();
            had_child |= count == 2;
            if (had_child && count == 1) || Instant::now() > deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let used = tree_cpu_seconds(&roots);
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert!(used > 0.05, "{used}");
    }

    #[test]
    fn a_threads_sleeps_are_read_from_its_status() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!(sleeps(status), Some(150));
        assert_eq!(sleeps("Name:\tx\n"), None);
        assert!(tree_sleeps(&[std::process::id()]) > 0);
        assert_eq!(tree_sleeps(&[u32::MAX]), 0, "a process that is not there counts nothing");
    }

    #[test]
    fn a_tree_with_its_descendants_and_kernel_threads_are_not_foreign() {
        let stat = |parent, cpu_seconds, ended_children| ProcessStat {
            parent,
            cpu_seconds,
            ended_children,
            started: 0,
            has_ended: false,
        };
        let mut stats = HashMap::from([
            (1, stat(0, 1.0, 0.5)),
            (2, stat(0, 100.0, 0.0)),
            (3, stat(2, 100.0, 0.0)),
            (10, stat(1, 100.0, 50.0)),
            (11, stat(10, 100.0, 0.0)),
            (20, stat(1, 4.0, 2.0)),
        ]);
        assert!((foreign(&stats, &[10]) - 7.5).abs() < 1e-9);
        // Two processes that name each other as parent, as can be read while ids are used again.
        stats.insert(30, stat(31, 8.0, 0.0));
        stats.insert(31, stat(30, 8.0, 0.0));
        assert!((foreign(&stats, &[10]) - 23.5).abs() < 1e-9);
    }

    #[test]
    fn where_processes_are_hidden_all_that_is_not_own_is_foreign() {
        assert!(shows_all_processes("kthreadd\n"));
        assert!(!shows_all_processes("sh\n") && !shows_all_processes(""), "a container's, or none");
        let host = HostCpu { user: 5.0, system: 3.0, interrupt: 2.0, steal: 1.0, idle: 90.0 };
        assert!((without_own(host, 6.0) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn what_a_child_used_is_not_lost_with_its_end() {
        let before = foreign_cpu_seconds(&[]);
        let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        assert!(std::process::Command::new("sh").args(["-c", script]).status().unwrap().success());
        assert!(foreign_cpu_seconds(&[]) > before + 0.05);
    }
}
