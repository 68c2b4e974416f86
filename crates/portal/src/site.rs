//! The portal's pages by address, and who may have them, as the auth process decides.
//!
//! Invariants: nothing is changed by a GET but the browser's own token; nothing that is posted
//! counts without the proof that it is from a form of ours; every answer has the headers that keep
//! other sites and scripts out, and no page is kept by anybody.

mod account;
mod api;
mod at_provider;
mod connect;
mod desk;
mod devices;
pub(crate) mod headers;
mod invitations;
mod posted;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, RawQuery, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION, RETRY_AFTER, SET_COOKIE};
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::middleware;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, get, post};
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::auth_client::AuthClient;
use crate::browser::{Visitor, cookie, form_of, fresh_token, no_cookie, no_draft_cookie, unhex};
use crate::login_turns::LoginTurn;
use crate::pages::{AnswerPage, Frame, LoginPage, MessagePage, OverviewPage, WaitPage, page};
use crate::refusals::{self, Reason};
use headers::scripted;
use posted::{Bare, Posted};
use vpnd_ipc::gateway::portal::devices::DevicesQuery;
use vpnd_ipc::gateway::portal::turns::TurnQuery;
use vpnd_ipc::gateway::portal::{
    Change, EndSession, LogOut, LoginStep, Logo, OverviewQuery, PortalAnswer, PortalApproval, PortalLogin,
    Provider,
};
use vpnd_ipc::gateway::refusal::{Refusal, Refused};
use vpnd_proto::control::{ChallengeAnswer, ChallengeKind, SecretText, UserName};

/// Bytes of a form.
const MAX_BODY_BYTES: usize = 16 << 10;
/// Interval at which the auth process gets the counts of what was refused here.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);
const STYLE: &str = include_str!("../assets/style.css");
const SCRIPT: &str = include_str!("../assets/script.js");
/// The parts that pages are made of.
pub(crate) struct Site {
    auth: AuthClient,
    name: String,
    /// Its media type, and the bytes, which all answers share.
    logo: Option<(String, Bytes)>,
    providers: Vec<Provider>,
}

impl Site {
    pub(crate) fn new(auth: AuthClient, name: String, logo: Option<Logo>, providers: Vec<Provider>) -> Self {
        let logo = logo.map(|Logo { media_type, bytes }| {
            let bytes: Vec<u8> = bytes.into();
            (media_type.to_string(), bytes.into())
        });
        Self { auth, name, logo, providers }
    }

    /// Sends what this process has refused to the auth process, for its counters; never returns.
    pub(crate) async fn report(&self) -> Infallible {
        loop {
            tokio::time::sleep(REPORT_INTERVAL).await;
            if let Some(refused) = refusals::take()
                && self.auth.request(refused).await.is_err()
            {
                tracing::warn!("counts of what the pages have refused are lost");
            }
        }
    }

