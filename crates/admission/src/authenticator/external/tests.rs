//! Logins of users of other sources than the store, with a test in the place of the idp process.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Mutex;

use tokio::sync::Semaphore;
use vpnd_proto::attach::{TokenHash, Tokens};
use vpnd_proto::control::{ChallengeKind, List, Text};
use vpnd_proto::session::{DeviceId, SessionId};

use super::*;
use crate::access::Access;
use crate::authenticator::recheck::{Turn, schedule};
use crate::authenticator::{Authenticator, Entrance, Settings, Surroundings};
use crate::idp_client::IdpClient;
use vpnd_config::ServerConfig;
use vpnd_config::factor::Factors;
use vpnd_config::revocation_cause::RevocationCause;
use vpnd_config::source::Recheck;
use vpnd_ipc::channel::{self, Channel};
use vpnd_ipc::gateway::auth::SourceHealth;
use vpnd_ipc::gateway::idp::{
    AcceptAttributes, AccountingRecord, Continuation, DynamicRequest, IdpChallenge, IdpRequest, LoginAddress,
    LoginAnswer, MAX_FRAME, NextDynamicRequest, ProviderLogin, ProviderLogout, ReadLogout, RedeemCode,
    Redeemed, RefreshLogin, RefreshedLogin, Url, UserRecheck,
};
use vpnd_ipc::gateway::portal::turns::STORE;
use vpnd_ipc::request::{self, Answer};
use vpnd_store::audit::testing::Recorded;
use vpnd_store::password::{Hasher, Password};
use vpnd_store::sqlite::Sqlite;
use vpnd_store::{
    LiveUser, NewUser, NewWireGuardDevice, RefreshTokens as _, Revocations as _, SessionChange,
    SessionRecord, Sessions as _, TotpSecret, User, UserChange, UserId, Users as _, WireGuardDevices as _,
};

mod lies;
mod provider;

const NOW: u64 = 1_700_000_000;

type Asked = Arc<Mutex<Vec<(String, String)>>>;

/// An authenticator with the sources `staff`, `guests`, `token` (challenges), `phone` (approvals)
/// and `uni` (a provider), and an idp process that this test is.
struct Bench {
    auth: Arc<Authenticator>,
    store: Arc<Sqlite>,
    audit: Recorded,
    /// Source and user of each request.
    asked: Asked,
    /// A reply to a request that begins with "held" needs one of these.
    held: Arc<Semaphore>,
    replies: Replies,
    /// The factors that users of a provider are said to have shown.
    factors: Arc<Mutex<Factors>>,
    _directory: tempfile::TempDir,
}

fn sources() -> Vec<Source> {
    let source = |name: &str, rule: &str| {
        format!(
            "[[source]]\nname = \"{name}\"\nkind = \"ldap\"\n{rule}\nservers = \"ldaps://a.example\"\nmax_logins = 1\n\
             user_dn = \"uid={{user}}\"\n"
        )
    };
    let text = format!(
        "[tls]\ncertificate = \"a\"\nkey = \"b\"\n[tunnel]\npool_v4 = \"10.86.0.0/16\"\n{}{}",
        source("staff", "realm = \"uni.example\""),
        source("guests", "match = \"g-*\"")
    );
    let radius = |name: &str, rest: &str| {
        format!(
            "[[source]]\nname = \"{name}\"\nkind = \"radius\"\nmatch = \"{name}-*\"\nservers = \"radius://a.example\"\n\
             secret_file = \"s\"\nmax_waiting = 2\n{rest}"
        )
    };
    let provider = "[[source]]\nname = \"uni\"\nkind = \"oidc\"\nrealm = \"sso.example\"\nissuer = \"https://sso.example\"\n\
                    client_id = \"vpn\"\nclient_secret_file = \"s\"\nrecheck_s = 60\n[portal]\nenabled = true\ncertificate = \"c\"\n\
                    key = \"k\"\nurl = \"https://vpn.example\"\n";
    let text = format!("{text}{}{}{provider}", radius("token", ""), radius("phone", "push = true\n"));
    ServerConfig::parse(&text, "server.toml", Path::new("/")).unwrap().sources
}

impl Bench {
    /// The idp process answers by user name, and to the answer of a challenge by `user=answer`;
    /// about others it is silent.
    fn new(replies: &[(&str, Reply)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Sqlite::open_or_create(&directory.path().join("vpnd.db")).unwrap());
        let settings = Settings {
            workers: 1,
            queue: 8,
            longest_wait: Duration::from_secs(5),
            require_certificate: false,
        };
        let hasher = Hasher::with_cost(64, 1);
        let local = NewUser::new("local", hasher.hash(&Password::new("local's".to_owned())).unwrap());
        store.add_user(&local, NOW).unwrap();
        // Codes are asked for where any user has them.
        let totp = Some(vpnd_store::TotpSecret::new(vec![7; 20]));
        let holder = NewUser { totp, ..NewUser::new("holder", local.password.clone()) };
        store.add_user(&holder, NOW).unwrap();
        let (ours, theirs) = channel::pair().unwrap();
        let idp = Arc::new(IdpClient::default());
        idp.connect(ours.into()).unwrap();
        let asked = Asked::default();
        let replies = replies.iter().map(|(user, reply)| ((*user).to_owned(), reply.clone())).collect();
        let replies: Replies = Arc::new(Mutex::new(replies));
        let held = Arc::new(Semaphore::new(0));
        let factors = Arc::new(Mutex::new(Factors::ONE_TIME_CODE));
        let channel = Channel::new(theirs, MAX_FRAME).unwrap();
        let scripted = Arc::new(ToldIdp {
            replies: Arc::clone(&replies),
            factors: Arc::clone(&factors),
            asked: Arc::clone(&asked),
            held: Arc::clone(&held),
        });
        let permits = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        tokio::spawn(request::serve::<IdpRequest, _>(channel, scripted, permits));
        let audit = Recorded::default();
        let profiles = vpnd_config::testing::smallest("[wireguard]\nenabled = true\n").profiles;
        let surroundings = Surroundings {
            access: Arc::new(Access::new(profiles, &vpnd_config::Tunnel::default())),
            sources: Sources::new(&sources(), idp, Arc::default()),
            audit: Some(audit.recorder()),
            ..Surroundings::default()
        };
        let auth = Authenticator::within(Arc::clone(&store) as _, hasher, settings, surroundings).unwrap();
        let auth = Arc::new(auth);
        Self { auth, store, audit, asked, held, replies, factors, _directory: directory }
    }

