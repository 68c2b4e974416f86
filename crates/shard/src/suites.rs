//! Which cipher suites this process may use, and which implementation is fastest on this machine.

use tracing::{error, info};
use vpnd_crypto::backend::{self, Unsupported};
use vpnd_crypto::{Backend, Choice, Preference, Suite};
use vpnd_proto::session::LocalSuite;

#[derive(Debug, thiserror::Error)]
pub enum SuitesError {
    /// A suite without protection, and the process was not started for it.
    #[error(
        "the suite `{0}` is for the laboratory and protects nothing or too little: leave it out, or start both \
         ends with --insecure-lab if that is what you want to measure"
    )]
    LabOnly(Suite),
    /// The requested backend lacks a suite.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
}

/// Measures the implementations of `wanted` and logs the choice once. If it is empty, these are all
/// standard suites that the preferred backend has, if it has any.
///
/// # Errors
/// If a suite is for the laboratory only and `lab` is not set, or no admitted backend has it.
pub fn measure(wanted: &[Suite], preference: Preference, lab: bool) -> Result<Vec<LocalSuite>, SuitesError> {
    let wanted = if wanted.is_empty() { all_of(preference) } else { wanted.to_vec() };
    let mut suites = Vec::with_capacity(wanted.len());
    for suite in wanted {
        if suite.is_lab_only() && !lab {
            return Err(SuitesError::LabOnly(suite));
        }
        let choice = backend::choose(suite, preference)?;
        announce(&choice);
        suites.push(LocalSuite { suite, backend: choice.backend, mbps: choice.speed() });
    }
    Ok(suites)
}

/// The implementation of the one cipher that WireGuard has: the one that was measured for sessions
/// of our own, or what `preference` takes, or the fastest where that has none of it.
pub fn for_wireguard(measured: &[LocalSuite], preference: Preference) -> Backend {
    let suite = Suite::ChaCha20Poly1305;
    if let Some(local) = measured.iter().find(|local| local.suite == suite) {
        return local.backend;
    }
    let chosen = backend::choose(suite, preference).or_else(|_| backend::choose(suite, Preference::Auto));
    let choice = chosen.expect("every library has the cipher of WireGuard");
    announce(&choice);
    choice.backend
}

/// Logs the choice, and what was not trusted.
fn announce(choice: &Choice) {
    let suite = choice.suite;
    info!(%choice, "cipher suite");
    for backend in choice.distrusted() {
        error!(%suite, %backend, "seals otherwise than a library on this processor and is not used: report it, and test the machine");
    }
}

/// The standard suites that this backend has; all of them if it has none, so that one can be named
/// in the error.
fn all_of(preference: Preference) -> Vec<Suite> {
    let has = |suite: &Suite| {
        Backend::ALL.into_iter().any(|backend| preference.admits(backend) && backend.supports(*suite))
    };
    let suites: Vec<Suite> = Suite::STANDARD.into_iter().filter(has).collect();
    if suites.is_empty() { Suite::STANDARD.to_vec() } else { suites }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laboratory_suites_need_the_switch() {
        let refused = measure(&[Suite::Aes256Gcm, Suite::Null], Preference::Auto, false);
        assert!(matches!(refused, Err(SuitesError::LabOnly(Suite::Null))));
        assert_eq!(measure(&[Suite::Null], Preference::Auto, true).unwrap()[0].suite, Suite::Null);
    }

    #[test]
    fn no_wish_means_all_standard_suites() {
        let suites = measure(&[], Preference::Fixed(Backend::RustCrypto), false).unwrap();
        assert_eq!(suites.iter().map(|s| s.suite).collect::<Vec<_>>(), Suite::STANDARD);
        assert!(suites.iter().all(|s| s.backend == Backend::RustCrypto && s.mbps > 0));
    }

    #[test]
    fn the_cipher_of_wireguard_is_chosen_like_the_others() {
        let chacha = |backend| LocalSuite { suite: Suite::ChaCha20Poly1305, backend, mbps: 1 };
        let aes = LocalSuite { suite: Suite::Aes256Gcm, backend: Backend::AwsLc, mbps: 1 };
        // A backend that was measured once is not measured again.
        assert_eq!(for_wireguard(&[aes, chacha(Backend::RustCrypto)], Preference::Auto), Backend::RustCrypto);
        for library in Backend::LIBRARIES {
            assert_eq!(for_wireguard(&[aes], Preference::Fixed(library)), library);
        }
        assert!(Backend::LIBRARIES.contains(&for_wireguard(&[aes], Preference::Library)));
        let has_cipher = |backend: Backend| backend.supports(Suite::ChaCha20Poly1305);
        assert!(has_cipher(for_wireguard(&[], Preference::Vaes)), "AES-GCM alone");
        assert!(has_cipher(for_wireguard(&[], Preference::Auto)));
        let ifma = for_wireguard(&[], Preference::Fixed(Backend::Ifma));
        assert!(has_cipher(ifma) && (ifma == Backend::Ifma || !has_cipher(Backend::Ifma)));
    }

    #[test]
    fn a_backend_without_all_suites_offers_those_that_it_has() {
        let preference = Preference::Vaes;
        let offered = measure(&[], preference, false);
        if [Backend::Vaes256, Backend::Vaes512].iter().any(|own| own.supports(Suite::Aes256Gcm)) {
            let offered: Vec<_> = offered.unwrap().iter().map(|s| s.suite).collect();
            assert_eq!(offered, [Suite::Aes128Gcm, Suite::Aes256Gcm]);
        } else {
            assert!(matches!(offered, Err(SuitesError::Unsupported(_))));
        }
        assert!(measure(&[Suite::ChaCha20Poly1305], preference, false).is_err());
    }
}
