use vpnd_fleet::orders::MAX_GIVEN;
use vpnd_ipc::gateway::auth::{FleetDatagram, OrderDone};
use vpnd_store::sqlite::Sqlite;
use vpnd_store::{Fleet as _, Kick, NewUser, PasswordHash, Revocations as _, Users as _};

use super::*;

const NOW: Time = Time::from_nanos(1_000_000_000);

/// A gateway's courier, its store and its state directory.
struct Gateway {
    courier: Courier,
    store: Sqlite,
    directory: tempfile::TempDir,
}

fn courier(directory: &tempfile::TempDir, store: &Sqlite, name: &str, clocks: Clocks) -> Courier {
    Courier::open(directory.path(), store.kicks().clone(), name, 4_433, clocks).unwrap()
}

fn address(number: u8) -> SocketAddr {
    ([192, 0, 2, number], 4_433).into()
}

fn known(number: u8, here: u8, is_alive: bool) -> GatewayState {
    GatewayState {
        name: format!("gw{number}"),
        is_here: number == here,
        is_connected: is_alive,
        heard_s: Some(1),
        address: Some(address(number).ip()),
        addresses: Vec::new(),
        version: String::new(),
        sessions: 0,
        held: 0,
        load_percent: 0,
        is_draining: false,
    }
}

/// The gateways 1 to `count`, which know one another by their notices.
fn fleet(count: u8, clocks: Clocks) -> Vec<Gateway> {
    let gateway = |number: u8| {
        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open_or_create(&directory.path().join("vpnd.db")).unwrap();
        let courier = courier(&directory, &store, &format!("gw{number}"), clocks);
        let all: Vec<_> = (1..=count).map(|other| known(other, number, true)).collect();
        assert!(courier.made().is_empty(), "it does not know where it is");
        courier.know(&all);
        Gateway { courier, store, directory }
    };
    let gateways: Vec<Gateway> = (1..=count).map(gateway).collect();
    let notices: Vec<Notice> = gateways.iter().flat_map(|gateway| gateway.courier.made()).collect();
    assert_eq!(notices.len(), usize::from(count));
    for gateway in &gateways {
        notices.iter().for_each(|notice| gateway.courier.learn(notice));
        assert!(gateway.courier.made().is_empty(), "they know it by now");
    }
    gateways
}

impl Gateway {
    fn kick(&self, id: u8, at_s: u64) {
        self.leave(&Kick { id: [id; 16], user: "ann".to_owned(), at_s, ..Kick::default() });
    }

    fn disable(&self, id: u8, at_s: u64) {
        self.leave(&Kick { id: [id; 16], user: "ann".to_owned(), at_s, is_disable: true, source: None });
    }

    /// Leaves a kick, as a command does.
    fn leave(&self, kick: &Kick) {
        Kicks::of_state_dir(self.directory.path()).leave(kick).unwrap();
    }

    fn turn(&self, received: Vec<FleetDatagram>, done: &[OrderDone]) -> OrdersReply {
        let received = received.into_iter().map(|datagram| datagram.bytes).collect();
        self.courier.turn(OrdersTurn { received, done: done.to_vec() }, NOW)
    }

    fn ended(&self, id: u8) -> Vec<Option<u64>> {
        let progress = Kicks::of_state_dir(self.directory.path()).progress(&[id; 16]).unwrap().unwrap();
        progress.gateways.into_iter().map(|(_, ended)| ended).collect()
    }
}

#[test]
fn a_kick_in_the_state_directory_is_carried_out_and_confirmed_without_a_store() {
    let clocks = Clocks { wall: || 5_000, steady: || 4_000 };
    let fleet = fleet(2, clocks);
    assert!(fleet[0].turn(Vec::new(), &[]).to_send.is_empty(), "a worker makes no order");
    fleet[0].kick(1, 4_990);
    let sent = fleet[0].turn(Vec::new(), &[]).to_send;
    assert_eq!(sent.iter().map(|datagram| datagram.to).collect::<Vec<_>>(), [address(2)]);
    assert_eq!(fleet[0].ended(1), [None]);
    let reply = fleet[1].turn(sent, &[]);
    assert!(reply.to_send.is_empty(), "it is not carried out yet");
    let [order] = &reply.orders[..] else { panic!("{:?}", reply.orders) };
    assert_eq!((&*order.revoked.name, order.revoked.cause), ("ann", RevocationCause::Kicked));
    assert_eq!(order.begun_until_s, 3_990 + 2 * CLOCK_TOLERANCE_S, "by the clock of sessions");
    let done = OrderDone { id: order.id, ended: Some(2) };
    let confirmation = fleet[1].turn(Vec::new(), &[done]).to_send;
    fleet[0].turn(confirmation, &[]);
    assert_eq!(fleet[0].ended(1), [Some(2)]);
}

