//! Asking again about users who have sessions, or are logged in to the portal: are they still
//! there, not disabled, and in which groups?
//!
//! Invariants: a session ends when its source refuses the user, or has given no answer for longer
//! than it may; never because a server was slow once, nor because it no longer shows many users at
//! once, which [`super::absences`] judges. A source decides about its own users alone, and the
//! record here only about what it may: who was disabled here stays so. At most [`AT_ONCE`] requests
//! of a source are under way, and users have their turns spread over the time between two.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use vpnd_proto::control::UserName;
use vpnd_proto::time::Time;

use super::Visitors;
use super::login_record::LoginRecord;
use super::refresh::RefreshTokens;
use super::rounds::REPLY_MARGIN;
use super::sources::{ExternalSource, Sources};
use vpnd_config::revocation_cause::RevocationCause;
use vpnd_config::source::{LOGIN_TIMEOUT, Recheck};
use vpnd_ipc::gateway::idp::{
    Identity, RefreshLogin, RefreshedLogin, SourceName, SourceRefusal, UserRecheck,
};
use vpnd_store::{ExternalUser, LiveUser, RefreshToken, Store, StoreError, User, UserId};
use vpnd_sys::clock::{now, wall_s};
use vpnd_sys::log_limit::LogLimit;

/// Requests of one source at the same time.
const AT_ONCE: usize = 8;
/// How often it is looked for users whose turn has come: a part of the time between two requests,
/// within bounds.
const PART: u32 = 16;
const SHORTEST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(10);
/// The next try after a request without an answer, at most.
const RETRY: Duration = Duration::from_secs(60);

static WITHOUT_TOKEN: LogLimit = LogLimit::new(1, Duration::from_secs(3_600));

/// When a user was confirmed last, and is to be asked about again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    confirmed: Time,
    due: Time,
}

/// The outcome of one request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Confirmed,
    /// The source says that the user is disabled, or the record here is gone.
    Over,
    /// The source does not show the user, or shows another entry.
    Absent,
    /// The source shows the user, and none of the groups that there were.
    Groupless(Box<Identity>),
    NoAnswer,
    /// There is nothing to ask the provider by, until the user logs in again.
    NoToken,
}

pub(super) struct Rechecks {
    store: Arc<dyn Store>,
    sources: Arc<Sources>,
    record: Arc<LoginRecord>,
    tokens: Arc<RefreshTokens>,
    /// Users without sessions who are checked again as well.
    visitors: OnceLock<Visitors>,
}

impl Rechecks {
    pub(super) fn new(
        store: Arc<dyn Store>,
        sources: Arc<Sources>,
        record: Arc<LoginRecord>,
        tokens: Arc<RefreshTokens>,
    ) -> Self {
        Self { store, sources, record, tokens, visitors: OnceLock::new() }
    }

    /// Has these users checked again as those with sessions.
    pub(super) fn follow_visitors(&self, visitors: Visitors) {
        // The first one stays: there is one portal.
        let _ = self.visitors.set(visitors);
    }

    /// Checks the users of all configured sources again; never returns.
    pub(super) async fn run(self: Arc<Self>) {
        let mut all = JoinSet::new();
        for source in self.sources.all() {
            if let Some(recheck) = source.source.recheck() {
                all.spawn(Arc::clone(&self).recheck_source(Arc::clone(source), recheck));
            }
        }
        all.join_all().await;
    }

    async fn recheck_source(self: Arc<Self>, source: Arc<ExternalSource>, recheck: Recheck) {
        let mut turns: HashMap<UserId, Turn> = HashMap::new();
        let mut is_first = true;
        loop {
            match self.live_users(&source).await {
                Ok(users) => {
                    schedule(&mut turns, &users, now(), recheck.every, is_first);
                    is_first = false;
                    source.absences().retain(|user| turns.contains_key(user));
                    self.recheck_due(&source, recheck, &mut turns, users).await;
                }
                Err(error) => tracing::error!(%error, "users with sessions can't be checked again"),
            }
            tokio::time::sleep((recheck.every / PART).clamp(SHORTEST, LONGEST)).await;
        }
    }

