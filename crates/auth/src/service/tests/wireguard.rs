//! WireGuard devices: a phone with its own half of the protocol, and the worker's requests.

use std::time::Instant;

use vpnd_crypto::Secret;
use vpnd_ipc::gateway::wireguard::{
    Admission, AdmitDevice, DeviceGrant, Handshake, HandshakeReply, PeersQuery,
};
use vpnd_proto::plane::Endpoint;
use vpnd_proto::time::Time;
use vpnd_store::NewWireGuardDevice;
use vpnd_wireguard::handshakes::{Known, Refused as NoHandshake, Reply, Request as Step};
use vpnd_wireguard::key::StaticKey;
use vpnd_wireguard::{Handshakes, PublicKey};

use super::*;

const OUTER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7));
const PHONE: DeviceId = DeviceId([42; 16]);

/// A gateway that serves WireGuard, with one device of ann.
struct Bench {
    directory: tempfile::TempDir,
    service: Arc<Service>,
    own: PublicKey,
    phone: Handshakes,
    now: Duration,
}

fn profiles(extra: &str) -> vpnd_config::AccessProfiles {
    vpnd_config::testing::smallest(&format!("[wireguard]\nenabled = true\n{extra}")).profiles
}

impl Bench {
    fn new(extra: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut phone =
            Handshakes::new(StaticKey::new(Secret::new([42; 32])), Box::new(|bytes| bytes.fill(1)));
        let (service, own) = started(&directory, extra);
        let device = NewWireGuardDevice {
            public_key: phone.public().0,
            id: PHONE,
            name: "phone".to_owned(),
            preshared: None,
            most: 64,
            addresses: vec![[10, 0, 0, 5].into()],
        };
        service.store.add_wireguard_device("ann", &device, (service.clocks.wall)()).unwrap();
        phone.add(own, Known::default()).unwrap();
        Self { directory, service, own, phone, now: Duration::from_secs(1_000) }
    }

    /// Has the store have what it did not keep; how many changes that is.
    fn catch_up(&self) -> usize {
        let store = Sqlite::open(&self.directory.path().join(vpnd_config::STORE_FILE_NAME)).unwrap();
        store.catch_up((self.service.clocks.steady)()).unwrap()
    }

    /// The auth process begins again.
    fn restart(&mut self, extra: &str) {
        (self.service, _) = started(&self.directory, extra);
    }

    fn initiation(&mut self) -> Step {
        self.now += Duration::from_secs(5);
        match self.phone.handle(Time::ZERO, self.now, &Step::Initiate(self.own)) {
            Reply::Initiated(message, _) => Step::Respond(message),
            other => panic!("{other:?}"),
        }
    }

    async fn make(&self, step: &Step) -> Reply {
        let reply: HandshakeReply = ask(&self.service, Handshake::from(step)).await;
        reply.parse().expect("it is a reply")
    }

    /// Shakes hands and asks for a session.
    async fn admit(&mut self) -> Admission {
        let message = self.initiation();
        self.make(&message).await;
        self.ask().await
    }

    async fn ask(&self) -> Admission {
        ask(&self.service, AdmitDevice { peer: self.phone.public().0.into(), outer: OUTER }).await
    }

    async fn granted(&mut self) -> DeviceGrant {
        match self.admit().await {
            Admission::Granted(granted) => *granted,
            other => panic!("{other:?}"),
        }
    }

    async fn refusal(&mut self) -> Refusal {
        match self.admit().await {
            Admission::Refused(refused) => refused.refusal,
            other => panic!("{other:?}"),
        }
    }

    /// The peers that the worker knows of, by everything since the start.
    async fn peers(&self) -> usize {
        let changes = ask(&self.service, PeersQuery(0)).await.expect("it is enabled");
        assert_eq!(*changes.own, self.own.0);
        changes.changed.iter().filter(|change| change.peer.is_some()).count()
    }

