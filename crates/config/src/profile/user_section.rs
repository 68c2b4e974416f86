//! `[user]` of a profile.

use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;
use zeroize::Zeroizing;

use super::{ClientIdentity, LOGIN_NAME_RULE, Problems, check_certificates, is_login_name};
use crate::document::Section;

/// The name, whether to ask for a one-time code, whether the login is in a browser, the certificate.
pub(super) fn read(
    s: &mut Section<'_>,
    p: &mut Problems,
) -> (Option<String>, bool, bool, Option<ClientIdentity>) {
    let name = s.text(p, "name");
    if let Some(name) = name.as_ref().filter(|name| !is_login_name(name)) {
        s.problem(p, "name", format!("'name' in [user] must be {LOGIN_NAME_RULE}, not {name:?}"));
    }
    let totp = s.flag(p, "totp", false);
    let browser = s.flag(p, "browser", false);
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
    (name, totp, browser, identity)
}
