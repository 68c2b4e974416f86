//! Behaviour: what cannot work is refused before anything is changed, with a message that says what
//! and what to do.

use std::fs::{self, Permissions};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use crate::client;
use crate::gateway::{Gateway, VPND, copy_program, must};
use crate::lab::Lab;
use crate::process::{self, Process};

const LIMIT: Duration = Duration::from_secs(15);

/// Runs a gateway that must refuse to start: its exit code and what it says.
fn refused(lab: &Lab, gateway: &Gateway<'_>) -> (i32, String) {
    refused_command(lab, gateway.server(&[]))
}

fn refused_command(lab: &Lab, command: Command) -> (i32, String) {
    let mut process = Process::start(lab, "refused", command);
    let status = process.wait(LIMIT);
    let output = process.output();
    let code = status.code().unwrap_or_else(|| panic!("a signal ended it: {status}\n{output}"));
    assert_ne!(code, 0, "it says that it succeeded:\n{output}");
    assert!(!output.contains("panicked"), "{output}");
    (code, output)
}

fn assert_untouched(lab: &Lab) {
    let links = lab.gateway.ip(&["-brief", "link", "show"]);
    assert!(!links.contains("vpnd0"), "no device is left: {links}");
}

#[test]
fn a_configuration_with_mistakes() {
    let Some(lab) = Lab::new(1) else { return };
    let gateway = Gateway::init(&lab);
    let good = fs::read_to_string(gateway.config()).unwrap();
    for (from, to, hint) in [
        ("listen", "lisen", "did you mean 'listen'"),
        ("[policy]", "[polizei]", "polizei"),
        ("pool_v4 = \"10.86.0.0/16\"", "pool_v4 = \"10.86.0.0/33\"", "10.86.0.0/16"),
        ("[tunnel]", "[tunnel", ""),
    ] {
        assert!(good.contains(from), "the configuration has {from}:\n{good}");
        let bad = good.replacen(from, to, 1);
        let line = bad.lines().position(|line| line.contains(to)).unwrap() + 1;
        fs::write(gateway.config(), bad).unwrap();
        let (code, output) = refused(&lab, &gateway);
        assert_eq!(code, 2, "{output}");
        assert!(output.contains(&format!("server.toml:{line}")), "it names line {line}: {output}");
        assert!(output.contains(hint), "it says {hint}: {output}");
        let mut check = gateway.vpnd(&["check"]);
        check.arg(gateway.config());
        assert_eq!(process::run(check).status.code(), Some(2), "vpnd check says the same");
        assert_untouched(&lab);
    }
}

#[test]
fn what_check_finds_beyond_the_text() {
    let Some(lab) = Lab::new(1) else { return };
    let gateway = Gateway::init(&lab);
    gateway.add_user("ann");
    let check = || {
        let mut command = gateway.vpnd(&["check"]);
        command.arg(gateway.config());
        let output = process::run(command);
        (output.status.code(), process::text(&output))
    };
    let (code, output) = check();
    assert_eq!((code, output.contains("no problem found")), (Some(0), true), "{output}");

    gateway.configure("nat.mode", "nftables");
    gateway.configure("nat.outgoing_interface", "eth77");
    let (code, output) = check();
    assert!(code == Some(0) && output.contains("warning: there is no interface eth77"), "{output}");
    gateway.configure("nat.outgoing_interface", "campus0");

    // Another account, or a later one, does without another file.
    for (key, wrong, hint, status) in [
        ("process.user", "root", "is root", 1),
        ("process.user", "nobody-here", "no user", 1),
        ("log.level", "wran", "wran", 2),
    ] {
        let good = fs::read(gateway.config()).unwrap();
        gateway.configure(key, wrong);
        let (code, output) = check();
        assert!(code == Some(2) && output.contains(hint), "{key} = {wrong}: {output}");
        let (code, output) = refused(&lab, &gateway);
        assert!(code == status && output.contains(hint), "a start says the same: {output}");
        fs::write(gateway.config(), good).unwrap();
    }

    let store = gateway.file("state/vpnd.db");
    let good = fs::read(&store).unwrap();
    fs::write(&store, vec![0xA5; 4096]).unwrap();
    let (code, output) = check();
    assert!(code == Some(2) && output.contains("damaged"), "{output}");
    fs::remove_file(&store).unwrap();
    let (code, output) = check();
    assert!(code == Some(2) && output.contains("no user store"), "{output}");
    fs::write(&store, good).unwrap();
    assert_untouched(&lab);
}

#[test]
fn a_port_in_use() {
    let Some(lab) = Lab::new(1) else { return };
    let gateway = Gateway::init(&lab);
    let other = lab.gateway.within(|| UdpSocket::bind("0.0.0.0:4433")).unwrap();
    let (_, output) = refused(&lab, &gateway);
    assert!(output.contains("4433") && output.contains("in use"), "{output}");
    assert_untouched(&lab);
    drop(other);
    let mut gateway = gateway;
    gateway.start();
}

#[test]
fn a_second_gateway() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.start();
    let (_, output) = refused(&lab, &gateway);
    assert!(output.contains("another vpnd"), "the same configuration twice: {output}");

    // One that shares only the port. Sockets of one gateway share it among
    // themselves; a stranger of the same kind must not get a share.
    let second = Gateway::init_in(&lab, "second");
    second.configure("tunnel.name", "other0");
    second.configure("tunnel.pool_v4", "10.87.0.0/16");
    second.configure("tunnel.pool_v6", "fd87::/64");
    let (_, output) = refused(&lab, &second);
    assert!(output.contains("4433") && output.contains("in use"), "{output}");
    assert!(gateway.sessions().is_empty(), "the first one still answers");
}

