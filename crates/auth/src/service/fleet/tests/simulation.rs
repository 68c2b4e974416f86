//! A fleet in virtual time: the services of many gateways on a model of their database, with
//! devices that log in, move and leave, and with faults. A failure names its seed.
//!
//! A gateway's worker is a few lines here: it has the sessions that it was given, and drops those
//! that [`TakenAway::ends`] or that the database lacks. One fault of the database is over before
//! the next one begins.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use vpnd_config::factor::Factors;
use vpnd_ipc::gateway::auth::{LoginReply, RevocationQuery, TokenHashes, Write};
use vpnd_proto::attach::{Token, Tokens};
use vpnd_store::password::{Hasher, Password};
use vpnd_store::postgres::testing::simulated::{AtGateway, Moment, Simulated, Unanswered};
use vpnd_store::{NewUser, Sessions as _, Users as _};
use vpnd_sys::clock::Clocks;

use crate::service::fleet::*;
use crate::service::tests::{access, service_on};
use vpnd_admission::authenticator::Authenticated;

const GATEWAYS: usize = 4;
/// More than the pool of [`access`] has addresses.
const DEVICES: u8 = 8;
const STEPS: usize = 250;
const SEEDS: u64 = 12;
/// Interval of a worker's queries.
const POLL: Duration = Duration::from_millis(400);
/// Interval of a gateway's reports.
const REPORT: Duration = Duration::from_secs(5);

thread_local!(static NOW_S: Cell<u64> = const { Cell::new(1_000_000) });

fn now_s() -> u64 {
    NOW_S.with(Cell::get)
}

/// A session in a gateway's worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    device: u8,
    generation: u64,
    address: Ipv4Addr,
}

struct Gateway {
    store: Arc<AtGateway>,
    service: Arc<Service>,
    members: BTreeMap<SessionId, Member>,
    dropped: Vec<TakenAway>,
    seen: Option<u64>,
    history: Option<u64>,
    /// Its processes stand still until then, but for what a client asks.
    silent_until: Duration,
    /// It is cut off from the database until then.
    cut_until: Duration,
    /// It is cut off from clients until then.
    unheard_until: Duration,
    /// Its last report, and the number of steps before it.
    reported: (Duration, usize),
    directory: tempfile::TempDir,
}

/// A device with its session.
#[derive(Clone, Debug)]
struct Client {
    session: SessionId,
    token: [u8; 32],
    epoch: u32,
    at: usize,
    /// Changes of the database until the last one of this client's that was acknowledged.
    acknowledged: usize,
    /// Whether its newest token waits at a gateway for the database.
    is_behind: bool,
}

struct Fleet {
    database: Simulated,
    gateways: Vec<Gateway>,
    clients: BTreeMap<u8, Client>,
    /// Earlier moments of the database, by the number of steps before them.
    moments: Vec<(usize, Moment)>,
    step: usize,
    elapsed: Duration,
    /// A loss is not known to all until then.
    unsettled_until: Duration,
    random: StdRng,
    moves: usize,
    losses: usize,
    backups: usize,
    refusals: usize,
}

impl Fleet {
    fn new(seed: u64) -> Self {
        NOW_S.with(|now| now.set(1_000_000));
        let database = Simulated::new(Instant::now());
        let hash = Hasher::with_cost(8, 1).hash(&Password::new("right".to_owned())).unwrap();
        database.add_user(&NewUser::new("ann", hash), vpnd_store::UserId([1; 16]));
        let gateway = |number: usize| {
            let directory = tempfile::tempdir().unwrap();
            let store = Arc::new(database.at(u8::try_from(number).unwrap(), directory.path()));
            let clocks = Clocks { wall: now_s, steady: now_s };
            let profiles = access(vpnd_config::AccessProfiles::of_everybody());
            let service = service_on(Arc::clone(&store) as Arc<dyn vpnd_store::Store>, clocks, profiles);
            Gateway {
                store,
                service: Arc::new(service.of_fleet(true)),
                members: BTreeMap::new(),
                dropped: Vec::new(),
                seen: None,
                history: None,
                silent_until: Duration::ZERO,
                cut_until: Duration::ZERO,
                unheard_until: Duration::ZERO,
                reported: (Duration::ZERO, 0),
                directory,
            }
        };
        Self {
            gateways: (0..GATEWAYS).map(gateway).collect(),
            database,
            clients: BTreeMap::new(),
            moments: Vec::new(),
            step: 0,
            elapsed: Duration::ZERO,
            unsettled_until: Duration::ZERO,
            random: StdRng::seed_from_u64(seed),
            moves: 0,
            losses: 0,
            backups: 0,
            refusals: 0,
        }
    }