    /// The users of a source who have sessions or are logged in to the portal.
    pub(super) async fn live_users(
        self: &Arc<Self>,
        source: &ExternalSource,
    ) -> Result<Vec<LiveUser>, StoreError> {
        let (this, name) = (Arc::clone(self), source.source.name.clone());
        let found = tokio::task::spawn_blocking(move || {
            let mut users = this.store.users_with_sessions(&name)?;
            this.add_visitors(&name, &mut users)?;
            Ok(users)
        });
        found.await.unwrap_or_else(|_| Ok(Vec::new()))
    }

    /// Adds those who are logged in to the portal alone. A visit that was revoked is over, although
    /// it may be there until it is used.
    pub(super) fn add_visitors(&self, source: &str, users: &mut Vec<LiveUser>) -> Result<(), StoreError> {
        let Some(visitors) = self.visitors.get() else { return Ok(()) };
        let known: HashSet<UserId> = users.iter().map(|user| user.id).collect();
        for (id, generation) in visitors().into_iter().filter(|(id, _)| !known.contains(id)) {
            let is_here = |user: &User| user.source == source && user.generation == generation;
            users.extend(self.store.user_by_id(id)?.filter(is_here).map(|user| LiveUser::of(&user)));
        }
        Ok(())
    }

    /// Asks about those whose turn has come, and about all others as soon as one of them is not
    /// there: they show whether the user has left or the source is wrong.
    pub(super) async fn recheck_due(
        self: &Arc<Self>,
        source: &Arc<ExternalSource>,
        recheck: Recheck,
        turns: &mut HashMap<UserId, Turn>,
        users: Vec<LiveUser>,
    ) {
        let (at, all) = (now(), users.len());
        let is_due = |user: &LiveUser| {
            let is_confirmed = source.absences().is_confirmed(user.id);
            is_confirmed || turns.get(&user.id).is_some_and(|turn| turn.due <= at)
        };
        let (due, others): (Vec<_>, Vec<_>) = users.into_iter().partition(is_due);
        let mut found = self.recheck_users(source, due).await;
        if source.absences().is_news(absent(&found)) {
            found.extend(self.recheck_users(source, others).await);
        }
        let gone = judge(source, &found, all, recheck.every);
        for (user, outcome) in found {
            let outcome = match outcome {
                Outcome::Absent if gone.contains(&user.id) => Outcome::Over,
                Outcome::Groupless(identity) if gone.contains(&user.id) => {
                    self.refresh(source, &user, &identity).await
                }
                other => other,
            };
            let Some(turn) = turns.get_mut(&user.id) else { continue };
            if let Some(cause) = turn.follows(&outcome, recheck, now()) {
                self.end_sessions(user, cause).await;
            }
        }
    }

    /// Asks about these users.
    async fn recheck_users(
        self: &Arc<Self>,
        source: &Arc<ExternalSource>,
        users: Vec<LiveUser>,
    ) -> Vec<(LiveUser, Outcome)> {
        let (permits, mut asked) = (Arc::new(Semaphore::new(AT_ONCE)), JoinSet::new());
        let round = Arc::new(Round::default());
        for user in users {
            let (this, source, permits) = (Arc::clone(self), Arc::clone(source), Arc::clone(&permits));
            let round = Arc::clone(&round);
            asked.spawn(async move {
                let _permit = permits.acquire_owned().await;
                if round.is_without_answers() {
                    return (user, Outcome::NoAnswer);
                }
                let outcome = this.recheck_user(&source, &user).await;
                round.note(&outcome);
                (user, outcome)
            });
        }
        let mut found = Vec::new();
        while let Some(done) = asked.join_next().await {
            found.extend(done.ok());
        }
        found
    }

