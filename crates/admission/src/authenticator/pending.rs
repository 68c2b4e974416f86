//! Logins that wait for a person: to type a one-time code (those whose password was right and those
//! where anything was wrong, which must be indistinguishable), to answer a server's
//! challenge, or to approve a request elsewhere.
//!
//! INVARIANT: their number is bounded, altogether and for each source, and networks share it
//! fairly; each leaves once: by its answer, by a connection that is gone, or because its time is
//! over or it was displaced. An answer is good for the step that it was asked for and for the
//! device that logs in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use vpnd_proto::admission::Source;
use vpnd_proto::admission::shares::{Displaced, Division, Entered, PermitId, Shares, Standing};
use vpnd_proto::session::DeviceId;
use vpnd_proto::time::Time;

use super::rounds::{AtSource, PendingReply};
use super::sources::ExternalSource;
use super::throttle::Guess;
use super::{Authenticated, Cause, Login};
use vpnd_ipc::gateway::idp::Continuation;

/// Logins at most.
const LIMIT: usize = 1_024;
/// Limit for all that a login waits for (PROTOCOL §4.2). The worker's own limit for a code is
/// shorter.
pub(super) const LIFETIME: Duration = Duration::from_secs(120);
/// A person who has taken this long makes room for another.
const TYPING_TIMEOUT: Duration = Duration::from_secs(20);

/// A login that waits.
pub(super) struct Attempt {
    pub(super) login: Login,
    /// When it began to wait, the first time.
    pub(super) since: Time,
    pub(super) step: Step,
}

/// The event that a login waits for.
pub(super) enum Step {
    /// A one-time code that is checked here: the user whom the right one lets in, or the cause of a
    /// refusal that follows whatever the code. It counts as a guess.
    Code(Result<Box<Authenticated>, Cause>, Guess),
    /// The answer to a challenge, and by what the server recognises the login.
    Challenge(AtSource, Continuation),
    /// The reply of a server that waits for a person's approval; taken out for a moment at a time.
    Approval(AtSource, Option<PendingReply>),
}

/// The kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepKind {
    Code,
    Challenge,
    Approval,
    /// The step of another device's login.
    Foreign,
}

impl Attempt {
    /// Login, user and guess, if it waits for a code.
    pub(super) fn into_code(self) -> Option<(Login, Result<Box<Authenticated>, Cause>, Guess)> {
        match self.step {
            Step::Code(awaited, guess) => Some((self.login, awaited, guess)),
            Step::Challenge(..) | Step::Approval(..) => None,
        }
    }
}

impl Step {
    /// The cause of the refusal if nothing comes.
    pub(super) fn cause(&self) -> Cause {
        match self {
            Self::Code(awaited, _) => awaited.as_ref().err().copied().unwrap_or(Cause::NoCode),
            Self::Challenge(..) => Cause::NoCode,
            Self::Approval(..) => Cause::NotApproved,
        }
    }

    fn source(&self) -> Option<&Arc<ExternalSource>> {
        match self {
            Self::Code(..) => None,
            Self::Challenge(at, _) | Self::Approval(at, _) => Some(&at.source),
        }
    }

    fn kind(&self) -> StepKind {
        match self {
            Self::Code(..) => StepKind::Code,
            Self::Challenge(..) => StepKind::Challenge,
            Self::Approval(..) => StepKind::Approval,
        }
    }
}

struct PendingLogin {
    permit: PermitId,
    attempt: Attempt,
}

pub(super) struct Pending {
    shares: Shares,
    held: BTreeMap<u64, PendingLogin>,
    next: u64,
}

impl Pending {
    pub(super) fn new() -> Self {
        let division =
            Division { limit: LIMIT, displace_after: TYPING_TIMEOUT, displaced: Displaced::Oldest };
        Self { shares: Shares::new(division), held: BTreeMap::new(), next: 0 }
    }

    /// Adds a login. Returns its number, unless there is no room for its network or its source, and
    /// the logins that are over by that.
    pub(super) fn add(&mut self, now: Time, attempt: Attempt) -> (Option<u64>, Vec<Attempt>) {
        let mut over = self.overdue(now);
        if attempt.step.source().is_some_and(|source| self.is_full(source)) {
            over.push(attempt);
            return (None, over);
        }
        let source = Source::from(attempt.login.source);
        let Entered::In { permit, displaced } = self.shares.enter(now, source, Standing::Stranger) else {
            over.push(attempt);
            return (None, over);
        };
        let displaced = self.held.iter().find(|(_, held)| Some(held.permit) == displaced);
        let displaced = displaced.map(|(number, _)| *number);
        over.extend(displaced.and_then(|number| self.held.remove(&number)).map(|held| held.attempt));
        let number = self.next;
        self.next += 1;
        self.held.insert(number, PendingLogin { permit, attempt });
        (Some(number), over)
    }

