//! The pages of the help desk and of administrators.
//!
//! INVARIANT: what a person has typed goes to the auth process as it is; whether they may see or
//! change it is decided there.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};

use super::posted::Posted;
use super::{Site, nothing, to, with_cookie};
use crate::browser::{Visitor, draft_cookie, form_of, no_draft_cookie, unhex};
use crate::pages::desk::sessions::SessionsPage;
use crate::pages::desk::{Again, DeskPage, LinkPage, SearchPage, UserPage, WhoisPage};
use crate::pages::page;
use crate::typed::{Draft, Typed};
use vpnd_ipc::gateway::portal::desk::sessions::{ListSessions, Order};
use vpnd_ipc::gateway::portal::desk::{
    AskWhois, Caller, ChangeUser, Deed, DeskQuery, DeskRefusal, FindUsers, FoundUsers, Made, NewAccount,
    Replied, ShowUser,
};
use vpnd_proto::control::{List, Text};

/// Sessions of a page.
const SESSIONS: u64 = 50;

/// The account that was typed; `None` if it has more groups than there may be, or longer texts.
fn account(typed: &Typed) -> Option<NewAccount> {
    let given = |text: &str| (!text.trim().is_empty()).then(|| Text::new(text.trim())).transpose().ok();
    let groups = typed.groups.split_whitespace().map(Text::new).collect::<Result<Vec<_>, _>>().ok()?;
    Some(NewAccount {
        groups: List::new(groups).ok()?,
        expires: given(&typed.until)?,
        sponsor: given(&typed.sponsor)?,
        note: Text::new(typed.note.as_str()).ok()?,
    })
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
        Ok(Ok(found)) => page(StatusCode::OK, &SearchPage::new(site.frame(&visitor), &text, &found, None)),
        // The search is there to be sent again.
        Ok(Err(refusal @ DeskRefusal::NoReason)) => {
            let found = FoundUsers { users: List::default(), more: 0 };
            page(status(refusal), &SearchPage::new(site.frame(&visitor), &text, &found, Some(refusal)))
        }
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
        Ok(Ok(shown)) => {
            page(StatusCode::OK, &UserPage::new(site.frame(&visitor), form, &shown, is_done, None))
        }
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
    change(site, typed, "kick", Deed::Kick(device)).await
}

pub(super) async fn disable(site: State<Arc<Site>>, typed: Posted<Typed>) -> Response {
    change(site, typed, "disable", Deed::Disable).await
}

pub(super) async fn enable(site: State<Arc<Site>>, typed: Posted<Typed>) -> Response {
    change(site, typed, "enable", Deed::Enable).await
}

pub(super) async fn reset(site: State<Arc<Site>>, typed: Posted<Typed>) -> Response {
    change(site, typed, "reset", Deed::ResetCodes).await
}

pub(super) async fn revoke(site: State<Arc<Site>>, typed: Posted<Typed>) -> Response {
    change(site, typed, "revoke", Deed::RevokeCertificates(None)).await
}

pub(super) async fn invite(site: State<Arc<Site>>, typed: Posted<Typed>) -> Response {
    change(site, typed, "invite", Deed::Invite).await
}

pub(super) async fn add(site: State<Arc<Site>>, typed: Posted<Typed>) -> Response {
    match account(&typed.fields) {
        Some(account) => change(site, typed, "add", Deed::Add(account)).await,
        None => {
            not_done(site.0, typed.visitor, &Draft::new("add", typed.fields), DeskRefusal::Unusable).await
        }
    }
}

pub(super) async fn extend(site: State<Arc<Site>>, typed: Posted<Typed>) -> Response {
    let until = Text::cut(&typed.fields.until);
    change(site, typed, "extend", Deed::Extend(until)).await
}

/// Sends a change by the form of this name.
async fn change(
    State(site): State<Arc<Site>>,
    Posted { visitor, browser, fields }: Posted<Typed>,
    name: &str,
    deed: Deed,
) -> Response {
    let draft = Draft::new(name, fields);
    let Typed { user, reason, .. } = &draft.typed;
    let (Ok(name), Ok(reason)) = (Text::new(user.as_str()), Text::new(reason.as_str())) else {
        return not_done(site, visitor, &draft, DeskRefusal::NoReason).await;
    };
    match site.auth.request(ChangeUser { caller: Caller::Browser(browser), user: name, deed, reason }).await {
        Ok(Ok(Some(Made::Link(link)))) => {
            let frame = site.frame(&visitor);
            page(StatusCode::OK, &LinkPage { frame, name: user, link: link.expose() })
        }
        Ok(Ok(Some(Made::Device { .. }) | None)) => {
            let name = form_urlencoded::byte_serialize(user.as_bytes()).collect::<String>();
            let place = HeaderValue::from_str(&format!("/desk/user?name={name}&done=1"));
            let place = place.unwrap_or(HeaderValue::from_static("/desk"));
            (StatusCode::SEE_OTHER, [(LOCATION, place)]).into_response()
        }
        Ok(Err(refusal)) => not_done(site, visitor, &draft, refusal).await,
        Err(_) => site.failed(&visitor),
    }
}

