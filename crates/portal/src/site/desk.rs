//! The pages of the help desk and of administrators.
//!
//! INVARIANT: what a person has typed goes to the auth process as it is; whether they may see or
//! change it is decided there.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;

use super::posted::Posted;
use super::{Site, nothing, to};
use crate::browser::{Visitor, form_of, unhex};
use crate::pages::desk::sessions::SessionsPage;
use crate::pages::desk::{DeskPage, LinkPage, SearchPage, UserPage, WhoisPage};
use crate::pages::page;
use vpnd_ipc::gateway::portal::desk::sessions::{ListSessions, Order};
use vpnd_ipc::gateway::portal::desk::{
    AskWhois, Caller, ChangeUser, Deed, DeskQuery, DeskRefusal, FindUsers, Made, NewAccount, ShowUser,
};
use vpnd_proto::control::{List, Text};

/// Sessions of a page.
const SESSIONS: u64 = 50;

/// A change, or a question.
#[derive(Deserialize)]
pub(super) struct Typed {
    #[serde(default)]
    user: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    device: String,
    #[serde(default)]
    until: String,
    #[serde(default)]
    address: String,
    #[serde(default)]
    at: String,
    #[serde(default)]
    groups: String,
    #[serde(default)]
    sponsor: String,
    #[serde(default)]
    note: String,
}

impl Typed {
    /// The account that was typed; `None` if it has more groups than there may be, or longer texts.
    fn account(&self) -> Option<NewAccount> {
        let given = |text: &str| (!text.trim().is_empty()).then(|| Text::new(text.trim())).transpose().ok();
        let groups = self.groups.split_whitespace().map(Text::new).collect::<Result<Vec<_>, _>>().ok()?;
        Some(NewAccount {
            groups: List::new(groups).ok()?,
            expires: given(&self.until)?,
            sponsor: given(&self.sponsor)?,
            note: Text::new(self.note.as_str()).ok()?,
        })
    }
}

pub(super) async fn overview(State(site): State<Arc<Site>>, visitor: Visitor) -> Response {
    let Some(browser) = visitor.browser() else { return to("/login") };
    let form = form_of(&browser.token);
    match site.auth.request(DeskQuery(Caller::Browser(browser))).await {
        Ok(Ok(state)) => page(StatusCode::OK, &DeskPage::new(site.frame(&visitor), form, &state)),
        Ok(Err(refusal)) => refused(site, visitor, refusal).await,
        Err(_) => site.failed(&visitor),
    }
}

pub(super) async fn sessions(
    State(site): State<Arc<Site>>,
    visitor: Visitor,
    RawQuery(query): RawQuery,
) -> Response {
    let Some(browser) = visitor.browser() else { return to("/login") };
    let order = order(query.as_deref());
    let list = ListSessions { caller: Caller::Browser(browser), order: order.clone(), most: SESSIONS };
    match site.auth.request(list).await {
        Ok(Ok(list)) => {
            let shown = SessionsPage::new(site.frame(&visitor), &order, &list, vpnd_sys::clock::wall_s());
            page(StatusCode::OK, &shown)
        }
        Ok(Err(refusal)) => refused(site, visitor, refusal).await,
        Err(_) => site.failed(&visitor),
    }
}

/// The order of sessions for which a query asks. What is no place of a list is none.
pub(super) fn order(query: Option<&str>) -> Order {
    match parameter(query, "order").as_deref() {
        Some("rate") => Order::ByRate,
        _ => Order::ByUser(parameter(query, "after").and_then(|after| Text::new(after).ok())),
    }
}

pub(super) async fn users(
    State(site): State<Arc<Site>>,
    visitor: Visitor,
    RawQuery(query): RawQuery,
) -> Response {
    // A search by an address is in the audit file, in the name of who has asked.
    if visitor.is_led() {
        return to("/desk");
    }
    let text = parameter(query.as_deref(), "text").unwrap_or_default();
    let after = parameter(query.as_deref(), "after").and_then(|after| Text::new(after).ok());
    let reason = parameter(query.as_deref(), "reason").and_then(|reason| Text::new(reason).ok());
    let Some(browser) = visitor.browser() else { return to("/login") };
    let find = FindUsers { caller: Caller::Browser(browser), text: Text::cut(&text), after, reason };
    match site.auth.request(find).await {
        Ok(Ok(found)) => page(StatusCode::OK, &SearchPage::new(site.frame(&visitor), &text, &found)),
        Ok(Err(refusal)) => refused(site, visitor, refusal).await,
        Err(_) => site.failed(&visitor),
    }
}

pub(super) async fn user(
    State(site): State<Arc<Site>>,
    visitor: Visitor,
    RawQuery(query): RawQuery,
) -> Response {
    if visitor.is_led() {
        return to("/desk");
    }
    let name = parameter(query.as_deref(), "name").unwrap_or_default();
    let is_done = parameter(query.as_deref(), "done").is_some();
    let (Some(browser), Ok(user)) = (visitor.browser(), Text::new(name)) else { return to("/login") };
    let form = form_of(&browser.token);
    match site.auth.request(ShowUser { caller: Caller::Browser(browser), user }).await {
        Ok(Ok(shown)) => page(StatusCode::OK, &UserPage::new(site.frame(&visitor), form, &shown, is_done)),
        Ok(Err(refusal)) => refused(site, visitor, refusal).await,
        Err(_) => site.failed(&visitor),
    }
}

