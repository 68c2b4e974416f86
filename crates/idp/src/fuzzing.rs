//! Bodies of fuzz targets whose parsers are private to this crate, and the replay of their corpora.
//! Only tests and fuzzing see this module; in the program it does not exist.
#![allow(missing_docs, reason = "the bodies' own first lines say what they check")]

#[path = "../../../fuzz/bodies/jwt.rs"]
pub mod jwt;
#[path = "../../../fuzz/bodies/provider_metadata.rs"]
pub mod provider_metadata;

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
#[test]
fn keys_and_tokens_of_providers() {
    replay::replay("jwt", jwt::run);
}

#[cfg(test)]
#[test]
fn descriptions_and_responses_of_providers() {
    replay::replay("provider_metadata", provider_metadata::run);
}
