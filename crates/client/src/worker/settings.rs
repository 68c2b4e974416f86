//! The tunnel's settings, which the parent puts in force.
//!
//! INVARIANT: once the tunnel was set up, no refusal of the parent ends the client: that would open
//! a tunnel for everything. The parent keeps what is in force, and what it has refused is requested
//! again until it is in force or the gateway has sent other settings, unless a person must decide
//! on it first. Another tunnel, whose new settings no attempt can put in force, is ended by the
//! parent itself.

use std::sync::Arc;
use std::time::Duration;

use vpnd_proto::control::Network;
use vpnd_proto::time::Time;

use super::parent_client::{ParentClient, ParentError};
use crate::messages::Configured;
use vpnd_sys::clock::now;
use vpnd_sys::logging::NEWS;

/// Interval at which refused settings are requested again.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

pub(super) struct TunnelSettings {
    parent: Arc<ParentClient>,
    /// Whether settings were ever in force.
    was_set_up: bool,
    mtu: Refused<u16>,
    network: Refused<Network>,
    retry_at: Option<Time>,
}

/// Settings that were refused.
struct Refused<T> {
    /// The last ones, if they are requested again.
    settings: Option<T>,
    /// The refusal that was logged last, so that it is not logged at each attempt.
    logged: Option<String>,
}

impl TunnelSettings {
    /// Nothing is set up yet.
    pub(super) fn new(parent: Arc<ParentClient>) -> Self {
        Self {
            parent,
            was_set_up: false,
            mtu: Refused::nothing(),
            network: Refused::nothing(),
            retry_at: None,
        }
    }

    /// Has the addresses, routes and name servers of `network` put in force.
    ///
    /// # Errors
    /// If the parent is gone, or refuses the first ones.
    pub(super) async fn configure(&mut self, network: Network) -> Result<(), ParentError> {
        let outcome = match self.parent.configure(&network).await {
            Ok(Configured::Undecided(reason)) if self.was_set_up => {
                self.network.note(None, reason);
                return Ok(());
            }
            Ok(Configured::Undecided(reason)) => Err(ParentError::Refused(reason)),
            outcome => outcome.map(drop),
        };
        if let Some(reason) = self.refusal(outcome)? {
            self.network.note(Some(network), reason);
            return Ok(());
        }
        (self.was_set_up, self.network) = (true, Refused::nothing());
        tracing::info!(
            target: NEWS,
            ipv4 = network.ipv4.map(tracing::field::display),
            ipv6 = network.ipv6.map(tracing::field::display),
            routes = network.routes.len(),
            "the tunnel is set up"
        );
        Ok(())
    }

    /// Sets the size of packets that the tunnel's device carries.
    ///
    /// # Errors
    /// Those of [`TunnelSettings::configure`].
    pub(super) async fn set_mtu(&mut self, mtu: u16) -> Result<(), ParentError> {
        let outcome = self.parent.set_mtu(mtu).await;
        match self.refusal(outcome)? {
            Some(reason) => self.mtu.note(Some(mtu), reason),
            None => self.mtu = Refused::nothing(),
        }
        Ok(())
    }

    /// Requests refused settings again, if it is time.
    ///
    /// # Errors
    /// If the parent is gone.
    pub(super) async fn retry(&mut self) -> Result<(), ParentError> {
        if self.retry_at.is_none_or(|at| now() < at) {
            return Ok(());
        }
        self.retry_at = None;
        if let Some(mtu) = self.mtu.settings.take() {
            self.set_mtu(mtu).await?;
        }
        if let Some(network) = self.network.settings.take() {
            self.configure(network).await?;
        }
        Ok(())
    }

    /// When [`TunnelSettings::retry`] is to be called.
    pub(super) fn retry_at(&self) -> Option<Time> {
        self.retry_at
    }

    /// The reason if the parent has refused it, which is then due again.
    fn refusal(&mut self, outcome: Result<(), ParentError>) -> Result<Option<String>, ParentError> {
        match outcome {
            Err(ParentError::Refused(reason)) if self.was_set_up => {
                self.retry_at = Some(now() + RETRY_INTERVAL);
                Ok(Some(reason))
            }
            outcome => outcome.map(|()| None),
        }
    }
}

impl<T> Refused<T> {
    const fn nothing() -> Self {
        Self { settings: None, logged: None }
    }

