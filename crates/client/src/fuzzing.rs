//! Bodies of fuzz targets whose parsers are private to this crate, and the replay of their corpora.
//! Only tests and fuzzing see this module; in the program it does not exist.
#![allow(missing_docs, reason = "the bodies' own first lines say what they check")]

#[path = "../../../fuzz/bodies/browser_arrival.rs"]
pub mod browser_arrival;

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
#[test]
fn callback_requests_of_browsers() {
    replay::replay("browser_arrival", browser_arrival::run);
}
