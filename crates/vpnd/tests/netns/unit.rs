//! Behaviour: the client's unit under the real systemd. What it forbids is forbidden, and the
//! client does its work.
//!
//! A systemd boots in its own namespaces, over a copy of the machine's tree that is gone
//! afterwards; nothing runs there but the unit as it stands in `config`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::client::TUN;
use crate::full::{check_sources, looks_back_with_marks};
use crate::gateway::{Gateway, Login, copy_program, edit_toml, write_secret};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, Lab, eventually};
use crate::process::Process;
use crate::traffic::ping_until;

const SECOND: Duration = Duration::from_secs(1);
const SYSTEMD: &str = "/lib/systemd/systemd";
/// The one setting of the kernel that the unit lets be written.
const SETTING: &str = " -/proc/sys/net/ipv4/conf/all/src_valid_mark";
const UNIT: &str = "etc/systemd/system/vpnd-connect@.service";

/// The tree of the machine with our files over it, and a systemd in it that knows of one service.
const BOOT: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs tree "$0/boot"
mkdir "$0/boot/new" "$0/boot/work" "$0/boot/root"
mount -t overlay tree -o "lowerdir=/,upperdir=$0/boot/new,workdir=$0/boot/work" "$0/boot/root"
cd "$0/boot/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup sys/fs/cgroup
mount --rbind /dev dev
mount -t tmpfs run run
mount -t tmpfs tmp tmp
rm -rf etc/systemd/system
cp -r "$0/files/." .
mkdir log
mount --bind "$0/log" log
mount --make-rshared "$0/boot/root"
container=test exec chroot . /lib/systemd/systemd --unit=vpnd-connect@work.service --log-target=null --show-status=0
"#;

/// Starts without the machine's other services, and its output goes where the test reads it.
const BESIDE: &str = "[Unit]\nDefaultDependencies=no\nConflicts=shutdown.target\nBefore=shutdown.target\n[Service]\nStandardOutput=append:/log/client\n\
                      StandardError=append:/log/client\n";

/// The unit's text.
fn unit() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/vpnd-connect@.service");
    fs::read_to_string(path).expect("it is part of the tree")
}

fn put(lab: &Lab, path: &str, contents: impl AsRef<[u8]>) -> PathBuf {
    let path = lab.path("files").join(path);
    fs::create_dir_all(path.parent().expect("it has a directory")).expect("the laboratory is ours");
    fs::write(&path, contents).expect("the laboratory is ours");
    path
}

/// Boots a systemd on the machine of client 1 that has this unit. `None`, and a loud word, if there
/// is none; a failure instead where `CI` is set.
fn boot(lab: &Lab, unit: &str, login: &Login) -> Option<Process> {
    if !Path::new(SYSTEMD).exists() {
        let word = "SKIPPED: there is no systemd here\n";
        assert!(std::env::var_os("CI").is_none(), "{word}");
        std::io::stderr().write_all(word.as_bytes()).expect("standard error is open");
        return None;
    }
    for name in ["boot", "log"] {
        fs::create_dir_all(lab.path(name)).expect("the laboratory is ours");
    }
    put(lab, UNIT, unit);
    put(lab, &format!("{UNIT}.d/beside.conf"), BESIDE);
    let program = put(lab, "usr/local/bin/vpnd", "");
    copy_program(&program);
    for (name, from) in [("work.toml", &login.profile), ("work.password", &login.credentials)] {
        let text = fs::read_to_string(from).expect("it was just written");
        write_secret(&put(lab, &format!("etc/vpnd/{name}"), ""), &text);
    }
    put(lab, "etc/resolv.conf", "nameserver 192.0.2.53\n");
    let mut command = Command::new("ip");
    command.args(["netns", "exec", lab.clients[0].name(), "unshare"]);
    command.args([
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--uts",
        "--ipc",
        "--cgroup",
        "sh",
        "-c",
        BOOT,
    ]);
    command.arg(lab.path("")).env_remove("RUST_LOG").env("NO_COLOR", "1");
    Some(Process::start(lab, "systemd", command))
}

/// The client's output.
fn log(lab: &Lab) -> String {
    fs::read_to_string(lab.path("log/client")).unwrap_or_default()
}

/// Has it shut down as a container's keeper does, units in order.
fn shut_down(mut systemd: Process) {
    for child in systemd.children() {
        let halted = Command::new("kill").args(["-s", "RTMIN+3", &child.to_string()]).status();
        assert!(halted.expect("there is a program for it").success());
    }
    systemd.wait(30 * SECOND);
}

#[test]
fn a_full_tunnel_works_under_systemd_where_sources_are_checked() {
    let Some(lab) = Lab::new(1) else { return };
    let machine = &lab.clients[0];
    check_sources(machine, "1");
    let (gateway, ann) = Gateway::for_ann(&lab);
    edit_toml(&ann.profile, |profile| profile["tunnel"]["routes"] = "all".into());
    let connect = |unit: &str| {
        let mut systemd = boot(&lab, unit, &ann)?;
        eventually("the client is connected", 30 * SECOND, || {
            systemd.assert_running();
            (log(&lab).contains("connected") && machine.ip(&["link"]).contains(TUN)).then_some(())
        });
        Some(systemd)
    };
    let Some(systemd) = connect(&unit()) else { return };
    ping_until(machine, CAMPUS_V4.into(), 10 * SECOND);
    ping_until(machine, CAMPUS_V6.into(), 10 * SECOND);
    assert_eq!(looks_back_with_marks(machine), "1", "{}", log(&lab));
    assert!(!log(&lab).contains("src_valid_mark"), "{}", log(&lab));
    assert_eq!(gateway.sessions().len(), 1);
    shut_down(systemd);
    assert_eq!(looks_back_with_marks(machine), "0", "{}", log(&lab));
    assert!(!machine.ip(&["link"]).contains(TUN), "{}", log(&lab));

    // Kernel settings are read-only in the unit, but for the one that it names.
    fs::remove_file(lab.path("log/client")).expect("the client has printed something");
    let Some(systemd) = connect(&unit().replace(SETTING, "")) else { return };
    eventually("the client says what it can't set", 10 * SECOND, || {
        log(&lab).contains("src_valid_mark").then_some(())
    });
    assert_eq!(looks_back_with_marks(machine), "0", "{}", log(&lab));
    shut_down(systemd);
}
