//! The answers about stock WireGuard clients, and what their sessions leave in the store.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use minicbor::bytes::ByteArray;
use vpnd_proto::control::{Code, Text};
use vpnd_proto::plane::Endpoint;
use vpnd_proto::session::{DeviceId, SessionId};

use super::{Service, latest_end_s};
use crate::portal::Offer;
use crate::portal::heard::Owner;
use vpnd_admission::authenticator::{Authenticated, DeviceOutcome};
use vpnd_admission::lease::Addresses;
use vpnd_admission::notices::lock;
use vpnd_admission::wireguard::WireGuard;
use vpnd_config::Tunnel;
use vpnd_config::factor::Factors;
use vpnd_ipc::gateway::ClientEndpoint;
use vpnd_ipc::gateway::auth::{Granted, Leased, LoginReply, ProfileName, Reason, Write, id};
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_ipc::gateway::wireguard::{
    Admission, AdmitDevice, DeviceAt, DeviceGrant, DevicesQuery, Handshake, HandshakeRefusal, HandshakeReply,
    MAX_OWN_ADDRESSES, PeerChanges, PeersQuery,
};
use vpnd_ipc::request::Answer;
use vpnd_store::{StoreError, UserId, WireGuardDevice};
use vpnd_sys::log_limit::LogLimit;

/// Entries of the audit file about one configuration on two devices: a worker that was taken over
/// could ask for any number.
static TWO_DEVICES: LogLimit = LogLimit::new(100, Duration::from_secs(10));

/// Difference between the ends of two sessions that is due to the clocks, which count whole
/// seconds.
const CLOCKS_S: u64 = 5;

impl Answer<Handshake> for Service {
    async fn answer(self: &Arc<Self>, handshake: Handshake) -> Result<HandshakeReply, Reason> {
        let (Some(wireguard), Some(request)) = (&self.wireguard, handshake.parse()) else {
            return Ok(HandshakeReply::Refused(HandshakeRefusal::NotAuthentic));
        };
        Ok(wireguard.handshake(request).await.into())
    }
}

impl Answer<AdmitDevice> for Service {
    async fn answer(self: &Arc<Self>, AdmitDevice { peer, outer }: AdmitDevice) -> Result<Admission, Reason> {
        // It may have to wait until timestamps of handshakes are stored.
        let has_shown = self
            .blocking(move |service| {
                Ok(service.wireguard.as_ref().is_some_and(|wireguard| wireguard.has_shown(peer.into())))
            })
            .await?;
        if !has_shown {
            return Ok(Admission::Refused(Refusal::Credentials.into()));
        }
        let has_pages = self.portal().is_on();
        let (now_s, steady_s) = (self.now_s(), (self.clocks.steady)());
        let outcome = self.authenticator.admit_device(peer.into(), outer, has_pages, (now_s, steady_s)).await;
        let (user, device, is_walled) = match outcome {
            DeviceOutcome::Granted(user, device) => (user, device, false),
            DeviceOutcome::ToPages(user, device) => (user, device, true),
            DeviceOutcome::Walled => return Ok(Admission::Walled),
            DeviceOutcome::Refused(refused) => return Ok(Admission::Refused(refused)),
        };
        let (device, name, renewed_s) = (device.id, device.name, device.renewed_s);
        let reply = self
            .blocking(move |service| {
                if !is_walled && let Some(granted) = service.go_on(&user, device)? {
                    return Ok(LoginReply::Granted(granted));
                }
                let reply = service.admit(&user, device, Some(outer), is_walled)?;
                service.replace_before(&reply, &user.name, device);
                Ok(reply)
            })
            .await?;
        Ok(match reply {
            LoginReply::Granted(grant) => Admission::Granted(Box::new(DeviceGrant {
                grant,
                device: ByteArray::from(device.0),
                name: Text::cut(&name),
                is_walled,
                renewed_s,
            })),
            LoginReply::Refused(refused) => Admission::Refused(refused),
            LoginReply::CodeRequired(_) | LoginReply::Challenge(_) => {
                Admission::Refused(Refusal::Internal.into())
            }
        })
    }
}

