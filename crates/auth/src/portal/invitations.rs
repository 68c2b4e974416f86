//! Invitations: users choose their second factor by a link, and local ones their password.
//!
//! INVARIANT: the token of the link decides whose they are; nothing else is done with it. It is
//! used only once password and code are good.

use std::sync::Arc;

use super::Portal;
use crate::authenticator::Chosen;
use vpnd_ipc::gateway::portal::invitations::{AcceptInvitation, InvitationStep, OpenInvitation};
use vpnd_ipc::request::{Answer, Reason};
use vpnd_proto::control::{SecretText, UserName};
use vpnd_store::password::Password;
use vpnd_store::{InvitationHash, InvitationToken, LOCAL, StoreError, TotpSecret, totp};

fn hash(invitation: &SecretText<64>) -> Option<InvitationHash> {
    InvitationToken::read(invitation.expose()).map(|token| token.hash())
}

impl Portal {
    fn open_invitation(&self, open: &OpenInvitation) -> Result<InvitationStep, StoreError> {
        let hash = hash(&open.invitation);
        let user = hash.map(|hash| self.store.invited(&hash, (self.clocks.wall)())).transpose()?.flatten();
        let Some(user) = user else { return Ok(InvitationStep::Over) };
        let before = open.before.as_ref().and_then(|before| totp::from_typed(before.expose()));
        let secret: TotpSecret = before.unwrap_or_else(totp::generate);
        let address = totp::address(&secret, &user.name, &open.issuer.replace(':', " "));
        let address = address.and_then(|address| SecretText::new(address).ok());
        let typed = SecretText::new(totp::to_type(&secret)).ok();
        Ok(address.zip(typed).map_or(InvitationStep::Over, |(address, secret)| InvitationStep::Open {
            user: UserName::cut(&user.name),
            address,
            secret,
            password: user.source == LOCAL,
        }))
    }
}

impl Answer<OpenInvitation> for Portal {
    async fn answer(self: &Arc<Self>, open: OpenInvitation) -> Result<InvitationStep, Reason> {
        self.from_store(move |portal| portal.open_invitation(&open)).await
    }
}

impl Answer<AcceptInvitation> for Portal {
    async fn answer(self: &Arc<Self>, accept: AcceptInvitation) -> Result<InvitationStep, Reason> {
        let AcceptInvitation { invitation, address, password, secret, code } = accept;
        let Some(invitation) = hash(&invitation) else { return Ok(InvitationStep::Over) };
        let now_s = (self.clocks.wall)();
        let invited = self.from_store(move |portal| portal.store.invited(&invitation, now_s)).await?;
        let Some(user) = invited else { return Ok(InvitationStep::Over) };
        let Some(totp) = totp::from_typed(secret.expose()) else { return Ok(InvitationStep::CodeWrong) };
        let name = user.name.clone();
        let chosen = Chosen {
            invitation,
            password: (user.source == LOCAL).then(|| Password::new(password.expose().to_owned())),
            user,
            totp,
            code: Password::new(code.expose().to_owned()),
            source: address,
        };
        let step = self.authenticator.accept_invitation(chosen, now_s).await;
        if matches!(step, InvitationStep::Done) {
            self.record.add("invitation-accepted", &name, address, "");
        }
        Ok(step)
    }
}
