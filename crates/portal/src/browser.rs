//! A browser: its address, its language, its token and the proof that it posts a form of ours.
//!
//! Invariants: the token is in one cookie, which scripts can't read and other hosts can't set, and
//! in no page; a form has a hash of it, without which nothing that is posted counts.

use std::net::IpAddr;

use axum::extract::FromRequestParts;
use axum::http::header::{ACCEPT_LANGUAGE, COOKIE, HeaderName, USER_AGENT};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use base64::Engine as _;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::texts::{self, Texts};
use crate::typed::Draft;
use vpnd_ipc::gateway::portal::visits::{BrowserKind, Program, System};
use vpnd_ipc::gateway::portal::{Browser, Token};

/// The prefix has browsers take the cookie only from this host, for all of its paths, by TLS.
const NAME: &str = "__Host-vpnd";
/// The cookie of a browser that is at a provider.
const AT_PROVIDER: &str = "__Host-vpnd-provider";
/// The cookie of a browser in which a client logs in.
const CONNECT: &str = "__Host-vpnd-connect";
/// Its value until the person has typed the client's code.
const WITHOUT_CODE: &str = "code";
/// The cookie with a form of the help desk that waits for a login.
const DRAFT: &str = "__Host-vpnd-desk";
/// Keeps the hash in forms apart from any other of a token.
const FORM: &[u8] = b"vpnd portal form";

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// The sender of a request, as far as the request shows.
pub(crate) struct Visitor {
    pub(crate) address: IpAddr,
    pub(crate) token: Option<Token>,
    /// Given when the browser left for a provider.
    pub(crate) at_provider: Option<Token>,
    /// The ticket of a client that logs in in this browser.
    pub(crate) ticket: Option<Token>,
    /// Whether the person is about to type the code of one.
    types_code: bool,
    /// The form of the help desk for which the person logs in again.
    pub(crate) draft: Option<Draft>,
    pub(crate) texts: &'static Texts,
    /// The browser's own statement.
    pub(crate) kind: BrowserKind,
    /// Whether the browser says that a page of another host, or a person, has sent it.
    is_foreign: bool,
    /// Whether the browser says that a page of another host has sent it.
    is_led: bool,
}

impl<S: Sync> FromRequestParts<S> for Visitor {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, StatusCode> {
        visitor(parts).ok_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

/// Reads the sender of a request; `None` without a connection.
pub(crate) fn visitor(parts: &Parts) -> Option<Visitor> {
    let peer = parts.extensions.get::<Peer>()?;
    let site = parts.headers.get("sec-fetch-site");
    let text = |name: HeaderName| parts.headers.get(name).and_then(|value| value.to_str().ok());
    Some(Visitor {
        address: peer.0,
        token: token_of(&parts.headers, NAME),
        at_provider: token_of(&parts.headers, AT_PROVIDER),
        ticket: token_of(&parts.headers, CONNECT),
        types_code: cookie_of(&parts.headers, CONNECT) == Some(WITHOUT_CODE),
        draft: cookie_of(&parts.headers, DRAFT).and_then(Draft::read),
        texts: texts::preferred(text(ACCEPT_LANGUAGE).unwrap_or_default()),
        kind: kind(text(USER_AGENT).unwrap_or_default()),
        is_foreign: site.is_some_and(|site| site != "same-origin"),
        is_led: site.is_some_and(|site| site != "same-origin" && site != "none"),
    })
}

impl Visitor {
    /// For a request to the auth process.
    pub(crate) fn browser(&self) -> Option<Browser> {
        Some(Browser { token: self.token.clone()?, address: self.address, kind: self.kind })
    }

    /// Whether a page of another host has led the browser here.
    pub(crate) const fn is_led(&self) -> bool {
        self.is_led
    }

    /// The page behind a login.
    pub(crate) fn home(&self) -> &'static str {
        match (&self.ticket, &self.draft) {
            (Some(_), _) => "/connect",
            (None, _) if self.types_code => "/code",
            (None, Some(_)) => "/desk/again",
            (None, None) => "/",
        }
    }

    /// Whether a form was ours, and sent by this browser.
    pub(crate) fn has_sent(&self, form: &str) -> bool {
        !self.is_foreign && self.token.as_ref().is_some_and(|token| is_same(&form_of(token), form))
    }

