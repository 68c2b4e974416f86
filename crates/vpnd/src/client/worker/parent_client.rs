//! The worker's end of the channel to the opener: what it asks for, and what it hears without having asked.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::{mpsc, oneshot};
use vpnd_crypto::device::{Binding, SIGNATURE_LEN};
use vpnd_proto::control::{AsText, Network, OneTimePassword};

use crate::privsep::channel::{Channel, ChannelError};
use crate::privsep::launch::{Ask, Reply, ToOpener, ToWorker};

/// Words that wait to be heard at most.
const QUEUE: usize = 16;

/// What the opener says by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// The machine's network changed.
    NetworkChanged,
    /// Tell the gateway, and end.
    Stop,
}

/// Something was not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenerError {
    /// The opener says why.
    #[error("{0}")]
    Refused(String),
    /// The channel broke.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The opener is gone.
    #[error("the client's first process is gone")]
    Gone,
}

type Answered = (Reply, Vec<OwnedFd>);

/// The opener, as the worker sees it.
#[derive(Debug)]
pub(super) struct Opener {
    channel: Channel,
    /// The number of the last question; who holds it may send.
    turn: tokio::sync::Mutex<u64>,
    /// `None` once nothing is answered any more.
    waiting: Mutex<Option<HashMap<u64, oneshot::Sender<Answered>>>>,
    /// Why the client is to end, once it is.
    reason: OnceLock<String>,
}

impl Opener {
    /// Talks over `channel` from now on. Words end with the opener.
    pub(super) fn start(channel: Channel) -> (Arc<Self>, mpsc::Receiver<Word>) {
        let opener = Arc::new(Self {
            channel,
            turn: tokio::sync::Mutex::new(0),
            waiting: Mutex::new(Some(HashMap::new())),
            reason: OnceLock::new(),
        });
        let (words, inbox) = mpsc::channel(QUEUE);
        let ear = Arc::clone(&opener);
        tokio::spawn(async move {
            if let Err(error) = ear.hear(&words).await {
                tracing::error!(%error, "the client's first process is lost");
            }
            ear.waiting().take();
        });
        (opener, inbox)
    }

    async fn hear(&self, words: &mpsc::Sender<Word>) -> Result<(), ChannelError> {
        while let Some(received) = self.channel.receive::<ToWorker>().await? {
            match received.message {
                ToWorker::Answer { number, reply } => {
                    let Some(asker) = self.waiting().as_mut().map(|waiting| waiting.remove(&number)) else {
                        continue;
                    };
                    let asker = asker.ok_or(ChannelError::Broken("an answer that nobody waits for"))?;
                    // Who has asked may have gone meanwhile.
                    let _ = asker.send((reply, received.descriptors));
                }
                ToWorker::NetworkChanged => drop(words.send(Word::NetworkChanged).await),
                ToWorker::Stop(reason) => {
                    let _ = self.reason.set(reason.unwrap_or_default());
                    // It answers no more, so whoever waits for an answer would not see that this is the end.
                    self.waiting().take();
                    let _ = words.send(Word::Stop).await;
                }
                ToWorker::Devices(_)
                | ToWorker::Configuration(_)
                | ToWorker::HandOver
                | ToWorker::TakeOver
                | ToWorker::Certificate(_)
                | ToWorker::Revoked(_)
                | ToWorker::NotUpgraded(_) => {
                    return Err(ChannelError::Broken("a message that is not for a client"));
                }
            }
        }
        Ok(())
    }

    /// Says that the worker works.
    pub(super) async fn ready(&self) -> Result<(), OpenerError> {
        let _turn = self.turn.lock().await;
        Ok(self.channel.send(&ToOpener::Ready, &[]).await?)
    }

    /// A new UDP socket for the control channel to `gateway`, whose datagrams never enter the tunnel. Refused if the
    /// machine knows no way there.
    pub(super) async fn socket(&self, gateway: SocketAddr) -> Result<UdpSocket, OpenerError> {
        let (_, descriptors) = self.ask(Ask::Socket(AsText(gateway))).await?;
        let descriptor = descriptors.into_iter().next();
        Ok(descriptor.ok_or(ChannelError::Broken("an answer without a socket"))?.into())
    }

