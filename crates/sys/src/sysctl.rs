//! Kernel settings under `/proc/sys` that are changed for a while, above all forwarding.
//!
//! Some settings change others: switching forwarding sets it for every interface, too. A change
//! therefore remembers those that differ and puts them back after itself.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};
use serde::{Deserialize, Serialize};

const ROOT: &str = "/proc/sys";

#[derive(Debug, thiserror::Error)]
pub enum SysctlError {
    /// The name could lead out of `/proc/sys`.
    #[error("`{0}` is not the name of a kernel setting")]
    BadKey(String),
    /// It is none of those that vpnd changes, or not the way in which it does.
    #[error("vpnd does not make this change to the kernel setting `{0}`")]
    NotOurs(String),
    #[error("the kernel setting {key} can't be {step}: {source}; in a container, /proc/sys may be read-only")]
    Os {
        /// Its name below `/proc/sys`.
        key: String,
        step: &'static str,
        source: io::Error,
    },
}

/// The value of one setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Name below `/proc/sys`, with slashes: names of interfaces may contain dots.
    pub key: String,
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
    /// Whether other programs had rules for marks, of [`valid_marks`]: they did without it.
    #[serde(default)]
    pub others_had_marks: bool,
}

impl SysctlChange {
    fn new(key: &str, value: &str, before: &str) -> Self {
        let set = Setting { key: key.to_owned(), value: value.to_owned() };
        Self { set, before: before.to_owned(), dependent: Vec::new(), others_had_marks: false }
    }

    /// Plans to set `key` to `value`; `None` if it has that value.
    pub fn plan(key: &str, value: &str) -> Result<Option<Self>, SysctlError> {
        let before = read(key)?;
        Ok((before != value).then(|| Self::new(key, value, &before)))
    }

    /// Checks that it is one of the settings that vpnd changes, from and to the values that it
    /// changes them.
    ///
    /// # Errors
    /// [`SysctlError::NotOurs`].
    pub fn check(&self) -> Result<(), SysctlError> {
        let (key, value) = (self.set.key.as_str(), self.set.value.as_str());
        // Undoing so only ever forwards less, but for what the kernel switches along with it; and
        // marks count for less.
        let dependent = match (key, value, self.before.as_str()) {
            (FORWARDING_V4, "1", "0") => Some("net/ipv4/conf"),
            (FORWARDING_V6, "1", "0" | "2") => Some("net/ipv6/conf"),
            (VALID_MARKS, "1", "0") => None,
            _ if of_interface(key, "net/ipv6/conf", "accept_ra") && value == "2" && self.before == "1" => {
                None
            }
            _ => return Err(SysctlError::NotOurs(key.to_owned())),
        };
        let is_dependent = |setting: &&Setting| {
            let (key, value) = (setting.key.as_str(), setting.value.as_str());
            dependent.is_some_and(|conf| of_interface(key, conf, "forwarding") && value == "1")
                || self.set.key == FORWARDING_V4 && key == REDIRECTS_V4 && matches!(value, "0" | "1")
        };
        match self.dependent.iter().find(|setting| !is_dependent(setting)) {
            Some(other) => Err(SysctlError::NotOurs(other.key.clone())),
            None => Ok(()),
        }
    }

    /// Sets the value.
    pub fn apply(&self) -> Result<(), SysctlError> {
        write(&self.set.key, &self.set.value)
    }

    /// Whether the setting has the new value.
    pub fn is_in_force(&self) -> bool {
        read(&self.set.key).is_ok_and(|now| now == self.set.value)
    }

    /// Whether it is that the way back is looked up with a packet's mark.
    pub fn is_valid_marks(&self) -> bool {
        self.set.key == VALID_MARKS
    }

    /// Whether it switches forwarding on for the whole machine.
    pub fn is_forwarding(&self) -> bool {
        [FORWARDING_V4, FORWARDING_V6].contains(&self.set.key.as_str())
    }

    /// Whether it is one of IPv6.
    pub fn is_of_ipv6(&self) -> bool {
        self.set.key.starts_with("net/ipv6/")
    }

