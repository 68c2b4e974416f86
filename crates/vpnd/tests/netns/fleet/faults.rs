//! Behaviour: whatever happens to a fleet's database or to the ways of a gateway, sessions go on
//! and what is refused is said in a sentence; what the database has lost is noticed, and no address
//! is two devices'.

use std::net::Shutdown;
use std::sync::Arc;

use super::*;
use crate::client::{self, command};
use crate::gateway::strings;
use crate::held_store::next_epochs;
use vpnd_store::postgres::testing::PASSWORD;

/// The role of the gateways: limits don't count for the one that owns everything.
const ROLE: &str = "campus";
/// Runs a program with a small file system at `/mnt`, which no other program has.
const WITH_ROOM: &[&str] =
    &["sh", "-c", "mount -t tmpfs -o size=48m,mode=0700,uid=postgres tmpfs /mnt && exec \"$@\"", "sh"];

/// A proxy before the database, which holds back what the database says.
struct Proxy {
    port: u16,
    delay_ms: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Proxy {
    fn start(lab: &Lab, to: u16) -> Self {
        let listener = lab.net.within(|| TcpListener::bind((DATABASE, 0))).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (delay_ms, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (net, shared) = (lab.net.handle(), (Arc::clone(&delay_ms), Arc::clone(&is_over)));
        thread::spawn(move || {
            net.enter();
            while !shared.1.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(20));
                let Ok((client, _)) = listener.accept() else { continue };
                client.set_nonblocking(false).unwrap();
                let Ok(server) = TcpStream::connect((DATABASE, to)) else { continue };
                let (questions, answers) = ((client.try_clone(), server.try_clone()), Arc::clone(&shared.0));
                let (Ok(from), Ok(into)) = questions else { continue };
                thread::spawn(move || pass_on(from, into, &AtomicU64::new(0)));
                thread::spawn(move || pass_on(server, client, &answers));
            }
        });
        Self { port, delay_ms, is_over }
    }

    fn delay(&self, time: Duration) {
        self.delay_ms.store(u64::try_from(time.as_millis()).unwrap(), Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, delay_ms: &AtomicU64) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        thread::sleep(Duration::from_millis(delay_ms.load(Ordering::Relaxed)));
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    for stream in [&from, &to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Checks that a session goes on during a fault, and that a login and the log give the reason.
fn endure(fleet: &mut Fleet<'_>, one: &Client<'_>, bob: &Login, said: &str, undo: impl FnOnce(&Fleet<'_>)) {
    let lab = fleet.lab;
    println!("{said}: new epochs after {:.1?}", next_epochs(&fleet.first, one, 2));
    let mut two = Process::start(lab, "client3", command(lab, 3, bob, &[]));
    eventually("a login learns why", LIMIT, || {
        two.output().contains("the gateway's user database can't be reached").then_some(())
    });
    eventually("the gateway says why", LIMIT, || fleet.first.process().output().contains(said).then_some(()));
    println!("{said}: new epochs after {:.1?}", next_epochs(&fleet.first, one, 2));
    undo(fleet);
    let undone = Instant::now();
    eventually("the login goes through", LIMIT, || (fleet.first.sessions().len() == 2).then_some(()));
    println!("{said}: over, and the login is through after {:.1?}", undone.elapsed());
    two.signal(Signal::INT);
    two.wait(LIMIT);
    eventually("the session is over", LIMIT, || (fleet.first.sessions().len() == 1).then_some(()));
}

/// Uses up the room of the database: no change finds a place.
fn fill(fleet: &Fleet<'_>) {
    let try_sql = |sql: &str| fleet.cluster.try_sql(&fleet.database, sql);
    try_sql("CREATE TABLE public.fill (x TEXT); ALTER TABLE public.fill ALTER x SET STORAGE PLAIN").unwrap();
    let lines = "INSERT INTO public.fill SELECT repeat('x', 7000) FROM generate_series(1, 20000)";
    assert!(try_sql(lines).unwrap_err().contains("No space left"));
    let marks = "INSERT INTO vpnd.marks (mark) SELECT decode(md5(random()::text), 'hex') FROM generate_series(1, 500)";
    let full = (0..40).any(|_| try_sql(marks).is_err());
    assert!(full, "it has room");
}

#[test]
fn sessions_continue_and_logins_get_a_reason_in_each_database_fault() {
    let Some(lab) = Lab::new(3) else { return };
    let Some(cluster) = cluster_by(&lab, WITH_ROOM, "") else { return };
    for sql in [
        format!("CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'").as_str(),
        "CREATE TABLESPACE room LOCATION '/mnt'",
        &format!("CREATE DATABASE vpnd OWNER {ROLE} TABLESPACE room"),
    ] {
        cluster.sql("postgres", sql);
    }
    let proxy = Proxy::start(&lab, cluster.port);
    let hosts = strings(&[&format!("{DATABASE}:{}", proxy.port)]);
    let settings =
        [("store.user", ROLE.into()), ("store.hosts", hosts), ("timeouts.rekey_after_s", 1.into())];
    let mut fleet = Fleet::on(&lab, cluster, "vpnd".to_owned(), &settings);
    // Users of the first gateway alone.
    let [login, bob] = ["cid", "bob"].map(|name| fleet.first.add_user(name));
    fleet.start();
    let one = Client::connect(&lab, 1, &login);
    let before = session(&fleet.first);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| route(&lab, &is_over));
        ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);

        let limit = |fleet: &Fleet<'_>, limit: i32| {
            fleet.cluster.sql("postgres", &format!("ALTER ROLE {ROLE} CONNECTION LIMIT {limit}"));
        };
        limit(&fleet, 0);
        let ends = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{ROLE}'");
        fleet.cluster.sql("postgres", &ends);
        endure(&mut fleet, &one, &bob, "has no connection left", |fleet| limit(fleet, -1));

        fill(&fleet);
        endure(&mut fleet, &one, &bob, "has no space left", |fleet| {
            fleet.cluster.sql(&fleet.database, "DROP TABLE public.fill");
        });

        proxy.delay(2 * SECOND);
        endure(&mut fleet, &one, &bob, "it does not answer", |_| proxy.delay(Duration::ZERO));
    });
    assert_eq!(session(&fleet.first), before, "it is the same session");
    assert_eq!(fleet.carrier(), "gw1");

    let other = Gateway::init_in(&lab, "other");
    configure_at(&other, DATABASE, &fleet.cluster, &fleet.database);
    other.configure("store.user", ROLE);
    other.configure("fleet.id", "library");
    other.configure("fleet.name", "gw1");
    let checked = process::text(&other.check());
    let (code, started) = client::ended(&lab, other.server(&[]));
    for said in [checked, started] {
        assert!(said.contains("belongs to"), "{code} {said}");
    }
    assert_ne!(code, 0);
}

