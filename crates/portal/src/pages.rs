//! Pages: what is shown, in the language of the reader.
//!
//! INVARIANT: all that is not ours is escaped by the templates.

pub(crate) mod connect;
pub(crate) mod desk;
pub(crate) mod devices;

use askama::Template;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use qrcode::render::svg;
use qrcode::{EcLevel, QrCode};

use crate::browser::hex;
use crate::texts::Texts;
use vpnd_ipc::gateway::portal::visits::OwnVisit;
use vpnd_ipc::gateway::portal::{Overview, OwnSession, Provider};

/// Data of all pages.
pub(crate) struct Frame<'p> {
    pub(crate) texts: &'static Texts,
    /// The name of the service.
    pub(crate) name: &'p str,
    pub(crate) logo: bool,
    /// The form to log out, for a browser that may have logged in.
    pub(crate) log_out: Option<String>,
}

#[derive(Template)]
#[template(path = "login.html")]
pub(crate) struct LoginPage<'p> {
    pub(crate) frame: Frame<'p>,
    pub(crate) form: String,
    /// The name as it was typed before.
    pub(crate) user: &'p str,
    pub(crate) problem: Option<String>,
    /// Where else one can log in.
    pub(crate) providers: &'p [Provider],
    /// Whether a provider is to ask for credentials, whatever it knows of the browser.
    pub(crate) again: bool,
    /// Whether the person has just logged out.
    pub(crate) has_left: bool,
}

#[derive(Template)]
#[template(path = "answer.html")]
pub(crate) struct AnswerPage<'p> {
    pub(crate) frame: Frame<'p>,
    pub(crate) form: String,
    pub(crate) demand: &'p str,
    /// Whether others may see the answer.
    pub(crate) shown: bool,
}

#[derive(Template)]
#[template(path = "wait.html")]
pub(crate) struct WaitPage<'p> {
    pub(crate) frame: Frame<'p>,
}

#[derive(Template)]
#[template(path = "overview.html")]
pub(crate) struct OverviewPage<'p> {
    frame: Frame<'p>,
    form: String,
    notice: Option<&'p str>,
    user: &'p str,
    until: String,
    sessions: Vec<ShownSession>,
    visits: Vec<ShownVisit>,
    codes: Option<bool>,
    password: bool,
    desk: bool,
}

/// A session, in words.
struct ShownSession {
    device: String,
    since: String,
    from: String,
    addresses: String,
}

/// A browser in which the user is logged in, in words.
struct ShownVisit {
    number: String,
    is_this: bool,
    browser: String,
    since: String,
    used: String,
    from: String,
}

#[derive(Template)]
#[template(path = "password.html")]
pub(crate) struct PasswordPage<'p> {
    pub(crate) frame: Frame<'p>,
    pub(crate) form: String,
    pub(crate) problem: Option<String>,
}

#[derive(Template)]
#[template(path = "codes.html")]
pub(crate) struct CodesPage<'p> {
    frame: Frame<'p>,
    form: String,
    problem: Option<&'p str>,
    image: String,
    secret: &'p str,
    /// Whether the user may do without.
    removable: bool,
}

#[derive(Template)]
#[template(path = "invitation.html")]
pub(crate) struct InvitationPage<'p> {
    frame: Frame<'p>,
    form: String,
    problem: Option<&'p str>,
    user: &'p str,
    /// Whether the user chooses one.
    password: bool,
    image: String,
    secret: &'p str,
}

impl<'p> InvitationPage<'p> {
    /// `None` if the address does not fit into a code.
    pub(crate) fn new(
        frame: Frame<'p>,
        form: String,
        problem: Option<&'p str>,
        (user, password): (&'p str, bool),
        (address, secret): (&str, &'p str),
    ) -> Option<Self> {
        Some(Self { frame, form, problem, user, password, image: qr_image(address)?, secret })
    }
}

/// A drawing of a QR code, made of squares alone.
fn qr_image(text: &str) -> Option<String> {
    let code = QrCode::with_error_correction_level(text, EcLevel::M).ok()?;
    let image = code.render::<svg::Color<'_>>().min_dimensions(200, 200).build();
    // Without the line that only a file has.
    image.find("<svg").map(|start| image[start..].to_owned())
}

impl<'p> CodesPage<'p> {
    /// `None` if the address does not fit into a code.
    pub(crate) fn new(
        frame: Frame<'p>,
        form: String,
        problem: Option<&'p str>,
        (address, secret): (&str, &'p str),
        removable: bool,
    ) -> Option<Self> {
        Some(Self { frame, form, problem, image: qr_image(address)?, secret, removable })
    }
}

#[derive(Template)]
#[template(path = "message.html")]
pub(crate) struct MessagePage<'p> {
    pub(crate) frame: Frame<'p>,
    pub(crate) heading: &'p str,
    pub(crate) text: &'p str,
    /// The text of the link to the first page.
    pub(crate) next: &'p str,
}

impl<'p> OverviewPage<'p> {
    pub(crate) fn new(
        frame: Frame<'p>,
        form: String,
        overview: &'p Overview,
        notice: Option<&'p str>,
    ) -> Self {
        let texts = frame.texts;
        let shown = |session: &OwnSession| ShownSession {
            device: hex(&*session.device),
            since: (texts.ago)(session.age_s),
            from: session.from.map_or_else(|| texts.not_known.to_owned(), |from| from.to_string()),
            addresses: session.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        };
        let visit = |visit: &OwnVisit| ShownVisit {
            number: hex(&*visit.number),
            is_this: visit.is_this,
            browser: (texts.visits.browser)(visit.kind),
            since: (texts.ago)(visit.age_s),
            used: (texts.earlier)(visit.unused_s),
            from: visit.from.to_string(),
        };
        Self {
            form,
            notice,
            user: &overview.user,
            until: (texts.until)(overview.left_s),
            sessions: overview.sessions.iter().map(shown).collect(),
            visits: overview.visits.iter().map(visit).collect(),
            codes: overview.codes,
            password: overview.password,
            desk: overview.desk,
            frame,
        }
    }
}

/// The answer with this page.
pub(crate) fn page(status: StatusCode, page: &impl Template) -> Response {
    match page.render() {
        Ok(text) => (status, [(CONTENT_TYPE, "text/html; charset=utf-8")], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "a page can't be shown");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

#[cfg(test)]
pub(crate) mod gallery;
