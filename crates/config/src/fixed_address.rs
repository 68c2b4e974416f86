//! Fixed addresses: whether the configuration has them for a user.

use std::net::IpAddr;

use super::ServerConfig;
use super::access_profile::Who;

impl ServerConfig {
    /// Reason why this user never gets this address, if there is one.
    #[must_use]
    pub fn unleasable(&self, who: Who<'_>, address: IpAddr) -> Option<String> {
        let Some(position) = self.profiles.position(who) else {
            return Some("the user is in no [[profile]], so logins are refused".to_owned());
        };
        let profile = self.profiles.at(position);
        let pools = self.profiles.pools(&self.tunnel);
        let pools = &pools[position];
        if pools.iter().any(|pool| pool.contains(address)) {
            return None;
        }
        let names: Vec<String> = pools.iter().map(ToString::to_string).collect();
        let (names, title) = (names.join(" and "), profile.title());
        let profile = if self.profiles.are_configured() {
            format!(" of the profile '{title}', which is the user's")
        } else {
            String::new()
        };
        let in_tunnel = self.tunnel.pools().any(|net| net.contains(&address));
        let what_to_do = if in_tunnel && self.profiles.are_configured() {
            "choose another, or give the profile a pool with it"
        } else {
            "choose another, or make the pool in [tunnel] larger"
        };
        Some(format!("it is not one that clients get out of {names}{profile}; {what_to_do}"))
    }
}
