//! Turns of handshakes at the process with the static key: how many of their steps it is asked for
//! at once.
//!
//! After a start handshakes are begun with all peers at once. That process has a short queue of
//! handshakes and refuses what does not fit; a peer that is refused waits for seconds. So the
//! questions wait here, and each answer makes room for the next one.
//!
//! Peers answer within moments, and what waits of theirs is bounded too: an answer that is dropped
//! costs its peer 5 s. So no more handshakes are begun than answers can be taken.
//!
//! Invariants: no more are under way than that process has room for. What peers have sent first and
//! the gateway's own handshakes take turns: a flood of the one does not keep the other waiting. Nor
//! does a flood of one network keep another's first messages: networks share places and turns. A
//! handshake that was answered is ended before another is begun.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use vpnd_proto::admission::Source;
use vpnd_proto::admission::shares::{Displaced, Division, Entered, PermitId, Shares, Standing};
use vpnd_proto::time::Time;

use crate::handshakes::{Refused, Reply, Request};
use crate::peers::{MAX_WAITING, RequestId};

/// Steps of handshakes under way; the process with the static key lets 32 wait.
const STEPS: usize = 24;
/// Time until a busy process is asked for a handshake again.
const PAUSE: Duration = Duration::from_millis(25);
/// Time after which a peer that has not answered makes room for the next one.
const ANSWER: Duration = Duration::from_millis(500);

/// A step of a handshake that the process with the static key is to make.
#[derive(Debug)]
pub struct Step {
    /// The number that its reply is for.
    pub id: RequestId,
    /// The request itself.
    pub request: Request,
}

/// The steps that wait, and how many are under way.
#[derive(Debug, Default)]
pub struct Turns {
    received: Received,
    /// Answers of peers with which the gateway has begun a handshake.
    answered: VecDeque<Step>,
    /// Handshakes for the gateway to begin with peers that have sessions: no admission follows.
    rekeys: VecDeque<Step>,
    /// Handshakes for the gateway to begin with the others.
    begun: VecDeque<Step>,
    /// When a place is free again of each handshake that was begun and is not answered.
    unanswered: VecDeque<Time>,
    steps: usize,
    is_turn_of_own: bool,
    /// No step is asked for before.
    pause: Option<Time>,
}

/// First messages of peers, which send again. Networks share the places, and have turns.
#[derive(Debug)]
struct Received {
    places: Shares,
    steps: BTreeMap<PermitId, Step>,
}

impl Default for Received {
    fn default() -> Self {
        let (displace_after, displaced) = (Duration::MAX, Displaced::Newest);
        let places = Shares::new(Division { limit: MAX_WAITING, displace_after, displaced });
        Self { places, steps: BTreeMap::new() }
    }
}

impl Received {
    /// Adds the step of a message from `source`. Returns the one that has no place then.
    fn push(&mut self, now: Time, source: IpAddr, step: Step) -> Option<Step> {
        match self.places.enter(now, Source::from(source), Standing::Stranger) {
            Entered::Full => Some(step),
            Entered::In { permit, displaced } => {
                self.steps.insert(permit, step);
                self.steps.remove(&displaced?)
            }
        }
    }

    fn pop(&mut self) -> Option<Step> {
        self.steps.remove(&self.places.next_turn()?)
    }
}

impl Turns {
    /// This step waits for its turn; `has_session` is whether its peer has one, `source` where its
    /// message came from. Returns the request that has no place then, this one or that of another
    /// first message: nothing comes of it.
    pub fn add_step(
        &mut self,
        now: Time,
        step: Step,
        has_session: bool,
        source: Option<IpAddr>,
    ) -> Option<RequestId> {
        match step.request {
            Request::Respond(_) => {
                let Some(source) = source else { return Some(step.id) };
                return self.received.push(now, source, step).map(|lost| lost.id);
            }
            Request::Finish(..) => {
                self.unanswered.pop_front();
                self.answered.push_back(step);
            }
            Request::Initiate(_) if has_session => self.rekeys.push_back(step),
            Request::Initiate(_) => self.begun.push_back(step),
        }
        None
    }

    /// The next step to ask for. `answers` of peers wait for that process; `admitted` peers wait
    /// for their sessions.
    pub fn next_step(&mut self, now: Time, answers: usize, admitted: usize) -> Option<Step> {
        while self.unanswered.front().is_some_and(|until| *until <= now) {
            self.unanswered.pop_front();
        }
        if self.steps >= STEPS || self.pause.is_some_and(|until| now < until) {
            return None;
        }
        self.pause = None;
        let under_way = answers + self.unanswered.len();
        let own = if !self.answered.is_empty() || under_way >= MAX_WAITING {
            &mut self.answered
        } else if !self.rekeys.is_empty() || under_way + admitted >= MAX_WAITING {
            &mut self.rekeys
        } else {
            &mut self.begun
        };
        let step = if self.is_turn_of_own {
            own.pop_front().or_else(|| self.received.pop())
        } else {
            self.received.pop().or_else(|| own.pop_front())
        }?;
        self.is_turn_of_own = matches!(step.request, Request::Respond(_));
        if let Request::Initiate(_) = step.request {
            self.unanswered.push_back(now + ANSWER);
        }
        self.steps += 1;
        Some(step)
    }

