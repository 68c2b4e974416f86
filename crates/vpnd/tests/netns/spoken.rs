//! Output for a person who runs a client without options: sentences, and few of them.

use std::time::Duration;

use crate::client::{self, Client};
use crate::gateway::{Gateway, write_secret};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::process::Process;
use crate::traffic::ping_until;

const TIMEOUT: Duration = Duration::from_secs(20);

#[test]
fn the_log_of_a_connect_has_three_lines() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let process = Process::start(&lab, "plain", client::plain_command(&lab, 1, &ann));
    eventually("it is connected", TIMEOUT, || process.output().contains("vpnd: connected").then_some(()));
    ping_until(&lab.clients[0], CAMPUS_V4.into(), TIMEOUT);
    let output = process.output();
    let lines: Vec<_> = output.lines().collect();
    let beginnings = ["vpnd: connecting to ", "vpnd: the tunnel is set up (ipv4 10.", "vpnd: connected"];
    assert_eq!(lines.len(), beginnings.len(), "{output}");
    for (line, beginning) in lines.iter().zip(beginnings) {
        assert!(line.starts_with(beginning), "{output}");
    }
    assert!(lines[0].ends_with(" as ann"), "{output}");
}

#[test]
fn a_refusal_is_printed_as_one_sentence() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    write_secret(&ann.credentials, "wrong");
    let (status, output) = client::ended(&lab, client::plain_command(&lab, 1, &ann));
    assert_eq!(status, 3, "{output}");
    let last = output.lines().last().unwrap_or_default();
    assert!(last.starts_with("vpnd: ") && last.contains("check user name and password"), "{output}");
    assert!(!output.contains("asks for a one-time code"), "nobody has any here:\n{output}");
    assert!(
        !output.contains("vpnd::") && !output.contains("Os {") && output.lines().count() <= 3,
        "{output}"
    );
    // The owner of the interface's name is not known, but the option is.
    lab.clients[0].ip(&["tuntap", "add", client::TUN, "mode", "tun"]);
    let (_, output) = Client::refused(&lab, 1, &ann, &[]);
    assert!(output.contains("--tun NAME"), "{output}");
}
