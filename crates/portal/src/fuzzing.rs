//! Bodies of fuzz targets whose parsers are private to this crate, and the replay of their corpora.
//! Only tests and fuzzing see this module; in the program it does not exist.
#![allow(missing_docs, reason = "the bodies' own first lines say what they check")]

#[path = "../../../fuzz/bodies/portal_body.rs"]
pub mod portal_body;
#[path = "../../../fuzz/bodies/portal_request.rs"]
pub mod portal_request;

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
#[test]
fn forms_and_bodies_of_programs() {
    replay::replay("portal_body", portal_body::run);
}

#[cfg(test)]
#[test]
fn requests_of_browsers_and_programs() {
    replay::replay("portal_request", portal_request::run);
}
