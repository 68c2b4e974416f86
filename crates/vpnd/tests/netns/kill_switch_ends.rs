//! Behaviour: only users whom it concerns can end a kill switch; also on a file system that
//! can't be written, and by a user without root whose client has left it on. What a client leaves
//! is taken over, by the next client on whatever interface or by the keeper.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::client::{self, Client, cleanup};
use crate::client_service::{ANN, BOB, Machine};
use crate::gateway::{Gateway, Login, VPND, edit_toml, must};
use crate::healing::Form;
use crate::kill_switch::{Talk, capture, flush, gateway, in_clear, keeper, private_network, remote, rules};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, UPLINK, eventually};
use crate::names;
use crate::process::{self, Process, text};
use crate::relay::PORT;
use crate::traffic::ping_until;

const TIMEOUT: Duration = Duration::from_secs(20);
/// Time in which a keeper that puts it back would have done so.
const WHILE: Duration = Duration::from_secs(2);
/// Time for rules that another program has removed.
const PUT_BACK: Duration = Duration::from_secs(1);
const PERSISTENT: &str = "--kill-switch=persistent";

fn set_kill_switch(profile: &Path, mode: &str) {
    edit_toml(profile, |profile| {
        profile["tunnel"].as_table_mut().expect("a section").insert("kill_switch".to_owned(), mode.into());
    });
}

fn set_inbound(profile: &Path, ports: &[&str]) {
    edit_toml(profile, |profile| {
        let ports: Vec<toml::Value> = ports.iter().map(|port| (*port).into()).collect();
        let tunnel = profile["tunnel"].as_table_mut().expect("a section");
        tunnel.insert("kill_switch_inbound".to_owned(), ports.into());
    });
}

/// A client that was killed, and has left a persistent one.
fn left_by_a_client(lab: &Lab, login: &Login) {
    Client::connect_with(lab, 1, login, &[PERSISTENT]).kill();
    assert!(rules(lab).is_some());
}

/// The keeper, once it keeps.
fn keeping(lab: &Lab) -> Process {
    let mut keeper = keeper(lab);
    eventually("the keeper keeps", TIMEOUT, || {
        keeper.assert_running();
        flush(&lab.clients[0]);
        let began = Instant::now();
        while rules(lab).is_none() && began.elapsed() < PUT_BACK {
            thread::sleep(Duration::from_millis(10));
        }
        rules(lab)
    });
    keeper
}

#[test]
fn cleanup_removes_the_kill_switch_on_a_read_only_disk() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = gateway(&lab);
    gateway.start();
    let machine = &lab.clients[0];
    process::share_run(&lab, machine, Path::new("/"));
    left_by_a_client(&lab, &ann);
    let mut keeper = keeping(&lab);
    let mut command = process::command(&lab, machine, "sh");
    let read_only = "mount --bind \"$1\" \"$1\" && mount -o remount,ro,bind \"$1\" && exec \"$0\" cleanup --journal-dir \"$1\"";
    command.args(["-c", read_only, VPND]).arg(client::journal(&lab, 1));
    let output = process::run(command);
    assert!(!output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("off until this machine restarts"), "{}", text(&output));
    thread::sleep(WHILE);
    keeper.assert_running();
    assert!(rules(&lab).is_none(), "the keeper puts nothing back: {}", keeper.output());
    // The next client closes it as if there had been none, and the mark of the end is gone.
    left_by_a_client(&lab, &ann);
    flush(machine);
    eventually("the keeper keeps the new one", TIMEOUT, || rules(&lab));
    must(cleanup(&lab, 1));
    assert!(rules(&lab).is_none());
}

/// It has looked by then, and has seen a client that keeps it.
#[test]
fn the_keeper_takes_over_from_a_client_that_is_killed_before_it_has_put_it_back() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = gateway(&lab);
    gateway.start();
    let machine = &lab.clients[0];
    let mut client = Client::connect_with(&lab, 1, &ann, &[PERSISTENT]);
    let mut keeper = keeper(&lab);
    // It can't put anything back, and holds the switch.
    client.process().signal(Signal::STOP);
    flush(machine);
    thread::sleep(WHILE);
    keeper.assert_running();
    assert!(rules(&lab).is_none(), "a client is left to do it");
    client.kill();
    eventually("the keeper puts it back", 2 * WHILE, || rules(&lab));
    must(cleanup(&lab, 1));
}

