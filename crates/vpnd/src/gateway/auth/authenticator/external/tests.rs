//! Logins of users of other sources than the store, with a test in the place of the idp process.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use vpnd_proto::control::{List, Text};
use vpnd_proto::session::DeviceId;

use super::*;
use crate::config::ServerConfig;
use crate::gateway::auth::authenticator::Settings;
use crate::gateway::messages::idp::{MAX_FRAME, Numbered, Subject};
use crate::password::{Hasher, Password};
use crate::privsep::channel::{self, Channel};
use crate::store::sqlite::Sqlite;
use crate::store::{NewUser, Store};

const NOW: u64 = 1_700_000_000;

type Asked = Arc<Mutex<Vec<(String, String)>>>;

/// An authenticator with the sources `staff` and `guests`, and an idp process that this test is.
struct Bench {
    auth: Arc<Authenticator>,
    store: Arc<Sqlite>,
    /// Source and user of each request.
    asked: Asked,
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
    ServerConfig::parse(&text, "server.toml", Path::new("/")).unwrap().sources
}

impl Bench {
    /// The idp process answers by user name; about others it is silent.
    fn new(replies: &[(&str, IdpReply)]) -> Self {
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
        let auth = Authenticator::new(Arc::clone(&store) as _, hasher, settings).unwrap();
        let (ours, theirs) = channel::pair().unwrap();
        let idp = Arc::new(IdpClient::default());
        idp.connect(ours.into()).unwrap();
        let asked = Asked::default();
        let replies = replies.iter().map(|(user, reply)| ((*user).to_owned(), reply.clone())).collect();
        tokio::spawn(answer(Channel::new(theirs, MAX_FRAME).unwrap(), replies, Arc::clone(&asked)));
        let auth = Arc::new(auth.with_external(External::new(&sources(), idp)));
        Self { auth, store, asked, _directory: directory }
    }

    async fn log_in(&self, user: &str, password: &str) -> LoginOutcome {
        self.auth.log_in(login(user, password), NOW).await
    }

    fn audited(&self, detail: &str) -> usize {
        let entries = self.store.audit_log(100).unwrap();
        entries.iter().filter(|entry| entry.detail == detail).count()
    }
}

fn login(user: &str, password: &str) -> Login {
    Login {
        user: user.to_owned(),
        password: Password::new(password.to_owned()),
        code: None,
        certificate: None,
        source: "192.0.2.1".parse().unwrap(),
        device: DeviceId([1; 16]),
    }
}

async fn answer(channel: Channel, replies: BTreeMap<String, IdpReply>, asked: Asked) {
    while let Ok(Some(received)) = channel.receive::<Numbered<IdpRequest>>().await {
        let Numbered { number, content: IdpRequest::Check(check) } = received.message;
        asked.lock().unwrap().push((check.source.to_string(), check.user.to_string()));
        let Some(reply) = replies.get(&*check.user) else { continue };
        channel.send(&Numbered { number, content: reply.clone() }, &[]).await.unwrap();
    }
}

fn accepted(subject: &str, groups: &[&str]) -> IdpReply {
    let groups = groups.iter().map(|group| Text::cut(group)).collect();
    IdpReply::Accepted(Identity { subject: Subject::cut(subject), groups: List::new(groups).unwrap() })
}

#[tokio::test]
async fn a_user_of_a_source_has_a_record_here_which_can_be_disabled() {
    let bench = Bench::new(&[("ann", accepted("id-1", &["staff", "vpn"]))]);
    let outcome = bench.log_in("Ann@Uni.Example", "right").await;
    let LoginOutcome::Granted(user) = outcome else { panic!("{outcome:?}") };
    let named = (user.name.as_str(), user.source.as_str(), user.subject.as_str());
    assert_eq!(named, ("ann@uni.example", "staff", "id-1"));
    assert_eq!(user.groups, ["staff", "vpn"]);
    assert_eq!(*bench.asked.lock().unwrap(), [("staff".to_owned(), "ann".to_owned())]);
    bench.store.set_enabled("ann@uni.example", false, NOW).unwrap();
    assert!(matches!(bench.log_in("ann@uni.example", "right").await, LoginOutcome::Refused(_)));
    assert_eq!(bench.audited("disabled"), 1);
}