impl Answer<PeersQuery> for Service {
    async fn answer(self: &Arc<Self>, PeersQuery(seen): PeersQuery) -> Result<Option<PeerChanges>, Reason> {
        self.from_store(move |service| {
            service.wireguard.as_ref().map(|wireguard| wireguard.changes_since(seen)).transpose()
        })
        .await
    }
}

impl Answer<DevicesQuery> for Service {
    async fn answer(self: &Arc<Self>, query: DevicesQuery) -> Result<Vec<DeviceAt>, Reason> {
        let DevicesQuery { mut addresses, after } = query;
        addresses.truncate(MAX_OWN_ADDRESSES);
        self.from_store(move |service| {
            let after = after.map(<[u8; 32]>::from);
            let found = service.wireguard.as_ref().map(|wireguard| wireguard.devices_at(&addresses, after));
            found.unwrap_or_else(|| Ok(Vec::new()))
        })
        .await
    }
}

impl Service {
    /// Sets the WireGuard devices, if they are served.
    pub(crate) fn with_wireguard(self, wireguard: Option<Arc<WireGuard>>) -> Self {
        Self { wireguard, ..self }
    }

    /// Has pages and API make files for WireGuard clients, which find the gateway there.
    pub(crate) fn offer_devices(&self, endpoint: Option<ClientEndpoint>, tunnel: &Tunnel) {
        let known = self.wireguard.clone().zip(endpoint.and_then(ClientEndpoint::parsed));
        let offer = known.map(|(wireguard, endpoint)| Offer { wireguard, endpoint, tunnel: tunnel.clone() });
        self.portal.offer(offer);
    }

    /// Has the peers read again, whatever the number of their version is.
    pub(super) fn forget_peers(&self) {
        if let Some(wireguard) = &self.wireguard {
            wireguard.profiles_changed();
        }
    }

    /// The session that the process before this one has left of the device, unless the next one
    /// would last longer. So a device that comes back costs the store little: thousands do after a
    /// restart.
    fn go_on(&self, user: &Authenticated, device: DeviceId) -> Result<Option<Granted>, Reason> {
        let before = lock(&self.absent).of(&user.name, device);
        let [session] = before[..] else { return Ok(None) };
        let failed = |error: StoreError| Reason::cut(&error.to_string());
        let stored = self.usable_of(session, user).map_err(failed)?;
        let (Some(stored), Some(profile)) = (stored, self.access.of(user)) else { return Ok(None) };
        let next_end_s = latest_end_s((self.clocks.steady)(), user.limits.lifetime(profile.session_lifetime));
        // Without a lifetime, one that began as this one did.
        let long_s = match profile.session_lifetime {
            Some(_) => next_end_s,
            None => latest_end_s(stored.started_s, None),
        };
        let is_shorter = stored.expires_s.saturating_add(CLOCKS_S) < long_s;
        // Anybody's client may claim the id of a WireGuard device.
        if is_shorter || stored.factors != Factors::KEY {
            return Ok(None);
        }
        let Leased { ipv4: v4, ipv6: v6 } = stored.addresses;
        self.accounting().restored(session, user, Addresses { v4, v6 });
        lock(&self.absent).remove(session);
        Ok(Some(Granted {
            account: stored.account,
            session: id(session),
            addresses: stored.addresses,
            expires_s: stored.expires_s.min(next_end_s),
            started_s: stored.started_s,
            profile: profile.name.as_deref().map(ProfileName::cut),
            factors: stored.factors,
            own_addresses: true,
            idle_timeout_s: user.limits.idle_s,
            generation: stored.generation,
            elsewhere: 0,
        }))
    }

