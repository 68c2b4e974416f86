//! Bodies of fuzz targets whose parsers are private to this crate, and the replay of their corpora.
//! Only tests and fuzzing see this module; in the program it does not exist.
#![allow(missing_docs, reason = "the bodies' own first lines say what they check")]

#[path = "../../../fuzz/bodies/typed_text.rs"]
pub mod typed_text;

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
#[test]
fn texts_that_people_type() {
    replay::replay("typed_text", typed_text::run);
}