#[test]
fn a_pool_that_overlaps_a_local_network() {
    let Some(lab) = Lab::new(1) else { return };
    let gateway = Gateway::init(&lab);
    gateway.configure("tunnel.pool_v4", "10.200.0.0/16");
    let (_, output) = refused(&lab, &gateway);
    assert!(output.contains("10.200.0.0/16") && output.contains("campus0"), "it names both: {output}");
    assert_untouched(&lab);
}

#[test]
fn no_tun_device() {
    let Some(lab) = Lab::new(1) else { return };
    let gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    for (namespace, inner) in
        [(&lab.gateway, gateway.server(&[])), (&lab.clients[0], client::command(&lab, 1, &ann, &[]))]
    {
        // Runs the command in a mount namespace without the device.
        let script = "mount -t tmpfs tmpfs /dev/net && exec \"$@\"";
        let mut command = process::command(&lab, namespace, "sh");
        command.args(["-c", script, "sh"]).arg(VPND);
        let own = inner.get_args().skip_while(|argument| *argument != VPND).skip(1);
        command.args(own);
        let (_, output) = refused_command(&lab, command);
        assert!(output.contains("/dev/net/tun"), "{output}");
    }
    assert_untouched(&lab);
}

#[test]
fn no_privileges() {
    let Some(lab) = Lab::new(1) else { return };
    let gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    // Someone else must be able to run it and to read what it needs, so that only privileges are
    // missing.
    let binary = lab.path("vpnd");
    copy_program(&binary);
    fs::set_permissions(&binary, Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(binary.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    let nobody = 65_534;
    for file in [&ann.profile, &ann.credentials] {
        std::os::unix::fs::chown(file, Some(nobody), Some(nobody)).unwrap();
    }
    let state = lab.path("nobody");
    fs::create_dir(&state).unwrap();
    std::os::unix::fs::chown(&state, Some(nobody), Some(nobody)).unwrap();
    let mut command = Command::new(&binary);
    command.arg("connect").arg(&ann.profile).arg("--credentials").arg(&ann.credentials);
    command
        .arg("--state-dir")
        .arg(&state)
        .arg("--journal-dir")
        .arg(state.join("journal"))
        .uid(nobody)
        .gid(nobody)
        .current_dir("/");
    let (_, output) = refused_command(&lab, command);
    assert!(output.contains("root") || output.contains("CAP_NET_ADMIN"), "it says what is missing: {output}");
}

#[test]
fn a_corrupted_store() {
    let Some(lab) = Lab::new(1) else { return };
    let gateway = Gateway::init(&lab);
    gateway.add_user("ann");
    let store = gateway.file("state/vpnd.db");
    let good = fs::read(&store).unwrap();
    for damage in [0..100, 100..4096.min(good.len())] {
        let mut bad = good.clone();
        bad[damage.clone()].fill(0xa5);
        fs::write(&store, &bad).unwrap();
        for leftover in ["state/vpnd.db-wal", "state/vpnd.db-shm"] {
            let _ = fs::remove_file(gateway.file(leftover));
        }
        let (_, output) = refused(&lab, &gateway);
        assert!(output.contains("vpnd.db"), "it names the file: {output}");
        assert_eq!(fs::read(&store).unwrap(), bad, "and leaves it as evidence: bytes {damage:?}");
        assert_untouched(&lab);
    }
    fs::write(&store, good).unwrap();
    let list = must(process::run(gateway.user(&["list"])));
    assert!(process::text(&list).contains("ann"), "the good file is good again");
}

#[test]
fn a_full_disk_loses_nothing() {
    let Some(lab) = Lab::new(1) else { return };
    let gateway = Gateway::init(&lab);
    // One mount namespace for all of it, so that the small disk is gone with the script.
    let script = r#"
        vpnd=$1 dir=$2 log=$3
        mount -t tmpfs -o size=1m tmpfs "$dir/state" || exit 90
        add() { "$vpnd" user add "$1" --config "$dir/server.toml" --password-file "$dir/password"; }
        echo "a good long secret" > "$dir/password"; chmod 600 "$dir/password"
        add ann || exit 91
        dd if=/dev/zero of="$dir/state/filler" bs=4k 2>/dev/null
        n=0
        while [ $n -lt 50 ]; do
            n=$((n + 1))
            add "user$n" > "$log" 2>&1 || break
            echo "user$n" >> "$dir/added"
        done
        [ $n -lt 50 ] || exit 92
        rm "$dir/state/filler"
        "$vpnd" user list --config "$dir/server.toml" > "$dir/listed" || exit 93
        grep -q ann "$dir/listed" || exit 94
        if [ -e "$dir/added" ]; then while read -r name; do grep -q "$name" "$dir/listed" || exit 95; done < "$dir/added"; fi
        add carol || exit 96
    "#;
    let log = lab.path("full.log");
    let mut command = process::command(&lab, &lab.gateway, "sh");
    command.args(["-c", script, "sh", VPND]).arg(gateway.file("")).arg(&log);
    let output = process::run(command);
    let complaint = fs::read_to_string(log).unwrap_or_default();
    assert!(output.status.success(), "{}\n{}\n{complaint}", output.status, process::text(&output));
    assert!(complaint.contains("vpnd.db") && complaint.contains("full"), "it says why: {complaint}");
}
