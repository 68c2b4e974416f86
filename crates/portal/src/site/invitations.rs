//! The page of an invitation: a user chooses a password, if it is kept here, and a second factor.
//!
//! INVARIANT: the link's token is in the address alone, and goes nowhere else: pages have no
//! referrer and nothing from elsewhere.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;

use super::posted::Posted;
use super::{SecretField, Site, with_cookie};
use crate::browser::{Visitor, cookie, form_of, fresh_token};
use crate::pages::{Frame, InvitationPage, MessagePage, page};
use crate::texts::Texts;
use vpnd_ipc::gateway::portal::invitations::{AcceptInvitation, Invitation, InvitationStep, OpenInvitation};
use vpnd_proto::control::{SecretText, Text};

#[derive(Deserialize)]
pub(super) struct Choice {
    #[serde(default)]
    new: SecretField,
    #[serde(default)]
    again: SecretField,
    secret: SecretField,
    code: SecretField,
}

pub(super) async fn open(
    State(site): State<Arc<Site>>,
    visitor: Visitor,
    Path(token): Path<String>,
) -> Response {
    let Ok(invitation) = Invitation::new(token) else { return over(&site, &visitor) };
    form(&site, &visitor, StatusCode::OK, invitation, None, None).await
}

/// The form, with the secret that was shown before.
async fn form(
    site: &Site,
    visitor: &Visitor,
    status: StatusCode,
    invitation: Invitation,
    before: Option<SecretText<64>>,
    problem: Option<&str>,
) -> Response {
    let Some(turn) = site.auth.store_turn(visitor.address).await else {
        let Texts { failed, too_many_logins, start_again, .. } = visitor.texts;
        return said(site, visitor, StatusCode::TOO_MANY_REQUESTS, [failed, too_many_logins, start_again]);
    };
    let (token, is_new) = match &visitor.token {
        Some(token) => (token.clone(), false),
        None => (fresh_token(), true),
    };
    let open = OpenInvitation { invitation, address: visitor.address, issuer: Text::cut(&site.name), before };
    match site.auth.request_in_turn(open, turn).await {
        Ok(InvitationStep::Open { user, address, secret, password }) => {
            let (offered, whose) = ((address.expose(), secret.expose()), (&*user, password));
            let shown = InvitationPage::new(site.frame(visitor), form_of(&token), problem, whose, offered);
            let Some(shown) = shown else { return site.failed(visitor) };
            let response = page(status, &shown);
            if is_new { with_cookie(response, &cookie(&token)) } else { response }
        }
        Ok(_) => over(site, visitor),
        Err(_) => site.failed(visitor),
    }
}

pub(super) async fn accept(
    State(site): State<Arc<Site>>,
    Path(token): Path<String>,
    Posted { visitor, fields: Choice { new, again, secret, code }, .. }: Posted<Choice>,
) -> Response {
    let texts = visitor.texts;
    let (Ok(invitation), Ok(secret)) = (Invitation::new(token), SecretText::new(secret.0.as_str())) else {
        return over(&site, &visitor);
    };
    let again_with = async |problem: &str| {
        let before = Some(secret.clone());
        form(&site, &visitor, StatusCode::FORBIDDEN, invitation.clone(), before, Some(problem)).await
    };
    if *new.0 != *again.0 {
        return again_with(texts.passwords_differ).await;
    }
    let Ok(password) = SecretText::new(new.0.as_str()) else {
        return again_with(texts.password_unusable).await;
    };
    let Ok(code) = SecretText::new(code.0.as_str()) else { return again_with(texts.code_wrong).await };
    let Some(turn) = site.auth.store_turn(visitor.address).await else {
        return again_with(texts.too_many_logins).await;
    };
    let accept = AcceptInvitation {
        invitation: invitation.clone(),
        address: visitor.address,
        password,
        secret: secret.clone(),
        code,
    };
    match site.auth.request_in_turn(accept, turn).await {
        Ok(InvitationStep::Done) => {
            let Texts { invitation_done, invitation_done_text, log_in, .. } = texts;
            said(&site, &visitor, StatusCode::OK, [invitation_done, invitation_done_text, log_in])
        }
        Ok(InvitationStep::PasswordUnusable) => again_with(texts.password_unusable).await,
        Ok(InvitationStep::CodeWrong) => again_with(texts.code_wrong).await,
        Ok(InvitationStep::Refused(refused)) => again_with(&texts.refused(refused)).await,
        Ok(InvitationStep::Over | InvitationStep::Open { .. }) => over(&site, &visitor),
        Err(_) => site.failed(&visitor),
    }
}

fn over(site: &Site, visitor: &Visitor) -> Response {
    let Texts { invitation_over, invitation_over_text, start_again, .. } = visitor.texts;
    said(site, visitor, StatusCode::NOT_FOUND, [invitation_over, invitation_over_text, start_again])
}

/// A page with this heading, text and link. The form's token is no login: there is nothing to log
/// out of.
fn said(site: &Site, visitor: &Visitor, status: StatusCode, [heading, text, next]: [&str; 3]) -> Response {
    let frame = Frame { log_out: None, ..site.frame(visitor) };
    page(status, &MessagePage { frame, heading, text, next })
}
