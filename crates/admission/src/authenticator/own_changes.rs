//! Changes that users make to their credentials, after they have logged in.
//!
//! Invariants: a password is changed only by a user who knows the present one, which counts as a
//! guess as in a login and waits for its turn as one; a secret of one-time codes is kept only once
//! a code of it was shown; a user changes them no more often than logging in. Users of another
//! source have no password here, and codes only if its configuration lets them set these up.

use std::net::IpAddr;
use std::sync::Arc;

use super::external::blocking;
use super::logins::Logins;
use super::throttle::Person;
use super::{Cause, Login, LoginOutcome};
use vpnd_ipc::gateway::portal::OwnChange;
use vpnd_ipc::gateway::portal::invitations::InvitationStep;
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_store::password::{MAX_PASSWORD_BYTES, MIN_PASSWORD_CHARS, Password, is_guessable};
use vpnd_store::totp;
use vpnd_store::{Accepted, InvitationHash, PasswordHash, Store, StoreError, TotpSecret, User, UserChange};

/// The choices of an invited user.
pub struct Chosen {
    pub invitation: InvitationHash,
    pub user: User,
    /// `None` of a user of another source.
    pub password: Option<Password>,
    pub totp: TotpSecret,
    /// A code of that secret.
    pub code: Password,
    pub source: IpAddr,
}

pub(super) struct OwnChanges {
    pub(super) store: Arc<dyn Store>,
    pub(super) logins: Arc<Logins>,
}

impl OwnChanges {
    /// Gives a user another password, which is a revocation. `login` has the present one.
    pub(super) async fn change_password(
        self: &Arc<Self>,
        login: Login,
        user: User,
        new: Password,
        now_s: u64,
    ) -> OwnChange {
        let Some(turn) = self.logins.queue.turn_of_known(login.source).await else {
            return OwnChange::Refused(Refusal::Busy.into());
        };
        let this = Arc::clone(self);
        let changed = blocking(move || {
            let changed = this.change_password_now(&login, &user, &new, now_s);
            drop(turn);
            changed.unwrap_or_else(|error| {
                tracing::error!(%error, "a password could not be changed");
                OwnChange::Refused(Refusal::Internal.into())
            })
        });
        changed.await.unwrap_or(OwnChange::Refused(Refusal::Internal.into()))
    }

    fn change_password_now(
        &self,
        login: &Login,
        user: &User,
        new: &Password,
        now_s: u64,
    ) -> Result<OwnChange, StoreError> {
        let Some(present) = &user.password else { return Ok(OwnChange::NotPermitted) };
        if !is_usable(new, user) {
            return Ok(OwnChange::Unusable);
        }
        let person = Person::of(&user.name, Some(user));
        let guess = match self.logins.admit(login, person, true, now_s) {
            Ok(guess) => guess,
            Err(LoginOutcome::Refused(refused)) => return Ok(OwnChange::Refused(refused)),
            Err(_) => return Ok(OwnChange::Refused(Refusal::Busy.into())),
        };
        let hashed = match self.logins.credentials.verify(&login.password, Some(present)) {
            Ok(true) => self.logins.credentials.hash(new),
            Ok(false) => {
                return Ok(match self.logins.refuse_for_good(login, Cause::WrongPassword, &guess, now_s) {
                    LoginOutcome::Refused(refused) => OwnChange::Refused(refused),
                    _ => OwnChange::Refused(Refusal::Credentials.into()),
                });
            }
            Err(none) => Err(none),
        };
        self.logins.guesses.take_back(login, guess);
        let Ok(hash) = hashed else { return Ok(OwnChange::Refused(Refusal::Busy.into())) };
        if let Some(refused) = self.too_often(user) {
            return Ok(refused);
        }
        // It has waited and was hashed: meanwhile an administrator may have given another password,
        // which this one must not replace.
        let is_changed = self.store.change_own_password(user, &hash, now_s)?;
        Ok(if is_changed { OwnChange::Done } else { OwnChange::NoVisit })
    }

