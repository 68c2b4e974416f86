//! Behaviour: a backup of a gateway that runs brings it back on another machine, as its clients
//! know it.

use std::process::Command;
use std::time::Duration;

use crate::client::Client;
use crate::gateway::{Gateway, must};
use crate::lab::{CAMPUS_V4, Lab};
use crate::process;
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);

fn transfer(gateway: &Gateway<'_>, lab: &Lab, words: &[&str]) -> Command {
    let mut command = gateway.vpnd(&words[..1]);
    std::fs::write(lab.path("passphrase"), "four random words\n").expect("a file is written");
    command
        .arg(lab.path("backup"))
        .arg("--passphrase-file")
        .arg(lab.path("passphrase"))
        .arg("--config")
        .arg(gateway.config())
        .args(&words[1..]);
    command
}

#[test]
fn a_restored_gateway_is_accepted_by_its_clients() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = Gateway::for_ann(&lab);
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let session = gateway.sessions()[0].clone();
    must(process::run(transfer(&gateway, &lab, &["backup"])));
    assert!(ping(client.namespace(), CAMPUS_V4.into(), 56, 2 * SECOND), "its client goes on meanwhile");
    // Not under a gateway that runs, and not for the asking.
    let refused = process::run(transfer(&gateway, &lab, &["restore", "--force"]));
    assert!(!refused.status.success() && process::text(&refused).contains("stop it first"), "{refused:?}");
    // Again for a backup whose configuration has another admin socket.
    let configuration = std::fs::read_to_string(gateway.config()).expect("it is there");
    gateway.configure("admin.socket", "other.sock");
    std::fs::rename(lab.path("backup"), lab.path("kept")).expect("it is ours");
    must(process::run(transfer(&gateway, &lab, &["backup"])));
    std::fs::write(gateway.config(), configuration).expect("it is ours");
    let refused = process::run(transfer(&gateway, &lab, &["restore", "--force"]));
    assert!(!refused.status.success() && process::text(&refused).contains("stop it first"), "{refused:?}");
    std::fs::rename(lab.path("kept"), lab.path("backup")).expect("it is ours");
    gateway.terminate();
    let refused = process::run(transfer(&gateway, &lab, &["restore"]));
    assert!(!refused.status.success() && process::text(&refused).contains("--force"), "{refused:?}");

    // The machine is lost: nothing is left but the file.
    gateway.tear_down();
    let directory = gateway.config().parent().expect("it lies in one").to_owned();
    std::fs::remove_dir_all(&directory).expect("it is ours");
    let restored = must(process::run(transfer(&gateway, &lab, &["restore"])));
    assert!(process::text(&restored).contains("with 1 users"), "{restored:?}");
    gateway.start();
    // The client, which still runs, logs in again with the authority that it has pinned, and gets
    // its address.
    ping_until(client.namespace(), CAMPUS_V4.into(), 60 * SECOND);
    let now = gateway.sessions()[0].clone();
    assert_eq!(now["inner_v4"], session["inner_v4"]);
    assert_ne!(now["id"], session["id"], "a session is as old as the backup, and doesn't come back");
    client.interrupt();
}