    async fn log_in(&self, user: &str, password: &str) -> LoginOutcome {
        self.auth.log_in(login(user, password), NOW).await
    }

    /// Logs in, with a wrong code if one is asked for.
    async fn through_code(&self, user: &str, password: &str) -> LoginOutcome {
        match self.log_in(user, password).await {
            LoginOutcome::CodeRequired(number) => self.answer(number, "000000").await,
            outcome => outcome,
        }
    }

    fn audited(&self, detail: &str) -> usize {
        self.audit.newest().iter().filter(|entry| entry.detail == detail).count()
    }
}

fn login(user: &str, password: &str) -> Login {
    Login {
        user: user.to_owned(),
        password: Password::new(password.to_owned()),
        code: None,
        certificate: None,
        source: "192.0.2.1".parse().unwrap(),
        entrance: Entrance::Tunnel,
        device: DeviceId([1; 16]),
    }
}

type Reply = Result<Verdict, Reason>;
type Replies = Arc<Mutex<BTreeMap<String, Reply>>>;

/// An idp process with answers of the test.
struct ToldIdp {
    replies: Replies,
    factors: Arc<Mutex<Factors>>,
    asked: Asked,
    held: Arc<Semaphore>,
}

impl ToldIdp {
    async fn reply(&self, source: &str, key: String) -> Reply {
        self.asked.lock().unwrap().push((source.to_owned(), key.clone()));
        if key.starts_with("held") {
            self.held.acquire().await.unwrap().forget();
        }
        let reply = self.replies.lock().unwrap().get(&key).cloned();
        match reply {
            Some(reply) => reply,
            None => std::future::pending().await,
        }
    }
}

impl Answer<LoginCheck> for ToldIdp {
    async fn answer(self: &Arc<Self>, check: LoginCheck) -> Reply {
        self.reply(&check.source, check.user.to_string()).await
    }
}

impl Answer<LoginAnswer> for ToldIdp {
    async fn answer(self: &Arc<Self>, answer: LoginAnswer) -> Reply {
        assert_eq!(answer.round, round(), "as the challenge had it");
        self.reply(&answer.source, format!("{}={}", &*answer.user, answer.answer.expose())).await
    }
}

impl Answer<UserRecheck> for ToldIdp {
    async fn answer(self: &Arc<Self>, user: UserRecheck) -> Result<Result<Identity, SourceRefusal>, Reason> {
        match self.reply(&user.source, format!("{}?", &*user.user)).await? {
            Verdict::Accepted(identity) => Ok(Ok(identity)),
            Verdict::Refused(refusal) => Ok(Err(refusal)),
            other => panic!("no verdict about a user without a password: {other:?}"),
        }
    }
}

impl Answer<LoginAddress> for ToldIdp {
    async fn answer(self: &Arc<Self>, login: LoginAddress) -> Result<Url, Reason> {
        Ok(Url::cut(&login.state))
    }
}

impl Answer<RefreshLogin> for ToldIdp {
    async fn answer(
        self: &Arc<Self>,
        asked: RefreshLogin,
    ) -> Result<Result<RefreshedLogin, SourceRefusal>, Reason> {
        let token = asked.token.expose();
        match self.reply(&asked.source, token.to_owned()).await? {
            Verdict::Accepted(identity) => {
                Ok(Ok(RefreshedLogin { identity, refresh: SecretText::new(format!("{token}+")).ok() }))
            }
            Verdict::Refused(refusal) => Ok(Err(refusal)),
            other => panic!("no verdict about a token: {other:?}"),
        }
    }
}

impl Answer<RedeemCode> for ToldIdp {
    async fn answer(self: &Arc<Self>, redeem: RedeemCode) -> Result<Result<Redeemed, SourceRefusal>, Reason> {
        let code = redeem.code.expose();
        match self.reply(&redeem.source, code.to_owned()).await? {
            Verdict::Accepted(identity) => {
                let factors = *self.factors.lock().unwrap();
                let session = Some([code.as_bytes()[0]; 32].into());
                let login = ProviderLogin { identity, factors, auth_time_s: None, session };
                Ok(Ok(Redeemed { login, refresh: Some(SecretText::new("first").unwrap()) }))
            }
            Verdict::Refused(refusal) => Ok(Err(refusal)),
            other => panic!("no verdict about a code: {other:?}"),
        }
    }
}

impl Answer<ReadLogout> for ToldIdp {
    async fn answer(self: &Arc<Self>, _: ReadLogout) -> Result<Option<ProviderLogout>, Reason> {
        std::future::pending().await
    }
}

impl Answer<AccountingRecord> for ToldIdp {
    async fn answer(self: &Arc<Self>, _: AccountingRecord) -> Result<(), Reason> {
        std::future::pending().await
    }
}

