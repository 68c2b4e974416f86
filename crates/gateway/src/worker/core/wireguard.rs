//! Sessions of stock WireGuard clients: begun when the auth process admits a peer that has shown
//! its key, ended when it is silent.
//!
//! INVARIANT: a peer is answered only once its session is in force: shards know it, the store has
//! it, and the kernel has nothing left of the last holder of its addresses.

use vpnd_ipc::gateway::wireguard::DeviceGrant;
use vpnd_proto::control::Code;
use vpnd_proto::gateway::Gateway;
use vpnd_proto::session::DeviceId;
use vpnd_wireguard::PublicKey;

use super::ToEnd;
use super::endings::Endings;
use crate::worker::registry::{AdmittedSession, Registry};
use crate::worker::wireguard::{Decision, Input, WireGuard};
use vpnd_shard::Shards;
use vpnd_sys::clock::now;

/// The next input of WireGuard, if its clients are served.
pub(super) async fn next_input(wireguard: Option<&mut WireGuard>) -> Input {
    match wireguard {
        Some(wireguard) => wireguard.next().await,
        None => std::future::pending().await,
    }
}

/// Carries out what the peers want. Returns whether there are effects of that.
pub(super) async fn serve(
    wireguard: &mut WireGuard,
    shards: &Shards,
    gateway: &mut Gateway,
    registry: &mut Registry,
    endings: &mut Endings,
) -> bool {
    if wireguard.poll_timeout().is_some_and(|at| at <= now()) {
        wireguard.handle_timeout();
    }
    while let Some(commands) = wireguard.poll_commands() {
        for (shard, command) in commands {
            shards.command(shard, command).await;
        }
    }
    let decisions: Vec<Decision> = std::iter::from_fn(|| wireguard.poll_decision()).collect();
    let has_decided = !decisions.is_empty();
    for decision in decisions {
        let to_end = decide(decision, wireguard, gateway, registry);
        endings.end_all(to_end, gateway);
    }
    has_decided
}

/// Carries out a decision about the session of a peer. Returns the session if it is to end.
fn decide(
    decision: Decision,
    wireguard: &mut WireGuard,
    gateway: &mut Gateway,
    registry: &mut Registry,
) -> Option<ToEnd> {
    match decision {
        Decision::Admit { peer, grant } => return admit(peer, *grant, wireguard, gateway, registry),
        Decision::Silent(session) => return Some(ToEnd::session(session, Code::Idle, "")),
        Decision::Gone(session) => return Some(ToEnd::session(session, Code::Disabled, "")),
        Decision::Changed(session) => return Some(ToEnd::session(session, Code::Token, "")),
        Decision::At(slot, endpoint) => gateway.note_wireguard_endpoint(slot, endpoint),
        Decision::TwoDevices(slot, session, outer) => {
            gateway.note_wireguard_two_places(now(), slot);
            registry.two_devices(session, outer);
        }
        Decision::Shaken(slot) => gateway.note_wireguard_handshake(now(), slot),
    }
    None
}

/// Makes the session of a device that the auth process has admitted. Returns it if it is to end.
fn admit(
    peer: PublicKey,
    grant: DeviceGrant,
    wireguard: &mut WireGuard,
    gateway: &mut Gateway,
    registry: &mut Registry,
) -> Option<ToEnd> {
    let DeviceGrant { grant, device, name, is_walled, renewed_s } = grant;
    let admission = AdmittedSession { is_walled, ..AdmittedSession::from(grant) };
    let session = admission.session;
    let who = registry.authenticated(&admission, DeviceId(device.into()));
    let user = who.user.clone();
    match gateway.admit_wireguard(now(), who, registry.wireguard_mtu(session)) {
        Ok(slot) if wireguard.join(peer, session, slot, is_walled, renewed_s) => {
            let key = peer.short();
            if is_walled {
                tracing::info!(%user, device = %name, key, %session, "a WireGuard device reaches the portal alone until it is renewed");
            } else {
                tracing::info!(%user, device = %name, key, %session, "a WireGuard device is let in");
            }
            None
        }
        // It was removed meanwhile, or was added a moment ago.
        Ok(_) => {
            wireguard.refused(peer, "it is not in the worker's list of devices yet, or no longer");
            Some(ToEnd::session(session, Code::Disabled, ""))
        }
        Err(code) => {
            wireguard.refused(peer, code.explanation());
            registry.abandon(session);
            None
        }
    }
}
