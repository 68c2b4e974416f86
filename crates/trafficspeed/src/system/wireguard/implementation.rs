//! The user-space implementations of WireGuard that are measured: what each is called, where it
//! comes from, how it is started. Everything else is the same for all.

use std::ffi::OsStr;
use std::path::Path;

use super::{CIPHERS, WireGuard};
use crate::system::Profile;
use crate::system::program::{Program, Source};

#[derive(Debug)]
pub struct Implementation {
    pub program: Program,
    /// Arguments before the device's name that keep it in the foreground and its privileges its
    /// own.
    pub arguments: &'static [&'static str],
    /// Variables of the gateway's environment, as NAME=VALUE: clients are as they come, so that
    /// rows differ in the server alone.
    pub gateway_environment: &'static [&'static str],
    /// A remark for readers of its figures.
    pub note: &'static str,
}

impl Implementation {
    /// The words of `env` that start it on `device`, at the gateway or at a client.
    pub fn words<'a>(&self, program: &'a Path, device: &'a str, is_gateway: bool) -> Vec<&'a OsStr> {
        let environment: &[&str] = if is_gateway { self.gateway_environment } else { &[] };
        let environment = environment.iter().map(OsStr::new);
        let arguments = self.arguments.iter().map(OsStr::new);
        environment.chain([program.as_os_str()]).chain(arguments).chain([OsStr::new(device)]).collect()
    }
}

/// The original in Go; Debian's package is the fallback.
pub static WIREGUARD_GO: Implementation = Implementation {
    program: Program {
        name: "wireguard-go",
        version: &["--version"],
        places: &[],
        source: Source::Go {
            module: "golang.zx2c4.com/wireguard",
            version: "v0.0.0-20260522210424-ecfc5a8d5446",
        },
    },
    arguments: &["-f"],
    gateway_environment: &[],
    note: "",
};

/// Tailscale's fork, whose newest version has no tag.
pub static WIREGUARD_GO_TAILSCALE: Implementation = WIREGUARD_GO_TAILSCALE_DEFAULT;

const WIREGUARD_GO_TAILSCALE_DEFAULT: Implementation = Implementation {
    program: Program {
        name: "wireguard-go-tailscale",
        version: &["--version"],
        places: &[],
        source: Source::Go {
            module: "github.com/tailscale/wireguard-go",
            version: "v0.0.0-20260928213032-417aef361226",
        },
    },
    arguments: &["-f"],
    gateway_environment: &[],
    note: "the fork by itself, without Tailscale's client",
};

/// Tailscale's fork with one processor for the gateway's Go code, whose workers hand less to each
/// other then.
pub static WIREGUARD_GO_TAILSCALE_PROCS1: Implementation =
    Implementation { gateway_environment: &["GOMAXPROCS=1"], ..WIREGUARD_GO_TAILSCALE_DEFAULT };

pub static BORINGTUN: Implementation = Implementation {
    program: Program {
        name: "boringtun-cli",
        version: &["--version"],
        places: &[],
        source: Source::Cargo { package: "boringtun-cli", version: "0.7.1" },
    },
    // Giving up privileges would also give up ending with the process that started it.
    arguments: &["--foreground", "--disable-drop-privileges"],
    gateway_environment: &[],
    note: "4 threads, its default",
};

pub static GOTATUN: Implementation = Implementation {
    program: Program {
        name: "gotatun",
        version: &["--version"],
        places: &[],
        source: Source::Cargo { package: "gotatun-cli", version: "0.10.2" },
    },
    arguments: &["--foreground", "--disable-drop-privileges", "--verbosity", "error"],
    gateway_environment: &[],
    note: "",
};

/// wireguard-go before it runs.
pub const WIREGUARD_GO_PROFILE: Profile = Profile {
    label: "wireguard-go",
    ciphers: CIPHERS,
    programs: &[&WIREGUARD_GO.program],
    has_priority: false,
    adapter: |programs, _| Box::new(WireGuard::new(&WIREGUARD_GO, programs)),
};

/// Tailscale's fork of wireguard-go before it runs.
pub const WIREGUARD_GO_TAILSCALE_PROFILE: Profile = Profile {
    label: "wireguard-go-tailscale",
    ciphers: CIPHERS,
    programs: &[&WIREGUARD_GO_TAILSCALE.program],
    has_priority: false,
    adapter: |programs, _| Box::new(WireGuard::new(&WIREGUARD_GO_TAILSCALE, programs)),
};

/// Tailscale's fork with GOMAXPROCS=1 at the gateway, before it runs.
pub const WIREGUARD_GO_TAILSCALE_PROCS1_PROFILE: Profile = Profile {
    label: "wireguard-go-tailscale, GOMAXPROCS=1",
    adapter: |programs, _| Box::new(WireGuard::new(&WIREGUARD_GO_TAILSCALE_PROCS1, programs)),
    ..WIREGUARD_GO_TAILSCALE_PROFILE
};

/// BoringTun before it runs.
pub const BORINGTUN_PROFILE: Profile = Profile {
    label: "boringtun",
    ciphers: CIPHERS,
    programs: &[&BORINGTUN.program],
    has_priority: false,
    adapter: |programs, _| Box::new(WireGuard::new(&BORINGTUN, programs)),
};

/// GotaTun before it runs.
pub const GOTATUN_PROFILE: Profile = Profile {
    label: "gotatun",
    ciphers: CIPHERS,
    programs: &[&GOTATUN.program],
    has_priority: false,
    adapter: |programs, _| Box::new(WireGuard::new(&GOTATUN, programs)),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_for_the_gateway_alone() {
        let words = |is_gateway| {
            WIREGUARD_GO_TAILSCALE_PROCS1.words(Path::new("/bin/wg"), "wg0", is_gateway).join(OsStr::new(" "))
        };
        assert_eq!(words(true), "GOMAXPROCS=1 /bin/wg -f wg0");
        assert_eq!(words(false), "/bin/wg -f wg0");
    }
}
