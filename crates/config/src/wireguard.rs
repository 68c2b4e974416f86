//! `[wireguard]`: stock WireGuard clients, and which users may have them.
//!
//! INVARIANT: a device that shows nothing but its key is in no profile that requires a factor.

use std::time::Duration;

use super::document::{Log as Problems, Section};
use super::{MAX_MTU, MIN_MTU, ServerConfig};

/// The MTU in a client's file unless another is configured: it fits into every path that carries
/// IPv6 but for the smallest.
const DEFAULT_MTU: u16 = MIN_MTU;
/// Devices of one user unless another number is configured, and the largest number that can be:
/// pages list all of them.
const DEFAULT_DEVICES: u64 = 64;
const MOST_DEVICES: u64 = 128;

/// `[wireguard]`, if it is enabled; for profiles that say nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireGuard {
    /// The largest inner packet of clients, bytes.
    pub mtu: u16,
    /// Clients send something at least so often.
    pub keepalive: Option<Duration>,
    /// Devices of one user.
    pub max_devices: u64,
}

/// Settings of the WireGuard devices of a profile's users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireGuardProfile {
    /// Whether they are let in.
    pub allowed: bool,
    /// The largest inner packet, bytes.
    pub mtu: u16,
    /// They send something at least so often.
    pub keepalive: Option<Duration>,
    /// Those of one user, at most.
    pub max_devices: u64,
}

/// Settings of a gateway without `[wireguard]`: none is let in.
impl Default for WireGuardProfile {
    fn default() -> Self {
        Self { allowed: false, mtu: DEFAULT_MTU, keepalive: None, max_devices: DEFAULT_DEVICES }
    }
}

impl WireGuardProfile {
    /// Settings of a profile that says nothing of it.
    pub(super) fn implied(general: Option<WireGuard>) -> Self {
        match general {
            Some(WireGuard { mtu, keepalive, max_devices }) => {
                Self { allowed: true, mtu, keepalive, max_devices }
            }
            None => Self::default(),
        }
    }
}

/// Reads `[wireguard]`.
pub(super) fn wireguard(
    s: &mut Section<'_>,
    p: &mut Problems,
    tunnel_mtu: u16,
    requires_certificate: bool,
) -> Option<WireGuard> {
    let enabled = s.flag(p, "enabled", false);
    let mtu = mtu(s, p, "mtu", DEFAULT_MTU, tunnel_mtu);
    let keepalive = keepalive(s, p, "keepalive_s", None);
    let max_devices = max_devices(s, p, "max_devices", DEFAULT_DEVICES);
    if enabled && requires_certificate {
        let message = "'enabled' in [wireguard] contradicts 'require_client_certificate' in [tls]: a WireGuard client \
                       shows nothing but its key; remove one of them";
        s.problem(p, "enabled", message.to_owned());
    }
    enabled.then_some(WireGuard { mtu, keepalive, max_devices })
}

/// Reads the keys of a profile, which requires more of a login than a password or not.
pub(super) fn profile(
    s: &mut Section<'_>,
    p: &mut Problems,
    config: &ServerConfig,
    requires: bool,
) -> WireGuardProfile {
    let otherwise = WireGuardProfile::implied(config.wireguard);
    let is_said = s.has("wireguard");
    let wanted = s.flag(p, "wireguard", otherwise.allowed);
    if is_said && wanted && config.wireguard.is_none() {
        let message =
            "'wireguard' in [profile] lets WireGuard clients in, which needs enabled = true in [wireguard]";
        s.problem(p, "wireguard", message.to_owned());
    }
    if is_said && wanted && requires {
        let message = "'wireguard' in [profile] contradicts 'require' and 'max_login_age_s': a WireGuard client shows nothing \
                       but its key; write wireguard = false, or another profile for such users";
        s.problem(p, "wireguard", message.to_owned());
    }
    WireGuardProfile {
        allowed: wanted && !requires,
        mtu: mtu(s, p, "wireguard_mtu", otherwise.mtu, config.tunnel.mtu),
        keepalive: keepalive(s, p, "wireguard_keepalive_s", otherwise.keepalive),
        max_devices: max_devices(s, p, "wireguard_max_devices", otherwise.max_devices),
    }
}

fn mtu(s: &mut Section<'_>, p: &mut Problems, key: &'static str, default: u16, tunnel_mtu: u16) -> u16 {
    let mtu = s.number(p, key, u64::from(MIN_MTU)..=u64::from(MAX_MTU), u64::from(default)) as u16;
    if mtu > tunnel_mtu {
        let message = format!(
            "'{key}' is {mtu}, more than 'mtu' in [tunnel], {tunnel_mtu}: packets of that size arrive nowhere"
        );
        s.problem(p, key, message);
    }
    mtu
}

