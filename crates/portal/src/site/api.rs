//! The API: what the pages of the help desk do, for programs, as JSON.
//!
//! Invariants: a program shows a token in each request, and no cookie counts here, so no page of
//! another site can act for anybody; whether it may do what it asks for is decided by the auth
//! process. [`ROUTES`] is the one list of what there is, and `assets/openapi.json` describes it.

mod shown;

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, RawQuery, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, get, post};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Site;
use super::desk::{parameter, status};
use crate::browser::{Visitor, unhex};
use vpnd_ipc::gateway::portal::desk::{
    AskWhois, Caller, ChangeUser, Deed, DeskQuery, DeskRefusal, ExportAudit, FindUsers, ListSessions,
    NewAccount, Replied, ShowUser,
};
use vpnd_ipc::requests::NoReply;
use vpnd_proto::control::{List, SecretText, Text};

/// Its description.
const OPENAPI: &str = include_str!("../../assets/openapi.json");

type Route = (&'static str, &'static str, fn() -> MethodRouter<Arc<Site>>);

/// Methods and addresses.
const ROUTES: [Route; 17] = [
    ("get", "/openapi.json", || get(openapi)),
    ("get", "/state", || get(state)),
    ("get", "/sessions", || get(sessions)),
    ("get", "/users", || get(users)),
    ("get", "/users/{name}", || get(user)),
    ("post", "/users/{name}/add", || changing(add)),
    ("post", "/users/{name}/remove", || changing(|_| Some(Deed::Remove))),
    ("post", "/users/{name}/groups", || changing(|asked| groups(asked).map(Deed::SetGroups))),
    ("post", "/users/{name}/kick", || changing(kick)),
    ("post", "/users/{name}/disable", || changing(|_| Some(Deed::Disable))),
    ("post", "/users/{name}/enable", || changing(|_| Some(Deed::Enable))),
    ("post", "/users/{name}/reset-codes", || changing(|_| Some(Deed::ResetCodes))),
    ("post", "/users/{name}/extend", || changing(extend)),
    ("post", "/users/{name}/invite", || changing(|_| Some(Deed::Invite))),
    ("post", "/users/{name}/remove-device", || changing(remove_device)),
    ("post", "/whois", || post(whois)),
    ("post", "/audit/export", || post(export)),
];

pub(super) fn router() -> Router<Arc<Site>> {
    ROUTES
        .iter()
        .fold(Router::new(), |router, (_, path, route)| router.route(&format!("/api/v1{path}"), route()))
}

/// All addresses, for tests of the whole site.
#[cfg(test)]
pub(super) fn addresses() -> impl Iterator<Item = String> {
    ROUTES.iter().map(|(_, path, _)| format!("/api/v1{path}"))
}

/// What a change says besides its address.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    reason: String,
    device: Option<String>,
    expires: Option<String>,
    groups: Option<Vec<String>>,
    sponsor: Option<String>,
    note: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    address: String,
    #[serde(default)]
    at: String,
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    from: String,
    to: String,
    user: Option<String>,
    after: Option<String>,
    reason: String,
}

type MakeDeed = fn(&Asked) -> Option<Deed>;

fn changing(deed: MakeDeed) -> MethodRouter<Arc<Site>> {
    post(move |site: State<Arc<Site>>, program: Program, Path(name): Path<String>, body: Bytes| async move {
        change(site, program, &name, &body, deed).await
    })
}

/// The program that has sent a request.
struct Program(Option<Caller>);

impl<S: Sync> axum::extract::FromRequestParts<S> for Program {
    type Rejection = StatusCode;

    async fn from_request_parts(
        parts: &mut axum::http::request::Parts,
        state: &S,
    ) -> Result<Self, StatusCode> {
        let address = Visitor::from_request_parts(parts, state).await?.address;
        let token = bearer(&parts.headers).and_then(|token| SecretText::new(token).ok());
        Ok(Self(token.map(|token| Caller::Program { token, address })))
    }
}

pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().filter(|_| values.next().is_none())?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("Bearer").then_some(token.trim())
}