/// `VPND_FLUSHES=20` flushes as often; times and packets in clear are printed.
#[test]
fn flushed_kill_switch_rules_are_restored_within_a_second() {
    let form = Form::of_environment("VPND_FLUSHES", 3);
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = gateway(&lab);
    gateway.start();
    let machine = &lab.clients[0];
    let _talk = Talk::start(machine);
    capture(&lab);
    let mut client = Client::connect_with(&lab, 1, &ann, &["--kill-switch"]);
    ping_until(machine, CAMPUS_V4.into(), TIMEOUT);
    let is_there = || {
        let list = || Command::new("nft").args(["list", "table", "inet", "vpndkillswitch"]).output();
        machine.within(|| list().expect("nft is there").status.success())
    };
    for _ in 0..form.times {
        in_clear(&lab);
        flush(machine);
        let began = Instant::now();
        while !is_there() {
            assert!(began.elapsed() < PUT_BACK, "{}", client.process().output());
        }
        let time = began.elapsed();
        thread::sleep(WHILE / 10);
        println!("back after {time:?}, {} packets in clear", in_clear(&lab));
    }
    client.interrupt();
}

#[test]
fn the_next_client_continues_the_kill_switch_on_another_interface() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = gateway(&lab);
    gateway.start();
    let mut words = client::arguments(&lab, 1, &ann);
    *words.last_mut().expect("there are words") = "vpn7".into();
    let mut command: Command = process::command(&lab, &lab.clients[0], &words[0]);
    command.args(&words[1..]).arg(PERSISTENT);
    let mut first = Process::start(&lab, "first", command);
    eventually("it is connected", TIMEOUT, || first.output().contains("connected").then_some(()));
    assert!(rules(&lab).is_some_and(|rules| rules.contains("vpn7")));
    first.kill();
    let mut next = Client::connect(&lab, 1, &ann);
    ping_until(next.namespace(), CAMPUS_V4.into(), TIMEOUT);
    assert!(rules(&lab).is_some_and(|rules| !rules.contains("vpn7")));
    next.interrupt();
    assert!(rules(&lab).is_none());
}

/// One that is on already may let the session pass that the new one would cut off.
#[test]
fn a_second_start_does_not_cut_off_the_users_session() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = gateway(&lab);
    gateway.start();
    private_network(&lab);
    let (_listener, here, _there) = remote(&lab, 2_222);
    let peer = here.peer_addr().expect("it is connected");
    Client::connect_with(&lab, 1, &ann, &[PERSISTENT, "--kill-switch-inbound", "2222"]).kill();
    let before = rules(&lab).expect("it is on");
    let mut command = client::command(&lab, 1, &ann, &[PERSISTENT]);
    command.env("SSH_CONNECTION", format!("{} {} 192.168.1.2 2222", peer.ip(), peer.port()));
    let (code, said) = client::ended(&lab, command);
    assert!(code == 3 && said.contains("a connection by which you or others work"), "{code}: {said}");
    assert_eq!(rules(&lab).expect("it is still on"), before);
    must(cleanup(&lab, 1));
}

