//! Behaviour: after a restart of the machine a persistent kill switch is in force before there is a
//! network, by its record alone, and until a person ends it.
//!
//! The machine is client 1's namespace, with a separate process 1 and number of a boot. Its power
//! is cut: every process is killed, and the kernel has neither rules nor routes afterwards.

use std::ffi::OsString;
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::client;
use crate::kill_switch::{Talk, capture, closed, flush, gateway, keeper_words, opened, rules};
use crate::lab::{CAMPUS_V4, Lab, UPLINK, eventually};
use crate::process::{self, Process};
use crate::traffic::ping_until;

const TIMEOUT: Duration = Duration::from_secs(20);

/// A program as process 1 of the machine's boot of this number.
fn of_boot(lab: &Lab, boot: &str, words: &[OsString]) -> Process {
    let number = lab.path(format!("boot-{boot}"));
    fs::write(&number, format!("{boot}\n")).expect("the laboratory is ours");
    let mut command = process::command(lab, &lab.clients[0], "unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c"]);
    command.arg("mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"").arg(number).args(words);
    Process::start(lab, "of-boot", command)
}

/// Counts what arrives in clear from now on, without waiting for a client.
fn count(lab: &Lab) {
    capture(lab);
    lab.net.nft(&format!("add element inet capture begun {{ \"{}\" }}\n", Lab::port(1)));
}

fn switch_on(lab: &Lab) {
    lab.clients[0].ip_batch(&format!(
        "link set {UPLINK} up\n\
         addr add fd18:1::2/64 dev {UPLINK} nodad\n\
         route add default via 198.18.1.1\n\
         route add default via fd18:1::1\n"
    ));
}

#[test]
fn a_persistent_kill_switch_is_in_force_before_the_network() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = gateway(&lab);
    gateway.start();
    let machine = &lab.clients[0];
    let connect = client::arguments(&lab, 1, &ann);
    let persistent = [connect.as_slice(), &["--kill-switch=persistent".into()]].concat();
    let mut before = of_boot(&lab, "1", &persistent);
    ping_until(machine, CAMPUS_V4.into(), TIMEOUT);
    before.kill();
    flush(machine);
    machine.ip_batch(&format!("link set {UPLINK} down\n"));
    assert!(rules(&lab).is_none());

    count(&lab);
    let _talk = Talk::start(machine);
    let mut keeper = of_boot(&lab, "2", &keeper_words(&lab));
    eventually("it is in force", TIMEOUT, || rules(&lab));
    switch_on(&lab);
    closed(&lab, "once there is a network");
    keeper.assert_running();
    // A client of this boot goes on with it, and a person ends it for good.
    let mut client = of_boot(&lab, "2", &connect);
    ping_until(machine, CAMPUS_V4.into(), TIMEOUT);
    closed(&lab, "with a client");
    let [inner] = client.children()[..] else { panic!("one process: {:?}", client.children()) };
    kill_process(Pid::from_raw(inner.cast_signed()).expect("a number"), Signal::INT).expect("it runs");
    let status = client.wait(TIMEOUT);
    assert!(status.success(), "{status}: {}", client.output());
    opened(&lab, "a person ends it");
    keeper.assert_running();
    assert!(rules(&lab).is_none(), "{}", keeper.output());
    keeper.kill();
    let mut keeper = of_boot(&lab, "3", &keeper_words(&lab));
    opened(&lab, "nor is it back after the next restart");
    keeper.assert_running();
    assert!(rules(&lab).is_none(), "{}", keeper.output());
}

/// One that is on, and not persistent, ends with its boot.
#[test]
fn a_kill_switch_that_is_not_persistent_ends_with_its_boot() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = gateway(&lab);
    gateway.start();
    let connect = client::arguments(&lab, 1, &ann);
    let mut before = of_boot(&lab, "1", &[connect.as_slice(), &["--kill-switch".into()]].concat());
    ping_until(&lab.clients[0], CAMPUS_V4.into(), TIMEOUT);
    before.kill();
    flush(&lab.clients[0]);
    let mut keeper = of_boot(&lab, "2", &keeper_words(&lab));
    let _talk = Talk::start(&lab.clients[0]);
    count(&lab);
    opened(&lab, "the network is as it was");
    keeper.assert_running();
    assert!(rules(&lab).is_none(), "{}", keeper.output());
}
