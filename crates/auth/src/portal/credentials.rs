//! Changes that users of the store make to their credentials.
//!
//! INVARIANT: it takes a login of the last ten minutes; the present password is asked for again
//! where it is changed.

use std::sync::Arc;

use super::{Portal, now};
use crate::authenticator::{Entrance, Login};
use vpnd_config::factor::Factors;
use vpnd_ipc::gateway::portal::{Browser, ChangePassword, CodesOffer, OfferCodes, OwnChange, TakeCodes};
use vpnd_ipc::request::{Answer, Reason};
use vpnd_proto::control::SecretText;
use vpnd_proto::session::DeviceId;
use vpnd_store::password::Password;
use vpnd_store::{LOCAL, StoreError, User, totp};

impl Portal {
    /// The user of this browser, if it is one of the store who has logged in just now.
    fn owner(&self, browser: &Browser) -> Result<Result<User, OwnChange>, StoreError> {
        let Some(user) = self.visitor(browser)? else { return Ok(Err(OwnChange::NoVisit)) };
        let is_recent = self.visits().is_recent(&browser.token, now());
        Ok(match (user.source == LOCAL, is_recent) {
            (false, _) => Err(OwnChange::NotLocal),
            (true, false) => Err(OwnChange::LogInAgain),
            (true, true) => Ok(user),
        })
    }

    fn offer_codes(&self, offer: &OfferCodes) -> Result<CodesOffer, StoreError> {
        let user = match self.owner(&offer.browser)? {
            Ok(user) => user,
            Err(not) => return Ok(CodesOffer::Not(not)),
        };
        let secret = self.visits().offer(&offer.browser.token, totp::generate());
        let address = totp::address(&secret, &user.name, &offer.issuer.replace(':', " "));
        let address = address.and_then(|address| SecretText::new(address).ok());
        let typed = SecretText::new(totp::to_type(&secret)).ok();
        Ok(address.zip(typed).map_or(CodesOffer::Not(OwnChange::Unusable), |(address, secret)| {
            CodesOffer::Offer { address, secret }
        }))
    }

    fn take_codes(&self, take: &TakeCodes) -> Result<OwnChange, StoreError> {
        let TakeCodes { browser, code } = take;
        let user = match self.owner(browser)? {
            Ok(user) => user,
            Err(not) => return Ok(not),
        };
        let Some(secret) = self.visits().offered(&browser.token) else { return Ok(OwnChange::Unusable) };
        let code = Password::new(code.expose().to_owned());
        let changed = self.authenticator.change_codes(&user, secret, &code, (self.clocks.wall)())?;
        if changed == OwnChange::Done {
            let mut visits = self.visits();
            visits.remove_offer(&browser.token);
            visits.prove(&browser.token, Factors::ONE_TIME_CODE);
            drop(visits);
            self.record("codes-changed", &user.name, browser.address, "");
        }
        Ok(changed)
    }
}

impl Answer<ChangePassword> for Portal {
    async fn answer(self: &Arc<Self>, change: ChangePassword) -> Result<OwnChange, Reason> {
        let ChangePassword { browser, present, new } = change;
        let asked = browser.clone();
        let user = match self.from_store(move |portal| portal.owner(&asked)).await? {
            Ok(user) => user,
            Err(not) => return Ok(not),
        };
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
            // Another revocation at the same moment is not this visit's, and ends it.
            self.visits().set_generation(&browser.token, generation + 1);
            self.record("password-changed", &name, browser.address, "");
        }
        Ok(changed)
    }
}

impl Answer<OfferCodes> for Portal {
    async fn answer(self: &Arc<Self>, offer: OfferCodes) -> Result<CodesOffer, Reason> {
        self.from_store(move |portal| portal.offer_codes(&offer)).await
    }
}

impl Answer<TakeCodes> for Portal {
    async fn answer(self: &Arc<Self>, take: TakeCodes) -> Result<OwnChange, Reason> {
        self.from_store(move |portal| portal.take_codes(&take)).await
    }
}
