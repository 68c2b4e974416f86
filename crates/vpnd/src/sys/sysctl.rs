//! Kernel settings under `/proc/sys` that are changed for a while, above all forwarding.
//!
//! Some settings change others: switching forwarding sets it for every interface, too. A change therefore
//! remembers those that differ and puts them back after itself.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

const ROOT: &str = "/proc/sys";

/// Why a setting could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum SysctlError {
    /// The name could lead out of `/proc/sys`.
    #[error("`{0}` is no name of a kernel setting")]
    BadKey(String),
    /// The kernel or container refused.
    #[error("the kernel setting {key} can't be {step}: {source}; in a container, /proc/sys may be read-only")]
    Os {
        /// Its name below `/proc/sys`.
        key: String,
        /// What was being done.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The value of one setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Name below `/proc/sys`, with slashes: names of interfaces may contain dots.
    pub key: String,
    /// What it holds.
    pub value: String,
}

/// A planned change of one setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SysctlChange {
    /// Name and new value.
    pub set: Setting,
    /// The value that it had.
    pub before: String,
    /// Settings that the kernel changes along with this one, with the values that they had.
    pub dependent: Vec<Setting>,
}

impl SysctlChange {
    /// Plans to set `key` to `value`; `None` if it has that value.
    ///
    /// # Errors
    /// [`SysctlError`].
    pub fn plan(key: &str, value: &str) -> Result<Option<Self>, SysctlError> {
        let before = read(key)?;
        let set = Setting { key: key.to_owned(), value: value.to_owned() };
        Ok((before != value).then_some(Self { set, before, dependent: Vec::new() }))
    }

    /// Sets the value.
    ///
    /// # Errors
    /// [`SysctlError`].
    pub fn apply(&self) -> Result<(), SysctlError> {
        write(&self.set.key, &self.set.value)
    }