fn answer(status: StatusCode, value: &Value) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

fn refused(refusal: DeskRefusal) -> Response {
    answer(status(refusal), &json!({ "error": shown::name(refusal) }))
}

fn malformed() -> Response {
    answer(StatusCode::BAD_REQUEST, &json!({ "error": "malformed" }))
}

fn shown<T>(replied: Result<Replied<T>, NoReply>, show: impl FnOnce(T) -> Value) -> Response {
    match replied {
        Ok(Ok(found)) => answer(StatusCode::OK, &show(found)),
        Ok(Err(refusal)) => refused(refusal),
        Err(_) => answer(StatusCode::SERVICE_UNAVAILABLE, &json!({ "error": "unavailable" })),
    }
}

async fn openapi() -> Response {
    (StatusCode::OK, [(CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

async fn state(State(site): State<Arc<Site>>, Program(caller): Program) -> Response {
    let Some(caller) = caller else { return refused(DeskRefusal::NoVisit) };
    shown(site.auth.request(DeskQuery(caller)).await, |state| shown::state(&state))
}

async fn sessions(
    State(site): State<Arc<Site>>,
    Program(caller): Program,
    RawQuery(query): RawQuery,
) -> Response {
    let Some(caller) = caller else { return refused(DeskRefusal::NoVisit) };
    let Ok(after) = parameter(query.as_deref(), "after").map(Text::new).transpose() else {
        return malformed();
    };
    shown(site.auth.request(ListSessions { caller, after }).await, |list| shown::sessions(&list))
}

async fn users(
    State(site): State<Arc<Site>>,
    Program(caller): Program,
    RawQuery(query): RawQuery,
) -> Response {
    let Some(caller) = caller else { return refused(DeskRefusal::NoVisit) };
    let text = Text::new(parameter(query.as_deref(), "text").unwrap_or_default());
    let after = parameter(query.as_deref(), "after").map(Text::new).transpose();
    let (Ok(text), Ok(after)) = (text, after) else { return malformed() };
    shown(site.auth.request(FindUsers { caller, text, after }).await, |found| shown::users(&found))
}

async fn user(State(site): State<Arc<Site>>, Program(caller): Program, Path(name): Path<String>) -> Response {
    let Some(caller) = caller else { return refused(DeskRefusal::NoVisit) };
    let Ok(user) = Text::new(name) else { return refused(DeskRefusal::NotThere) };
    shown(site.auth.request(ShowUser { caller, user }).await, |user| shown::user(&user))
}

async fn whois(State(site): State<Arc<Site>>, Program(caller): Program, body: Bytes) -> Response {
    let Some(caller) = caller else { return refused(DeskRefusal::NoVisit) };
    let Ok(Question { address, at, reason }) = serde_json::from_slice(&body) else { return malformed() };
    let (Ok(address), Ok(at), Ok(reason)) = (Text::new(address), Text::new(at), Text::new(reason)) else {
        return malformed();
    };
    shown(site.auth.request(AskWhois { caller, address, at, reason }).await, |whois| shown::whois(&whois))
}

async fn export(State(site): State<Arc<Site>>, Program(caller): Program, body: Bytes) -> Response {
    let Some(caller) = caller else { return refused(DeskRefusal::NoVisit) };
    let Some(ask) = range(caller, &body) else { return malformed() };
    shown(site.auth.request(ask).await, |part| shown::export(&part))
}

fn range(caller: Caller, body: &[u8]) -> Option<ExportAudit> {
    let Range { from, to, user, after, reason } = serde_json::from_slice(body).ok()?;
    Some(ExportAudit {
        caller,
        from: Text::new(from).ok()?,
        to: Text::new(to).ok()?,
        user: user.map(Text::new).transpose().ok()?,
        after: after.map(Text::new).transpose().ok()?,
        reason: Text::new(reason).ok()?,
    })
}

async fn change(
    State(site): State<Arc<Site>>,
    Program(caller): Program,
    name: &str,
    body: &[u8],
    deed: MakeDeed,
) -> Response {
    let Some(caller) = caller else { return refused(DeskRefusal::NoVisit) };
    let Ok(asked) = serde_json::from_slice::<Asked>(body) else { return malformed() };
    let (Some(deed), Ok(user), Ok(reason)) = (deed(&asked), Text::new(name), Text::new(&*asked.reason))
    else {
        return malformed();
    };
    shown(
        site.auth.request(ChangeUser { caller, user, deed, reason }).await,
        |link| json!({ "invitation": link.as_ref().map(|link| link.expose()) }),
    )
}

/// The device, if one is named: `None` if that is none.
fn device(asked: &Asked) -> Option<Option<[u8; 16]>> {
    match &asked.device {
        None => Some(None),
        Some(device) => unhex::<16>(device).map(Some),
    }
}

fn kick(asked: &Asked) -> Option<Deed> {
    device(asked).map(|device| Deed::Kick(device.map(Into::into)))
}

fn remove_device(asked: &Asked) -> Option<Deed> {
    device(asked).flatten().map(|device| Deed::RemoveDevice(device.into()))
}

fn extend(asked: &Asked) -> Option<Deed> {
    Text::new(asked.expires.as_deref()?).ok().map(Deed::Extend)
}

fn groups<const MAX: usize, const BYTES: usize>(asked: &Asked) -> Option<List<Text<BYTES>, MAX>> {
    let groups = asked.groups.as_ref()?.iter().map(|group| Text::new(group.as_str()).ok());
    List::new(groups.collect::<Option<Vec<_>>>()?).ok()
}

fn add(asked: &Asked) -> Option<Deed> {
    let text = |text: &Option<String>| text.as_deref().map(Text::new).transpose().ok();
    let groups = if asked.groups.is_some() { groups(asked)? } else { List::default() };
    let note = Text::new(asked.note.as_deref().unwrap_or_default()).ok()?;
    let (expires, sponsor) = (text(&asked.expires)?, text(&asked.sponsor)?);
    Some(Deed::Add(NewAccount { groups, expires, sponsor, note }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_description_has_what_there_is() {
        let description: Value = serde_json::from_str(OPENAPI).unwrap();
        let mut described = BTreeSet::new();
        for (path, methods) in description["paths"].as_object().unwrap() {
            for (method, about) in methods.as_object().unwrap() {
                assert!(about["summary"].is_string() && about["responses"].is_object(), "{path}");
                described.insert((method.clone(), path.clone()));
            }
        }
        let route = |(method, path, _): &Route| ((*method).to_owned(), (*path).to_owned());
        let routes: BTreeSet<_> = ROUTES.iter().map(route).collect();
        assert_eq!(described, routes);
        assert_eq!(description["servers"][0]["url"], "/api/v1");
    }

    #[test]
    fn a_token_comes_in_its_header_once() {
        let found = |lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(AUTHORIZATION, line.parse().unwrap());
            }
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(found(&["Bearer a.b"]).as_deref(), Some("a.b"));
        assert_eq!(found(&["bearer a.b"]).as_deref(), Some("a.b"));
        for wrong in [&["Basic a.b"][..], &["a.b"], &["Bearer a", "Bearer b"], &[]] {
            assert_eq!(found(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_change_is_read_or_malformed() {
        let read = |text: &str| serde_json::from_str::<Asked>(text).ok();
        assert!(read("{}").is_none() && read(r#"{"reason": "x", "more": 1}"#).is_none());
        let asked = read(r#"{"reason": "x", "device": "zz"}"#).unwrap();
        assert!(kick(&asked).is_none() && extend(&asked).is_none());
        let asked = read(r#"{"reason": "x", "groups": ["a", "b"], "expires": "2030-01-31"}"#).unwrap();
        assert!(matches!(kick(&asked), Some(Deed::Kick(None))) && extend(&asked).is_some());
        let Some(Deed::Add(account)) = add(&asked) else { panic!("no account") };
        assert_eq!((account.groups.len(), account.expires.as_deref()), (2, Some("2030-01-31")));
    }
}
