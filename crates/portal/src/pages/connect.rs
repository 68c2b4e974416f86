//! The page that asks whether a device may connect.

use std::net::IpAddr;

use askama::Template;

use super::Frame;

#[derive(Template)]
#[template(path = "connect.html")]
pub(crate) struct ConnectPage<'p> {
    pub(crate) frame: Frame<'p>,
    pub(crate) form: String,
    /// As the client says it.
    pub(crate) name: &'p str,
    pub(crate) from: IpAddr,
    pub(crate) user: &'p str,
    pub(crate) source: &'p str,
}
