//! The pages on which users see, add, renew and remove their devices, and the profile for vpnd's
//! own client.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;

use super::headers::scripted;
use super::posted::Posted;
use super::{OfSession, Site, nothing, to};
use crate::browser::{Visitor, form_of, unbase64, unhex};
use crate::pages::devices::{AddDevicePage, AddedDevicePage, DevicesPage};
use crate::pages::page;
use vpnd_ipc::gateway::portal::Change;
use vpnd_ipc::gateway::portal::devices::{
    AddDevice, DeviceChange, DevicesQuery, OwnProfile, ProfileQuery, RemoveDevice, RenewDevice,
};
use vpnd_proto::control::Text;

/// The device that is to be added.
#[derive(Deserialize)]
pub(super) struct NewDevice {
    #[serde(default)]
    name: String,
    #[serde(default)]
    public_key: String,
}

pub(super) async fn devices(
    State(site): State<Arc<Site>>,
    visitor: Visitor,
    RawQuery(query): RawQuery,
) -> Response {
    let Some(browser) = visitor.browser() else { return to("/login") };
    let form = form_of(&browser.token);
    match site.auth.request(DevicesQuery(browser)).await {
        Ok(Some(devices)) => {
            let texts = visitor.texts;
            let notice = match query.as_deref() {
                Some("ended") => Some(texts.session_ended),
                Some("ended-wireguard") => Some(texts.devices.session_ended),
                Some("removed") => Some(texts.devices.removed),
                Some("renewed") => Some(texts.devices.was_renewed),
                _ => None,
            };
            page(StatusCode::OK, &DevicesPage::new(site.frame(&visitor), form, &devices, notice))
        }
        Ok(None) => to("/login"),
        Err(_) => site.failed(&visitor),
    }
}

pub(super) async fn remove(
    State(site): State<Arc<Site>>,
    Posted { visitor, browser, fields: OfSession { device } }: Posted<OfSession>,
) -> Response {
    let Some(device) = unhex::<16>(&device) else { return nothing(State(site), visitor).await };
    match site.auth.request(RemoveDevice { browser, device: device.into() }).await {
        Ok(Change::Done) => to("/devices?removed"),
        Ok(Change::NotThere) => nothing(State(site), visitor).await,
        Ok(Change::NoVisit) => to("/login"),
        Err(_) => site.failed(&visitor),
    }
}

pub(super) async fn renew(
    State(site): State<Arc<Site>>,
    Posted { visitor, browser, fields: OfSession { device } }: Posted<OfSession>,
) -> Response {
    let Some(device) = unhex::<16>(&device) else { return nothing(State(site), visitor).await };
    match site.auth.request(RenewDevice { browser, device: device.into() }).await {
        Ok(DeviceChange::Renewed) => to("/devices?renewed"),
        Ok(change) => changed(&site, visitor, "", change).await,
        Err(_) => site.failed(&visitor),
    }
}

pub(super) async fn form(State(site): State<Arc<Site>>, visitor: Visitor) -> Response {
    add_form(&site, &visitor, StatusCode::OK, "", None).await
}

/// All ways to add a device, the one for the browser's system first.
async fn add_form(
    site: &Site,
    visitor: &Visitor,
    status: StatusCode,
    name: &str,
    problem: Option<&str>,
) -> Response {
    let Some(browser) = visitor.browser() else { return to("/login") };
    let form = form_of(&browser.token);
    match site.auth.request(DevicesQuery(browser)).await {
        Ok(Some(devices)) => {
            let shown = page(
                status,
                &AddDevicePage {
                    frame: site.frame(visitor),
                    form,
                    name,
                    problem,
                    wireguard: devices.wireguard,
                    profile: devices.profile,
                    system: visitor.kind.system,
                },
            );
            if devices.wireguard { scripted(shown) } else { shown }
        }
        Ok(None) => to("/login"),
        Err(_) => site.failed(visitor),
    }
}

/// The profile for vpnd's own client, as a file.
pub(super) async fn profile(State(site): State<Arc<Site>>, visitor: Visitor) -> Response {
    let Some(browser) = visitor.browser() else { return to("/login") };
    match site.auth.request(ProfileQuery(browser)).await {
        Ok(OwnProfile::File(text)) => {
            let headers = [
                (CONTENT_TYPE, "text/plain; charset=utf-8"),
                (CONTENT_DISPOSITION, "attachment; filename=\"vpn.toml\""),
            ];
            (headers, text.to_string()).into_response()
        }
        Ok(OwnProfile::NotThere) => nothing(State(site), visitor).await,
        Ok(OwnProfile::NoVisit) => to("/login"),
        Err(_) => site.failed(&visitor),
    }
}

pub(super) async fn add(
    State(site): State<Arc<Site>>,
    Posted { visitor, browser, fields: NewDevice { name, public_key } }: Posted<NewDevice>,
) -> Response {
    let (Some(key), Ok(typed)) = (unbase64::<32>(public_key.trim()), Text::new(name.trim())) else {
        return changed(&site, visitor, &name, DeviceChange::Unusable).await;
    };
    match site.auth.request(AddDevice { browser, public_key: key.into(), name: typed }).await {
        Ok(change) => changed(&site, visitor, &name, change).await,
        Err(_) => site.failed(&visitor),
    }
}

async fn changed(site: &Site, visitor: Visitor, name: &str, change: DeviceChange) -> Response {
    let texts = visitor.texts;
    match change {
        DeviceChange::Renewed => to("/devices?renewed"),
        DeviceChange::NoVisit => to("/login"),
        DeviceChange::Added(configuration) => {
            let frame = site.frame(&visitor);
            scripted(page(StatusCode::OK, &AddedDevicePage { frame, configuration: &configuration }))
        }
        DeviceChange::LogInAgain => {
            site.message(&visitor, StatusCode::FORBIDDEN, texts.log_in_again, texts.devices.log_in_again)
        }
        DeviceChange::NotAllowed => {
            site.message(&visitor, StatusCode::FORBIDDEN, texts.devices.add, texts.devices.not_allowed)
        }
        DeviceChange::NotThere => {
            site.message(&visitor, StatusCode::NOT_FOUND, texts.not_found, texts.not_found_text)
        }
        DeviceChange::Unusable => {
            add_form(site, &visitor, StatusCode::CONFLICT, name, Some(texts.devices.unusable)).await
        }
        DeviceChange::Full => {
            add_form(site, &visitor, StatusCode::CONFLICT, name, Some(texts.devices.full)).await
        }
        DeviceChange::TooMany => {
            add_form(site, &visitor, StatusCode::CONFLICT, name, Some(texts.devices.too_many)).await
        }
        DeviceChange::TooManyRoutes => {
            let problem = Some(texts.devices.too_many_routes);
            add_form(site, &visitor, StatusCode::UNPROCESSABLE_ENTITY, name, problem).await
        }
        DeviceChange::TooOften => {
            let problem = Some(texts.devices.too_often);
            add_form(site, &visitor, StatusCode::TOO_MANY_REQUESTS, name, problem).await
        }
    }
}
