//! Behaviour: a kill switch that the gateway requires is on before the tunnel carries anything, and
//! what the machine's own profile says of one goes before that.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::client::{self, Client};
use crate::gateway::{VPND, edit_toml, must};
use crate::kill_switch::{Talk, capture, closed, gateway, in_clear, opened, private_network, remote, rules};
use crate::lab::{Lab, eventually};
use crate::process::{self, Process};

#[test]
fn a_required_kill_switch_is_on_unless_the_profile_forbids_it() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = gateway(&lab);
    gateway.configure("push.kill_switch", "persistent");
    gateway.start();
    let machine = &lab.clients[0];
    let run = process::share_run(&lab, machine, Path::new("/"));
    let shown = || fs::read_dir(run.join("vpnd-kill-switch")).map_or(0, Iterator::count);
    private_network(&lab);

    // A gateway cuts no session off.
    let (listener, here, there) = remote(&lab, 2_222);
    let peer = here.peer_addr().expect("it is connected");
    let mut command = client::command(&lab, 1, &ann, &[]);
    command.env("SSH_CONNECTION", format!("{} {} 192.168.1.2 2222", peer.ip(), peer.port()));
    let (code, said) = client::ended(&lab, command);
    assert!(
        code == 3 && said.contains("requires a kill switch") && said.contains("by which you"),
        "{code}: {said}"
    );
    assert!(rules(&lab).is_none() && shown() == 0);
    drop((listener, here, there));

    let _talk = Talk::start(machine);
    capture(&lab);
    let mut client = Client::connect(&lab, 1, &ann);
    assert!(rules(&lab).is_some());
    in_clear(&lab);
    closed(&lab, "from the first connection on");
    let mut status = process::command(&lab, machine, VPND);
    status.arg("status");
    let text = process::text(&process::run(status));
    assert!(text.contains("persistent kill switch on since 20") && text.contains(" requires"), "{text}");
    client.kill();
    closed(&lab, "after the client was killed");

    edit_toml(&ann.profile, |profile| {
        profile["tunnel"].as_table_mut().expect("a section").insert("kill_switch".to_owned(), "off".into());
    });
    let mut client = Client::connect(&lab, 1, &ann);
    let said = client.process().output();
    assert!(said.contains("the gateway requires a kill switch, which this machine's profile"), "{said}");
    assert!(rules(&lab).is_none());
    client.interrupt();
    opened(&lab, "the machine's own word counts");
}

#[test]
fn a_requirement_that_would_cut_off_a_session_waits_for_the_user() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = gateway(&lab);
    gateway.start();
    private_network(&lab);
    let (_listener, here, _there) = remote(&lab, 2_222);
    let peer = here.peer_addr().expect("it is connected");
    let mut command = client::command(&lab, 1, &ann, &[]);
    command.env("SSH_CONNECTION", format!("{} {} 192.168.1.2 2222", peer.ip(), peer.port()));
    let mut client = Process::start(&lab, "client1", command);
    let mut logs = |line: &str| {
        eventually(line, Duration::from_secs(20), || {
            client.assert_running();
            client.output().contains(line).then_some(())
        });
    };
    logs(": connected");
    gateway.configure("push.kill_switch", "persistent");
    must(gateway.ask(&["reload"]));
    logs("they are not tried again before the client's next start: the gateway requires a kill switch");
    assert!(rules(&lab).is_none());
}
