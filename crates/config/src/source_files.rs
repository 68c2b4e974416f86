//! The files that a source of identities names, read as its process reads them before it shuts
//! itself in.
//!
//! INVARIANT: nothing is sent anywhere, and no secret is kept. A credential of the service manager
//! is there in its unit alone, so it is not looked for.

use std::path::Path;

use crate::secret_place;
use crate::source::{Bind, SecretPlace, Source, SourceKind, Transport};
use crate::source_tls::SourceTls;

/// Why a source can't be asked because of its files: the key of the configuration and the reason.
pub fn faults(source: &Source) -> Vec<(&'static str, String)> {
    let mut faults = Vec::new();
    let mut add = |key: &'static str, result: anyhow::Result<()>| {
        if let Err(error) = result {
            faults.push((key, vpnd_sys::text::format_chain(&error)));
        }
    };
    match &source.kind {
        SourceKind::Ldap(ldap) => {
            add("ca", authorities(ldap.ca.as_deref()));
            if let Bind::Service { password, .. } = &ldap.bind {
                add("bind_password_file", secret(password));
            }
        }
        SourceKind::Oidc(oidc) => {
            add("ca", authorities(oidc.ca.as_deref()));
            add("client_secret_file", secret(&oidc.secret));
        }
        SourceKind::Radius(radius) => {
            match &radius.transport {
                Transport::Udp(place) => add("secret_file", secret(place)),
                Transport::Tls(tls) if is_here(tls.identity.as_ref().map(|(_, key)| key)) => {
                    add("ca", SourceTls::radius(tls).map(drop));
                }
                Transport::Tls(tls) => add("ca", authorities(tls.ca.as_deref())),
            }
            if let Some(dynamic) = &radius.dynamic {
                add("coa_secret_file", secret(&dynamic.secret));
            }
        }
    }
    faults
}

fn is_here(place: Option<&SecretPlace>) -> bool {
    place.is_none_or(|place| place.file().is_some())
}

fn secret(place: &SecretPlace) -> anyhow::Result<()> {
    if is_here(Some(place)) { secret_place::read(place).map(drop) } else { Ok(()) }
}

fn authorities(ca: Option<&Path>) -> anyhow::Result<()> {
    SourceTls::trusting(ca).map(drop)
}
