//! Changes that logins in a browser make, on a model of the fleet's database.

use std::sync::atomic::{AtomicUsize, Ordering};

use vpnd_store::postgres::testing::simulated::{AtGateway, Simulated};

use super::*;

/// Logins that begin at the same time.
const AT_ONCE: usize = 50;

struct Gateway {
    database: Simulated,
    store: Arc<AtGateway>,
    service: Arc<Service>,
    _directory: tempfile::TempDir,
}

fn gateway() -> Gateway {
    let (database, directory) = (Simulated::new(Instant::now()), tempfile::tempdir().unwrap());
    let store = Arc::new(database.at(1, directory.path()));
    let profiles = access(vpnd_config::AccessProfiles::of_everybody());
    let service = service_on(Arc::clone(&store) as Arc<dyn Store>, Clocks::default(), profiles);
    Gateway { database, store, service: Arc::new(service.of_fleet(true)), _directory: directory }
}

fn begun(source: [u8; 4], port: u16) -> BrowserLogin {
    BrowserLogin {
        device: [1; 16].into(),
        source: source.into(),
        port,
        state: [3; 32].into(),
        challenge: [4; 32].into(),
        name: Text::cut("pc"),
        short_code: false,
    }
}

async fn refusal(gateway: &Gateway, login: BrowserLogin) -> Option<Refusal> {
    match ask(&gateway.service, login).await {
        BrowserLoginReply::At(_) => None,
        BrowserLoginReply::Refused(refused) => Some(refused.refusal),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_can_not_begin_changes_nothing_in_the_database() {
    let gateway = gateway();
    let (store, portal, crowd) = (&gateway.store, gateway.service.portal(), [192, 0, 2, 1]);
    let before = store.changes();
    for _ in 0..20 {
        assert_eq!(refusal(&gateway, begun(crowd, 40_000)).await, Some(Refusal::NoPages));
    }
    portal.switch(true);
    portal.serve_at("https://vpn.uni.example");
    assert_eq!(refusal(&gateway, begun(crowd, 80)).await, Some(Refusal::NoPages), "a service's port");
    assert_eq!(store.changes(), before);

    let mut begun_logins = 0;
    while refusal(&gateway, begun(crowd, 40_000)).await.is_none() {
        begun_logins += 1;
    }
    assert_eq!(store.changes() - before, begun_logins);
    for _ in 0..20 {
        assert_eq!(refusal(&gateway, begun(crowd, 40_000)).await, Some(Refusal::WaitingFull));
    }
    assert_eq!(store.changes() - before, begun_logins, "its host has its share");
    assert_eq!(refusal(&gateway, begun([198, 51, 100, 1], 40_000)).await, None);

    store.cut(true);
    let unknown_elsewhere = refusal(&gateway, begun([203, 0, 113, 1], 40_000)).await;
    assert_eq!(unknown_elsewhere, Some(Refusal::StoreUnavailable));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_no_gateway_knows_changes_nothing_in_the_database() {
    let gateway = gateway();
    let before = gateway.store.changes();
    for number in 0..20 {
        let grant = Grant { grant: [number; 32].into(), verifier: [4; 32].into() };
        assert!(!is_let_in(&gateway.service, &grant).await);
    }
    assert_eq!(gateway.store.changes(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn logins_that_begin_at_the_same_time_share_changes() {
    let gateway = gateway();
    let (store, portal) = (&gateway.store, gateway.service.portal());
    portal.switch(true);
    portal.serve_at("https://vpn.uni.example");
    let (before, beginning) = (store.changes(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        gateway.database.hold(|| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| {
                    beginning.fetch_add(1, Ordering::Relaxed);
                    let reply = portal.begin_in_browser(begun([192, 0, 2, 1], 40_000));
                    assert!(matches!(reply, BrowserLoginReply::At(_)), "{reply:?}");
                });
            }
            while beginning.load(Ordering::Relaxed) < AT_ONCE || store.changes() == before {
                std::thread::yield_now();
            }
            // The last of them has begun by then. One that has not makes one more change.
            std::thread::sleep(Duration::from_millis(100));
        });
    });
    let changes = store.changes() - before;
    assert!(changes <= AT_ONCE / 10, "{changes}");
}
