//! Behaviour: a machine is connected by its certificate alone while no user is; a user's tunnel
//! takes its place and leaves it again, and a kill switch of the machine lets nothing out between
//! the two. Logins that come to nothing do not keep it down. A revoked certificate is out.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::access_profiles;
use crate::client::TUN;
use crate::client_service::{ANN, BOB, Machine, refused};
use crate::gateway::{Gateway, Login, edit_toml, must};
use crate::kill_switch::{Talk, capture, closed, rules};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::process::{self, Process, text};
use crate::traffic::ping_until;

const TIMEOUT: Duration = Duration::from_secs(40);
const PROFILES: &str = "[[profile]]\nname = \"machines\"\ngroups = [\"machines\"]\nmachines = true\n\
                        [[profile]]\nname = \"people\"\n";

/// The only session is of this user.
fn is_connected(gateway: &Gateway<'_>, user: &str) {
    eventually(&format!("{user} is connected"), TIMEOUT, || {
        let users: Vec<_> = gateway.sessions().iter().map(|session| session["user"].clone()).collect();
        (users == [user]).then_some(())
    });
}

/// A gateway that lets machines in, with the user ann, and the profile of the machine `kiosk`.
fn gateway_and_machine(lab: &Lab) -> (Gateway<'_>, Login, PathBuf) {
    let gateway = Gateway::init(lab);
    access_profiles::configure(&gateway, PROFILES);
    let (ann, kiosk) = (gateway.add_user("ann"), lab.path("kiosk.toml"));
    let mut add = gateway.user(&["add", "kiosk", "--machine", "--group", "machines"]);
    add.arg("--profile-out").arg(&kiosk);
    must(process::run(add));
    (gateway, ann, kiosk)
}

fn close_by(profile: &Path) {
    edit_toml(profile, |profile| {
        profile["tunnel"].as_table_mut().unwrap().insert("kill_switch".to_owned(), "on".into());
    });
}

#[test]
fn a_machine_is_connected_while_no_user_is() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann, kiosk) = gateway_and_machine(&lab);
    close_by(&kiosk);
    gateway.start();
    let mut machine = Machine::new(&lab, &ann);
    capture(&lab);
    must(machine.run_as_root(&["import", kiosk.to_str().unwrap()]));
    is_connected(&gateway, "kiosk");
    let _talk = Talk::start(machine.place());
    // The machine starts again.
    machine.restart_service(Signal::KILL);
    is_connected(&gateway, "kiosk");
    ping_until(machine.place(), CAMPUS_V4.into(), TIMEOUT);
    closed(&lab, "the machine's kill switch is on, over a killed service too");

    let shown = machine.tunnels(ANN);
    assert!(shown.len() == 1 && shown[0]["machine"] == true, "{shown:?}");
    assert_eq!((&shown[0]["profile"], &shown[0]["details"]["interface"]), (&"kiosk".into(), &TUN.into()));
    let listed = text(&must(machine.run(ANN, &["list"])));
    assert!(listed.contains("kiosk (this machine's own) (up): ") && listed.contains("work: "), "{listed}");
    refused(&machine.run(ANN, &["up", "kiosk"]), "is for this machine itself");
    refused(&machine.run(ANN, &["down", "kiosk"]), "is this machine's own tunnel");

    machine.up();
    is_connected(&gateway, "ann");
    let shown = machine.tunnels(ANN);
    assert!(shown.len() == 1 && shown[0]["machine"] == false, "{shown:?}");
    assert_eq!(shown[0]["details"]["interface"], TUN);
    closed(&lab, "the user's tunnel has taken its place");
    must(machine.run(ANN, &["down"]));
    is_connected(&gateway, "kiosk");
    closed(&lab, "the machine's tunnel is back");
    let wrong = machine.password(ANN, "wrong");
    assert!(!machine.run(ANN, &["up", "--credentials", &wrong]).status.success());
    is_connected(&gateway, "kiosk");
    closed(&lab, "nor lets a failed login anything out");

    // Root ends it, and lets it come back.
    must(machine.run_as_root(&["down", "kiosk"]));
    assert!(rules(&lab).is_none(), "a person has ended it");
    eventually("its session has ended", TIMEOUT, || gateway.sessions().is_empty().then_some(()));
    must(machine.run_as_root(&["up", "kiosk"]));
    is_connected(&gateway, "kiosk");
    let mut revoke = gateway.vpnd(&["revoke", "kiosk", "--config"]);
    revoke.arg(gateway.config());
    must(process::run(revoke));
    let since = Instant::now();
    eventually("the revoked machine is out", TIMEOUT, || gateway.sessions().is_empty().then_some(()));
    eprintln!("the session of a revoked machine has ended after {:?}", since.elapsed());
    eventually("its next login is refused", TIMEOUT, || {
        let log = text(&machine.run_as_root(&["log", "kiosk"]));
        log.contains("the login was refused").then_some(())
    });
    assert!(gateway.sessions().is_empty());

    // Root ends it in the pause before another attempt, too.
    eventually("its client has ended", TIMEOUT, || machine.tunnels(BOB).is_empty().then_some(()));
    let said = text(&must(machine.run_as_root(&["down", "kiosk"])));
    assert!(said.contains("stays down until `vpnd up kiosk`"), "{said}");
    assert!(rules(&lab).is_none(), "a person has ended it");
}