    /// The addresses of the gateway that the profile names in this place.
    pub(super) async fn addresses(&self, server: usize) -> Result<Vec<IpAddr>, OpenerError> {
        match self.ask(Ask::Addresses(server as u32)).await? {
            (Reply::Addresses(found), _) => Ok(found.into_iter().map(|address| address.0).collect()),
            _ => Err(ChannelError::Broken("an answer without addresses").into()),
        }
    }

    /// Has the machine use the tunnel's DNS servers, or its own.
    pub(super) async fn use_tunnel_dns(&self, tunnel: bool) -> Result<(), OpenerError> {
        self.ask(Ask::UseTunnelDns(tunnel)).await.map(drop)
    }

    /// Sets up the tunnel.
    pub(super) async fn configure(&self, network: &Network) -> Result<(), OpenerError> {
        self.ask(Ask::Configure(network.clone())).await.map(drop)
    }

    /// Sets what the tunnel's device carries.
    pub(super) async fn set_mtu(&self, mtu: u16) -> Result<(), OpenerError> {
        self.ask(Ask::Mtu(mtu)).await.map(drop)
    }

    /// Has the person at the terminal asked; `None` if there is no answer.
    pub(super) async fn one_time_code(&self) -> Option<OneTimePassword> {
        match self.ask(Ask::Code).await {
            Ok((Reply::Code(code), _)) => code,
            _ => None,
        }
    }

    /// The device's signature for the connection that has this binding.
    pub(super) async fn prove(&self, binding: &Binding) -> Result<[u8; SIGNATURE_LEN], OpenerError> {
        match self.ask(Ask::Prove((*binding.as_bytes()).into())).await? {
            (Reply::Proof(signature), _) => Ok(signature.into()),
            _ => Err(ChannelError::Broken("an answer to something else").into()),
        }
    }

    async fn ask(&self, ask: Ask) -> Result<Answered, OpenerError> {
        let (done, answer) = oneshot::channel();
        {
            let mut number = self.turn.lock().await;
            *number += 1;
            self.waiting().as_mut().ok_or(OpenerError::Gone)?.insert(*number, done);
            self.channel.send(&ToOpener::Ask { number: *number, ask }, &[]).await?;
        }
        match answer.await.map_err(|_| OpenerError::Gone)? {
            (Reply::Failed(why), _) => Err(OpenerError::Refused(why)),
            answered => Ok(answered),
        }
    }

    /// Whether it has said that this is the end, or is gone: nothing is answered any more.
    pub(super) fn is_ending(&self) -> bool {
        self.waiting().is_none()
    }

    /// Why the client is to end; `None` unless the opener has said so.
    pub(super) fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Option<HashMap<u64, oneshot::Sender<Answered>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::privsep::channel;
    use crate::privsep::launch::MAX_FRAME;

    #[tokio::test]
    async fn whoever_waits_for_an_answer_learns_that_it_is_the_end() {
        let (ours, theirs) = channel::pair().unwrap();
        let parent = Channel::new(theirs, MAX_FRAME).unwrap();
        let (opener, mut words) = Opener::start(Channel::new(ours, MAX_FRAME).unwrap());
        let asker = Arc::clone(&opener);
        let asked = tokio::spawn(async move { asker.set_mtu(1400).await });
        parent.receive::<ToOpener>().await.unwrap().unwrap();
        assert!(!opener.is_ending());
        parent.send(&ToWorker::Stop(Some("SIGTERM".to_owned())), &[]).await.unwrap();
        let soon = Duration::from_secs(5);
        let answer = tokio::time::timeout(soon, asked).await.expect("it waits for ever").unwrap();
        assert!(matches!(answer, Err(OpenerError::Gone)), "{answer:?}");
        assert_eq!(words.recv().await, Some(Word::Stop));
        assert_eq!(opener.reason(), Some("SIGTERM"));
        let late = tokio::time::timeout(soon, opener.set_mtu(1400)).await.expect("it waits for ever");
        assert!(matches!(late, Err(OpenerError::Gone)), "{late:?}");
        assert!(opener.is_ending());
    }
}