#[test]
fn an_order_ends_no_sessions_of_the_future() {
    let ahead = fleet(2, Clocks { wall: || 90_000, steady: || 90_000 });
    ahead[0].kick(1, 90_000);
    let sent = ahead[0].turn(Vec::new(), &[]).to_send;
    let behind = Clocks { wall: || 4_000, steady: || 4_000 };
    let receiver = courier(&ahead[1].directory, &ahead[1].store, "gw2", behind);
    let key = ahead[0].courier.state().orders.public_key().0.into();
    receiver.learn(&Notice::Gateway("gw1".to_owned(), key, address(1)));
    let received = sent.into_iter().map(|datagram| datagram.bytes).collect();
    let orders = receiver.turn(OrdersTurn { received, done: Vec::new() }, NOW).orders;
    assert_eq!(orders[0].begun_until_s, 4_000 + 2 * CLOCK_TOLERANCE_S);
}

fn write(gateway: &Gateway) {
    gateway.courier.write(&gateway.store).unwrap();
}

fn set_steady(courier: &mut Courier, steady: fn() -> u64) {
    courier.clocks.steady = steady;
}

#[test]
fn a_kick_stays_until_the_store_and_each_gateway_have_it() {
    let mut fleet = fleet(3, Clocks { wall: || 5_000, steady: || 5_000 });
    let kicks = Kicks::of_state_dir(fleet[0].directory.path());
    let stored = || kicks.progress(&[1; 16]).unwrap().map(|known| known.stored);
    fleet[0].kick(1, 5_000);
    write(&fleet[0]);
    assert_eq!(stored(), Some(None), "the others were not told");
    let sent = fleet[0].turn(Vec::new(), &[]).to_send;
    set_steady(&mut fleet[0].courier, || 5_001 + KEPT_S);
    let look = |first: &Gateway, is_third_alive| {
        first.courier.know(&[known(1, 1, true), known(2, 1, false), known(3, 1, is_third_alive)]);
        stored().is_some()
    };
    assert!(look(&fleet[0], true), "the store does not have it");
    write(&fleet[0]);
    assert_eq!(stored(), Some(Some(0)));
    assert!(look(&fleet[0], true), "the second gateway neither has it nor reads the store");
    let datagram = sent.into_iter().find(|datagram| datagram.to == address(2)).unwrap();
    let id = fleet[1].turn(vec![datagram], &[]).orders[0].id;
    let confirmation = fleet[1].turn(Vec::new(), &[OrderDone { id, ended: Some(0) }]).to_send;
    fleet[0].turn(confirmation, &[]);
    assert!(look(&fleet[0], false), "the third gateway neither has it nor reads the store");
    assert!(!look(&fleet[0], true));
    let idle = OrdersTurn { received: Vec::new(), done: Vec::new() };
    assert!(fleet[0].courier.turn(idle, NOW + HOUR).to_send.is_empty());
}

#[test]
fn notices_are_sent_while_the_disk_blocks_a_turn() {
    let fleet = fleet(2, Clocks { wall: || 5_000, steady: || 5_000 });
    let first = &fleet[0];
    first.kick(1, 5_000);
    first.courier.kicks.see(first.courier.clocks).unwrap();
    let disk = rusqlite::Connection::open(first.directory.path().join("vpnd.db.put-off")).unwrap();
    disk.execute_batch("BEGIN IMMEDIATE").unwrap();
    std::thread::scope(|scope| {
        let turn = scope.spawn(|| first.turn(Vec::new(), &[]));
        while !first.courier.state().orders.is_given(&[1; 16]) {
            std::thread::yield_now();
        }
        first.courier.has_missed();
        assert_eq!(first.courier.made().len(), 1);
        assert!(!turn.is_finished(), "it has to keep to whom the kick goes");
        disk.execute_batch("ROLLBACK").unwrap();
        assert_eq!(turn.join().unwrap().to_send.len(), 1);
    });
    assert_eq!(first.ended(1), [None]);
}