/// The gateway accepts this many logins of machines and users.
fn logins(gateway: &Gateway<'_>) -> u64 {
    gateway.status()["counters"]["logins"]["accepted"].as_u64().unwrap()
}

#[test]
fn a_login_keeps_the_machines_tunnel_down_once_its_password_is_typed_and_half_of_the_time_at_most() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann, kiosk) = gateway_and_machine(&lab);
    gateway.start();
    let machine = Machine::new(&lab, &ann);
    must(machine.run_as_root(&["import", kiosk.to_str().unwrap()]));
    is_connected(&gateway, "kiosk");
    let [client] = machine.clients()[..] else { panic!("one client: {:?}", machine.clients()) };
    let command = machine.at_terminal(ANN, &["up", "work"]);
    let (mut up, mut keyboard) = Process::start_at_terminal(&lab, "terminal", command);
    eventually("the password is asked", TIMEOUT, || {
        up.output().contains("Password of ann at ").then_some(())
    });
    ping_until(machine.place(), CAMPUS_V4.into(), TIMEOUT);
    is_connected(&gateway, "kiosk");
    // Nor does an open question keep it from coming back.
    let before = logins(&gateway);
    kill_process(Pid::from_raw(client.cast_signed()).unwrap(), Signal::KILL).unwrap();
    eventually("the machine is connected again", TIMEOUT, || (logins(&gateway) > before).then_some(()));
    ping_until(machine.place(), CAMPUS_V4.into(), TIMEOUT);
    up.assert_running();

    keyboard.write_all(b"wrong\n").unwrap();
    let status = up.wait(TIMEOUT);
    assert!(!status.success() && up.output().contains("check user name and password"), "{}", up.output());
    let right = machine.password(ANN, "ann's password");
    let connect = || machine.run(ANN, &["up", "work", "--credentials", &right]);
    refused(&connect(), "has kept this machine's own tunnel down");
    is_connected(&gateway, "kiosk");
    eventually("ann connects after a while", TIMEOUT, || connect().status.success().then_some(()));
    is_connected(&gateway, "ann");
    must(machine.run(ANN, &["down"]));
    eventually("and again, for her login has led to a tunnel", TIMEOUT, || {
        let again = connect();
        assert!(!text(&again).contains("kept this machine's own tunnel down"), "{}", text(&again));
        again.status.success().then_some(())
    });
    is_connected(&gateway, "ann");
}

#[test]
fn a_user_ends_the_kill_switch_that_the_machine_kept() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann, kiosk) = gateway_and_machine(&lab);
    gateway.start();
    let machine = Machine::new(&lab, &ann);
    close_by(&machine.profile());
    must(machine.run_as_root(&["import", kiosk.to_str().unwrap()]));
    is_connected(&gateway, "kiosk");
    let wrong = machine.password(ANN, "wrong");
    assert!(!machine.run(ANN, &["up", "--credentials", &wrong]).status.success());
    is_connected(&gateway, "kiosk");
    assert!(rules(&lab).is_some(), "it is ann's");
    let down = |user| text(&machine.run(user, &["down"]));
    assert!(down(BOB).contains("nothing was connected") && rules(&lab).is_some());
    let said = down(ANN);
    assert!(said.contains("the kill switch is off") && rules(&lab).is_none(), "{said}");
    is_connected(&gateway, "kiosk");
    assert!(rules(&lab).is_none(), "the machine's profile asks for none");
}
