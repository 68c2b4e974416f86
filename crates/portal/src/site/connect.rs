//! Logins of clients in a browser: the question whether a device may connect, and the way back; the
//! form for the code of a device elsewhere.
//!
//! Invariants: what a client is sent comes from the auth process as it is, and goes to a port of
//! the browser's own machine: no address that anybody else has said. Nothing is sent before the
//! person has answered a form of ours about this very client. No link has a code in it: one that
//! another person has sent must not spare the typing (RFC 8628 section 3.3.1 would allow it).

use std::sync::Arc;

use axum::extract::{Form, Path, State};
use axum::http::StatusCode;
use axum::http::header::{LOCATION, RETRY_AFTER};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::headers::towards;
use super::posted::Posted;
use super::{Site, nothing, to, with_cookie};
use crate::browser::{Visitor, code_cookie, connect_cookie, form_about, form_of, no_connect_cookie};
use crate::pages::connect::{ByCodePage, CodePage, ConnectPage as Page};
use crate::pages::page;
use vpnd_ipc::gateway::portal::Token;
use vpnd_ipc::gateway::portal::connect::{
    AnswerToClient, CodeEnd, ConnectEnd, ConnectPage, ConnectQuery, TypedCode,
};
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_proto::control::Text;

#[derive(Deserialize)]
pub(super) struct Answered {
    #[serde(default)]
    form: String,
    #[serde(default)]
    answer: String,
    #[serde(default)]
    compared: String,
}

#[derive(Deserialize)]
pub(super) struct Typed {
    #[serde(default)]
    code: String,
}

/// A client has opened this browser.
pub(super) async fn arrive(
    State(site): State<Arc<Site>>,
    visitor: Visitor,
    Path(ticket): Path<String>,
) -> Response {
    let ticket = URL_SAFE_NO_PAD.decode(ticket).ok().and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    match ticket {
        // The address with the ticket is not kept in the browser's history. A link of another page
        // would have the person answer a question that another person has asked.
        Some(ticket) if !visitor.is_led() => {
            with_cookie(to("/connect"), &connect_cookie(&Token(ticket.into())))
        }
        _ => nothing(State(site), visitor).await,
    }
}

/// Asks whether the device may connect.
pub(super) async fn question(State(site): State<Arc<Site>>, visitor: Visitor) -> Response {
    let Some(ticket) = visitor.ticket.clone() else { return nothing(State(site), visitor).await };
    let Some(browser) = visitor.browser() else { return to("/login") };
    let form = form_about(&browser.token, &ticket);
    match site.auth.request(ConnectQuery { ticket, browser }).await {
        Ok(ConnectPage::Ask { name, from, port: Some(port), user, source, .. }) => {
            let frame = site.frame(&visitor);
            let question = Page { frame, form, name: &name, from, user: &user, source: &source };
            towards(page(StatusCode::OK, &question), port)
        }
        Ok(ConnectPage::Ask { name, from, port: None, user, source, age_s, is_elsewhere }) => {
            let question = ByCodePage {
                frame: site.frame(&visitor),
                form,
                name: &name,
                from,
                since: (visitor.texts.ago)(age_s),
                elsewhere: is_elsewhere.then_some(visitor.address),
                user: &user,
                source: &source,
            };
            page(StatusCode::OK, &question)
        }
        Ok(ConnectPage::LogIn) => to("/login"),
        Ok(ConnectPage::Over) => over(&site, &visitor),
        Err(_) => site.failed(&visitor),
    }
}

/// Takes the answer to the client.
pub(super) async fn answer(
    State(site): State<Arc<Site>>,
    visitor: Visitor,
    Form(Answered { form, answer, compared }): Form<Answered>,
) -> Response {
    let answered = visitor.ticket.as_ref().filter(|ticket| visitor.has_answered(ticket, &form));
    let (Some(browser), Some(ticket)) = (visitor.browser(), answered) else {
        return site.not_ours(&visitor);
    };
    let (allowed, compared) = (answer == "yes", compared == "yes");
    let answer = AnswerToClient { ticket: ticket.clone(), browser, allowed, compared };
    match site.auth.request(answer).await {
        Ok(ConnectEnd::To { url, port }) => {
            let response = (StatusCode::SEE_OTHER, [(LOCATION, url.to_string())]).into_response();
            towards(with_cookie(response, &no_connect_cookie()), port)
        }
        Ok(ConnectEnd::Kept) => {
            let texts = &visitor.texts.connect;
            let (heading, text) =
                if allowed { (texts.agreed, texts.agreed_text) } else { (texts.refused, texts.refused_text) };
            let done = site.done(&visitor, heading, text, visitor.texts.my_sessions);
            with_cookie(done, &no_connect_cookie())
        }
        Ok(ConnectEnd::NotCompared) => to("/connect"),
        Ok(ConnectEnd::LogIn) => to("/login"),
        Ok(ConnectEnd::Over) => over(&site, &visitor),
        Ok(ConnectEnd::Wait(wait_s)) => {
            let texts = visitor.texts;
            let text = texts.refused(Refusal::Throttled.retry_after_s(Some(wait_s)));
            let mut response = site.message(&visitor, StatusCode::TOO_MANY_REQUESTS, texts.failed, &text);
            response.headers_mut().insert(RETRY_AFTER, wait_s.into());
            response
        }
        Err(_) => site.failed(&visitor),
    }
}

/// The form for a code.
pub(super) async fn code_form(State(site): State<Arc<Site>>, visitor: Visitor) -> Response {
    type_code_of(&site, &visitor, Text::default()).await
}

/// Takes a code that a person has typed.
pub(super) async fn type_code(
    State(site): State<Arc<Site>>,
    Posted { visitor, fields: Typed { code }, .. }: Posted<Typed>,
) -> Response {
    type_code_of(&site, &visitor, Text::cut(&code)).await
}

async fn type_code_of(site: &Site, visitor: &Visitor, code: Text<32>) -> Response {
    let log_in = || with_cookie(to("/login"), &code_cookie());
    let Some(browser) = visitor.browser() else { return log_in() };
    let form = form_of(&browser.token);
    let texts = visitor.texts;
    let shown = |status, problem| page(status, &CodePage { frame: site.frame(visitor), form, problem });
    match site.auth.request(TypedCode { browser, code }).await {
        Ok(CodeEnd::Found(ticket)) => with_cookie(to("/connect"), &connect_cookie(&ticket)),
        Ok(CodeEnd::Form) => shown(StatusCode::OK, None),
        Ok(CodeEnd::Wrong) => shown(StatusCode::FORBIDDEN, Some(texts.connect.code_wrong.to_owned())),
        Ok(CodeEnd::Wait(wait_s)) => {
            let problem = texts.refused(Refusal::Throttled.retry_after_s(Some(wait_s)));
            let mut response = shown(StatusCode::TOO_MANY_REQUESTS, Some(problem));
            response.headers_mut().insert(RETRY_AFTER, wait_s.into());
            response
        }
        Ok(CodeEnd::LogIn) => log_in(),
        Ok(CodeEnd::Off) => {
            let (heading, text) = (texts.connect.no_codes, texts.connect.no_codes_text);
            site.message(visitor, StatusCode::NOT_FOUND, heading, text)
        }
        Err(_) => site.failed(visitor),
    }
}

fn over(site: &Site, visitor: &Visitor) -> Response {
    let texts = &visitor.texts.connect;
    let response = site.message(visitor, StatusCode::GONE, texts.over, texts.over_text);
    with_cookie(response, &no_connect_cookie())
}