impl Answer<NextDynamicRequest> for ToldIdp {
    async fn answer(self: &Arc<Self>, _: NextDynamicRequest) -> Result<DynamicRequest, Reason> {
        std::future::pending().await
    }
}

/// A code that has come back with a browser from `uni`.
fn redeem(code: &str) -> RedeemCode {
    RedeemCode {
        source: Text::cut("uni"),
        code: SecretText::new(code).unwrap(),
        issuer: None,
        nonce: Text::cut("n"),
        verifier: SecretText::new("v").unwrap(),
        max_age_s: None,
    }
}

fn accepted(subject: &str, groups: &[&str]) -> Reply {
    let groups = groups.iter().map(|group| Text::cut(group)).collect();
    Ok(Verdict::Accepted(Identity {
        subject: Subject::cut(subject),
        groups: List::new(groups).unwrap(),
        accept: AcceptAttributes::default(),
        name: None,
    }))
}

/// Accepts an entry that has several names, of which this is the first.
fn accepted_as(name: &str, subject: &str, groups: &[&str]) -> Reply {
    let Ok(Verdict::Accepted(identity)) = accepted(subject, groups) else { unreachable!() };
    Ok(Verdict::Accepted(Identity { name: Some(UserName::new(name).unwrap()), ..identity }))
}

fn round() -> Continuation {
    Continuation { server: Text::cut("a.example:1812"), state: Some(List::new(vec![0, 255]).unwrap()) }
}

fn challenge() -> Reply {
    let text = Text::cut("Code \x1b[2Jfrom\nyour token");
    Ok(Verdict::Challenge(IdpChallenge { kind: ChallengeKind::Code, text, round: round() }))
}

const DEVICE: DeviceId = DeviceId([1; 16]);

impl Bench {
    /// The number of a login that is challenged.
    async fn challenged(&self, user: &str) -> u64 {
        match self.log_in(user, "right").await {
            LoginOutcome::Challenge(number, _) => number,
            outcome => panic!("{outcome:?}"),
        }
    }

    async fn answer(&self, number: u64, answer: &str) -> LoginOutcome {
        self.auth.answer(number, &SecretText::new(answer).unwrap(), DEVICE, NOW).await
    }
}

#[tokio::test]
async fn every_name_of_a_directory_entry_leads_to_one_record() {
    let entry = || accepted_as("ann@uni.example", "id-ann", &["staff"]);
    let bench = Bench::new(&[("ann", entry()), ("ann.lee", entry())]);
    bench.store.refresh_external(&ExternalUser::expected("staff", "ann@uni.example"), NOW).unwrap();
    bench.store.set_enabled("ann@uni.example", false, NOW).unwrap();
    let is_in = |outcome| matches!(outcome, LoginOutcome::Granted(_));
    for name in ["ann.lee@uni.example", "ann@uni.example"] {
        assert!(
            !is_in(bench.through_code(name, "right").await),
            "{name} was disabled before the first login"
        );
    }
    bench.store.set_enabled("ann@uni.example", true, NOW).unwrap();
    for name in ["ann@uni.example", "ann.lee@uni.example"] {
        assert!(is_in(bench.through_code(name, "right").await), "{name}");
    }
    assert!(bench.store.user("ann.lee@uni.example").unwrap().is_none(), "it has one record");
    bench.store.set_enabled("ann@uni.example", false, NOW).unwrap();
    assert!(!is_in(bench.through_code("ann.lee@uni.example", "right").await));
}

#[tokio::test]
async fn an_entry_name_that_belongs_to_another_source_is_ignored() {
    let bench = Bench::new(&[("ann", accepted_as("g-ann", "id-ann", &[]))]);
    bench.through_code("ann@uni.example", "right").await;
    assert!(bench.store.user("g-ann").unwrap().is_none());
    assert!(bench.store.user("ann@uni.example").unwrap().is_some());
}

#[tokio::test]
async fn a_challenge_is_answered_once_and_by_the_device_that_logs_in() {
    let refused = Ok(Verdict::Refused(SourceRefusal::WrongPassword));
    let replies = [
        ("token-ann", challenge()),
        ("token-ann=123456", accepted("id-1", &["staff"])),
        ("token-ann=wrong", refused),
    ];
    let bench = Bench::new(&replies);
    let LoginOutcome::Challenge(number, demand) = bench.log_in("token-ann", "right").await else {
        panic!("it is challenged")
    };
    assert_eq!((demand.kind, &*demand.text), (ChallengeKind::Code, "Code [2Jfrom your token"));
    assert!(demand.time <= Duration::from_secs(90));
    assert_eq!(bench.auth.number_at(number), bench.auth.number_for("token-ann"));
    // No approval is waited for, and nothing is let in by asking for one.
    assert!(matches!(
        bench.auth.approved(number, DEVICE, NOW).await,
        Some(LoginOutcome::Refused(Refused { refusal: Refusal::Busy, .. }))
    ));
    assert!(matches!(bench.answer(number, "123456").await, LoginOutcome::Granted(_)));
    assert!(
        matches!(
            bench.answer(number, "123456").await,
            LoginOutcome::Refused(Refused { refusal: Refusal::Busy, .. })
        ),
        "a number is good once"
    );

    let number = bench.challenged("token-ann").await;
    assert!(matches!(
        bench.answer(number, "wrong").await,
        LoginOutcome::Refused(Refused { refusal: Refusal::Credentials, .. })
    ));
    assert!(
        matches!(
            bench.answer(number, "123456").await,
            LoginOutcome::Refused(Refused { refusal: Refusal::Busy, .. })
        ),
        "it is over"
    );

    let number = bench.challenged("token-ann").await;
    let (answer, other) = (SecretText::new("123456").unwrap(), DeviceId([2; 16]));
    assert!(matches!(
        bench.auth.answer(number, &answer, other, NOW).await,
        LoginOutcome::Refused(Refused { refusal: Refusal::Credentials, .. })
    ));
    assert!(
        matches!(
            bench.answer(number, "123456").await,
            LoginOutcome::Refused(Refused { refusal: Refusal::Busy, .. })
        ),
        "it is over"
    );

    let number = bench.challenged("token-ann").await;
    bench.auth.abandon(number, NOW);
    assert_eq!((bench.audited("no-code"), bench.audited("wrong-password")), (2, 1));
}

