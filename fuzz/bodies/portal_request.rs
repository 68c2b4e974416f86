//! Any bytes as the parts of a request that the portal reads by hand: cookies, the query of a
//! browser that is back from a provider, parameters, a token of the API, languages and the
//! browser's name. Nothing panics, and what is read was there, once.

use axum::http::header::{ACCEPT_LANGUAGE, AUTHORIZATION, COOKIE, USER_AGENT};
use axum::http::{HeaderMap, HeaderValue, Request};

use crate::browser::{Peer, hex, unbase64, unhex, visitor};
use crate::site::reading;

/// Checks one input.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(value) = HeaderValue::from_bytes(data) {
        let mut request = Request::new(());
        for name in [COOKIE, AUTHORIZATION, ACCEPT_LANGUAGE, USER_AGENT] {
            request.headers_mut().append(name, value.clone());
        }
        request.extensions_mut().insert(Peer([192, 0, 2, 1].into()));
        let (parts, ()) = request.into_parts();
        let read = visitor(&parts).expect("there is a peer");
        for token in [&read.token, &read.at_provider, &read.ticket].into_iter().flatten() {
            assert!(text.contains(&format!("={}", hex(&*token.0))), "{text}");
        }
        check_bearer(&parts.headers, &text);
    }
    if let Some((state, code, issuer)) = reading::brought(&text) {
        for (name, value) in [("state", state), ("code", code), ("iss", issuer)] {
            let count = form_urlencoded::parse(text.as_bytes()).filter(|(known, _)| known == name).count();
            assert_eq!(count, usize::from(value.is_some()), "{name} in {text}");
        }
    }
    let first = reading::parameter(Some(&text), "after");
    assert_eq!(first.is_some(), form_urlencoded::parse(text.as_bytes()).any(|(name, _)| name == "after"));
    if let Some(bytes) = unhex::<32>(&text) {
        assert_eq!(hex(&bytes), text);
    }
    assert!(unbase64::<32>(&text).is_none() || text.len() == 44);
}

fn check_bearer(headers: &HeaderMap, text: &str) {
    let Some(token) = reading::bearer(headers) else { return };
    assert!(text.ends_with(token) || text.trim_end().ends_with(token), "{text}");
    let mut twice = headers.clone();
    twice.append(AUTHORIZATION, headers[AUTHORIZATION].clone());
    assert_eq!(reading::bearer(&twice), None, "one that comes twice is none");
}
