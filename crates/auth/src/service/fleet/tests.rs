//! Two gateways' auth processes on one database.

use std::sync::Arc;

use minicbor::bytes::ByteArray;
use vpnd_ipc::gateway::auth::{Commit, Dropped, MissingQuery, SessionClaim, TokenHashes, Write};
use vpnd_proto::attach::{Token, Tokens};
use vpnd_store::Store;
use vpnd_store::postgres::testing::{Cluster, gateway};
use vpnd_store::postgres::{Dial, Holder, Postgres};
use vpnd_sys::clock::Clocks;

use super::Service;
use crate::service::tests::{access, ask, granted, service_on};

/// The services of gateways of one fleet.
struct Pair {
    services: [Arc<Service>; 2],
    _directories: [tempfile::TempDir; 2],
    _cluster: Cluster,
}

fn pair() -> Option<Pair> {
    let cluster = Cluster::start("127.0.0.1", |path| std::process::Command::new(path), "")?;
    let (way, dial) = cluster.access(&cluster.database());
    let dial: Arc<dyn Dial> = Arc::new(dial);
    let holder = |number| Holder { fleet: Some("campus".to_owned()), ..gateway(number, number) };
    Postgres::create(&way, &dial, &holder(1)).unwrap();
    let directories = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let service = |number: u8| {
        let directory = directories[usize::from(number) - 1].path();
        let store = Postgres::open(&way, Arc::clone(&dial), holder(number), directory).unwrap();
        let store: Arc<dyn Store> = Arc::new(store);
        let service =
            service_on(store, Clocks::default(), access(vpnd_config::AccessProfiles::of_everybody()));
        Arc::new(service.of_fleet(true))
    };
    let services = [1, 2].map(service);
    Some(Pair { services, _directories: directories, _cluster: cluster })
}

const TOKEN: [u8; 32] = [5; 32];

fn keep(session: ByteArray<16>, epoch: u32) -> Commit {
    let tokens = TokenHashes::from(&Tokens::new(Token::from_bytes(TOKEN).hash()));
    Commit(vec![Write::Keep { session, tokens, epoch }])
}

fn claim(session: ByteArray<16>, token: [u8; 32], device: u8) -> SessionClaim {
    SessionClaim { session, token: Token::from_bytes(token), device: [device; 16].into() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_moves_for_its_own_device_and_token_alone() {
    let Some(pair) = pair() else { return };
    let [first, second] = &pair.services;
    let session = granted(first, 1).await;
    assert!(ask(first, keep(session, 1)).await.failed.is_empty());
    for wrong in [claim(session, [6; 32], 1), claim(session, TOKEN, 2), claim([9; 16].into(), TOKEN, 1)] {
        assert!(ask(second, wrong).await.is_none());
    }
    assert!(ask(first, Dropped(Vec::new())).await.is_empty(), "it is where it was");
    let stays = ask(first, claim(session, TOKEN, 1)).await.expect("it is this gateway's");

    let moved = ask(second, claim(session, TOKEN, 1)).await.expect("it moves");
    assert!(moved.generation > stays.generation && stays.generation > 0);
    assert_eq!((moved.addresses.ipv4, moved.epoch), (stays.addresses.ipv4, stays.epoch));
    let taken = ask(first, Dropped(Vec::new())).await;
    assert_eq!((taken.len(), taken[0].session, taken[0].generation), (1, session, stays.generation));
    assert_eq!(ask(first, MissingQuery(vec![session])).await, [session]);
    assert_eq!(
        ask(first, keep(session, 9)).await.failed,
        [session],
        "its tokens are the other one's to change"
    );
    assert!(ask(first, Commit(vec![Write::End(session)])).await.failed.is_empty());
    assert!(ask(first, Dropped(taken)).await.is_empty(), "it has dropped it");
    assert!(ask(second, claim(session, TOKEN, 1)).await.is_some(), "and the other one goes on");
}
