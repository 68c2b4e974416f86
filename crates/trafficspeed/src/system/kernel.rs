//! The running kernel's own parts that a VPN may need: whether they are there, and loading them.
//!
//! Looking reads files only, so that `trafficspeed doctor` changes nothing. A part is there if it
//! is loaded, if the kernel's list of modules has it, or if it was built in.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Kind, Subject, SystemError};
use crate::lab::cpu_limit::CpuLimit;
use crate::lab::run_tool;

/// The kernel's release, such as `6.12.117+deb13-amd64`.
pub fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// A remark on each of the kernel's systems.
pub const NOTE: &str =
    "runs in the kernel, in its interrupt time and threads, which belong to no process of the VPN";

/// Whether the kernel itself carries a system's packets, so that the CPU time of its processes says
/// nothing about their cost.
pub fn carries(kind: Kind) -> bool {
    matches!(kind, Kind::Wireguard | Kind::Ipsec | Kind::IpsecAhEsp | Kind::OpenvpnDco)
}

/// Refuses to limit the CPU time of a gateway whose programs do not do the work.
///
/// # Errors
/// [`SystemError::Missing`], if one of `subjects` is such a system and there is a limit of all or
/// of its own.
pub fn check_limit(subjects: &[Subject], limit: Option<CpuLimit>) -> Result<(), SystemError> {
    let is_limited = |subject: &&Subject| limit.is_some() || subject.gateway_cpu.is_some();
    let in_kernel = subjects.iter().find(|subject| carries(subject.kind) && is_limited(subject));
    let Some(subject) = in_kernel else { return Ok(()) };
    Err(SystemError::Missing(format!(
        "the kernel does the work of {}, and a limit of the CPU time of the gateway's programs does not hold it; \
         measure it without the limit, or the others without it",
        subject.kind.profile().label
    )))
}

/// Says which of `modules` this kernel lacks for `system`.
pub fn check(system: &str, modules: &[&str]) -> Result<(), SystemError> {
    let release = release();
    check_in(Path::new("/"), &release, system, modules)
}

fn check_in(root: &Path, release: &str, system: &str, modules: &[&str]) -> Result<(), SystemError> {
    let absent: Vec<&str> = modules.iter().copied().filter(|name| !is_there(root, release, name)).collect();
    if absent.is_empty() {
        return Ok(());
    }
    Err(SystemError::NoModule(format!(
        "{system} is a part of the kernel, and Linux {release} has no {}; boot a kernel with it, such as Debian's",
        absent.join(", no ")
    )))
}

fn is_there(root: &Path, release: &str, name: &str) -> bool {
    if root.join("sys/module").join(name).exists() {
        return true;
    }
    let lists = ["modules.dep", "modules.builtin"];
    lists.iter().any(|list| {
        let path = root.join("lib/modules").join(release).join(list);
        fs::read_to_string(path).is_ok_and(|text| lists_module(&text, name))
    })
}

/// Whether a list of modules, a path and perhaps its dependencies in each line, has one of this
/// name.
fn lists_module(list: &str, name: &str) -> bool {
    let own = |line: &str| {
        let path = line.split(':').next().unwrap_or_default();
        let file = path.rsplit('/').next().unwrap_or_default();
        file.split_once(".ko").is_some_and(|(module, _)| module.replace('-', "_") == name)
    };
    list.lines().any(own)
}

/// Loads `modules`, which [`check`] has found.
///
/// # Errors
/// [`SystemError::Lab`] with what modprobe said.
pub fn load(modules: &[&str]) -> Result<(), SystemError> {
    let absent = modules.iter().filter(|name| !Path::new("/sys/module").join(name).exists());
    for name in absent {
        run_tool(Command::new("modprobe").arg(name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_limits_are_refused_for_kernel_systems() {
        use crate::system::Cipher;

        let subjects = [Kind::Vpnd, Kind::OpenvpnDco].map(|kind| Subject::new(kind, Cipher::Auto));
        let limit = "0.5".parse().ok();
        let said = check_limit(&subjects, limit).unwrap_err().to_string();
        assert!(said.starts_with("the kernel does the work of OpenVPN (kernel), "), "{said}");
        assert!(check_limit(&subjects, None).is_ok() && check_limit(&subjects[..1], limit).is_ok());
    }

    #[test]
    fn a_module_is_found_loaded_listed_or_built_in_and_otherwise_named() {
        let root = tempfile::tempdir().unwrap();
        let modules = root.path().join("lib/modules/7.2");
        fs::create_dir_all(&modules).unwrap();
        fs::create_dir_all(root.path().join("sys/module/esp4")).unwrap();
        let dep = "kernel/drivers/net/wireguard/wireguard.ko.xz: kernel/net/udp_tunnel.ko.xz\n\
                   kernel/net/xfrm/xfrm-interface.ko:\n";
        fs::write(modules.join("modules.dep"), dep).unwrap();
        fs::write(modules.join("modules.builtin"), "kernel/net/xfrm/xfrm_user.ko\n").unwrap();
        let check = |modules: &[&str]| check_in(root.path(), "7.2", "the VPN", modules);
        assert!(check(&["wireguard", "esp4", "xfrm_user", "xfrm_interface"]).is_ok());
        let said = check(&["wireguard", "udp_tunnel", "ovpn"]).unwrap_err().to_string();
        assert!(said.contains("Linux 7.2 has no udp_tunnel, no ovpn;"), "its own line alone counts: {said}");
    }
}