    pub(super) async fn recheck_user(self: &Arc<Self>, source: &ExternalSource, user: &LiveUser) -> Outcome {
        if source.is_provider() {
            return self.recheck_at_provider(source, user).await;
        }
        let Ok(name) = UserName::new(source.source.name_of(&user.name)) else { return Outcome::Absent };
        let question = UserRecheck { source: SourceName::cut(&source.source.name), user: name };
        let longest = source.source.reply_timeout() + REPLY_MARGIN;
        let reply = self.sources.idp.request(question, longest).await;
        source.replied(reply.is_ok(), now());
        match reply {
            Ok(Ok(identity)) => self.shown_again(source, user, identity).await,
            Ok(Err(SourceRefusal::Disabled)) => Outcome::Over,
            Ok(Err(_)) => Outcome::Absent,
            Err(_) => Outcome::NoAnswer,
        }
    }

    /// Asks the provider about a user.
    async fn recheck_at_provider(self: &Arc<Self>, source: &ExternalSource, user: &LiveUser) -> Outcome {
        let turn = self.tokens.turn_of(user.id);
        let outcome = self.ask_in_turn(source, user, &mut *turn.lock().await).await;
        self.tokens.leave(user.id, turn);
        outcome
    }

    async fn ask_in_turn(
        self: &Arc<Self>,
        source: &ExternalSource,
        user: &LiveUser,
        unanswered: &mut Option<RefreshToken>,
    ) -> Outcome {
        let name = &source.source.name;
        let before = unanswered.take();
        let Some((sealed, token)) = self.tokens.token_of(user.id).await else {
            if WITHOUT_TOKEN.admits() {
                tracing::warn!(
                    source = name,
                    user = user.name,
                    "there is no refresh token for a user, or none that can be opened, so the provider can't be asked: the \
                     session ends when it was not confirmed for too long"
                );
            }
            return Outcome::NoToken;
        };
        let was_unanswered = before.as_ref() == Some(&sealed);
        let asked = RefreshLogin { source: SourceName::cut(name), token };
        let reply = self.sources.idp.request(asked, LOGIN_TIMEOUT + REPLY_MARGIN).await;
        source.replied(reply.is_ok(), now());
        match reply {
            Ok(Ok(RefreshedLogin { identity, refresh })) => {
                if let Some(next) = refresh {
                    self.tokens.replace(user.id, sealed, next).await;
                }
                self.shown_again(source, user, identity).await
            }
            Ok(Err(_)) if was_unanswered => {
                *unanswered = Some(sealed);
                Outcome::NoToken
            }
            Ok(Err(_)) => Outcome::Absent,
            Err(why) => {
                *unanswered = Some(sealed);
                self.record.source_failed(name, &why);
                Outcome::NoAnswer
            }
        }
    }

    /// The source shows this as the user.
    async fn shown_again(
        self: &Arc<Self>,
        source: &ExternalSource,
        user: &LiveUser,
        identity: Identity,
    ) -> Outcome {
        // With another subject, another person has the name now.
        if *identity.subject != *user.subject {
            return Outcome::Absent;
        }
        if user.has_groups && identity.groups.is_empty() {
            return Outcome::Groupless(Box::new(identity));
        }
        self.refresh(source, user, &identity).await
    }

    /// Takes over the groups; sessions get theirs by the revocation that a change of them is.
    async fn refresh(
        self: &Arc<Self>,
        source: &ExternalSource,
        user: &LiveUser,
        identity: &Identity,
    ) -> Outcome {
        let external = ExternalUser {
            source: source.source.name.clone(),
            subject: user.subject.clone(),
            name: user.name.clone(),
            groups: identity.groups.iter().map(ToString::to_string).collect(),
        };
        let this = Arc::clone(self);
        match tokio::task::spawn_blocking(move || this.store.update_external(&external, wall_s())).await {
            Ok(Ok(_)) => Outcome::Confirmed,
            // Removed here meanwhile, which has ended the sessions.
            Ok(Err(StoreError::NoSuchUser { .. })) => Outcome::Over,
            Ok(Err(error)) => {
                tracing::error!(%error, "a user of a source can't be updated");
                Outcome::NoAnswer
            }
            Err(_) => Outcome::NoAnswer,
        }
    }

