//! Where programs of this machine send their questions for names: to systemd-resolved, where
//! `resolv.conf` says, or, some to the one and some to the other, both. What is installed decides
//! nothing: systemd-resolved may run and have nothing to answer.

use std::fs;
use std::net::IpAddr;
use std::os::unix::net::UnixStream;

use super::{DnsError, DnsSystem, read_text};

/// Addresses at which systemd-resolved answers.
const STUBS: [&str; 2] = ["127.0.0.53", "127.0.0.54"];
/// Its socket for the C library's module `resolve`, in its runtime directory.
const SOCKET: &str = "io.systemd.Resolve";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ways {
    pub(super) resolved: bool,
    /// Through the servers that `resolv.conf` lists.
    pub(super) file: bool,
}

impl Ways {
    /// The ways that names take now.
    ///
    /// # Errors
    /// [`DnsError`] if `resolv.conf` can't be read.
    pub(super) fn find(system: &DnsSystem) -> Result<Self, DnsError> {
        let leads_to_stub = leads_to_stub(&read_text(&system.resolv_conf)?);
        let runs = resolved_runs(system);
        let resolved = runs && (leads_to_stub || asks_resolve_first(system));
        Ok(Self { resolved, file: !(runs && leads_to_stub) })
    }
}

/// Whether systemd-resolved runs. Its directory outlives it, and a question by D-Bus would start
/// it.
pub(super) fn resolved_runs(system: &DnsSystem) -> bool {
    UnixStream::connect(system.resolved_runtime.join(SOCKET)).is_ok()
}

/// The name servers of a `resolv.conf`.
pub(super) fn servers_of(text: &str) -> Vec<IpAddr> {
    let words = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let words = words.map(|word| word.trim().split('%').next().unwrap_or_default().parse());
    words.filter_map(Result::ok).collect()
}

/// The name servers of a `resolv.conf`, link-local ones with the name of their interface.
pub(super) fn scoped_servers_of(text: &str) -> Vec<(IpAddr, Option<String>)> {
    let words = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let servers = words.filter_map(|word| {
        let (address, scope) = match word.trim().split_once('%') {
            Some((address, scope)) => (address, Some(scope.trim().to_owned())),
            None => (word.trim(), None),
        };
        Some((address.parse().ok()?, scope))
    });
    servers.collect()
}

/// Whether systemd-resolved is all that this `resolv.conf` names.
fn leads_to_stub(text: &str) -> bool {
    let servers = servers_of(text);
    !servers.is_empty() && servers.iter().all(|server| STUBS.contains(&server.to_string().as_str()))
}

/// Whether the C library asks systemd-resolved before the servers of `resolv.conf`.
fn asks_resolve_first(system: &DnsSystem) -> bool {
    let text = fs::read_to_string(&system.nsswitch).unwrap_or_default();
    let sources = text.lines().find_map(|line| line.trim_start().strip_prefix("hosts:")).unwrap_or_default();
    let sources = sources.split('#').next().unwrap_or_default();
    let mut first = sources.split_whitespace().filter(|source| ["resolve", "dns"].contains(source));
    first.next() == Some("resolve")
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn lookup_paths_follow_the_configured_files() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let system = DnsSystem {
            resolv_conf: at("resolv.conf"),
            resolved_runtime: at("resolve"),
            nsswitch: at("nsswitch"),
            network_manager: at("not-there"),
        };
        fs::create_dir(&system.resolved_runtime).unwrap();
        let (both, file, resolved) = ((true, true), (false, true), (true, false));
        let stub = "# stub\nnameserver 127.0.0.53\noptions edns0\nsearch x.example\n";
        let by_hand = "nameserver 192.0.2.1\n";
        let (module, plain) =
            ("passwd: files\nhosts: files resolve [!UNAVAIL=return] dns\n", "hosts: files dns\n");
        let cases = [
            (stub, plain, resolved, file),
            (stub, module, resolved, file),
            (by_hand, plain, file, file),
            (by_hand, module, both, file),
            (by_hand, "hosts: files dns resolve\n", file, file),
            (by_hand, "hosts: files dns # resolve\n", file, file),
            ("nameserver 127.0.0.53\nnameserver 192.0.2.1\n", plain, file, file),
            ("nameserver 127.0.0.1\n", plain, file, file),
            ("", module, both, file),
            ("", "", file, file),
        ];
        let find = || Ways::find(&system).map(|ways| (ways.resolved, ways.file)).unwrap();
        for (resolv_conf, nsswitch, while_it_runs, without) in cases {
            fs::write(&system.resolv_conf, resolv_conf).unwrap();
            fs::write(&system.nsswitch, nsswitch).unwrap();
            let socket = system.resolved_runtime.join(SOCKET);
            assert_eq!(find(), without, "{resolv_conf} {nsswitch}");
            let listener = UnixListener::bind(&socket).unwrap();
            assert_eq!(find(), while_it_runs, "{resolv_conf} {nsswitch}");
            drop(listener);
            assert_eq!(find(), without, "its socket alone is left: {resolv_conf} {nsswitch}");
            fs::remove_file(&socket).unwrap();
        }
    }
}
