//! The database is away for an hour of virtual time.

use vpnd_ipc::gateway::auth::{FleetDatagram, OrderDone, OrdersTurn};
use vpnd_store::{Kick, Kicks};

use super::*;
use vpnd_admission::notices::{Notice, Subscriber as _};

/// Interval of a worker's turns with orders.
const TURN: Duration = Duration::from_millis(100);
const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn an_hour_without_the_database_ends_no_session_and_loses_no_token() {
    let mut fleet = Fleet::new(1);
    let devices = [1, 2, 3];
    for device in devices {
        fleet.log_in(device);
    }
    fleet.pass(POLL);
    let until = fleet.elapsed + 60 * MINUTE;
    for gateway in &mut fleet.gateways {
        gateway.cut_until = until;
        gateway.store.cut(true);
    }
    let members =
        |fleet: &Fleet| fleet.gateways.iter().map(|gateway| gateway.members.clone()).collect::<Vec<_>>();
    let before = members(&fleet);
    assert_eq!(before.iter().map(BTreeMap::len).sum::<usize>(), devices.len());
    for _ in 1..60 {
        fleet.pass(MINUTE);
        fleet.log_in(9);
        assert!(!fleet.clients.contains_key(&9), "there is no login");
        for device in devices {
            let epoch = fleet.clients[&device].epoch;
            fleet.rekey(device);
            assert!(fleet.clients[&device].epoch > epoch, "new keys need no database");
            fleet.attach(device);
        }
        assert_eq!((members(&fleet), fleet.moves), (before.clone(), 0), "all stay where they are");
        fleet.check();
    }
    fleet.pass(2 * MINUTE);
    for device in devices {
        assert!(!fleet.gateways[fleet.clients[&device].at].store.has_put_off(), "it has caught up");
        // From here on a token that another gateway does not know is a failure.
        fleet.clients.get_mut(&device).unwrap().is_behind = false;
    }
    for _ in 0..50 {
        devices.into_iter().for_each(|device| fleet.attach(device));
    }
    assert!(fleet.moves >= devices.len(), "{}", fleet.moves);
    fleet.check_quiet();
}

/// The network between the gateways, which loses a third of all datagrams; those that are late come
/// with the next turn.
#[derive(Default)]
struct Network {
    on_their_way: Vec<FleetDatagram>,
    /// All that were ever sent.
    recorded: Vec<FleetDatagram>,
}

impl Fleet {
    /// Gives all gateways their couriers, who know one another from when the database was there.
    fn with_couriers(seed: u64) -> Self {
        let fleet = Self::new(seed);
        let clocks = Clocks { wall: now_s, steady: now_s };
        let mut notices = Vec::new();
        for (number, gateway) in fleet.gateways.iter().enumerate() {
            let (name, port) = (format!("gw{number}"), u16::try_from(number).unwrap());
            let kicks = gateway.service.kicks();
            let courier = Courier::open(gateway.directory.path(), kicks, &name, port, clocks).unwrap();
            gateway.service.carry_orders(courier);
            let state = vpnd_store::GatewayState {
                name,
                is_here: true,
                is_connected: true,
                heard_s: Some(0),
                address: Some([192, 0, 2, 1].into()),
                addresses: Vec::new(),
                version: String::new(),
                sessions: 0,
                held: 0,
                load_percent: 0,
                is_draining: false,
            };
            let courier = gateway.service.courier().unwrap();
            courier.know(&[state]);
            notices.extend(courier.made());
        }
        for gateway in &fleet.gateways {
            notices.iter().for_each(|notice: &Notice| gateway.service.courier().unwrap().learn(notice));
        }
        fleet
    }

    /// A turn of all workers.
    fn turn(&mut self, network: &mut Network) {
        let now = Time::from_nanos(0) + self.elapsed;
        let arrived = std::mem::take(&mut network.on_their_way);
        for number in 0..GATEWAYS {
            let is_for_it = |datagram: &&FleetDatagram| usize::from(datagram.to.port()) == number;
            let received = arrived.iter().filter(is_for_it).map(|datagram| datagram.bytes.clone()).collect();
            let service = Arc::clone(&self.gateways[number].service);
            let courier = service.courier().unwrap();
            let reply = courier.turn(OrdersTurn { received, done: Vec::new() }, now);
            let done: Vec<OrderDone> = reply.orders.iter().map(|order| self.obey(number, order)).collect();
            let confirmations = courier.turn(OrdersTurn { received: Vec::new(), done }, now);
            for datagram in reply.to_send.into_iter().chain(confirmations.to_send) {
                network.recorded.push(datagram.clone());
                if self.random.random_bool(0.66) {
                    network.on_their_way.push(datagram);
                }
            }
        }
        self.pass(TURN);
    }

