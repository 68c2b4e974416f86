//! The answers about stock WireGuard clients.

use std::sync::Arc;

use super::Service;
use vpnd_ipc::gateway::auth::Reason;
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_ipc::gateway::wireguard::{
    Admission, AdmitDevice, Handshake, HandshakeRefusal, HandshakeReply, PeerChanges, PeersQuery,
};
use vpnd_ipc::request::Answer;

impl Answer<Handshake> for Service {
    async fn answer(self: &Arc<Self>, _: Handshake) -> Result<HandshakeReply, Reason> {
        Ok(HandshakeReply::Refused(HandshakeRefusal::Busy))
    }
}

impl Answer<AdmitDevice> for Service {
    async fn answer(self: &Arc<Self>, _: AdmitDevice) -> Result<Admission, Reason> {
        Ok(Admission::Refused(Refusal::Busy.into()))
    }
}

impl Answer<PeersQuery> for Service {
    async fn answer(self: &Arc<Self>, _: PeersQuery) -> Result<Option<PeerChanges>, Reason> {
        Ok(None)
    }
}
