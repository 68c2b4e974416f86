//! The gateways of a fleet that a session tries for new keys, as vpnd's client does where all have
//! the same weight (PROTOCOL §5.2).

use std::net::SocketAddr;
use std::sync::Arc;

use rand::seq::SliceRandom as _;
use vpnd_proto::client::Purpose;
use vpnd_proto::control::Offer;
use vpnd_proto::session::ConnectionId;

use super::{ConnectionEvent, SOCKETS, Swarm};
use crate::dial;
use crate::message::Job;

impl Swarm {
    /// Has the session request a connection.
    pub(super) fn dial(&mut self, number: usize, connection: ConnectionId, purpose: Purpose, offer: Offer) {
        let user = self.requests[self.session(number) as usize % self.requests.len()].clone();
        let gateways = candidates(&self.job, self.lifecycles[number].gateway, &purpose);
        let request = dial::request(purpose, offer, user);
        let key = Arc::clone(&self.members[number].device);
        let endpoint = self.endpoints[number % SOCKETS].clone();
        let (name, events) = (Arc::clone(&self.server_name), self.events.clone());
        let attempt = tokio::spawn(async move {
            let result = dial::dial(endpoint, gateways, name, &key, request).await;
            // The owner is gone only with the process.
            let _ = events.send(ConnectionEvent::Dialled(number, connection, result));
        });
        self.attempts.insert((number, connection), attempt.abort_handle());
    }
}

/// The addresses to try, in order: the gateway that has the session goes on with it at once, and
/// whichever other one answers moves it.
fn candidates(job: &Job, current: SocketAddr, purpose: &Purpose) -> Vec<SocketAddr> {
    let all = std::iter::once(job.gateway).chain(job.others.iter().copied());
    let mut others: Vec<_> = all.filter(|gateway| *gateway != current).collect();
    others.shuffle(&mut rand::rng());
    if !purpose.leads_elsewhere() {
        others.insert(0, current);
    }
    others
}

#[cfg(test)]
mod tests {
    use vpnd_proto::attach::Token;
    use vpnd_proto::session::SessionId;

    use super::*;

    #[test]
    fn a_session_stays_or_moves_by_its_purpose() {
        let [first, second, third] = [1, 2, 3].map(|last| SocketAddr::from(([192, 0, 2, last], 4_433)));
        let job = Job {
            gateway: first,
            others: vec![second, third],
            server_name: String::new(),
            ca_pem: String::new(),
            first: 0,
            count: 1,
            at_once: 1,
            users: vec![],
            sources: vec![],
            soak: None,
            own_sockets: false,
            campus: None,
            far: None,
        };
        let (session, token) = (SessionId([1; 16]), Token::from_bytes([1; 32]));
        let attach = Purpose::Attach { session, token: token.clone() };
        let transfer = Purpose::Transfer { session, token };
        let mut firsts = [0; 2];
        for _ in 0..64 {
            let tried = candidates(&job, second, &attach);
            assert!(tried.len() == 3 && tried[0] == second && tried[1..].contains(&third), "{tried:?}");
            let tried = candidates(&job, second, &transfer);
            assert!(tried.len() == 2 && !tried.contains(&second), "{tried:?}");
            firsts[usize::from(tried[0] == third)] += 1;
        }
        assert!(firsts.iter().all(|count| *count > 0), "they share the load: {firsts:?}");
        let alone = Job { others: vec![], ..job };
        assert_eq!(candidates(&alone, first, &Purpose::Login), [first]);
        assert!(candidates(&alone, first, &transfer).is_empty());
    }
}