pub(super) async fn whois(
    State(site): State<Arc<Site>>,
    Posted { visitor, browser, fields }: Posted<Typed>,
) -> Response {
    let draft = Draft::new("whois", fields);
    let Typed { reason, address, at, .. } = &draft.typed;
    let Ok(reason) = Text::new(reason.as_str()) else {
        return not_done(site, visitor, &draft, DeskRefusal::NoReason).await;
    };
    let ask =
        AskWhois { caller: Caller::Browser(browser), address: Text::cut(address), at: Text::cut(at), reason };
    match site.auth.request(ask).await {
        Ok(Ok(answer)) => page(StatusCode::OK, &WhoisPage::new(site.frame(&visitor), address, &answer)),
        Ok(Err(refusal)) => not_done(site, visitor, &draft, refusal).await,
        Err(_) => site.failed(&visitor),
    }
}

/// A person is back from the login that a form took: it is shown once, to be sent again. The page
/// is that on which the person was, so it makes no difference who leads the browser here.
pub(super) async fn again(State(site): State<Arc<Site>>, visitor: Visitor) -> Response {
    let Some(draft) = &visitor.draft else { return to("/desk") };
    match filled_in(&site, &visitor, draft, None).await {
        Ok(shown) => with_cookie(shown, &no_draft_cookie()),
        Err(DeskRefusal::NoVisit) => to("/login"),
        Err(refusal) => with_cookie(refused(site, visitor, refusal).await, &no_draft_cookie()),
    }
}

/// The answer to a form that was not followed.
async fn not_done(site: Arc<Site>, visitor: Visitor, draft: &Draft, refusal: DeskRefusal) -> Response {
    match refusal {
        DeskRefusal::NoVisit => to("/login"),
        DeskRefusal::LogInAgain => {
            let login = refused(site, visitor, refusal).await;
            match draft_cookie(draft) {
                Some(cookie) => with_cookie(login, &cookie),
                None => login,
            }
        }
        _ => match filled_in(&site, &visitor, draft, Some(refusal)).await {
            Ok(shown) => shown,
            // The page is not for this person, or what it was about is gone.
            Err(_) => refused(site, visitor, refusal).await,
        },
    }
}

/// The page with this form as it was typed, and with the refusal of it.
async fn filled_in(
    site: &Site,
    visitor: &Visitor,
    draft: &Draft,
    refusal: Option<DeskRefusal>,
) -> Replied<Response> {
    let browser = visitor.browser().ok_or(DeskRefusal::NoVisit)?;
    let (frame, form, caller) = (site.frame(visitor), form_of(&browser.token), Caller::Browser(browser));
    let (status, again) = (refusal.map_or(StatusCode::OK, status), Again { draft, refusal });
    if draft.is_of_user() {
        let user = Text::new(draft.typed.user.as_str()).map_err(|_| DeskRefusal::NotThere)?;
        let Ok(shown) = site.auth.request(ShowUser { caller, user }).await else {
            return Ok(site.failed(visitor));
        };
        return shown.map(|shown| page(status, &UserPage::new(frame, form, &shown, false, Some(again))));
    }
    let Ok(state) = site.auth.request(DeskQuery(caller)).await else { return Ok(site.failed(visitor)) };
    state.map(|state| page(status, &DeskPage::new(frame, form, &state).filled_in(&again)))
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
        DeskRefusal::Taken | DeskRefusal::Full | DeskRefusal::TooManyDevices => StatusCode::CONFLICT,
        DeskRefusal::TooOften => StatusCode::TOO_MANY_REQUESTS,
        DeskRefusal::NoReason
        | DeskRefusal::Unusable
        | DeskRefusal::NoWireGuard
        | DeskRefusal::TooManyRoutes => StatusCode::UNPROCESSABLE_ENTITY,
        DeskRefusal::NotRecorded => StatusCode::SERVICE_UNAVAILABLE,
        DeskRefusal::NoRole
        | DeskRefusal::Elsewhere
        | DeskRefusal::LogInAgain
        | DeskRefusal::Own
        | DeskRefusal::Senior
        | DeskRefusal::NoGuest => StatusCode::FORBIDDEN,
    }
}
