//! Logouts at a provider, with a test in the place of the idp process.

use std::path::Path;

use tokio::sync::Semaphore;
use vpnd_admission::access::Access;
use vpnd_admission::authenticator::sources::Sources;
use vpnd_admission::authenticator::{Settings, Surroundings};
use vpnd_admission::idp_client::IdpClient;
use vpnd_config::ServerConfig;
use vpnd_ipc::channel::{self, Channel};
use vpnd_ipc::gateway::idp::{
    AccountingRecord, IdpRequest, LoginAddress, LoginAnswer, LoginCheck, MAX_FRAME, NextDynamicRequest,
    RedeemCode, RefreshLogin, Subject, UserRecheck,
};
use vpnd_ipc::request::{self, Answer, Request};
use vpnd_proto::control::{SecretText, Text};
use vpnd_store::audit::testing::Recorded;
use vpnd_store::password::Hasher;
use vpnd_store::sqlite::Sqlite;
use vpnd_store::{ExternalUser, ProviderSessions as _, RefreshToken, RefreshTokens as _, Users as _};

use super::*;
use crate::portal::Portal;

const NOW: u64 = 1_700_000_000;

/// Reads logout tokens: `session a` is of the session that begins with that letter, others name the
/// user.
struct Idp;

impl Answer<ReadLogout> for Idp {
    async fn answer(self: &Arc<Self>, read: ReadLogout) -> Result<Option<ProviderLogout>, Reason> {
        let token = read.token.expose();
        let who = match token.strip_prefix("session ") {
            Some(session) => LoggedOut::Session([session.as_bytes()[0]; 32].into()),
            None => LoggedOut::Subject(Subject::cut(token)),
        };
        Ok(Some(ProviderLogout { who, id: [token.len() as u8; 32].into() }))
    }
}

macro_rules! silent {
    ($($request:ty),*) => {$(
        impl Answer<$request> for Idp {
            async fn answer(self: &Arc<Self>, _: $request) -> Result<<$request as Request>::Reply, Reason> {
                std::future::pending().await
            }
        }
    )*};
}

silent!(
    LoginCheck,
    LoginAnswer,
    UserRecheck,
    AccountingRecord,
    NextDynamicRequest,
    LoginAddress,
    RedeemCode,
    RefreshLogin
);

/// A portal with users of the provider `uni`, who have logged in there.
struct Bench {
    portal: Arc<Portal>,
    store: Arc<Sqlite>,
    audit: Recorded,
    directory: tempfile::TempDir,
}

impl Bench {
    /// Users have the first letter of their name as their provider session.
    fn new(names: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Sqlite::open_or_create(&directory.path().join("vpnd.db")).unwrap());
        for name in names {
            let user = ExternalUser {
                source: "uni".to_owned(),
                subject: (*name).to_owned(),
                name: (*name).to_owned(),
                groups: Vec::new(),
            };
            store.refresh_external(&user, NOW).unwrap();
            let user = store.user(name).unwrap().unwrap();
            store.keep_refresh_token(user.id, Some(&RefreshToken::new("sealed".to_owned()))).unwrap();
            store.keep_provider_session(user.id, &[name.as_bytes()[0]; 32], NOW).unwrap();
        }
        let text = "[tls]\ncertificate = \"a\"\nkey = \"b\"\n[tunnel]\npool_v4 = \"10.86.0.0/16\"\n\
                    [[source]]\nname = \"uni\"\nkind = \"oidc\"\nrealm = \"sso.example\"\nissuer = \"https://sso.example\"\n\
                    client_id = \"vpn\"\nclient_secret_file = \"s\"\n[portal]\nenabled = true\ncertificate = \"c\"\n\
                    key = \"k\"\nurl = \"https://vpn.example\"\n";
        let config = ServerConfig::parse(text, "server.toml", Path::new("/")).unwrap();
        let (ours, theirs) = channel::pair().unwrap();
        let idp = Arc::new(IdpClient::default());
        idp.connect(ours.into()).unwrap();
        let channel = Channel::new(theirs, MAX_FRAME).unwrap();
        let permits = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        tokio::spawn(request::serve::<IdpRequest, _>(channel, Arc::new(Idp), permits));
        let access = Arc::new(Access::new(config.profiles, &config.tunnel));
        let surroundings = Surroundings {
            access: Arc::clone(&access),
            sources: Sources::new(&config.sources, idp, Arc::default()),
            ..Surroundings::default()
        };
        let settings = Settings {
            workers: 1,
            queue: 8,
            longest_wait: Duration::from_secs(5),
            require_certificate: false,
        };
        let hasher = Hasher::with_cost(64, 1);
        let auth = Authenticator::within(Arc::clone(&store) as _, hasher, settings, surroundings).unwrap();
        let audit = Recorded::default();
        let recorder = Some(audit.recorder());
        let portal =
            Portal::new(Arc::clone(&store) as _, Arc::new(auth), access, Clocks::default(), recorder);
        Self { portal: Arc::new(portal), store, audit, directory }
    }

    fn user(&self, name: &str) -> User {
        self.store.user(name).unwrap().unwrap()
    }

    /// The provider sends this logout token.
    async fn log_out(&self, token: &str) -> Result<bool, Reason> {
        let (token, address) = (SecretText::new(token).unwrap(), [192, 0, 2, 1].into());
        self.portal.answer(LoggedOutAtProvider { source: Text::cut("uni"), token, address }).await
    }
}

