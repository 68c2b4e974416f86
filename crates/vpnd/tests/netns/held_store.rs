//! Behaviour: while another process holds the gateway's store, sessions go on: their clients get
//! new epochs, move and come back; logins wait. `VPND_STORE_HELD_S` says for how long; times are
//! printed.

use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::client::{self, Client};
use crate::gateway::Gateway;
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::process::Process;
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);
/// Limit for what takes a moment, on a machine that is slow and busy.
const LIMIT: Duration = Duration::from_secs(60);

/// Time until each of the next `count` epochs of this client, which sends meanwhile.
pub(crate) fn next_epochs(gateway: &Gateway<'_>, client: &Client<'_>, count: u64) -> Vec<Duration> {
    let address = client.v4().to_string();
    let epoch = || {
        ping(client.namespace(), CAMPUS_V4.into(), 56, SECOND / 5);
        let session = gateway.sessions().into_iter().find(|session| session.to_string().contains(&address));
        session.and_then(|session| session["epoch"].as_u64()).unwrap_or(0)
    };
    let mut last = epoch();
    let next = |_| {
        let began = Instant::now();
        last = eventually("a new epoch", LIMIT, || Some(epoch()).filter(|now| *now > last));
        began.elapsed()
    };
    (0..count).map(next).collect()
}

#[test]
fn sessions_continue_while_the_store_is_held() {
    let Some(lab) = Lab::new(3) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("timeouts.rekey_after_s", 1);
    let logins = ["ann", "bob", "cid"].map(|name| gateway.add_user(name));
    gateway.start();
    let mut one = Client::connect(&lab, 1, &logins[0]);
    let mut two = Client::connect(&lab, 2, &logins[1]);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    ping_until(two.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    println!("free: new epochs after {:.1?}", next_epochs(&gateway, &one, 3));

    let store = Connection::open(gateway.file("state/vpnd.db")).unwrap();
    store.execute_batch("BEGIN IMMEDIATE").unwrap();
    let held = Instant::now();
    let three = Process::start(&lab, "client3", client::command(&lab, 3, &logins[2], &[]));
    println!("held: new epochs after {:.1?}", next_epochs(&gateway, &one, 4));
    one.change_address(2, 77);
    let moved = Instant::now();
    ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
    println!("held: traffic after a move after {:.1?}", moved.elapsed());
    let left = Instant::now();
    two.interrupt();
    println!("held: the end of a client after {:.1?}", left.elapsed());
    eventually("its session is over", LIMIT, || (gateway.sessions().len() == 1).then_some(()));
    let seconds = std::env::var("VPND_STORE_HELD_S").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    while held.elapsed() < Duration::from_secs(seconds) {
        println!("held: new epochs after {:.1?}", next_epochs(&gateway, &one, 1));
        ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
    }
    one.process().assert_running();

    store.execute_batch("COMMIT").unwrap();
    let released = Instant::now();
    let connected = "the tunnel is set up";
    eventually("a login goes on", LIMIT, || three.output().contains(connected).then_some(()));
    println!("released: the login is through after {:.1?}", released.elapsed());
    eventually("what was put off is in the store", LIMIT, || {
        let sql = "SELECT epoch FROM sessions ORDER BY epoch DESC LIMIT 1";
        let epoch: u64 = store.query_row(sql, (), |row| row.get(0)).unwrap();
        (epoch >= 7).then_some(())
    });
}
