//! The body of the fuzz target that holds our own AES-GCM against libraries, and the replay of its corpus. Only tests and
//! fuzzing see this module; in the program it does not exist.
#![allow(missing_docs, reason = "the body's own first lines say what it checks")]

#[path = "../../../fuzz/bodies/aead.rs"]
pub mod aead;

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;
    use super::*;

    #[test]
    fn packets_whole_and_forged() {
        replay("aead", aead::run);
    }
}