fn keepalive(
    s: &mut Section<'_>,
    p: &mut Problems,
    key: &'static str,
    default: Option<Duration>,
) -> Option<Duration> {
    let default_s = default.unwrap_or_default().as_secs();
    let seconds = s.number(p, key, 0..=3_600, default_s);
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

fn max_devices(s: &mut Section<'_>, p: &mut Problems, key: &'static str, default: u64) -> u64 {
    s.number(p, key, 1..=MOST_DEVICES, default)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::ServerConfig;
    use crate::testing::{LEAST, smallest};

    fn problem(extra: &str) -> String {
        let text = format!("{LEAST}{extra}");
        ServerConfig::parse(&text, "s", Path::new("/")).expect_err("a contradiction").to_string()
    }

    #[test]
    fn wireguard_is_off_by_default() {
        for text in ["", "[wireguard]\n", "[wireguard]\nmtu = 1400\n[[profile]]\nname = 'a'\n"] {
            let config = smallest(text);
            assert_eq!(config.wireguard, None);
            assert!(config.profiles.iter().all(|profile| !profile.wireguard.allowed));
        }
    }

    #[test]
    fn profiles_have_their_own_wireguard_settings() {
        let config = smallest(
            "[wireguard]\nenabled = true\nkeepalive_s = 25\n[[profile]]\nname = 'a'\nwireguard_mtu = 1400\n\
             [[profile]]\nname = 'b'\nwireguard = false\n[[profile]]\nname = 'c'\nrequire = ['otp']\n\
             [[profile]]\nname = 'd'\nwireguard_keepalive_s = 0\n",
        );
        let settings = |position: usize| config.profiles.at(position).wireguard;
        assert_eq!(
            (
                settings(0).allowed,
                settings(0).mtu,
                settings(0).keepalive.map(|keepalive| keepalive.as_secs())
            ),
            (true, 1400, Some(25))
        );
        assert!(!settings(1).allowed && settings(1).mtu == 1280);
        assert!(!settings(2).allowed, "a key is no second factor");
        assert_eq!((settings(3).allowed, settings(3).keepalive), (true, None));
    }

    #[test]
    fn the_number_of_a_users_devices_is_that_of_the_profile_or_of_the_section() {
        let profiles = "[[profile]]\nname = 'a'\nwireguard_max_devices = 2\n[[profile]]\nname = 'b'\n";
        let most = |text: &str| -> Vec<u64> {
            let config = smallest(&format!("{text}{profiles}"));
            config.profiles.iter().map(|profile| profile.wireguard.max_devices).collect()
        };
        assert_eq!(most("[wireguard]\nenabled = true\n"), [2, 64]);
        assert_eq!(most("[wireguard]\nenabled = true\nmax_devices = 5\n"), [2, 5]);
        let implied = smallest("[wireguard]\nenabled = true\nmax_devices = 5\n").profiles;
        assert_eq!(implied.at(0).wireguard.max_devices, 5);
        let found = problem("[wireguard]\nenabled = true\nmax_devices = 0\n");
        assert!(found.contains("s:8: 'max_devices' in [wireguard] must be a whole number from 1"), "{found}");
    }

    #[test]
    fn contradictions_are_named_with_their_line() {
        let found = problem(
            "[wireguard]\nenabled = true\n[[profile]]\nname = 'a'\nrequire = ['otp']\nwireguard = true\n",
        );
        assert!(found.contains("s:11: 'wireguard' in [profile] contradicts 'require'"), "{found}");
        let found = problem("[[profile]]\nname = 'a'\nwireguard = true\n");
        assert!(found.contains("s:8: ") && found.contains("enabled = true in [wireguard]"), "{found}");
        let found = problem("[wireguard]\nenabled = true\nmtu = 1500\n");
        assert!(found.contains("s:8: ") && found.contains("1420"), "{found}");
        let text =
            LEAST.replace("[tunnel]", "client_ca = 'ca.pem'\nrequire_client_certificate = true\n[tunnel]");
        let text = format!("{text}[wireguard]\nenabled = true\n");
        let found = ServerConfig::parse(&text, "s", Path::new("/")).expect_err("a contradiction").to_string();
        assert!(found.contains("s:9: ") && found.contains("require_client_certificate"), "{found}");
    }
}
