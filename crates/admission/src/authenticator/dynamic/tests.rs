//! Which sessions a server's request reaches.

use std::path::Path;

use vpnd_proto::attach::{TokenHash, Tokens};
use vpnd_proto::control::{List, Text, UserName};
use vpnd_proto::session::SessionId;

use super::*;
use crate::accounting::Accounting;
use crate::lease::Addresses;
use vpnd_config::ServerConfig;
use vpnd_config::source::Source;
use vpnd_ipc::gateway::idp::SourceName;
use vpnd_store::audit::testing::Recorded;
use vpnd_store::password::Hasher;
use vpnd_store::sqlite::Sqlite;
use vpnd_store::{
    Lease, LeaseOwner, Leases as _, NewUser, NewWireGuardDevice, Revocations as _, SessionChange,
    SessionRecord, Sessions as _, Users as _, WireGuardDevices as _,
};

struct Bench {
    requests: DynamicRequests,
    store: Arc<Sqlite>,
    audit: Recorded,
    accounting: Arc<Accounting>,
    _directory: tempfile::TempDir,
}

fn sources() -> Vec<Source> {
    let source = |name: &str, rest: &str| {
        format!(
            "[[source]]\nname = \"{name}\"\nkind = \"radius\"\nrealm = \"{name}.example\"\nservers = \"radius://a.example\"\n\
             accounting_servers = \"radius://a.example\"\nsecret_file = \"s\"\n{rest}"
        )
    };
    let asks = |port: u16| {
        format!("coa_listen = \"127.0.0.1:{port}\"\ncoa_clients = \"127.0.0.1\"\ncoa_secret_file = \"c\"\n")
    };
    let text = format!(
        "[tls]\ncertificate = \"a\"\nkey = \"b\"\n[tunnel]\npool_v4 = \"10.86.0.0/16\"\n{}{}{}",
        source("guests", &asks(3799)),
        source("others", &asks(3800)),
        source("silent", "")
    );
    ServerConfig::parse(&text, "server.toml", Path::new("/")).unwrap().sources
}

/// `ann` with the devices 1 and 2 and `bob` with 3 at guests, `ann` with 4 at others, with 5 at
/// silent, and the local `root` with 6.
fn bench() -> Bench {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(Sqlite::open_or_create(&directory.path().join("vpnd.db")).unwrap());
    let hasher = Hasher::with_cost(8, 1);
    let hash = hasher.hash(&vpnd_store::password::Password::new("x".to_owned())).unwrap();
    store.add_user(&NewUser::new("root", hash), 1).unwrap();
    let accounting = Arc::new(Accounting::new(&sources(), Arc::default()));
    let audit = Recorded::default();
    let sources = Arc::new(Sources::new(&sources(), Arc::default(), Arc::clone(&accounting)));
    let record = Arc::new(LoginRecord::new(Arc::clone(&sources), Some(audit.recorder())));
    let requests = DynamicRequests::new(Arc::clone(&store) as _, sources, record);
    let bench = Bench { requests, store, audit, accounting, _directory: directory };
    for (source, name, device) in [
        ("guests", "ann", 1),
        ("guests", "ann", 2),
        ("guests", "bob", 3),
        ("others", "ann", 4),
        ("silent", "ann", 5),
    ] {
        let external = ExternalUser {
            source: source.to_owned(),
            subject: name.to_owned(),
            name: format!("{name}@{source}.example"),
            groups: Vec::new(),
        };
        let user = bench.store.refresh_external(&external, 1).unwrap();
        bench.begin(&user, device);
    }
    let root = bench.store.user("root").unwrap().unwrap();
    bench.begin(&root, 6);
    bench
}

fn address(device: u8) -> std::net::Ipv4Addr {
    [10, 86, 0, device].into()
}

