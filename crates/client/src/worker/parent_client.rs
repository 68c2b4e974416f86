//! The worker's requests to the privileged parent, and the parent's own messages.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, OnceLock};

use tokio::sync::mpsc;
use vpnd_crypto::device::{Binding, SIGNATURE_LEN};
use vpnd_proto::control::{AsText, ChallengeAnswer, ChallengeText, Network, Renewal, Text};

use crate::messages::{
    Browse, BrowserWay, Configure, Configured, FromWorker, ListenForBrowser, LookUp, Measured, OpenSocket,
    OpenStream, OverTcp, ParentRequest, Prove, Question, Renew, Reopen, SetMtu, THE_PROXY, Tell, ToWorker,
    UseTunnelDns,
};
use vpnd_ipc::channel::{Channel, ChannelError};
use vpnd_ipc::requests::{Gone, NoReply, Requests};

/// Events that wait to be handled at most.
const QUEUE: usize = 16;

/// Messages of the parent that are no replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParentEvent {
    NetworkChanged,
    /// Send what is known of the connection.
    Measure,
    /// Inform the gateway, and end.
    Stop,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ParentError {
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("the client's first process is gone")]
    Gone(Gone),
}

impl From<NoReply> for ParentError {
    fn from(none: NoReply) -> Self {
        match none {
            NoReply::Gone(gone) => Self::Gone(gone),
            NoReply::Failed(why) => Self::Refused(why.to_string()),
        }
    }
}

/// The privileged parent, as the worker sees it.
pub(super) struct ParentClient {
    requests: Requests<ParentRequest>,
    /// Reason for the client's end.
    reason: OnceLock<String>,
}

impl ParentClient {
    /// Uses `channel` from now on. The parent's own messages come from the receiver, until it is
    /// gone.
    pub(super) fn start(channel: Channel) -> (Arc<Self>, mpsc::Receiver<ParentEvent>) {
        let frame = |number, request| FromWorker::Request { number, request };
        let requests = Requests::start(channel.clone(), frame);
        let parent = Arc::new(Self { requests, reason: OnceLock::new() });
        let (events, inbox) = mpsc::channel(QUEUE);
        let reader = Arc::clone(&parent);
        tokio::spawn(async move {
            if let Err(error) = reader.receive_all(&channel, &events).await {
                tracing::error!(%error, "the client's first process is lost");
            }
            reader.requests.close();
        });
        (parent, inbox)
    }

    async fn receive_all(
        &self,
        channel: &Channel,
        events: &mpsc::Sender<ParentEvent>,
    ) -> Result<(), ChannelError> {
        while let Some(received) = channel.receive::<ToWorker>().await? {
            match received.message {
                ToWorker::Reply { number, reply } => {
                    self.requests.reply(number, &reply, received.descriptors)?;
                }
                ToWorker::NetworkChanged => drop(events.send(ParentEvent::NetworkChanged).await),
                ToWorker::Measure => drop(events.send(ParentEvent::Measure).await),
                ToWorker::Stop(reason) => {
                    let _ = self.reason.set(reason.unwrap_or_default());
                    // It replies no more, so callers that wait for a reply must be released here.
                    self.requests.close();
                    let _ = events.send(ParentEvent::Stop).await;
                }
            }
        }
        Ok(())
    }

    /// A new UDP socket for the control channel to `gateway`, whose datagrams never enter the
    /// tunnel. Refused if the machine has no route there.
    pub(super) async fn socket(&self, gateway: SocketAddr) -> Result<UdpSocket, ParentError> {
        let ((), descriptors) = self.requests.request_with_descriptors(OpenSocket(AsText(gateway))).await?;
        let descriptor = descriptors.into_iter().next();
        Ok(descriptor.ok_or(ChannelError::Broken("an answer without a socket"))?.into())
    }

    /// A TCP connection to `gateway`, which has only just begun and never enters the tunnel; and a
    /// UDP socket of this machine alone.
    pub(super) async fn stream(&self, gateway: SocketAddr) -> Result<(TcpStream, UdpSocket), ParentError> {
        let ((), descriptors) = self.requests.request_with_descriptors(OpenStream(AsText(gateway))).await?;
        let Ok([stream, socket]) = <[_; 2]>::try_from(descriptors) else {
            return Err(ChannelError::Broken("an answer without a connection").into());
        };
        Ok((stream.into(), socket.into()))
    }

    /// Has people told whether the tunnel goes over TCP.
    pub(super) async fn over_tcp(&self, over_tcp: bool) -> Result<(), ParentError> {
        Ok(self.requests.request(OverTcp(over_tcp)).await?)
    }

    /// Has the user told this of the connection.
    pub(super) async fn measured(&self, measured: Measured) -> Result<(), ParentError> {
        Ok(self.requests.request(measured).await?)
    }