    /// Gives a user this secret of one-time codes, of which a code was typed.
    pub(super) fn change_codes(
        &self,
        user: &User,
        secret: TotpSecret,
        code: &Password,
        now_s: u64,
    ) -> Result<OwnChange, StoreError> {
        let Some(step) = totp::matching_step(&secret, code, now_s) else { return Ok(OwnChange::Unusable) };
        if let Some(refused) = self.too_often(user) {
            return Ok(refused);
        }
        let change = UserChange { totp: Some(Some(secret)), ..UserChange::default() };
        self.store.modify_user(&user.name, &change, now_s)?;
        // It was shown, so it is good for no login.
        self.store.use_totp_step(user.id, step)?;
        Ok(OwnChange::Done)
    }

    /// Takes a user's one-time codes away.
    pub(super) fn remove_codes(&self, user: &User, now_s: u64) -> Result<OwnChange, StoreError> {
        if let Some(refused) = self.too_often(user) {
            return Ok(refused);
        }
        let change = UserChange { totp: Some(None), ..UserChange::default() };
        self.store.modify_user(&user.name, &change, now_s)?;
        Ok(OwnChange::Done)
    }

    /// Gives the user of an invitation the password and the codes that they have chosen.
    pub(super) async fn accept_invitation(self: &Arc<Self>, chosen: Chosen, now_s: u64) -> InvitationStep {
        let step = |refusal: Refusal| InvitationStep::Refused(refusal.into());
        if chosen.password.as_ref().is_some_and(|password| !is_usable(password, &chosen.user)) {
            return InvitationStep::PasswordUnusable;
        }
        let Some(code_step) = totp::matching_step(&chosen.totp, &chosen.code, now_s) else {
            return InvitationStep::CodeWrong;
        };
        if let Some(OwnChange::Refused(refused)) = self.too_often(&chosen.user) {
            return InvitationStep::Refused(refused);
        }
        let Some(turn) = self.logins.queue.turn_of_known(chosen.source).await else {
            return step(Refusal::Busy);
        };
        let this = Arc::clone(self);
        let accepted = blocking(move || {
            let hashed = chosen.password.as_ref().map(|password| this.logins.credentials.hash(password));
            drop(turn);
            let Ok(password) = hashed.transpose() else { return step(Refusal::Busy) };
            let Chosen { invitation, totp, .. } = chosen;
            let accepted = Accepted { invitation, password, totp, step: code_step };
            match this.store.accept_invitation(&accepted, now_s) {
                Ok(true) => InvitationStep::Done,
                Ok(false) => InvitationStep::Over,
                Err(error) => {
                    tracing::error!(%error, "an invitation could not be accepted");
                    step(Refusal::Internal)
                }
            }
        });
        accepted.await.unwrap_or(InvitationStep::Refused(Refusal::Internal.into()))
    }

    /// The hash of an unknown password, for a user who is invited.
    pub(super) async fn unknown_password(self: &Arc<Self>, source: IpAddr) -> Option<PasswordHash> {
        let turn = self.logins.queue.turn_of_known(source).await?;
        let this = Arc::clone(self);
        let hashed = blocking(move || {
            let hashed = this.logins.credentials.hash(&Password::generate());
            drop(turn);
            hashed.ok()
        });
        hashed.await.ok().flatten()
    }

    /// A change costs writes as a login does, and counts as one of the user's.
    fn too_often(&self, user: &User) -> Option<OwnChange> {
        let wait_s = self.logins.limit.take(user.id).err()?;
        Some(OwnChange::Refused(Refusal::Throttled.retry_after_s(Some(wait_s))))
    }
}

/// Whether a person may have this password (NIST SP 800-63B): long enough, and none that is tried
/// first.
fn is_usable(new: &Password, user: &User) -> bool {
    let text = new.expose();
    text.chars().count() >= MIN_PASSWORD_CHARS
        && text.len() <= MAX_PASSWORD_BYTES
        && !is_guessable(new, &user.name)
}
