//! Files by which users set up their clients: the profile of vpnd's own client, and what the
//! configuration of a WireGuard client needs.
//!
//! INVARIANT: such a file holds no secret and gives no right: but for the user's name, it says what
//! anybody may know.

use std::sync::{Arc, Mutex};

use vpnd_admission::notices::lock;
use vpnd_admission::wireguard::WireGuard;
use vpnd_config::Tunnel;
use vpnd_config::endpoint::Endpoint;
use vpnd_config::profile::Profile;
use vpnd_ipc::gateway::portal::devices::OwnProfile;
use vpnd_proto::control::Text;
use vpnd_store::User;

/// The data that a WireGuard client's configuration needs.
pub(crate) struct Offer {
    pub(crate) wireguard: Arc<WireGuard>,
    pub(crate) endpoint: Endpoint,
    pub(crate) tunnel: Tunnel,
}

#[derive(Default)]
pub(super) struct ClientFiles {
    profile: Mutex<Option<Profile>>,
    offer: Mutex<Option<Arc<Offer>>>,
}

impl ClientFiles {
    /// Users get this profile from now on, or none.
    pub(super) fn hand_out(&self, text: Option<&str>) {
        let profile = text.map(|text| Profile::parse(text, "the clients' profile")).transpose();
        let profile =
            profile.inspect_err(|error| tracing::error!(%error, "the clients' profile can't be used"));
        *lock(&self.profile) = profile.ok().flatten();
    }

    /// Users may add WireGuard devices from now on, with this in their files, or none.
    pub(super) fn offer(&self, offer: Option<Offer>) {
        *lock(&self.offer) = offer.map(Arc::new);
    }

    pub(super) fn offered(&self) -> Option<Arc<Offer>> {
        lock(&self.offer).clone()
    }

    pub(super) fn has_profile(&self) -> bool {
        lock(&self.profile).is_some()
    }

    /// The profile of a user, who logs in at a provider or not.
    pub(super) fn profile_of(&self, user: &User, is_at_provider: bool) -> OwnProfile {
        let profile = lock(&self.profile).clone();
        let filled_in = |profile| Profile {
            user: Some(user.name.clone()),
            totp: user.totp.is_some(),
            browser: is_at_provider,
            ..profile
        };
        let text = profile.map(|profile| filled_in(profile).to_toml());
        let text = text.and_then(|text| Text::new(text.as_str()).ok());
        text.map_or(OwnProfile::NotThere, OwnProfile::File)
    }
}

#[cfg(test)]
mod tests {
    use super::super::desk::tests::Bench;
    use super::*;
    use vpnd_ipc::gateway::portal::devices::ProfileQuery;
    use vpnd_ipc::gateway::portal::{Browser, Token};

    const PROFILE: &str = "version = 1\n[server]\naddresses = ['vpn.uni.example:4433']\ntrust = 'system'\n";

    #[tokio::test]
    async fn a_client_profile_has_its_users_name_and_needs_a_visit() {
        let bench = Bench::new();
        let ann = bench.browser("ann", [192, 0, 2, 1]).await;
        let get = |browser: &Browser| bench.ask(ProfileQuery(browser.clone()));
        assert_eq!(get(&ann).await, OwnProfile::NotThere);
        bench.portal.hand_out(Some(PROFILE));
        let OwnProfile::File(text) = get(&ann).await else { panic!("she has one") };
        let profile = Profile::parse(&text, "vpn.toml").unwrap();
        assert_eq!(profile.user.as_deref(), Some("ann"));
        assert_eq!((profile.totp, profile.browser, profile.identity), (false, false, None));
        assert_eq!(profile.server_name, "vpn.uni.example");
        let stranger = Browser { token: Token([7; 32].into()), ..ann.clone() };
        assert_eq!(get(&stranger).await, OwnProfile::NoVisit);
        bench.portal.hand_out(None);
        assert_eq!(get(&ann).await, OwnProfile::NotThere);
    }
}
