//! The hand-over from the worker of one gateway process to its successor: its messages, and their
//! order.
//!
//! ```text
//!   old: Begin (devices) · stops its shards · Sessions … · End          Go · ends
//!   new:                                            · takes all · Ready      · starts its shards
//! ```
//!
//! INVARIANT: the old worker alone decides. Until it has sent `Go` it can take everything back, for
//! the new one seals and opens nothing before it receives that; afterwards the old one never does
//! again. So no counter is used by both. Keys go only from one worker to the other;
//! the frames that hold them are erased.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{anyhow, bail};
use minicbor::{Decode, Encode};
use vpnd_proto::gateway::handover::{FORMAT, HandedSession};
use vpnd_proto::gateway::{Effect, Gateway};
use vpnd_proto::session::SessionId;

use crate::worker::auth_client::AuthClient;
use crate::worker::registry::{Member, Registry, Span};
use crate::worker::revocation::Revocations;
use crate::worker::wireguard::{HandedDevice, WireGuard};
use vpnd_config::factor::Factors;
use vpnd_ipc::admin::status::Counters;
use vpnd_ipc::channel::{Channel, ChannelError};
use vpnd_ipc::gateway::MAX_RELEASED;
use vpnd_ipc::gateway::auth::{Carried, MAX_WRITES, SourceName, id};
use vpnd_ipc::messages::{Devices, MAX_FRAME, borrowed};
use vpnd_pki::revocation_list::CertificateNumber;
use vpnd_shard::ShardSpec;
use vpnd_sys::clock::now;

/// Sessions of one frame. Each has a few kilobytes with the most lanes and shards.
const BATCH: usize = 64;
/// Limit for a successor to take everything over, from the moment at which the shards stop.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(5);

/// A message of the old worker.
#[derive(Debug, Encode, Decode)]
pub enum FromPredecessor {
    /// The beginning, with the descriptors of [`Devices`].
    #[n(0)]
    Begin {
        /// The form of what follows.
        #[n(0)]
        format: u32,
        #[n(1)]
        devices: Devices,
        /// The last revocation that was carried out.
        #[n(2)]
        revocations: u64,
        /// Counters until now.
        #[n(3)]
        counters: Box<Counters>,
    },
    #[n(1)]
    Sessions(
        #[n(0)] Vec<TransferredSession>,
        /// Addresses of ended sessions, which the kernel has to forget yet.
        #[n(1)]
        Vec<IpAddr>,
    ),
    #[n(2)]
    End,
    /// The sessions are the successor's now.
    #[n(3)]
    Go,
}

/// A message of the new worker.
#[derive(Debug, Encode, Decode)]
pub enum FromSuccessor {
    /// Everything is understood.
    #[n(0)]
    Ready {
        #[n(0)]
        version: String,
    },
    #[n(1)]
    Refused(#[n(0)] String),
}

/// A session and what the protocol's core does not know of it.
#[derive(Debug, Encode, Decode)]
pub struct TransferredSession {
    #[n(0)]
    session: HandedSession,
    /// The groups of its user.
    #[n(1)]
    groups: Vec<String>,
    /// The certificate that its client has presented last, if any.
    #[n(2)]
    certificate: Option<CertificateNumber>,
    /// The source of its user.
    #[n(3)]
    source: SourceName,
    /// The time that was granted.
    #[n(4)]
    span: Span,
    #[n(5)]
    factors: Factors,
    /// Whether it reaches nothing but the portal; absent in a predecessor's that has no such
    /// sessions.
    #[n(6)]
    is_walled: Option<bool>,
    /// In a fleet, that of its last move.
    #[n(7)]
    generation: Option<u64>,
    /// The keys of its stock WireGuard client, if it is one's and they are known. 8 had another
    /// form: between a process that has that and one that has this, devices shake hands again.
    #[n(9)]
    device: Option<HandedDevice>,
}

/// Reason why nothing was handed over: the old worker goes on.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    #[error("the new version does not take over: {0}")]
    Refused(String),
    #[error("the new version has ended before it took over")]
    Gone,
    #[error("the new version has not taken over within {} s", TAKEOVER_TIMEOUT.as_secs())]
    Slow,
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error(transparent)]
    Shard(#[from] vpnd_shard::ShardGone),
}

