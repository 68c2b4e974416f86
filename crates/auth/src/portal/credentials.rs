//! Credentials that users choose themselves: the password of those of the store, and one-time
//! codes; by an invitation both.
//!
//! Invariants: a change takes credentials that were shown in the last ten minutes; the present
//! password is asked for again where it is changed. Codes stay where the access profile requires
//! them. The token of an invitation's link decides whose it is; nothing else is done with it, and
//! it is used only once password and code are good.

use std::sync::Arc;

use super::browsers::Browsers;
use super::record::Record;
use vpnd_admission::access::Access;
use vpnd_admission::authenticator::{Authenticator, Chosen, Entrance, Login};
use vpnd_config::factor::Factors;
use vpnd_ipc::gateway::portal::invitations::{AcceptInvitation, InvitationStep, OpenInvitation};
use vpnd_ipc::gateway::portal::{
    Browser, ChangePassword, CodesOffer, OfferCodes, OwnChange, RemoveCodes, TakeCodes,
};
use vpnd_proto::control::{SecretText, UserName};
use vpnd_proto::session::DeviceId;
use vpnd_store::password::Password;
use vpnd_store::{InvitationHash, InvitationToken, LOCAL, Store, StoreError, TotpSecret, User, totp};
use vpnd_sys::clock::{Clocks, now};

pub(super) struct Credentials {
    store: Arc<dyn Store>,
    authenticator: Arc<Authenticator>,
    access: Arc<Access>,
    clocks: Clocks,
    record: Arc<Record>,
    browsers: Arc<Browsers>,
}

impl Credentials {
    pub(super) fn new(
        store: Arc<dyn Store>,
        authenticator: Arc<Authenticator>,
        access: Arc<Access>,
        clocks: Clocks,
        record: Arc<Record>,
        browsers: Arc<Browsers>,
    ) -> Self {
        Self { store, authenticator, access, clocks, record, browsers }
    }

    /// Whether the user has one-time codes; `None` of one who does not set them up.
    pub(super) fn codes_of(&self, user: &User) -> Option<bool> {
        self.authenticator.sets_up_codes(user).then_some(user.totp.is_some())
    }

    /// The user of this browser, if this user may and has shown credentials just now.
    fn owner(
        &self,
        browser: &Browser,
        may: impl FnOnce(&User) -> bool,
    ) -> Result<Result<User, OwnChange>, StoreError> {
        let Some(user) = self.browsers.visitor(browser)? else { return Ok(Err(OwnChange::NoVisit)) };
        let is_fresh = self.browsers.visits().is_fresh(&browser.token, now(), (self.clocks.wall)());
        Ok(match (may(&user), is_fresh) {
            (false, _) => Err(OwnChange::NotPermitted),
            (true, false) => Err(OwnChange::LogInAgain),
            (true, true) => Ok(user),
        })
    }

    /// The user of this browser, if they may change their password and have shown credentials just
    /// now.
    pub(super) fn owner_of_password(&self, browser: &Browser) -> Result<Result<User, OwnChange>, StoreError> {
        self.owner(browser, |user| user.source == LOCAL)
    }

    /// Changes the password of this user, whose browser asks for it.
    pub(super) async fn change_password(&self, change: ChangePassword, user: User) -> OwnChange {
        let ChangePassword { browser, present, new } = change;
        let login = Login {
            user: user.name.clone(),
            password: Password::new(present.expose().to_owned()),
            code: None,
            certificate: None,
            source: browser.address,
            entrance: Entrance::Portal,
            device: DeviceId(rand::random()),
        };
        let (name, generation) = (user.name.clone(), user.generation);
        let new = Password::new(new.expose().to_owned());
        let changed = self.authenticator.change_password(login, user, new, (self.clocks.wall)()).await;
        if changed == OwnChange::Done {
            self.browsers.has_revoked(&browser, generation);
            self.record.add("password-changed", &name, browser.address, "");
        }
        changed
    }

