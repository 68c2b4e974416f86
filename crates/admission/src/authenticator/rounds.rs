//! A login on its way at its source, from the first request to the last round: challenges that a
//! person answers, and approvals on another device.
//!
//! Invariants: the state of a login is here and in [`super::pending`], never at the worker, which
//! has a number that is good once for each step; so no round can be left out. A login counts as a
//! wrong guess until it is let in, however long it waits, which bounds how often a person is
//! bothered by an attacker who knows the password. Waiting takes no turn from others. What a server
//! sends for a person is one line of limited length without control characters; the rest that it
//! sends with a challenge goes back to it and nowhere else.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use vpnd_proto::control::{ChallengeKind, ChallengeText};
use vpnd_proto::time::Time;

use super::Login;
use super::pending::LIFETIME;
use super::sources::ExternalSource;
use super::throttle::Guess;
use vpnd_config::factor::Factors;
use vpnd_config::source::SourceKind;
use vpnd_ipc::gateway as messages;
use vpnd_ipc::gateway::idp::{AcceptAttributes, Identity, IdpChallenge, Verdict};
use vpnd_ipc::request::Reason;
use vpnd_sys::clock::now;
use vpnd_sys::text::harmless;

/// Rounds of one login (PROTOCOL §4.2).
const MAX_ROUNDS: u8 = 5;
/// Time after which a server that may wait for a person's approval is taken to do so.
pub(super) const APPROVAL_NOTICE: Duration = Duration::from_secs(2);
/// Time that one request of the worker waits for a server's reply.
pub(super) const APPROVAL_POLL: Duration = Duration::from_secs(1);
/// Time for a person to type an answer, a little more than a client gives them.
const TYPING_TIME: Duration = Duration::from_secs(90);
/// The idp process replies within the source's own limit, and then has this long for the way.
pub(super) const REPLY_MARGIN: Duration = Duration::from_secs(2);
/// Shown while a server waits for a person's approval.
const APPROVE: &str = "approve the login on your phone or other device";

/// A demand to a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    pub kind: ChallengeKind,
    /// Harmless on a terminal.
    pub text: ChallengeText,
    pub time: Duration,
}

impl Demand {
    /// The message that asks the worker for it.
    pub fn of_login(self, login: u64) -> messages::auth::Demand {
        let Self { kind, text, time } = self;
        let time_s = u16::try_from(time.as_secs()).unwrap_or(u16::MAX);
        messages::auth::Demand { login, kind, text, time_s }
    }
}

/// A login at its source, between two requests.
pub(super) struct AtSource {
    pub(super) login: Login,
    /// It counts as this until it is let in.
    pub(super) guess: Guess,
    pub(super) source: Arc<ExternalSource>,
    /// Challenges so far.
    rounds: u8,
    /// When it began to wait for a person; `None` if it never has.
    waits_since: Option<Time>,
    /// The factors and the time of the user's login at the source; `None` if it was asked about a
    /// password.
    shown: Option<(Factors, Option<u64>)>,
}

/// The reply of the idp process to a request, while its login waits for it.
pub(super) struct PendingReply(JoinHandle<Result<Verdict, Reason>>);

impl AtSource {
    pub(super) fn new(login: Login, guess: Guess, source: Arc<ExternalSource>) -> Self {
        Self { login, guess, source, rounds: 0, waits_since: None, shown: None }
    }

    /// A login whose user the source has asked for credentials itself. Of the factors that idp
    /// names, those count that a provider can have checked: a client's key is checked here.
    pub(super) fn shown(
        login: Login,
        guess: Guess,
        source: Arc<ExternalSource>,
        (factors, auth_time_s): (Factors, Option<u64>),
    ) -> Self {
        let shown = Some((factors.checked_elsewhere(), auth_time_s));
        Self { shown, ..Self::new(login, guess, source) }
    }

    pub(super) fn is_shown(&self) -> bool {
        self.shown.is_some()
    }

    pub(super) fn has_waited(&self) -> bool {
        self.waits_since.is_some()
    }

    /// The factors that are proved if the source accepts the login now.
    pub(super) fn factors(&self) -> Factors {
        let shown = self.shown.map(|(factors, _)| factors);
        self.source.source.factors(self.rounds > 0).and(shown.unwrap_or_default())
    }

    /// The attributes that came with the user: of a RADIUS server, and of no other source.
    pub(super) fn accept(&self, identity: &Identity) -> AcceptAttributes {
        match self.source.source.kind {
            SourceKind::Radius(_) => identity.accept.clone(),
            SourceKind::Ldap(_) | SourceKind::Oidc(_) => AcceptAttributes::default(),
        }
    }

    /// When the source has asked the user for credentials, if that may be long ago.
    pub(super) fn auth_time_s(&self) -> Option<u64> {
        self.shown.and_then(|(_, auth_time_s)| auth_time_s)
    }

    /// Counts a challenge: `false` if there were too many.
    pub(super) fn begin_round(&mut self) -> bool {
        let may_begin = self.rounds < MAX_ROUNDS;
        self.rounds += u8::from(may_begin);
        may_begin
    }

    /// When it began to wait for a person: now, if it never has.
    pub(super) fn waits_since(&mut self) -> Time {
        *self.waits_since.get_or_insert_with(now)
    }

    /// The demand of a server that has challenged.
    pub(super) fn demand(&self, challenge: &IdpChallenge) -> Demand {
        Demand {
            kind: challenge.kind,
            text: ChallengeText::cut(&harmless(&challenge.text)),
            time: TYPING_TIME.min(self.time_left()),
        }
    }

    /// The demand of a server that waits for an approval.
    pub(super) fn approval(&self) -> Demand {
        let time = self.source.source.push().unwrap_or_default().min(self.time_left());
        Demand { kind: ChallengeKind::Push, text: ChallengeText::cut(APPROVE), time }
    }

    /// Time that is left of all that a login may wait.
    fn time_left(&self) -> Duration {
        self.waits_since.map_or(LIFETIME, |since| LIFETIME.saturating_sub(now().since(since)))
    }
}

impl PendingReply {
    pub(super) fn start(reply: impl Future<Output = Result<Verdict, Reason>> + Send + 'static) -> Self {
        Self(tokio::spawn(reply))
    }

    pub(super) async fn arrived(&mut self) -> Result<Verdict, Reason> {
        (&mut self.0).await.unwrap_or_else(|error| Err(Reason::cut(&error.to_string())))
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        self.0.abort();
    }
}
