//! Sessions that end, and what waits until they have.
//!
//! INVARIANT: sessions of one batch end together, whatever ends them, so that shards are asked once
//! for what all of these have carried, to their last packet: no request or message waits for the
//! shards by itself. No request is replied to before all of its batch is carried out.

use std::borrow::Cow;
use std::collections::HashSet;

use tokio::sync::oneshot;
use vpnd_proto::control::Code;
use vpnd_proto::gateway::{EndedSession, Gateway, Selector};
use vpnd_proto::session::SessionId;

use super::Ended;
use crate::worker::registry::Registry;

/// Sessions to end, and the reason that their clients get.
#[derive(Debug)]
pub(crate) struct ToEnd {
    pub which: Selector,
    pub code: Code,
    pub text: Cow<'static, str>,
}

impl ToEnd {
    pub(super) fn session(session: SessionId, code: Code, text: &'static str) -> Self {
        Self { which: Selector::Session(session), code, text: text.into() }
    }
}

/// The number of sessions that have ended for each [`ToEnd`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndedCounts {
    pub counts: Vec<usize>,
    /// Whether all of that is in the store: if not, clients may be let in again.
    pub is_stored: bool,
}

impl EndedCounts {
    pub(crate) fn sum(&self) -> usize {
        self.counts.iter().sum()
    }
}

/// A session that ends with the others of its batch.
pub(super) struct Leaving {
    pub(super) session: SessionId,
    pub(super) code: Code,
    pub(super) text: Cow<'static, str>,
}

/// Sends a reply, given the sessions of which a change is not in the store.
type Reply = Box<dyn FnOnce(&HashSet<SessionId>) + Send>;

/// Endings and replies of one batch of requests and messages, and what has ended before.
#[derive(Default)]
pub(super) struct Endings {
    /// Sessions that are to end, and whose last packets are not counted yet.
    leaving: Vec<Leaving>,
    /// Sessions that could not begin, and are to end.
    unready: Vec<SessionId>,
    /// Sessions of which a change, such as their end, is not in the store.
    unstored: HashSet<SessionId>,
    /// Replies to send once everything before is carried out.
    replies: Vec<Reply>,
    ended: Ended,
}

impl Endings {
    /// These sessions end with the others of their batch. Returns how many there are; one that
    /// another request of the batch ends, too, counts for both.
    pub(super) fn end(&mut self, ToEnd { which, code, text }: ToEnd, gateway: &Gateway) -> usize {
        let before = self.leaving.len();
        let leaving = |session| Leaving { session, code, text: text.clone() };
        self.leaving.extend(gateway.selected(&which).map(leaving));
        self.leaving.len() - before
    }

    /// Ends sessions with the others of their batch. Returns how many there are.
    pub(super) fn end_all(&mut self, which: impl IntoIterator<Item = ToEnd>, gateway: &Gateway) -> usize {
        which.into_iter().map(|to_end| self.end(to_end, gateway)).sum()
    }