/// The successor, as the old worker sees it.
pub struct Successor(Channel);

impl Successor {
    /// Passes on the devices, and what was counted; `revocations` is the last one that was carried
    /// out.
    pub(super) async fn begin(
        stream: OwnedFd,
        devices: Devices,
        descriptors: &[OwnedFd],
        revocations: u64,
        counters: Counters,
    ) -> Result<Self, HandoverError> {
        let channel = Channel::new(UnixStream::from(stream), MAX_FRAME).map_err(ChannelError::from)?;
        let begin =
            FromPredecessor::Begin { format: FORMAT, devices, revocations, counters: Box::new(counters) };
        channel.send(&begin, &borrowed(descriptors)).await?;
        Ok(Self(channel))
    }

    /// Hands over all sessions, whose shards stand still. When this returns `Ok`, they must never
    /// go on; its value is the successor's version.
    pub async fn hand_over(
        self,
        sessions: Vec<HandedSession>,
        devices: HashMap<SessionId, HandedDevice>,
        registry: &Registry,
    ) -> Result<String, HandoverError> {
        let taken = tokio::time::timeout(TAKEOVER_TIMEOUT, self.send_sessions(sessions, devices, registry));
        let version = taken.await.map_err(|_| HandoverError::Slow)??;
        // Nothing that could fail comes after this message was sent; if sending fails, the other
        // worker has not received it.
        self.0.send(&FromPredecessor::Go, &[]).await?;
        Ok(version)
    }

    async fn send_sessions(
        &self,
        sessions: Vec<HandedSession>,
        mut devices: HashMap<SessionId, HandedDevice>,
        registry: &Registry,
    ) -> Result<String, HandoverError> {
        // The registry has each of them. A client whose session is left out logs in or attaches
        // again.
        let mut sessions = sessions.into_iter().filter_map(|session| {
            let Member { groups, source, span, factors, is_walled, generation, .. } =
                registry.member(session.id).cloned()?;
            let certificate = registry.certificate(session.id);
            let groups = groups.into_vec();
            let (is_walled, generation) = (Some(is_walled), Some(generation));
            let device = devices.remove(&session.id);
            Some(TransferredSession {
                session,
                groups,
                certificate,
                source,
                span,
                factors,
                is_walled,
                generation,
                device,
            })
        });
        let mut released = registry.releases().pending().into_iter();
        loop {
            let batch: Vec<_> = sessions.by_ref().take(BATCH).collect();
            let addresses: Vec<_> = released.by_ref().take(MAX_RELEASED).collect();
            if batch.is_empty() && addresses.is_empty() {
                break;
            }
            self.0.send(&FromPredecessor::Sessions(batch, addresses), &[]).await?;
        }
        self.0.send(&FromPredecessor::End, &[]).await?;
        match self.0.receive::<FromSuccessor>().await?.ok_or(HandoverError::Gone)?.alone()? {
            FromSuccessor::Ready { version } => Ok(version),
            FromSuccessor::Refused(why) => Err(HandoverError::Refused(why)),
        }
    }
}

/// The old worker, as its successor sees it.
pub(super) struct Predecessor {
    channel: Channel,
    pub(super) revocations: u64,
    pub(super) counters: Counters,
}

impl Predecessor {
    /// Receives the devices and descriptors to go on with.
    pub(super) async fn receive_devices(stream: OwnedFd) -> anyhow::Result<(Self, Devices, Vec<OwnedFd>)> {
        let channel = Channel::new(UnixStream::from(stream), MAX_FRAME)?;
        let begin = channel.receive::<FromPredecessor>().await?;
        let begin = begin.ok_or_else(|| anyhow!("the gateway that runs hands nothing over"))?;
        let FromPredecessor::Begin { format, devices, revocations, counters } = begin.message else {
            bail!("the running gateway did not begin with its devices");
        };
        if format != FORMAT {
            let reason = format!(
                "its sessions would come in format {format}, and this version supports {FORMAT}; restart it instead"
            );
            // Whether it is received or not, nothing is taken over.
            let _ = channel.send(&FromSuccessor::Refused(reason.clone()), &[]).await;
            bail!(reason);
        }
        Ok((Self { channel, revocations, counters: *counters }, devices, begin.descriptors))
    }