    /// Changes the store as no program of ours does.
    fn sql(&self, sql: &str) {
        let path = self.directory.path().join(vpnd_config::STORE_FILE_NAME);
        rusqlite::Connection::open(path).unwrap().execute_batch(sql).unwrap();
    }

    /// Waits until the store has the phone there.
    fn is_at(&self, outer: Option<Endpoint>) {
        let until = Instant::now() + Duration::from_secs(10);
        while self.service.store.wireguard_devices().unwrap()[0].outer != outer {
            assert!(Instant::now() < until, "the phone is somewhere else");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn started(directory: &tempfile::TempDir, extra: &str) -> (Arc<Service>, PublicKey) {
    let access = access(profiles(extra));
    let service = service_for(directory.path(), Clocks::default(), Arc::clone(&access));
    let devices = service.store.wireguard_devices().unwrap().len();
    let key = vpnd_pki::wireguard_key::open_or_create(directory.path(), devices).unwrap();
    let own = key.public();
    let wireguard = WireGuard::start(Arc::clone(&service.store), access, key).unwrap();
    let service = Arc::into_inner(service).expect("nobody else has it").with_wireguard(Some(wireguard));
    service.begin(false).unwrap();
    (Arc::new(service), own)
}

#[tokio::test]
async fn a_handshake_is_answered_once_also_after_a_restart() {
    let mut bench = Bench::new("");
    let first = bench.initiation();
    let Reply::Responded(responded) = bench.make(&first).await else { panic!("no answer") };
    assert_eq!(responded.peer, bench.phone.public());
    let Reply::Finished(keys) =
        bench.phone.handle(Time::ZERO, bench.now, &Step::Finish(bench.own, responded.response))
    else {
        panic!("the phone does not take the answer")
    };
    assert_eq!(keys.send.expose(), responded.keys.receive.expose());
    let stored =
        bench.service.store.find_wireguard_device(&bench.phone.public().0, 0).unwrap().unwrap().device;
    assert_eq!(stored.latest, Some(responded.timestamp.to_bytes()), "before the answer came");
    bench.restart("");
    assert!(matches!(bench.make(&first).await, Reply::Refused(NoHandshake::Replayed(_))));
    assert!(bench.service.store.forget_handshakes("ann", PHONE).unwrap());
    assert!(matches!(bench.make(&first).await, Reply::Responded(_)), "an administrator has permitted it");
    // The timestamp that the phone has received is durable, too.
    let Reply::Initiated(_, own) = bench.make(&Step::Initiate(bench.phone.public())).await else { panic!() };
    let stored =
        bench.service.store.find_wireguard_device(&bench.phone.public().0, 0).unwrap().unwrap().device;
    assert_eq!(stored.latest_own, Some(own.to_bytes()));
}

#[tokio::test]
async fn a_device_shakes_hands_while_the_store_is_held_and_no_replay_passes_then_or_after_a_restart() {
    let mut bench = Bench::new("");
    let path = bench.directory.path().join(vpnd_config::STORE_FILE_NAME);
    let holder = rusqlite::Connection::open(path).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let first = bench.initiation();
    assert!(matches!(bench.make(&first).await, Reply::Responded(_)));
    let own = bench.make(&Step::Initiate(bench.phone.public())).await;
    assert!(matches!(own, Reply::Initiated(..)), "{own:?}");
    // All devices are read again, from a store that has not one timestamp.
    bench.service.wireguard.as_ref().unwrap().profiles_changed();
    assert_eq!(bench.peers().await, 1);
    assert!(matches!(bench.make(&first).await, Reply::Refused(NoHandshake::Replayed(_))));
    holder.execute_batch("ROLLBACK").unwrap();
    // Nothing has been caught up.
    bench.restart("");
    assert!(matches!(bench.make(&first).await, Reply::Refused(NoHandshake::Replayed(_))));
    assert_eq!(bench.catch_up(), 2);
    bench.restart("");
    assert!(matches!(bench.make(&first).await, Reply::Refused(NoHandshake::Replayed(_))));
    let next = bench.initiation();
    assert!(matches!(bench.make(&next).await, Reply::Responded(_)), "a later one is none");
}

#[tokio::test]
async fn a_handshake_that_another_gateway_has_answered_is_a_replay() {
    let mut bench = Bench::new("");
    let key = vpnd_pki::wireguard_key::open_or_create(bench.directory.path(), 1).unwrap();
    let other = WireGuard::start(Arc::clone(&bench.service.store), access(profiles("")), key).unwrap();
    let (first, second) = (bench.initiation(), bench.initiation());
    assert!(matches!(bench.make(&first).await, Reply::Responded(_)));
    let at_the_other = async |step| other.handshake(Handshake::from(step).parse().unwrap()).await;
    let refused = at_the_other(&first).await;
    assert!(matches!(refused, Reply::Refused(NoHandshake::Replayed(_))), "{refused:?}");
    // The rate of a device's handshakes counts the replay.
    std::thread::sleep(Duration::from_millis(30));
    assert!(matches!(at_the_other(&second).await, Reply::Responded(_)), "a later one is none");
}

#[tokio::test]
async fn devices_are_found_by_the_local_address_that_heard_them() {
    let bench = Bench::new("");
    let key = vpnd_pki::wireguard_key::open_or_create(bench.directory.path(), 1).unwrap();
    let other = WireGuard::start(Arc::clone(&bench.service.store), access(profiles("")), key).unwrap();
    let public = [198, 51, 100, 1].into();
    let outer = Endpoint { remote: (OUTER, 51_820).into(), local: Some(public) };
    bench.service.store.keep_outer(&[(PHONE, Some(outer))]).unwrap();
    let found = other.devices_at(&[public], None).unwrap();
    assert_eq!(
        found.iter().map(|device| (*device.key, device.outer)).collect::<Vec<_>>(),
        [(bench.phone.public().0, outer)]
    );
    assert!(other.devices_at(&[public], Some(*found[0].key)).unwrap().is_empty(), "those after it");
    assert!(other.devices_at(&[[198, 51, 100, 2].into()], None).unwrap().is_empty());
}

#[tokio::test]
async fn devices_are_read_for_the_worker_and_not_by_a_commit() {
    let bench = Bench::new("");
    let ann = bench.service.store.user("ann").unwrap().unwrap().id;
    let knows = || bench.service.wireguard.as_ref().unwrap().has_device(ann, PHONE);
    assert!(!knows(), "it is new");
    ask(&bench.service, PeersQuery(0)).await;
    assert!(knows());
}

#[tokio::test]
async fn a_change_of_one_device_reads_no_other_again() {
    let bench = Bench::new("");
    let store = &bench.service.store;
    let public_key = [43; 32];
    let other = NewWireGuardDevice {
        public_key,
        id: DeviceId([43; 16]),
        name: "laptop".to_owned(),
        preshared: None,
        most: 64,
        addresses: vec![[10, 0, 0, 6].into()],
    };
    store.add_wireguard_device("ann", &other, (bench.service.clocks.wall)()).unwrap();
    assert_eq!(bench.peers().await, 2);
    let public = [198, 51, 100, 1].into();
    let outer = Endpoint { remote: (OUTER, 51_820).into(), local: Some(public) };
    // Where devices are is no change of them, and shows which of them are read.
    store.keep_outer(&[(PHONE, Some(outer)), (other.id, Some(outer))]).unwrap();
    assert!(store.renew_wireguard_device("ann", PHONE, (bench.service.clocks.wall)()).unwrap());
    assert_eq!(bench.peers().await, 2);
    let read = || {
        let known = bench.service.wireguard.as_ref().unwrap().devices_at(&[public], Some([0; 32])).unwrap();
        known.into_iter().map(|device| *device.key).collect::<Vec<_>>()
    };
    assert_eq!(read(), [bench.phone.public().0]);
    assert!(store.remove_device("ann", PHONE, 1_000).unwrap());
    assert_eq!(bench.peers().await, 1);
    assert_eq!(read(), [[0_u8; 32]; 0]);
}

#[tokio::test]
async fn a_device_is_granted_what_a_login_is() {
    let mut bench = Bench::new("");
    let DeviceGrant { grant, device, name, .. } = bench.granted().await;
    assert_eq!((&*grant.account.name, &*name, device), ("ann", "phone", PHONE.0.into()));
    assert_eq!(grant.addresses.ipv4, Some([10, 0, 0, 5].into()), "those in its configuration");
    assert_eq!(grant.factors, Factors::KEY);
    assert_eq!(failed(&bench.service, keep(grant.session)).await, 0);
    let live = bench.service.store.live_sessions((bench.service.clocks.steady)()).unwrap();
    assert_eq!(live.iter().map(|session| session.device).collect::<Vec<_>>(), [PHONE]);
    let outer = Endpoint { remote: "198.51.100.1:4000".parse().unwrap(), local: Some([192, 0, 2, 1].into()) };
    let moved = Write::Moved { session: grant.session, outer, lane: 0, left_out: 0 };
    assert_eq!(failed(&bench.service, Commit(vec![moved])).await, 0);
    bench.is_at(Some(outer));
    let traffic = vpnd_ipc::gateway::auth::Traffic::default();
    let ended = Write::Ended { session: grant.session, code: Code::Idle, traffic };
    assert_eq!(failed(&bench.service, Commit(vec![ended, Write::End(grant.session)])).await, 0);
    // Its session is over.
    bench.is_at(None);
}

#[tokio::test]
async fn a_worker_gets_no_session_for_a_device_that_has_not_shown_its_key() {
    let mut bench = Bench::new("");
    assert_eq!(bench.peers().await, 1);
    assert!(matches!(bench.ask().await, Admission::Refused(_)));
    bench.make(&Step::Initiate(bench.phone.public())).await;
    assert!(matches!(bench.ask().await, Admission::Refused(_)), "the gateway has, and not the device");
    bench.granted().await;
}

/// The sessions in the store.
fn live(bench: &Bench) -> Vec<ByteArray<16>> {
    let live = bench.service.store.live_sessions((bench.service.clocks.steady)()).unwrap();
    live.into_iter().map(|session| id(session.id)).collect()
}

#[tokio::test]
async fn a_device_keeps_its_session_after_a_restart() {
    for extra in ["", "[timeouts]\nsession_lifetime_s = 3600\n"] {
        let mut bench = Bench::new(extra);
        let before = bench.granted().await.grant;
        assert_eq!(failed(&bench.service, keep(before.session)).await, 0);
        for _ in 0..2 {
            bench.restart(extra);
            let DeviceGrant { grant, is_walled, .. } = bench.granted().await;
            assert_eq!(
                (grant.session, grant.started_s, is_walled),
                (before.session, before.started_s, false)
            );
            assert_eq!(grant.addresses.ipv4, Some([10, 0, 0, 5].into()));
            assert!(grant.own_addresses && grant.expires_s <= before.expires_s, "{grant:?}");
            assert_eq!(failed(&bench.service, keep(grant.session)).await, 0);
            assert_eq!(live(&bench), [before.session]);
        }
        assert_ne!(bench.granted().await.grant.session, before.session, "it is one that goes on already");
    }
}

#[tokio::test]
async fn an_earlier_session_is_replaced_when_its_device_is_renewed() {
    let extra = "[timeouts]\nsession_lifetime_s = 3600\n";
    let mut bench = Bench::new(extra);
    let renew = |bench: &Bench, ago_s: u64| {
        let at_s = (bench.service.clocks.wall)() - ago_s;
        assert!(bench.service.store.renew_wireguard_device("ann", PHONE, at_s).unwrap());
    };
    renew(&bench, 600);
    let before = bench.granted().await.grant;
    assert_eq!(failed(&bench.service, keep(before.session)).await, 0);
    bench.restart(extra);
    renew(&bench, 0);
    let DeviceGrant { grant, .. } = bench.granted().await;
    assert!(grant.session != before.session && grant.expires_s > before.expires_s + 500);
    assert_eq!(grant.addresses.ipv4, Some([10, 0, 0, 5].into()));
    assert_eq!(failed(&bench.service, keep(grant.session)).await, 0);
    assert_eq!(live(&bench), [grant.session]);
}

#[tokio::test]
async fn an_earlier_session_without_the_device_key_is_not_resumed() {
    let mut bench = Bench::new("");
    let login = LoginRequest { device: PHONE.0.into(), ..login("right", 1) };
    let LoginReply::Granted(by_password) = ask(&bench.service, login).await else { panic!() };
    assert_eq!(failed(&bench.service, keep(by_password.session)).await, 0);
    bench.restart("");
    assert_ne!(bench.granted().await.grant.session, by_password.session);
}

#[tokio::test]
async fn earlier_sessions_of_absent_wireguard_devices_end() {
    let mut bench = Bench::new("");
    let of_phone = bench.granted().await.grant.session;
    assert_eq!(failed(&bench.service, keep(of_phone)).await, 0);
    let laptop = granted(&bench.service, 1).await;
    assert_eq!(failed(&bench.service, keep(laptop)).await, 0);
    bench.restart("");
    assert_eq!(live(&bench).len(), 2);
    bench.service.end_absent_devices();
    assert_eq!(live(&bench), [laptop], "a client of ours may attach for longer");
}

#[tokio::test]
async fn a_device_that_resumes_counts_as_no_new_login() {
    let mut bench = Bench::new("");
    // More often than a user may log in.
    for _ in 0..40 {
        let session = bench.granted().await.grant.session;
        assert_eq!(failed(&bench.service, keep(session)).await, 0);
        // Begins as after a restart.
        bench.service.begin(false).unwrap();
    }
}

#[tokio::test]
async fn one_configuration_on_two_devices_is_in_the_audit() {
    let mut bench = Bench::new("");
    let session = bench.granted().await.grant.session;
    assert_eq!(failed(&bench.service, keep(session)).await, 0);
    let two = |session| Commit(vec![Write::TwoDevices(session, OUTER)]);
    assert_eq!(failed(&bench.service, two(session)).await, 0);
    let now_s = (bench.service.clocks.steady)();
    let record = bench.service.store.session(SessionId(session.into()), now_s).unwrap().unwrap();
    let heard = |service: &Service| service.portal().heard().is_in_two_places(record.user, record.device);
    assert!(heard(&bench.service), "its user's page has it");
    let recorded = Recorded::default();
    let service = Arc::into_inner(bench.service).expect("nobody else has it").with_audit(recorded.recorder());
    let service = Arc::new(service);
    assert_eq!(failed(&service, two(session)).await, 0);
    assert_eq!(failed(&service, two([9; 16].into())).await, 0);
    let found = recorded.events().into_iter().filter_map(|event| match event {
        Event::Entry(entry) if entry.event == "device-in-two-places" => Some((entry.user, entry.source)),
        _ => None,
    });
    assert_eq!(found.collect::<Vec<_>>(), [("ann".to_owned(), OUTER.to_string())]);
}

#[tokio::test]
async fn devices_of_users_who_may_not_log_in_are_refused() {
    let mut bench = Bench::new("");
    assert_eq!(bench.peers().await, 1);
    bench.service.store.set_enabled("ann", false, 2).unwrap();
    assert_eq!(bench.peers().await, 0);
    let message = bench.initiation();
    assert!(matches!(bench.make(&message).await, Reply::Refused(NoHandshake::UnknownKey(_))));
    assert_eq!(bench.refusal().await, Refusal::Credentials);
    bench.service.store.set_enabled("ann", true, 2).unwrap();
    assert_eq!(bench.peers().await, 1);
    let session = bench.granted().await.grant.session;
    let expires_s = Some(Some((bench.service.clocks.wall)()));
    bench.service.store.modify_user("ann", &UserChange { expires_s, ..UserChange::default() }, 3).unwrap();
    assert_eq!(bench.refusal().await, Refusal::Credentials);
    ask(&bench.service, RevocationQuery { seen: None, history: None }).await;
    assert_eq!(bench.peers().await, 0);
    assert_eq!(failed(&bench.service, keep(session)).await, 1, "granted before");
    bench.service.store.remove_user("ann", 4).unwrap();
    assert_eq!(bench.refusal().await, Refusal::Credentials);
}

#[tokio::test]
async fn a_new_group_that_permits_wireguard_takes_effect_at_once() {
    let extra = "[[profile]]\nname = 'guests'\ngroups = ['guests']\n\
                 [[profile]]\nname = 'others'\nwireguard = false\n";
    let mut bench = Bench::new(extra);
    assert_eq!(bench.peers().await, 0);
    let change = UserChange { groups: Some(vec!["guests".to_owned()]), ..UserChange::default() };
    bench.service.store.modify_user("ann", &change, 2).unwrap();
    assert_eq!(bench.peers().await, 1);
    bench.granted().await;
}

#[tokio::test]
async fn a_profile_that_requires_a_factor_admits_no_key_alone() {
    let mut bench = Bench::new("[[profile]]\nname = 'a'\nrequire = ['otp']\n");
    assert_eq!(bench.peers().await, 0);
    assert_eq!(bench.refusal().await, Refusal::Credentials);
}

#[tokio::test]
async fn sessions_end_a_lifetime_after_the_device_was_renewed() {
    let lifetime = 3_600;
    let mut bench = Bench::new(&format!("[timeouts]\nsession_lifetime_s = {lifetime}\n"));
    let clocks = bench.service.clocks;
    let store = Arc::clone(&bench.service.store);
    let renew = |ago_s: u64| {
        assert!(store.renew_wireguard_device("ann", PHONE, (clocks.wall)() - ago_s).unwrap());
    };
    renew(lifetime - 600);
    let grant = bench.granted().await.grant;
    let left_s = grant.expires_s - grant.started_s;
    assert!((590..=600).contains(&left_s), "{left_s}");
    renew(lifetime);
    assert!(matches!(bench.admit().await, Admission::Walled));
    assert_eq!(bench.peers().await, 1, "it shakes hands all the same");
    renew(0);
    bench.granted().await;
}

#[tokio::test]
async fn a_kicked_device_stays_out_until_it_is_renewed() {
    let mut bench = Bench::new("");
    let session = bench.granted().await.grant.session;
    assert_eq!(failed(&bench.service, keep(session)).await, 0);
    let traffic = vpnd_ipc::gateway::auth::Traffic::default();
    let ended = Write::Ended { session, code: Code::Kicked, traffic };
    assert_eq!(failed(&bench.service, Commit(vec![ended, Write::End(session)])).await, 0);
    assert!(matches!(bench.admit().await, Admission::Walled));
    bench.service.store.renew_wireguard_device("ann", PHONE, (bench.service.clocks.wall)()).unwrap();
    bench.granted().await;
}

/// A store that walls no device.
const NO_WALL: &str = "CREATE TRIGGER broken BEFORE UPDATE OF walled_s ON wireguard_devices
     WHEN new.walled_s IS NOT NULL BEGIN SELECT RAISE(ABORT, 'broken'); END";

/// A gateway whose store has not kept a kick.
async fn with_a_lost_kick() -> Bench {
    let mut bench = Bench::new("");
    let session = bench.granted().await.grant.session;
    assert_eq!(failed(&bench.service, keep(session)).await, 0);
    bench.sql(NO_WALL);
    let traffic = vpnd_ipc::gateway::auth::Traffic::default();
    let kicked = Write::Ended { session, code: Code::Kicked, traffic };
    assert_eq!(failed(&bench.service, Commit(vec![kicked, Write::End(session)])).await, 0);
    bench
}

#[tokio::test]
async fn a_kick_that_the_store_rejects_holds_and_is_retried() {
    let mut bench = with_a_lost_kick().await;
    assert!(matches!(bench.admit().await, Admission::Walled));
    bench.restart("");
    assert!(matches!(bench.admit().await, Admission::Walled), "over a restart, too");
    bench.sql("DROP TRIGGER broken");
    assert_eq!(bench.catch_up(), 2, "the kick, and a handshake that came after it");
    assert!(matches!(bench.admit().await, Admission::Walled), "the store has it now");
    bench.service.store.renew_wireguard_device("ann", PHONE, (bench.service.clocks.wall)()).unwrap();
    bench.granted().await;
}

#[tokio::test]
async fn a_retried_kick_does_not_affect_a_renewed_device() {
    let mut bench = with_a_lost_kick().await;
    let later_s = (bench.service.clocks.wall)() + 1;
    bench.service.store.renew_wireguard_device("ann", PHONE, later_s).unwrap();
    bench.granted().await;
    bench.sql("DROP TRIGGER broken");
    assert_eq!(bench.catch_up(), 1);
    assert_eq!(bench.service.store.wireguard_devices().unwrap()[0].walled_s, None);
    bench.granted().await;
}

#[tokio::test]
async fn a_kick_that_is_not_stored_is_reported_as_failed() {
    let mut bench = Bench::new("");
    let session = bench.granted().await.grant.session;
    assert_eq!(failed(&bench.service, keep(session)).await, 0);
    bench.sql(NO_WALL);
    // Nor does the state directory keep it.
    let file = bench.directory.path().join(vpnd_config::STORE_FILE_NAME).with_extension("db.put-off");
    std::fs::create_dir(file).unwrap();
    let traffic = vpnd_ipc::gateway::auth::Traffic::default();
    let ended = |code| Commit(vec![Write::Ended { session, code, traffic }]);
    assert_eq!(failed(&bench.service, ended(Code::Kicked)).await, 1);
    assert_eq!(failed(&bench.service, ended(Code::Idle)).await, 0, "it is no kick");
}

#[tokio::test]
async fn an_expired_device_reaches_the_portal_only() {
    let lifetime = 3_600 * 24;
    let mut bench = Bench::new(&format!("[timeouts]\nsession_lifetime_s = {lifetime}\n"));
    bench.service.portal().switch(true);
    let (clocks, store) = (bench.service.clocks, Arc::clone(&bench.service.store));
    assert!(!bench.granted().await.is_walled);
    let changes = async |bench: &Bench| ask(&bench.service, PeersQuery(0)).await.expect("it is enabled").seen;
    assert!(store.renew_wireguard_device("ann", PHONE, (clocks.wall)() - lifetime).unwrap());
    let before = changes(&bench).await;
    let DeviceGrant { is_walled, grant, .. } = bench.granted().await;
    assert_eq!((is_walled, grant.expires_s - grant.started_s), (true, 600));
    assert_eq!(grant.profile.as_deref(), Some(vpnd_config::access_profile::WALLED));
    assert!(store.renew_wireguard_device("ann", PHONE, (clocks.wall)()).unwrap());
    assert!(changes(&bench).await > before, "the worker hears of it");
    assert!(!bench.granted().await.is_walled);
    bench.service.portal().switch(false);
    assert!(store.renew_wireguard_device("ann", PHONE, (clocks.wall)() - lifetime).unwrap());
    assert!(matches!(bench.admit().await, Admission::Walled), "there are no pages");
}

#[tokio::test]
async fn without_wireguard_nothing_is_served() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path());
    assert!(ask(&service, PeersQuery(0)).await.is_none());
    let reply = ask(&service, Handshake::Initiate([1; 32].into())).await;
    assert!(matches!(reply, HandshakeReply::Refused(_)), "{reply:?}");
    let reply = ask(&service, AdmitDevice { peer: [1; 32].into(), outer: OUTER }).await;
    assert!(matches!(reply, Admission::Refused(_)), "{reply:?}");
}
