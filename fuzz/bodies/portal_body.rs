//! Any bytes as the body of a request to any page of the portal or any address of its API: nothing
//! panics, every answer has its headers and is of a known kind, and nothing that a browser posts
//! reaches the auth process without the proof that a form is ours.
//!
//! Input: a byte that chooses the address (255: each in turn), one with flags (GET, a form of ours
//! before the rest, no cookie, JSON), and the body.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::{AUTHORIZATION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE};
use axum::http::{Method, Request, StatusCode};
use tokio::runtime::{Builder, Runtime};
use tower_service::Service as _;

use crate::auth_client::AuthClient;
use crate::browser::{Peer, form_about, form_of, hex};
use crate::site::{Site, reading, router};
use vpnd_ipc::channel::{self, Channel};
use vpnd_ipc::gateway::portal::turns::STORE;
use vpnd_ipc::gateway::portal::{MAX_FRAME, PortalRequest, Provider, Token};
use vpnd_ipc::request::{Numbered, Reason, encoded};
use vpnd_proto::control::Text;

/// Chooses every address.
const ALL: u8 = 255;
const TOKEN: [u8; 32] = [7; 32];
const TICKET: [u8; 32] = [8; 32];
/// The longest answer: no page shows what was sent more than once.
const MAX_ANSWER: usize = 1 << 20;

/// A site whose auth process can do nothing, and how often that was asked.
struct Stand {
    runtime: Runtime,
    site: Router,
    asked: Arc<AtomicUsize>,
    addresses: Vec<String>,
}

thread_local! {
    static STAND: RefCell<Stand> = RefCell::new(stand());
}

fn stand() -> Stand {
    let runtime = Builder::new_current_thread().enable_all().build().expect("there is memory");
    let asked = Arc::new(AtomicUsize::new(0));
    let site = runtime.block_on(async {
        let (ours, theirs) = channel::pair().expect("there are descriptors");
        let ours = Channel::new(ours, MAX_FRAME).expect("it is a socket");
        let theirs = Channel::new(theirs, MAX_FRAME).expect("it is a socket");
        let (auth, replies) = AuthClient::start(ours);
        tokio::spawn(replies);
        tokio::spawn(refuse(theirs, Arc::clone(&asked)));
        let providers = vec![Provider { source: Text::cut("x"), label: Text::cut("X") }];
        router(Arc::new(Site::new(auth, "VPN".to_owned(), None, providers)))
    });
    Stand { runtime, site, asked, addresses: reading::addresses().into_iter().collect() }
}

async fn refuse(channel: Channel, asked: Arc<AtomicUsize>) {
    while let Ok(Some(received)) = channel.receive::<Numbered<PortalRequest>>().await {
        let Numbered { number, content } = received.alone().expect("a request has no descriptors");
        asked.fetch_add(1, Ordering::Relaxed);
        let content = match content {
            PortalRequest::Turn(_) => encoded(&Ok(STORE)),
            _ => encoded::<()>(&Err(Reason::cut("fuzzing"))),
        };
        channel.send(&Numbered { number, content }, &[]).await.expect("the site is there");
    }
}

/// Checks one input.
pub fn run(data: &[u8]) {
    let [address, flags, body @ ..] = data else { return };
    STAND.with_borrow_mut(|stand| {
        let (all, one) = (stand.addresses.len(), usize::from(*address));
        let chosen = if *address == ALL { 0..all } else { one % all..one % all + 1 };
        chosen.for_each(|number| check(stand, number, *flags, body));
    });
}

fn check(stand: &mut Stand, number: usize, flags: u8, body: &[u8]) {
    let path = &stand.addresses[number];
    let [is_get, is_ours, is_stranger, is_json] = [1, 2, 4, 8].map(|flag| flags & flag != 0);
    let [token, ticket] = [TOKEN, TICKET].map(|bytes| Token(bytes.into()));
    let form = if path == "/connect" { form_about(&token, &ticket) } else { form_of(&token) };
    let mut sent = if is_ours { format!("form={form}&").into_bytes() } else { Vec::new() };
    sent.extend_from_slice(body);
    let has_form = sent.windows(form.len()).any(|part| part == form.as_bytes());
    let kind = if is_json { "application/json" } else { "application/x-www-form-urlencoded" };
    let method = if is_get { Method::GET } else { Method::POST };
    let mut request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, kind);
    if !is_stranger {
        let cookies = format!("__Host-vpnd={}; __Host-vpnd-connect={}", hex(&TOKEN), hex(&TICKET));
        request = request.header(COOKIE, cookies);
    }
    // Those who are no browser have another proof.
    let is_program = path.starts_with("/api/") || path.starts_with("/oidc/logout/");
    if path.starts_with("/api/") {
        request = request.header(AUTHORIZATION, "Bearer a.b");
    }
    let mut request = request.body(Body::from(sent)).expect("it is a request");
    request.extensions_mut().insert(Peer([192, 0, 2, 1].into()));
    let before = stand.asked.load(Ordering::Relaxed);
    let (status, is_named, length) = stand.runtime.block_on(async {
        let response = stand.site.call(request).await.expect("it never fails");
        let headers = response.headers();
        assert!(headers.contains_key(CONTENT_SECURITY_POLICY), "{path}");
        let (status, is_named) = (response.status(), headers.contains_key(CONTENT_TYPE));
        let body = to_bytes(response.into_body(), MAX_ANSWER).await.expect("an answer has an end");
        (status, is_named, body.len())
    });
    assert!(length == 0 || is_named, "{path}: {status}");
    assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR, "{path}");
    let asked = stand.asked.load(Ordering::Relaxed) - before;
    let is_proved = has_form && !is_stranger;
    assert!(
        asked == 0 || is_get || is_program || is_proved,
        "{path}: {asked} requests without a form of ours"
    );
}
