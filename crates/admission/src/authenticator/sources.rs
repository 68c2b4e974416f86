//! The sources of users besides the store, and how each answers.

use std::sync::{Arc, Mutex, MutexGuard};

use vpnd_proto::time::Time;

use super::absences::Absences;
use crate::accounting::Accounting;
use crate::idp_client::IdpClient;
use crate::notices::lock;
use vpnd_config::source::{Source, SourceKind};
use vpnd_config::user_name;
use vpnd_ipc::gateway::auth::SourceHealth;
use vpnd_ipc::gateway::idp::SourceName;
use vpnd_ipc::gateway::portal::turns::{STORE, SourceNumber};
use vpnd_ipc::turns::Turns;
use vpnd_store::{LOCAL, User};

/// The sources besides the store, and the way to them.
#[derive(Default)]
pub struct Sources {
    all: Vec<Arc<ExternalSource>>,
    pub(super) idp: Arc<IdpClient>,
    pub(super) accounting: Arc<Accounting>,
}

pub(super) struct ExternalSource {
    pub(super) source: Source,
    pub(super) turns: Arc<Turns>,
    health: Mutex<Health>,
    absences: Mutex<Absences>,
}

/// How a source has answered since this process began.
#[derive(Clone, Copy, Debug, Default)]
struct Health {
    up: Option<bool>,
    last_answer: Option<Time>,
    /// When the first request after that got no answer.
    silent_since: Option<Time>,
    answers: u64,
    failures: u64,
}

impl Health {
    fn count(&mut self, answered: bool, now: Time) {
        self.up = Some(answered);
        if answered {
            self.last_answer = Some(now);
            self.silent_since = None;
            self.answers += 1;
        } else {
            self.silent_since.get_or_insert(now);
            self.failures += 1;
        }
    }
}

impl ExternalSource {
    fn new(source: &Source) -> Self {
        let turns = Turns::new(source.max_logins, source.max_queued());
        Self { source: source.clone(), turns, health: Mutex::default(), absences: Mutex::default() }
    }

    /// Counts one request, and whether there was a reply.
    pub(super) fn replied(&self, answered: bool, now: Time) {
        lock(&self.health).count(answered, now);
    }

    /// The users with sessions whom it shows no more.
    pub(super) fn absences(&self) -> MutexGuard<'_, Absences> {
        lock(&self.absences)
    }

    /// Whether its users log in at a provider, so in a browser alone.
    pub(super) fn is_provider(&self) -> bool {
        matches!(self.source.kind, SourceKind::Oidc(_))
    }

    fn health(&self, accounting: &Accounting, now: Time) -> SourceHealth {
        let health = *lock(&self.health);
        SourceHealth {
            name: SourceName::cut(&self.source.name),
            up: health.up,
            last_answer_s: health.last_answer.map(|at| now.since(at).as_secs()),
            silent_s: health.silent_since.map(|at| now.since(at).as_secs()),
            answers: health.answers,
            failures: health.failures,
            accounting: accounting.health(&self.source.name),
            missing: self.absences().held() as u64,
        }
    }
}

impl Sources {
    pub fn new(sources: &[Source], idp: Arc<IdpClient>, accounting: Arc<Accounting>) -> Self {
        let all = sources.iter().map(|source| Arc::new(ExternalSource::new(source))).collect();
        Self { all, idp, accounting }
    }

    pub(super) fn all(&self) -> &[Arc<ExternalSource>] {
        &self.all
    }

    /// How each source answers.
    pub(super) fn health(&self, now: Time) -> Vec<SourceHealth> {
        self.all.iter().map(|source| source.health(&self.accounting, now)).collect()
    }

    /// The source of this name.
    pub(super) fn named(&self, name: &str) -> Option<&Arc<ExternalSource>> {
        self.all.iter().find(|source| source.source.name == name)
    }

    /// The provider of this name.
    pub(super) fn provider(&self, name: &str) -> Option<Arc<ExternalSource>> {
        self.named(name).filter(|source| source.is_provider()).map(Arc::clone)
    }

    /// The source of a user, and the user's canonical name.
    pub(super) fn source_of(&self, typed: &str) -> Option<(Arc<ExternalSource>, String)> {
        let name = user_name::canonical(typed)?;
        Some((Arc::clone(self.matching(&name)?), name))
    }

    fn matching(&self, canonical: &str) -> Option<&Arc<ExternalSource>> {
        self.all.iter().find(|source| source.source.rule.matches(canonical))
    }

    /// The name of a user's record, and the source that logins by it go to, if they go to one.
    pub(super) fn name_at(&self, typed: &str) -> (String, Option<String>) {
        let found = self.source_of(typed);
        found.map_or((typed.to_owned(), None), |(at, name)| (name, Some(at.source.name.clone())))
    }

    /// Whether the name, as it is, belongs to this source.
    pub(super) fn is_name_of(&self, at: &Arc<ExternalSource>, name: &str) -> bool {
        let (found, canonical) = self.source_of(name).unzip();
        found.is_some_and(|found| Arc::ptr_eq(&found, at)) && canonical.as_deref() == Some(name)
    }

    /// The name of the source that a user belongs to.
    pub(super) fn source_name(&self, typed: &str) -> &str {
        let canonical = user_name::canonical(typed);
        let source = canonical.and_then(|name| self.matching(&name));
        source.map_or(LOCAL, |source| source.source.name.as_str())
    }

    /// Whether this user sets up one-time codes without an administrator.
    pub(super) fn let_set_up_codes(&self, user: &User) -> bool {
        self.named(&user.source).map_or(user.source == LOCAL, |at| at.source.own_codes)
    }

    /// The number of a source, or of the store: that of its place, from 1.
    pub(super) fn number(&self, source: Option<&Arc<ExternalSource>>) -> SourceNumber {
        let is_it = |other: &Arc<ExternalSource>| source.is_some_and(|source| Arc::ptr_eq(other, source));
        let place = self.all.iter().position(is_it);
        place.and_then(|place| SourceNumber::try_from(place + 1).ok()).unwrap_or(STORE)
    }
}