    /// Takes all sessions over into `gateway`, whose effects are then commands to the shards, and
    /// waits for `Go`.
    pub(super) async fn take_over(
        &self,
        gateway: &mut Gateway,
        registry: &mut Registry,
        wireguard: Option<&mut WireGuard>,
    ) -> anyhow::Result<Vec<SessionId>> {
        let taken = self.take_all(gateway, registry, wireguard).await;
        let answer = match &taken {
            Ok(_) => FromSuccessor::Ready { version: env!("CARGO_PKG_VERSION").to_owned() },
            Err(error) => FromSuccessor::Refused(vpnd_sys::text::format_chain(error)),
        };
        self.channel.send(&answer, &[]).await?;
        let sessions = taken?;
        match self.receive().await? {
            FromPredecessor::Go => Ok(sessions),
            _ => bail!("the running gateway did not send the last message of a hand-over"),
        }
    }

    async fn take_all(
        &self,
        gateway: &mut Gateway,
        registry: &mut Registry,
        mut wireguard: Option<&mut WireGuard>,
    ) -> anyhow::Result<Vec<SessionId>> {
        let mut taken = Vec::new();
        loop {
            match self.receive().await? {
                FromPredecessor::Sessions(sessions, released) => {
                    registry.releases().add(released.into_iter().collect());
                    taken.extend(sessions.iter().map(|transferred| transferred.session.id));
                    for transferred in sessions {
                        let TransferredSession {
                            mut session,
                            groups,
                            certificate,
                            source,
                            span,
                            factors,
                            is_walled,
                            generation,
                            device,
                        } = transferred;
                        let (id, is_walled) = (session.id, is_walled.unwrap_or_default());
                        let device = wireguard.as_mut().and_then(|wireguard| wireguard.take_over(device?));
                        if device.is_none() {
                            session.lose_wireguard_keys();
                        }
                        let member = Member {
                            user: session.user.clone(),
                            source,
                            groups: groups.into(),
                            addresses: session.addresses(),
                            factors,
                            span,
                            is_walled,
                            generation: generation.unwrap_or_default(),
                        };
                        let (principal, limits) = registry.take_over(session.id, member);
                        registry.shown(session.id, certificate);
                        let slot = gateway.take_over(now(), session, principal, limits)?;
                        if let Some((wireguard, device)) = wireguard.as_mut().zip(device) {
                            wireguard.rejoin(device, id, slot, is_walled);
                        }
                    }
                }
                FromPredecessor::End => return Ok(taken),
                FromPredecessor::Begin { .. } | FromPredecessor::Go => {
                    bail!("the running gateway sent messages out of order")
                }
            }
        }
    }

    async fn receive(&self) -> anyhow::Result<FromPredecessor> {
        let received = self.channel.receive::<FromPredecessor>().await?;
        let received = received.ok_or_else(|| anyhow!("the gateway that runs has taken everything back"))?;
        Ok(received.alone()?)
    }
}

/// Takes over what another worker hands over, if there is one: its sessions, and what it returns,
/// the last revocation that was carried out and what was counted.
pub(super) async fn adopt_sessions(
    predecessor: Option<Predecessor>,
    auth: &AuthClient,
    gateway: &mut Gateway,
    registry: &mut Registry,
    mut wireguard: Option<&mut WireGuard>,
    specs: &mut [ShardSpec],
) -> anyhow::Result<(Revocations, Counters)> {
    let revocations = Revocations::default();
    let Some(predecessor) = predecessor else { return Ok((revocations, Counters::default())) };
    revocations.set(predecessor.revocations);
    let sessions = predecessor.take_over(gateway, registry, wireguard.as_deref_mut()).await?;
    for part in sessions.chunks(MAX_WRITES) {
        auth.request(Carried(part.iter().map(|session| id(*session)).collect())).await?;
    }
    queue_commands(gateway, wireguard, specs);
    Ok((revocations, predecessor.counters))
}