#[test]
fn a_decommissioned_gateway_retains_no_kicks() {
    let mut fleet = fleet(2, Clocks { wall: || 5_000, steady: || 5_000 });
    let kicks = Kicks::of_state_dir(fleet[0].directory.path());
    fleet[0].kick(1, 5_000);
    fleet[0].turn(Vec::new(), &[]);
    write(&fleet[0]);
    let mut is_left_after = |steady| {
        set_steady(&mut fleet[0].courier, steady);
        fleet[0].courier.know(&[known(1, 1, true), known(2, 1, false)]);
        kicks.progress(&[1; 16]).unwrap().is_some()
    };
    assert!(is_left_after(|| 5_000 + KEPT_AT_MOST_S));
    assert!(!is_left_after(|| 5_001 + KEPT_AT_MOST_S));
}

#[test]
fn the_newest_kicks_are_sent_despite_a_backlog() {
    let fleet = fleet(2, Clocks { wall: || 5_000, steady: || 5_000 });
    let seen = |number: usize| {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        let kick = Kick { id, user: "ann".to_owned(), at_s: 1, ..Kick::default() };
        SeenKick { kick, steady_s: 1, is_own: true, here: None, ended: None }
    };
    let idle = || OrdersTurn { received: Vec::new(), done: Vec::new() };
    let courier = &fleet[0].courier;
    let full: Vec<SeenKick> = (1..=MAX_GIVEN).map(seen).collect();
    courier.take_turn(idle(), Some(&full), NOW);
    let newer: Vec<SeenKick> = (2..=MAX_GIVEN + 1).map(seen).collect();
    courier.take_turn(idle(), Some(&newer), NOW);
    let is_given = |number| courier.state().orders.is_given(&seen(number).kick.id);
    assert!(is_given(MAX_GIVEN + 1) && !is_given(1));
    courier.take_turn(idle(), None, NOW);
    assert!(is_given(MAX_GIVEN + 1), "nothing is known of kicks that could not be read");
}

#[test]
fn kicks_reach_the_store_although_the_worker_withholds_them() {
    let mut fleet = fleet(2, Clocks { wall: || 5_000, steady: || 5_000 });
    let kicks = Kicks::of_state_dir(fleet[0].directory.path());
    fleet[0].kick(1, 5_000);
    let mut stored_after = |steady| {
        set_steady(&mut fleet[0].courier, steady);
        write(&fleet[0]);
        kicks.progress(&[1; 16]).unwrap().unwrap().stored
    };
    assert_eq!(stored_after(|| 5_000), None);
    assert_eq!(stored_after(|| 5_002), Some(0));
}

#[test]
fn a_step_of_the_systems_clock_widens_no_order() {
    let mut fleet = fleet(2, Clocks { wall: || 5_000, steady: || 4_000 });
    fleet[0].kick(1, 4_990);
    fleet[0].turn(Vec::new(), &[]);
    for wall in [|| 1_000, || 9_000_u64] {
        // It has started again: nothing but the disk knows the order.
        let (first, key) = (&fleet[0], fleet[1].courier.state().orders.public_key().0.into());
        let clocks = Clocks { wall, steady: || 4_500 };
        let courier = courier(&first.directory, &first.store, "gw1", clocks);
        courier.learn(&Notice::Gateway("gw2".to_owned(), key, address(2)));
        fleet[0].courier = courier;
        let sent = fleet[0].turn(Vec::new(), &[]).to_send;
        let receiver = restarted(&fleet, Clocks { wall: || 5_000, steady: || 4_500 });
        assert_eq!(order_in(&receiver, &sent).begun_until_s, 3_990 + 2 * CLOCK_TOLERANCE_S);
    }
}

