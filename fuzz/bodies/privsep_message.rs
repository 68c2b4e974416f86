//! Any bytes as a message from another process of the daemon, or of its predecessor: nothing
//! panics, what is read can be written and is then read as the same, and what is printed of it
//! shows no secret.
//!
//! Input: one byte that chooses the channel and direction, and the message's CBOR.

use std::fmt::Debug;

use minicbor::{Decode, Encode};

use crate::admin_store::message::wireguard::{AddWireGuardDevice, WireGuardDevicesAfter};
use crate::admin_store::request::{Devices, Export, OneUser, Replace, Secrets, StoreRequest, Users, Whois};
use crate::admin_store::{FromStore, StoreLaunch};
use vpnd_client::messages as client;
use vpnd_gateway::worker::handover::{FromPredecessor, FromSuccessor};
use vpnd_ipc::gateway;
use vpnd_ipc::gateway::acme::{AcmeLaunch, FromAcme, ToAcme};
use vpnd_ipc::gateway::auth::{
    ApprovalQuery, AuthRequest, Commit, LoginRequest, RevocationQuery, SessionQuery, StatusQuery,
    TrafficReport,
};
use vpnd_ipc::gateway::idp::{FromIdp, IdpLaunch, IdpRequest, LoginCheck, NextDynamicRequest, UserRecheck};
use vpnd_ipc::gateway::portal::{FromPortal, PortalLaunch, ToPortal};
use vpnd_ipc::messages::{Prepared, Ready, SecretBytes};
use vpnd_ipc::request::{Numbered, Reason, Request};

/// Checks one input.
pub fn run(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind % 16 {
        0 => check::<Numbered<AuthRequest>>(bytes),
        1 => {
            check::<Numbered<SecretBytes>>(bytes);
            check_reply::<LoginRequest>(bytes);
            check_reply::<SessionQuery>(bytes);
            check_reply::<Commit>(bytes);
            check_reply::<RevocationQuery>(bytes);
            check_reply::<StatusQuery>(bytes);
            check_reply::<ApprovalQuery>(bytes);
            check_reply::<TrafficReport>(bytes);
        }
        2 => {
            check::<Prepared>(bytes);
            check::<Ready>(bytes);
            check::<gateway::FromWorker>(bytes);
            check::<gateway::FromAuth>(bytes);
            check::<client::FromWorker>(bytes);
            check::<client::FromLookup>(bytes);
        }
        3 => {
            check::<gateway::Begin>(bytes);
            check::<gateway::ToWorker>(bytes);
            check::<gateway::ToAuth>(bytes);
            check::<client::Begin>(bytes);
            check::<client::ToWorker>(bytes);
        }
        4 => check::<FromPredecessor>(bytes),
        5 => check::<FromSuccessor>(bytes),
        6 => check::<gateway::AuthLaunch>(bytes),
        7 => check::<gateway::WorkerLaunch>(bytes),
        8 => check::<client::WorkerLaunch>(bytes),
        9 => check::<client::LookupLaunch>(bytes),
        10 => check::<Numbered<IdpRequest>>(bytes),
        11 => {
            check_reply::<LoginCheck>(bytes);
            check_reply::<UserRecheck>(bytes);
            check_reply::<NextDynamicRequest>(bytes);
            check_reply::<client::LookUp>(bytes);
            check_reply::<client::Prove>(bytes);
            check_reply::<client::Question>(bytes);
        }
        12 => {
            check::<IdpLaunch>(bytes);
            check::<FromIdp>(bytes);
        }
        13 => {
            check::<AcmeLaunch>(bytes);
            check::<FromAcme>(bytes);
            check::<ToAcme>(bytes);
            check::<PortalLaunch>(bytes);
            check::<FromPortal>(bytes);
            check::<ToPortal>(bytes);
        }
        14 => check::<StoreRequest>(bytes),
        _ => {
            check::<StoreLaunch>(bytes);
            check::<FromStore>(bytes);
            check_reply::<Users>(bytes);
            check_reply::<OneUser>(bytes);
            check_reply::<Devices>(bytes);
            check_reply::<Secrets>(bytes);
            check_reply::<Replace>(bytes);
            check_reply::<Whois>(bytes);
            check_reply::<Export>(bytes);
            check_reply::<AddWireGuardDevice>(bytes);
            check_reply::<WireGuardDevicesAfter>(bytes);
        }
    }
}

fn check_reply<R: Request<Reply: Debug>>(bytes: &[u8]) {
    check::<Result<R::Reply, Reason>>(bytes);
}

fn check<T: Encode<()> + for<'b> Decode<'b, ()> + Debug>(bytes: &[u8]) {
    let Ok(message) = minicbor::decode::<T>(bytes) else { return };
    let written = minicbor::to_vec(&message).expect("a vector takes all that is written to it");
    let again: T = minicbor::decode(&written).expect("what was written can be read");
    assert_eq!(minicbor::to_vec(&again).expect("a vector takes all that is written to it"), written);
    assert_eq!(format!("{again:?}"), format!("{message:?}"));
}