/// Gives each shard what it has to know before it receives anything.
fn queue_commands(gateway: &mut Gateway, wireguard: Option<&mut WireGuard>, specs: &mut [ShardSpec]) {
    while let Some(effect) = gateway.poll_effect() {
        if let Effect::Command { shard, command } = effect {
            specs[shard].first.push(command);
        }
    }
    let Some(wireguard) = wireguard else { return };
    while let Some(commands) = wireguard.poll_commands() {
        commands.into_iter().for_each(|(shard, command)| specs[shard].first.push(command));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::testing;
    use vpnd_ipc::channel::pair;
    use vpnd_sys::tun::TunOffloads;

    fn registry() -> Registry {
        let (auth, _) = testing::auth();
        Registry::new(auth, &vpnd_config::testing::smallest("")).unwrap()
    }

    fn gateway() -> Gateway {
        testing::gateway(testing::config(1))
    }

    fn devices() -> Devices {
        Devices { shards: 1, tun: TunOffloads::NONE, steering_refused: None }
    }

    /// The old worker's raw end, and the new worker's descriptor.
    fn ends() -> (Channel, OwnedFd) {
        let (old, new) = pair().unwrap();
        (Channel::new(old, MAX_FRAME).unwrap(), new.into())
    }

    #[tokio::test]
    async fn a_handover_in_another_format_is_refused_with_a_reason() {
        let (old, new) = ends();
        let begin = FromPredecessor::Begin {
            format: FORMAT + 1,
            devices: devices(),
            revocations: 0,
            counters: Box::default(),
        };
        old.send(&begin, &[]).await.unwrap();
        let error = Predecessor::receive_devices(new).await.map(drop).unwrap_err().to_string();
        assert!(error.contains("restart it instead"), "{error}");
        let received = old.receive::<FromSuccessor>().await.unwrap().unwrap().message;
        assert!(matches!(received, FromSuccessor::Refused(why) if why == error));
    }

    #[tokio::test]
    async fn a_new_worker_starts_only_after_the_last_handover_message() {
        for goes in [true, false] {
            let (old, new) = ends();
            let begin = FromPredecessor::Begin {
                format: FORMAT,
                devices: devices(),
                revocations: 7,
                counters: Box::default(),
            };
            old.send(&begin, &[]).await.unwrap();
            let (predecessor, _, _) = Predecessor::receive_devices(new).await.unwrap();
            assert_eq!(predecessor.revocations, 7);
            let other_side = async {
                old.send(&FromPredecessor::Sessions(Vec::new(), Vec::new()), &[]).await.unwrap();
                old.send(&FromPredecessor::End, &[]).await.unwrap();
                let ready = old.receive::<FromSuccessor>().await.unwrap().unwrap().message;
                assert!(matches!(ready, FromSuccessor::Ready { .. }));
                if goes {
                    old.send(&FromPredecessor::Go, &[]).await.unwrap();
                }
                drop(old);
            };
            let (mut gateway, mut registry) = (gateway(), registry());
            let (taken, ()) =
                tokio::join!(predecessor.take_over(&mut gateway, &mut registry, None), other_side);
            assert_eq!(taken.is_ok(), goes, "{taken:?}");
        }
    }

    #[tokio::test]
    async fn the_old_worker_continues_unless_the_new_one_is_ready() {
        for answer in [Some(FromSuccessor::Refused("too new".to_owned())), None] {
            let (new, old) = ends();
            let successor = Successor::begin(old, devices(), &[], 7, Counters::default()).await.unwrap();
            let refused = answer.is_some();
            let other_side = async {
                loop {
                    let received = new.receive::<FromPredecessor>().await.unwrap().unwrap().message;
                    assert!(!matches!(received, FromPredecessor::Go), "nobody is ready");
                    if matches!(received, FromPredecessor::End) {
                        break;
                    }
                }
                if let Some(answer) = answer {
                    new.send(&answer, &[]).await.unwrap();
                    assert!(new.receive::<FromPredecessor>().await.unwrap().is_none(), "that was all");
                }
                drop(new);
            };
            let registry = registry();
            let (taken, ()) =
                tokio::join!(successor.hand_over(Vec::new(), HashMap::new(), &registry), other_side);
            match taken {
                Err(HandoverError::Refused(why)) => assert!(refused && why == "too new"),
                Err(HandoverError::Gone) => assert!(!refused),
                other => panic!("{other:?}"),
            }
        }
    }
}