/// The second gateway after a start: it knows the first one, and no order that it had.
fn restarted(fleet: &[Gateway], clocks: Clocks) -> Courier {
    let receiver = courier(&fleet[1].directory, &fleet[1].store, "gw2", clocks);
    let key = fleet[0].courier.state().orders.public_key().0.into();
    receiver.learn(&Notice::Gateway("gw1".to_owned(), key, address(1)));
    receiver
}

fn order_in(receiver: &Courier, sent: &[FleetDatagram]) -> OrderedEnd {
    let received = sent.iter().map(|datagram| datagram.bytes.clone()).collect();
    let mut orders = receiver.turn(OrdersTurn { received, done: Vec::new() }, NOW).orders;
    assert_eq!(orders.len(), 1);
    orders.remove(0)
}

/// The worker goes by that time (`core::accounting` of the gateway).
#[test]
fn an_order_replayed_after_a_restart_affects_sessions_of_its_time() {
    let fleet = fleet(2, Clocks { wall: || 5_000, steady: || 5_000 });
    fleet[0].kick(1, 5_000);
    let sent = fleet[0].turn(Vec::new(), &[]).to_send;
    let first = fleet[1].turn(sent.clone(), &[]).orders.remove(0);
    assert!(fleet[1].turn(sent.clone(), &[]).orders.is_empty(), "it is known");
    let receiver = restarted(&fleet, Clocks { wall: || 90_000, steady: || 90_000 });
    let replayed = order_in(&receiver, &sent);
    assert_eq!((replayed.id, replayed.begun_until_s), (first.id, 5_000 + 2 * CLOCK_TOLERANCE_S));
}

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn a_gateway_that_has_left_the_fleet_gives_no_orders() {
    let fleet = fleet(2, Clocks::default());
    fleet[0].kick(1, vpnd_sys::clock::wall_s());
    let sent = fleet[0].turn(Vec::new(), &[]).to_send;
    fleet[1].courier.know(&[known(2, 2, true)]);
    assert!(fleet[1].turn(sent, &[]).orders.is_empty());
}

#[test]
fn the_fleet_key_is_kept_and_a_damaged_one_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let key = || {
        let kicks = Kicks::of_state_dir(directory.path());
        let courier = Courier::open(directory.path(), kicks, "gw1", 1, Clocks::default()).unwrap();
        courier.state().orders.public_key()
    };
    let first = key();
    assert_eq!(key(), first);
    std::fs::write(directory.path().join(KEY_FILE), "no key").unwrap();
    let second = key();
    assert!(second != first && key() == second);
}

fn disabled(seq: u64) -> Revocation {
    let cause = RevocationCause::Disabled;
    Revocation { seq, user: vpnd_store::UserId([1; 16]), name: "ann".to_owned(), cause, device: None }
}

/// The time after which the second gateway does something about a revocation that the first one has
/// read, and whether it carries that out; `reads_after`: when it reads the store itself.
fn passed_on(reads_after: Option<Duration>) -> (Duration, bool) {
    let fleet = fleet(2, Clocks { wall: || 5_000, steady: || 5_000 });
    let begun = NOW + HOLD;
    fleet[0].courier.has_read(&[], NOW);
    fleet[0].courier.has_read(&[disabled(1)], begun);
    let turn = |at: usize, received: Vec<FleetDatagram>, now| {
        let received = received.into_iter().map(|datagram| datagram.bytes).collect();
        fleet[at].courier.turn(OrdersTurn { received, done: Vec::new() }, now)
    };
    let mut received = turn(0, Vec::new(), begun).to_send;
    assert_eq!(received.len(), 1);
    for after in (0..10).map(|number| number * TURN) {
        if reads_after.is_some_and(|reads_after| after >= reads_after) {
            fleet[1].courier.has_read(&[], begun + after);
        }
        let reply = turn(1, std::mem::take(&mut received), begun + after);
        if let [order] = &reply.orders[..] {
            assert_eq!((&*order.revoked.name, order.revoked.cause), ("ann", RevocationCause::Disabled));
            return (after, true);
        }
        if !reply.to_send.is_empty() {
            turn(0, reply.to_send, begun + after);
            assert!(turn(0, Vec::new(), begun + HOUR).to_send.is_empty(), "it is confirmed");
            return (after, false);
        }
    }
    panic!("neither carried out nor confirmed");
}