    /// A step was replied to. Returns the reply, unless the process was busy with a handshake that
    /// only the gateway begins again: that one waits for another turn.
    pub fn step_done(&mut self, now: Time, step: Step, reply: Reply) -> Option<(RequestId, Reply)> {
        self.steps = self.steps.saturating_sub(1);
        if !matches!(reply, Reply::Refused(Refused::Busy)) {
            return Some((step.id, reply));
        }
        self.pause = Some(now + PAUSE);
        match step.request {
            Request::Respond(_) => return Some((step.id, reply)),
            Request::Finish(..) => self.answered.push_front(step),
            Request::Initiate(_) => {
                self.unanswered.pop_back();
                // With priority, whether it has a session or not: it has waited once.
                self.rekeys.push_front(step);
            }
        }
        None
    }

    /// When a step may be asked for that was not before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let is_beginning = !(self.rekeys.is_empty() && self.begun.is_empty());
        let is_idle = self.received.steps.is_empty() && self.answered.is_empty() && !is_beginning;
        let room = self.unanswered.front().copied().filter(|_| is_beginning);
        self.pause.filter(|_| !is_idle).into_iter().chain(room).min()
    }
}

#[cfg(test)]
mod tests {
    use vpnd_crypto::Secret;
    use vpnd_proto::plane::Endpoint;
    use vpnd_proto::session::Random;

    use super::*;
    use crate::gate::Limits;
    use crate::handshakes::Known;
    use crate::key::StaticKey;
    use crate::message::Message;
    use crate::peers::{Config, Output};
    use crate::{Handshakes, Peers};

    const START: Time = Time::ZERO;

    fn random() -> Random {
        Box::new(|bytes: &mut [u8]| rand::fill(bytes))
    }

    fn key(number: u64) -> StaticKey {
        let mut bytes = [9; 32];
        bytes[8..16].copy_from_slice(&number.to_le_bytes());
        StaticKey::new(Secret::new(bytes))
    }

    /// A gateway that has just started, with peers that have all been somewhere, and what they ask.
    fn started(peers: u64) -> (Peers, Handshakes, Turns) {
        let own = key(0);
        let config = Config {
            own: own.public(),
            shards: 2,
            backend: vpnd_crypto::Backend::Ring,
            limits: Limits::default(),
        };
        let mut worker = Peers::new(START, config, random());
        let mut auth = Handshakes::new(own, random());
        for number in 1..=peers {
            let at = Endpoint { remote: ([192, 0, 2, 1], number as u16).into(), local: None };
            let peer = worker.add(START, key(number).public(), Some(at), None);
            auth.add(key(number).public(), Known::default()).expect("it is there");
            worker.on_no_session(START, peer);
        }
        (worker, auth, Turns::default())
    }

    /// Adds a step that needs no place of first messages.
    fn add(turns: &mut Turns, step: Step, has_session: bool) {
        assert_eq!(turns.add_step(START, step, has_session, None), None);
    }

    /// First messages that were sent; what is to be asked goes to its queue.
    fn settle(worker: &mut Peers, turns: &mut Turns) -> usize {
        let mut sent = 0;
        while let Some(output) = worker.poll_output() {
            match output {
                Output::Ask(id, request) => add(turns, Step { id, request: *request }, false),
                Output::Send { .. } => sent += 1,
                _ => {}
            }
        }
        sent
    }

    /// A device's answer.
    fn answer(id: RequestId) -> Step {
        let mut bytes = [0; 92];
        bytes[0] = 2;
        let Ok(Message::Response(response)) = Message::parse(&bytes) else { panic!("it is a response") };
        Step { id, request: Request::Finish(key(1).public(), *response) }
    }

    #[test]
    fn thousands_of_handshakes_are_begun_without_more_under_way_than_have_room() {
        const PEERS: usize = 3_000;
        let (mut worker, mut auth, mut turns) = started(PEERS as u64);
        let (mut now, mut sent, mut done, mut refused) = (START, settle(&mut worker, &mut turns), 0, 0);
        let id = turns.begun[0].id;
        // Answers that auth has read, and whose devices wait for a session.
        let (mut admitting, mut under_way) = (0, Vec::new());
        while done < PEERS {
            worker.on_timeout(now);
            let begun = settle(&mut worker, &mut turns);
            sent += begun;
            // Each is there, and answers at once.
            (0..begun).for_each(|_| add(&mut turns, answer(id), false));
            assert!(admitting + turns.answered.len() <= MAX_WAITING, "answers would be dropped");
            let (mut asked, mut read) = (0, 0);
            while let Some(step) = turns.next_step(now, turns.answered.len() + read, admitting) {
                asked += 1;
                assert!(asked <= STEPS, "more than have room");
                // Others take the room of one of them now and then.
                let is_busy = asked == STEPS && sent % 7 == 0;
                refused += usize::from(is_busy);
                let is_answer = matches!(step.request, Request::Finish(..));
                read += usize::from(is_answer);
                under_way.push((step, is_busy, is_answer));
            }
            for (step, is_busy, is_answer) in under_way.drain(..) {
                let reply = match is_busy {
                    true => Reply::Refused(Refused::Busy),
                    false => auth.handle(now, Duration::ZERO, &step.request),
                };
                let Some((id, reply)) = turns.step_done(now, step, reply) else { continue };
                admitting += usize::from(is_answer);
                worker.on_reply(now, id, reply);
            }
            // The store takes a while for each.
            let admitted = usize::from(admitting > 0);
            (admitting, done) = (admitting - admitted, done + admitted);
            now = now + Duration::from_millis(1);
        }
        assert!(refused > 0, "some had to wait for another turn");
        assert_eq!(sent, PEERS, "each is begun once");
        assert!(now < START + Duration::from_secs(5), "nearly as fast as the store takes them: {now:?}");
    }

