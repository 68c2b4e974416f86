//! Behaviour: what breaks heals by itself. Restart of the gateway, new addresses, a bad network:
//! transfers that were under way end with the right bytes.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::client::Client;
use crate::gateway::Gateway;
use crate::lab::{CAMPUS_V4, CAMPUS_V6, Lab, eventually};
use crate::persistent;
use crate::relay::{Faults, Relay};
use crate::traffic::{TEN_MB, ping_until, transfer, trickle};

const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn the_gateway_restarts_under_traffic() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    let two = Client::connect(&lab, 2, &bob);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let before = [one.v4(), one.v6(), two.v4(), two.v6()];
    thread::scope(|scope| {
        scope.spawn(|| trickle(one.namespace(), &lab.campus, CAMPUS_V4.into(), 5 * SECOND, LIMIT));
        scope.spawn(|| trickle(two.namespace(), &lab.campus, CAMPUS_V6.into(), 5 * SECOND, LIMIT));
        thread::sleep(SECOND);
        gateway.kill();
        gateway.start();
        // The silence is noticed while the gateway comes back; 4 s leave room for a busy machine.
        ping_until(one.namespace(), CAMPUS_V4.into(), 4 * SECOND);
        gateway.terminate();
        gateway.start();
        ping_until(two.namespace(), CAMPUS_V4.into(), 20 * SECOND);
    });
    assert_eq!([one.v4(), one.v6(), two.v4(), two.v6()], before, "everyone has kept their addresses");
}

#[test]
fn a_restart_is_announced() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, mut one) = Client::alone(&lab);
    let start = Instant::now();
    gateway.terminate();
    let stopped = start.elapsed();
    eventually("the client has heard of it", 5 * SECOND, || {
        one.process().output().contains("interrupted").then_some(())
    });
    gateway.start();
    let started = start.elapsed();
    ping_until(one.namespace(), CAMPUS_V4.into(), 10 * SECOND);
    println!("stopped after {stopped:?}, up after {started:?}, traffic after {:?}", start.elapsed());
    assert_eq!(gateway.status()["counters"]["logins"]["accepted"], 0, "nobody had to log in");
}

/// Without a client, with one, and with one that confirms nothing.
#[test]
fn a_stop_does_not_wait_for_absent_clients() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, one) = Client::alone(&lab);
    let mut one = one.into_process();
    let mut stop = || {
        // The fastest of three: one may meet a machine that is busy.
        let stops = (0..3).map(|_| {
            let begun = Instant::now();
            gateway.terminate();
            let stopped = begun.elapsed();
            gateway.start();
            stopped
        });
        stops.min().unwrap()
    };
    let with_client = stop();
    one.signal_all(Signal::STOP);
    let with_silent_client = stop();
    one.signal_all(Signal::CONT);
    one.kill();
    let alone = stop();
    println!(
        "stopped after {with_client:?}, {with_silent_client:?} with a silent client, {alone:?} without one"
    );
    // A wait for a peer that is not there would take as long each time.
    for stopped in [with_client, with_silent_client, alone] {
        assert!(stopped < 2 * SECOND, "{stopped:?}");
    }
}

#[test]
fn a_client_changes_its_address_under_traffic() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, one) = Client::alone(&lab);
    let before = one.v4();
    thread::scope(|scope| {
        scope.spawn(|| trickle(one.namespace(), &lab.campus, CAMPUS_V4.into(), 4 * SECOND, LIMIT));
        thread::sleep(SECOND);
        one.change_address(2, 77);
    });
    assert_eq!(one.v4(), before, "the inner address stays");
    let outer = || gateway.sessions()[0]["outer"].to_string();
    eventually("status shows the new outer address", 5 * SECOND, || {
        outer().contains("198.18.1.77").then_some(())
    });
}

/// Simulates a suspend: nothing of the client has run for a while, and the gateway has forgotten it
/// meanwhile.
#[test]
fn a_client_that_did_not_run_is_reachable_soon_afterwards() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("policy.campus_to_client", true);
    let ann = gateway.add_user("ann");
    gateway.start();
    let mut one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let inner = one.v4();
    one.process().signal_all(Signal::STOP);
    gateway.kill();
    gateway.start();
    thread::sleep(6 * SECOND);
    one.process().signal_all(Signal::CONT);
    ping_until(&lab.campus, inner, 5 * SECOND);
    assert!(one.process().output().contains("nothing ran here for"), "the client has noticed");
    assert_eq!(gateway.status()["counters"]["logins"]["accepted"], 0, "nobody had to log in");
}

#[test]
fn a_nat_forgets_its_ports_under_traffic() {
    let Some(lab) = Lab::new(1) else { return };
    let relay = Relay::start(&lab, Faults::default());
    let (_gateway, one) = Client::alone(&lab);
    thread::scope(|scope| {
        scope.spawn(|| trickle(one.namespace(), &lab.campus, CAMPUS_V4.into(), 3 * SECOND, LIMIT));
        thread::sleep(SECOND);
        relay.rebind();
    });
    transfer(one.namespace(), &lab.campus, CAMPUS_V4.into(), TEN_MB, LIMIT);
}

#[test]
fn transfers_survive_a_fifth_of_loss_and_a_fifth_of_delay() {
    let Some(lab) = Lab::new(1) else { return };
    let relay = Relay::start(&lab, Faults { seed: 20, lose: 20, delay: 20, ..Faults::default() });
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 10 * SECOND);
    persistent::transfer(one.namespace(), &lab.campus, CAMPUS_V4.into(), TEN_MB, LIMIT);
    persistent::transfer(one.namespace(), &lab.campus, CAMPUS_V6.into(), TEN_MB / 10, LIMIT);
    let [lost, delayed, _] = relay.counts();
    assert!(
        lost > 1_000 && delayed > 1_000,
        "{lost} lost, {delayed} delayed: the network was as bad as ordered"
    );
}

#[test]
fn tcp_works_with_heavy_delay_of_packets() {
    let Some(lab) = Lab::new(1) else { return };
    let relay = Relay::start(&lab, Faults { seed: 21, lose: 1, delay: 10, repeat: 5, ..Faults::default() });
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 10 * SECOND);
    transfer(one.namespace(), &lab.campus, CAMPUS_V4.into(), TEN_MB, LIMIT);
    let [lost, delayed, repeated] = relay.counts();
    assert!(
        lost > 50 && delayed > 500 && repeated > 200,
        "{lost} lost, {delayed} delayed, {repeated} repeated"
    );
}
