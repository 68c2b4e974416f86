//! The auth process's requests to the idp process, which may end and come back.
//!
//! INVARIANT: no request waits longer than its caller allows, nor for an idp process that is gone.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use vpnd_ipc::channel::{Channel, ChannelError};
use vpnd_ipc::gateway::idp::{IdpRequest, MAX_FRAME};
use vpnd_ipc::messages::SecretBytes;
use vpnd_ipc::request::{Numbered, Reason, Request};
use vpnd_ipc::requests::{NoReply, Requests};

type IdpRequests = Requests<IdpRequest>;

/// The way to the idp process, while there is one.
#[derive(Default)]
pub struct IdpClient(Mutex<Option<Arc<IdpRequests>>>);

impl IdpClient {
    /// Uses this channel from now on.
    pub fn connect(&self, channel: OwnedFd) -> std::io::Result<()> {
        let channel = Channel::new(channel.into(), MAX_FRAME)?;
        let frame = |number, content| Numbered { number, content };
        let requests = Arc::new(Requests::start(channel.clone(), frame));
        let current = Arc::downgrade(&requests);
        tokio::spawn(async move {
            let received = async {
                while let Some(received) = channel.receive::<Numbered<SecretBytes>>().await? {
                    let Numbered { number, content } = received.alone()?;
                    let Some(requests) = current.upgrade() else { return Ok(()) };
                    requests.reply(number, &content, Vec::new())?;
                }
                Ok::<_, ChannelError>(())
            };
            match received.await {
                Ok(()) => tracing::debug!("the idp process has ended"),
                Err(error) => tracing::error!(%error, "the idp process is lost"),
            }
            // Whatever it sends from now on does not count.
            let _ = channel.close();
            if let Some(requests) = current.upgrade() {
                requests.close();
            }
        });
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(requests);
        Ok(())
    }

    /// Sends a request and waits for its reply, no longer than `longest`.
    ///
    /// # Errors
    /// With the reason, for the log, if no server of the source has answered, or the idp process
    /// has not.
    pub async fn request<R>(&self, request: R, longest: Duration) -> Result<R::Reply, Reason>
    where
        R: Request<Message = IdpRequest>,
    {
        let requests = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let gone = || Reason::cut("the idp process is not there");
        match tokio::time::timeout(longest, requests.ok_or_else(gone)?.request(request)).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(NoReply::Failed(reason))) => Err(reason),
            Ok(Err(NoReply::Gone(_))) => Err(gone()),
            Err(_) => Err(Reason::cut("the idp process gave no answer in time")),
        }
    }
}