/// A router would pass its questions on in clear.
#[test]
fn the_local_networks_name_server_is_not_asked() {
    const ROUTER: &str = "192.168.1.1";
    let Some(lab) = Lab::new(1) else { return };
    let machine = &lab.clients[0];
    let (_gateway, ann) = gateway(&lab);
    private_network(&lab);
    let server = names::name_server(&lab, &lab.net, ROUTER, &GATEWAY_V4.to_string());
    fs::write(process::etc(&lab, machine).join("resolv.conf"), format!("nameserver {ROUTER}\n"))
        .expect("it is ours");
    edit_toml(&ann.profile, |profile| {
        profile["server"]["addresses"] = crate::gateway::strings(&[&format!("{}:{PORT}", names::NAME)]);
    });
    let ask = |name: &str| {
        let mut command = process::command(&lab, machine, "timeout");
        command.args(["2", "getent", "ahosts", name]);
        process::run(command);
    };
    ask("before.example");
    assert!(server.output().contains("before.example"), "{}", server.output());
    let command = client::command(&lab, 1, &ann, &["--kill-switch", "--kill-switch-allow-local"]);
    let mut client = Process::start(&lab, "client1", command);
    eventually("the gateway's name is asked for", TIMEOUT, || {
        server.output().contains(names::NAME).then_some(())
    });
    ping_until(machine, ROUTER.parse().expect("an address"), TIMEOUT);
    ask("during.example");
    assert!(!server.output().contains("during.example"), "{}", server.output());
    client.signal(Signal::INT);
    assert!(client.wait(TIMEOUT).success(), "{}", client.output());
    ask("after.example");
    assert!(server.output().contains("after.example"), "{}", server.output());
}

#[test]
fn a_user_removes_only_the_kill_switch_of_her_own_client() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, login) = Gateway::for_ann(&lab);
    let machine = Machine::new(&lab, &login);
    let (wrong, right) = (machine.password(BOB, "wrong"), machine.password(ANN, "ann's password"));
    let down = |user| text(&machine.run(user, &["down"]));
    assert!(down(ANN).contains("nothing was connected"));

    set_kill_switch(&machine.profile(), "persistent");
    let output = machine.run(BOB, &["up", "--credentials", &wrong, "--login", "ann"]);
    let said = text(&output);
    assert!(output.status.code() == Some(3) && said.contains("'vpnd down' ends it"), "{said}");
    assert!(rules(&lab).is_some());
    assert!(down(ANN).contains("stays on") && rules(&lab).is_some(), "it is bob's");
    assert!(down(BOB).contains("the kill switch is off") && rules(&lab).is_none());
    assert!(down(BOB).contains("nothing was connected"));
    // By the profile's name, too.
    must_fail(&machine.run(BOB, &["up", "--credentials", &wrong, "--login", "ann"]));
    assert!(text(&machine.run(BOB, &["down", "work"])).contains("the kill switch is off"));

    // Root's: a user connects through it, and neither ends nor loosens it.
    set_kill_switch(&login.profile, "persistent");
    Client::connect(&lab, 1, &login).kill();
    must(client_cleanup_but_the_switch(&lab));
    for mode in ["off", "on"] {
        set_kill_switch(&machine.profile(), mode);
        let said = text(&must(machine.run(ANN, &["up", "--credentials", &right])));
        assert!(said.contains("goes on with the persistent kill switch"), "{mode}: {said}");
        ping_until(&lab.clients[0], CAMPUS_V4.into(), TIMEOUT);
        assert!(down(ANN).contains("stays on") && rules(&lab).is_some(), "{mode}");
    }
    assert!(text(&must(machine.run_as_root(&["down"]))).contains("the kill switch is off"));
    machine.is_clean();
}

/// A service that is stopped has its clients end in order; one that is killed can't.
#[test]
fn stopping_the_service_ends_kill_switches_unless_persistent() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, login) = Gateway::for_ann(&lab);
    let mut machine = Machine::new(&lab, &login);
    let password = machine.password(ANN, "ann's password");
    for (mode, signal, stays) in
        [("on", Signal::TERM, false), ("on", Signal::KILL, true), ("persistent", Signal::TERM, true)]
    {
        set_kill_switch(&machine.profile(), mode);
        must(machine.run(ANN, &["up", "--credentials", &password]));
        assert!(rules(&lab).is_some());
        machine.restart_service(signal);
        assert_eq!(rules(&lab).is_some(), stays, "{mode}, {signal:?}");
        must(machine.run(ANN, &["down"]));
        machine.is_clean();
    }
}