    /// Has the sockets of these lanes opened at other ports; the ports of all lanes.
    pub(super) async fn reopen(&self, lanes: u16) -> Result<Vec<u16>, ParentError> {
        Ok(self.requests.request(Reopen(lanes)).await?)
    }

    /// The addresses of the gateway in this place of the list of [`crate::servers`].
    pub(super) async fn addresses(&self, server: usize) -> Result<Vec<IpAddr>, ParentError> {
        let found = self.requests.request(LookUp(server as u32)).await?;
        Ok(found.into_iter().map(|address| address.0).collect())
    }

    /// The addresses of the profile's proxy.
    pub(super) async fn proxy_addresses(&self) -> Result<Vec<IpAddr>, ParentError> {
        let found = self.requests.request(LookUp(THE_PROXY)).await?;
        Ok(found.into_iter().map(|address| address.0).collect())
    }

    /// Has the machine use the tunnel's DNS servers, or its own.
    pub(super) async fn use_tunnel_dns(&self, tunnel: bool) -> Result<(), ParentError> {
        Ok(self.requests.request(UseTunnelDns(tunnel)).await?)
    }

    /// Has these settings put in force.
    pub(super) async fn configure(&self, network: &Network) -> Result<Configured, ParentError> {
        Ok(self.requests.request(Configure(network.clone())).await?)
    }

    /// Has these addresses of the gateway kept for the next start. Refused if the user does not
    /// permit it.
    pub(super) async fn renew(&self, renewal: &Renewal) -> Result<(), ParentError> {
        Ok(self.requests.request(Renew(renewal.clone())).await?)
    }

    /// A socket at which a browser of this machine arrives, and its port.
    pub(super) async fn listen_for_browser(&self) -> Result<(TcpListener, u16), ParentError> {
        let (port, descriptors) = self.requests.request_with_descriptors(ListenForBrowser).await?;
        let descriptor = descriptors.into_iter().next();
        Ok((descriptor.ok_or(ChannelError::Broken("an answer without a socket"))?.into(), port))
    }

    /// Shows this page to the person.
    pub(super) async fn browse(&self, url: Text<1024>, way: BrowserWay) -> Result<(), ParentError> {
        Ok(self.requests.request(Browse { url, way }).await?)
    }

    /// Sets what the tunnel's device carries.
    pub(super) async fn set_mtu(&self, mtu: u16) -> Result<(), ParentError> {
        Ok(self.requests.request(SetMtu(mtu)).await?)
    }

    /// Prompts the person at the terminal; `None` without an answer.
    pub(super) async fn ask(&self, question: Question) -> Option<ChallengeAnswer> {
        self.requests.request(question).await.ok().flatten()
    }

    /// Has the person told what a server behind the gateway says.
    pub(super) async fn tell(&self, text: ChallengeText) -> Result<(), ParentError> {
        Ok(self.requests.request(Tell(text)).await?)
    }

    /// The device's signature for the connection that has this binding.
    pub(super) async fn prove(&self, binding: &Binding) -> Result<[u8; SIGNATURE_LEN], ParentError> {
        Ok(self.requests.request(Prove((*binding.as_bytes()).into())).await?.into())
    }

    /// Whether it has ended the client, or is gone: there are no more replies.
    pub(super) fn is_ending(&self) -> bool {
        self.requests.is_closed()
    }

    /// Reason for the client's end; `None` unless the parent ends it.
    pub(super) fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use vpnd_ipc::channel;
    use vpnd_ipc::messages::MAX_FRAME;

    #[tokio::test]
    async fn pending_requests_fail_when_the_channel_ends() {
        let (ours, theirs) = channel::pair().unwrap();
        let parent = Channel::new(theirs, MAX_FRAME).unwrap();
        let (client, mut events) = ParentClient::start(Channel::new(ours, MAX_FRAME).unwrap());
        let asker = Arc::clone(&client);
        let asked = tokio::spawn(async move { asker.set_mtu(1400).await });
        parent.receive::<FromWorker>().await.unwrap().unwrap();
        assert!(!client.is_ending());
        parent.send(&ToWorker::Stop(Some("SIGTERM".to_owned())), &[]).await.unwrap();
        let soon = Duration::from_secs(5);
        let answer = tokio::time::timeout(soon, asked).await.expect("it waits for ever").unwrap();
        assert!(matches!(answer, Err(ParentError::Gone(_))), "{answer:?}");
        assert_eq!(events.recv().await, Some(ParentEvent::Stop));
        assert_eq!(client.reason(), Some("SIGTERM"));
        let late = tokio::time::timeout(soon, client.set_mtu(1400)).await.expect("it waits for ever");
        assert!(matches!(late, Err(ParentError::Gone(_))), "{late:?}");
        assert!(client.is_ending());
    }
}
