//! The auth process against a worker that asks for more than it may.

use std::path::Path;

use super::*;
use crate::auth::Settings;
use crate::auth::password::Hasher;
use crate::config::Tunnel;
use crate::privsep::auth::message::{MAX_FRAME, TokenHashes};
use crate::privsep::channel::pair;
use crate::store::NewUser;
use crate::store::sqlite::Sqlite;

fn service(directory: &Path) -> Arc<Service> {
    let store = Sqlite::open_or_create(&directory.join("vpnd.db")).unwrap();
    let hasher = Hasher::with_cost(8, 1);
    let user = NewUser {
        name: "ann".to_owned(),
        password: hasher.hash(&Password::new("right".to_owned())),
        totp: None,
        groups: vec!["staff".to_owned()],
        certificate: None,
    };
    store.add_user(&user, 1).unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    let settings = Settings { workers: 1, queue: 4, require_certificate: false };
    let tunnel = Tunnel {
        name: "vpnd0".to_owned(),
        mtu: 1420,
        pool_v4: Some("10.0.0.0/29".parse().unwrap()),
        pool_v6: None,
    };
    let authenticator = Authenticator::new(Arc::clone(&store), hasher, settings);
    Arc::new(Service::new(store, authenticator, Pools::new(&tunnel), None, 8))
}

fn login(password: &str, device: u8) -> Request {
    Request::Login(LoginRequest {
        user: UserName::new("ann").unwrap(),
        password: vpnd_proto::control::SecretText::new(password).unwrap(),
        code: None,
        certificate: None,
        source: [192, 0, 2, 1].into(),
        device: [device; 16].into(),
    })
}

async fn granted(service: &Arc<Service>, device: u8) -> ByteArray<16> {
    match service.answer(login("right", device)).await {
        Answer::Granted(granted) => granted.session,
        other => panic!("{other:?}"),
    }
}

fn keep(session: ByteArray<16>) -> Request {
    let hash = vpnd_proto::attach::TokenHash::from_bytes([7; 32]);
    let tokens = TokenHashes::from(&vpnd_proto::attach::Tokens::new(hash));
    Request::Commit(vec![Write::Keep { session, tokens, epoch: 1 }])
}

/// How many sessions could not be kept.
async fn failed(service: &Arc<Service>, request: Request) -> usize {
    match service.answer(request).await {
        Answer::Committed { failed } => failed.len(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_session_is_kept_for_whoever_logged_in_and_for_nobody_else() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path());
    let invented = ByteArray::from([9; 16]);
    assert_eq!(failed(&service, keep(invented)).await, 1, "nobody logged in for it");
    assert!(matches!(service.answer(Request::Session(invented)).await, Answer::Session(None)));

    let session = granted(&service, 1).await;
    assert_eq!(failed(&service, keep(session)).await, 0);
    assert_eq!(
        failed(&service, keep(session)).await,
        0,
        "from now on these are new tokens of a session that is kept"
    );
    let Answer::Session(Some(stored)) = service.answer(Request::Session(session)).await else {
        panic!("it is kept");
    };
    assert_eq!((&*stored.account.name, stored.account.groups.as_slice()), ("ann", &["staff".to_owned()][..]));
    assert!(stored.addresses.ipv4.is_some());

    assert_eq!(failed(&service, Request::Commit(vec![Write::End(session)])).await, 0);
    assert_eq!(failed(&service, keep(session)).await, 1, "a grant is good once");
}

#[tokio::test]
async fn a_grant_is_void_once_its_user_is_disabled() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path());
    let Answer::Revocations { seen, .. } = service.answer(Request::Revocations(None)).await else {
        panic!("it is a number");
    };
    let session = granted(&service, 1).await;
    service.store.set_enabled("ann", false, 2).unwrap();
    assert_eq!(failed(&service, keep(session)).await, 1);
    match service.answer(Request::Revocations(Some(seen))).await {
        Answer::Revocations { found, .. } => {
            assert_eq!((found.len(), found[0].cause), (1, RevocationCause::Disabled));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_wrong_password_gets_nothing_and_a_full_pool_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path());
    assert!(matches!(service.answer(login("wrong", 1)).await, Answer::Refused { .. }));
    for device in 1..=5 {
        granted(&service, device).await;
    }
    assert!(matches!(service.answer(login("right", 6)).await, Answer::NoAddress(_)));
}

#[tokio::test]
async fn what_no_worker_sends_ends_the_conversation() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path());
    let writes = vec![Write::End(ByteArray::from([1; 16])); MAX_WRITES + 1];
    assert!(matches!(service.answer(Request::Commit(writes)).await, Answer::Failed(_)));
    let (ours, theirs) = pair().unwrap();
    let worker = Channel::new(ours, MAX_FRAME).unwrap();
    worker.send(&"no request", &[]).await.unwrap();
    assert!(service.run(Channel::new(theirs, MAX_FRAME).unwrap()).await.is_err());
}

#[tokio::test]
async fn no_answer_holds_a_hash() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path());
    let hash = service.store.user("ann").unwrap().unwrap().password;
    let salt_and_hash = hash.expose().rsplit('$').next().unwrap().to_owned();
    let session = granted(&service, 1).await;
    service.answer(keep(session)).await;
    for request in [login("right", 1), Request::Session(session), Request::Revocations(Some(0))] {
        let bytes = minicbor::to_vec(service.answer(request).await).unwrap();
        let found = bytes.windows(salt_and_hash.len()).any(|window| window == salt_and_hash.as_bytes());
        assert!(!found);
    }
}