    /// Sends the reply once this batch is carried out, if the requester still waits.
    pub(super) fn reply_when_done<T: Send + 'static>(&mut self, reply: oneshot::Sender<T>, answer: T) {
        self.replies.push(Box::new(move |_| drop(reply.send(answer))));
    }

    /// Ends sessions with the others of their batch, and replies then.
    pub(super) fn end_and_reply(
        &mut self,
        which: Vec<ToEnd>,
        reply: oneshot::Sender<EndedCounts>,
        gateway: &Gateway,
    ) {
        let sessions = which.iter().flat_map(|to_end| gateway.selected(&to_end.which)).collect();
        let counts = which.into_iter().map(|to_end| self.end(to_end, gateway)).collect();
        self.reply_when_ended(sessions, counts, reply);
    }

    /// Ends those of the sessions that began until then, as [`Self::end_and_reply`] does.
    pub(super) fn end_begun_and_reply(
        &mut self,
        which: Vec<(ToEnd, u64)>,
        reply: oneshot::Sender<EndedCounts>,
        gateway: &Gateway,
        registry: &Registry,
    ) {
        let (mut sessions, mut counts) = (Vec::new(), Vec::new());
        for (ToEnd { which, code, text }, until_s) in which {
            let began =
                |id: &SessionId| registry.member(*id).is_none_or(|member| member.span.started_s <= until_s);
            let meant: Vec<SessionId> = gateway.selected(&which).filter(began).collect();
            counts.push(meant.len());
            for session in &meant {
                let (which, text) = (Selector::Session(*session), text.clone());
                self.end(ToEnd { which, code, text }, gateway);
            }
            sessions.extend(meant);
        }
        self.reply_when_ended(sessions, counts, reply);
    }

    fn reply_when_ended(
        &mut self,
        sessions: Vec<SessionId>,
        counts: Vec<usize>,
        reply: oneshot::Sender<EndedCounts>,
    ) {
        self.replies.push(Box::new(move |unstored| {
            let is_stored = !sessions.iter().any(|session| unstored.contains(session));
            drop(reply.send(EndedCounts { counts, is_stored }));
        }));
    }

    /// The sessions to end that were named since the last call.
    pub(super) fn take_leaving(&mut self) -> Vec<Leaving> {
        std::mem::take(&mut self.leaving)
    }

    /// These sessions could not begin, and are to end.
    pub(super) fn add_unready(&mut self, sessions: impl IntoIterator<Item = SessionId>) {
        self.unready.extend(sessions);
    }

    /// The sessions that could not begin since the last call.
    pub(super) fn take_unready(&mut self) -> Vec<SessionId> {
        std::mem::take(&mut self.unready)
    }

    /// A change of these sessions is not in the store.
    pub(super) fn add_unstored(&mut self, sessions: &HashSet<SessionId>) {
        self.unstored.extend(sessions);
    }

    /// Everything is carried out: sends the replies.
    pub(super) fn reply(&mut self) {
        let unstored = std::mem::take(&mut self.unstored);
        for reply in self.replies.drain(..) {
            reply(&unstored);
        }
    }

    /// A session has ended.
    pub(super) fn count(&mut self, ended: &EndedSession) {
        self.ended.add(ended);
    }

    /// The sessions of the gateway are closed without an end: what they have carried counts.
    pub(super) fn count_closed(&mut self, gateway: &Gateway) {
        for session in gateway.sessions() {
            self.ended.rx_bytes += session.activity.rx_bytes;
            self.ended.tx_bytes += session.activity.tx_bytes;
        }
    }

    /// All that have ended.
    pub(super) fn ended(&self) -> &Ended {
        &self.ended
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use tokio::sync::mpsc;
    use tokio::task::JoinSet;
    use vpnd_config::factor::Factors;
    use vpnd_crypto::EpochSecret;
    use vpnd_ipc::gateway::auth::SourceName;
    use vpnd_proto::control::UserName;
    use vpnd_proto::gateway::{Addresses, Authenticated, Config};
    use vpnd_proto::session::{ConnectionId, DeviceId};
    use vpnd_sys::clock::now;

    use super::*;
    use crate::worker::core::Core;
    use crate::worker::registry::{Member, Span};
    use crate::worker::testing;

    const RADIUS: &str = "[[source]]\nname = 'campus'\nkind = 'radius'\nmatch = '*'\nservers = ['radius://192.0.2.1']\n\
        secret_file = 'secret'\naccounting_servers = ['radius://192.0.2.1:1813']\n";

    fn gateway(sessions: usize) -> Gateway {
        testing::gateway(Config { shards: 2, ..testing::config(sessions) })
    }

    fn user(number: u8) -> UserName {
        UserName::new(format!("user{number}")).unwrap()
    }

    fn log_in(number: u8, started_s: u64, gateway: &mut Gateway, registry: &mut Registry) {
        let session = SessionId([number; 16]);
        let addresses = Addresses { ipv4: Some([10, 86, 0, number].into()), ipv6: None };
        let member = Member {
            user: user(number),
            source: SourceName::cut("campus"),
            groups: Box::default(),
            addresses,
            factors: Factors::default(),
            span: Span { started_s, expires_s: u64::MAX },
            is_walled: false,
            generation: 0,
        };
        let (principal, limits) = registry.take_over(session, member);
        let who = Authenticated {
            session,
            user: user(number),
            principal,
            limits,
            device: DeviceId([number; 16]),
            addresses,
            deadline: now() + Duration::from_secs(3_600),
            idle_timeout: None,
            elsewhere: 0,
        };
        let connection = ConnectionId(number.into());
        gateway.login(now(), connection, who, &testing::offer(), EpochSecret::new([number; 32])).unwrap();
    }

    #[tokio::test]
    async fn sessions_that_end_at_once_are_counted_in_one_round_over_the_shards() {
        const SESSIONS: u8 = 200;
        let (auth, _) = testing::auth();
        let config = vpnd_config::testing::smallest(RADIUS);
        let (mut gateway, mut registry) = (gateway(SESSIONS.into()), Registry::new(auth, &config).unwrap());
        for number in 1..=SESSIONS {
            log_in(number, u64::MAX, &mut gateway, &mut registry);
            assert!(registry.is_accounted(SessionId([number; 16])));
        }
        let (shards, reports) = vpnd_shard::testing::answering(2);
        let (_events, no_events) = mpsc::channel(1);
        let (core, _) = Core::start(gateway, shards, no_events, registry, None);
        let began = now();
        let mut ends = JoinSet::new();
        for number in 1..=SESSIONS {
            let (core, text) = (core.clone(), "".into());
            let which = vec![ToEnd { which: Selector::User(user(number)), code: Code::Kicked, text }];
            ends.spawn(async move { core.end(which).await });
        }
        let ended = ends.join_all().await;
        // The core asks for traffic each second, too.
        let of_time = usize::try_from(now().since(began).as_secs()).unwrap() + 1;
        // There is no auth process that would keep it.
        let expected = EndedCounts { counts: vec![1], is_stored: false };
        assert!(ended.iter().all(|ended| *ended.as_ref().unwrap() == expected), "{ended:?}");
        assert!(reports.load(Ordering::Relaxed) <= 2 * (1 + of_time), "{reports:?}");
        assert!(core.status().await.unwrap().sessions.is_empty());
    }

    #[tokio::test]
    async fn an_order_ends_the_sessions_that_began_before_it_and_no_later_ones() {
        let (auth, _) = testing::auth();
        let config = vpnd_config::testing::smallest(RADIUS);
        let (mut gateway, mut registry) = (gateway(3), Registry::new(auth, &config).unwrap());
        for (number, started_s) in [(1, 1_000), (2, 1_001), (3, 1_000)] {
            log_in(number, started_s, &mut gateway, &mut registry);
        }
        let (shards, _) = vpnd_shard::testing::answering(2);
        let (_events, no_events) = mpsc::channel(1);
        let (core, _) = Core::start(gateway, shards, no_events, registry, None);
        let order = |number| {
            let which = Selector::User(user(number));
            (ToEnd { which, code: Code::Kicked, text: "".into() }, 1_000)
        };
        let ended = core.end_begun(vec![order(1), order(2), order(9)]).await.unwrap();
        // There is no auth process that would keep it.
        assert_eq!(ended, EndedCounts { counts: vec![1, 0, 0], is_stored: false });
        let left: Vec<_> =
            core.status().await.unwrap().sessions.iter().map(|status| status.id.0[0]).collect();
        assert_eq!(left, [2, 3]);
    }
}
