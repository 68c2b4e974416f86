//! Rate limits of a client's worker's requests to its privileged parent. Numbers of routes, name
//! servers and domains are bounded where the message is decoded, the number of lookups at a time in
//! [`super::lookups`].

use std::collections::HashMap;
use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use vpnd_proto::time::Time;

use crate::messages::ParentRequest;
use vpnd_sys::allowance::Allowance;

/// The allowances of one worker. An honest one needs a socket for each address of each attempt to
/// connect, and for the others once for each attempt or change.
pub(super) struct Limits {
    /// The allowance of each kind of request that was made.
    by_kind: HashMap<Discriminant<ParentRequest>, Allowance>,
    /// A refusal has been logged.
    logged: bool,
}

impl Limits {
    pub(super) fn new() -> Self {
        Self { by_kind: HashMap::new(), logged: false }
    }

    /// Takes one from the allowance that `request` needs.
    ///
    /// # Errors
    /// If it is used up, for the worker.
    pub(super) fn take(&mut self, request: &ParentRequest, now: Time) -> Result<(), String> {
        let (burst, interval, what) = limit(request);
        let allowance = self.by_kind.entry(discriminant(request));
        if allowance.or_insert_with(|| Allowance::new(burst, interval)).take(now) {
            return Ok(());
        }
        let reason = format!("the network worker asks for more {what} than any client needs");
        // Once: otherwise a hostile worker could fill the log.
        if !std::mem::replace(&mut self.logged, true) {
            tracing::warn!("refused: {reason}");
        }
        Err(reason)
    }
}

/// The burst and the interval of this kind of request, and its name in a refusal.
const fn limit(request: &ParentRequest) -> (u32, Duration, &'static str) {
    match request {
        ParentRequest::Socket(_) => (512, Duration::from_millis(50), "sockets"),
        ParentRequest::Stream(_) => (64, Duration::from_millis(500), "TCP connections"),
        ParentRequest::Configure(_) => (64, Duration::from_millis(500), "changes of the tunnel"),
        ParentRequest::Mtu(_) => (256, Duration::from_millis(100), "sizes of packets"),
        ParentRequest::UseTunnelDns(_) => (64, Duration::from_millis(500), "changes of DNS servers"),
        ParentRequest::OverTcp(_) => (64, Duration::from_millis(500), "changes of its state"),
        ParentRequest::Addresses(_) => (64, Duration::from_millis(500), "lookups"),
        ParentRequest::Prove(_) => (256, Duration::from_millis(100), "signatures"),
        ParentRequest::Ask(_) => (16, Duration::from_secs(5), "answers of the user"),
        ParentRequest::Listen(_) => (64, Duration::from_millis(500), "sockets for browsers"),
        ParentRequest::Browse(_) => (8, Duration::from_secs(30), "browsers"),
        ParentRequest::Tell(_) => (16, Duration::from_secs(5), "notices"),
        ParentRequest::Measured(_) => (64, Duration::from_millis(250), "reports"),
        ParentRequest::Reopen(_) => (64, Duration::from_millis(500), "other ports of its lanes"),
        ParentRequest::Renew(_) => (16, Duration::from_secs(30), "changes of the gateway's addresses"),
    }
}

#[cfg(test)]
mod tests {
    use vpnd_proto::control::{AsText, ChallengeText, List, Network, Renewal, Text};

    use super::*;
    use crate::messages::{
        Browse, BrowserWay, Configure, ListenForBrowser, LookUp, Measured, OpenSocket, OpenStream, OverTcp,
        Prove, Question, Renew, Reopen, SetMtu, Tell, UseTunnelDns,
    };

    #[test]
    fn requests_of_a_clients_worker_are_limited() {
        let way = BrowserWay::Port { port: 40_000, lacks_code: false };
        let asks: [(ParentRequest, usize); 15] = [
            (OpenSocket(AsText("192.0.2.1:4433".parse().unwrap())).into(), 512 + 1_200),
            (OpenStream(AsText("192.0.2.1:443".parse().unwrap())).into(), 64 + 120),
            (OverTcp(true).into(), 64 + 120),
            (Configure(Network::default()).into(), 64 + 120),
            (SetMtu(1_400).into(), 256 + 600),
            (UseTunnelDns(true).into(), 64 + 120),
            (LookUp(0).into(), 64 + 120),
            (Prove([7; 32].into()).into(), 256 + 600),
            (Question::Code.into(), 16 + 12),
            (Renew(Renewal { addresses: List::default(), weights: None }).into(), 16 + 2),
            (ListenForBrowser.into(), 64 + 120),
            (Browse { url: Text::default(), way }.into(), 8 + 2),
            (Measured::default().into(), 64 + 240),
            (Tell(ChallengeText::default()).into(), 16 + 12),
            (Reopen(1).into(), 64 + 120),
        ];
        for (ask, most) in asks {
            let mut limits = Limits::new();
            let minute = (0..60_000).map(|millis| Time::ZERO + Duration::from_millis(millis));
            let granted = minute.filter(|at| limits.take(&ask, *at).is_ok()).count();
            assert!((most - 1..=most).contains(&granted), "{ask:?}: {granted} in a minute, at most {most}");
            let end = Time::ZERO + Duration::from_millis(59_999);
            let reason = limits.take(&ask, end).unwrap_err();
            assert!(reason.contains("than any client needs"), "{reason}");
            // One kind does not use up another's.
            let other = if matches!(ask, ParentRequest::Ask(_)) {
                SetMtu(1_400).into()
            } else {
                ParentRequest::from(Question::Code)
            };
            assert!(limits.take(&other, end).is_ok());
        }
    }

    #[test]
    fn attempts_on_a_bad_network_leave_the_browser_its_allowance() {
        let mut limits = Limits::new();
        let way = BrowserWay::Port { port: 40_000, lacks_code: false };
        for second in 0..120 {
            let at = Time::ZERO + Duration::from_secs(second);
            assert!(limits.take(&ListenForBrowser.into(), at).is_ok(), "{second}");
        }
        let page = Browse { url: Text::default(), way };
        assert!(limits.take(&page.into(), Time::ZERO + Duration::from_secs(120)).is_ok());
    }
}
