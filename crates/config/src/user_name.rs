//! User names in their canonical form: one spelling for each account, however it is typed.
//!
//! Invariants: [`canonical`] is the only function that does this, and is applied once, where a name
//! comes in; it is idempotent; a name that has no canonical form is refused, never repaired. Names
//! of local users are compared as they are written and stay valid; names of users of other sources
//! are stored in the canonical form alone. This module must not know of sources or the store.

use icu_normalizer::properties::CanonicalCombiningClassMapBorrowed;
use icu_normalizer::{ComposingNormalizerBorrowed, DecomposingNormalizerBorrowed};

/// Bytes of the longest canonical name, realm included: the length that a control message carries
/// (PROTOCOL §3.2).
const MAX_BYTES: usize = 128;

/// The canonical form of a name, as RFC 8265's UsernameCaseMapped has it: compatibility composition
/// (NFKC), lower case, letters, digits, `. _ + - '` and single spaces between them, with a realm
/// behind at most one `@`. `REALM\user` is `user@realm`, and a realm's last dot is left out.
#[must_use]
pub fn canonical(typed: &str) -> Option<String> {
    // Composition grows a text by a bounded factor, but a bound on what is worked on costs nothing.
    if typed.len() > 4 * MAX_BYTES {
        return None;
    }
    let reordered = match typed.split_once('\\') {
        Some((realm, user)) if !user.contains('@') => format!("{user}@{realm}"),
        Some(_) => return None,
        None => typed.to_owned(),
    };
    let nfkc = ComposingNormalizerBorrowed::new_nfkc();
    // Lower case can undo a composition and composition can make upper case of another, so both are
    // done twice.
    let once = nfkc.normalize(&reordered).to_lowercase();
    let folded = nfkc.normalize(&once).to_lowercase();
    let (user, realm) = match folded.split_once('@') {
        Some((user, realm)) => (user, Some(realm.strip_suffix('.').unwrap_or(realm))),
        None => (folded.as_str(), None),
    };
    if !is_part(user) || realm.is_some_and(|realm| !is_realm(realm)) {
        return None;
    }
    let name = realm.map_or_else(|| user.to_owned(), |realm| format!("{user}@{realm}"));
    let is_stable = nfkc.is_normalized(&name) && name.to_lowercase() == name;
    (is_stable && name.len() <= MAX_BYTES).then_some(name)
}

/// A form that all spellings have in common which a directory may take for one name: without case
/// and accents, which many ignore. Different users may share it, so it is good for counting alone.
#[must_use]
pub fn folded(typed: &str) -> String {
    let name = canonical(typed).unwrap_or_else(|| typed.to_owned());
    // Upper case makes two letters of a sharp s.
    let letters = DecomposingNormalizerBorrowed::new_nfkd().normalize(&name.to_uppercase()).to_lowercase();
    let classes = CanonicalCombiningClassMapBorrowed::new();
    letters.chars().filter(|letter| classes.get_u8(*letter) == 0).collect()
}

/// The realm of a canonical name.
#[must_use]
pub fn realm(name: &str) -> Option<&str> {
    name.split_once('@').map(|(_, realm)| realm)
}

fn is_part(text: &str) -> bool {
    text.chars().next().is_some_and(char::is_alphanumeric)
        && !text.ends_with(' ')
        && !text.contains("  ")
        && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '+' | '-' | '\'' | ' '))
}

/// Labels of letters, digits and hyphens between dots.
fn is_realm(text: &str) -> bool {
    text.split('.').all(|label| is_part(label) && !label.contains(['_', '+', '\'', ' ']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_account_has_one_spelling() {
        for (typed, expected) in [
            ("alice", "alice"),
            ("ALICE", "alice"),
            ("Alice@Example.EDU", "alice@example.edu"),
            ("alice@example.edu.", "alice@example.edu"),
            ("EXAMPLE\\Alice", "alice@example"),
            // Decomposed, full-width, and a ligature.
            ("zoe\u{308}", "zo\u{eb}"),
            ("\u{ff21}lice", "alice"),
            ("o\u{fb03}ce", "office"),
            ("ÅNGSTRÖM", "ångström"),
            ("\u{212b}sa", "åsa"),
            ("stra\u{df}e", "stra\u{df}e"),
            ("O'Neill@uni.example", "o'neill@uni.example"),
            ("UNI.EXAMPLE\\Ann Lee", "ann lee@uni.example"),
            ("Mu\u{308}ller", "m\u{fc}ller"),
        ] {
            assert_eq!(canonical(typed).as_deref(), Some(expected), "{typed:?}");
        }
    }

    #[test]
    fn a_name_without_a_canonical_form_is_refused() {
        for typed in [
            "",
            "@",
            "@example.edu",
            "alice@",
            "alice@a@b",
            "R\\alice@b",
            "R\\S\\alice",
            "\\alice",
            "alice@.",
            "alice@a..b",
            "alice@a_b",
            " alice",
            "alice ",
            "al  ice",
            "ann @uni.example",
            "ann@uni example",
            "ann@o'neill.example",
            "'ann",
            "ann\u{a0}lee\u{a0}",
            "alice\0",
            "alice\n",
            "-alice",
            ".alice",
            "alice)(uid=*",
            "alice*",
            "a,b",
            "al\u{200b}ice",
            "al\u{202e}ice",
            "\u{2024}\u{2024}",
        ] {
            assert_eq!(canonical(typed), None, "{typed:?}");
        }
        assert_eq!(canonical(&"a".repeat(128)).map(|name| name.len()), Some(128));
        assert_eq!(canonical(&"a".repeat(129)), None);
        assert_eq!(canonical(&"\u{10400}".repeat(33)), None, "too many bytes");
        // One character that composition makes 18 of.
        assert_eq!(canonical(&"\u{fdfa}".repeat(100)), None);
    }

    proptest::proptest! {
        #[test]
        fn the_canonical_form_is_its_own(typed in ".{0,40}") {
            if let Some(name) = canonical(&typed) {
                proptest::prop_assert_eq!(canonical(&name), Some(name.clone()));
                proptest::prop_assert!(!name.chars().any(|c| c.is_control() || (c.is_whitespace() && c != ' ')));
            }
        }
    }

    #[test]
    fn spellings_that_a_directory_may_take_for_one_name_fold_into_one() {
        for typed in
            ["müller@uni.example", "MULLER@uni.example", "mu\u{308}ller@uni.example.", "UNI.EXAMPLE\\Mùllér"]
        {
            assert_eq!(folded(typed), "muller@uni.example", "{typed:?}");
        }
        assert_eq!((folded("Straße"), folded("o'Neill")), ("strasse".to_owned(), "o'neill".to_owned()));
        assert_ne!(folded("иван"), folded("петр"));
    }

    #[test]
    fn the_realm_is_behind_the_sign() {
        assert_eq!(realm("alice@example.edu"), Some("example.edu"));
        assert_eq!(realm("alice"), None);
    }
}