    /// Takes out the login with this number, if it is still there.
    pub(super) fn take(&mut self, number: u64) -> Option<Attempt> {
        let held = self.held.remove(&number)?;
        self.shares.leave(held.permit);
        Some(held.attempt)
    }

    /// The source that decides the next step of the login with this number, if one does.
    pub(super) fn source_of(&self, number: u64) -> Option<Arc<ExternalSource>> {
        self.held.get(&number)?.attempt.step.source().cloned()
    }

    /// The step of the login with this number, as far as it is this device's.
    pub(super) fn kind_of(&self, number: u64, device: DeviceId) -> Option<StepKind> {
        let attempt = &self.held.get(&number)?.attempt;
        Some(if attempt.login.device == device { attempt.step.kind() } else { StepKind::Foreign })
    }

    /// Takes out the server's reply that this login waits for, to wait for it. The login keeps its
    /// place.
    pub(super) fn take_reply(&mut self, number: u64, device: DeviceId) -> Option<PendingReply> {
        let attempt = &mut self.held.get_mut(&number)?.attempt;
        match &mut attempt.step {
            Step::Approval(_, reply) if attempt.login.device == device => reply.take(),
            _ => None,
        }
    }

    /// Puts it back, if the login is still there.
    pub(super) fn put_back(&mut self, number: u64, reply: PendingReply) {
        if let Some(PendingLogin { attempt: Attempt { step: Step::Approval(_, place), .. }, .. }) =
            self.held.get_mut(&number)
        {
            *place = Some(reply);
        }
    }

    /// Whether as many logins of this source wait as it may have.
    fn is_full(&self, source: &Arc<ExternalSource>) -> bool {
        let others = self.held.values().filter_map(|held| held.attempt.step.source());
        others.filter(|other| Arc::ptr_eq(other, source)).count() >= source.source.max_waiting()
    }

    fn overdue(&mut self, now: Time) -> Vec<Attempt> {
        let overdue = self.held.iter().filter(|(_, held)| now.since(held.attempt.since) >= LIFETIME);
        let overdue: Vec<u64> = overdue.map(|(number, _)| *number).collect();
        overdue.into_iter().filter_map(|number| self.take(number)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Entrance;
    use super::super::throttle::{Person, Throttle};
    use super::*;
    use vpnd_store::password::Password;

    fn attempt(since: Time, source: [u8; 4]) -> Attempt {
        let login = Login {
            user: "ann".to_owned(),
            password: Password::new("wrong".to_owned()),
            code: None,
            certificate: None,
            source: source.into(),
            entrance: Entrance::Tunnel,
            device: DeviceId([1; 16]),
        };
        let guess = Throttle::default().admit(Person::of("ann", None), Source::from(login.source), false, 0);
        Attempt { login, since, step: Step::Code(Err(Cause::WrongPassword), guess.unwrap()) }
    }

    #[test]
    fn each_pending_login_is_taken_exactly_once() {
        let mut pending = Pending::new();
        let (number, over) = pending.add(Time::ZERO, attempt(Time::ZERO, [192, 0, 2, 1]));
        assert!(over.is_empty() && pending.take(number.unwrap()).is_some());
        assert!(pending.take(number.unwrap()).is_none());
        let (late, _) = pending.add(Time::ZERO, attempt(Time::ZERO, [192, 0, 2, 1]));
        let (number, over) =
            pending.add(Time::ZERO + LIFETIME, attempt(Time::ZERO + LIFETIME, [192, 0, 2, 1]));
        assert_eq!((over.len(), pending.held.len()), (1, 1), "a code may take so long");
        assert!(pending.take(late.unwrap()).is_none() && pending.take(number.unwrap()).is_some());
    }

    #[test]
    fn pending_logins_are_bounded_and_fair_between_networks() {
        let mut pending = Pending::new();
        let mut over = 0;
        for number in 0..5_000u32 {
            let [_, _, c, d] = number.to_be_bytes();
            over += pending.add(Time::ZERO, attempt(Time::ZERO, [10, (number % 8) as u8, c, d])).1.len();
        }
        assert_eq!(pending.held.len(), LIMIT - LIMIT / 4);
        assert_eq!(over + pending.held.len(), 5_000, "whoever leaves is counted");
        let (honest, displaced) = pending.add(Time::ZERO, attempt(Time::ZERO, [192, 0, 2, 1]));
        assert_eq!((honest.is_some(), displaced.len(), pending.held.len()), (true, 1, LIMIT - LIMIT / 4));
    }
}