    fn pass(&mut self, time: Duration) {
        let before = self.elapsed;
        self.elapsed += time;
        self.database.pass(time);
        let seconds = self.elapsed.as_secs() - before.as_secs();
        NOW_S.with(|now| now.set(now.get() + seconds));
        for number in 0..GATEWAYS {
            if self.gateways[number].cut_until <= self.elapsed {
                self.gateways[number].store.cut(false);
            }
            if self.gateways[number].silent_until <= self.elapsed {
                self.poll(number);
            }
        }
    }

    fn some_gateway(&mut self) -> usize {
        self.random.random_range(..GATEWAYS)
    }

    /// Whether clients reach it.
    fn is_heard(&self, at: usize) -> bool {
        self.gateways[at].unheard_until <= self.elapsed
    }

    /// Writes of a gateway's worker; whether all were done.
    fn commit(&self, at: usize, writes: Vec<Write>) -> bool {
        self.gateways[at].service.commit(writes).is_ok_and(|done| done.failed.is_empty())
    }

    fn keep(client: &Client, fresh: Option<[u8; 32]>) -> Write {
        let hash = |bytes| Token::from_bytes(bytes).hash();
        let tokens = Tokens::restore(hash(client.token), fresh.map(hash));
        Write::Keep { session: id(client.session), tokens: TokenHashes::from(&tokens), epoch: client.epoch }
    }

    fn log_in(&mut self, device: u8) {
        let at = self.some_gateway();
        if !self.is_heard(at) {
            return;
        }
        // It gives its session up.
        self.clients.remove(&device);
        let service = Arc::clone(&self.gateways[at].service);
        let Ok(Some(user)) = self.gateways[at].store.user("ann") else { return };
        let user = Authenticated::here(user, Factors::PASSWORD);
        let granted = match service.admit(&user, DeviceId([device; 16]), None, false) {
            Ok(LoginReply::Granted(granted)) => granted,
            Ok(_) | Err(_) => {
                self.refusals += 1;
                return;
            }
        };
        let session = SessionId(granted.session.into());
        let token = self.random.random();
        let (epoch, acknowledged) = (1, self.step);
        let client = Client { session, token, epoch, at, acknowledged, is_behind: false };
        let member =
            Member { device, generation: granted.generation, address: granted.addresses.ipv4.unwrap() };
        // One device has one session, of which the new one takes the place here.
        let before: Vec<SessionId> = self.of_device(at, device);
        for session in &before {
            self.gateways[at].members.remove(session);
        }
        self.gateways[at].members.insert(session, member);
        let mut writes: Vec<Write> = before.into_iter().map(|session| Write::End(id(session))).collect();
        writes.push(Self::keep(&client, None));
        if self.commit(at, writes) {
            self.clients.insert(device, client);
        } else {
            self.gateways[at].members.remove(&session);
            self.commit(at, vec![Write::End(id(session))]);
        }
    }

    fn of_device(&self, at: usize, device: u8) -> Vec<SessionId> {
        let members = self.gateways[at].members.iter();
        members.filter(|(_, member)| member.device == device).map(|(session, _)| *session).collect()
    }

    /// Has a client go on at another gateway; now and then also at a third one, while the first
    /// looks at what it has read.
    fn attach(&mut self, device: u8) {
        let (to, other) = (self.some_gateway(), self.some_gateway());
        let client = self.clients[&device].clone();
        let claim = || SessionClaim {
            session: id(client.session),
            token: Token::from_bytes(client.token),
            device: [device; 16].into(),
            until: Time::from_nanos(u64::MAX),
        };
        let is_known = |at: usize| self.gateways[at].members.contains_key(&client.session);
        if is_known(to) || !self.is_heard(to) {
            return;
        }
        let meanwhile = Arc::new(Mutex::new(None));
        if other != to && !is_known(other) && self.random.random_bool(0.3) {
            let (service, found, claim) =
                (Arc::clone(&self.gateways[other].service), Arc::clone(&meanwhile), claim());
            self.gateways[to]
                .store
                .meanwhile(move || *found.lock().unwrap() = service.claimed(&[claim]).pop());
        }
        let found = self.gateways[to].service.claimed(&[claim()]).pop().unwrap();
        self.gateways[to].store.meanwhile(|| ());
        if let Some(first) = meanwhile.lock().unwrap().take() {
            self.attached(device, other, first);
        }
        self.attached(device, to, found);
    }

