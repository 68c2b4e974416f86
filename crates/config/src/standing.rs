//! Whether a WireGuard device would be let in, for people.

use crate::AccessProfile;
use vpnd_sys::date::rfc3339;

/// State of a device that decides about it besides its user's profile.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Whether its user is enabled and has not expired.
    pub user_may_connect: bool,
    pub renewed_s: u64,
    pub walled_s: Option<u64>,
}

impl Standing {
    /// One line, of which `vpnd device list` and the API make their state.
    #[must_use]
    pub fn state(&self, profile: Option<&AccessProfile>, now_s: u64) -> String {
        let Some(profile) = profile.filter(|profile| profile.wireguard.allowed) else {
            return "not allowed by its user's profile".to_owned();
        };
        if !self.user_may_connect {
            return "its user is disabled or expired".to_owned();
        }
        if let Some(walled_s) = self.walled_s {
            return format!("kicked {}; waits for 'vpnd device renew'", rfc3339(walled_s));
        }
        match profile.session_lifetime.map(|lifetime| self.renewed_s.saturating_add(lifetime.as_secs())) {
            Some(end_s) if end_s <= now_s => {
                format!("ended {}; waits for 'vpnd device renew'", rfc3339(end_s))
            }
            Some(end_s) => format!("until {}", rfc3339(end_s)),
            None => "without end".to_owned(),
        }
    }
}