#[tokio::test]
async fn a_login_is_tried_at_one_source_and_a_refusal_takes_its_time() {
    let wrong = IdpReply::Refused(Refusal::WrongPassword);
    let bench = Bench::new(&[("ann", wrong), ("g-bob", accepted("2", &[]))]);
    let since = Instant::now();
    assert!(matches!(bench.log_in("ann@uni.example", "wrong").await, LoginOutcome::Refused(_)));
    assert!(since.elapsed() >= REFUSAL_TIME);
    assert!(matches!(bench.log_in("g-bob", "right").await, LoginOutcome::Granted(_)));
    assert!(matches!(bench.log_in("local", "local's").await, LoginOutcome::Granted(_)));
    let asked: Vec<_> = bench.asked.lock().unwrap().iter().map(|(source, _)| source.clone()).collect();
    assert_eq!(asked, ["staff", "guests"]);
}

#[tokio::test]
async fn an_empty_password_reaches_no_source() {
    let bench = Bench::new(&[("ann", accepted("id-1", &[]))]);
    assert!(matches!(bench.log_in("ann@uni.example", "").await, LoginOutcome::Refused(_)));
    assert!(bench.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn without_an_answer_nobody_is_let_in_and_nobody_is_locked_out() {
    let bench = Bench::new(&[("ann", IdpReply::Unavailable(Text::cut("down")))]);
    for _ in 0..8 {
        let outcome = bench.log_in("ann@uni.example", "right").await;
        assert!(matches!(outcome, LoginOutcome::SourceUnavailable), "{outcome:?}");
    }
    assert_eq!(bench.audited("source-unavailable"), 8);
}

#[tokio::test]
async fn how_a_source_answers_is_counted() {
    let refused = IdpReply::Refused(Refusal::WrongPassword);
    let bench = Bench::new(&[
        ("ann", accepted("id-1", &[])),
        ("bob", refused),
        ("down", IdpReply::Unavailable(Text::cut("down"))),
    ]);
    let staff = || bench.auth.source_health().into_iter().find(|source| &*source.name == "staff").unwrap();
    let state = |health: &SourceHealth| (health.up, health.answers, health.failures);
    assert_eq!((state(&staff()), staff().last_answer_s), ((None, 0, 0), None));
    bench.log_in("down@uni.example", "x").await;
    assert_eq!((state(&staff()), staff().last_answer_s), ((Some(false), 0, 1), None));
    bench.log_in("ann@uni.example", "x").await;
    assert_eq!(state(&staff()), (Some(true), 1, 1));
    assert!(staff().last_answer_s.is_some());
    bench.log_in("down@uni.example", "x").await;
    // A refusal is an answer: the source works.
    bench.log_in("bob@uni.example", "x").await;
    assert_eq!(state(&staff()), (Some(true), 2, 2));
    let others: Vec<_> = bench.auth.source_health().iter().map(state).collect();
    assert!(others.contains(&(None, 0, 0)), "the other source was not asked: {others:?}");
}

#[tokio::test]
async fn a_slow_source_keeps_no_others_waiting() {
    let bench = Arc::new(Bench::new(&[("g-bob", accepted("2", &[]))]));
    let waiting = Arc::clone(&bench);
    // Nobody answers, and the source's one turn is taken.
    let slow = tokio::spawn(async move { waiting.log_in("ann@uni.example", "right").await });
    while bench.asked.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(matches!(bench.log_in("local", "local's").await, LoginOutcome::Granted(_)));
    assert!(matches!(bench.log_in("g-bob", "right").await, LoginOutcome::Granted(_)));
    assert!(!slow.is_finished());
    slow.abort();
}

#[tokio::test]
async fn a_name_that_is_somebody_elses_gets_no_record() {
    let bench = Bench::new(&[("g-bob", accepted("2", &[]))]);
    let hash = Hasher::with_cost(64, 1).hash(&Password::new("x".to_owned())).unwrap();
    bench.store.add_user(&NewUser::new("g-bob", hash), NOW).unwrap();
    assert!(matches!(bench.log_in("g-bob", "right").await, LoginOutcome::Refused(_)));
    assert_eq!(bench.audited("no-record"), 1);
}
