//! A bound on the CPU time of the VPN's programs in one namespace, so that a comparison shows what a gateway makes of the
//! same time and not how much its clients leave it.
//!
//! It is a control group with a quota, version 2 where the machine has that and version 1 otherwise. Its name follows from the
//! namespace's, so whoever removes the namespace finds it. What the kernel does for the gateway outside its programs' system
//! calls, such as receiving from a link, is not in it.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::LabError;

/// The quota is given out this often: short, or a gateway would stand still for most of a tenth of a second.
const PERIOD_US: u64 = 10_000;
/// The kernel's least quota.
const MIN_QUOTA_US: u64 = 1_000;
const MAX_CORES: f64 = 1024.0;

/// CPU time of each period, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuLimit {
    quota_us: u64,
}

impl FromStr for CpuLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let percent = text.strip_suffix('%').map(|number| number.parse::<f64>().map(|number| number / 100.0));
        match percent.unwrap_or_else(|| text.parse()) {
            Ok(cores) if (MIN_QUOTA_US as f64 / PERIOD_US as f64..=MAX_CORES).contains(&cores) => {
                Ok(Self { quota_us: (cores * PERIOD_US as f64).round() as u64 })
            }
            _ => {
                Err(format!("`{text}` is no number of cores from 0.1 to {MAX_CORES}; for example 0.5 or 50%"))
            }
        }
    }
}

impl fmt::Display for CpuLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of a core", self.cores())
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
}

impl CpuLimit {
    pub fn cores(self) -> f64 {
        self.quota_us as f64 / PERIOD_US as f64
    }

    /// Says so if this machine can't limit CPU time.
    ///
    /// # Errors
    /// [`LabError::Missing`].
    pub fn check(self) -> Result<(), LabError> {
        let missing = "this machine has no control group for CPU time; mount cgroup2 at /sys/fs/cgroup, or leave out \
                       --gateway-cpu";
        Controller::find().map(drop).ok_or_else(|| LabError::Missing(missing.into()))
    }

    /// Limits the programs that will be started in a namespace, all together.
    ///
    /// # Errors
    /// [`LabError`].
    pub fn apply(self, namespace: &str) -> Result<(), LabError> {
        self.check()?;
        let Some(controller) = Controller::find() else { return Ok(()) };
        let group = controller.group(namespace);
        let quota_us = self.quota_us;
        let apply = || match controller {
            Controller::Unified => {
                fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu")?;
                fs::create_dir(&group)?;
                fs::write(group.join("cpu.max"), format!("{quota_us} {PERIOD_US}"))
            }
            Controller::Legacy(_) => {
                fs::create_dir(&group)?;
                fs::write(group.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
                fs::write(group.join("cpu.cfs_quota_us"), quota_us.to_string())
            }
        };
        let what = format!("limiting CPU time by {}", group.display());
        apply().map_err(|source| LabError::System { what, source })
    }
}

/// Puts the calling process under the limit of a namespace, if that has one.
///
/// # Errors
/// [`LabError::System`].
pub fn join(namespace: &str) -> Result<(), LabError> {
    let Some(group) = group_of(namespace) else { return Ok(()) };
    let what = format!("entering {}", group.display());
    fs::write(group.join("cgroup.procs"), std::process::id().to_string())
        .map_err(|source| LabError::System { what, source })
}

/// Takes the limit of a namespace away, once its programs have ended.
///
/// # Errors
/// The kernel's.
pub fn remove(namespace: &str) -> io::Result<()> {
    group_of(namespace).map_or(Ok(()), fs::remove_dir)
}

fn group_of(namespace: &str) -> Option<PathBuf> {
    Some(Controller::find()?.group(namespace)).filter(|group| group.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_what_the_kernel_can_keep() {
        assert_eq!("0.25".parse(), Ok(CpuLimit { quota_us: 2_500 }));
        assert_eq!("1.5".parse::<CpuLimit>().unwrap().to_string(), "1.5 of a core");
        assert_eq!("50%".parse(), Ok(CpuLimit { quota_us: 5_000 }));
        for wrong in ["0", "5%", "%", "0.01", "-1", "NaN", "x", "1e9"] {
            assert!(wrong.parse::<CpuLimit>().is_err(), "{wrong}");
        }
    }
}