    /// Whether a form that asks about this ticket was ours, and sent by this browser.
    pub(crate) fn has_answered(&self, ticket: &Token, form: &str) -> bool {
        let is_ours = |token| is_same(&form_about(token, ticket), form);
        !self.is_foreign && self.token.as_ref().is_some_and(is_ours)
    }
}

/// The browser of which this is the name. All of them name others, too, so the order counts.
fn kind(agent: &str) -> BrowserKind {
    let named = |name: &str| agent.contains(name);
    let program = match () {
        () if named("Edg") => Program::Edge,
        () if named("Firefox/") || named("FxiOS/") => Program::Firefox,
        () if named("Chrome/") || named("CriOS/") || named("Chromium/") => Program::Chrome,
        () if named("Safari/") => Program::Safari,
        () => Program::Other,
    };
    let system = match () {
        () if named("Android") => System::Android,
        () if named("iPhone") || named("iPad") => System::Ios,
        () if named("Windows") => System::Windows,
        () if named("Mac OS X") => System::MacOs,
        () if named("Linux") || named("CrOS") => System::Linux,
        () => System::Other,
    };
    BrowserKind { program, system }
}

/// A token without a visit, for a browser that has none yet.
pub(crate) fn fresh_token() -> Token {
    Token(rand::random::<[u8; 32]>().into())
}

/// The value in forms of the browser with this token.
pub(crate) fn form_of(token: &Token) -> String {
    let mut hash = Sha256::new_with_prefix(FORM);
    hash.update(*token.0);
    hex(&hash.finalize())
}

/// The value in a form that asks about this ticket, and about no other.
pub(crate) fn form_about(token: &Token, ticket: &Token) -> String {
    let mut hash = Sha256::new_with_prefix(FORM);
    hash.update(*token.0);
    hash.update(*ticket.0);
    hex(&hash.finalize())
}

fn is_same(ours: &str, form: &str) -> bool {
    ours.as_bytes().ct_eq(form.as_bytes()).into()
}

/// Sets the cookie.
pub(crate) fn cookie(token: &Token) -> String {
    format!("{NAME}={}; Path=/; Secure; HttpOnly; SameSite=Lax", hex(&*token.0))
}

/// Sets the cookie of a browser that goes to a provider, for the time that it may take there.
pub(crate) fn provider_cookie(token: &Token) -> String {
    format!("{AT_PROVIDER}={}; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age=600", hex(&*token.0))
}

/// Sets the cookie of a browser in which a client logs in, for the time that it may take.
pub(crate) fn connect_cookie(ticket: &Token) -> String {
    format!("{CONNECT}={}; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age=600", hex(&*ticket.0))
}

/// Sets it for a browser whose user has to log in before typing a code.
pub(crate) fn code_cookie() -> String {
    format!("{CONNECT}={WITHOUT_CODE}; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age=600")
}

/// Removes it.
pub(crate) fn no_connect_cookie() -> String {
    format!("{CONNECT}=; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age=0")
}

/// Sets the cookie of a form of the help desk, for as long as its login counts; `None` if it is too
/// long.
pub(crate) fn draft_cookie(draft: &Draft) -> Option<String> {
    Some(format!("{DRAFT}={}; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age=600", draft.kept()?))
}

/// Removes it.
pub(crate) fn no_draft_cookie() -> String {
    format!("{DRAFT}=; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age=0")
}

/// Removes the cookie.
pub(crate) fn no_cookie() -> String {
    format!("{NAME}=; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age=0")
}

fn token_of(headers: &HeaderMap, wanted: &str) -> Option<Token> {
    Some(Token(unhex::<32>(cookie_of(headers, wanted)?)?.into()))
}

fn cookie_of<'h>(headers: &'h HeaderMap, wanted: &str) -> Option<&'h str> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut values = cookies.flat_map(|line| line.split(';')).filter_map(|cookie| {
        let (name, value) = cookie.trim().split_once('=')?;
        (name == wanted).then_some(value)
    });
    // One that comes twice was not set here.
    values.next().filter(|_| values.next().is_none())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Nothing fails that is written to a string.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes of base64 as WireGuard writes keys: padded, and nothing left over.