    fn frame(&self, visitor: &Visitor) -> Frame<'_> {
        let log_out = visitor.token.as_ref().map(form_of);
        Frame { texts: visitor.texts, name: &self.name, logo: self.logo.is_some(), log_out }
    }

    fn message(&self, visitor: &Visitor, status: StatusCode, heading: &str, text: &str) -> Response {
        let next = visitor.texts.start_again;
        page(status, &MessagePage { frame: self.frame(visitor), heading, text, next })
    }

    /// The page at the end of a task; `next` is the text of its link to the first page.
    fn done(&self, visitor: &Visitor, heading: &str, text: &str, next: &str) -> Response {
        page(StatusCode::OK, &MessagePage { frame: self.frame(visitor), heading, text, next })
    }

    /// The auth process has not answered.
    fn failed(&self, visitor: &Visitor) -> Response {
        let texts = visitor.texts;
        self.message(visitor, StatusCode::SERVICE_UNAVAILABLE, texts.failed, texts.failed_text)
    }

    /// A form was not sent from a page of ours that this browser has shown.
    fn not_ours(&self, visitor: &Visitor) -> Response {
        refusals::count(Reason::Form);
        let texts = visitor.texts;
        self.message(visitor, StatusCode::FORBIDDEN, texts.old_form, texts.old_form_text)
    }

    /// The form to log in, for a browser that has this token or gets one.
    fn login_form(
        &self,
        visitor: &Visitor,
        status: StatusCode,
        user: &str,
        problem: Option<String>,
    ) -> Response {
        self.login_page(visitor, status, user, problem, Before::Nothing)
    }

    /// Shows that form to a browser whose user has to be asked for credentials again, and why.
    fn log_in_again(&self, visitor: &Visitor, problem: &str) -> Response {
        self.login_page(visitor, StatusCode::FORBIDDEN, "", Some(problem.to_owned()), Before::Visit)
    }

    fn login_page(
        &self,
        visitor: &Visitor,
        status: StatusCode,
        user: &str,
        problem: Option<String>,
        before: Before,
    ) -> Response {
        let (token, is_new) = match &visitor.token {
            Some(token) => (token.clone(), false),
            None => (fresh_token(), true),
        };
        let form = form_of(&token);
        let (frame, providers) = (self.frame(visitor), &self.providers);
        let (again, has_left) = (before == Before::Visit, before == Before::Logout);
        let login = LoginPage { frame, form, user, problem, providers, again, has_left };
        let response = page(status, &login);
        if is_new { with_cookie(response, &cookie(&token)) } else { response }
    }

    /// The turn of a login, or the page for a person who is to try again.
    async fn login_turn(
        &self,
        visitor: &Visitor,
        user: &str,
        login: TurnQuery,
    ) -> Result<LoginTurn, Response> {
        match self.auth.login_turn(login, visitor.address).await {
            Ok(Some(turn)) => Ok(turn),
            Ok(None) => {
                let problem = Some(visitor.texts.too_many_logins.to_owned());
                Err(self.login_form(visitor, StatusCode::TOO_MANY_REQUESTS, user, problem))
            }
            Err(_) => Err(self.failed(visitor)),
        }
    }

    fn step(&self, visitor: &Visitor, user: &str, step: LoginStep) -> Response {
        match step {
            LoginStep::LoggedIn(token) => with_cookie(to(visitor.home()), &cookie(&token)),
            LoginStep::Demand { token, kind: ChallengeKind::Push, .. } => {
                with_cookie(to("/login/wait"), &cookie(&token))
            }
            LoginStep::Demand { token, kind, text } => {
                let demand = text.as_deref().unwrap_or(visitor.texts.code);
                let shown = text.is_none() || kind == ChallengeKind::Choice;
                let answer = AnswerPage { frame: self.frame(visitor), form: form_of(&token), demand, shown };
                with_cookie(page(StatusCode::OK, &answer), &cookie(&token))
            }
            LoginStep::Refused(refused) => self.refused(visitor, user, refused),
        }
    }

    fn refused(&self, visitor: &Visitor, user: &str, refused: Refused) -> Response {
        let status = match refused.refusal {
            Refusal::Throttled => StatusCode::TOO_MANY_REQUESTS,
            Refusal::Busy
            | Refusal::WaitingFull
            | Refusal::SourceUnavailable
            | Refusal::StoreUnavailable
            | Refusal::Draining => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::FORBIDDEN,
        };
        let problem = visitor.texts.refused(refused);
        let mut response = self.login_form(visitor, status, user, Some(problem));
        if let Some(wait_s) = refused.retry_after_s {
            response.headers_mut().insert(RETRY_AFTER, wait_s.into());
        }
        response
    }
}

/// The state before a login page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    /// One that goes on, and takes credentials of just now.
    Visit,
    Logout,
}

type Route = (&'static str, fn() -> MethodRouter<Arc<Site>>);

/// Addresses of pages; those of the API are in `api`.
const ROUTES: [Route; 41] = [
    ("/", || get(overview)),
    ("/login", || get(login_form).post(log_in)),
    ("/login/answer", || post(answer)),
    ("/login/wait", || get(wait)),
    ("/logout", || post(log_out)),
    ("/oidc/start/{provider}", || get(at_provider::start)),
    ("/oidc/callback/{provider}", || get(at_provider::finish)),
    ("/oidc/logout/{provider}", || post(at_provider::logged_out)),
    ("/connect", || get(connect::question).post(connect::answer)),
    ("/connect/{ticket}", || get(connect::arrive)),
    ("/code", || get(connect::code_form).post(connect::type_code)),
    ("/sessions/end", || post(end_session)),
    ("/browsers/end", || post(account::end_visit)),
    ("/devices", || get(devices::devices)),
    ("/devices/add", || get(devices::form).post(devices::add)),
    ("/profile", || get(devices::profile)),
    ("/devices/end", || post(end_session_of_device)),
    ("/devices/remove", || post(devices::remove)),
    ("/devices/renew", || post(devices::renew)),
    ("/desk", || get(desk::overview)),
    ("/desk/sessions", || get(desk::sessions)),
    ("/desk/again", || get(desk::again)),
    ("/desk/users", || get(desk::users)),
    ("/desk/user", || get(desk::user)),
    ("/desk/kick", || post(desk::kick)),
    ("/desk/disable", || post(desk::disable)),
    ("/desk/enable", || post(desk::enable)),
    ("/desk/reset", || post(desk::reset)),
    ("/desk/extend", || post(desk::extend)),
    ("/desk/revoke", || post(desk::revoke)),
    ("/desk/whois", || post(desk::whois)),
    ("/desk/invite", || post(desk::invite)),
    ("/desk/add", || post(desk::add)),
    ("/invitation/{token}", || get(invitations::open).post(invitations::accept)),
    ("/script.js", || get(script)),
    ("/password", || get(account::password).post(account::change_password)),
    ("/codes", || post(account::codes)),
    ("/codes/take", || post(account::take_codes)),
    ("/codes/remove", || post(account::remove_codes)),
    ("/style.css", || get(style)),
    ("/logo", || get(logo)),
];

/// All addresses.
pub(crate) fn router(site: Arc<Site>) -> Router {
    ROUTES
        .iter()
        .fold(api::router(), |router, (path, route)| router.route(path, route()))
        .fallback(unknown)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::map_response(headers::complete))
        .with_state(site)
}

