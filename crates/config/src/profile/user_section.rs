//! `[user]` of a profile.

use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;
use zeroize::Zeroizing;

use super::{ClientIdentity, LOGIN_NAME_RULE, Problems, check_certificates, is_login_name};
use crate::document::Section;

/// `[user]`, as in [`super::Profile`].
pub(super) struct UserSection {
    pub(super) name: Option<String>,
    pub(super) totp: bool,
    pub(super) browser: bool,
    pub(super) machine: bool,
    pub(super) identity: Option<ClientIdentity>,
}

pub(super) fn read(s: &mut Section<'_>, p: &mut Problems) -> UserSection {
    let name = s.text(p, "name");
    if let Some(name) = name.as_ref().filter(|name| !is_login_name(name)) {
        s.problem(p, "name", format!("'name' in [user] must be {LOGIN_NAME_RULE}, not {name:?}"));
    }
    let totp = s.flag(p, "totp", false);
    let browser = s.flag(p, "browser", false);
    let machine = s.flag(p, "machine", false);
    if machine {
        for key in ["name", "certificate"] {
            if !s.has(key) {
                s.missing(p, key, "a machine logs in by its name and its certificate, without a person");
            }
        }
        if totp || browser {
            let message = "'machine' in [user] contradicts 'totp' and 'browser', which need a person";
            s.problem(p, "machine", message.to_owned());
        }
    }
    let identity = match (s.text(p, "certificate"), s.text(p, "key").map(Zeroizing::new)) {
        (Some(certificate_pem), Some(key_pem)) => {
            check_certificates(s, p, "certificate", &certificate_pem);
            if PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).is_err() {
                s.problem(p, "key", "'key' in [user] must be a private key as PEM text".to_owned());
            }
            Some(ClientIdentity { certificate_pem, key_pem })
        }
        (None, None) => None,
        (Some(_), None) => {
            s.missing(p, "key", "the private key of 'certificate', as PEM text");
            None
        }
        (None, Some(_)) => {
            s.missing(p, "certificate", "the certificate of 'key', as PEM text");
            None
        }
    };
    UserSection { name, totp, browser, machine, identity }
}