#[test]
fn a_connect_that_dies_ends_no_persistent_kill_switch() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, login) = Gateway::for_ann(&lab);
    let machine = Machine::new(&lab, &login);
    let password = machine.password(ANN, "ann's password");
    set_kill_switch(&machine.profile(), "persistent");
    drop(gateway);
    let mut up = Process::start(&lab, "up", machine.command(ANN, &["up", "--credentials", &password]));
    eventually("the network is closed", TIMEOUT, || rules(&lab));
    up.kill();
    machine.is_down();
    assert!(rules(&lab).is_some());
    assert!(text(&machine.run(ANN, &["down"])).contains("the kill switch is off") && rules(&lab).is_none());
}

/// The user's client goes on with what is not the user's.
#[test]
fn a_connect_that_dies_ends_no_kill_switch_of_root() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, login) = Gateway::for_ann(&lab);
    let machine = Machine::new(&lab, &login);
    let password = machine.password(ANN, "ann's password");
    Client::connect_with(&lab, 1, &login, &["--kill-switch"]).kill();
    must(client_cleanup_but_the_switch(&lab));
    drop(gateway);
    let mut up = Process::start(&lab, "up", machine.command(ANN, &["up", "--credentials", &password]));
    eventually("her client has it", TIMEOUT, || up.output().contains("goes on with").then_some(()));
    up.kill();
    machine.is_down();
    assert!(rules(&lab).is_some());
    assert!(text(&machine.run(ANN, &["down"])).contains("stays on") && rules(&lab).is_some());
    must(cleanup(&lab, 1));
    assert!(rules(&lab).is_none());
}

/// A stranger can open a connection to whatever listens on the machine; a user who is logged in
/// has more to lose.
#[test]
fn a_strangers_connection_keeps_no_user_from_connecting() {
    let Some(lab) = Lab::new(1) else { return };
    let run = process::share_run(&lab, &lab.clients[0], Path::new("/"));
    let (_gateway, login) = Gateway::for_ann(&lab);
    let machine = Machine::new(&lab, &login);
    set_kill_switch(&machine.profile(), "on");
    private_network(&lab);
    let (_listener, here, _there) = remote(&lab, 2_222);
    let peer = here.peer_addr().expect("it is connected");
    let password = machine.password(ANN, "ann's password");
    let words = ["up", "--credentials", &password];
    let refused = |command| {
        let output = process::run(command);
        let said = text(&output);
        assert!(
            output.status.code() == Some(3) && said.contains("a connection by which you or others"),
            "{said}"
        );
        assert!(said.contains("--kill-switch-inbound 2222") && rules(&lab).is_none(), "{said}");
    };
    let mut in_session = machine.command(ANN, &words);
    in_session.env("SSH_CONNECTION", format!("{} {} 192.168.1.2 2222", peer.ip(), peer.port()));
    refused(in_session);
    // An administrator's, of whom the user's command knows nothing.
    let sessions = run.join("systemd/sessions");
    fs::create_dir_all(&sessions).expect("the laboratory is ours");
    let session = format!("UID=0\nSTATE=active\nREMOTE=1\nREMOTE_HOST={}\n", peer.ip());
    fs::write(sessions.join("1"), session).expect("the laboratory is ours");
    refused(machine.command(ANN, &words));
    // Nor does root, from a terminal or a unit that knows of no session.
    let (code, said) = Client::refused(&lab, 1, &login, &["--kill-switch"]);
    assert!(code == 3 && said.contains("a connection by which you or others"), "{said}");
    assert!(rules(&lab).is_none());
    // Nor a second start that lets less pass than the first.
    set_inbound(&machine.profile(), &["2222"]);
    let wrong = machine.password(BOB, "wrong");
    let first = machine.run(BOB, &["up", "--credentials", &wrong, "--login", "ann"]);
    assert!(rules(&lab).is_some(), "{}", text(&first));
    set_inbound(&machine.profile(), &[]);
    let again = machine.run(BOB, &["up", "--credentials", &wrong, "--login", "ann"]);
    assert!(text(&again).contains("a connection by which you or others"), "{}", text(&again));
    assert!(rules(&lab).is_some_and(|rules| rules.contains("2222")));
    must(machine.run(BOB, &["down"]));
    fs::remove_dir_all(&sessions).expect("the laboratory is ours");

    must(machine.run(ANN, &words));
    ping_until(&lab.clients[0], CAMPUS_V4.into(), TIMEOUT);
    assert!(rules(&lab).is_some());
    must(machine.run(ANN, &["down"]));
    machine.is_clean();
}

