//! Behaviour: what was made by released versions still works: a backup is restored, and a client
//! with its profile logs in at that gateway.
//!
//! `kept/README.md` says how the files were made. INVARIANT: they never change; another release
//! adds its own.

use std::fs;
use std::time::Duration;

use crate::client::Client;
use crate::gateway::{Gateway, Login, must, write_secret};
use crate::lab::{CAMPUS_V4, Lab};
use crate::process;
use crate::traffic::ping_until;

const BACKUP_0_1: &[u8] = include_bytes!("kept/0.1.backup");
const PROFILE_0_1: &str = include_str!("kept/0.1.toml");

#[test]
fn a_backup_and_a_client_profile_of_0_1_make_a_vpn() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::unmade(&lab);
    let (backup, passphrase) = (lab.path("backup"), lab.path("passphrase"));
    fs::write(&backup, BACKUP_0_1).expect("the laboratory's directory is writable");
    write_secret(&passphrase, "four random words\n");
    let mut restore = gateway.vpnd(&["restore"]);
    restore.arg(&backup).arg("--passphrase-file").arg(&passphrase).arg("--config").arg(gateway.config());
    let restored = must(process::run(restore));
    assert!(process::text(&restored).contains("with 1 users"), "{restored:?}");
    gateway.configure("server.journal_dir", gateway.journal().to_str().expect("a temporary path is text"));
    // Its certificate may have expired since; its authority lasts longer.
    let mut renew = gateway.vpnd(&["renew", "--config"]);
    renew.arg(gateway.config());
    must(process::run(renew));
    gateway.start();

    let ann = Login { profile: lab.path("ann.toml"), credentials: lab.path("ann.credentials") };
    write_secret(&ann.profile, PROFILE_0_1);
    write_secret(&ann.credentials, "ann's password\n");
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), Duration::from_secs(5));
    assert_eq!(gateway.sessions()[0]["profile"], "staff", "with the access profile of her group");
    client.interrupt();
}
