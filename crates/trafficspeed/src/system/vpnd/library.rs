//! The library of vpnd's ciphers, which is the same in all of a run: by itself vpnd takes whichever
//! happened to be faster when it started, and one line of a report would mix two.

use super::{VAES, Vpnd};
use crate::system::program::Programs;
use crate::system::{Cipher, Kind, Subject};

/// The libraries that have all suites which it offers by itself.
const LIBRARIES: [&str; 3] = ["ring", "aws-lc", "rustcrypto"];

/// The name by which the choice of a library for a suite is remembered.
pub(super) fn library_of(suite: &str) -> String {
    format!("vpnd's library of {suite}")
}

/// Has vpnd use for a suite the library that `cipher` names behind it, as `aes-256-gcm (ring)`, in
/// all that is measured from now on.
pub fn use_library(programs: &Programs, cipher: &str) {
    if let Some((suite, library)) = named_library(cipher) {
        programs.first_choice(library_of(suite), library.to_owned());
    }
}

/// Has a system go on with the suite and the library that it used before, if it is vpnd and chose
/// them.
pub fn keep_choice(programs: &Programs, subject: Subject, cipher: &str) {
    let Some((suite, _)) = named_library(cipher).filter(|_| subject.kind.family() == Kind::Vpnd) else {
        return;
    };
    let backend = (subject.kind == Kind::VpndVaes).then(|| VAES.to_owned());
    let vpnd = Vpnd { backend, ..Vpnd::of(programs, subject) };
    if subject.cipher == Cipher::Auto {
        programs.first_choice(vpnd.chooser(), suite.to_owned());
    }
    if vpnd.backend.is_none() {
        use_library(programs, cipher);
    }
}

/// The suite and the library of a cipher in vpnd's words; `None` of several.
pub fn named_library(cipher: &str) -> Option<(&str, &str)> {
    let (suite, library) = cipher.strip_suffix(')')?.split_once(" (")?;
    (!library.contains(['(', ','])).then_some((suite, library))
}

impl Vpnd {
    /// The name by which its choice of a suite is remembered.
    pub(super) fn chooser(&self) -> String {
        format!("vpnd {:?} {:?}", self.code, self.backend)
    }

    /// Has it use the suite and the library that it chose before.
    pub(super) fn pin_library(&mut self) {
        self.suite = self.suite.take().or_else(|| self.programs.choice(&self.chooser()));
        if self.backend.is_none() {
            let suite = self.suite.as_deref();
            self.backend = suite.and_then(|suite| self.programs.choice(&library_of(suite)));
        }
    }

    /// The one suite that the gateway offers, if not all: that of its cipher, or the one that it
    /// chose where the library behind it has no others and cannot be named with them.
    pub(super) fn only_suite(&self) -> Option<&str> {
        let has_all = self.backend.as_deref().is_none_or(|library| LIBRARIES.contains(&library));
        self.suite.as_deref().filter(|_| self.cipher != Cipher::Auto || !has_all)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::status::Status;
    use super::*;

    #[test]
    fn both_ends_keep_vpnds_own_aes_gcm() {
        let text = r#"{"suites":[{"suite":"aes-256-gcm","backend":"vaes-512","mbps":9},
            {"suite":"chacha20-poly1305","backend":"ring","mbps":5}]}"#;
        let programs = Programs::default();
        let mut first = Vpnd::new(programs.clone(), Cipher::Auto);
        first.choose_suite(serde_json::from_str::<Status>(text).unwrap());
        let mut second = Vpnd::new(programs, Cipher::Auto);
        second.pin_library();
        let config = second.config("", Path::new("/s")).unwrap();
        assert!(config.contains("backend = \"vaes-512\""), "{config}");
        assert!(config.contains("suites = [\"aes-256-gcm\"]"), "{config}");
        for vpnd in [first, second] {
            let client = (vpnd.suite.as_deref(), vpnd.backend.as_deref());
            assert_eq!(client, (Some("aes-256-gcm"), Some("vaes-512")));
        }
    }

    #[test]
    fn a_suite_keeps_the_library_that_was_chosen_first() {
        let status = |library: &str| -> Status {
            let text =
                format!(r#"{{"suites":[{{"suite":"chacha20-poly1305","backend":"{library}","mbps":9}}]}}"#);
            serde_json::from_str(&text).unwrap()
        };
        for cipher in [Cipher::ChaCha20Poly1305, Cipher::Auto] {
            let programs = Programs::default();
            let start = |library: &str| {
                let mut vpnd = Vpnd::new(programs.clone(), cipher);
                vpnd.pin_library();
                let config = vpnd.config("", Path::new("/s")).unwrap();
                vpnd.choose_suite(status(library));
                (config.contains("backend = \"ring\""), vpnd.backend)
            };
            assert_eq!(start("ring"), (false, Some("ring".into())), "its own choice");
            assert_eq!(start("aws-lc"), (true, Some("ring".into())));
        }
        let programs = Programs::default();
        use_library(&programs, "aes-256-gcm (vaes-512)");
        let pinned = |cipher| {
            let mut vpnd = Vpnd::new(programs.clone(), cipher);
            vpnd.pin_library();
            vpnd.backend
        };
        assert_eq!(pinned(Cipher::Aes256Gcm).as_deref(), Some("vaes-512"));
        assert_eq!((pinned(Cipher::Aes128Gcm), pinned(Cipher::Auto)), (None, None));
        assert_eq!(named_library("aes-256-gcm (ring), chacha20-poly1305 (ring)"), None);
    }

    #[test]
    fn a_resumed_comparison_keeps_its_suite_and_library() {
        let programs = Programs::default();
        let subject = |kind| Subject::new(kind, Cipher::Auto);
        keep_choice(&programs, subject(Kind::VpndVaes), "aes-256-gcm (vaes-512)");
        keep_choice(&programs, subject(Kind::Openvpn), "aes-256-gcm (OpenSSL)");
        keep_choice(&programs, subject(Kind::Vpnd), "aes-128-gcm (aws-lc)");
        let pinned = |cipher| {
            let mut vpnd = Vpnd::new(programs.clone(), cipher);
            vpnd.pin_library();
            (vpnd.suite, vpnd.backend)
        };
        assert_eq!(pinned(Cipher::Auto), (Some("aes-128-gcm".into()), Some("aws-lc".into())));
        assert_eq!(pinned(Cipher::Aes256Gcm), (Some("aes-256-gcm".into()), None), "another kind's");
    }
}