    /// A worker ends the sessions that an order is about; all are of one user here.
    fn obey(&mut self, number: usize, order: &vpnd_ipc::gateway::auth::OrderedEnd) -> OrderDone {
        assert_eq!(&*order.revoked.name, "ann");
        let gateway = &self.gateways[number];
        let began = |session: &SessionId| {
            let known = gateway.store.session(*session, now_s()).ok().flatten();
            known.is_none_or(|known| known.started_s <= order.begun_until_s)
        };
        let meant: Vec<SessionId> =
            gateway.members.keys().filter(|session| began(session)).copied().collect();
        for session in &meant {
            self.gateways[number].members.remove(session);
            self.commit(number, vec![Write::End(id(*session))]);
        }
        OrderDone { id: order.id, ended: Some(meant.len() as u64) }
    }

    /// A fleet at which a user has sessions.
    fn with_sessions(seed: u64) -> Self {
        println!("seed {seed}");
        let mut fleet = Self::with_couriers(seed);
        (1..=6).for_each(|device| fleet.log_in(device));
        fleet.pass(POLL);
        let sessions = fleet.sessions();
        assert!(sessions >= 5, "{sessions}");
        fleet
    }

    fn sessions(&self) -> usize {
        self.gateways.iter().map(|gateway| gateway.members.len()).sum()
    }
}

#[tokio::test]
async fn a_kick_in_a_database_outage_reaches_all_gateways_and_is_stored_later() {
    for seed in 0..6 {
        let (mut fleet, mut network) = (Fleet::with_sessions(seed), Network::default());
        let outage = fleet.elapsed + 2 * MINUTE;
        for gateway in &mut fleet.gateways {
            gateway.cut_until = outage;
            gateway.store.cut(true);
        }
        fleet.pass(MINUTE);
        let kicks = Kicks::of_state_dir(fleet.gateways[0].directory.path());
        let user = "ann".to_owned();
        kicks.leave(&Kick { id: [7; 16], user, at_s: now_s(), ..Kick::default() }).unwrap();
        // The command has the worker end those of this gateway.
        fleet.gateways[0].members.clear();
        // A second, in which each has several attempts.
        (0..10).for_each(|_| fleet.turn(&mut network));
        assert_eq!(fleet.sessions(), 0, "all are over within a second");
        let known = kicks.progress(&[7; 16]).unwrap().unwrap();
        assert_eq!(known.gateways.len(), GATEWAYS - 1);
        fleet.clients.clear();

        fleet.pass(2 * MINUTE);
        (0..10).for_each(|_| fleet.turn(&mut network));
        let first = Arc::clone(&fleet.gateways[0].service);
        first.courier().unwrap().write(&*first.store).unwrap();
        assert!(kicks.progress(&[7; 16]).unwrap().unwrap().stored.is_some());
        fleet.pass(MINUTE);
        fleet.log_in(1);
        let again = fleet.sessions();
        assert_eq!(again, 1, "the user may log in again");
        // An attacker sends all again.
        network.on_their_way.clone_from(&network.recorded);
        (0..5).for_each(|_| fleet.turn(&mut network));
        first.courier().unwrap().write(&*first.store).unwrap();
        fleet.pass(2 * POLL);
        assert_eq!(fleet.sessions(), again, "old orders change nothing");
        fleet.check_quiet();
    }
}

#[tokio::test]
async fn a_user_disabled_in_an_outage_is_refused_until_enabled() {
    for seed in 0..6 {
        let (mut fleet, mut network) = (Fleet::with_sessions(seed), Network::default());
        let outage = fleet.elapsed + 2 * MINUTE;
        for (number, gateway) in fleet.gateways.iter_mut().enumerate() {
            // The gateway of the order is without it for longer.
            gateway.cut_until = if number == 0 { outage + MINUTE } else { outage };
            gateway.store.cut(true);
        }
        fleet.pass(MINUTE);
        let (user, at_s) = ("ann".to_owned(), now_s());
        let kick = Kick { id: [7; 16], user, at_s, is_disable: true, source: None };
        Kicks::of_state_dir(fleet.gateways[0].directory.path()).leave(&kick).unwrap();
        (0..10).for_each(|_| fleet.turn(&mut network));
        assert_eq!(fleet.sessions(), 0, "all are over within a second");
        fleet.clients.clear();

        fleet.pass(MINUTE);
        let tries = |fleet: &mut Fleet| {
            (1..=12).for_each(|device| fleet.log_in(device));
            fleet.sessions()
        };
        let write = |fleet: &Fleet, number: usize| {
            let service = &fleet.gateways[number].service;
            service.courier().unwrap().write(&*service.store)
        };
        assert!(write(&fleet, 0).is_err(), "its gateway is still without the database");
        (1..GATEWAYS).for_each(|number| write(&fleet, number).unwrap());
        assert_eq!(tries(&mut fleet), 0, "others have it, and hold the user");
        fleet.pass(MINUTE);
        (0..GATEWAYS).for_each(|number| write(&fleet, number).unwrap());
        fleet.pass(POLL);
        assert_eq!(tries(&mut fleet), 0, "the database has it");
        let store = Arc::clone(&fleet.gateways[1].service.store);
        assert!(!store.user("ann").unwrap().unwrap().enabled);
        store.set_enabled("ann", true, now_s()).unwrap();
        assert!(tries(&mut fleet) > 0);
        fleet.check_quiet();
    }
}
