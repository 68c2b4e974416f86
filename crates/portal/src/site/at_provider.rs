//! Logins at OpenID providers: a browser goes there, and comes back with what proves nothing here.
//!
//! Invariants: what a browser brings goes to the auth process as it is, with the token that this
//! browser was given when it left; a parameter that comes twice, or is too long, is as none. The
//! cookie of a visit stays as it is until a login has succeeded.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Form, Path, RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;

use super::{Site, nothing, to, with_cookie};
use crate::browser::{Visitor, cookie};
use crate::pages::devices::WalledPage;
use crate::pages::page;
use vpnd_ipc::gateway::auth::SourceName;
use vpnd_ipc::gateway::portal::turns::TurnQuery;
use vpnd_ipc::gateway::portal::{
    Browser, Code, FinishAtProvider, LogOut, LoggedOutAtProvider, LoginStep, LogoutToken, ProviderStart,
    StartAtProvider,
};
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_proto::control::Text;
use vpnd_sys::log_limit::LogLimit;

/// Lines about logouts that were not followed.
static DROPPED: LogLimit = LogLimit::new(20, Duration::from_secs(10));

/// The query of a login that follows another.
const AGAIN: &str = "again";
/// Query of a browser on a device that may not reach the provider.
const ANYWAY: &str = "anyway";

/// The parameters that a provider sends with a browser.
#[derive(Default)]
struct Brought {
    state: Option<String>,
    code: Option<String>,
    issuer: Option<String>,
}

/// The parameters of a query; `None` if one comes twice.
fn brought(query: &str) -> Option<Brought> {
    let mut brought = Brought::default();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let place = match &*name {
            "state" => &mut brought.state,
            "code" => &mut brought.code,
            "iss" => &mut brought.issuer,
            _ => continue,
        };
        if place.replace(value.into_owned()).is_some() {
            return None;
        }
    }
    Some(brought)
}

/// The state, code and issuer of a query, for the fuzzer.
#[cfg(any(test, fuzzing))]
pub(crate) fn read(query: &str) -> Option<(Option<String>, Option<String>, Option<String>)> {
    brought(query).map(|Brought { state, code, issuer }| (state, code, issuer))
}

/// Sends the browser to a provider.
pub(super) async fn start(
    State(site): State<Arc<Site>>,
    visitor: Visitor,
    Path(provider): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    let Some(known) = site.providers.iter().find(|known| *known.source == *provider) else {
        return nothing(State(site), visitor).await;
    };
    let has = |word: &str| query.as_deref().is_some_and(|query| query.split('&').any(|part| part == word));
    let (again, anyway) = (has(AGAIN), has(ANYWAY));
    let start = StartAtProvider { source: known.source.clone(), address: visitor.address, again, anyway };
    match site.auth.request(start).await {
        Ok(ProviderStart::Go { url, token }) => {
            let response = (StatusCode::SEE_OTHER, [(LOCATION, url.to_string())]).into_response();
            with_cookie(response, &crate::browser::provider_cookie(&token))
        }
        Ok(ProviderStart::Refused(refused)) => site.refused(&visitor, "", refused),
        Ok(ProviderStart::Walled) => {
            let query = if again { format!("{AGAIN}&{ANYWAY}") } else { ANYWAY.to_owned() };
            let frame = site.frame(&visitor);
            page(StatusCode::OK, &WalledPage { frame, provider: known, query })
        }
        Err(_) => site.failed(&visitor),
    }
}

#[derive(Deserialize)]
pub(super) struct Logout {
    logout_token: String,
}

/// A provider says that a user has logged out there (OpenID Connect Back-Channel Logout 1.0 §2.8).
pub(super) async fn logged_out(
    State(site): State<Arc<Site>>,
    visitor: Visitor,
    Path(provider): Path<String>,
    Form(Logout { logout_token }): Form<Logout>,
) -> StatusCode {
    let Some(known) = site.providers.iter().find(|known| *known.source == *provider) else {
        return StatusCode::NOT_FOUND;
    };
    let Ok(token) = LogoutToken::new(logout_token) else { return StatusCode::BAD_REQUEST };
    let Some(turn) = site.auth.logout_turn(&known.source).await else {
        if DROPPED.admits() {
            tracing::warn!(
                source = &*known.source,
                address = %visitor.address,
                "a provider's logout is not followed, because too many wait: end the user's sessions by 'vpnd kick'"
            );
        }
        return StatusCode::SERVICE_UNAVAILABLE;
    };
    let said = LoggedOutAtProvider { source: known.source.clone(), token, address: visitor.address };
    match site.auth.request_in_turn(said, turn).await {
        Ok(true) => StatusCode::OK,
        Ok(false) => StatusCode::BAD_REQUEST,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// The browser is back.
pub(super) async fn finish(
    State(site): State<Arc<Site>>,
    visitor: Visitor,
    Path(provider): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    let not_confirmed = || site.refused(&visitor, "", Refusal::NotConfirmed.into());
    let Some(finish) = request(&visitor, &provider, &query.unwrap_or_default()) else {
        return not_confirmed();
    };
    let turn = match site.login_turn(&visitor, "", TurnQuery::Provider(finish.source.clone())).await {
        Ok(turn) => turn,
        Err(refused) => return refused,
    };
    let step = match site.auth.request_in_turn(finish, turn).await {
        Ok(step) => step,
        Err(_) => return site.failed(&visitor),
    };
    // The browser forgets that token, and a copy of it must not be good any longer.
    if let (false, Some(before)) = (matches!(step, LoginStep::Refused(_)), visitor.browser())
        && site.auth.request(LogOut(before)).await.is_err()
    {
        return site.failed(&visitor);
    }
    match step {
        LoginStep::LoggedIn(token) => with_cookie(to(visitor.home()), &cookie(&token)),
        step => site.step(&visitor, "", step),
    }
}

fn request(visitor: &Visitor, provider: &str, query: &str) -> Option<FinishAtProvider> {
    let Brought { state, code, issuer } = brought(query)?;
    Some(FinishAtProvider {
        source: SourceName::new(provider).ok()?,
        browser: Browser {
            token: visitor.at_provider.clone()?,
            address: visitor.address,
            kind: visitor.kind,
        },
        state: Text::new(state?).ok()?,
        code: code.map(Code::new).transpose().ok()?,
        issuer: issuer.map(Text::new).transpose().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_query_parameter_is_ignored() {
        let one = brought("state=a%2Fb&x=1&code=c+d&iss=https%3A%2F%2Fe").unwrap();
        assert_eq!((one.state.as_deref(), one.code.as_deref()), (Some("a/b"), Some("c d")));
        assert_eq!(one.issuer.as_deref(), Some("https://e"));
        assert!(brought("state=a&code=b&code=c").is_none() && brought("state=a&state=a").is_none());
        assert!(brought("").unwrap().state.is_none());
    }
}