    /// Puts the old values back, unless someone else has changed the setting meanwhile. Says
    /// whether nothing of this change is left.
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

const FORWARDING_V4: &str = "net/ipv4/ip_forward";
const FORWARDING_V6: &str = "net/ipv6/conf/all/forwarding";
/// Changed by the kernel when forwarding is.
const REDIRECTS_V4: &str = "net/ipv4/conf/all/accept_redirects";
/// Whether the way back to a packet's source is looked up with the packet's mark.
const VALID_MARKS: &str = "net/ipv4/conf/all/src_valid_mark";

/// Whether the kernel looks for the way back to the source of packets that arrive by any interface
/// but this one.
pub fn checks_sources_beside(tunnel: &str) -> Result<bool, SysctlError> {
    let mut places = interfaces("net/ipv4/conf")?;
    places.retain(|name| name != tunnel);
    places.push("all".to_owned());
    for place in places {
        match read(&format!("net/ipv4/conf/{place}/rp_filter")) {
            Ok(mode) if mode != "0" => return Ok(true),
            // Interfaces go.
            Err(SysctlError::Os { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            read => drop(read?),
        }
    }
    Ok(false)
}

/// Looks for the way back with a packet's mark, from a kernel that does not.
pub fn valid_marks() -> SysctlChange {
    SysctlChange::new(VALID_MARKS, "1", "0")
}

/// Changes that switch forwarding on, and the interfaces that forwarded before.
#[derive(Debug)]
pub struct Forwarding {
    /// Changes in this order; none for a version that is forwarded already.
    pub changes: Vec<SysctlChange>,
}

impl Forwarding {
    /// The interfaces whose IPv4 packets were forwarded before; `None` if all were, or none are to
    /// be.
    pub fn v4_except(&self) -> Option<Vec<String>> {
        let change = self.changes.iter().find(|change| change.set.key == FORWARDING_V4)?;
        let names = change.dependent.iter().filter_map(|setting| {
            let name = setting.key.strip_prefix("net/ipv4/conf/")?.strip_suffix("/forwarding")?;
            (name != "default" && name != "all").then(|| name.to_owned())
        });
        Some(names.collect())
    }

    /// Returns those for IPv6, which is forwarded for all interfaces or none.
    pub fn v6_except(&self) -> Option<Vec<String>> {
        self.changes.iter().any(|change| change.set.key == FORWARDING_V6).then(Vec::new)
    }
}

/// Whether the machine forwards IPv4, or IPv6; also if that can't be read.
pub fn is_forwarding(v4: bool) -> bool {
    read(if v4 { FORWARDING_V4 } else { FORWARDING_V6 }).map_or(true, |value| value != "0")
}

/// Forwarding of IPv4 or IPv6 that vpnd is known to have switched on, though not what else that
/// changed.
pub fn forwarding_from_off(v4: bool) -> SysctlChange {
    SysctlChange::new(if v4 { FORWARDING_V4 } else { FORWARDING_V6 }, "1", "0")
}

/// Whether an interface can have IPv6 addresses; for one that is still to be made, what new ones
/// are given counts.
pub fn has_ipv6(interface: &str) -> bool {
    let all = Path::new(ROOT).join("net/ipv6/conf");
    let named = all.join(interface);
    let settings = if named.exists() { named } else { all.join("default") };
    fs::read_to_string(settings.join("disable_ipv6")).is_ok_and(|disabled| disabled.trim() == "0")
}

/// Whether the kernel has IPv6 at all, switched on or off: without it (`ipv6.disable=1`) no socket
/// sends any, and the kernel refuses routes and rules for it. A filter of this process's own system
/// calls is not taken for that.
pub fn kernel_has_ipv6() -> bool {
    let opened = rustix::net::socket(AddressFamily::INET6, SocketType::DGRAM, None);
    !matches!(opened, Err(Errno::AFNOSUPPORT)) || Path::new(ROOT).join("net/ipv6").exists()
}

/// Plans to forward packets between interfaces, for the given protocol versions.
///
/// A router ignores router advertisements by default, so an interface that gets its IPv6 route from
/// them is set to go on accepting them (`accept_ra = 2`) first.
pub fn forwarding(v4: bool, v6: bool) -> Result<Forwarding, SysctlError> {
    let mut changes = Vec::new();
    if v4 && let Some(mut change) = SysctlChange::plan(FORWARDING_V4, "1")? {
        change.dependent = forwarding_interfaces("net/ipv4/conf")?;
        change.dependent.push(Setting { key: REDIRECTS_V4.to_owned(), value: read(REDIRECTS_V4)? });
        changes.push(change);
    }
    if v6
        && Path::new(ROOT).join(FORWARDING_V6).exists()
        && let Some(mut change) = SysctlChange::plan(FORWARDING_V6, "1")?
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
    Ok(Forwarding { changes })
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

/// Whether the key is this setting of one interface, or of those to come.
fn of_interface(key: &str, conf: &str, setting: &str) -> bool {
    let rest = key.strip_prefix(conf).and_then(|rest| rest.strip_prefix('/'));
    let name = rest.and_then(|rest| rest.strip_suffix(setting)).and_then(|rest| rest.strip_suffix('/'));
    name.is_some_and(|name| !name.is_empty() && !name.contains('/') && !matches!(name, "." | ".." | "all"))
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
    use crate::testing::{in_namespace, run};

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
            let plan = forwarding(true, true).unwrap();
            assert_eq!(plan.v4_except().unwrap(), ["vp0"], "it forwarded before");
            assert!(plan.v6_except().unwrap().is_empty(), "an interface alone forwards no IPv6");
            let changes = plan.changes;
            for change in &changes {
                change.apply().unwrap();
            }
            assert_eq!(read("net/ipv4/ip_forward").unwrap(), "1");
            assert_eq!(read("net/ipv6/conf/all/forwarding").unwrap(), "1");
            assert_eq!(read("net/ipv6/conf/vp0/accept_ra").unwrap(), "2");
            let again = forwarding(true, true).unwrap();
            assert!(again.changes.is_empty(), "nothing is left to change");
            assert_eq!((again.v4_except(), again.v6_except()), (None, None), "the machine is a router");
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