/// The first value of this name in a query.
pub(crate) fn parameter(query: Option<&str>, name: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    pairs.find(|(known, _)| known == name).map(|(_, value)| value.into_owned())
}

pub(super) async fn kick(site: State<Arc<Site>>, typed: Posted<Typed>) -> Response {
    let device = match typed.fields.device.as_str() {
        "" => None,
        device => match unhex::<16>(device) {
            Some(device) => Some(device.into()),
            None => return nothing(site, typed.visitor).await,
        },
    };
    change(site, typed, Deed::Kick(device)).await
}

pub(super) async fn disable(site: State<Arc<Site>>, typed: Posted<Typed>) -> Response {
    change(site, typed, Deed::Disable).await
}

pub(super) async fn enable(site: State<Arc<Site>>, typed: Posted<Typed>) -> Response {
    change(site, typed, Deed::Enable).await
}

pub(super) async fn reset(site: State<Arc<Site>>, typed: Posted<Typed>) -> Response {
    change(site, typed, Deed::ResetCodes).await
}

pub(super) async fn revoke(site: State<Arc<Site>>, typed: Posted<Typed>) -> Response {
    change(site, typed, Deed::RevokeCertificates(None)).await
}

pub(super) async fn invite(site: State<Arc<Site>>, typed: Posted<Typed>) -> Response {
    change(site, typed, Deed::Invite).await
}

pub(super) async fn add(site: State<Arc<Site>>, typed: Posted<Typed>) -> Response {
    match typed.fields.account() {
        Some(account) => change(site, typed, Deed::Add(account)).await,
        None => refused(site.0, typed.visitor, DeskRefusal::Unusable).await,
    }
}

pub(super) async fn extend(site: State<Arc<Site>>, typed: Posted<Typed>) -> Response {
    let until = Text::cut(&typed.fields.until);
    change(site, typed, Deed::Extend(until)).await
}

async fn change(
    State(site): State<Arc<Site>>,
    Posted { visitor, browser, fields: Typed { user, reason, .. } }: Posted<Typed>,
    deed: Deed,
) -> Response {
    let (Ok(name), Ok(reason)) = (Text::new(user.as_str()), Text::new(reason)) else {
        return refused(site, visitor, DeskRefusal::NoReason).await;
    };
    match site.auth.request(ChangeUser { caller: Caller::Browser(browser), user: name, deed, reason }).await {
        Ok(Ok(Some(Made::Link(link)))) => {
            let frame = site.frame(&visitor);
            page(StatusCode::OK, &LinkPage { frame, name: &user, link: link.expose() })
        }
        Ok(Ok(Some(Made::Device { .. }) | None)) => {
            let name = form_urlencoded::byte_serialize(user.as_bytes()).collect::<String>();
            let place = HeaderValue::from_str(&format!("/desk/user?name={name}&done=1"));
            let place = place.unwrap_or(HeaderValue::from_static("/desk"));
            (StatusCode::SEE_OTHER, [(LOCATION, place)]).into_response()
        }
        Ok(Err(refusal)) => refused(site, visitor, refusal).await,
        Err(_) => site.failed(&visitor),
    }
}

pub(super) async fn whois(
    State(site): State<Arc<Site>>,
    Posted { visitor, browser, fields: Typed { reason, address, at, .. } }: Posted<Typed>,
) -> Response {
    let Ok(reason) = Text::new(reason) else { return refused(site, visitor, DeskRefusal::NoReason).await };
    let ask = AskWhois {
        caller: Caller::Browser(browser),
        address: Text::cut(&address),
        at: Text::cut(&at),
        reason,
    };
    match site.auth.request(ask).await {
        Ok(Ok(answer)) => page(StatusCode::OK, &WhoisPage::new(site.frame(&visitor), &address, &answer)),
        Ok(Err(refusal)) => refused(site, visitor, refusal).await,
        Err(_) => site.failed(&visitor),
    }
}

async fn refused(site: Arc<Site>, visitor: Visitor, refusal: DeskRefusal) -> Response {
    if refusal == DeskRefusal::NoVisit {
        return to("/login");
    }
    let texts = visitor.texts;
    if refusal == DeskRefusal::LogInAgain {
        return site.log_in_again(&visitor, (texts.desk.why_not)(refusal));
    }
    site.message(&visitor, status(refusal), texts.desk.refused, (texts.desk.why_not)(refusal))
}

pub(super) fn status(refusal: DeskRefusal) -> StatusCode {
    match refusal {
        DeskRefusal::NoVisit => StatusCode::UNAUTHORIZED,
        DeskRefusal::NotThere => StatusCode::NOT_FOUND,
        DeskRefusal::Taken | DeskRefusal::Full => StatusCode::CONFLICT,
        DeskRefusal::TooOften => StatusCode::TOO_MANY_REQUESTS,
        DeskRefusal::NoReason | DeskRefusal::Unusable | DeskRefusal::NoWireGuard => {
            StatusCode::UNPROCESSABLE_ENTITY
        }
        DeskRefusal::NotRecorded => StatusCode::SERVICE_UNAVAILABLE,
        DeskRefusal::NoRole
        | DeskRefusal::Elsewhere
        | DeskRefusal::LogInAgain
        | DeskRefusal::Own
        | DeskRefusal::Senior
        | DeskRefusal::NoGuest => StatusCode::FORBIDDEN,
    }
}