impl Bench {
    fn begin(&self, user: &User, device: u8) {
        let (id, at_s) = (SessionId([device; 16]), steady_s());
        let device_id = DeviceId([device; 16]);
        let record = SessionRecord {
            id,
            user: user.id,
            device: device_id,
            epoch: 1,
            tokens: Tokens::restore(TokenHash::from_bytes([1; 32]), None),
            started_s: at_s,
            expires_s: at_s + 1_000,
            factors: vpnd_config::factor::Factors::PASSWORD,
            auth_time_s: 900,
            generation: 0,
            most: None,
        };
        let owner = LeaseOwner { user: user.id, device: device_id };
        let lease = Lease { address: address(device).into(), owner, session: id, until_s: at_s + 1_000 };
        assert!(self.store.claim(&lease, at_s).unwrap());
        let generation = self.store.user_by_id(user.id).unwrap().unwrap().generation;
        assert_eq!(
            self.store.change_sessions(&[SessionChange::Add(record, generation)], at_s).unwrap(),
            [true]
        );
        let addresses = Addresses { v4: Some(address(device)), v6: None };
        self.accounting.granted(id, user, device_id, addresses);
        self.accounting.kept(id);
    }

    /// The devices whose sessions are left.
    fn left(&self) -> Vec<u8> {
        let is_there =
            |device: &u8| self.store.session(SessionId([*device; 16]), steady_s()).unwrap().is_some();
        (1..=6).filter(is_there).collect()
    }

    fn ask(&self, source: &str, action: DynamicAction, which: SessionAttributes) -> Option<ErrorCause> {
        self.send(rand::random(), wall_s(), source, action, which)
    }

    fn send(
        &self,
        authenticator: [u8; 16],
        made_s: u64,
        source: &str,
        action: DynamicAction,
        which: SessionAttributes,
    ) -> Option<ErrorCause> {
        let (source, authenticator) = (SourceName::cut(source), authenticator.into());
        self.requests.handle(&DynamicRequest { number: 1, source, action, which, made_s, authenticator })
    }

    fn disconnect(&self, source: &str, which: SessionAttributes) -> Option<ErrorCause> {
        self.ask(source, DynamicAction::Disconnect, which)
    }
}

fn of_user(name: &str) -> SessionAttributes {
    SessionAttributes { user: Some(UserName::new(name).unwrap()), ..SessionAttributes::default() }
}

fn at(device: u8) -> SessionAttributes {
    SessionAttributes { ipv4: Some(address(device)), ..SessionAttributes::default() }
}

