//! Behaviour: the gateway's privileged process opens files in the state directory, in which the
//! auth process writes. An attacker who has taken that over puts other things in their place: the
//! next start follows none of them, and says which it was.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::gateway::Gateway;
use crate::lab::Lab;
use crate::process::Process;

const LIMIT: Duration = Duration::from_secs(20);

/// Replaces a file by a trap; with a secret of root's that it could lead to.
type Trap = (&'static str, fn(&Path, &Path));

const TRAPS: [Trap; 5] = [
    ("symbolic link", |at, secret| symlink(secret, at).unwrap()),
    ("symbolic link", |at, secret| symlink(secret.with_extension("new"), at).unwrap()),
    ("symbolic link", |at, _| symlink("/dev/zero", at).unwrap()),
    ("second name", |at, secret| fs::hard_link(secret, at).unwrap()),
    ("no regular file", |at, _| {
        mknodat(CWD, at, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    }),
];

#[test]
fn what_the_auth_process_puts_in_the_place_of_privileged_files_is_refused() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.add_user("ann");
    gateway.start();
    gateway.terminate();
    let secret = lab.path("secret");
    // It has the length of QUIC's secret, so that its length gives nothing away.
    fs::write(&secret, [0x5A; 32]).unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    for name in ["state/quic.secret", "state/admin.sock.lock"] {
        let (path, kept) = (gateway.file(name), gateway.file(name).with_extension("kept"));
        fs::rename(&path, &kept).unwrap();
        for (hint, trap) in TRAPS {
            trap(&path, &secret);
            let mut refused = Process::start(&lab, "refused", gateway.server(&[]));
            let status = refused.wait(LIMIT);
            let said = refused.output();
            assert!(!status.success() && said.contains(hint), "{name}, wanted {hint:?}: {said}");
            assert!(said.contains(name.rsplit('/').next().unwrap()), "it names the file: {said}");
            assert!(!secret.with_extension("new").exists(), "{name}: a file was made elsewhere");
            fs::remove_file(&path).unwrap();
        }
        fs::rename(&kept, &path).unwrap();
    }
    assert_eq!(fs::read(&secret).unwrap(), [0x5A; 32]);
    gateway.start();
}
