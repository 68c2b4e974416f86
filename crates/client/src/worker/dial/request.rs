//! A client's first message on a connection, with identity and proof, and the conversation up to
//! the gateway's decision.

use std::sync::Arc;
use std::time::Duration;

use vpnd_control_channel::login::{ANSWER_TIMEOUT, LoginError, LoginReply, RequestStream, request};
use vpnd_crypto::device::PUBLIC_KEY_LEN;
use vpnd_proto::client::Purpose;
use vpnd_proto::control::{Grant, Message, Offer, SecretText, UserName};
use vpnd_proto::device::DeviceProof;

use super::challenge::{answer, one_time_code, time_for_reply};
use super::handshakes::Shaken;
use super::unanswered::Unanswered;
use super::{DialError, DialOutcome};
use crate::messages::WorkerLaunch;
use crate::worker::parent_client::ParentClient;

/// This program, for the gateway's log.
pub(super) const SOFTWARE: &str = concat!("vpnd/", env!("CARGO_PKG_VERSION"));

/// The requests of one user at this device.
pub(super) struct GatewayRequests {
    user: String,
    password: SecretText<1024>,
    /// The public key of this device.
    device: [u8; PUBLIC_KEY_LEN],
    /// Signs, and prompts the user.
    parent: Arc<ParentClient>,
    unanswered: Unanswered,
}

impl GatewayRequests {
    pub(super) fn new(launch: &WorkerLaunch, parent: Arc<ParentClient>) -> Self {
        Self {
            user: launch.user.clone(),
            password: launch.password.clone(),
            device: launch.device.into(),
            parent,
            unanswered: Unanswered::default(),
        }
    }

    /// Sends a request on this connection, and waits for what comes of it.
    pub(super) async fn send(
        &self,
        purpose: &Purpose,
        offer: Offer,
        grant: Option<Grant>,
        shaken: Shaken,
    ) -> Result<DialOutcome, DialError> {
        let request = self.request(purpose, offer, grant);
        let waiting = self.unanswered.wait_on(&shaken.connection, &shaken.endpoint);
        let outcome = self.converse(request, shaken).await;
        waiting.answered();
        outcome.map_err(DialError::with_cause)
    }

    /// Tells gateways of requests that were given up.
    pub(super) async fn part(&self, limit: Duration) {
        self.unanswered.part(limit).await;
    }

    /// Has the parent sign, which alone has the device's key.
    pub(super) async fn prove(&self, stream: &RequestStream) -> Result<DeviceProof, DialError> {
        let proof = self.parent.prove(&stream.binding()?).await.map_err(DialError::NoProof)?;
        Ok(DeviceProof::new(self.device, proof))
    }

    async fn converse(
        &self,
        request: impl FnOnce(DeviceProof) -> Result<Message, DialError>,
        Shaken { endpoint, connection, carrier }: Shaken,
    ) -> Result<DialOutcome, DialError> {
        let mut stream = RequestStream::open(connection).await?;
        let device = self.prove(&stream).await?;
        stream.send(&request(device)?).await?;
        let mut longest = ANSWER_TIMEOUT;
        loop {
            match stream.reply_within(longest).await? {
                LoginReply::Established(established) => {
                    let channel = stream.establish(*established)?;
                    return Ok(DialOutcome::Established(Box::new(channel), endpoint, carrier));
                }
                LoginReply::Refused(refused) => return Ok(DialOutcome::Refused(refused)),
                LoginReply::LoginAt(_) => {
                    return Err(LoginError::Unexpected("a page, which was not asked for").into());
                }
                LoginReply::OneTimeCodeWanted => stream.send(&one_time_code(&self.parent).await?).await?,
                LoginReply::Challenge(challenge) => {
                    longest = time_for_reply(&challenge);
                    if let Some(answer) = answer(&self.parent, &challenge).await? {
                        stream.send(&answer).await?;
                    }
                }
            }
        }
    }

    fn request<'r>(
        &'r self,
        purpose: &'r Purpose,
        offer: Offer,
        grant: Option<Grant>,
    ) -> impl FnOnce(DeviceProof) -> Result<Message, DialError> + 'r {
        move |device| {
            let user = UserName::new(&self.user)?;
            let password = match grant {
                Some(_) => SecretText::new("")?,
                None => self.password.clone(),
            };
            let mut message = request(purpose, offer, (user, password), device, SOFTWARE);
            if let Message::Login(login) = &mut message {
                login.grant = grant.map(Box::new);
            }
            Ok(message)
        }
    }
}