    fn attached(&mut self, device: u8, at: usize, found: Result<Option<StoredSession>, Reason>) {
        let client = self.clients.get_mut(&device).unwrap();
        match found {
            Ok(Some(stored)) => {
                let address = stored.addresses.ipv4.unwrap();
                let member = Member { device, generation: stored.generation, address };
                client.at = at;
                self.moves += 1;
                let session = client.session;
                for before in self.of_device(at, device) {
                    self.gateways[at].members.remove(&before);
                }
                self.gateways[at].members.insert(session, member);
            }
            Ok(None) => {
                assert!(client.is_behind, "an acknowledged session is gone: {client:?}");
                self.clients.remove(&device);
            }
            // It tries again.
            Err(_) => {}
        }
    }

    /// A client gets a new token.
    fn rekey(&mut self, device: u8) {
        let (at, fresh) = (self.clients[&device].at, self.random.random());
        let session = self.clients[&device].session;
        if !self.gateways[at].members.contains_key(&session) || !self.is_heard(at) {
            return;
        }
        let client = self.clients.get_mut(&device).unwrap();
        client.epoch += 1;
        let keep = Self::keep(client, Some(fresh));
        if self.commit(at, vec![keep]) {
            let is_behind = self.gateways[at].store.has_put_off();
            let client = self.clients.get_mut(&device).unwrap();
            (client.token, client.acknowledged, client.is_behind) = (fresh, self.step, is_behind);
        }
    }

    fn leave(&mut self, device: u8) {
        let client = self.clients.remove(&device).unwrap();
        if self.is_heard(client.at) && self.gateways[client.at].members.remove(&client.session).is_some() {
            self.commit(client.at, vec![Write::End(id(client.session))]);
        }
    }

    /// Carries out a worker's queries, as it does several times a second.
    fn poll(&mut self, number: usize) {
        let gateway = &mut self.gateways[number];
        let mut ended = Vec::new();
        let query = RevocationQuery { seen: gateway.seen, history: gateway.history };
        if let Ok(found) = gateway.service.revocations(&query) {
            let ids: Vec<SessionId> = gateway.members.keys().copied().collect();
            let missing = found.went_back.then(|| gateway.store.missing_sessions(&ids, now_s()));
            if let Ok(missing) = missing.unwrap_or_else(|| Ok(Vec::new())) {
                (gateway.seen, gateway.history) = (Some(found.seen), Some(found.history));
                ended.extend(missing);
            }
        }
        let dropped = std::mem::take(&mut gateway.dropped);
        if let Ok(taken) = gateway.service.taken_away(&dropped) {
            for taken in &taken {
                let session = SessionId(taken.session.into());
                if gateway.members.get(&session).is_some_and(|member| taken.ends(member.generation)) {
                    ended.push(session);
                }
            }
            gateway.dropped = taken;
        }
        let _ = gateway.store.catch_up(now_s());
        // A report is a change like this one.
        let is_due = self.elapsed >= gateway.reported.0 + REPORT;
        if is_due && vpnd_store::Fleet::dropped(&*gateway.store, &[]).is_ok() {
            gateway.reported = (self.elapsed, self.step);
        }
        for session in ended {
            self.gateways[number].members.remove(&session);
            self.commit(number, vec![Write::End(id(session))]);
        }
    }

    /// The database loses what came after an earlier moment.
    fn go_back(&mut self) {
        if self.moments.is_empty() || self.elapsed < self.unsettled_until {
            return;
        }
        let (at, moment) = self.moments.swap_remove(self.random.random_range(..self.moments.len()));
        self.moments.clear();
        // A backup is older than the last report of each gateway.
        let is_old = self.gateways.iter().all(|gateway| gateway.reported.1 > at);
        let is_backup = is_old && self.random.random_bool(0.7);
        self.database.go_back(&moment, is_backup);
        self.losses += 1;
        self.backups += usize::from(is_backup);
        self.unsettled_until = self.elapsed + Simulated::settling() / 2;
        for gateway in &mut self.gateways {
            let until = self.unsettled_until.mul_f64(0.999);
            gateway.silent_until = gateway.silent_until.min(until);
            gateway.cut_until = gateway.cut_until.min(until);
        }
        for client in self.clients.values_mut().filter(|client| client.acknowledged >= at) {
            client.is_behind = true;
        }
    }

    fn disturb(&mut self) {
        if self.elapsed < self.unsettled_until {
            return;
        }
        let number = self.some_gateway();
        let until = self.elapsed + POLL * self.random.random_range(2..30);
        let gateway = &mut self.gateways[number];
        match self.random.random_range(..5_u8) {
            0 => gateway.silent_until = until,
            1 => {
                gateway.cut_until = until;
                gateway.store.cut(true);
            }
            // First on the way back.
            2 => {
                gateway.cut_until = until;
                gateway.store.lose_answer(Unanswered::MadeThenCut);
            }
            // Others take its clients, of which it learns by the database.
            3 => gateway.unheard_until = until,
            _ => {
                let made = self.random.random_bool(0.5);
                gateway.store.lose_answer(if made { Unanswered::Made } else { Unanswered::NotMade });
            }
        }
    }

