//! The profile of vpnd's own client, for users who are logged in.
//!
//! INVARIANT: it holds no secret and gives no right: but for the user's name, it says what anybody
//! may know.

use std::sync::{Arc, MutexGuard, PoisonError};

use super::Portal;
use vpnd_config::profile::Profile;
use vpnd_ipc::gateway::portal::Browser;
use vpnd_ipc::gateway::portal::devices::{OwnProfile, ProfileQuery};
use vpnd_ipc::request::{Answer, Reason};
use vpnd_proto::control::Text;
use vpnd_store::{StoreError, User};

impl Portal {
    /// Users get this one from now on, or none.
    pub(crate) fn hand_out(&self, text: Option<&str>) {
        let profile = text.map(|text| Profile::parse(text, "the clients' profile")).transpose();
        let profile =
            profile.inspect_err(|error| tracing::error!(%error, "the clients' profile can't be used"));
        *self.client_profile() = profile.ok().flatten();
    }

    pub(super) fn client_profile(&self) -> MutexGuard<'_, Option<Profile>> {
        self.client_profile.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn profile_of(&self, browser: &Browser) -> Result<OwnProfile, StoreError> {
        let Some(user) = self.browsers.visitor(browser)? else { return Ok(OwnProfile::NoVisit) };
        let profile = self.client_profile().clone();
        let text = profile.map(|profile| self.filled_in(profile, &user).to_toml());
        let text = text.and_then(|text| Text::new(text.as_str()).ok());
        Ok(text.map_or(OwnProfile::NotThere, OwnProfile::File))
    }

    fn filled_in(&self, profile: Profile, user: &User) -> Profile {
        Profile {
            user: Some(user.name.clone()),
            totp: user.totp.is_some(),
            browser: self.authenticator.is_provider(&user.source),
            ..profile
        }
    }
}

impl Answer<ProfileQuery> for Portal {
    async fn answer(self: &Arc<Self>, ProfileQuery(browser): ProfileQuery) -> Result<OwnProfile, Reason> {
        self.from_store(move |portal| portal.profile_of(&browser)).await
    }
}

#[cfg(test)]
mod tests {
    use super::super::desk::tests::Bench;
    use super::*;
    use vpnd_ipc::gateway::portal::Token;

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
