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
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, get, post};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::Site;
use super::desk::{order, parameter, status};
use crate::browser::{Visitor, unbase64, unhex};
use vpnd_ipc::gateway::portal::MAX_SESSIONS;
use vpnd_ipc::gateway::portal::desk::sessions::ListSessions;
use vpnd_ipc::gateway::portal::desk::{
    AccountChange, AskWhois, Caller, ChangeUser, Deed, DeskQuery, DeskRefusal, ExportAudit, FindUsers,
    NewAccount, Reason, Replied, ShowUser,
};
use vpnd_ipc::requests::NoReply;
use vpnd_proto::control::{List, SecretText, Text};

/// Its description.
const OPENAPI: &str = include_str!("../../assets/openapi.json");

type Route = (&'static str, &'static str, fn() -> MethodRouter<Arc<Site>>);

/// Methods and addresses.
const ROUTES: [Route; 22] = [
    ("get", "/openapi.json", || get(openapi)),
    ("get", "/state", || get(state)),
    ("get", "/sessions", || get(sessions)),
    ("get", "/users", || get(users)),
    ("get", "/users/{name}", || get(user)),
    ("get", "/users/{name}/devices", || get(devices)),
    ("post", "/users/{name}/devices", || changing(&["public_key", "name"], add_device)),
    ("post", "/users/{name}/add", || changing(&["groups", "expires", "sponsor", "note"], add)),
    ("post", "/users/{name}/remove", || changing(&[], |_| Some(Deed::Remove))),
    ("post", "/users/{name}/groups", || changing(&["groups"], |asked| groups(asked).map(Deed::SetGroups))),
    ("post", "/users/{name}/modify", || changing(&["expires", "sponsor", "note"], modify)),
    ("post", "/users/{name}/kick", || changing(&["device"], kick)),
    ("post", "/users/{name}/disable", || changing(&[], |_| Some(Deed::Disable))),
    ("post", "/users/{name}/enable", || changing(&[], |_| Some(Deed::Enable))),
    ("post", "/users/{name}/reset-codes", || changing(&[], |_| Some(Deed::ResetCodes))),
    ("post", "/users/{name}/extend", || changing(&["expires"], extend)),
    ("post", "/users/{name}/revoke", || changing(&["fingerprint"], revoke)),
    ("post", "/users/{name}/invite", || changing(&[], |_| Some(Deed::Invite))),
    ("post", "/users/{name}/remove-device", || changing(&["device"], remove_device)),
    ("post", "/users/{name}/renew-device", || changing(&["device", "reset_clock"], renew_device)),
    ("post", "/whois", || post(whois)),
    ("post", "/audit/export", || post(export)),
];

pub(super) fn router() -> Router<Arc<Site>> {
    ROUTES
        .iter()
        .fold(Router::new(), |router, (_, path, route)| router.route(&format!("/api/v1{path}"), route()))
        .method_not_allowed_fallback(async || wrong_method())
}

/// Whether an address that there is not would be one of this API, in whatever version.
pub(super) fn is_here(path: &str) -> bool {
    path == "/api" || path.starts_with("/api/")
}

pub(super) fn unknown() -> Response {
    answer(StatusCode::NOT_FOUND, &json!({ "error": "no-such-address" }))
}

fn wrong_method() -> Response {
    answer(StatusCode::METHOD_NOT_ALLOWED, &json!({ "error": "wrong-method" }))
}

/// All addresses, for tests of the whole site.
#[cfg(any(test, fuzzing))]
pub(super) fn addresses() -> impl Iterator<Item = String> {
    ROUTES.iter().map(|(_, path, _)| format!("/api/v1{path}"))
}

/// The body of a change, each of which takes some of its fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    reason: String,
    #[serde(default, deserialize_with = "given")]
    device: Option<String>,
    #[serde(default, deserialize_with = "given")]
    fingerprint: Option<String>,
    #[serde(default, deserialize_with = "given")]
    public_key: Option<String>,
    #[serde(default, deserialize_with = "given")]
    name: Option<String>,
    #[serde(default, deserialize_with = "given")]
    reset_clock: Option<bool>,
    #[serde(default, deserialize_with = "given")]
    expires: Option<String>,
    #[serde(default, deserialize_with = "given")]
    groups: Option<Vec<String>>,
    #[serde(default, deserialize_with = "given")]
    sponsor: Option<String>,
    #[serde(default, deserialize_with = "given")]
    note: Option<String>,
}

