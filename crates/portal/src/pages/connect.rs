//! The pages that ask whether a device may connect, and for the code of one.

use std::net::IpAddr;

use askama::Template;

use super::Frame;

#[derive(Template)]
#[template(path = "connect.html")]
pub(crate) struct ConnectPage<'p> {
    pub(crate) frame: Frame<'p>,
    pub(crate) form: String,
    /// The client's own statement.
    pub(crate) name: &'p str,
    pub(crate) from: IpAddr,
    pub(crate) user: &'p str,
    pub(crate) source: &'p str,
}

#[derive(Template)]
#[template(path = "code.html")]
pub(crate) struct CodePage<'p> {
    pub(crate) frame: Frame<'p>,
    pub(crate) form: String,
    pub(crate) problem: Option<String>,
}

/// The question about a device whose code the person has typed, perhaps because a stranger has them
/// do so: it shows what to compare, and says what a yes gives away (RFC 8628 section 5.4).
#[derive(Template)]
#[template(path = "by_code.html")]
pub(crate) struct ByCodePage<'p> {
    pub(crate) frame: Frame<'p>,
    pub(crate) form: String,
    /// The client's own statement.
    pub(crate) name: &'p str,
    pub(crate) from: IpAddr,
    /// When it has begun to ask.
    pub(crate) since: String,
    /// The browser's address, if that is in another network.
    pub(crate) elsewhere: Option<IpAddr>,
    pub(crate) user: &'p str,
    pub(crate) source: &'p str,
}
