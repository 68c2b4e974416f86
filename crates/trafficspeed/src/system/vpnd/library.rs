//! The library of vpnd's ciphers, which is the same in all of a run: by itself vpnd takes whichever
//! happened to be faster when it started, and one line of a report would mix two.

use super::Vpnd;
use crate::system::Cipher;
use crate::system::program::Programs;

/// The libraries that have all suites which it offers by itself.
const LIBRARIES: [&str; 3] = ["ring", "aws-lc", "rustcrypto"];

/// By which name the choice of a library for a suite is remembered.
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

/// The suite and the library of a cipher in vpnd's words; `None` of several.
pub fn named_library(cipher: &str) -> Option<(&str, &str)> {
    let (suite, library) = cipher.strip_suffix(')')?.split_once(" (")?;
    (!library.contains(['(', ','])).then_some((suite, library))
}

impl Vpnd {
    /// By which name its choice of a suite is remembered.
    pub(super) fn chooser(&self) -> String {
        format!("vpnd {:?} {:?}", self.code, self.backend)
    }

    /// Has it use the library that it chose for its suite before.
    pub(super) fn pin_library(&mut self) {
        let suite = self.suite.clone().or_else(|| self.programs.choice(&self.chooser()));
        let library = suite.and_then(|suite| self.programs.choice(&library_of(&suite)));
        // What it has but for AES-GCM cannot be named while other suites are on offer.
        let can_be_named =
            |library: &String| self.cipher != Cipher::Auto || LIBRARIES.contains(&library.as_str());
        if self.backend.is_none() {
            self.backend = library.filter(can_be_named);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::status::Status;
    use super::*;

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
}
