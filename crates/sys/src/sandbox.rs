//! Giving up what a process does not need, for good: another user, no capabilities, no new
//! privileges, few system calls, few files.
//!
//! INVARIANT: [`enter`] is called while the process has one thread, so that nothing keeps what it
//! gives up, and what it reports is read back from the kernel afterwards, never taken from the
//! request. This module must not know what the process is for.

use std::io;
use std::path::PathBuf;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, NetPort, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use minicbor::{Decode, Encode};
use rustix::process::Signal;
use rustix::thread::{CapabilitySet, CapabilitySets};
use serde::{Deserialize, Serialize};

use crate::account::UnixUser;
use crate::process;
use crate::seccomp::{self, SystemCalls};

/// The newest Landlock rules that are requested; what the kernel lacks of them is left out.
const LANDLOCK: ABI = ABI::V6;

/// TCP port of name servers; an answer may be too long for a datagram.
const DNS_PORT: u16 = 53;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode, clap::ValueEnum)]
#[cbor(index_only)]
pub enum SandboxMode {
    /// All that the kernel supports.
    #[default]
    #[n(0)]
    On,
    /// All of it, or the daemon does not start.
    #[n(1)]
    Require,
    /// No filter of system calls and files. Privileges are still given up.
    #[n(2)]
    Off,
}

/// Privileges and files that a process keeps.
#[derive(Clone, Debug)]
pub struct Confinement {
    pub mode: SandboxMode,
    /// The user that it changes to; `None` if it does not change.
    pub identity: Option<UnixUser>,
    /// The system calls that it may use.
    pub system_calls: SystemCalls,
    /// Files and directories that it may read.
    pub readable: Vec<PathBuf>,
    /// Directories in which it may do anything.
    pub writable: Vec<PathBuf>,
    /// TCP ports to which it may connect, besides that of name servers if it looks up names.
    pub tcp_ports: Vec<u16>,
}

/// Protections of a process, as read back from the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct Protections {
    /// Its user's number.
    #[n(0)]
    pub uid: u32,
    /// It has no capabilities and can't get any.
    #[n(1)]
    pub no_capabilities: bool,
    /// No program that it starts could get more privileges than it has.
    #[n(2)]
    pub no_new_privs: bool,
    /// Its system calls are filtered.
    #[n(3)]
    pub seccomp: bool,
    /// Its files are restricted by Landlock.
    #[n(4)]
    pub landlock: Landlock,
    /// Its memory can't be dumped, nor read by other programs of its user.
    #[n(5)]
    pub undumpable: bool,
}

/// The kernel's support for Landlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[cbor(index_only)]
#[serde(rename_all = "snake_case")]
pub enum Landlock {
    /// All that was requested.
    #[n(0)]
    Full,
    /// Files are restricted, but not all that newer kernels restrict.
    #[n(1)]
    Partial,
    /// The kernel has none, or it is switched off.
    #[n(2)]
    Missing,
}

#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Something that every kernel can do has failed.
    #[error("{step} failed: {source}; nothing may go on with more privileges than it needs")]
    Privileges { step: &'static str, source: io::Error },
    #[error("the kernel has left capabilities in place ({0:?}); nothing may go on with more than it needs")]
    Left(CapabilitySet),
    /// The sandbox is required, and this kernel lacks a part.
    #[error(
        "{what} can't be had here: {reason}; a newer kernel has it, or write sandbox = \"on\" in [process] (for \
         a client: --sandbox on) to do without"
    )]
    Required { what: &'static str, reason: String },
}

