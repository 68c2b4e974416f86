mod answers;
mod desk;
mod ended;
mod invitations;
mod routes;
mod turns;

use std::collections::BTreeSet;

use axum::body::{Body, to_bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, HeaderName};
use axum::http::{Method, Request};
use tower_service::Service as _;
use vpnd_ipc::channel::{self, Channel};
use vpnd_ipc::gateway::portal::connect::{ConnectEnd, ConnectPage};
use vpnd_ipc::gateway::portal::devices::{DeviceChange, OwnDevices, OwnProfile};
use vpnd_ipc::gateway::portal::turns::STORE;
use vpnd_ipc::gateway::portal::{MAX_FRAME, PortalRequest, Token};
use vpnd_ipc::request::{Numbered, Reason, encoded};
use vpnd_proto::control::{List, Text};

use super::reading::addresses;
use super::*;
use crate::browser::{Peer, form_about, hex};

const PORT: u16 = 40_123;
const TOKEN: [u8; 32] = [7; 32];

/// Answers as the auth process does where that gives a page with a separate policy.
async fn answer(channel: Channel) {
    answer_noting(channel, |_| ()).await;
}

/// Does the same, and notes each request before.
async fn answer_noting(channel: Channel, note: impl Fn(&PortalRequest)) {
    while let Ok(Some(received)) = channel.receive::<Numbered<PortalRequest>>().await {
        let Numbered { number, content } = received.alone().unwrap();
        note(&content);
        let content = match content {
            PortalRequest::Turn(_) => encoded(&Ok(STORE)),
            PortalRequest::Approval(_) => encoded(&Ok(None::<LoginStep>)),
            PortalRequest::AddDevice(_) => encoded(&Ok(DeviceChange::Added(Text::cut("[Interface]\n")))),
            PortalRequest::Devices(_) => {
                encoded(&Ok(Some(OwnDevices { devices: List::default(), wireguard: true, profile: true })))
            }
            PortalRequest::Profile(_) => encoded(&Ok(OwnProfile::File(Text::cut("version = 1\n")))),
            PortalRequest::Connect(_) => encoded(&Ok(ConnectPage::Ask {
                name: Text::cut("laptop"),
                from: [192, 0, 2, 1].into(),
                port: Some(PORT),
                user: UserName::cut("ann"),
                source: Text::cut("local"),
                age_s: 0,
                is_elsewhere: false,
            })),
            PortalRequest::AnswerToClient(_) => encoded(&Ok(ConnectEnd::To {
                url: Text::cut(&format!("http://127.0.0.1:{PORT}/?grant=x")),
                port: PORT,
            })),
            _ => encoded::<()>(&Err(Reason::cut("a test"))),
        };
        channel.send(&Numbered { number, content }, &[]).await.unwrap();
    }
}

/// The site, with an auth process that [`answer`]s.
fn site() -> Router {
    let (ours, theirs) = channel::pair().unwrap();
    let (auth, replies) = AuthClient::start(Channel::new(ours, MAX_FRAME).unwrap());
    tokio::spawn(replies);
    tokio::spawn(answer(Channel::new(theirs, MAX_FRAME).unwrap()));
    router(Arc::new(Site::new(auth, "VPN".to_owned(), None, Vec::new())))
}

/// The fields of all forms, but for the proof that one is ours.
fn body_without_form() -> String {
    let key = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc%3D";
    let device = hex(&[7; 16]);
    let of_people = "user=ann&password=x&present=x&new=correct+horse&again=correct+horse&reason=why";
    let of_things = "name=phone&answer=yes&code=1&secret=x&expires=2030-01-31&until=2030-01-31&address=192.0.2.9&at=&visit=1";
    format!("{of_people}&{of_things}&public_key={key}&device={device}&logout_token=x.y.z")
}

/// All fields of a form of this page, as the browser with [`TOKEN`] has it.
fn full_body(page: &str) -> String {
    let [token, ticket] = [TOKEN, [8; 32]].map(|bytes| Token(bytes.into()));
    let form = if page == "/connect" { form_about(&token, &ticket) } else { form_of(&token) };
    format!("form={form}&{}", body_without_form())
}

/// A request of a browser that has logged in, or not, with a form that is as good as can be.
fn request(method: Method, path: &str, logged_in: bool) -> Request<Body> {
    let body = full_body(path);
    let mut request = Request::builder().method(method).uri(path);
    if logged_in {
        let cookies = format!("__Host-vpnd={}; __Host-vpnd-connect={}", hex(&TOKEN), hex(&[8; 32]));
        request = request.header(COOKIE, cookies);
    }
    let mut request =
        request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(Body::from(body)).unwrap();
    request.extensions_mut().insert(Peer([192, 0, 2, 1].into()));
    request
}