/// A redirection that is a GET whatever it follows.
fn to(path: &'static str) -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, path)]).into_response()
}

fn with_cookie(mut response: Response, cookie: &str) -> Response {
    if let Ok(value) = HeaderValue::from_str(cookie) {
        response.headers_mut().append(SET_COOKIE, value);
    }
    response
}

async fn style() -> Response {
    ([(CONTENT_TYPE, "text/css; charset=utf-8"), (CACHE_CONTROL, "max-age=300")], STYLE).into_response()
}

async fn script() -> Response {
    ([(CONTENT_TYPE, "text/javascript; charset=utf-8"), (CACHE_CONTROL, "max-age=300")], SCRIPT)
        .into_response()
}

async fn logo(State(site): State<Arc<Site>>, visitor: Visitor) -> Response {
    match &site.logo {
        Some((media_type, bytes)) => {
            let headers = [(CONTENT_TYPE, media_type.clone()), (CACHE_CONTROL, "max-age=300".to_owned())];
            (headers, bytes.clone()).into_response()
        }
        None => nothing(State(site), visitor).await,
    }
}

async fn unknown(site: State<Arc<Site>>, uri: Uri, visitor: Visitor) -> Response {
    if api::is_here(uri.path()) { api::unknown() } else { nothing(site, visitor).await }
}

async fn nothing(State(site): State<Arc<Site>>, visitor: Visitor) -> Response {
    let texts = visitor.texts;
    site.message(&visitor, StatusCode::NOT_FOUND, texts.not_found, texts.not_found_text)
}

async fn overview(State(site): State<Arc<Site>>, visitor: Visitor, RawQuery(query): RawQuery) -> Response {
    let Some(browser) = visitor.browser() else { return to("/login") };
    let form = form_of(&browser.token);
    match site.auth.request(OverviewQuery(browser)).await {
        Ok(Some(overview)) => {
            let notice = match query.as_deref() {
                Some("ended") => Some(visitor.texts.session_ended),
                Some("ended-wireguard") => Some(visitor.texts.devices.session_ended),
                Some("password") => Some(visitor.texts.password_changed),
                Some("codes") => Some(visitor.texts.codes_changed),
                Some("codes-removed") => Some(visitor.texts.codes_removed),
                Some("browsers") => Some(visitor.texts.visits.ended),
                _ => None,
            };
            page(StatusCode::OK, &OverviewPage::new(site.frame(&visitor), form, &overview, notice))
        }
        Ok(None) => to("/login"),
        Err(_) => site.failed(&visitor),
    }
}

async fn login_form(State(site): State<Arc<Site>>, visitor: Visitor, RawQuery(query): RawQuery) -> Response {
    let before = if query.as_deref() == Some("out") { Before::Logout } else { Before::Nothing };
    site.login_page(&visitor, StatusCode::OK, "", None, before)
}

#[derive(Deserialize)]
struct Credentials {
    user: String,
    password: SecretField,
}

#[derive(Deserialize)]
struct Answer {
    answer: SecretField,
}

#[derive(Deserialize)]
struct OfSession {
    #[serde(default)]
    device: String,
}

/// A field that is erased.
#[derive(Default, Deserialize)]
#[serde(from = "String")]
struct SecretField(Zeroizing<String>);

impl From<String> for SecretField {
    fn from(text: String) -> Self {
        Self(Zeroizing::new(text))
    }
}