    fn owner_of_codes(&self, browser: &Browser) -> Result<Result<User, OwnChange>, StoreError> {
        self.owner(browser, |user| self.authenticator.sets_up_codes(user))
    }

    /// Whether the user of this visit has codes, and would be let in without.
    fn may_do_without(&self, user: &User, browser: &Browser) -> bool {
        let Some(factors) = self.browsers.visits().factors(&browser.token) else { return false };
        user.totp.is_some() && self.access.admit(user, factors.without(Factors::ONE_TIME_CODE)).is_ok()
    }

    pub(super) fn offer_codes(&self, offer: &OfferCodes) -> Result<CodesOffer, StoreError> {
        let user = match self.owner_of_codes(&offer.browser)? {
            Ok(user) => user,
            Err(not) => return Ok(CodesOffer::Not(not)),
        };
        let secret = self.browsers.visits().offer(&offer.browser.token, totp::generate());
        let removable = self.may_do_without(&user, &offer.browser);
        let shown = shown(&secret, &user, &offer.issuer);
        Ok(shown.map_or(CodesOffer::Not(OwnChange::Unusable), |(address, secret)| CodesOffer::Offer {
            address,
            secret,
            removable,
        }))
    }

    pub(super) fn take_codes(&self, take: &TakeCodes) -> Result<OwnChange, StoreError> {
        let TakeCodes { browser, code } = take;
        let user = match self.owner_of_codes(browser)? {
            Ok(user) => user,
            Err(not) => return Ok(not),
        };
        let Some(secret) = self.browsers.visits().offered(&browser.token) else {
            return Ok(OwnChange::Unusable);
        };
        let code = Password::new(code.expose().to_owned());
        let changed = self.authenticator.change_codes(&user, secret, &code, (self.clocks.wall)())?;
        if changed == OwnChange::Done {
            let mut visits = self.browsers.visits();
            visits.remove_offer(&browser.token);
            visits.prove(&browser.token, Factors::ONE_TIME_CODE);
            drop(visits);
            self.record.add("codes-changed", &user.name, browser.address, "");
        }
        Ok(changed)
    }

    pub(super) fn remove_codes(&self, RemoveCodes(browser): &RemoveCodes) -> Result<OwnChange, StoreError> {
        let user = match self.owner_of_codes(browser)? {
            Ok(user) => user,
            Err(not) => return Ok(not),
        };
        if !self.may_do_without(&user, browser) {
            return Ok(OwnChange::NotPermitted);
        }
        let changed = self.authenticator.remove_codes(&user, (self.clocks.wall)())?;
        if changed == OwnChange::Done {
            self.record.add("codes-removed", &user.name, browser.address, "");
        }
        Ok(changed)
    }

    /// The user of an invitation that is good yet.
    pub(super) fn invited(&self, invitation: &InvitationHash) -> Result<Option<User>, StoreError> {
        self.store.invited(invitation, (self.clocks.wall)())
    }

    pub(super) fn open_invitation(&self, open: &OpenInvitation) -> Result<InvitationStep, StoreError> {
        let hash = invitation_hash(&open.invitation);
        let user = hash.map(|hash| self.invited(&hash)).transpose()?.flatten();
        let Some(user) = user else { return Ok(InvitationStep::Over) };
        let before = open.before.as_ref().and_then(|before| totp::from_typed(before.expose()));
        let secret: TotpSecret = before.unwrap_or_else(totp::generate);
        let shown = shown(&secret, &user, &open.issuer);
        Ok(shown.map_or(InvitationStep::Over, |(address, secret)| InvitationStep::Open {
            user: UserName::cut(&user.name),
            address,
            secret,
            password: user.source == LOCAL,
        }))
    }