/// The one value of a header.
fn only<'r>(response: &'r Response, name: &HeaderName, at: &str) -> &'r str {
    let values: Vec<_> = response.headers().get_all(name).iter().collect();
    assert_eq!(values.len(), 1, "{at}: {name}: {values:?}");
    values[0].to_str().unwrap()
}

#[tokio::test]
async fn every_answer_has_each_header_once_and_the_policy_that_its_page_needs() {
    let mut site = site();
    let mut policies = BTreeSet::new();
    for (path, method, logged_in) in addresses().into_iter().flat_map(|path| {
        {
            let methods = [Method::GET, Method::POST, Method::PUT, Method::TRACE];
            methods.map(|method| [true, false].map(|logged_in| (path.clone(), method.clone(), logged_in)))
        }
        .into_iter()
        .flatten()
    }) {
        let at = format!("{method} {path}, logged in: {logged_in}");
        let response = site.call(request(method.clone(), &path, logged_in)).await.unwrap();
        for (name, value) in headers::HEADERS {
            assert_eq!(only(&response, &name, &at), value, "{at}");
        }
        only(&response, &CACHE_CONTROL, &at);
        let policy = only(&response, &CONTENT_SECURITY_POLICY, &at).to_owned();
        for part in
            ["default-src 'none'; ", "form-action 'self'", "; base-uri 'none'", "; frame-ancestors 'none'"]
        {
            assert!(policy.contains(part) && !policy.contains("unsafe"), "{at}: {policy}");
        }
        let leads_on = response.status() != StatusCode::NOT_FOUND && path == "/connect" && logged_in;
        let kind = response.headers().get(CONTENT_TYPE).map(|kind| kind.to_str().unwrap().to_owned());
        let (status, location) = (response.status(), response.headers().get(LOCATION).cloned());
        assert!(method != Method::TRACE || status.is_client_error(), "{at}: {status}");
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let kind = kind.unwrap_or_default();
        let is_described = kind == "application/json" || kind.ends_with("; charset=utf-8");
        assert!(body.is_empty() || is_described, "{at}: {kind:?}");
        let leads_away = location.is_some_and(|to| !to.to_str().unwrap().starts_with('/'));
        assert!(!leads_away || (path == "/connect" && method == Method::POST), "{at}");
        let has_script = body.windows(7).any(|text| text == b"<script") && !path.ends_with(".js");
        assert_eq!(policy.contains("script-src 'self'; connect-src 'self'"), has_script, "{at}: {policy}");
        let towards = policy.contains(&format!("form-action 'self' http://127.0.0.1:{PORT};"));
        assert!(!towards || leads_on, "{at}: {policy}");
        policies.insert(policy);
    }
    assert_eq!(policies.len(), 3, "each kind of page was there: {policies:?}");
}

#[tokio::test]
async fn a_logout_mentions_the_session_at_the_provider() {
    let (mut with_provider, _) = routes::watched_site();
    let mut without = site();
    let texts = &crate::texts::ENGLISH;
    let (here, all) = (texts.logged_out_here, texts.logged_out);
    for (has_provider, path, said) in [
        (true, "/login?out", [true, false]),
        (false, "/login?out", [false, true]),
        (true, "/login", [false, false]),
    ] {
        let site = if has_provider { &mut with_provider } else { &mut without };
        let response = site.call(request(Method::GET, path, true)).await.unwrap();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let body = String::from_utf8_lossy(&body);
        assert_eq!([here, all].map(|text| body.contains(text)), said, "{path}: {body}");
    }
}

#[tokio::test]
async fn a_form_that_is_too_large_is_refused() {
    let mut site = site();
    for (length, is_taken) in [(MAX_BODY_BYTES / 2, true), (MAX_BODY_BYTES + 1, false), (1 << 20, false)] {
        let mut asked = request(Method::POST, "/logout", true);
        let body = format!("form={}&more={}", "x".repeat(64), "y".repeat(length));
        *asked.body_mut() = Body::from(body);
        let status = site.call(asked).await.unwrap().status();
        assert_eq!(status == StatusCode::PAYLOAD_TOO_LARGE, !is_taken, "{length}: {status}");
    }
}