#[test]
fn the_keeper_lets_the_local_network_pass_by_choice_and_follows_it() {
    const LOCAL: &str = "192.168.1.0/24";
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = gateway(&lab);
    gateway.start();
    let machine = &lab.clients[0];
    private_network(&lab);
    Client::connect_with(&lab, 1, &ann, &[PERSISTENT, "--kill-switch-allow-local"]).kill();
    let mut keeper = keeping(&lab);
    let passes = |passes: bool| {
        let event =
            if passes { "the local network passes" } else { "it is closed where the machine is no more" };
        eventually(event, TIMEOUT, || (rules(&lab)?.contains(LOCAL) == passes).then_some(()));
    };
    passes(true);
    ping_until(machine, "192.168.1.1".parse().expect("an address"), TIMEOUT);
    machine.ip_batch(&format!("addr del 192.168.1.2/24 dev {UPLINK}\n"));
    passes(false);
    machine.ip_batch(&format!("addr add 192.168.1.2/24 dev {UPLINK}\n"));
    passes(true);
    // Also where a client has kept it meanwhile and ended without a change of the rules.
    Client::connect_with(&lab, 1, &ann, &[]).kill();
    machine.ip_batch(&format!("addr del 192.168.1.2/24 dev {UPLINK}\n"));
    passes(false);
    machine.ip_batch(&format!("addr add 192.168.1.2/24 dev {UPLINK}\n"));
    passes(true);
    keeper.assert_running();
    assert!(!keeper.output().contains("another program"), "{}", keeper.output());
    must(cleanup(&lab, 1));
    assert!(rules(&lab).is_none());
    // One without that choice lets none pass.
    left_by_a_client(&lab, &ann);
    flush(machine);
    eventually("the keeper keeps the new one", TIMEOUT, || rules(&lab));
    assert!(rules(&lab).is_some_and(|rules| !rules.contains(LOCAL)));
    must(cleanup(&lab, 1));
}

#[test]
fn where_the_record_is_damaged_the_same_ports_stay_open() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = gateway(&lab);
    gateway.start();
    Client::connect_with(&lab, 1, &ann, &[PERSISTENT, "--kill-switch-inbound", "2222"]).kill();
    let entries = fs::read_dir(client::journal(&lab, 1)).expect("it is there").flatten();
    let is_record = |name: &str| name.starts_with("killswitch-") && !name.ends_with("-copy");
    let records: Vec<_> = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_record)).collect();
    assert_eq!(records.len(), 1, "{records:?}");
    fs::write(records[0].path(), "nonsense").expect("the laboratory is ours");
    flush(&lab.clients[0]);
    let mut keeper = keeper(&lab);
    eventually("the keeper puts it back", TIMEOUT, || rules(&lab));
    assert!(rules(&lab).is_some_and(|rules| rules.contains("tcp dport 2222 accept")), "{:?}", rules(&lab));
    keeper.assert_running();
    // Both: nothing passes, and a person ends it.
    keeper.kill();
    for entry in fs::read_dir(client::journal(&lab, 1)).expect("it is there").flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with("killswitch-")) {
            fs::write(entry.path(), "nonsense").expect("the laboratory is ours");
        }
    }
    flush(&lab.clients[0]);
    let _keeper = self::keeper(&lab);
    eventually("the keeper puts it back", TIMEOUT, || rules(&lab));
    assert!(rules(&lab).is_some_and(|rules| !rules.contains("2222")), "{:?}", rules(&lab));
    must(cleanup(&lab, 1));
    assert!(rules(&lab).is_none());
}

fn must_fail(output: &std::process::Output) {
    assert!(!output.status.success(), "{}", text(output));
}

fn client_cleanup_but_the_switch(lab: &Lab) -> std::process::Output {
    let mut command = process::command(lab, &lab.clients[0], VPND);
    command.args(["cleanup", "--keep-kill-switch", "--journal-dir"]).arg(client::journal(lab, 1));
    process::run(command)
}
