//! Rules that hold at every address.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex};

use axum::http::header::{HOST, ORIGIN};
use serde_json::{Value, json};

use super::*;

/// The requests that the auth process has received, but for those about the queue of a login.
#[derive(Clone, Default)]
pub(super) struct Received(Arc<Mutex<Vec<PortalRequest>>>);

impl Received {
    fn take(&self) -> Vec<PortalRequest> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// The one that was received.
    fn only(&self, at: &str) -> PortalRequest {
        let mut all = self.take();
        assert_eq!(all.len(), 1, "{at}: {all:?}");
        all.remove(0)
    }
}

/// The site with a provider `x`, and what the auth process receives of it, which it answers as
/// [`answer`] does.
pub(super) fn watched_site() -> (Router, Received) {
    let (ours, theirs) = channel::pair().unwrap();
    let (auth, replies) = AuthClient::start(Channel::new(ours, MAX_FRAME).unwrap());
    tokio::spawn(replies);
    let received = Received::default();
    let channel = Channel::new(theirs, MAX_FRAME).unwrap();
    let seen = received.clone();
    let note = move |request: &PortalRequest| {
        if matches!(request, PortalRequest::Turn(_)) {
            return;
        }
        let copy = minicbor::decode(&minicbor::to_vec(request).unwrap()).unwrap();
        seen.0.lock().unwrap().push(copy);
    };
    tokio::spawn(answer_noting(channel, note));
    let providers = vec![Provider { source: Text::cut("x"), label: Text::cut("X") }];
    (router(Arc::new(Site::new(auth, "VPN".to_owned(), None, providers))), received)
}

/// Whether a page that is looked at may ask the auth process for this: it changes nothing of
/// anybody but where this browser's own login stands.
fn only_looks(request: &PortalRequest) -> bool {
    use PortalRequest as R;
    match request {
        R::Overview(_) | R::Devices(_) | R::Profile(_) | R::Connect(_) | R::OpenInvitation(_) => true,
        R::Desk(_) | R::FindUsers(_) | R::ShowUser(_) | R::ListSessions(_) => true,
        R::Start(_) | R::Finish(_) | R::Approval(_) => true,
        // The form, without a code.
        R::TypeCode(typed) => typed.code.is_empty(),
        _ => false,
    }
}

/// Whether a program at another host may send this without a form: it has another proof.
fn has_own_proof(request: &PortalRequest) -> bool {
    use PortalRequest as R;
    use vpnd_ipc::gateway::portal::desk::Caller;
    let is_program = |caller: &Caller| matches!(caller, Caller::Program { .. });
    match request {
        R::LoggedOut(_) => true,
        R::ChangeUser(change) => is_program(&change.caller),
        R::Whois(asked) => is_program(&asked.caller),
        R::ExportAudit(asked) => is_program(&asked.caller),
        _ => false,
    }
}

/// The API's description of bodies, by the address that [`addresses`] has.
static DESCRIBED: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
    let all: Value = serde_json::from_str(include_str!("../../../assets/openapi.json")).unwrap();
    let schema = |(path, methods): (&String, &Value)| {
        let schema = &methods["post"]["requestBody"]["content"]["application/json"]["schema"];
        schema.is_object().then(|| (format!("/api/v1{}", path.replace("{name}", "x")), schema.clone()))
    };
    all["paths"].as_object().unwrap().iter().filter_map(schema).collect()
});

/// A good value of a body's field.
fn example(field: &str) -> Value {
    match field {
        "device" => json!(hex(&[7; 16])),
        "fingerprint" => json!(hex(&[7; 32])),
        "public_key" => json!("BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc="),
        "reset_clock" => json!(true),
        "groups" => json!(["a"]),
        "expires" => json!("2030-01-31"),
        _ => json!("x"),
    }
}

fn body_with<'f>(fields: impl IntoIterator<Item = &'f String>) -> String {
    let values = fields.into_iter().map(|field| (field.clone(), example(field)));
    Value::Object(values.collect()).to_string()
}

