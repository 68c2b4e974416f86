//! The way of a login at its source from the first request to the last round: challenges that a
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
use vpnd_proto::control::{ChallengeAnswer, ChallengeKind, ChallengeText, UserName};
use vpnd_proto::session::DeviceId;
use vpnd_proto::time::Time;

use super::external::{ExternalSource, blocking};
use super::pending::{Attempt, LIFETIME, Step, StepKind};
use super::throttle::Guess;
use super::{Authenticator, Cause, Login, LoginOutcome};
use vpnd_config::factor::Factors;
use vpnd_config::source::SourceKind;
use vpnd_ipc::gateway as messages;
use vpnd_ipc::gateway::idp::{
    AcceptAttributes, Identity, IdpChallenge, IdpRequest, LoginAnswer, SourceName, Verdict,
};
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_ipc::request::{Reason, Request};
use vpnd_ipc::turns::Turn;
use vpnd_store::password::Password;
use vpnd_sys::clock::now;
use vpnd_sys::text::harmless;

/// Rounds of one login (PROTOCOL §4.2).
const MAX_ROUNDS: u8 = 5;
/// Time after which a server that may wait for a person's approval is taken to do so.
const APPROVAL_NOTICE: Duration = Duration::from_secs(2);
/// Time that one request of the worker waits for a server's reply.
const APPROVAL_POLL: Duration = Duration::from_secs(1);
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
    pub(crate) fn of_login(self, login: u64) -> messages::auth::Demand {
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

    /// Time that is left of all that a login may wait.
    fn time_left(&self) -> Duration {
        self.waits_since.map_or(LIFETIME, |since| LIFETIME.saturating_sub(now().since(since)))
    }
}

impl PendingReply {
    fn start(reply: impl Future<Output = Result<Verdict, Reason>> + Send + 'static) -> Self {
        Self(tokio::spawn(reply))
    }

    async fn arrived(&mut self) -> Result<Verdict, Reason> {
        (&mut self.0).await.unwrap_or_else(|error| Err(Reason::cut(&error.to_string())))
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Authenticator {
    /// Has the source asked. A login that is to be approved elsewhere waits in the pool for that.
    pub(super) async fn ask(
        self: &Arc<Self>,
        at: AtSource,
        request: impl Request<Message = IdpRequest, Reply = Verdict>,
        turn: Option<Turn>,
        now_s: u64,
    ) -> LoginOutcome {
        let idp = Arc::clone(&self.external.idp);
        let longest = at.source.source.reply_timeout() + REPLY_MARGIN;
        let mut reply = PendingReply::start(async move { idp.request(request, longest).await });
        let arrived = match at.source.source.push() {
            Some(_) => tokio::time::timeout(APPROVAL_NOTICE, reply.arrived()).await.ok(),
            None => Some(reply.arrived().await),
        };
        drop(turn);
        let this = Arc::clone(self);
        blocking(move || match arrived {
            Some(reply) => this.after_source(at, reply, now_s),
            None => this.await_approval(at, reply, now_s),
        })
        .await
        .unwrap_or_else(|refused| refused)
    }

    /// A server demands more than it was sent.
    pub(super) fn challenge(&self, mut at: AtSource, challenge: &IdpChallenge, now_s: u64) -> LoginOutcome {
        if at.rounds >= MAX_ROUNDS {
            return self.refused(at, Cause::TooManyRounds, now_s);
        }
        at.rounds += 1;
        let demand = Demand {
            kind: challenge.kind,
            text: ChallengeText::cut(&harmless(&challenge.text)),
            time: TYPING_TIME.min(at.time_left()),
        };
        let step = |at| Step::Challenge(at, challenge.round.clone());
        self.wait(at, step, now_s)
            .map_or(Refusal::WaitingFull.into(), |number| LoginOutcome::Challenge(number, demand))
    }

    fn await_approval(&self, at: AtSource, reply: PendingReply, now_s: u64) -> LoginOutcome {
        let time = at.source.source.push().unwrap_or_default().min(at.time_left());
        let demand = Demand { kind: ChallengeKind::Push, text: ChallengeText::cut(APPROVE), time };
        let step = |at| Step::Approval(at, Some(reply));
        self.wait(at, step, now_s)
            .map_or(Refusal::WaitingFull.into(), |number| LoginOutcome::Approval(number, demand))
    }

    /// Has a login wait for a person; its number, if there is room.
    fn wait(&self, mut at: AtSource, step: impl FnOnce(AtSource) -> Step, now_s: u64) -> Option<u64> {
        let login = at.login.clone();
        let since = *at.waits_since.get_or_insert_with(now);
        self.add(Attempt { login, since, step: step(at) }, now_s)
    }

    /// The answer of a person has come, for the login with this number.
    pub async fn answer(
        self: &Arc<Self>,
        number: u64,
        answer: &ChallengeAnswer,
        device: DeviceId,
        now_s: u64,
    ) -> LoginOutcome {
        let kind = self.pending().kind_of(number, device);
        match kind {
            // It came too late or was displaced, and was recorded then.
            None => Refusal::Busy.into(),
            Some(StepKind::Code) => {
                let (this, code) = (Arc::clone(self), Password::new(answer.expose().to_owned()));
                blocking(move || this.complete(number, &code, now_s)).await.unwrap_or_else(|refused| refused)
            }
            Some(StepKind::Challenge) => self.answer_challenge(number, answer, now_s).await,
            // The worker mixes up its logins.
            Some(StepKind::Approval | StepKind::Foreign) => {
                self.abandon(number, now_s);
                Refusal::Credentials.into()
            }
        }
    }

    async fn answer_challenge(
        self: &Arc<Self>,
        number: u64,
        answer: &ChallengeAnswer,
        now_s: u64,
    ) -> LoginOutcome {
        let Some(Step::Challenge(at, round)) = self.take(number, now_s).map(|attempt| attempt.step) else {
            return Refusal::Busy.into();
        };
        let source = &at.source.source;
        let Ok(user) = UserName::new(source.name_of(&at.login.user)) else { return Refusal::Busy.into() };
        let request = LoginAnswer {
            source: SourceName::cut(&source.name),
            user,
            answer: answer.clone(),
            address: at.login.source,
            round,
        };
        self.ask(at, request, None, now_s).await
    }

    /// The decision of the server about the login with this number; `None` while it still waits.
    pub async fn approved(
        self: &Arc<Self>,
        number: u64,
        device: DeviceId,
        now_s: u64,
    ) -> Option<LoginOutcome> {
        let reply = self.pending().take_reply(number, device);
        let Some(mut reply) = reply else { return Some(Refusal::Busy.into()) };
        let Ok(arrived) = tokio::time::timeout(APPROVAL_POLL, reply.arrived()).await else {
            self.pending().put_back(number, reply);
            return None;
        };
        let this = Arc::clone(self);
        let decided = blocking(move || {
            let Some(Step::Approval(at, _)) = this.take(number, now_s).map(|attempt| attempt.step) else {
                return Refusal::Busy.into();
            };
            this.after_source(at, arrived, now_s)
        })
        .await;
        Some(decided.unwrap_or_else(|refused| refused))
    }
}