#[test]
fn a_disconnect_request_ends_sessions_that_match_all_attributes() {
    let bench = bench();
    let missing = Some(ErrorCause::SessionNotFound);
    assert_eq!(bench.disconnect("guests", SessionAttributes { user: of_user("bob").user, ..at(1) }), missing);
    assert_eq!(
        bench.disconnect("guests", SessionAttributes { id: Some(Text::cut("unknown")), ..at(1) }),
        missing
    );
    assert_eq!(bench.disconnect("guests", SessionAttributes::default()), missing);
    assert_eq!(bench.disconnect("guests", at(9)), missing);
    assert_eq!(bench.left(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(bench.disconnect("guests", SessionAttributes { user: of_user("ANN").user, ..at(1) }), None);
    assert_eq!(bench.left(), [2, 3, 4, 5, 6], "the one device");
    let revocations = bench.store.revocations_since(0).unwrap();
    let last = revocations.last().unwrap();
    assert_eq!((last.device, last.cause), (Some(DeviceId([1; 16])), RevocationCause::Disconnected));
    assert_eq!(bench.disconnect("guests", of_user("ann")), None);
    assert_eq!(bench.left(), [3, 4, 5, 6], "all of her devices, and not those of the same name elsewhere");
    assert_eq!(bench.disconnect("guests", of_user("ann")), missing, "there is none any more");
    assert!(bench.store.user("ann@guests.example").unwrap().unwrap().enabled, "she may log in again");
    let audit = bench.audit.newest();
    assert_eq!(audit.iter().filter(|entry| entry.event == "disconnected").count(), 2);
}

#[test]
fn wireguard_devices_that_are_disconnected_have_to_be_renewed() {
    let bench = bench();
    let names = [(1, "ann@guests.example"), (2, "ann@guests.example"), (3, "bob@guests.example")];
    for (device, name) in names {
        let device = NewWireGuardDevice {
            public_key: [device; 32],
            id: DeviceId([device; 16]),
            name: String::new(),
            preshared: None,
            most: 64,
            addresses: vec![[10, 86, 1, device].into()],
        };
        bench.store.add_wireguard_device(name, &device, 1).unwrap();
    }
    let walled = || {
        let is_walled = |device: &u8| {
            bench.store.find_wireguard_device(&[*device; 32], 0).unwrap().unwrap().device.walled_s.is_some()
        };
        (1..=3).filter(is_walled).collect::<Vec<u8>>()
    };
    assert_eq!(bench.disconnect("guests", at(1)), None);
    assert_eq!(walled(), [1], "the one device");
    assert_eq!(bench.disconnect("guests", of_user("ann")), None);
    assert_eq!(walled(), [1, 2], "all of hers, and nobody else's");
}

#[test]
fn sessions_of_other_sources_are_out_of_reach() {
    let bench = bench();
    let missing = Some(ErrorCause::SessionNotFound);
    // By their addresses, by the ids that their own servers know, by whole names, and for a source
    // that no request may name or that is none.
    for device in 4..=6 {
        assert_eq!(bench.disconnect("guests", at(device)), missing, "{device}");
    }
    for name in ["root", "ann@others.example", "x@guests.example"] {
        assert_eq!(bench.disconnect("guests", of_user(name)), missing, "{name}");
    }
    for source in ["silent", "local", "staff", ""] {
        for which in [at(5), at(6), of_user("ann"), of_user("root")] {
            assert_eq!(bench.disconnect(source, which), missing, "{source}");
        }
    }
    let by_id = |device: u8| {
        let ids = ["guests", "others", "silent"]
            .map(|source| bench.accounting.id_of(source, SessionId([device; 16])));
        SessionAttributes { id: ids.into_iter().flatten().next(), ..SessionAttributes::default() }
    };
    assert_eq!(bench.disconnect("guests", by_id(4)), missing);
    assert_eq!(bench.left(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(bench.disconnect("others", by_id(4)), None);
    assert_eq!(bench.disconnect("guests", by_id(3)), None);
    assert_eq!(bench.left(), [1, 2, 5, 6]);
}

#[test]
fn a_request_that_was_recorded_or_held_back_changes_nothing() {
    let bench = bench();
    let regroup = |authenticator: u8, made_s: u64, group: &str| {
        let groups = DynamicAction::Regroup(List::new(vec![Text::cut(group)]).unwrap());
        bench.send([authenticator; 16], made_s, "guests", groups, of_user("ann"))
    };
    let groups = || bench.store.user("ann@guests.example").unwrap().unwrap().groups;
    let (now_s, late) = (wall_s(), Some(ErrorCause::InvalidRequest));
    assert_eq!(regroup(1, now_s, "first"), None);
    assert_eq!(regroup(2, now_s - 1, "held-back"), late);
    assert_eq!(groups(), ["first"]);
    assert_eq!(regroup(3, now_s, "second"), None, "another one of the same second");
    assert_eq!(regroup(1, now_s, "first"), late);
    assert_eq!(groups(), ["second"]);
    // One that has reached no session, and could reach the next one at that address.
    let disconnect = || bench.send([4; 16], now_s, "guests", DynamicAction::Disconnect, at(9));
    assert_eq!((disconnect(), disconnect()), (Some(ErrorCause::SessionNotFound), late));
    assert_eq!(bench.left(), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn changed_groups_update_the_user_and_keep_the_sessions() {
    let bench = bench();
    let groups = |names: &[&str]| {
        DynamicAction::Regroup(List::new(names.iter().map(|name| Text::cut(name)).collect()).unwrap())
    };
    assert_eq!(bench.ask("guests", groups(&["vpn"]), at(4)), Some(ErrorCause::SessionNotFound));
    assert_eq!(bench.ask("guests", groups(&["staff", "vpn"]), at(1)), None);
    assert_eq!(bench.left(), [1, 2, 3, 4, 5, 6]);
    let groups_of = |name: &str| bench.store.user(name).unwrap().unwrap().groups;
    assert_eq!(groups_of("ann@guests.example"), ["staff", "vpn"]);
    assert!(groups_of("ann@others.example").is_empty() && groups_of("bob@guests.example").is_empty());
    let last = bench.store.revocations_since(0).unwrap().pop().unwrap();
    assert_eq!(last.cause, RevocationCause::Groups);
    // A user who was disabled here stays so.
    bench.store.set_enabled("bob@guests.example", false, 2).unwrap();
    assert_eq!(bench.ask("guests", groups(&["staff"]), of_user("bob")), Some(ErrorCause::SessionNotFound));
    assert!(!bench.store.user("bob@guests.example").unwrap().unwrap().enabled);
}