#[tokio::test]
async fn a_source_can_challenge_five_times() {
    let bench = Bench::new(&[("token-ann", challenge()), ("token-ann=again", challenge())]);
    let mut number = bench.challenged("token-ann").await;
    for _ in 1..5 {
        number = match bench.answer(number, "again").await {
            LoginOutcome::Challenge(number, _) => number,
            outcome => panic!("{outcome:?}"),
        };
    }
    assert!(matches!(
        bench.answer(number, "again").await,
        LoginOutcome::Refused(Refused { refusal: Refusal::Credentials, .. })
    ));
    assert_eq!(bench.audited("too-many-rounds"), 1);
}

#[tokio::test]
async fn pending_approvals_are_limited_and_count_as_guesses() {
    let bench = Bench::new(&[("token-ann", challenge()), ("token-ann=123456", accepted("id-1", &[]))]);
    let first = bench.challenged("token-ann").await;
    bench.challenged("token-ann").await;
    assert!(matches!(
        bench.log_in("token-ann", "right").await,
        LoginOutcome::Refused(Refused { refusal: Refusal::WaitingFull, .. })
    ));
    assert!(matches!(bench.log_in("local", "local's").await, LoginOutcome::Granted(_)));
    assert!(matches!(bench.answer(first, "123456").await, LoginOutcome::Granted(_)), "and makes room");
    // An attacker with the password can't bother a person, or guess codes, without end.
    let mut throttled = false;
    for _ in 0..8 {
        match bench.log_in("token-ann", "right").await {
            LoginOutcome::Challenge(number, _) => bench.auth.abandon(number, NOW),
            LoginOutcome::Refused(Refused { refusal: Refusal::Throttled, .. }) => throttled = true,
            outcome => panic!("{outcome:?}"),
        }
    }
    assert!(throttled);
}

#[tokio::test]
async fn a_wrong_password_is_asked_for_a_code_like_a_right_one() {
    let wrong = Ok(Verdict::Refused(SourceRefusal::WrongPassword));
    let bench = Bench::new(&[("ann", accepted("id-1", &[])), ("bob", wrong)]);
    assert!(matches!(bench.log_in("ann@uni.example", "right").await, LoginOutcome::Granted(_)));
    let secret = TotpSecret::new(b"12345678901234567890".to_vec());
    let change = UserChange { totp: Some(Some(secret)), ..UserChange::default() };
    bench.store.modify_user("ann@uni.example", &change, NOW).unwrap();
    for name in ["ann@uni.example", "bob@uni.example"] {
        let since = Instant::now();
        let outcome = bench.log_in(name, "guess").await;
        let LoginOutcome::CodeRequired(number) = outcome else { panic!("{name}: {outcome:?}") };
        assert!(since.elapsed() >= REFUSAL_TIME, "{name}");
        assert_eq!(bench.auth.number_at(number), STORE, "codes are checked here");
        assert!(
            matches!(
                bench.answer(number, "000000").await,
                LoginOutcome::Refused(Refused { refusal: Refusal::Credentials, .. })
            ),
            "{name}"
        );
    }
    assert_eq!((bench.audited("wrong-code"), bench.audited("wrong-password")), (1, 1));
}

#[tokio::test]
async fn a_pending_approval_holds_no_turn_and_ends_with_its_connection() {
    // Silent about `phone-ann`, whose person has not approved it.
    let bench = Bench::new(&[("phone-bob", accepted("id-2", &[]))]);
    let outcome = bench.log_in("phone-ann", "right").await;
    let LoginOutcome::Approval(number, demand) = outcome else { panic!("{outcome:?}") };
    assert_eq!((demand.kind, demand.time), (ChallengeKind::Push, Duration::from_secs(45)));
    assert!(bench.auth.approved(number, DEVICE, NOW).await.is_none());
    assert!(matches!(
        bench.auth.approved(number, DeviceId([2; 16]), NOW).await,
        Some(LoginOutcome::Refused(Refused { refusal: Refusal::Busy, .. }))
    ));
    assert!(matches!(bench.log_in("phone-bob", "right").await, LoginOutcome::Granted(_)));
    // No answer of the client's stands for the server's.
    assert!(matches!(
        bench.answer(number, "").await,
        LoginOutcome::Refused(Refused { refusal: Refusal::Credentials, .. })
    ));
    assert!(matches!(
        bench.auth.approved(number, DEVICE, NOW).await,
        Some(LoginOutcome::Refused(Refused { refusal: Refusal::Busy, .. }))
    ));
    assert_eq!(bench.audited("not-approved"), 1);
}