    async fn end_sessions(self: &Arc<Self>, user: LiveUser, cause: RevocationCause) {
        tracing::info!(user = user.name.as_str(), %cause, "sessions end by a re-check");
        let this = Arc::clone(self);
        let ended = tokio::task::spawn_blocking(move || this.store.end_sessions(&user, cause, wall_s()));
        if let Ok(Err(error)) = ended.await {
            tracing::error!(%error, "sessions could not be ended; trying again");
        }
    }
}

/// The requests of one round. A source that is down must not make it so long that sessions outlive
/// what they may: each of thousands of users would wait for every server.
#[derive(Default)]
struct Round {
    /// Requests without an answer since the last with one.
    failures: AtomicUsize,
}

impl Round {
    fn note(&self, outcome: &Outcome) {
        match outcome {
            Outcome::NoAnswer => {
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
            // No server was asked.
            Outcome::NoToken => {}
            // One entry that servers can't deliver says nothing about the others.
            Outcome::Confirmed | Outcome::Over | Outcome::Absent | Outcome::Groupless(_) => {
                self.failures.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Whether the rest of the users need not be asked about.
    fn is_without_answers(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= AT_ONCE
    }
}

impl Turn {
    /// The next turn after this outcome, or the cause why sessions end.
    fn follows(&mut self, outcome: &Outcome, recheck: Recheck, at: Time) -> Option<RevocationCause> {
        match outcome {
            Outcome::Confirmed => {
                // One that was asked about early keeps its turn: they stay spread.
                let due = if self.due > at { self.due } else { at + recheck.every };
                *self = Self { confirmed: at, due };
                None
            }
            Outcome::Over => Some(RevocationCause::Source),
            // A user who is absent and not gone counts as one about whom there is no answer.
            Outcome::NoAnswer | Outcome::NoToken | Outcome::Absent | Outcome::Groupless(_)
                if at.since(self.confirmed) < recheck.every + recheck.grace =>
            {
                self.due = at + recheck.every.min(RETRY);
                None
            }
            Outcome::NoAnswer | Outcome::NoToken | Outcome::Absent | Outcome::Groupless(_) => {
                Some(RevocationCause::Unconfirmed)
            }
        }
    }
}

/// The users among those that were asked about whom, or whose groups, the source does not show.
fn absent(found: &[(LiveUser, Outcome)]) -> impl Iterator<Item = UserId> {
    let is_absent = |outcome: &Outcome| matches!(outcome, Outcome::Absent | Outcome::Groupless(_));
    found.iter().filter(move |(_, outcome)| is_absent(outcome)).map(|(user, _)| user.id)
}

/// Which of the users who are missing are gone; `all` users of the source have sessions. Logs when
/// that becomes, and is no longer, too many.
fn judge(
    source: &ExternalSource,
    found: &[(LiveUser, Outcome)],
    all: usize,
    every: Duration,
) -> HashSet<UserId> {
    let name = &source.source.name;
    let mut absences = source.absences();
    let before = absences.held();
    for (user, outcome) in found {
        if matches!(outcome, Outcome::Confirmed | Outcome::Over) {
            absences.shown(user.id);
        }
    }
    let missing: HashSet<UserId> = absent(found).collect();
    let gone = absences.judge(&missing, all, now(), every);
    match (before, absences.held()) {
        (0, 1..) => tracing::error!(
            source = name,
            missing = absences.held(),
            users = all,
            "the source no longer shows many users who have sessions, so their sessions continue: look at its base, rights and \
             replicas; if the users have left, run: vpnd source confirm {name}"
        ),
        (1.., 0) => tracing::info!(source = name, "the source shows its users again"),
        _ => {}
    }
    gone
}

/// Gives new users their first turn and forgets those who have gone. After a start all are new, so
/// these are spread.
pub(super) fn schedule(
    turns: &mut HashMap<UserId, Turn>,
    users: &[LiveUser],
    at: Time,
    every: Duration,
    is_first: bool,
) {
    let before = std::mem::take(turns);
    for user in users {
        let first = || {
            let wait = if is_first { every.mul_f64(rand::random()) } else { every };
            Turn { confirmed: at, due: at + wait }
        };
        turns.insert(user.id, before.get(&user.id).copied().unwrap_or_else(first));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(count: usize) -> Vec<LiveUser> {
        let user = |number: usize| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&number.to_le_bytes());
            LiveUser { id: UserId(id), name: number.to_string(), subject: String::new(), has_groups: false }
        };
        (0..count).map(user).collect()
    }

    #[test]
    fn rechecks_are_spread_after_a_start_and_end_with_their_sessions() {
        let (every, at) = (Duration::from_secs(900), Time::ZERO + Duration::from_secs(9_000));
        let mut turns = HashMap::new();
        schedule(&mut turns, &users(4_000), at, every, true);
        let early = turns.values().filter(|turn| turn.due < at + every / 2).count();
        assert!((1_500..2_500).contains(&early), "{early} in the first half");
        assert!(turns.values().all(|turn| turn.due <= at + every));
        let before = turns[&users(1)[0].id].due;
        let later = at + Duration::from_secs(1);
        schedule(&mut turns, &users(2), later, every, false);
        assert_eq!((turns.len(), turns[&users(1)[0].id].due), (2, before));
        schedule(&mut turns, &users(3), later, every, false);
        assert_eq!(turns[&users(3)[2].id].due, later + every, "whoever logs in was just confirmed");
    }

    #[test]
    fn a_source_that_is_down_is_asked_a_few_times_in_a_round() {
        let round = Round::default();
        for _ in 0..100 {
            (1..AT_ONCE).for_each(|_| round.note(&Outcome::NoAnswer));
            assert!(!round.is_without_answers());
            round.note(&Outcome::Confirmed);
        }
        (0..AT_ONCE).for_each(|_| round.note(&Outcome::NoToken));
        assert!(!round.is_without_answers(), "users who can't be asked about say nothing of it");
        (0..AT_ONCE).for_each(|_| round.note(&Outcome::NoAnswer));
        assert!(round.is_without_answers());
    }

    #[test]
    fn sessions_end_if_a_recheck_refuses_or_stays_unanswered_too_long() {
        let second = Duration::from_secs(1);
        let recheck = Recheck { every: 100 * second, grace: 1_000 * second };
        let at = |seconds: u32| Time::ZERO + seconds * second;
        let mut turn = Turn { confirmed: at(0), due: at(100) };
        assert_eq!(turn.follows(&Outcome::NoAnswer, recheck, at(1_099)), None);
        assert_eq!(turn.due, at(1_159), "and is tried again soon");
        assert_eq!(turn.follows(&Outcome::Confirmed, recheck, at(1_159)), None);
        assert_eq!((turn.confirmed, turn.due), (at(1_159), at(1_259)));
        assert_eq!(turn.follows(&Outcome::Confirmed, recheck, at(1_200)), None);
        assert_eq!((turn.confirmed, turn.due), (at(1_200), at(1_259)), "early, and keeps its turn");
        assert_eq!(turn.follows(&Outcome::NoAnswer, recheck, at(2_300)), Some(RevocationCause::Unconfirmed));
        assert_eq!(turn.follows(&Outcome::Absent, recheck, at(2_300)), Some(RevocationCause::Unconfirmed));
        assert_eq!(turn.follows(&Outcome::Over, recheck, at(1_100)), Some(RevocationCause::Source));
    }
}
