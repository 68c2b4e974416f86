//! Changes that users make to their account: the password of those of the gateway's store, one-time
//! codes, and in which browsers they are logged in.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;

use super::posted::{Bare, Posted};
use super::{SecretField, Site, nothing, to};
use crate::browser::{Visitor, form_of, unhex};
use crate::pages::{CodesPage, PasswordPage, page};
use vpnd_ipc::gateway::portal::visits::EndVisit;
use vpnd_ipc::gateway::portal::{ChangePassword, CodesOffer, OfferCodes, OwnChange, RemoveCodes, TakeCodes};
use vpnd_ipc::gateway::refusal::{Refusal, Refused};
use vpnd_proto::control::{SecretText, Text};

#[derive(Deserialize)]
pub(super) struct Passwords {
    present: SecretField,
    new: SecretField,
    again: SecretField,
}

#[derive(Deserialize)]
pub(super) struct Code {
    code: SecretField,
}

/// The form to change the password.
pub(super) async fn password(State(site): State<Arc<Site>>, visitor: Visitor) -> Response {
    password_form(&site, &visitor, StatusCode::OK, None)
}

fn password_form(site: &Site, visitor: &Visitor, status: StatusCode, problem: Option<String>) -> Response {
    let Some(token) = &visitor.token else { return to("/login") };
    page(status, &PasswordPage { frame: site.frame(visitor), form: form_of(token), problem })
}

pub(super) async fn change_password(
    State(site): State<Arc<Site>>,
    Posted { visitor, browser, fields: Passwords { present, new, again } }: Posted<Passwords>,
) -> Response {
    let texts = visitor.texts;
    let refused = |text: &str| password_form(&site, &visitor, StatusCode::FORBIDDEN, Some(text.to_owned()));
    if *new.0 != *again.0 {
        return refused(texts.passwords_differ);
    }
    let typed = |field: &SecretField| SecretText::new(field.0.as_str());
    let (Ok(present), Ok(new)) = (typed(&present), typed(&new)) else {
        return refused(texts.password_unusable);
    };
    let Some(turn) = site.auth.store_turn(visitor.address).await else {
        return refused(texts.too_many_logins);
    };
    match site.auth.request_in_turn(ChangePassword { browser, present, new }, turn).await {
        Ok(OwnChange::Done) => to("/?password"),
        Ok(OwnChange::Unusable) => refused(texts.password_unusable),
        Ok(OwnChange::Refused(Refused { refusal: Refusal::Credentials, .. })) => {
            refused(texts.password_wrong)
        }
        Ok(OwnChange::Refused(why)) => refused(&texts.refused(why)),
        Ok(not) => not_changed(&site, &visitor, not),
        Err(_) => site.failed(&visitor),
    }
}

/// Offers one-time codes.
pub(super) async fn codes(State(site): State<Arc<Site>>, Posted { visitor, .. }: Posted<Bare>) -> Response {
    offer(&site, &visitor, StatusCode::OK, None).await
}

async fn offer(site: &Site, visitor: &Visitor, status: StatusCode, problem: Option<&str>) -> Response {
    let Some(browser) = visitor.browser() else { return to("/login") };
    let form = form_of(&browser.token);
    match site.auth.request(OfferCodes { browser, issuer: Text::cut(&site.name) }).await {
        Ok(CodesOffer::Offer { address, secret, removable }) => {
            let offered = (address.expose(), secret.expose());
            match CodesPage::new(site.frame(visitor), form, problem, offered, removable) {
                Some(codes) => page(status, &codes),
                None => site.failed(visitor),
            }
        }
        Ok(CodesOffer::Not(not)) => not_changed(site, visitor, not),
        Err(_) => site.failed(visitor),
    }
}

pub(super) async fn take_codes(
    State(site): State<Arc<Site>>,
    Posted { visitor, browser, fields: Code { code } }: Posted<Code>,
) -> Response {
    let changed = match SecretText::new(code.0.as_str()) {
        Ok(code) => site.auth.request(TakeCodes { browser, code }).await,
        Err(_) => Ok(OwnChange::Unusable),
    };
    match changed {
        Ok(OwnChange::Done) => to("/?codes"),
        Ok(OwnChange::Unusable) => {
            offer(&site, &visitor, StatusCode::FORBIDDEN, Some(visitor.texts.code_wrong)).await
        }
        Ok(OwnChange::Refused(why)) => {
            let problem = visitor.texts.refused(why);
            offer(&site, &visitor, StatusCode::TOO_MANY_REQUESTS, Some(&problem)).await
        }
        Ok(not) => not_changed(&site, &visitor, not),
        Err(_) => site.failed(&visitor),
    }
}

pub(super) async fn remove_codes(
    State(site): State<Arc<Site>>,
    Posted { visitor, browser, .. }: Posted<Bare>,
) -> Response {
    match site.auth.request(RemoveCodes(browser)).await {
        Ok(OwnChange::Done) => to("/?codes-removed"),
        Ok(not) => not_changed(&site, &visitor, not),
        Err(_) => site.failed(&visitor),
    }
}

#[derive(Deserialize)]
pub(super) struct OfVisit {
    /// Empty for all other browsers.
    #[serde(default)]
    visit: String,
}

/// Logs out of another browser, or of all others.
pub(super) async fn end_visit(
    State(site): State<Arc<Site>>,
    Posted { visitor, browser, fields: OfVisit { visit } }: Posted<OfVisit>,
) -> Response {
    let visit = match visit.as_str() {
        "" => None,
        visit => match unhex::<16>(visit) {
            Some(number) => Some(number.into()),
            None => return nothing(State(site), visitor).await,
        },
    };
    match site.auth.request(EndVisit { browser, visit }).await {
        Ok(OwnChange::Done) => to("/?browsers"),
        Ok(not) => not_changed(&site, &visitor, not),
        Err(_) => site.failed(&visitor),
    }
}

/// The page for a refusal without a form to try again.
fn not_changed(site: &Site, visitor: &Visitor, not: OwnChange) -> Response {
    let texts = visitor.texts;
    match not {
        OwnChange::NoVisit => to("/login"),
        OwnChange::LogInAgain => site.log_in_again(visitor, texts.log_in_again_text),
        OwnChange::NotPermitted => {
            site.message(visitor, StatusCode::NOT_FOUND, texts.not_found, texts.not_found_text)
        }
        OwnChange::Refused(why) => {
            let text = texts.refused(why);
            site.message(visitor, StatusCode::TOO_MANY_REQUESTS, texts.failed, &text)
        }
        OwnChange::Done | OwnChange::Unusable => site.failed(visitor),
    }
}