/// A request of the API has its own form of body and token.
fn api_request(method: Method, path: &str) -> Request<Body> {
    let mut asked = request(method, path, true);
    asked.headers_mut().insert("authorization", "Bearer a.b".parse().unwrap());
    let schema = DESCRIBED.get(path).unwrap_or(&Value::Null);
    let fields = schema["properties"].as_object().into_iter().flat_map(serde_json::Map::keys);
    *asked.body_mut() = Body::from(body_with(fields));
    asked
}

fn any_request(method: &Method, path: &str) -> Request<Body> {
    if path.starts_with("/api/") {
        api_request(method.clone(), path)
    } else {
        request(method.clone(), path, true)
    }
}

#[tokio::test]
async fn a_get_changes_nothing() {
    let (mut site, received) = watched_site();
    let mut seen = 0;
    for path in addresses() {
        for (method, query) in [(Method::GET, false), (Method::HEAD, false), (Method::GET, true)] {
            // A form can be sent by GET, too.
            let address = if query { format!("{path}?{}", full_body(&path)) } else { path.clone() };
            let _ = site.call(any_request(&method, &address)).await.unwrap();
            for request in received.take() {
                assert!(only_looks(&request), "{method} {path}: {request:?}");
                seen += 1;
            }
        }
    }
    assert!(seen > 20, "pages ask for what they show: {seen}");
}

#[tokio::test]
async fn a_post_counts_with_a_form_of_ours_or_a_token_alone() {
    let (mut site, received) = watched_site();
    let mut counted = BTreeSet::new();
    for path in addresses() {
        // The good request, with which the others are compared.
        let _ = site.call(any_request(&Method::POST, &path)).await.unwrap();
        let good = received.take();
        if good.iter().any(|request| !only_looks(request)) {
            counted.insert(path.clone());
        }
        let foreign = |mut request: Request<Body>| {
            request.headers_mut().insert("sec-fetch-site", "cross-site".parse().unwrap());
            request
        };
        let mut formless = any_request(&Method::POST, &path);
        if !path.starts_with("/api/") {
            *formless.body_mut() = Body::from(body_without_form());
        }
        let mut sibling = any_request(&Method::POST, &path);
        sibling.headers_mut().insert("sec-fetch-site", "same-site".parse().unwrap());
        let without_cookie = any_request_without_cookie(&path);
        for (what, sent) in [
            ("by another site", foreign(any_request(&Method::POST, &path))),
            ("by another host of the domain", sibling),
            ("without a form", formless),
            ("without a cookie", without_cookie),
        ] {
            let _ = site.call(sent).await.unwrap();
            for request in received.take() {
                let is_fine = has_own_proof(&request) || only_looks(&request);
                assert!(is_fine, "{path} {what}: {request:?}");
            }
        }
    }
    assert!(counted.len() > 20, "the same counts with a form: {counted:?}");
    assert!(
        ["/login", "/devices/remove", "/desk/kick", "/password"].iter().all(|path| counted.contains(*path))
    );
}

fn any_request_without_cookie(path: &str) -> Request<Body> {
    let mut sent = any_request(&Method::POST, path);
    sent.headers_mut().remove(COOKIE);
    sent
}

#[tokio::test]
async fn a_change_by_the_api_takes_the_fields_that_its_description_names_and_no_others() {
    let (mut site, received) = watched_site();
    let names = |schema: &Value| -> BTreeSet<String> {
        schema["properties"].as_object().unwrap().keys().cloned().collect()
    };
    let all: BTreeSet<String> = DESCRIBED.values().flat_map(names).collect();
    let mut taken = async |path: &str, body: String| {
        let mut asked = api_request(Method::POST, path);
        *asked.body_mut() = Body::from(body);
        let status = site.call(asked).await.unwrap().status();
        let is_taken = received.take().len() == 1;
        assert_eq!(status == StatusCode::BAD_REQUEST, !is_taken, "{path}: {status}");
        is_taken
    };
    for (path, schema) in &*DESCRIBED {
        assert_eq!(schema["additionalProperties"], false, "{path}");
        let own = names(schema);
        assert!(taken(path, body_with(&own)).await, "{path}");
        for other in all.difference(&own) {
            assert!(!taken(path, body_with(own.iter().chain([other]))).await, "{path} takes {other}");
        }
        let required: BTreeSet<String> = serde_json::from_value(schema["required"].clone()).unwrap();
        assert!(taken(path, body_with(&required)).await, "{path} needs more than is required");
        for field in &required {
            let without = required.iter().filter(|other| *other != field);
            assert!(!taken(path, body_with(without)).await, "{path} does without {field}");
        }
    }
    assert_eq!(DESCRIBED.len(), 16);
}