const TURN: Duration = Duration::from_millis(100);

#[test]
fn a_revocation_is_passed_on_to_gateways_without_the_database() {
    assert_eq!(passed_on(None), (5 * TURN, true));
    assert_eq!(passed_on(Some(2 * TURN)), (2 * TURN, false), "it reads it by itself");
}

#[test]
fn only_recent_revocations_are_passed_on() {
    let fleet = fleet(2, Clocks::default());
    let sent =
        |now| fleet[0].courier.turn(OrdersTurn { received: Vec::new(), done: Vec::new() }, now).to_send;
    fleet[0].courier.has_read(&[disabled(1)], NOW);
    assert!(sent(NOW).is_empty(), "it is of any age");
    fleet[0].courier.has_read(&[disabled(2)], NOW + CURRENT);
    assert!(sent(NOW + CURRENT).is_empty(), "this gateway was without the store itself");
    let groups = Revocation { cause: RevocationCause::Groups, ..disabled(3) };
    fleet[0].courier.has_read(&[groups, disabled(4)], NOW + CURRENT + HOLD);
    assert_eq!(sent(NOW + CURRENT + HOLD).len(), 1);
}

#[test]
fn each_gateway_passes_on_to_the_next_ones_and_to_those_that_may_not_read() {
    let fleet = fleet(5, Clocks::default());
    let receivers = |number: u8, silent: &[u8]| -> Vec<String> {
        let courier = &fleet[usize::from(number) - 1].courier;
        let all: Vec<_> = (1..=5).map(|other| known(other, number, !silent.contains(&other))).collect();
        courier.know(&all);
        courier.receivers(&courier.state()).into_iter().collect()
    };
    assert_eq!(receivers(1, &[]), ["gw2", "gw3"]);
    assert_eq!(receivers(4, &[]), ["gw1", "gw5"]);
    assert_eq!(receivers(5, &[]), ["gw1", "gw2"]);
    assert_eq!(receivers(1, &[4]), ["gw2", "gw3", "gw4"]);
    let courier = &fleet[0].courier;
    courier.know(&[known(1, 1, true)]);
    assert!(courier.receivers(&courier.state()).is_empty(), "the others have left the fleet");
}

fn add_ann(gateway: &Gateway) {
    let ann = NewUser::new("ann", PasswordHash::new("x".to_owned()));
    gateway.store.add_user(&ann, 1_000).unwrap();
}

fn may_come(gateway: &Gateway) -> bool {
    gateway.store.user("ann").unwrap().unwrap().enabled
}

/// Two gateways, of which the first one disables a user and the second one has it done; and the
/// order's datagrams.
fn with_disabled_user() -> (Vec<Gateway>, Vec<FleetDatagram>) {
    let mut fleet = fleet(2, Clocks { wall: || 5_000, steady: || 5_000 });
    fleet.iter().for_each(add_ann);
    fleet[0].disable(1, 5_000);
    let reply = fleet[0].turn(Vec::new(), &[]);
    assert!(!may_come(&fleet[0]) && may_come(&fleet[1]));
    let [own] = &reply.orders[..] else { panic!("{:?}", reply.orders) };
    assert_eq!((&*own.revoked.name, own.revoked.cause), ("ann", RevocationCause::Disabled));
    let done_here =
        || Kicks::of_state_dir(fleet[0].directory.path()).progress(&[1; 16]).unwrap().unwrap().here;
    let not_stored = fleet[0].turn(Vec::new(), &[OrderDone { id: own.id, ended: None }]);
    assert_eq!((not_stored.orders.len(), done_here()), (1, None), "the worker tries it again");
    let done = fleet[0].turn(Vec::new(), &[OrderDone { id: own.id, ended: Some(3) }]);
    assert_eq!((done.orders.len(), done_here()), (0, Some(3)));

    // It comes late.
    set_steady(&mut fleet[1].courier, || 5_050);
    let order = fleet[1].turn(reply.to_send.clone(), &[]).orders.remove(0);
    assert_eq!(order.begun_until_s, 5_050 + 2 * CLOCK_TOLERANCE_S, "no session of the user goes on");
    set_steady(&mut fleet[1].courier, || 5_000);
    assert!(!may_come(&fleet[1]), "before the worker has ended the sessions");
    let done = OrderDone { id: order.id, ended: Some(2) };
    fleet[0].turn(fleet[1].turn(Vec::new(), &[done]).to_send, &[]);
    assert_eq!(fleet[0].ended(1), [Some(2)]);
    (fleet, reply.to_send)
}

