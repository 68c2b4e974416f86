//! The worker's end of the channel to the opener: what it asks for, and what it hears without having asked.

use std::collections::HashMap;
use std::io;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};
use vpnd_proto::control::{Network, OneTimePassword};

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
    waiting: Mutex<HashMap<u64, oneshot::Sender<Answered>>>,
}

impl Opener {
    /// Talks over `channel` from now on. Words end with the opener.
    pub(super) fn start(channel: Channel) -> (Arc<Self>, mpsc::Receiver<Word>) {
        let opener = Arc::new(Self { channel, turn: tokio::sync::Mutex::new(0), waiting: Mutex::default() });
        let (words, inbox) = mpsc::channel(QUEUE);
        let ear = Arc::clone(&opener);
        tokio::spawn(async move {
            if let Err(error) = ear.hear(&words).await {
                tracing::error!(%error, "the client's first process is lost");
            }
            // Whoever still waits learns that nothing will come.
            ear.waiting().clear();
        });
        (opener, inbox)
    }

    async fn hear(&self, words: &mpsc::Sender<Word>) -> Result<(), ChannelError> {
        while let Some(received) = self.channel.receive::<ToWorker>().await? {
            match received.message {
                ToWorker::Answer { number, reply } => {
                    let asker = self.waiting().remove(&number);
                    let asker = asker.ok_or(ChannelError::Broken("an answer that nobody waits for"))?;
                    // Who has asked may have gone meanwhile.
                    let _ = asker.send((reply, received.descriptors));
                }
                ToWorker::NetworkChanged => drop(words.send(Word::NetworkChanged).await),
                ToWorker::Stop => drop(words.send(Word::Stop).await),
                ToWorker::Devices(_)
                | ToWorker::Configuration(_)
                | ToWorker::HandOver
                | ToWorker::TakeOver
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

    /// A new UDP socket for the control channel, whose datagrams never enter the tunnel.
    pub(super) async fn socket(&self, ipv6: bool) -> io::Result<UdpSocket> {
        let (_, descriptors) = self.ask(Ask::Socket { ipv6 }).await.map_err(io::Error::other)?;
        let descriptor = descriptors.into_iter().next();
        Ok(descriptor.ok_or_else(|| io::Error::other("the opener has sent no socket"))?.into())
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

    async fn ask(&self, ask: Ask) -> Result<Answered, OpenerError> {
        let (done, answer) = oneshot::channel();
        {
            let mut number = self.turn.lock().await;
            *number += 1;
            self.waiting().insert(*number, done);
            self.channel.send(&ToOpener::Ask { number: *number, ask }, &[]).await?;
        }
        match answer.await.map_err(|_| OpenerError::Gone)? {
            (Reply::Failed(why), _) => Err(OpenerError::Refused(why)),
            answered => Ok(answered),
        }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<Answered>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
