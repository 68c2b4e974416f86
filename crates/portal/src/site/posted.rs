//! Forms that browsers post.
//!
//! INVARIANT: [`Posted`] is the one way to the fields of a form that changes something, but for the
//! answer to a client, whose form is about one ticket. So nothing counts without the proof that the
//! form is ours, and that this browser has sent it.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Form, FromRequest, FromRequestParts as _, Request};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Site;
use crate::browser::Visitor;
use vpnd_ipc::gateway::portal::Browser;

/// A form of ours with these fields, and the browser that has sent it.
pub(super) struct Posted<T> {
    pub(super) visitor: Visitor,
    pub(super) browser: Browser,
    pub(super) fields: T,
}

/// A form with nothing to fill in.
#[derive(Deserialize)]
pub(super) struct Bare {}

impl<T: DeserializeOwned> FromRequest<Arc<Site>> for Posted<T> {
    type Rejection = Response;

    async fn from_request(request: Request, site: &Arc<Site>) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let visitor = Visitor::from_request_parts(&mut parts, site).await;
        let visitor = visitor.map_err(|status| status.into_response())?;
        let again = parts.clone();
        let body = Bytes::from_request(Request::from_parts(parts, body), site).await;
        let body = body.map_err(|error| error.into_response())?;
        let proof = form_urlencoded::parse(&body).find(|(name, _)| name == "form");
        let is_ours = proof.is_some_and(|(_, form)| visitor.has_sent(&form));
        let (true, Some(browser)) = (is_ours, visitor.browser()) else {
            return Err(site.not_ours(&visitor));
        };
        let fields = Form::<T>::from_request(Request::from_parts(again, Body::from(body)), site).await;
        let Form(fields) = fields.map_err(|error| error.into_response())?;
        Ok(Self { visitor, browser, fields })
    }
}