    #[test]
    fn absent_devices_free_their_place_for_others() {
        let (mut worker, mut auth, mut turns) = started(1_000);
        let (mut now, mut sent) = (START, 0);
        while sent < 1_000 {
            sent += settle(&mut worker, &mut turns);
            assert!(turns.unanswered.len() <= MAX_WAITING);
            let asked: Vec<Step> = std::iter::from_fn(|| turns.next_step(now, 0, 0)).collect();
            if asked.is_empty() && sent < 1_000 {
                now = turns.poll_timeout().expect("the rest waits for something");
            }
            for step in asked {
                let reply = auth.handle(now, Duration::ZERO, &step.request);
                let (id, reply) = turns.step_done(now, step, reply).expect("it is there");
                worker.on_reply(now, id, reply);
            }
        }
        assert!(now <= START + 3 * ANSWER, "{now:?}");
    }

    #[test]
    fn a_peer_that_waits_for_its_turn_is_queued_once() {
        let (mut worker, _, mut turns) = started(1);
        settle(&mut worker, &mut turns);
        for second in 0..30 {
            worker.on_timeout(START + Duration::from_secs(second));
            settle(&mut worker, &mut turns);
        }
        assert!(turns.next_step(START, 0, 0).is_some());
        assert!(turns.next_step(START, 0, 0).is_none());
    }

    #[test]
    fn incoming_and_own_handshakes_alternate() {
        let (mut worker, mut auth, mut turns) = started(40);
        settle(&mut worker, &mut turns);
        let Reply::Initiated(message, _) =
            auth.handle(START, Duration::ZERO, &Request::Initiate(key(1).public()))
        else {
            panic!()
        };
        let (id, source) = (turns.begun[0].id, Some(IpAddr::from([192, 0, 2, 1])));
        for _ in 0..40 {
            let step = Step { id, request: Request::Respond(message) };
            assert_eq!(turns.add_step(START, step, false, source), None);
        }
        let asked: Vec<Step> = std::iter::from_fn(|| turns.next_step(START, 0, 0)).collect();
        let begun = asked.iter().filter(|step| matches!(step.request, Request::Initiate(_))).count();
        assert_eq!((asked.len(), begun), (STEPS, STEPS / 2));
    }

    #[test]
    fn a_flood_from_some_networks_keeps_no_first_message_of_another_waiting() {
        let (mut worker, mut auth, mut turns) = started(2);
        settle(&mut worker, &mut turns);
        let Reply::Initiated(message, _) =
            auth.handle(START, Duration::ZERO, &Request::Initiate(key(1).public()))
        else {
            panic!()
        };
        let (flood, other) = (turns.begun[0].id, turns.begun[1].id);
        turns.begun.clear();
        let mut receive = |id, source: [u8; 4]| {
            let step = Step { id, request: Request::Respond(message) };
            turns.add_step(START, step, false, Some(source.into()))
        };
        // The networks of four providers.
        let sources = (0..2_000_u16).map(|number| [10, (number % 4) as u8, (number / 32) as u8, 1]);
        let lost = sources.filter(|source| receive(flood, *source).is_some()).count();
        assert_eq!(lost, 2_000 - MAX_WAITING * 3 / 4);
        assert_eq!(receive(other, [192, 0, 2, 1]), Some(flood), "its network holds nothing yet");
        let asked: Vec<_> = std::iter::from_fn(|| turns.next_step(START, 0, 0)).map(|step| step.id).collect();
        assert!(asked[..5].contains(&other), "at the latest after one of each of the others");
    }

    #[test]
    fn devices_that_wait_for_sessions_keep_no_rekey_waiting() {
        let (mut worker, _, mut turns) = started(2);
        settle(&mut worker, &mut turns);
        let rekey = turns.begun.pop_back().expect("it is there");
        let id = rekey.id;
        add(&mut turns, rekey, true);
        let full = MAX_WAITING;
        let next = std::iter::from_fn(|| turns.next_step(START, 0, full)).map(|step| step.id);
        assert_eq!(next.collect::<Vec<_>>(), [id], "the other device would have to wait for a session");
        assert!(turns.next_step(START, 0, 0).is_some());
    }
}
