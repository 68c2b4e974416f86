//! A bound on the CPU time of the VPN's programs in one namespace, so that a comparison shows what
//! a gateway makes of the same time and not how much its clients leave it.
//!
//! It is a control group with a quota, version 2 where the machine has that and version 1
//! otherwise. Its name follows from the namespace's, so removing the namespace finds it.
//! Work that the kernel does for the gateway outside its programs' system calls, such as receiving
//! from a link, is not in it.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::LabError;

/// The kernel's least quota, and its least period. A quota is given out as often as that allows: a
/// gateway that has used it up stands still until the next one, which is not a
/// delay of its queues.
const LEAST_US: f64 = 1_000.0;
/// The period of limits in files from before it was chosen.
const FORMER_PERIOD_US: u64 = 10_000;
/// Time that the kernel may take to take down what was ended.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const MIN_CORES: f64 = 0.1;
const MAX_CORES: f64 = 1024.0;

/// CPU time of each period, both in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CpuLimit {
    quota_us: u64,
    #[serde(default = "former_period")]
    period_us: u64,
}

fn former_period() -> u64 {
    FORMER_PERIOD_US
}

impl FromStr for CpuLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let percent = text.strip_suffix('%').map(|number| number.parse::<f64>().map(|number| number / 100.0));
        match percent.unwrap_or_else(|| text.parse()) {
            Ok(cores) if (MIN_CORES..=MAX_CORES).contains(&cores) => {
                let period_us = (LEAST_US / cores).max(LEAST_US).ceil();
                Ok(Self { quota_us: (cores * period_us).round() as u64, period_us: period_us as u64 })
            }
            _ => {
                Err(format!("`{text}` is no number of cores from 0.1 to {MAX_CORES}; for example 0.5 or 50%"))
            }
        }
    }
}

impl fmt::Display for CpuLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of a core", (self.cores() * 1e3).round() / 1e3)
    }
}

/// How this machine limits CPU time.
enum Controller {
    /// Version 2, at the root of the hierarchy.
    Unified,
    /// Version 1: the root of the `cpu` hierarchy.
    Legacy(&'static str),
}

impl Controller {
    fn find() -> Option<Self> {
        let unified = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers");
        if unified.is_ok_and(|names| names.split_whitespace().any(|name| name == "cpu")) {
            return Some(Self::Unified);
        }
        let legacy = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"];
        legacy.into_iter().find(|root| Path::new(root).join("cgroup.procs").exists()).map(Self::Legacy)
    }

    fn group(&self, namespace: &str) -> PathBuf {
        let root = match self {
            Self::Unified => "/sys/fs/cgroup",
            Self::Legacy(root) => root,
        };
        Path::new(root).join(format!("trafficspeed-{namespace}"))
    }

    fn set(&self, group: &Path, limit: Option<CpuLimit>) -> io::Result<()> {
        let text = |unlimited: &str, microseconds: fn(CpuLimit) -> u64| {
            limit.map_or_else(|| unlimited.to_owned(), |limit| microseconds(limit).to_string())
        };
        let period = text("100000", |limit| limit.period_us);
        match self {
            Self::Unified => {
                fs::write(group.join("cpu.max"), format!("{} {period}", text("max", |limit| limit.quota_us)))
            }
            Self::Legacy(_) => {
                fs::write(group.join("cpu.cfs_period_us"), period)?;
                fs::write(group.join("cpu.cfs_quota_us"), text("-1", |limit| limit.quota_us))
            }
        }
    }
}

impl CpuLimit {
    pub fn cores(self) -> f64 {
        self.quota_us as f64 / self.period_us as f64
    }

    /// Fails if this machine can't limit CPU time.
    pub fn check(self) -> Result<(), LabError> {
        let missing = "this machine has no control group for CPU time; mount cgroup2 at /sys/fs/cgroup, or leave out \
                       --gateway-cpu";
        Controller::find().map(drop).ok_or_else(|| LabError::Missing(missing.into()))
    }

    /// Limits the programs that will be started in a namespace, all together.
    pub fn apply(self, namespace: &str) -> Result<(), LabError> {
        self.check()?;
        let Some(controller) = Controller::find() else { return Ok(()) };
        let group = controller.group(namespace);
        let apply = || {
            if matches!(controller, Controller::Unified) {
                fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu")?;
            }
            // One of an earlier lab with the same name, which could not be removed.
            remove(namespace)?;
            fs::create_dir(&group)?;
            controller.set(&group, Some(self))
        };
        apply().map_err(|source| limiting(&group, source))
    }
}

fn limiting(group: &Path, source: io::Error) -> LabError {
    LabError::System { action: format!("limiting CPU time by {}", group.display()), source }
}

/// Gives a namespace with a limit another one, or none for a while.
pub fn change(namespace: &str, limit: Option<CpuLimit>) -> Result<(), LabError> {
    let Some(controller) = Controller::find() else { return Ok(()) };
    let group = controller.group(namespace);
    controller.set(&group, limit).map_err(|source| limiting(&group, source))
}

/// Puts the calling process under the limit of a namespace, if that has one.
pub fn join(namespace: &str) -> Result<(), LabError> {
    let Some(group) = group_of(namespace) else { return Ok(()) };
    let action = format!("entering {}", group.display());
    fs::write(group.join("cgroup.procs"), std::process::id().to_string())
        .map_err(|source| LabError::System { action, source })
}

/// Takes the limit of a namespace away, and ends what its programs have left behind: one that has
/// forked away is in the group still, and would keep it and the namespace.
pub fn remove(namespace: &str) -> io::Result<()> {
    let Some(group) = group_of(namespace) else { return Ok(()) };
    let deadline = Instant::now() + END_TIMEOUT;
    loop {
        // A process that has ended leaves its group only once the kernel has taken it down.
        match fs::remove_dir(&group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                processes_of(&group).for_each(end);
                thread::sleep(Duration::from_millis(10));
            }
            done => return done,
        }
    }
}

fn processes_of(group: &Path) -> impl Iterator<Item = Pid> {
    let ids = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let ids: Vec<Pid> = ids.lines().filter_map(|id| Pid::from_raw(id.parse().ok()?)).collect();
    ids.into_iter()
}

fn end(process: Pid) {
    // Failure means that it has just ended.
    let _ = kill_process(process, Signal::KILL);
}

fn group_of(namespace: &str) -> Option<PathBuf> {
    Some(Controller::find()?.group(namespace)).filter(|group| group.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_what_the_kernel_can_keep() {
        assert_eq!("0.25".parse(), Ok(CpuLimit { quota_us: 1_000, period_us: 4_000 }));
        let third = "0.3".parse::<CpuLimit>().unwrap();
        assert!((third.cores() - 0.3).abs() < 1e-4 && third.quota_us >= 1_000, "{third:?}");
        assert_eq!(third.to_string(), "0.3 of a core");
        assert_eq!("1.5".parse::<CpuLimit>().unwrap().to_string(), "1.5 of a core");
        assert_eq!("50%".parse(), Ok(CpuLimit { quota_us: 1_000, period_us: 2_000 }));
        assert_eq!("2".parse(), Ok(CpuLimit { quota_us: 2_000, period_us: 1_000 }));
        let former = serde_json::from_str::<CpuLimit>(r#"{"quota_us": 5000}"#).unwrap();
        assert!((former.cores() - 0.5).abs() < f64::EPSILON);
        for wrong in ["0", "5%", "%", "0.01", "-1", "NaN", "x", "1e9"] {
            assert!(wrong.parse::<CpuLimit>().is_err(), "{wrong}");
        }
    }
}