#[tokio::test]
async fn a_user_of_a_source_has_a_local_record_that_can_be_disabled() {
    let bench = Bench::new(&[("ann", accepted("id-1", &["staff", "vpn"]))]);
    let outcome = bench.log_in("Ann@Uni.Example", "right").await;
    let LoginOutcome::Granted(user) = outcome else { panic!("{outcome:?}") };
    let named = (user.name.as_str(), user.source.as_str(), user.subject.as_str());
    assert_eq!(named, ("ann@uni.example", "staff", "id-1"));
    assert_eq!(user.groups, ["staff", "vpn"]);
    assert_eq!(*bench.asked.lock().unwrap(), [("staff".to_owned(), "ann".to_owned())]);
    bench.store.set_enabled("ann@uni.example", false, NOW).unwrap();
    assert!(matches!(
        bench.through_code("ann@uni.example", "right").await,
        LoginOutcome::Refused(Refused { refusal: Refusal::Credentials, .. })
    ));
    assert_eq!(bench.audited("disabled"), 1);
}

#[tokio::test]
async fn a_login_queries_one_source_and_refusals_take_constant_time() {
    let wrong = Ok(Verdict::Refused(SourceRefusal::WrongPassword));
    let bench = Bench::new(&[("ann", wrong), ("g-bob", accepted("2", &[]))]);
    let since = Instant::now();
    assert!(matches!(
        bench.through_code("ann@uni.example", "wrong").await,
        LoginOutcome::Refused(Refused { refusal: Refusal::Credentials, .. })
    ));
    assert!(since.elapsed() >= REFUSAL_TIME);
    assert!(matches!(bench.log_in("g-bob", "right").await, LoginOutcome::Granted(_)));
    assert!(matches!(bench.log_in("local", "local's").await, LoginOutcome::Granted(_)));
    let asked: Vec<_> = bench.asked.lock().unwrap().iter().map(|(source, _)| source.clone()).collect();
    assert_eq!(asked, ["staff", "guests"]);
}