    /// Puts the old values back, unless someone else has changed the setting meanwhile. Says whether nothing of
    /// this change is left.
    ///
    /// # Errors
    /// [`SysctlError`].
    pub fn undo(&self) -> Result<bool, SysctlError> {
        let now = match read(&self.set.key) {
            // The interface that the setting belongs to is gone.
            Err(SysctlError::Os { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(true);
            }
            now => now?,
        };
        if now == self.set.value {
            write(&self.set.key, &self.before)?;
        } else if now != self.before {
            return Ok(false);
        }
        // Also when the value is back already: an earlier attempt may have ended right here.
        for setting in &self.dependent {
            match write(&setting.key, &setting.value) {
                Err(SysctlError::Os { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                written => written?,
            }
        }
        Ok(true)
    }
}

/// Plans to forward packets between interfaces, for the protocol versions asked for, in the order to apply.
///
/// A router ignores router advertisements by default, so an interface that gets its IPv6 route from them is
/// told to go on listening (`accept_ra = 2`) first.
///
/// # Errors
/// [`SysctlError`].
pub fn forwarding(v4: bool, v6: bool) -> Result<Vec<SysctlChange>, SysctlError> {
    let mut changes = Vec::new();
    if v4 && let Some(mut change) = SysctlChange::plan("net/ipv4/ip_forward", "1")? {
        change.dependent = forwarding_interfaces("net/ipv4/conf")?;
        let redirects = "net/ipv4/conf/all/accept_redirects";
        change.dependent.push(Setting { key: redirects.to_owned(), value: read(redirects)? });
        changes.push(change);
    }
    if v6
        && Path::new(ROOT).join("net/ipv6/conf/all/forwarding").exists()
        && let Some(mut change) = SysctlChange::plan("net/ipv6/conf/all/forwarding", "1")?
    {
        for interface in interfaces("net/ipv6/conf")? {
            let key = format!("net/ipv6/conf/{interface}/accept_ra");
            if read(&key)? == "1" {
                changes.extend(SysctlChange::plan(&key, "2")?);
            }
        }
        change.dependent = forwarding_interfaces("net/ipv6/conf")?;
        changes.push(change);
    }
    Ok(changes)
}

/// The interfaces that forward although the machine as a whole does not.
fn forwarding_interfaces(conf: &str) -> Result<Vec<Setting>, SysctlError> {
    let mut on = Vec::new();
    for interface in interfaces(conf)?.into_iter().chain(["default".to_owned()]) {
        let key = format!("{conf}/{interface}/forwarding");
        if read(&key)? == "1" {
            on.push(Setting { key, value: "1".to_owned() });
        }
    }
    Ok(on)
}

/// The names under a `conf` directory that are interfaces, sorted.
fn interfaces(conf: &str) -> Result<Vec<String>, SysctlError> {
    let failed = |source| SysctlError::Os { key: conf.to_owned(), step: "listed", source };
    let mut names = Vec::new();
    for entry in fs::read_dir(path(conf)?).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if name != "all" && name != "default" {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn read(key: &str) -> Result<String, SysctlError> {
    let text = fs::read_to_string(path(key)?);
    let text = text.map_err(|source| SysctlError::Os { key: key.to_owned(), step: "read", source })?;
    Ok(text.trim_end().to_owned())
}

fn write(key: &str, value: &str) -> Result<(), SysctlError> {
    fs::write(path(key)?, value).map_err(|source| SysctlError::Os {
        key: key.to_owned(),
        step: "set",
        source,
    })
}

fn path(key: &str) -> Result<PathBuf, SysctlError> {
    let plain = Path::new(key).components().all(|part| matches!(part, Component::Normal(_)));
    if key.is_empty() || !plain {
        return Err(SysctlError::BadKey(key.to_owned()));
    }
    Ok(Path::new(ROOT).join(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::testing::{in_namespace, run};

    fn snapshot() -> String {
        run(
            "sh",
            &[
                "-c",
                "grep -r . /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv*/conf/*/forwarding \
             /proc/sys/net/ipv*/conf/*/accept_r* | sort",
            ],
        )
    }

    #[test]
    fn forwarding_is_switched_on_and_everything_put_back() {
        in_namespace(|| {
            for name in ["vp0", "vp.1"] {
                run("ip", &["link", "add", name, "type", "veth"]);
            }
            write("net/ipv4/conf/vp0/forwarding", "1").unwrap();
            write("net/ipv6/conf/vp.1/forwarding", "1").unwrap();
            write("net/ipv6/conf/vp0/accept_ra", "1").unwrap();
            let before = snapshot();
            let changes = forwarding(true, true).unwrap();
            for change in &changes {
                change.apply().unwrap();
            }
            assert_eq!(read("net/ipv4/ip_forward").unwrap(), "1");
            assert_eq!(read("net/ipv6/conf/all/forwarding").unwrap(), "1");
            assert_eq!(read("net/ipv6/conf/vp0/accept_ra").unwrap(), "2");
            assert!(forwarding(true, true).unwrap().is_empty(), "nothing is left to change");
            for change in changes.iter().rev() {
                assert!(change.undo().unwrap());
            }
            assert_eq!(snapshot(), before);
            for change in changes.iter().rev() {
                change.undo().unwrap();
            }
            assert_eq!(snapshot(), before, "undoing twice does no harm");
        });
    }

    #[test]
    fn a_value_that_someone_else_set_stays() {
        in_namespace(|| {
            let key = "net/ipv4/ip_default_ttl";
            let change = SysctlChange::plan(key, "70").unwrap().unwrap();
            change.apply().unwrap();
            write(key, "80").unwrap();
            assert!(!change.undo().unwrap());
            assert_eq!(read(key).unwrap(), "80");
        });
    }

    #[test]
    fn a_key_can_not_leave_the_settings() {
        for key in ["", "/etc/passwd", "../../etc/passwd", "net/../../../etc/passwd"] {
            assert!(matches!(SysctlChange::plan(key, "1"), Err(SysctlError::BadKey(_))), "{key}");
        }
    }
}