#[test]
fn a_user_disabled_without_the_store_is_refused_at_all_gateways() {
    let (fleet, _) = with_disabled_user();
    write(&fleet[1]);
    write(&fleet[0]);
    assert!(!may_come(&fleet[0]) && !may_come(&fleet[1]));
    // Here the second one reads another store.
    fleet[1].store.set_enabled("ann", false, 5_000).unwrap();
    for gateway in &fleet {
        gateway.store.set_enabled("ann", true, 5_001).unwrap();
        write(gateway);
        assert!(may_come(gateway), "the store's word counts");
    }
}

#[test]
fn an_order_that_its_gateway_does_not_write_is_written_by_another_one() {
    let (mut fleet, _) = with_disabled_user();
    let revocations = |gateway: &Gateway| gateway.store.last_revocation().unwrap();
    let second = &mut fleet[1];
    let before = revocations(second);
    // It was without the store in between.
    for steady in [|| 9_000, || 9_002, || 9_020, || 9_022, || 9_024, || 9_026, || 9_028, || 9_030_u64] {
        set_steady(&mut second.courier, steady);
        write(second);
        assert_eq!(revocations(second), before, "its gateway may come to it yet");
    }
    set_steady(&mut second.courier, || 9_032);
    write(second);
    assert_eq!(revocations(second), before + 1);
    second.store.set_enabled("ann", true, 9_033).unwrap();
    assert!(may_come(second));
}

#[test]
fn a_recorded_order_disables_no_user_who_was_enabled_since() {
    let (mut fleet, sent) = with_disabled_user();
    let second = &mut fleet[1];
    second.store.set_enabled("ann", false, 5_000).unwrap();
    write(second);
    second.store.set_enabled("ann", true, 5_001).unwrap();
    assert!(may_come(second));
    let again = |fleet: &[Gateway], steady: fn() -> u64| {
        let receiver = restarted(fleet, Clocks { wall: steady, steady });
        let received = sent.iter().map(|datagram| datagram.bytes.clone()).collect();
        let orders = receiver.turn(OrdersTurn { received, done: Vec::new() }, NOW).orders;
        (orders.len(), may_come(&fleet[1]))
    };
    assert_eq!(again(&fleet, || 5_000 + SENT_WITHIN_S), (1, true), "it is known");
    let id = [1; 16];
    fleet[1].store.kicks().forget(&id).unwrap();
    assert_eq!(again(&fleet, || 5_001 + SENT_WITHIN_S), (0, true), "it is an old one");
    assert_eq!(again(&fleet, || 5_000), (1, false), "as one that is new");
}

#[test]
fn a_worker_makes_no_order_that_disables_a_user() {
    let fleet = fleet(2, Clocks { wall: || 5_000, steady: || 5_000 });
    fleet.iter().for_each(add_ann);
    let done = OrderDone { id: [1; 16].into(), ended: Some(1) };
    let forged = FleetDatagram { to: address(2), bytes: vec![5; 200].into() };
    for gateway in &fleet {
        let reply = gateway.turn(vec![forged.clone()], &[done]);
        assert!(reply.orders.is_empty() && reply.to_send.is_empty() && may_come(gateway));
    }
    // Revocations that are passed on are in the store.
    fleet[0].courier.has_read(&[], NOW);
    fleet[0].courier.has_read(&[disabled(1)], NOW + CURRENT / 2);
    let passed_on =
        fleet[0].courier.turn(OrdersTurn { received: Vec::new(), done: Vec::new() }, NOW + CURRENT);
    assert_eq!(passed_on.to_send.len(), 1);
    fleet[1].turn(passed_on.to_send, &[]);
    let later = OrdersTurn { received: Vec::new(), done: Vec::new() };
    assert_eq!(fleet[1].courier.turn(later, NOW + 2 * CURRENT).orders.len(), 1);
    assert!(may_come(&fleet[1]), "by its own store");
}