/// Gives up everything but what `confinement` names.
///
/// # Errors
/// [`SandboxError`]: the process must end then.
pub fn enter(confinement: &Confinement) -> Result<Protections, SandboxError> {
    let failed = |step| move |source: io::Error| SandboxError::Privileges { step, source };
    forget_capabilities_of_children();
    if let Some(identity) = &confinement.identity {
        identity.assume().map_err(failed("changing to an unprivileged user"))?;
    }
    drop_capabilities().map_err(failed("giving up capabilities"))?;
    rustix::thread::set_no_new_privs(true)
        .map_err(|errno| failed("forbidding new privileges")(errno.into()))?;
    // A change of user resets both.
    process::forbid_core_dumps().map_err(failed("forbidding core dumps"))?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| failed("tying this process to its parent")(errno.into()))?;
    let mut landlock = Landlock::Missing;
    if confinement.mode != SandboxMode::Off {
        landlock =
            optional(confinement.mode, "Landlock", restrict_files(confinement))?.unwrap_or(Landlock::Missing);
        if landlock == Landlock::Missing {
            let missing = Err("the kernel has no Landlock, or it is switched off");
            optional::<()>(confinement.mode, "Landlock", missing.map_err(str::to_owned))?;
        }
        let filtered = seccomp::apply(confinement.system_calls).map_err(|error| error.to_string());
        optional(confinement.mode, "the filter of system calls", filtered)?;
    }
    let protections = observe(landlock).map_err(failed("asking the kernel what holds"))?;
    if protections.no_capabilities { Ok(protections) } else { Err(SandboxError::Left(capabilities_left())) }
}

/// Passes over what is missing unless the mode forbids that.
fn optional<T>(
    mode: SandboxMode,
    what: &'static str,
    outcome: Result<T, String>,
) -> Result<Option<T>, SandboxError> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(reason) if mode == SandboxMode::Require => Err(SandboxError::Required { what, reason }),
        Err(reason) => {
            tracing::warn!(%reason, "this process runs without {what}");
            Ok(None)
        }
    }
}

/// Empties the bounding set, from which programs that are started get capabilities. Without
/// `CAP_SETPCAP` it stays as it is, which changes little: such programs get nothing that this
/// process does not have.
fn forget_capabilities_of_children() {
    for capability in CapabilitySet::all().iter() {
        let _ = rustix::thread::remove_capability_from_bounding_set(capability);
    }
}

fn drop_capabilities() -> io::Result<()> {
    rustix::thread::clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    let nothing = CapabilitySets { effective: none, permitted: none, inheritable: none };
    Ok(rustix::thread::set_capabilities(None, nothing)?)
}

fn capabilities_left() -> CapabilitySet {
    let sets = rustix::thread::capabilities(None);
    sets.map_or(CapabilitySet::all(), |sets| sets.effective | sets.permitted | sets.inheritable)
}

/// Reads this process's protections from the kernel. Landlock's can't be read back, so its result
/// is passed in.
fn observe(landlock: Landlock) -> io::Result<Protections> {
    Ok(Protections {
        uid: rustix::process::geteuid().as_raw(),
        no_capabilities: capabilities_left().is_empty(),
        no_new_privs: rustix::thread::no_new_privs()?,
        seccomp: seccomp::is_in_force(),
        landlock,
        undumpable: process::is_undumpable()?,
    })
}

fn restrict_files(confinement: &Confinement) -> Result<Landlock, String> {
    let status = ruleset(confinement).map_err(|error| error.to_string())?;
    Ok(match status {
        RulesetStatus::FullyEnforced => Landlock::Full,
        RulesetStatus::PartiallyEnforced => Landlock::Partial,
        RulesetStatus::NotEnforced => Landlock::Missing,
    })
}

fn ruleset(confinement: &Confinement) -> Result<RulesetStatus, RulesetError> {
    let all = AccessFs::from_all(LANDLOCK);
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(Scope::Signal)?
        .scope(Scope::AbstractUnixSocket)?
        .create()?
        .add_rules(path_beneath_rules(&confinement.readable, AccessFs::ReadFile | AccessFs::ReadDir))?
        .add_rules(path_beneath_rules(&confinement.writable, all))?;
    if confinement.system_calls.may_ask_name_servers() {
        ruleset = ruleset.add_rule(NetPort::new(DNS_PORT, AccessNet::ConnectTcp))?;
        for port in &confinement.tcp_ports {
            ruleset = ruleset.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
        }
    }
    Ok(ruleset.restrict_self()?.ruleset)
}

#[cfg(test)]
mod tests;