#[tokio::test]
async fn an_empty_password_reaches_no_source() {
    let bench = Bench::new(&[("ann", accepted("id-1", &[]))]);
    assert!(matches!(
        bench.log_in("ann@uni.example", "").await,
        LoginOutcome::Refused(Refused { refusal: Refusal::Credentials, .. })
    ));
    assert!(bench.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_unreachable_source_refuses_logins_and_counts_no_guess() {
    let bench = Bench::new(&[("ann", Err(Text::cut("down")))]);
    for _ in 0..8 {
        let outcome = bench.log_in("ann@uni.example", "right").await;
        assert!(
            matches!(outcome, LoginOutcome::Refused(Refused { refusal: Refusal::SourceUnavailable, .. })),
            "{outcome:?}"
        );
    }
    assert_eq!(bench.audited("source-unavailable"), 8);
}

/// Makes these logins at the same time. Returns how many of them reach the source.
async fn reach(bench: &Arc<Bench>, logins: impl Iterator<Item = Login>) -> usize {
    bench.asked.lock().unwrap().clear();
    let mut under_way = tokio::task::JoinSet::new();
    for login in logins {
        let auth = Arc::clone(&bench.auth);
        under_way.spawn(async move { auth.log_in(login, NOW).await });
    }
    for outcome in under_way.join_all().await {
        let expected = matches!(
            outcome,
            LoginOutcome::CodeRequired(_)
                | LoginOutcome::Refused(Refused { refusal: Refusal::Throttled, .. })
        );
        assert!(expected || matches!(outcome, LoginOutcome::Granted(_)), "{outcome:?}");
    }
    bench.asked.lock().unwrap().len()
}

#[tokio::test]
async fn concurrent_guesses_reach_a_source_no_more_often_than_serial_ones() {
    let wrong = || Ok(Verdict::Refused(SourceRefusal::WrongPassword));
    let bench = Arc::new(Bench::new(&[("token-eve", wrong()), ("token-bob", wrong())]));
    let of_host = (0..60).map(|_| login("token-eve", "guess"));
    assert_eq!(reach(&bench, of_host).await, 5);
    let of_provider = (0..120u16).map(|site| Login {
        source: std::net::Ipv6Addr::new(0x2001, 0xdb8, 1, site << 8, 0, 0, 0, 1).into(),
        ..login("token-bob", "guess")
    });
    assert_eq!(reach(&bench, of_provider).await, 40);
}

#[tokio::test]
async fn many_people_behind_one_address_log_in_at_once() {
    let names: Vec<String> = (0..50).map(|number| format!("token-{number}")).collect();
    let replies: Vec<_> = names.iter().map(|name| (name.as_str(), accepted(name, &[]))).collect();
    let bench = Arc::new(Bench::new(&replies));
    for _ in 0..4 {
        assert_eq!(reach(&bench, names.iter().map(|name| login(name, "right"))).await, 50);
    }
    // None of them has left a trace.
    let (stranger, zoe) = (login("", ""), Person::of("zoe", None));
    assert_eq!(bench.auth.logins.guesses.wait_s(&stranger, &zoe, false, NOW), None);
}

#[tokio::test]
async fn guesses_by_all_names_of_an_entry_count_together() {
    let wrong = || Ok(Verdict::RefusedEntry(SourceRefusal::WrongPassword, Subject::cut("id-1")));
    let bench = Bench::new(&[("ann", wrong()), ("ann.smith", wrong()), ("bob", wrong())]);
    let mut throttled = Vec::new();
    for name in ["ann", "ann.smith", "ann", "ann.smith", "ann", "ann.smith", "ann"] {
        match bench.log_in(&format!("{name}@uni.example"), "guess").await {
            LoginOutcome::CodeRequired(_) => throttled.push(false),
            LoginOutcome::Refused(Refused { refusal: Refusal::Throttled, .. }) => throttled.push(true),
            outcome => panic!("{outcome:?}"),
        }
    }
    assert_eq!(throttled, [false, false, false, false, false, true, true]);
}

#[tokio::test]
async fn answers_of_a_source_are_counted_by_outcome() {
    let refused = Ok(Verdict::Refused(SourceRefusal::WrongPassword));
    let bench =
        Bench::new(&[("ann", accepted("id-1", &[])), ("bob", refused), ("down", Err(Text::cut("down")))]);
    let staff = || bench.auth.source_health().into_iter().find(|source| &*source.name == "staff").unwrap();
    let state = |health: &SourceHealth| (health.up, health.answers, health.failures);
    assert_eq!((state(&staff()), staff().last_answer_s), ((None, 0, 0), None));
    bench.log_in("down@uni.example", "x").await;
    assert_eq!((state(&staff()), staff().last_answer_s), ((Some(false), 0, 1), None));
    assert!(staff().silent_s.is_some());
    bench.log_in("ann@uni.example", "x").await;
    assert_eq!(state(&staff()), (Some(true), 1, 1));
    assert!(staff().last_answer_s.is_some() && staff().silent_s.is_none());
    bench.log_in("down@uni.example", "x").await;
    // A refusal is an answer: the source works.
    bench.log_in("bob@uni.example", "x").await;
    assert_eq!(state(&staff()), (Some(true), 2, 2));
    let others: Vec<_> = bench.auth.source_health().iter().map(state).collect();
    assert!(others.contains(&(None, 0, 0)), "the other source was not asked: {others:?}");
}

#[tokio::test]
async fn a_slow_source_does_not_delay_logins_of_others() {
    let bench = Arc::new(Bench::new(&[("g-bob", accepted("2", &[]))]));
    let waiting = Arc::clone(&bench);
    // No server answers, and the source's one turn is taken.
    let slow = tokio::spawn(async move { waiting.log_in("ann@uni.example", "right").await });
    while bench.asked.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(matches!(bench.log_in("local", "local's").await, LoginOutcome::Granted(_)));
    assert!(matches!(bench.log_in("g-bob", "right").await, LoginOutcome::Granted(_)));
    assert!(!slow.is_finished());
    slow.abort();
    // The portal has a queue for each of these.
    let queues = ["local", "ann@uni.example", "g-bob", "Ann@sso.example"];
    assert_eq!(queues.map(|user| bench.auth.number_for(user)), [0, 1, 2, 5]);
    assert_eq!(["staff", "uni", "none"].map(|source| bench.auth.number_of(source)), [1, 5, 0]);
}

#[tokio::test]
async fn a_name_of_another_user_gets_no_record() {
    let bench = Bench::new(&[("g-bob", accepted("2", &[]))]);
    let hash = Hasher::with_cost(64, 1).hash(&Password::new("x".to_owned())).unwrap();
    bench.store.add_user(&NewUser::new("g-bob", hash), NOW).unwrap();
    assert!(matches!(
        bench.through_code("g-bob", "right").await,
        LoginOutcome::Refused(Refused { refusal: Refusal::Credentials, .. })
    ));
    assert_eq!(bench.audited("no-record"), 1);
}

#[tokio::test]
async fn a_recheck_accepts_a_source_for_its_own_users_only() {
    use crate::authenticator::recheck::Outcome;
    let replies = [
        ("ann", accepted("id-1", &["staff"])),
        ("ann?", accepted("id-1", &["vpn"])),
        ("bob?", accepted("id-1", &[])),
        ("cat?", Ok(Verdict::Refused(SourceRefusal::Disabled))),
        ("dan?", Err(Text::cut("down"))),
        ("eve?", Ok(Verdict::Refused(SourceRefusal::UnknownUser))),
        ("fay?", accepted("id-1", &[])),
    ];
    let bench = Bench::new(&replies);
    let outcome = bench.log_in("ann@uni.example", "right").await;
    let LoginOutcome::Granted(ann) = outcome else { panic!("{outcome:?}") };
    let live = |name: &str, subject: &str| LiveUser {
        id: ann.id,
        name: format!("{name}@uni.example"),
        subject: subject.to_owned(),
        has_groups: true,
    };
    let staff = Arc::clone(&bench.auth.sources.all()[0]);
    let recheck = async |user: LiveUser| bench.auth.rechecks.recheck_user(&staff, &user).await;
    assert_eq!(recheck(live("ann", "id-1")).await, Outcome::Confirmed);
    assert_eq!(bench.store.user("ann@uni.example").unwrap().unwrap().groups, ["vpn"]);
    assert_eq!(recheck(live("bob", "id-2")).await, Outcome::Absent, "the name is another's");
    assert_eq!(recheck(live("cat", "id-3")).await, Outcome::Over);
    assert_eq!(recheck(live("dan", "id-4")).await, Outcome::NoAnswer);
    assert_eq!(recheck(live("eve", "id-5")).await, Outcome::Absent);
    let groupless = recheck(live("fay", "id-1")).await;
    assert!(matches!(groupless, Outcome::Groupless(_)), "{groupless:?}");
    assert_eq!(bench.store.user("ann@uni.example").unwrap().unwrap().groups, ["vpn"], "not taken over yet");
}

/// Users `p0` to `p11` with a session each, of whom alone `p0` is due, and these replies about
/// them.
async fn crowd(about: impl Fn(usize) -> Reply) -> (Bench, HashMap<UserId, Turn>) {
    const HOUR: Duration = Duration::from_secs(3_600);
    let names: Vec<String> =
        (0..12).flat_map(|number| [format!("p{number}"), format!("p{number}?")]).collect();
    let reply = |at: usize| {
        if at.is_multiple_of(2) { accepted(&format!("id-{}", at / 2), &["staff"]) } else { about(at / 2) }
    };
    let replies: Vec<(&str, Reply)> =
        names.iter().enumerate().map(|(at, name)| (name.as_str(), reply(at))).collect();
    let bench = Bench::new(&replies);
    let mut turns = HashMap::new();
    for number in 0..12 {
        let outcome = bench.log_in(&format!("p{number}@uni.example"), "right").await;
        let LoginOutcome::Granted(user) = outcome else { panic!("{outcome:?}") };
        assert!(bench.begins_as(SessionId([number; 16]), &user));
        let live: Vec<_> = bench.live();
        schedule(&mut turns, &live, now(), if number == 0 { Duration::ZERO } else { HOUR }, false);
    }
    bench.asked.lock().unwrap().clear();
    (bench, turns)
}

#[tokio::test]
async fn many_absent_users_keep_their_sessions_until_confirmed() {
    let recheck = Recheck { every: Duration::from_secs(3_600), grace: Duration::from_secs(3_600) };
    // One of them is disabled: that the directory says, so nothing keeps it.
    let about = |number| match number {
        7 => Ok(Verdict::Refused(SourceRefusal::Disabled)),
        8 => accepted("id-8", &["staff"]),
        9 => accepted("id-9", &[]),
        _ => Ok(Verdict::Refused(SourceRefusal::UnknownUser)),
    };
    let (bench, mut turns) = crowd(about).await;
    let staff = Arc::clone(&bench.auth.sources.all()[0]);
    let missing = || bench.auth.source_health()[0].missing;
    bench.auth.rechecks.recheck_due(&staff, recheck, &mut turns, bench.live()).await;
    assert_eq!(bench.asked.lock().unwrap().len(), 12, "one who is not there has all asked about");
    assert_eq!((bench.live().len(), missing()), (11, 10));
    assert!(!bench.live().iter().any(|user| user.name == "p7@uni.example"), "disabled is disabled");
    assert_eq!(bench.store.user("p9@uni.example").unwrap().unwrap().groups, ["staff"]);

    let confirm = |source| bench.auth.confirm_absences(source);
    assert_eq!((confirm("nowhere"), confirm("staff")), (None, Some(10)));
    bench.auth.rechecks.recheck_due(&staff, recheck, &mut turns, bench.live()).await;
    let left: Vec<String> = bench.live().into_iter().map(|user| user.name).collect();
    assert_eq!((left, missing()), (vec!["p8@uni.example".to_owned(), "p9@uni.example".to_owned()], 0));
    assert!(bench.store.user("p9@uni.example").unwrap().unwrap().groups.is_empty());
}

#[tokio::test]
async fn a_single_absent_user_counts_as_removed() {
    let recheck = Recheck { every: Duration::from_secs(3_600), grace: Duration::from_secs(3_600) };
    let about = |number: usize| match number {
        0 => Ok(Verdict::Refused(SourceRefusal::UnknownUser)),
        other => accepted(&format!("id-{other}"), &["staff"]),
    };
    let (bench, mut turns) = crowd(about).await;
    let staff = Arc::clone(&bench.auth.sources.all()[0]);
    bench.auth.rechecks.recheck_due(&staff, recheck, &mut turns, bench.live()).await;
    assert_eq!((bench.live().len(), bench.auth.source_health()[0].missing), (11, 0));
}

impl Bench {
    /// The users of `staff` who have sessions.
    fn live(&self) -> Vec<LiveUser> {
        let mut live = self.store.users_with_sessions("staff").unwrap();
        live.sort_by(|a, b| a.name.cmp(&b.name));
        live
    }

    /// A session of this user, as of a login that was granted to them as they are here; whether the
    /// store takes it.
    fn begins(&self, user: &User) -> bool {
        self.begins_as(SessionId([7; 16]), user)
    }

    fn begins_as(&self, id: SessionId, user: &User) -> bool {
        let record = SessionRecord {
            id,
            user: user.id,
            device: DEVICE,
            epoch: 1,
            tokens: Tokens::restore(TokenHash::from_bytes([1; 32]), None),
            started_s: NOW,
            expires_s: NOW + 1_000,
            factors: Factors::PASSWORD,
            auth_time_s: NOW,
            generation: 0,
            most: None,
        };
        let change = SessionChange::Add(record, user.generation);
        self.store.change_sessions(&[change], NOW).unwrap() == [true]
    }

    /// Waits for a request about this user.
    async fn asked_about(&self, user: &str) {
        while !self.asked.lock().unwrap().iter().any(|(_, asked)| asked == user) {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_user_disabled_during_the_query_is_refused() {
    use crate::authenticator::recheck::Outcome;
    let replies = [("held", accepted("id-1", &["staff"])), ("held?", accepted("id-1", &["vpn"]))];
    let bench = Arc::new(Bench::new(&replies));
    bench.held.add_permits(1);
    let outcome = bench.log_in("held@uni.example", "right").await;
    let LoginOutcome::Granted(user) = outcome else { panic!("{outcome:?}") };
    let user = bench.store.user(&user.name).unwrap().unwrap();
    assert!(bench.begins(&user));
    let has_session = || bench.store.session(SessionId([7; 16]), NOW).unwrap().is_some();
    assert!(has_session());

    // The source confirms the user, after the record here was disabled.
    let live = LiveUser::of(&user);
    let (this, asked) = (Arc::clone(&bench), live.clone());
    let recheck = tokio::spawn(async move {
        let staff = Arc::clone(&this.auth.sources.all()[0]);
        this.auth.rechecks.recheck_user(&staff, &asked).await
    });
    bench.asked_about("held?").await;
    bench.store.set_enabled(&user.name, false, NOW).unwrap();
    bench.held.add_permits(1);
    assert_eq!(recheck.await.unwrap(), Outcome::Confirmed);
    let now = bench.store.user(&user.name).unwrap().unwrap();
    assert_eq!((now.enabled, now.groups.as_slice()), (false, &["vpn".to_owned()][..]));
    assert!(!has_session(), "it has ended");
    assert!(!bench.begins(&user), "nor does a login that was granted before begin one");
    let causes: Vec<_> = bench.store.revocations_since(0).unwrap().into_iter().map(|r| r.cause).collect();
    assert_eq!(causes, [RevocationCause::Disabled, RevocationCause::Groups]);

    // Again with a login under way.
    bench.store.set_enabled(&user.name, true, NOW).unwrap();
    bench.asked.lock().unwrap().clear();
    let (this, name) = (Arc::clone(&bench), user.name.clone());
    let login = tokio::spawn(async move { this.log_in(&name, "right").await });
    bench.asked_about("held").await;
    bench.store.set_enabled(&user.name, false, NOW).unwrap();
    bench.held.add_permits(1);
    let outcome = login.await.unwrap();
    assert!(matches!(outcome, LoginOutcome::CodeRequired(_)), "as for whoever is refused: {outcome:?}");
    assert!(!bench.store.user(&user.name).unwrap().unwrap().enabled && !has_session());
}

#[tokio::test]
async fn a_provider_login_is_of_the_user_in_the_providers_answer() {
    let bench = Bench::new(&[
        ("ann's", accepted_as("ann@sso.example", "1", &["staff"])),
        ("eve's", accepted_as("eve@uni.example", "2", &["staff"])),
        ("nobody's", accepted("3", &[])),
        ("wrong", Ok(Verdict::Refused(SourceRefusal::NotProved))),
        ("many", Ok(Verdict::Refused(SourceRefusal::TooManyGroups))),
        ("down", Err(Reason::cut("down"))),
    ]);
    let back = async |source: &str, code: &str| {
        let text = |text: &str| Text::cut(text);
        let redeem = RedeemCode {
            source: Text::cut(source),
            code: SecretText::new(code).unwrap(),
            issuer: None,
            nonce: text("n"),
            verifier: SecretText::new("v").unwrap(),
            max_age_s: None,
        };
        bench.auth.log_in_at_provider(redeem, "192.0.2.1".parse().unwrap(), DeviceId([1; 16]), NOW).await
    };
    let refusal = |outcome: LoginOutcome| match outcome {
        LoginOutcome::Refused(refused) => refused.refusal,
        other => panic!("{other:?}"),
    };
    let LoginOutcome::Granted(ann) = back("uni", "ann's").await else { panic!("she is let in") };
    assert_eq!((ann.name.as_str(), ann.factors.to_string().as_str()), ("ann@sso.example", "pwd otp"));
    assert_eq!((ann.source.as_str(), &ann.groups[..]), ("uni", &["staff".to_owned()][..]));
    for (source, code, expected) in [
        ("uni", "eve's", Refusal::NotConfirmed),
        ("uni", "nobody's", Refusal::NotConfirmed),
        ("uni", "wrong", Refusal::NotConfirmed),
        ("uni", "many", Refusal::TooManyGroups),
        ("uni", "down", Refusal::SourceUnavailable),
        ("staff", "ann's", Refusal::NotConfirmed),
        ("other", "ann's", Refusal::NotConfirmed),
    ] {
        assert_eq!(refusal(back(source, code).await), expected, "{source} {code}");
    }
    assert_eq!((bench.audited("no-record"), bench.audited("not-proved")), (2, 1));
    // A password is no way in, and no server is asked about it.
    let asked = bench.asked.lock().unwrap().len();
    assert_eq!(refusal(bench.log_in("ann@sso.example", "x").await), Refusal::NeedsBrowser);
    assert_eq!(bench.asked.lock().unwrap().len(), asked);

    bench.store.set_enabled("ann@sso.example", false, NOW).unwrap();
    assert_eq!(refusal(back("uni", "ann's").await), Refusal::Disabled);
}

#[tokio::test]
async fn a_removed_user_without_a_session_loses_portal_visits() {
    let replies =
        [("ann", accepted("id-1", &["staff"])), ("ann?", Ok(Verdict::Refused(SourceRefusal::Disabled)))];
    let bench = Bench::new(&replies);
    let LoginOutcome::Granted(ann) = bench.log_in("ann@uni.example", "right").await else {
        panic!("she is let in")
    };
    let (id, generation) = (ann.id, ann.generation);
    let found = |source: &str, users: Vec<LiveUser>| {
        let mut users = users;
        bench.auth.rechecks.add_visitors(source, &mut users).unwrap();
        users
    };
    assert!(found("staff", bench.live()).is_empty(), "nobody is said to be on the pages");
    bench.auth.follow_visitors(Box::new(move || {
        vec![(id, generation), (id, generation + 7), (UserId([9; 16]), 0)]
    }));
    assert!(found("other", Vec::new()).is_empty(), "another source is not asked about her");
    let users = found("staff", bench.live());
    assert_eq!(users.iter().map(|user| user.id).collect::<Vec<_>>(), [id]);
    assert_eq!(found("staff", users.clone()).len(), 1, "once");
    let staff = Arc::clone(&bench.auth.sources.all()[0]);
    let users = bench.auth.rechecks.live_users(&staff).await.unwrap();
    let recheck = Recheck { every: Duration::ZERO, grace: Duration::from_secs(60) };
    let mut turns = HashMap::new();
    schedule(&mut turns, &users, vpnd_sys::clock::now(), recheck.every, false);
    bench.auth.rechecks.recheck_due(&staff, recheck, &mut turns, users).await;
    assert!(bench.store.user_by_id(id).unwrap().unwrap().generation > generation, "which ends her visits");
    assert!(found("staff", bench.live()).is_empty(), "a visit that is over is asked about no more");
}