/// A field that is there has a value: a null would be as a field that is not.
fn given<'d, T: Deserialize<'d>, D: Deserializer<'d>>(field: D) -> Result<Option<T>, D::Error> {
    T::deserialize(field).map(Some)
}

impl Asked {
    /// Whether it has none but the reason and these fields: a change of one thing that does not
    /// know which would be one of all.
    fn has_only(&self, fields: &[&str]) -> bool {
        let given = [
            ("device", self.device.is_some()),
            ("fingerprint", self.fingerprint.is_some()),
            ("public_key", self.public_key.is_some()),
            ("name", self.name.is_some()),
            ("reset_clock", self.reset_clock.is_some()),
            ("expires", self.expires.is_some()),
            ("groups", self.groups.is_some()),
            ("sponsor", self.sponsor.is_some()),
            ("note", self.note.is_some()),
        ];
        given.iter().all(|(name, is_given)| !is_given || fields.contains(name))
    }
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

/// A change that takes these fields besides the reason.
fn changing(fields: &'static [&'static str], deed: MakeDeed) -> MethodRouter<Arc<Site>> {
    let deed = move |body: &[u8]| {
        let asked: Asked =
            serde_json::from_slice(body).ok().filter(|asked: &Asked| asked.has_only(fields))?;
        Some((deed(&asked)?, Text::new(&*asked.reason).ok()?))
    };
    post(move |site: State<Arc<Site>>, program: Program, Path(name): Path<String>, body: Bytes| async move {
        change(site, program, &name, deed(&body)).await
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
    let mut response = answer(status(refusal), &json!({ "error": shown::name(refusal) }));
    let header = match refusal {
        DeskRefusal::NoVisit => Some((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
        // A program has ten each second.
        DeskRefusal::TooOften => Some((RETRY_AFTER, HeaderValue::from_static("1"))),
        _ => None,
    };
    response.headers_mut().extend(header);
    response
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
    let list = ListSessions { caller, order: order(query.as_deref()), most: MAX_SESSIONS as u64 };
    shown(site.auth.request(list).await, |list| shown::sessions(&list))
}

async fn users(
    State(site): State<Arc<Site>>,
    Program(caller): Program,
    RawQuery(query): RawQuery,
) -> Response {
    let Some(caller) = caller else { return refused(DeskRefusal::NoVisit) };
    let text = Text::new(parameter(query.as_deref(), "text").unwrap_or_default());
    let after = parameter(query.as_deref(), "after").map(Text::new).transpose();
    let reason = parameter(query.as_deref(), "reason").map(Text::new).transpose();
    let (Ok(text), Ok(after), Ok(reason)) = (text, after, reason) else { return malformed() };
    shown(site.auth.request(FindUsers { caller, text, after, reason }).await, |found| shown::users(&found))
}

async fn user(State(site): State<Arc<Site>>, Program(caller): Program, Path(name): Path<String>) -> Response {
    let Some(caller) = caller else { return refused(DeskRefusal::NoVisit) };
    let Ok(user) = Text::new(name) else { return refused(DeskRefusal::NotThere) };
    shown(site.auth.request(ShowUser { caller, user }).await, |user| shown::user(&user))
}

async fn devices(
    State(site): State<Arc<Site>>,
    Program(caller): Program,
    Path(name): Path<String>,
) -> Response {
    let Some(caller) = caller else { return refused(DeskRefusal::NoVisit) };
    let Ok(user) = Text::new(name) else { return refused(DeskRefusal::NotThere) };
    shown(site.auth.request(ShowUser { caller, user }).await, |user| shown::devices(&user))
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
    asked: Option<(Deed, Reason)>,
) -> Response {
    let Some(caller) = caller else { return refused(DeskRefusal::NoVisit) };
    let (Some((deed, reason)), Ok(user)) = (asked, Text::new(name)) else { return malformed() };
    shown(site.auth.request(ChangeUser { caller, user, deed, reason }).await, shown::made)
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

fn revoke(asked: &Asked) -> Option<Deed> {
    match &asked.fingerprint {
        None => Some(Deed::RevokeCertificates(None)),
        Some(fingerprint) => Some(Deed::RevokeCertificates(Some(unhex::<32>(fingerprint)?.into()))),
    }
}

fn add_device(asked: &Asked) -> Option<Deed> {
    let public_key = unbase64::<32>(asked.public_key.as_deref()?)?.into();
    let name = Text::new(asked.name.as_deref().unwrap_or_default()).ok()?;
    Some(Deed::AddDevice { public_key, name })
}

fn remove_device(asked: &Asked) -> Option<Deed> {
    device(asked).flatten().map(|device| Deed::RemoveDevice(device.into()))
}

fn renew_device(asked: &Asked) -> Option<Deed> {
    let device = device(asked).flatten()?.into();
    Some(Deed::RenewDevice { device, reset_clock: asked.reset_clock.unwrap_or_default() })
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

fn modify(asked: &Asked) -> Option<Deed> {
    let text = |text: &Option<String>| text.as_deref().map(Text::new).transpose().ok();
    let note = asked.note.as_deref().map(Text::new).transpose().ok()?;
    Some(Deed::Modify(AccountChange { expires: text(&asked.expires)?, sponsor: text(&asked.sponsor)?, note }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::gallery;
    use std::collections::BTreeSet;
    use vpnd_ipc::gateway::portal::desk::{ExportedPart, FoundUsers, Made};

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

    /// Whether a value has what its schema names and nothing else; the place where not.
    fn compare(value: &Value, schema: &Value, all: &Value, at: &str) {
        if let Some(place) = schema["$ref"].as_str() {
            return compare(value, all.pointer(place.trim_start_matches('#')).expect(place), all, at);
        }
        let kind = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let kinds = schema["type"].as_array().cloned().unwrap_or_else(|| vec![schema["type"].clone()]);
        assert!(kinds.iter().any(|named| named == kind), "{at}: {kind}, not {}", schema["type"]);
        if let Some(named) = schema["enum"].as_array() {
            assert!(named.contains(value), "{at}: {value}");
        }
        for item in value.as_array().into_iter().flatten() {
            compare(item, &schema["items"], all, &format!("{at}[]"));
        }
        let Some(fields) = value.as_object() else { return };
        if schema["additionalProperties"].is_null() {
            let described = schema["properties"].as_object().unwrap_or_else(|| panic!("{at}: no properties"));
            assert_eq!(fields.keys().collect::<BTreeSet<_>>(), described.keys().collect(), "{at}");
        }
        for (name, field) in fields {
            let of_field = schema["properties"].get(name).unwrap_or(&schema["additionalProperties"]);
            compare(field, of_field, all, &format!("{at}.{name}"));
        }
    }

    fn added() -> Made {
        Made::Device { device: [1; 16].into(), configuration: Text::cut("[Interface]\n") }
    }

    #[test]
    fn answers_are_as_the_description_says() {
        let all: Value = serde_json::from_str(OPENAPI).unwrap();
        let user = gallery::shown(Some(DeskRefusal::Senior));
        let found = FoundUsers { users: List::new(vec![user.user.clone()]).unwrap(), more: 1 };
        let part = ExportedPart { records: gallery::whois().found, next: None };
        for (method, path, answer) in [
            ("get", "/state", shown::state(&gallery::state())),
            ("get", "/sessions", shown::sessions(&gallery::sessions())),
            ("get", "/users", shown::users(&found)),
            ("get", "/users/{name}", shown::user(&user)),
            ("get", "/users/{name}/devices", shown::devices(&user)),
            ("post", "/users/{name}/devices", shown::made(Some(added()))),
            ("post", "/users/{name}/invite", shown::made(None)),
            ("post", "/whois", shown::whois(&gallery::whois())),
            ("post", "/audit/export", shown::export(&part)),
        ] {
            let described = &all["paths"][path][method]["responses"]["200"];
            compare(&answer, &described["content"]["application/json"]["schema"], &all, path);
        }
    }

    #[test]
    fn refusals_are_as_the_description_says() {
        let all: Value = serde_json::from_str(OPENAPI).unwrap();
        let refusals = &all["components"]["responses"]["Refused"];
        let (mut described, mut status) = (BTreeSet::new(), 0);
        for word in refusals["description"].as_str().unwrap().split([' ', ',']) {
            match word.parse() {
                Ok(number) => status = number,
                Err(_) if word.is_empty() || word == "or" => {}
                Err(_) => assert!(described.insert((status, word)), "{word}"),
            }
        }
        let replies = [
            DeskRefusal::NoVisit,
            DeskRefusal::NoRole,
            DeskRefusal::Elsewhere,
            DeskRefusal::NoReason,
            DeskRefusal::NotThere,
            DeskRefusal::TooOften,
            DeskRefusal::Senior,
            DeskRefusal::Unusable,
            DeskRefusal::NotRecorded,
            DeskRefusal::Taken,
            DeskRefusal::NoGuest,
            DeskRefusal::NoWireGuard,
            DeskRefusal::Full,
            DeskRefusal::TooManyDevices,
            DeskRefusal::TooManyRoutes,
        ];
        let gone: Result<Replied<Value>, _> =
            Err(NoReply::Failed(vpnd_ipc::request::Reason::cut("the store is gone")));
        let mut answers: Vec<_> = replies.map(|refusal| (shown::name(refusal), refused(refusal))).into();
        answers.extend([("malformed", malformed()), ("unavailable", shown(gone, |value| value))]);
        answers.extend([("no-such-address", unknown()), ("wrong-method", wrong_method())]);
        for (name, answer) in &answers {
            let header = |name| answer.headers().get(name).map(|value| value.to_str().unwrap());
            assert_eq!(header(WWW_AUTHENTICATE), (*name == "no-token").then_some("Bearer"), "{name}");
            assert_eq!(header(RETRY_AFTER), (*name == "too-often").then_some("1"), "{name}");
        }
        let given = answers.iter().map(|(name, answer)| (answer.status().as_u16(), *name)).collect();
        assert_eq!(described, given);
        let schema = &refusals["content"]["application/json"]["schema"]["properties"]["error"];
        let names: BTreeSet<&str> = described.iter().map(|(_, name)| *name).collect();
        let named = schema["enum"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
        assert_eq!(named.collect::<BTreeSet<_>>(), names);
    }

    #[test]
    fn an_api_token_is_taken_from_a_single_header() {
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
        for field in ["device", "fingerprint", "reset_clock", "groups"] {
            assert!(read(&json!({ "reason": "x", field: null }).to_string()).is_none(), "{field}");
        }
        let asked = read(r#"{"reason": "x", "device": "zz"}"#).unwrap();
        assert!(kick(&asked).is_none() && extend(&asked).is_none() && renew_device(&asked).is_none());
        let asked = read(r#"{"reason": "x", "device": "0123456789abcdef0123456789abcdef"}"#).unwrap();
        assert!(matches!(renew_device(&asked), Some(Deed::RenewDevice { reset_clock: false, .. })));
        for key in ["", "AQ==", "not base64"] {
            let asked = read(&json!({ "reason": "x", "public_key": key }).to_string()).unwrap();
            assert!(add_device(&asked).is_none(), "{key}");
        }
        let key = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
        let asked = read(&json!({ "reason": "x", "public_key": key }).to_string()).unwrap();
        let named = Deed::AddDevice { public_key: [1; 32].into(), name: Text::cut("") };
        assert_eq!(add_device(&asked), Some(named));
        let asked = read(r#"{"reason": "x", "groups": ["a", "b"], "expires": "2030-01-31"}"#).unwrap();
        assert!(matches!(kick(&asked), Some(Deed::Kick(None))) && extend(&asked).is_some());
        let revoked = |body: &str| revoke(&read(body).unwrap());
        assert_eq!(revoked(r#"{"reason": "x"}"#), Some(Deed::RevokeCertificates(None)));
        let one = json!({ "reason": "x", "fingerprint": "ab".repeat(32) }).to_string();
        assert_eq!(revoked(&one), Some(Deed::RevokeCertificates(Some([0xab; 32].into()))));
        assert_eq!(revoked(r#"{"reason": "x", "fingerprint": "ab"}"#), None, "not all of them");
        let Some(Deed::Add(account)) = add(&asked) else { panic!("no account") };
        assert_eq!((account.groups.len(), account.expires.as_deref()), (2, Some("2030-01-31")));
    }
}
