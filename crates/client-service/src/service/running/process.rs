//! The process of a client that the service runs, and its end.
//!
//! INVARIANT: one that does not end in time after it was told to is killed.

use std::process::ExitStatus;
use std::time::Duration;

use tokio::process::Child;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::QUEUE;
use vpnd_client::frames::{FrameError, Reader, Writer};
use vpnd_client::user_messages::{FromClient, ToClient};

/// Time for a client to end once it was told to.
const END_TIMEOUT: Duration = Duration::from_secs(15);

/// The cause of a client's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Its user or root.
    Person,
    /// The service itself; no user is at the machine.
    Service,
    /// The command that waited for the tunnel is gone, which is no wish for an open network.
    Unattended,
    /// Another tunnel, in its place: a user's in that of the machine's, or the machine's again.
    Another,
}

pub(super) struct Process {
    child: Child,
    inbox: mpsc::Receiver<FromClient>,
    /// Closed when the service ends the client.
    writer: Option<Writer>,
    /// The cause of its end, and when it is killed if it has not ended.
    ending: Option<(Ending, Instant)>,
    /// The reason of its end, if that is known, and whether a person must do something about it.
    failure: Option<(String, bool)>,
}

impl Process {
    /// Sends and receives over this channel from now on.
    pub(super) fn new(child: Child, mut reader: Reader, writer: Writer) -> Self {
        let (sender, inbox) = mpsc::channel(QUEUE);
        tokio::spawn(async move {
            while let Ok(Some(message)) = reader.next().await {
                if sender.send(message).await.is_err() {
                    return;
                }
            }
        });
        Self { child, inbox, writer: Some(writer), ending: None, failure: None }
    }

    /// The next message; `None` once the client has closed its channel. Safe to cancel.
    pub(super) async fn receive(&mut self) -> Option<FromClient> {
        self.inbox.recv().await
    }

    pub(super) async fn send<T: minicbor::Encode<()>>(&mut self, message: &T) -> Result<(), FrameError> {
        match &mut self.writer {
            Some(writer) => writer.send(message).await,
            None => Ok(()),
        }
    }

    /// Has it end, unless that is under way.
    pub(super) async fn end(&mut self, ending: Ending) -> Result<(), FrameError> {
        if self.ending.is_some() {
            return Ok(());
        }
        self.ending = Some((ending, Instant::now() + END_TIMEOUT));
        match ending {
            Ending::Person => self.send(&ToClient::End).await,
            Ending::Another => self.send(&ToClient::GiveWay).await,
            Ending::Unattended => self.send(&ToClient::Abandon).await,
            Ending::Service => {
                let sent = self.send(&ToClient::Leave).await;
                self.writer = None;
                sent
            }
        }
    }

    /// It ends for this reason.
    pub(super) fn fail(&mut self, why: String, is_final: bool) {
        self.failure = Some((why, is_final));
    }

    /// When it is to be killed, once it was told to end.
    pub(super) fn kill_at(&self) -> Option<Instant> {
        self.ending.map(|(_, at)| at)
    }

    /// Waits for its end, after it has closed its channel or is to be killed. `None` if it was
    /// killed.
    pub(super) async fn ended(&mut self) -> Option<ExitStatus> {
        self.writer = None;
        let has_had_time = self.kill_at().is_some_and(|at| at <= Instant::now());
        let limit = if has_had_time { Duration::ZERO } else { END_TIMEOUT };
        if let Ok(ended) = timeout(limit, self.child.wait()).await {
            return ended.ok();
        }
        tracing::warn!("a client does not end by itself and is killed");
        if let Err(error) = self.child.kill().await {
            tracing::error!(%error, "a client can't be killed");
        }
        None
    }

    /// The reason of its end, and whether a person must do something about it.
    pub(super) fn reason(&mut self, status: Option<ExitStatus>) -> (String, bool) {
        self.failure.take().unwrap_or_else(|| (self.own_words(status), false))
    }

    /// The reason of an end for which the client gave none.
    fn own_words(&self, status: Option<ExitStatus>) -> String {
        match (self.ending, status) {
            (Some((Ending::Person, _)), Some(_)) => "ended".to_owned(),
            (Some((Ending::Unattended, _)), Some(_)) => "the command that waited for it has ended".to_owned(),
            (Some((Ending::Service, _)), Some(_)) => "the client service has stopped".to_owned(),
            (Some((Ending::Another, _)), Some(_)) => "a user's tunnel has taken its place".to_owned(),
            (_, Some(status)) => format!("the client has ended by itself ({status}); its log has the reason"),
            (_, None) => "the client was killed".to_owned(),
        }
    }
}
