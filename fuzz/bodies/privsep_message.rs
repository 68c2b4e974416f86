//! Any bytes as a message from another process of the daemon, or of its predecessor: nothing panics, what is read can be
//! written and is then read as the same, and what is printed of it shows no secret.
//!
//! Input: one byte that chooses what the message is to be, and its CBOR.

use std::fmt::Debug;

use minicbor::{Decode, Encode};

use crate::gateway::messages::auth::{Answer, Numbered, Request};
use crate::gateway::worker::handover::{FromNew, FromOld};
use crate::privsep::launch::{AuthLaunch, ClientLaunch, LookupLaunch, ToOpener, ToWorker, WorkerLaunch};

/// Checks one input.
pub fn run(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind % 10 {
        0 => check::<Numbered<Request>>(bytes),
        1 => check::<Numbered<Answer>>(bytes),
        2 => check::<ToOpener>(bytes),
        3 => check::<ToWorker>(bytes),
        4 => check::<FromOld>(bytes),
        5 => check::<FromNew>(bytes),
        6 => check::<AuthLaunch>(bytes),
        7 => check::<WorkerLaunch>(bytes),
        8 => check::<ClientLaunch>(bytes),
        _ => check::<LookupLaunch>(bytes),
    }
}

fn check<T: Encode<()> + for<'b> Decode<'b, ()> + Debug>(bytes: &[u8]) {
    let Ok(message) = minicbor::decode::<T>(bytes) else { return };
    let written = minicbor::to_vec(&message).expect("a vector takes all that is written to it");
    let again: T = minicbor::decode(&written).expect("what was written can be read");
    assert_eq!(minicbor::to_vec(&again).expect("a vector takes all that is written to it"), written);
    assert_eq!(format!("{again:?}"), format!("{message:?}"));
}
