//! Sessions of stock WireGuard clients: begun when the auth process admits a peer that has shown
//! its key, ended when it is silent.
//!
//! INVARIANT: a peer is answered only once its session is in force: shards know it, the store has
//! it, and the kernel has nothing left of the last holder of its addresses.

use vpnd_ipc::gateway::wireguard::{DeviceAt, DeviceGrant, PeerChange};
use vpnd_proto::control::Code;
use vpnd_proto::plane::{Activity, Event, Slot};
use vpnd_proto::session::{DeviceId, SessionId};
use vpnd_wireguard::PublicKey;

use super::{Core, CoreRequest, CoreTask, Stopped, ToEnd};
use crate::worker::registry::AdmittedSession;
use crate::worker::wireguard::{Decision, Input, WireGuard};
use vpnd_sys::clock::now;

impl Core {
    /// Peers have come, gone or changed.
    pub(crate) async fn change_peers(&self, changes: Vec<PeerChange>) -> Result<(), Stopped> {
        self.send(CoreRequest::Peers(changes)).await
    }

    /// These devices have talked to an address that is this machine's now.
    pub(crate) async fn begin_peers(&self, found: Vec<DeviceAt>) -> Result<(), Stopped> {
        self.send(CoreRequest::BeginPeers(found)).await
    }
}

/// The next input of WireGuard, if its clients are served.
pub(super) async fn next_input(wireguard: Option<&mut WireGuard>) -> Input {
    match wireguard {
        Some(wireguard) => wireguard.next().await,
        None => std::future::pending().await,
    }
}

impl CoreTask {
    /// Takes an event of a shard.
    pub(super) fn handle_event(&mut self, event: Event) {
        let is_of_peer = self.wireguard.as_mut().is_some_and(|wireguard| wireguard.handle_event(&event));
        if !is_of_peer {
            self.gateway.handle_event(now(), event);
        }
    }

    /// Takes a session's traffic over one shard.
    pub(super) fn handle_activity(&mut self, slot: Slot, activity: Activity) {
        if let Some(wireguard) = &mut self.wireguard {
            wireguard.handle_activity(slot, &activity);
        }
        self.gateway.handle_activity(slot, activity);
    }

    /// Takes an input of WireGuard.
    pub(super) fn handle_input(&mut self, input: Input) {
        if let Some(wireguard) = &mut self.wireguard {
            wireguard.handle(input);
        }
    }

    /// Takes changes of peers.
    pub(super) fn change_peers(&mut self, changes: Vec<PeerChange>) {
        if let Some(wireguard) = &mut self.wireguard {
            wireguard.change(changes);
        }
    }

    /// Begins handshakes with these devices.
    pub(super) fn begin_peers(&mut self, found: Vec<DeviceAt>) {
        if let Some(wireguard) = &mut self.wireguard {
            wireguard.begin_at(found);
        }
    }

    /// Carries out what the peers want, and its effects.
    pub(super) async fn serve_wireguard(&mut self) {
        if self.wireguard.is_none() {
            return;
        }
        self.answer_released();
        loop {
            let Some(wireguard) = &mut self.wireguard else { return };
            if wireguard.poll_timeout().is_some_and(|at| at <= now()) {
                wireguard.handle_timeout();
            }
            while let Some(commands) = wireguard.poll_commands() {
                for (shard, command) in commands {
                    self.shards.command(shard, command).await;
                }
            }
            let decisions: Vec<Decision> = std::iter::from_fn(|| wireguard.poll_decision()).collect();
            if decisions.is_empty() {
                return;
            }
            decisions.into_iter().for_each(|decision| self.decide(decision));
            // One trip to the disk for all of them.
            self.carry_out().await;
            self.answer_released();
        }
    }

    fn decide(&mut self, decision: Decision) {
        match decision {
            Decision::Admit { peer, grant } => self.admit_device(peer, *grant),
            Decision::Silent(session) => self.end_peer(session, Code::Idle),
            Decision::Gone(session) => self.end_peer(session, Code::Disabled),
            Decision::Changed(session) => self.end_peer(session, Code::Token),
            Decision::At(slot, endpoint) => self.gateway.note_wireguard_endpoint(slot, endpoint),
            Decision::TwoDevices(slot, session, outer) => {
                self.gateway.note_wireguard_two_places(now(), slot);
                self.registry.two_devices(session, outer);
            }
            Decision::Shaken(slot) => self.gateway.note_wireguard_handshake(now(), slot),
        }
    }

    fn end_peer(&mut self, session: SessionId, code: Code) {
        self.endings.end(ToEnd::session(session, code, ""), &self.gateway);
    }

    /// Makes the session of a device that the auth process has admitted.
    fn admit_device(&mut self, peer: PublicKey, grant: DeviceGrant) {
        let DeviceGrant { grant, device, name, is_walled, renewed_s } = grant;
        let admission = AdmittedSession { is_walled, ..AdmittedSession::from(grant) };
        let session = admission.session;
        let who = self.registry.authenticated(&admission, DeviceId(device.into()));
        let user = who.user.clone();
        let made = self.gateway.admit_wireguard(now(), who, self.registry.wireguard_mtu(session));
        let Some(wireguard) = &mut self.wireguard else { return };
        match made {
            Ok(slot) if wireguard.join(peer, session, slot, is_walled, renewed_s) => {
                let key = peer.short();
                if is_walled {
                    tracing::info!(%user, device = %name, key, %session, "a WireGuard device reaches the portal alone until it is renewed");
                } else {
                    tracing::info!(%user, device = %name, key, %session, "a WireGuard device is let in");
                }
            }
            // It was removed meanwhile, or was added a moment ago.
            Ok(_) => {
                wireguard.refused(peer, "it is not in the worker's list of devices yet, or no longer");
                self.end_peer(session, Code::Disabled);
            }
            Err(code) => {
                wireguard.refused(peer, code.explanation());
                self.registry.abandon(session);
            }
        }
    }

    /// Answers the peers whose sessions are in force by now, and ends those that waited too long.
    fn answer_released(&mut self) {
        let Some(wireguard) = &mut self.wireguard else { return };
        let late = wireguard.answer_released(|session| self.registry.is_released(session));
        self.endings.add_unready(late);
    }
}