async fn log_in(
    State(site): State<Arc<Site>>,
    Posted { visitor, browser, fields: Credentials { user, password } }: Posted<Credentials>,
) -> Response {
    let wrong = || LoginStep::Refused(Refusal::Credentials.into());
    let (Ok(name), Ok(password)) = (UserName::new(user.as_str()), SecretText::new(password.0.as_str()))
    else {
        return site.step(&visitor, &user, wrong());
    };
    let turn = match site.login_turn(&visitor, &user, TurnQuery::User(name.clone())).await {
        Ok(turn) => turn,
        Err(refused) => return refused,
    };
    let login = PortalLogin { user: name, password, address: visitor.address };
    match site.auth.request_in_turn(login, turn).await {
        Ok(step) => {
            // The browser forgets that token, and a copy of it must not be good any longer.
            if !matches!(step, LoginStep::Refused(_)) && site.auth.request(LogOut(browser)).await.is_err() {
                return site.failed(&visitor);
            }
            site.step(&visitor, &user, step)
        }
        Err(_) => site.failed(&visitor),
    }
}

async fn answer(
    State(site): State<Arc<Site>>,
    Posted { visitor, browser, fields: Answer { answer } }: Posted<Answer>,
) -> Response {
    let Ok(answer) = ChallengeAnswer::new(answer.0.as_str()) else {
        return site.refused(&visitor, "", Refusal::Credentials.into());
    };
    let turn = match site.login_turn(&visitor, "", TurnQuery::Answer(browser.clone())).await {
        Ok(turn) => turn,
        Err(refused) => return refused,
    };
    match site.auth.request_in_turn(PortalAnswer { browser, answer }, turn).await {
        Ok(step) => site.step(&visitor, "", step),
        Err(_) => site.failed(&visitor),
    }
}

async fn wait(State(site): State<Arc<Site>>, visitor: Visitor) -> Response {
    let Some(browser) = visitor.browser() else { return to("/login") };
    match site.auth.request(PortalApproval(browser)).await {
        Ok(Some(step)) => site.step(&visitor, "", step),
        Ok(None) => scripted(page(StatusCode::OK, &WaitPage { frame: site.frame(&visitor) })),
        Err(_) => site.failed(&visitor),
    }
}

async fn log_out(State(site): State<Arc<Site>>, Posted { visitor, browser, .. }: Posted<Bare>) -> Response {
    match site.auth.request(LogOut(browser)).await {
        Ok(()) => {
            let left = headers::cleared(with_cookie(to("/login?out"), &no_cookie()));
            if visitor.draft.is_some() { with_cookie(left, &no_draft_cookie()) } else { left }
        }
        Err(_) => site.failed(&visitor),
    }
}

async fn end_session(site: State<Arc<Site>>, session: Posted<OfSession>) -> Response {
    end(site, session, ["/?ended", "/?ended-wireguard"]).await
}

async fn end_session_of_device(site: State<Arc<Site>>, session: Posted<OfSession>) -> Response {
    end(site, session, ["/devices?ended", "/devices?ended-wireguard"]).await
}

async fn end(
    State(site): State<Arc<Site>>,
    Posted { visitor, browser, fields: OfSession { device } }: Posted<OfSession>,
    [then, then_wireguard]: [&'static str; 2],
) -> Response {
    let Some(device) = unhex::<16>(&device) else { return nothing(State(site), visitor).await };
    let own = match site.auth.request(DevicesQuery(browser.clone())).await {
        Ok(own) => own,
        Err(_) => return site.failed(&visitor),
    };
    let mut devices = own.iter().flat_map(|own| own.devices.iter());
    let is_wireguard = devices.any(|own| *own.device == device && own.wireguard.is_some());
    match site.auth.request(EndSession { browser, device: device.into() }).await {
        Ok(Change::Done) => to(if is_wireguard { then_wireguard } else { then }),
        Ok(Change::NotThere) => nothing(State(site), visitor).await,
        Ok(Change::NoVisit) => to("/login"),
        Err(_) => site.failed(&visitor),
    }
}

/// Parsers of our own, for the fuzzer.
#[cfg(any(test, fuzzing))]
pub(crate) mod reading {
    pub(crate) use super::api::bearer;
    pub(crate) use super::at_provider::read as brought;
    pub(crate) use super::desk::parameter;

    /// Every address that there is, with something in the place of each variable, and one that
    /// there is not.
    pub(crate) fn addresses() -> std::collections::BTreeSet<String> {
        let pages = super::ROUTES.iter().map(|(path, _)| (*path).to_owned());
        let all = pages.chain(super::api::addresses()).chain(["/nothing".to_owned()]);
        let filled = |part: &str| if part.starts_with('{') { "x".to_owned() } else { part.to_owned() };
        all.map(|path| path.split('/').map(filled).collect::<Vec<_>>().join("/")).collect()
    }
}

#[cfg(test)]
mod tests;
