//! One control connection of a client: find the gateway, shake hands, log in or attach.

mod addresses;
mod browser;
mod candidates;
mod challenge;
mod error;
mod handshakes;
mod request;
mod search;
mod trial_log;
mod trials;
mod unanswered;
mod ways;

#[cfg(any(test, fuzzing))]
pub(crate) use browser::read_arrival;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use vpnd_control_channel::login::{ANSWER_TIMEOUT, Channel, LoginError, LoginReply, RequestStream};
use vpnd_proto::client::Purpose;
use vpnd_proto::control::{Code, Message, Offer, Refused};
use vpnd_proto::device::DeviceProof;

use super::over_tcp::Carrier;
use super::parent_client::ParentClient;
pub(super) use error::DialError;
use handshakes::Shaken;
pub(super) use request::Credentials;
pub(super) use search::GatewaySearch;
use unanswered::Unanswered;

/// The gateway's reply to a login or attach.
pub(super) enum DialOutcome {
    /// A new epoch, the endpoint of its connection, and what carries it if that is TCP.
    Established(Box<Channel>, quinn::Endpoint, Option<Carrier>),
    /// No session.
    Refused(Refused),
}

/// Everything that logins and attaches have in common.
pub(super) struct Dialer {
    search: Arc<GatewaySearch>,
    credentials: Credentials,
    /// Signs, and prompts the user.
    parent: Arc<ParentClient>,
    unanswered: Unanswered,
}

impl Dialer {
    pub(super) fn new(
        search: Arc<GatewaySearch>,
        credentials: Credentials,
        parent: Arc<ParentClient>,
    ) -> Self {
        Self { search, credentials, parent, unanswered: Unanswered::default() }
    }

    /// Sends the request to the first of the gateway's addresses that shakes hands, as
    /// [`GatewaySearch::shake_hands`] finds it.
    pub(super) async fn dial(
        &self,
        purpose: &Purpose,
        offer: Offer,
        current: Option<SocketAddr>,
        rtt: Option<Duration>,
        may_look_up: bool,
    ) -> Result<DialOutcome, DialError> {
        match purpose {
            Purpose::Login if self.credentials.browser.is_on() => {
                return self.dial_in_browser(offer, current, rtt, may_look_up).await;
            }
            // No user may be there to log in at another gateway.
            Purpose::Move if self.credentials.browser.is_on() => return Err(DialError::NoOther),
            _ => {}
        }
        let shaken = self.search.shake_hands(purpose, current, rtt, may_look_up).await?;
        let outcome = self.ask(purpose, offer.clone(), None, shaken).await?;
        match outcome {
            DialOutcome::Refused(refused) if refused.code == Code::Browser && *purpose == Purpose::Login => {
                self.credentials.browser.switch_on();
                self.dial_in_browser(offer, current, rtt, may_look_up).await
            }
            outcome => Ok(outcome),
        }
    }

    /// Sends the request on this connection, and waits for what comes of it.
    async fn ask_on(
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
                LoginReply::OneTimeCodeWanted => stream.send(&self.one_time_code().await?).await?,
                LoginReply::Challenge(challenge) => {
                    longest = challenge::time_for_reply(&challenge);
                    if let Some(answer) = self.answer(&challenge).await? {
                        stream.send(&answer).await?;
                    }
                }
            }
        }
    }
}