#[tokio::test]
async fn a_provider_logout_that_failed_is_accepted_when_repeated() {
    let bench = Bench::new(&["ann"]);
    let database = rusqlite::Connection::open(bench.directory.path().join("vpnd.db")).unwrap();
    database.execute_batch("ALTER TABLE refresh_tokens RENAME TO elsewhere").unwrap();
    assert!(bench.log_out("ann").await.is_err());
    database.execute_batch("ALTER TABLE elsewhere RENAME TO refresh_tokens").unwrap();
    let before = bench.user("ann").generation;
    assert!(bench.log_out("ann").await.unwrap(), "the provider sends it again");
    let user = bench.user("ann");
    assert!(user.generation > before && bench.store.refresh_token(user.id).unwrap().is_none());
    assert!(!bench.log_out("ann").await.unwrap(), "it has counted");
}

#[tokio::test]
async fn a_provider_session_logout_applies_to_its_user() {
    let bench = Bench::new(&["ann", "bob"]);
    let generations = || ["ann", "bob"].map(|name| bench.user(name).generation);
    let before = generations();
    assert!(bench.log_out("session c").await.unwrap());
    assert_eq!(generations(), before, "nobody has logged in by that one");
    assert!(bench.log_out("session a, first").await.unwrap());
    let after = generations();
    assert!(after[0] > before[0] && after[1] == before[1], "{before:?} {after:?}");
    assert!(bench.log_out("session a, once more").await.unwrap());
    assert_eq!(generations(), after, "it is over");
}

#[tokio::test]
async fn many_logouts_at_a_provider_end_sessions_and_fill_no_audit_file() {
    let bench = Bench::new(&["ann"]);
    let logouts = u64::from(RECORDED) + 20;
    let before = bench.user("ann").generation;
    let logout = ProviderLogout { who: LoggedOut::Subject(Subject::cut("ann")), id: [1; 32].into() };
    for _ in 0..logouts {
        bench.portal.logouts.follow("uni", &logout).unwrap();
    }
    assert_eq!(bench.user("ann").generation, before + logouts);
    let recorded = bench.audit.newest().len();
    // Slow machines let some time pass.
    assert!((RECORDED as usize..RECORDED as usize + 10).contains(&recorded), "{recorded}");
}

#[test]
fn a_token_counts_once_and_what_is_remembered_is_bounded() {
    let mut seen = Seen::default();
    assert!(seen.is_new("uni", [1; 32], Time::ZERO) && !seen.is_new("uni", [1; 32], Time::ZERO));
    assert!(seen.is_new("other", [1; 32], Time::ZERO), "another provider's");
    for number in 0..2 * LIMIT {
        let mut id = [2; 32];
        id[..8].copy_from_slice(&(number as u64).to_le_bytes());
        seen.is_new("uni", id, Time::ZERO);
    }
    assert_eq!(seen.0["uni"].len(), LIMIT);
    assert!(!seen.is_new("uni", [3; 32], Time::ZERO), "one that can't be remembered does not count");
    assert!(seen.is_new("other", [3; 32], Time::ZERO), "another provider has room of its own");
    assert!(!seen.is_new("uni", [1; 32], Time::ZERO + (REMEMBERED - Duration::from_secs(1))));
    assert!(seen.is_new("uni", [3; 32], Time::ZERO + REMEMBERED) && seen.0["uni"].len() == 1);
}