    /// Gives the user of an invitation what they have chosen.
    pub(super) async fn accept_invitation(
        &self,
        accept: AcceptInvitation,
        invitation: InvitationHash,
        user: User,
    ) -> InvitationStep {
        let AcceptInvitation { address, password, secret, code, .. } = accept;
        let Some(totp) = totp::from_typed(secret.expose()) else { return InvitationStep::CodeWrong };
        let name = user.name.clone();
        let chosen = Chosen {
            invitation,
            password: (user.source == LOCAL).then(|| Password::new(password.expose().to_owned())),
            user,
            totp,
            code: Password::new(code.expose().to_owned()),
            source: address,
        };
        let step = self.authenticator.accept_invitation(chosen, (self.clocks.wall)()).await;
        if matches!(step, InvitationStep::Done) {
            self.record.add("invitation-accepted", &name, address, "");
        }
        step
    }
}

/// A secret as an app takes it: the address for its camera, and as people type it.
fn shown(secret: &TotpSecret, user: &User, issuer: &str) -> Option<(SecretText<512>, SecretText<64>)> {
    let address = totp::address(secret, &user.name, &issuer.replace(':', " "))?;
    Some((SecretText::new(address).ok()?, SecretText::new(totp::to_type(secret)).ok()?))
}

pub(super) fn invitation_hash(invitation: &SecretText<64>) -> Option<InvitationHash> {
    InvitationToken::read(invitation.expose()).map(|token| token.hash())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::portal::desk::tests::Bench;
    use vpnd_admission::authenticator::{LoginFacts, Visit};
    use vpnd_ipc::gateway::idp::{SourceAddresses, SourceLimits};
    use vpnd_ipc::gateway::portal::OverviewQuery;
    use vpnd_ipc::gateway::portal::visits::BrowserKind;
    use vpnd_proto::control::Text;
    use vpnd_store::{ExternalUser, Users as _};
    use vpnd_sys::clock::wall_s;

    const PASSWORD: Factors = Factors::PASSWORD;

    /// The browser of a user of another source, who has shown these factors that long ago.
    fn browser(bench: &Bench, source: &str, name: &str, factors: Factors, ago_s: u64) -> Browser {
        let external = ExternalUser {
            source: source.to_owned(),
            subject: name.to_owned(),
            name: name.to_owned(),
            groups: vec!["guests".to_owned()],
        };
        let user = bench.store.refresh_external(&external, 1).unwrap();
        let login = LoginFacts {
            device: DeviceId([9; 16]),
            auth_time_s: wall_s() - ago_s,
            limits: SourceLimits::default(),
            addresses: SourceAddresses::default(),
        };
        let visit = Visit { user: user.id, generation: user.generation, factors, login };
        let address = [192, 0, 2, 1].into();
        let token = bench.portal.browsers.visits().begin(visit, address, now());
        Browser { token, address, kind: BrowserKind::default() }
    }

    /// The secret that is offered, and whether the user may do without.
    async fn offered(bench: &Bench, browser: &Browser) -> Result<(TotpSecret, bool), OwnChange> {
        let offer = OfferCodes { browser: browser.clone(), issuer: Text::cut("VPN") };
        match bench.ask(offer).await {
            CodesOffer::Offer { secret, removable, .. } => {
                Ok((totp::from_typed(secret.expose()).unwrap(), removable))
            }
            CodesOffer::Not(not) => Err(not),
        }
    }

    async fn take(bench: &Bench, browser: &Browser, secret: &TotpSecret) -> OwnChange {
        let code = SecretText::new(totp::code_at(secret, wall_s())).unwrap();
        bench.ask(TakeCodes { browser: browser.clone(), code }).await
    }

    async fn shown(bench: &Bench, browser: &Browser) -> Option<(Option<bool>, bool)> {
        let overview = bench.ask(OverviewQuery(browser.clone())).await;
        overview.map(|overview| (overview.codes, overview.password))
    }

    fn kept(bench: &Bench, name: &str) -> Option<TotpSecret> {
        bench.store.user(name).unwrap().unwrap().totp
    }

    #[tokio::test]
    async fn a_user_of_a_directory_sets_up_replaces_and_removes_codes() {
        let (bench, name) = (Bench::new(), "eva@uni.example");
        let other = browser(&bench, "campus", name, PASSWORD, 0);
        let eva = browser(&bench, "campus", name, PASSWORD, 0);
        assert_eq!(shown(&bench, &eva).await, Some((Some(false), false)));
        let (first, removable) = offered(&bench, &eva).await.unwrap();
        assert!(!removable, "there is nothing to remove");
        assert_eq!(bench.ask(RemoveCodes(eva.clone())).await, OwnChange::NotPermitted);
        assert_eq!(take(&bench, &eva, &totp::generate()).await, OwnChange::Unusable);
        assert!(kept(&bench, name).is_none());
        assert_eq!(take(&bench, &eva, &first).await, OwnChange::Done);
        assert!(kept(&bench, name) == Some(first.clone()));
        assert_eq!(shown(&bench, &other).await, None, "a visit without a code is over");
        assert_eq!(shown(&bench, &eva).await, Some((Some(true), false)));

        let (second, removable) = offered(&bench, &eva).await.unwrap();
        assert!(removable && second != first);
        assert_eq!(take(&bench, &eva, &second).await, OwnChange::Done);
        assert!(kept(&bench, name) == Some(second));
        let stale = browser(&bench, "campus", name, PASSWORD.and(Factors::ONE_TIME_CODE), 601);
        assert_eq!(offered(&bench, &stale).await.err(), Some(OwnChange::LogInAgain));
        assert_eq!(bench.ask(RemoveCodes(stale)).await, OwnChange::LogInAgain);
        assert_eq!(bench.ask(RemoveCodes(eva.clone())).await, OwnChange::Done);
        assert!(kept(&bench, name).is_none());
        assert_eq!(shown(&bench, &eva).await, Some((Some(false), false)));
        let newest = bench.audit.newest();
        let events: Vec<_> = newest.iter().map(|entry| (entry.event.as_str(), &*entry.user)).collect();
        assert_eq!(events[..3], [("codes-removed", name), ("codes-changed", name), ("codes-changed", name)]);
    }

    #[tokio::test]
    async fn codes_are_set_up_where_the_source_lets_users_do_so() {
        let bench = Bench::new();
        for (source, name) in [("tokens", "tim@tokens.example"), ("gone", "gil@gone.example")] {
            let browser = browser(&bench, source, name, PASSWORD, 0);
            assert_eq!(shown(&bench, &browser).await, Some((None, false)), "{source}");
            assert_eq!(offered(&bench, &browser).await.err(), Some(OwnChange::NotPermitted), "{source}");
            assert_eq!(take(&bench, &browser, &totp::generate()).await, OwnChange::NotPermitted);
            assert_eq!(bench.ask(RemoveCodes(browser)).await, OwnChange::NotPermitted);
        }
    }

    #[tokio::test]
    async fn codes_that_a_profile_requires_are_replaced_and_not_removed() {
        for (required, may_remove) in [("otp", false), ("mfa", false), ("", true)] {
            let text = format!("[[profile]]\nname = 'strict'\nrequire = [{required:?}]\n");
            let text = text.replace("\"\"", "");
            let bench = Bench::with_profiles(vpnd_config::testing::smallest(&text).profiles);
            let name = "eva@uni.example";
            let eva = browser(&bench, "campus", name, PASSWORD.and(Factors::ONE_TIME_CODE), 0);
            let (secret, removable) = offered(&bench, &eva).await.unwrap();
            assert!(!removable, "she has none yet");
            assert_eq!(take(&bench, &eva, &secret).await, OwnChange::Done);
            assert_eq!(offered(&bench, &eva).await.unwrap().1, may_remove, "{required}");
            let expected = if may_remove { OwnChange::Done } else { OwnChange::NotPermitted };
            assert_eq!(bench.ask(RemoveCodes(eva)).await, expected, "{required}");
            assert_eq!(kept(&bench, name).is_none(), may_remove, "{required}");
        }
    }
}