#[tokio::test]
async fn no_page_of_another_site_reads_an_answer() {
    let (mut site, _) = watched_site();
    let methods = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS];
    for path in addresses() {
        for method in &methods {
            let mut asked = any_request(method, &path);
            let headers = asked.headers_mut();
            headers.insert(ORIGIN, "https://evil.example".parse().unwrap());
            headers.insert("access-control-request-method", "POST".parse().unwrap());
            headers.insert("access-control-request-headers", "authorization".parse().unwrap());
            let response = site.call(asked).await.unwrap();
            let allows = |name: &HeaderName| name.as_str().starts_with("access-control-");
            assert!(!response.headers().keys().any(allows), "{method} {path}: {response:?}");
            let status = response.status();
            assert!(*method != Method::OPTIONS || status.is_client_error(), "{path}: {status}");
        }
    }
}

#[tokio::test]
async fn no_header_names_another_sender_host_or_address() {
    let (mut site, received) = watched_site();
    let (mut asked, mut named) = (0, 0);
    for path in addresses() {
        for method in [Method::GET, Method::POST] {
            let mut request = any_request(&method, &path);
            let headers = request.headers_mut();
            for name in [
                "x-forwarded-for",
                "x-real-ip",
                "x-client-ip",
                "true-client-ip",
                "cf-connecting-ip",
                "x-cluster-client-ip",
            ] {
                headers.insert(name, "203.0.113.99".parse().unwrap());
            }
            headers.insert("forwarded", "for=203.0.113.99;host=evil.example;proto=http".parse().unwrap());
            headers.insert(HOST, "evil.example".parse().unwrap());
            for name in ["x-forwarded-host", "x-host", "x-original-url", "x-rewrite-url"] {
                headers.insert(name, "evil.example".parse().unwrap());
            }
            headers.insert("x-http-method-override", "DELETE".parse().unwrap());
            let response = site.call(request).await.unwrap();
            let shown = format!("{:?}", response.headers());
            let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
            let body = String::from_utf8_lossy(&body);
            assert!(!shown.contains("evil.example") && !body.contains("evil.example"), "{method} {path}");
            for request in received.take() {
                let bytes = minicbor::to_vec(&request).unwrap();
                let has = |wanted: &[u8]| bytes.windows(wanted.len()).any(|part| part == wanted);
                let forged = has(&[203, 0, 113, 99]) || has(b"203.0.113.99") || has(b"evil.example");
                assert!(!forged, "{method} {path}: {request:?}");
                asked += 1;
                named += usize::from(format!("{request:?}").contains("192.0.2.1"));
            }
        }
    }
    assert!(asked > 40 && named * 10 > asked * 9, "{named} of {asked} have the address of the connection");
}