    fn act(&mut self) {
        self.step += 1;
        let device = self.random.random_range(1..=DEVICES);
        let is_connected = self.clients.contains_key(&device);
        match self.random.random_range(..100_u8) {
            0..25 => self.pass(POLL),
            25..28 => self.moments.push((self.step, self.database.moment())),
            28..30 => self.go_back(),
            30..37 => self.disturb(),
            _ if !is_connected => self.log_in(device),
            37..72 => self.attach(device),
            72..90 => self.rekey(device),
            90..94 => self.log_in(device),
            _ => self.leave(device),
        }
    }

    fn is_settled(&self) -> bool {
        self.elapsed >= self.unsettled_until
    }

    /// Checks the invariants that hold at each moment.
    fn check(&self) {
        let mut holders: BTreeMap<Ipv4Addr, (usize, u8)> = BTreeMap::new();
        let mut stays: BTreeMap<SessionId, Vec<(usize, u64)>> = BTreeMap::new();
        for (number, gateway) in self.gateways.iter().enumerate() {
            for (session, member) in &gateway.members {
                stays.entry(*session).or_default().push((number, member.generation));
                let (other, device) = *holders.entry(member.address).or_insert((number, member.device));
                let address = member.address;
                assert_eq!(device, member.device, "{address} is of two devices, at {other} and {number}");
            }
        }
        for (session, stays) in stays.iter().filter(|_| self.is_settled()) {
            let Some((carrier, generation)) = self.database.carrier(*session) else { continue };
            for (number, since) in stays {
                let is_owner = *number == usize::from(carrier);
                assert!(
                    is_owner || *since < generation,
                    "two owners of {session}: {stays:?}, {carrier} {generation}"
                );
            }
        }
        for client in self.clients.values().filter(|client| !client.is_behind) {
            assert!(self.database.carrier(client.session).is_some(), "{client:?} is lost");
        }
    }

    /// Ends all faults, has each gateway ask, and checks that nothing is left of them.
    fn check_quiet(&mut self) {
        for gateway in &mut self.gateways {
            gateway.silent_until = Duration::ZERO;
            gateway.cut_until = Duration::ZERO;
            gateway.unheard_until = Duration::ZERO;
        }
        self.pass(2 * Simulated::settling());
        (0..3).for_each(|_| self.pass(POLL));
        self.check();
        for (number, gateway) in self.gateways.iter().enumerate() {
            for (session, member) in &gateway.members {
                let carrier = self.database.carrier(*session).map(|(carrier, _)| usize::from(carrier));
                assert_eq!(carrier, Some(number), "{session} {member:?}");
            }
        }
        let devices: Vec<u8> = self.clients.keys().copied().collect();
        for device in devices {
            self.attach(device);
        }
        self.check();
    }
}

fn run(seed: u64) -> Fleet {
    let mut fleet = Fleet::new(seed);
    for _ in 0..STEPS {
        fleet.act();
        fleet.check();
    }
    fleet.check_quiet();
    fleet
}

#[tokio::test]
async fn no_session_has_two_owners_no_address_two_devices_and_nothing_is_lost() {
    let (mut moves, mut losses, mut backups, mut refusals) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        println!("seed {seed}");
        let fleet = run(seed);
        moves += fleet.moves;
        losses += fleet.losses;
        backups += fleet.backups;
        refusals += fleet.refusals;
    }
    println!("{moves} moves, {losses} losses, {backups} of them backups, {refusals} refused logins");
    assert!(moves > 100 && losses > 5 && backups > 1 && refusals > 5);
}

#[tokio::test]
async fn a_restart_reads_earlier_sessions_in_one_query() {
    let mut fleet = Fleet::new(1);
    (1..=5).for_each(|device| fleet.log_in(device));
    let gateway = fleet.gateways.iter().max_by_key(|gateway| gateway.members.len()).unwrap();
    let (store, service) = (&gateway.store, &gateway.service);
    service.begin(true).unwrap();
    let left = || store.live_sessions(now_s()).unwrap().len();
    let before = left();
    assert!(before > 1, "{before}");
    let queries = store.queries();
    service.end_misfits(true);
    assert_eq!((store.queries() - queries, left()), (1, before));
    store.cut(true);
    let other = vpnd_config::testing::smallest("[[profile]]\nname = 'staff'\ngroups = 'staff'\n").profiles;
    service.access.replace(other);
    service.end_misfits(true);
    store.cut(false);
    assert_eq!(left(), before, "nothing is known of them");
    service.end_misfits(true);
    assert_eq!(left(), 0);
}

mod outage;
