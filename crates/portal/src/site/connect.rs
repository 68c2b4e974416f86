//! Logins of clients in a browser: the question whether a device may connect, and the way back.
//!
//! Invariants: what a client is sent comes from the auth process as it is, and goes to a port of the
//! browser's own machine: no address that anybody else has said. Nothing is sent before the person
//! has answered a form of ours about this very client.

use std::sync::Arc;

use axum::extract::{Form, Path, State};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::headers::towards;
use super::{Site, nothing, to, with_cookie};
use crate::browser::{Visitor, connect_cookie, form_about, no_connect_cookie};
use crate::pages::connect::ConnectPage as Page;
use crate::pages::page;
use vpnd_ipc::gateway::portal::Token;
use vpnd_ipc::gateway::portal::connect::{AnswerToClient, ConnectEnd, ConnectPage, ConnectQuery};

#[derive(Deserialize)]
pub(super) struct Answered {
    #[serde(default)]
    form: String,
    #[serde(default)]
    answer: String,
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
        // would have the person answer a question that somebody else has asked.
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
        Ok(ConnectPage::Ask { name, from, port, user, source }) => {
            let frame = site.frame(&visitor);
            let question = Page { frame, form, name: &name, from, user: &user, source: &source };
            towards(page(StatusCode::OK, &question), port)
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
    Form(Answered { form, answer }): Form<Answered>,
) -> Response {
    let answered = visitor.ticket.as_ref().filter(|ticket| visitor.has_answered(ticket, &form));
    let (Some(browser), Some(ticket)) = (visitor.browser(), answered) else {
        return site.not_ours(&visitor);
    };
    let answer = AnswerToClient { ticket: ticket.clone(), browser, allowed: answer == "yes" };
    match site.auth.request(answer).await {
        Ok(ConnectEnd::To { url, port }) => {
            let response = (StatusCode::SEE_OTHER, [(LOCATION, url.to_string())]).into_response();
            towards(with_cookie(response, &no_connect_cookie()), port)
        }
        Ok(ConnectEnd::LogIn) => to("/login"),
        Ok(ConnectEnd::Over) => over(&site, &visitor),
        Err(_) => site.failed(&visitor),
    }
}

fn over(site: &Site, visitor: &Visitor) -> Response {
    let texts = &visitor.texts.connect;
    let response = site.message(visitor, StatusCode::GONE, texts.over, texts.over_text);
    with_cookie(response, &no_connect_cookie())
}
