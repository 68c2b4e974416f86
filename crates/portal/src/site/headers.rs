//! The headers that keep other sites and scripts out.
//!
//! INVARIANT: every answer has each of them once. Of two policies a browser obeys both, so a second
//! one would take away what the first allows.

use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, STRICT_TRANSPORT_SECURITY};
use axum::response::Response;

/// All but the policy, which pages have different ones of.
pub(super) const HEADERS: [(HeaderName, HeaderValue); 6] = [
    (STRICT_TRANSPORT_SECURITY, HeaderValue::from_static("max-age=31536000")),
    (HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff")),
    (HeaderName::from_static("x-frame-options"), HeaderValue::from_static("DENY")),
    (HeaderName::from_static("referrer-policy"), HeaderValue::from_static("no-referrer")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

/// Whether the promise of TLS is one for hosts below this one, too.
static SUBDOMAINS: AtomicBool = AtomicBool::new(false);

/// Sets whether it is, before anything is served.
pub(crate) fn cover_subdomains(covered: bool) {
    SUBDOMAINS.store(covered, Ordering::Relaxed);
}

/// A policy of answers that need another one than most.
#[derive(Clone, Copy)]
enum Policy {
    /// Our script, which asks this host alone.
    Scripted,
    /// A form leads to a client at this port of the browser's machine.
    Towards(u16),
}

impl Policy {
    fn text(policy: Option<Self>) -> String {
        let (scripts, form) = match policy {
            None => ("", String::new()),
            Some(Self::Scripted) => ("script-src 'self'; connect-src 'self'; ", String::new()),
            Some(Self::Towards(port)) => ("", format!(" http://127.0.0.1:{port}")),
        };
        format!(
            "default-src 'none'; {scripts}style-src 'self'; img-src 'self'; form-action 'self'{form}; \
             base-uri 'none'; frame-ancestors 'none'"
        )
    }
}

/// The answer with all headers.
pub(crate) async fn complete(mut response: Response) -> Response {
    let policy = Policy::text(response.extensions_mut().remove());
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, value);
    }
    if SUBDOMAINS.load(Ordering::Relaxed) {
        let value = HeaderValue::from_static("max-age=31536000; includeSubDomains");
        headers.insert(STRICT_TRANSPORT_SECURITY, value);
    }
    let policy = HeaderValue::try_from(policy).expect("it is of ASCII letters");
    headers.insert(CONTENT_SECURITY_POLICY, policy);
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// For the answer to who has logged out: the browser keeps nothing that it was shown. Cookies are
/// not named here, for that would be those of every host of the same domain.
pub(super) fn cleared(mut response: Response) -> Response {
    let value = HeaderValue::from_static("\"cache\", \"storage\"");
    response.headers_mut().insert(HeaderName::from_static("clear-site-data"), value);
    response
}

/// For a page that has our script.
pub(super) fn scripted(response: Response) -> Response {
    with(response, Policy::Scripted)
}

/// For an answer from which a form leads to a client at this port of the browser's machine.
pub(super) fn towards(response: Response, port: u16) -> Response {
    with(response, Policy::Towards(port))
}

fn with(mut response: Response, policy: Policy) -> Response {
    response.extensions_mut().insert(policy);
    response
}