    /// Notes a refusal, with the settings if they are to be requested again. Logs it if it is
    /// another one than before.
    fn note(&mut self, settings: Option<T>, reason: String) {
        self.settings = settings;
        if self.logged.as_ref() != Some(&reason) {
            let next = match self.settings {
                Some(_) => format!("they are tried again every {} s", RETRY_INTERVAL.as_secs()),
                None => "they are not tried again before the client's next start".to_owned(),
            };
            tracing::warn!(
                "new settings of the tunnel are not in force, and the former ones stay; {next}: {reason}"
            );
            self.logged = Some(reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{Configure, FromWorker, ParentRequest, SetMtu, ToWorker};
    use vpnd_ipc::channel::{self, Channel};
    use vpnd_ipc::messages::MAX_FRAME;
    use vpnd_sys::logging::testing::logged_as_json;

    /// Replies to the next request as the parent does.
    async fn reply(parent: &Channel, outcome: Result<(), &str>) {
        let outcome = outcome.map_err(str::to_owned);
        let reply = match parent.receive::<FromWorker>().await.unwrap().unwrap().message {
            FromWorker::Request { number, request: ParentRequest::Configure(_) } => {
                ToWorker::reply::<Configure>(number, outcome.map(|()| Configured::InForce))
            }
            FromWorker::Request { number, request: ParentRequest::Mtu(_) } => {
                ToWorker::reply::<SetMtu>(number, outcome)
            }
            other => panic!("{other:?}"),
        };
        parent.send(&reply, &[]).await.unwrap();
    }

    #[test]
    fn a_refusal_is_logged_once_whatever_else_is_refused() {
        let (mut mtu, mut network) = (Refused::nothing(), Refused::nothing());
        let lines = logged_as_json(|| {
            for _ in 0..3 {
                mtu.note(Some(1_300), "no memory".to_owned());
                network.note(Some(Network::default()), "no room".to_owned());
            }
            network.note(None, "a session".to_owned());
        });
        let ends = |(line, reason): (&serde_json::Value, &str)| {
            line["message"].as_str().is_some_and(|message| message.ends_with(reason))
        };
        let reasons = [
            "they are tried again every 10 s: no memory",
            "they are tried again every 10 s: no room",
            "they are not tried again before the client's next start: a session",
        ];
        assert!(lines.len() == 3 && lines.iter().zip(reasons).all(ends), "{lines:?}");
    }

    #[tokio::test]
    async fn a_refusal_after_the_set_up_ends_no_client_and_is_tried_again() {
        let (ours, theirs) = channel::pair().unwrap();
        let parent = Channel::new(theirs, MAX_FRAME).unwrap();
        let (client, _events) = ParentClient::start(Channel::new(ours, MAX_FRAME).unwrap());
        let mut settings = TunnelSettings::new(client);
        let network = Network::default;
        let (first, ()) = tokio::join!(settings.configure(network()), reply(&parent, Err("no room")));
        assert!(matches!(first, Err(ParentError::Refused(_))), "before that it does: {first:?}");
        let (first, ()) = tokio::join!(settings.configure(network()), reply(&parent, Ok(())));
        first.unwrap();
        assert_eq!(settings.retry_at(), None);

        let (mtu, ()) = tokio::join!(settings.set_mtu(1_300), reply(&parent, Err("no memory")));
        mtu.unwrap();
        let (second, ()) = tokio::join!(settings.configure(network()), reply(&parent, Err("no room")));
        second.unwrap();
        assert!(settings.retry_at().is_some_and(|at| at > now()));
        // It is not time yet, so nothing is requested.
        settings.retry().await.unwrap();

        settings.retry_at = Some(now());
        let replies = async {
            reply(&parent, Ok(())).await;
            reply(&parent, Err("no room")).await;
        };
        let (mtu_and_second, ()) = tokio::join!(settings.retry(), replies);
        mtu_and_second.unwrap();
        assert!(settings.retry_at().is_some());
        settings.retry_at = Some(now());
        let (second, ()) = tokio::join!(settings.retry(), reply(&parent, Ok(())));
        second.unwrap();
        assert_eq!(settings.retry_at(), None);

        let undecided = async {
            let message = parent.receive::<FromWorker>().await.unwrap().unwrap().message;
            let FromWorker::Request { number, .. } = message else { panic!("{message:?}") };
            let outcome = Ok(Configured::Undecided("a session".to_owned()));
            parent.send(&ToWorker::reply::<Configure>(number, outcome), &[]).await.unwrap();
        };
        let (third, ()) = tokio::join!(settings.configure(network()), undecided);
        third.unwrap();
        assert_eq!(settings.retry_at(), None, "a person must decide first");
    }
}