pub(crate) fn unbase64<const N: usize>(text: &str) -> Option<[u8; N]> {
    base64::engine::general_purpose::STANDARD.decode(text).ok()?.try_into().ok()
}

pub(crate) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_hex =
        text.len() == 2 * N && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let mut bytes = [0; N];
    for (byte, at) in bytes.iter_mut().zip((0..text.len()).step_by(2)) {
        *byte = u8::from_str_radix(is_hex.then(|| text.get(at..at + 2))??, 16).ok()?;
    }
    is_hex.then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn found(lines: &[&str]) -> Option<Token> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(COOKIE, HeaderValue::from_str(line).unwrap());
        }
        token_of(&headers, NAME)
    }

    #[test]
    fn a_token_is_accepted_in_its_cookie_only() {
        let token = fresh_token();
        let text = hex(&*token.0);
        assert!(cookie(&token).starts_with(&format!("__Host-vpnd={text}; ")));
        let ours = format!("__Host-vpnd={text}");
        assert_eq!(found(&[&ours]), Some(token.clone()));
        assert_eq!(found(&[&format!("a=b; {ours}"), "c=d"]), Some(token.clone()));
        for wrong in [
            format!("vpnd={text}"),
            format!("{ours}0"),
            format!("{ours}; {ours}"),
            ours.to_uppercase(),
            format!("__Host-vpnd={}", &text[2..]),
            format!("__Host-vpnd={}ä", &text[2..]),
            "__Host-vpnd".to_owned(),
        ] {
            assert_eq!(found(&[&wrong]), None, "{wrong}");
        }
    }

    #[test]
    fn browsers_are_recognised_by_their_user_agent() {
        for (agent, program, system) in [
            (
                "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
                Program::Firefox,
                System::Linux,
            ),
            (
                "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36 Edg/142.0.0.0",
                Program::Edge,
                System::Windows,
            ),
            (
                "Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Mobile Safari/537.36",
                Program::Chrome,
                System::Android,
            ),
            (
                "Mozilla/5.0 (iPhone; CPU iPhone OS 18_6 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/26.0 Mobile/15E148 Safari/604.1",
                Program::Safari,
                System::Ios,
            ),
            (
                "Mozilla/5.0 (Macintosh; Intel Mac OS X 10.15; rv:140.0) Gecko/20100101 Firefox/140.0",
                Program::Firefox,
                System::MacOs,
            ),
            ("curl/8.14.1", Program::Other, System::Other),
            ("", Program::Other, System::Other),
        ] {
            assert_eq!(kind(agent), BrowserKind { program, system }, "{agent}");
        }
    }

    fn visitor(token: &Token, is_foreign: bool) -> Visitor {
        Visitor {
            address: [192, 0, 2, 1].into(),
            token: Some(token.clone()),
            at_provider: None,
            ticket: None,
            types_code: false,
            draft: None,
            texts: &texts::ENGLISH,
            kind: BrowserKind::default(),
            is_foreign,
            is_led: is_foreign,
        }
    }

    #[test]
    fn a_form_is_good_for_its_browser_alone() {
        let (ann, eve) = (fresh_token(), fresh_token());
        assert!(visitor(&ann, false).has_sent(&form_of(&ann)));
        assert!(!visitor(&ann, true).has_sent(&form_of(&ann)), "by a page of another host");
        assert!(!visitor(&ann, false).has_sent(&form_of(&eve)));
        assert!(!visitor(&ann, false).has_sent(""));
        assert!(!visitor(&ann, false).has_sent(&hex(&*ann.0)), "the token itself is in no page");
    }

    #[test]
    fn a_form_is_about_one_ticket_of_one_browser() {
        let [browser, other, ticket, next] = [1, 2, 3, 4].map(|byte| Token([byte; 32].into()));
        let form = form_about(&browser, &ticket);
        assert!(visitor(&browser, false).has_answered(&ticket, &form));
        assert!(!visitor(&browser, false).has_answered(&next, &form));
        assert!(!visitor(&other, false).has_answered(&ticket, &form));
        assert!(!visitor(&browser, true).has_answered(&ticket, &form));
        assert!(!visitor(&browser, false).has_answered(&ticket, &form_of(&browser)));
        assert!(!visitor(&browser, false).has_sent(&form));
    }
}
