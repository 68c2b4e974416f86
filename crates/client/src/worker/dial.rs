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

use vpnd_control_channel::login::Channel;
use vpnd_proto::client::Purpose;
use vpnd_proto::control::{Code, Grant, Offer, Refused};

use super::over_tcp::Carrier;
use super::parent_client::ParentClient;
use crate::messages::WorkerLaunch;
use browser::InBrowser;
pub(super) use error::DialError;
use handshakes::Shaken;
use request::GatewayRequests;
pub(super) use search::GatewaySearch;
pub(super) use trial_log::TrialLog;

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
    requests: GatewayRequests,
    in_browser: InBrowser,
    /// Shows pages to the user.
    parent: Arc<ParentClient>,
}

impl Dialer {
    pub(super) fn new(search: Arc<GatewaySearch>, launch: &WorkerLaunch, parent: Arc<ParentClient>) -> Self {
        let requests = GatewayRequests::new(launch, Arc::clone(&parent));
        Self { search, requests, in_browser: InBrowser::of(launch), parent }
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
            Purpose::Login if self.in_browser.is_on() => {
                return browser::dial(self, offer, current, rtt, may_look_up).await;
            }
            // No user may be there to log in at another gateway.
            Purpose::Move if self.in_browser.is_on() => return Err(DialError::NoOther),
            _ => {}
        }
        let shaken = self.search.shake_hands(purpose, current, rtt, may_look_up).await?;
        let outcome = self.ask(purpose, offer.clone(), None, shaken).await?;
        match outcome {
            DialOutcome::Refused(refused) if refused.code == Code::Browser && *purpose == Purpose::Login => {
                self.in_browser.switch_on();
                browser::dial(self, offer, current, rtt, may_look_up).await
            }
            outcome => Ok(outcome),
        }
    }

    /// Sends the request on this connection, and notes what the reply says of the gateway.
    async fn ask(
        &self,
        purpose: &Purpose,
        offer: Offer,
        grant: Option<Grant>,
        shaken: Shaken,
    ) -> Result<DialOutcome, DialError> {
        let gateway = shaken.gateway();
        let outcome = self.requests.send(purpose, offer, grant, shaken).await?;
        match &outcome {
            DialOutcome::Refused(refused) if refused.code == Code::Drain => {
                gateway.map(|gateway| self.search.addresses().note_drained(gateway));
            }
            DialOutcome::Established(..) => {
                self.in_browser.was_up();
                if let Some(gateway) = gateway {
                    self.search.addresses().answered(gateway);
                }
            }
            DialOutcome::Refused(_) => {}
        }
        Ok(outcome)
    }

    /// Tells gateways of requests that were given up.
    pub(super) async fn part(&self, limit: Duration) {
        self.requests.part(limit).await;
    }
}