#[test]
fn a_restored_database_is_noticed_and_no_address_is_of_two_devices() {
    let Some(lab) = Lab::new(3) else { return };
    let Some(mut fleet) = Fleet::new(&lab) else { return };
    let bob = fleet.first.add_user("bob");
    edit_toml(&bob.profile, |profile| {
        let addresses = vec![toml::Value::from(format!("{SECOND_GATEWAY}:4433"))];
        profile["server"]
            .as_table_mut()
            .unwrap()
            .insert("addresses".to_owned(), toml::Value::Array(addresses));
    });
    fleet.start();
    let ann = Client::connect(&lab, 1, &fleet.ann);
    let before = session(&fleet.first);
    fleet.cluster.back_up();
    for gateway in [&fleet.first, &fleet.second] {
        eventually("the gateways have it again", LIMIT, || {
            let is_back = gateway.ask(&["status", "--fleet"]).status.success();
            (is_back && gateways(gateway).values().all(|known| known["alive"] == true)).then_some(())
        });
    }
    let two = Client::connect(&lab, 3, &bob);
    eventually("the second gateway has a session", LIMIT, at(&fleet.second));
    let (lost, generation) = (session(&fleet.second), "SELECT generation FROM vpnd.fleet");
    let latest: u64 = fleet.cluster.sql(&fleet.database, generation).parse().unwrap();
    fleet.cluster.restore();
    let restored = Instant::now();
    eventually("the loss is noticed", LIMIT, || {
        let said = fleet.second.process().output();
        (said.contains("lacks changes that it had acknowledged") && session(&fleet.second) != lost)
            .then_some(())
    });
    println!("restored: the lost session has ended after {:.1?}", restored.elapsed());
    eventually("its client logs in again", LIMIT, || {
        session(&fleet.second).filter(|found| Some(found) != lost.as_ref())
    });
    println!("restored: its client is back after {:.1?}", restored.elapsed());
    let now: u64 = fleet.cluster.sql(&fleet.database, generation).parse().unwrap();
    assert!(now > latest, "no generation is given twice: {now} after {latest}");
    assert_eq!(session(&fleet.first), before, "the other one goes on");
    assert!(two.addresses().iter().all(|address| !ann.addresses().contains(address)));
}
