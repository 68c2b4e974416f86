//! The worker's requests to the auth process, many at a time.

use std::sync::{Arc, Weak};

use tokio::sync::Notify;

use vpnd_ipc::channel::{Channel, ChannelError};
use vpnd_ipc::gateway::auth::AuthRequest;
use vpnd_ipc::messages::SecretBytes;
use vpnd_ipc::request::{Numbered, Request};
use vpnd_ipc::requests::{Gone, NoReply, Requests};

/// The auth process. It takes no more requests than it has permits for, then the channel is full
/// and no more are sent; so no more wait for a reply than have permits there and room on the way.
#[derive(Clone)]
pub struct AuthClient(Arc<Requests<AuthRequest>>);

impl AuthClient {
    /// Uses `channel` from now on. `gone` is notified when the other end is no more.
    pub fn start(channel: Channel, gone: Arc<Notify>) -> Self {
        let frame = |number, content| Numbered { number, content };
        let requests = Arc::new(Requests::start(channel.clone(), frame));
        let askers = Arc::downgrade(&requests);
        tokio::spawn(async move {
            match receive_all(&channel, &askers).await {
                // Without requesters it ends in order.
                Ok(()) if askers.strong_count() == 0 => tracing::debug!("the auth process has ended"),
                Ok(()) => tracing::error!("the auth process has ended"),
                Err(error) => tracing::error!(%error, "the auth process is lost"),
            }
            if let Some(requests) = askers.upgrade() {
                requests.close();
            }
            gone.notify_one();
        });
        Self(requests)
    }

    /// Sends a request and waits for its reply.
    pub async fn request<R: Request<Message = AuthRequest>>(&self, request: R) -> Result<R::Reply, NoReply> {
        self.0.request(request).await
    }

    /// Sends a request once there is room for it, and returns what waits for its reply.
    pub async fn begin<R: Request<Message = AuthRequest>>(
        &self,
        request: R,
    ) -> Result<impl Future<Output = Result<R::Reply, NoReply>> + Send + use<R>, Gone> {
        self.0.begin(request).await
    }
}

async fn receive_all(channel: &Channel, askers: &Weak<Requests<AuthRequest>>) -> Result<(), ChannelError> {
    while let Some(received) = channel.receive::<Numbered<SecretBytes>>().await? {
        let Numbered { number, content } = received.alone()?;
        if let Some(requests) = askers.upgrade() {
            requests.reply(number, &content, Vec::new())?;
        }
    }
    Ok(())
}