#[tokio::test]
async fn what_is_sent_is_decoded_once() {
    let (mut site, received) = watched_site();
    let body = format!("form={}&user=%2561nn&password=%252B", form_of(&Token(TOKEN.into())));
    let mut login = request(Method::POST, "/login", true);
    *login.body_mut() = Body::from(body);
    let _ = site.call(login).await.unwrap();
    let PortalRequest::LogIn(login) = received.only("/login") else { panic!("no login") };
    assert_eq!((&*login.user, login.password.expose()), ("%61nn", "%2B"));
    let mut ask = async |path: &str| {
        let mut asked = any_request(&Method::GET, path);
        let at_provider = format!("__Host-vpnd-provider={}", hex(&TOKEN)).parse().unwrap();
        asked.headers_mut().append(COOKIE, at_provider);
        let _ = site.call(asked).await.unwrap();
        received.only(path)
    };
    let PortalRequest::OpenInvitation(open) = ask("/invitation/%2561").await else { panic!() };
    assert_eq!(open.invitation.expose(), "%61");
    let PortalRequest::Finish(finish) = ask("/oidc/callback/x?state=%2561&code=%2562").await else {
        panic!()
    };
    assert_eq!((&*finish.state, finish.code.unwrap().expose()), ("%61", "%62"));
    let PortalRequest::ShowUser(show) = ask("/api/v1/users/%2561").await else { panic!() };
    assert_eq!(&*show.user, "%61");
    let PortalRequest::FindUsers(find) = ask("/api/v1/users?text=%2561").await else { panic!() };
    assert_eq!(&*find.text, "%61");
    // A slash that is written otherwise leads nowhere else.
    let PortalRequest::ShowUser(show) = ask("/api/v1/users/..%2fwhois").await else { panic!() };
    assert_eq!(&*show.user, "../whois");
}

#[tokio::test]
async fn no_files_directories_or_debug_pages_are_served() {
    let (mut site, received) = watched_site();
    for path in [
        "/.git/config",
        "/.env",
        "/.well-known/security.txt",
        "/../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/templates/login.html",
        "/assets/",
        "/assets/style.css",
        "/style.css/",
        "/debug",
        "/metrics",
        "/server-status",
        "/api/",
        "/api/v1",
        "/api/v1/",
        "/api/v2/users",
        "/desk/",
    ] {
        for method in [Method::GET, Method::POST] {
            let status = site.call(request(method.clone(), path, true)).await.unwrap().status();
            assert_eq!(status, StatusCode::NOT_FOUND, "{method} {path}");
        }
    }
    assert!(received.take().is_empty());
}

#[tokio::test]
async fn a_program_is_refused_in_json_where_there_is_no_address_or_no_such_method() {
    let (mut site, received) = watched_site();
    for (method, path, status, error, allowed) in [
        (Method::GET, "/api/v1/nothing", StatusCode::NOT_FOUND, "no-such-address", None),
        (Method::POST, "/api/v1/users/ann/nothing", StatusCode::NOT_FOUND, "no-such-address", None),
        (Method::GET, "/api/v1/", StatusCode::NOT_FOUND, "no-such-address", None),
        (Method::GET, "/api/v2/users", StatusCode::NOT_FOUND, "no-such-address", None),
        (Method::POST, "/api/v1/users", StatusCode::METHOD_NOT_ALLOWED, "wrong-method", Some("GET,HEAD")),
        (Method::GET, "/api/v1/whois", StatusCode::METHOD_NOT_ALLOWED, "wrong-method", Some("POST")),
        (
            Method::DELETE,
            "/api/v1/users/ann",
            StatusCode::METHOD_NOT_ALLOWED,
            "wrong-method",
            Some("GET,HEAD"),
        ),
    ] {
        let at = format!("{method} {path}");
        let response = site.call(api_request(method, path)).await.unwrap();
        assert_eq!(response.status(), status, "{at}");
        assert_eq!(only(&response, &CONTENT_TYPE, &at), "application/json");
        let allow = response.headers().get("allow").map(|value| value.to_str().unwrap());
        assert_eq!(allow, allowed, "{at}");
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), json!({ "error": error }), "{at}");
    }
    // Pages keep theirs.
    let page = site.call(request(Method::GET, "/apiary", true)).await.unwrap();
    assert_eq!(page.status(), StatusCode::NOT_FOUND);
    assert!(only(&page, &CONTENT_TYPE, "/apiary").starts_with("text/html"));
    assert!(received.take().is_empty());
}