    /// Notes that what the process before this one has left of the device's sessions is over once
    /// the new one is kept: a WireGuard client attaches to none.
    fn replace_before(&self, reply: &LoginReply, user: &str, device: DeviceId) {
        let LoginReply::Granted(granted) = reply else { return };
        let before = lock(&self.absent).of(user, device);
        self.grants.set_before(SessionId(granted.session.into()), before);
    }

    /// The sessions whose place those take that are to be kept.
    pub(super) fn replaced_by(&self, writes: &[Write]) -> Vec<SessionId> {
        let kept = writes.iter().filter_map(|write| match write {
            Write::Keep { session, .. } => Some(SessionId((*session).into())),
            _ => None,
        });
        self.grants.before(kept)
    }

    /// Keeps what writes say of WireGuard devices: where they are until their sessions end, and
    /// that one was kicked, which ends its sessions until it is renewed. Before the sessions are
    /// over in the store. Returns the sessions for which a kick could not be kept.
    pub(super) fn note_devices(&self, writes: &[Write], now_s: u64) -> Vec<SessionId> {
        let Some(wireguard) = &self.wireguard else { return Vec::new() };
        let owner = |session: ByteArray<16>| -> Result<Option<Owner>, StoreError> {
            let owner = self.owner_of(SessionId(session.into()), now_s)?;
            Ok(owner.filter(|(user, device)| wireguard.has_device(*user, *device)))
        };
        let device = |session| owner(session).ok().flatten().map(|(_, device)| device);
        let mut not_kept = Vec::new();
        let mut heard: Vec<(DeviceId, Option<Endpoint>)> = Vec::new();
        for write in writes {
            match write {
                Write::Moved { session, outer, .. } => {
                    heard.extend(device(*session).map(|device| (device, Some(*outer))));
                }
                Write::Ended { session, code: Code::Kicked, .. } => {
                    let kept = owner(*session).and_then(|owner| {
                        let Some((_, device)) = owner else { return Ok(()) };
                        heard.push((device, None));
                        self.store.wall_wireguard_device(device, (self.clocks.wall)())
                    });
                    if kept.is_err() {
                        not_kept.push(SessionId((*session).into()));
                    }
                    self.logged(kept);
                }
                Write::Ended { session, code, .. } => {
                    let Some(device) = device(*session) else { continue };
                    // Another device may have that address by the next start. A session that makes
                    // room for the device's next one leaves it where it is.
                    if !matches!(code, Code::Superseded | Code::Token) {
                        heard.push((device, None));
                    }
                }
                Write::TwoDevices(session, outer) => {
                    let owner = owner(*session).ok().flatten();
                    if let Some(owner) = owner.filter(|_| TWO_DEVICES.admits()) {
                        self.logged(self.record_two_devices(owner, *outer));
                    }
                }
                _ => {}
            }
        }
        wireguard.keep_outer(heard);
        not_kept
    }

    /// The user and the device of a session: as this process remembers, which neither waits for the
    /// store nor fails with it, or else by the store.
    pub(super) fn owner_of(&self, session: SessionId, now_s: u64) -> Result<Option<Owner>, StoreError> {
        let remembered = self.portal.heard().owner(session);
        if remembered.is_some() {
            return Ok(remembered);
        }
        let record = self.store.session(session, now_s)?;
        Ok(record.map(|record| (record.user, record.device)))
    }

    fn record_two_devices(&self, (user, id): (UserId, DeviceId), outer: IpAddr) -> Result<(), StoreError> {
        let devices = self.store.wireguard_devices_of(user)?;
        let Some(user) = self.store.user_by_id(user)? else { return Ok(()) };
        let is_it = |device: &WireGuardDevice| device.id == id;
        let name = devices.into_iter().find(is_it).map(|device| device.name);
        self.audit.in_two_places(user.name, &name.unwrap_or_default(), outer);
        Ok(())
    }

    fn logged(&self, kept: Result<(), StoreError>) {
        if let Err(error) = kept {
            tracing::error!(%error, "the state of a WireGuard device could not be stored");
        }
    }
}
