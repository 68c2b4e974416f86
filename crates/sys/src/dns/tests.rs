//! The file in every shape that it has in the field.

use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

use super::*;
use crate::testing::{in_namespace, run};

fn settings() -> DnsSettings {
    DnsSettings {
        interface: "vpn0".to_owned(),
        index: None,
        servers: vec!["10.8.0.1".parse().unwrap(), "fd00:8::1".parse().unwrap()],
        search: vec!["campus.example".to_owned()],
        all_names: true,
    }
}

/// A machine without systemd-resolved whose `/etc` is a temporary directory.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("resolv.conf")
    }

    fn system(&self) -> DnsSystem {
        let at = |name| self.dir.path().join(name);
        DnsSystem {
            resolv_conf: self.path(),
            resolved_runtime: at("not-there"),
            nsswitch: at("not-there"),
            network_manager: at("not-there"),
        }
    }

    fn plan(&self) -> Result<FileChange, DnsError> {
        match <[_; 1]>::try_from(DnsChange::plan(&settings(), &self.system(), &[])?) {
            Ok([DnsChange::File(change)]) => Ok(change),
            other => panic!("systemd-resolved does not run here: {other:?}"),
        }
    }

    /// Where the old file is meanwhile.
    fn kept(&self) -> PathBuf {
        self.dir.path().join(".resolv.conf.vpnd-vpn0")
    }

    /// Distinguishes the file from one with the same text.
    fn number(&self) -> u64 {
        fs::metadata(self.path()).unwrap().ino()
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[test]
fn a_file_is_replaced_and_restored_exactly() {
    let machine = Machine::new();
    let old = b"nameserver 192.0.2.1\noptions edns0 trust-ad\n# \xFF no UTF-8\n";
    fs::write(machine.path(), old).unwrap();
    fs::set_permissions(machine.path(), fs::Permissions::from_mode(0o640)).unwrap();
    let change = machine.plan().unwrap();
    assert_eq!(fs::read(machine.path()).unwrap(), old, "planning changes nothing");
    change.apply().unwrap();
    let text = fs::read_to_string(machine.path()).unwrap();
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(
        lines,
        ["nameserver 10.8.0.1", "nameserver fd00:8::1", "search campus.example", "options edns0 trust-ad"]
    );
    assert_eq!(fs::metadata(machine.path()).unwrap().mode() & 0o7777, 0o640);
    // The plan may have been through a journal.
    let change: FileChange = serde_json::from_str(&serde_json::to_string(&change).unwrap()).unwrap();
    assert_eq!(change.undo().unwrap(), DnsUndone::Restored);
    assert_eq!(fs::read(machine.path()).unwrap(), old);
    assert_eq!(fs::metadata(machine.path()).unwrap().mode() & 0o7777, 0o640);
    assert_eq!(change.undo().unwrap(), DnsUndone::WasRestored);
    assert_eq!(machine.names(), ["resolv.conf"]);
}

#[test]
fn dns_settings_are_replaced_and_restored_from_every_moment() {
    let machine = Machine::new();
    let old = "nameserver 192.0.2.1\noptions edns0\n";
    fs::write(machine.path(), old).unwrap();
    let first = machine.plan().unwrap();
    first.apply().unwrap();
    let other = DnsSettings { servers: vec!["10.8.0.7".parse().unwrap()], ..settings() };
    let found = first.find(&other).unwrap();
    let DnsFound::Outdated(DnsChange::File(second)) = found else { panic!("{found:?}") };
    // Killed before it wrote: the text of the first is there.
    assert_eq!(second.undo().unwrap(), DnsUndone::Restored);
    assert_eq!(fs::read_to_string(machine.path()).unwrap(), old);
    first.apply().unwrap();
    second.apply().unwrap();
    let text = fs::read_to_string(machine.path()).unwrap();
    assert!(text.contains("nameserver 10.8.0.7\n") && !text.contains("10.8.0.1"), "{text}");
    assert!(text.contains("options edns0\n"), "{text}");
    assert_eq!(second.undo().unwrap(), DnsUndone::Restored);
    assert_eq!(fs::read_to_string(machine.path()).unwrap(), old);

    first.apply().unwrap();
    assert_eq!(first.find(&settings()).unwrap(), DnsFound::InForce);
    let foreign = ["nameserver 192.0.2.7\n", "", "# Name servers of the vpnd tunnel vpn1\n"];
    for text in foreign {
        fs::write(machine.path(), text).unwrap();
        let found = FileState::read(&machine.path()).unwrap();
        assert_eq!(first.find(&settings()).unwrap(), DnsFound::Foreign(found), "{text:?}");
    }
    fs::remove_file(machine.path()).unwrap();
    assert_eq!(first.find(&settings()).unwrap(), DnsFound::Foreign(FileState::Absent));
}

/// Between the plan and the change, the journal is written to the disk.
#[test]
fn a_file_that_another_program_writes_meanwhile_stays() {
    let machine = Machine::new();
    let newer = "nameserver 192.0.2.7\n";
    for old in [None, Some("nameserver 192.0.2.1\n")] {
        let _ = fs::remove_file(machine.path());
        if let Some(old) = old {
            fs::write(machine.path(), old).unwrap();
        }
        let planned = machine.plan().unwrap();
        fs::write(machine.path(), newer).unwrap();
        assert!(matches!(planned.apply(), Err(DnsError::Changed(_))), "{old:?}");
        assert_eq!(fs::read_to_string(machine.path()).unwrap(), newer);
        assert_eq!(planned.undo().unwrap(), DnsUndone::NotOurs);
        assert_eq!(machine.names(), ["resolv.conf"]);
        let planned = machine.plan().unwrap();
        planned.apply().unwrap();
        assert_eq!(machine.names(), [".resolv.conf.vpnd-vpn0", "resolv.conf"]);
        assert_eq!(planned.undo().unwrap(), DnsUndone::Restored);
        assert_eq!(fs::read_to_string(machine.path()).unwrap(), newer);
        assert_eq!(machine.names(), ["resolv.conf"]);
    }
}

#[test]
fn mode_and_owner_are_those_of_the_file_whatever_a_journal_says() {
    let machine = Machine::new();
    fs::write(machine.path(), "nameserver 192.0.2.1\n").unwrap();
    let planned = machine.plan().unwrap();
    planned.apply().unwrap();
    let before = fs::metadata(machine.path()).unwrap();
    let FileState::File { content, gid, .. } = &planned.before else { panic!("it is a file") };
    let forged = FileState::File { content: content.clone(), mode: 0o4777, uid: before.uid() + 1, gid: *gid };
    assert_eq!(FileChange { before: forged, ..planned }.undo().unwrap(), DnsUndone::Restored);
    let after = fs::metadata(machine.path()).unwrap();
    assert_eq!((after.mode(), after.uid()), (before.mode(), before.uid()));
    assert_eq!(fs::read_to_string(machine.path()).unwrap(), "nameserver 192.0.2.1\n");
}

#[test]
fn a_link_is_replaced_and_its_target_left_alone() {
    let machine = Machine::new();
    let target = machine.dir.path().join("stub.conf");
    fs::write(&target, "nameserver 127.0.0.53\n").unwrap();
    symlink("stub.conf", machine.path()).unwrap();
    let change = machine.plan().unwrap();
    change.apply().unwrap();
    assert!(fs::read_to_string(machine.path()).unwrap().contains("10.8.0.1"));
    assert_eq!(fs::read_to_string(&target).unwrap(), "nameserver 127.0.0.53\n");
    assert_eq!(change.undo().unwrap(), DnsUndone::Restored);
    assert_eq!(fs::read_link(machine.path()).unwrap(), Path::new("stub.conf"));
}

#[test]
fn a_dangling_link_and_a_missing_file_are_restored() {
    let machine = Machine::new();
    symlink("gone.conf", machine.path()).unwrap();
    let change = machine.plan().unwrap();
    change.apply().unwrap();
    change.undo().unwrap();
    assert_eq!(fs::read_link(machine.path()).unwrap(), Path::new("gone.conf"));

    fs::remove_file(machine.path()).unwrap();
    let change = machine.plan().unwrap();
    change.apply().unwrap();
    assert_eq!(fs::metadata(machine.path()).unwrap().mode() & 0o7777, 0o644);
    assert_eq!(change.undo().unwrap(), DnsUndone::Restored);
    assert!(machine.names().is_empty());
}

#[test]
fn text_written_by_others_meanwhile_is_kept() {
    let machine = Machine::new();
    fs::write(machine.path(), "nameserver 192.0.2.1\n").unwrap();
    let change = machine.plan().unwrap();
    change.apply().unwrap();
    fs::write(machine.path(), "nameserver 198.51.100.9\n").unwrap();
    assert_eq!(change.undo().unwrap(), DnsUndone::NotOurs);
    assert_eq!(fs::read_to_string(machine.path()).unwrap(), "nameserver 198.51.100.9\n");
    assert_eq!(machine.names(), ["resolv.conf"], "the one before that is of no use any more");
}

#[test]
fn the_old_file_itself_comes_back_after_a_kill_between_any_two_steps() {
    let machine = Machine::new();
    fs::write(machine.path(), "nameserver 192.0.2.1\n").unwrap();
    let (change, number) = (machine.plan().unwrap(), machine.number());
    let temporary = machine.dir.path().join(".resolv.conf.vpnd");
    let steps: [&dyn Fn(); 3] = [
        &|| {},
        // It has changed places with the new one.
        &|| fs::rename(machine.kept(), &temporary).unwrap(),
        // And back.
        &|| {
            let between = machine.dir.path().join("between");
            fs::rename(machine.path(), &between).unwrap();
            fs::rename(machine.kept(), machine.path()).unwrap();
            fs::rename(between, machine.kept()).unwrap();
        },
    ];
    for (step, kill) in steps.into_iter().enumerate() {
        change.apply().unwrap();
        assert_ne!(machine.number(), number);
        kill();
        change.undo().unwrap();
        assert_eq!((machine.number(), machine.names()), (number, vec!["resolv.conf".to_owned()]), "{step}");
    }
}

#[test]
fn a_kept_file_that_was_changed_is_not_used() {
    let machine = Machine::new();
    let old = "nameserver 192.0.2.1\n";
    let changes: [&dyn Fn(); 3] = [
        &|| fs::write(machine.kept(), "nameserver 192.0.2.66\n").unwrap(),
        &|| fs::set_permissions(machine.kept(), fs::Permissions::from_mode(0o666)).unwrap(),
        &|| {
            fs::remove_file(machine.kept()).unwrap();
            symlink("elsewhere", machine.kept()).unwrap();
        },
    ];
    for (number, other) in changes.into_iter().enumerate() {
        fs::write(machine.path(), old).unwrap();
        fs::set_permissions(machine.path(), fs::Permissions::from_mode(0o644)).unwrap();
        let change = machine.plan().unwrap();
        change.apply().unwrap();
        other();
        assert_eq!(change.undo().unwrap(), DnsUndone::Restored, "{number}");
        assert_eq!(fs::read_to_string(machine.path()).unwrap(), old, "{number}");
        assert_eq!(fs::metadata(machine.path()).unwrap().mode() & 0o7777, 0o644, "{number}");
        assert_eq!(machine.names(), ["resolv.conf"], "{number}");
    }
}

/// Takes the room that is left on a disk.
fn fill(file: &Path) {
    let mut file = fs::File::create(file).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
}

#[test]
fn the_old_file_itself_comes_back_on_a_full_disk() {
    in_namespace(|| {
        let machine = Machine::new();
        let (place, filler) = (machine.dir.path().to_str().unwrap(), machine.dir.path().join("filler"));
        run("mount", &["-t", "tmpfs", "-o", "size=64k", "tmpfs", place]);
        let old = "nameserver 192.0.2.1\n";
        fs::write(machine.path(), old).unwrap();
        let number = machine.number();
        // Without the file it is written again, in the room that ours has.
        for is_kept in [true, false] {
            let change = machine.plan().unwrap();
            change.apply().unwrap();
            if !is_kept {
                fs::remove_file(machine.kept()).unwrap();
            }
            fill(&filler);
            assert_eq!(change.undo().unwrap(), DnsUndone::Restored, "{is_kept}");
            assert_eq!(fs::read_to_string(machine.path()).unwrap(), old, "{is_kept}");
            assert_eq!(machine.number() == number, is_kept);
            assert_eq!(machine.names(), ["filler", "resolv.conf"], "{is_kept}");
            fs::remove_file(&filler).unwrap();
        }

        let own = machine.dir.path().join("own.conf");
        fs::write(&own, old).unwrap();
        run("mount", &["--bind", own.to_str().unwrap(), machine.path().to_str().unwrap()]);
        let change = machine.plan().unwrap();
        change.apply().unwrap();
        fill(&filler);
        assert_eq!(change.undo().unwrap(), DnsUndone::Restored, "where it is mounted");
        assert_eq!(fs::read_to_string(&own).unwrap(), old);
        run("umount", &["--lazy", machine.path().to_str().unwrap()]);
        run("umount", &["--lazy", place]);
    });
}

#[test]
fn lines_that_others_add_to_ours_are_taken_out_again() {
    let machine = Machine::new();
    fs::write(machine.path(), "nameserver 192.0.2.1\n").unwrap();
    let change = machine.plan().unwrap();
    change.apply().unwrap();
    let add = || {
        let text = fs::read_to_string(machine.path()).unwrap() + "sortlist 192.0.2.0\n# by hand\n";
        fs::write(machine.path(), text).unwrap();
    };
    add();
    let found = change.find(&settings()).unwrap();
    let DnsFound::Outdated(DnsChange::File(again)) = found else { panic!("{found:?}") };
    again.check(&machine.system()).unwrap();
    again.apply().unwrap();
    assert_eq!(again.find(&settings()).unwrap(), DnsFound::InForce);
    add();
    assert_eq!(again.undo().unwrap(), DnsUndone::Restored);
    assert_eq!(fs::read_to_string(machine.path()).unwrap(), "nameserver 192.0.2.1\n");
}

#[test]
fn a_half_written_file_and_a_left_over_are_cleaned_up() {
    let machine = Machine::new();
    fs::write(machine.path(), "nameserver 192.0.2.1\n").unwrap();
    let change = machine.plan().unwrap();
    for cut in [0, 10, change.after.len()] {
        fs::write(machine.path(), &change.after[..cut]).unwrap();
        fs::write(machine.dir.path().join(".resolv.conf.vpnd"), "half").unwrap();
        assert_eq!(change.undo().unwrap(), DnsUndone::Restored, "{cut} bytes were written");
        assert_eq!(fs::read_to_string(machine.path()).unwrap(), "nameserver 192.0.2.1\n");
        assert_eq!(machine.names(), ["resolv.conf"]);
    }
    let old = "nameserver 192.0.2.1\n";
    for cut_short in ["nameserver 1".to_owned(), old.to_owned() + &change.after[old.len()..]] {
        fs::write(machine.path(), &cut_short).unwrap();
        assert_eq!(change.undo().unwrap(), DnsUndone::Restored, "on the way back: {cut_short}");
        assert_eq!(fs::read_to_string(machine.path()).unwrap(), old);
    }
}

#[test]
fn a_mounted_file_is_written_in_place() {
    in_namespace(|| {
        for linked in [false, true] {
            let machine = Machine::new();
            let own = machine.dir.path().join("own.conf");
            fs::write(&own, "nameserver 192.0.2.1\n").unwrap();
            let place = machine.dir.path().join(if linked { "stub.conf" } else { "resolv.conf" });
            fs::write(&place, "nameserver 192.0.2.99\n").unwrap();
            if linked {
                symlink("stub.conf", machine.path()).unwrap();
            }
            run("mount", &["--bind", own.to_str().unwrap(), place.to_str().unwrap()]);
            let change = machine.plan().unwrap();
            change.apply().unwrap();
            assert!(fs::read_to_string(machine.path()).unwrap().contains("10.8.0.1"));
            assert!(fs::read_to_string(&own).unwrap().contains("10.8.0.1"), "through the mount");
            assert_eq!(fs::symlink_metadata(machine.path()).unwrap().is_symlink(), linked);
            assert_eq!(change.undo().unwrap(), DnsUndone::Restored);
            assert_eq!(fs::read_to_string(&own).unwrap(), "nameserver 192.0.2.1\n");
            // Lazily: a program that another test is starting may hold a copy of the open file for
            // a moment.
            run("umount", &["--lazy", place.to_str().unwrap()]);
            assert_eq!(fs::read_to_string(&place).unwrap(), "nameserver 192.0.2.99\n", "never touched");
        }
    });
}

#[test]
fn an_immutable_file_stays_and_the_way_around_it_is_named() {
    in_namespace(|| {
        let machine = Machine::new();
        let old = "nameserver 192.0.2.1\n";
        fs::write(machine.path(), old).unwrap();
        // Like `chattr +i`, on another file system: the temporary directory's may have no
        // attributes.
        run("mount", &["-t", "tmpfs", "tmpfs", machine.dir.path().to_str().unwrap()]);
        fs::write(machine.path(), old).unwrap();
        let change = machine.plan().unwrap();
        run("mount", &["-o", "remount,ro", machine.dir.path().to_str().unwrap()]);
        let error = change.apply().unwrap_err();
        assert!(error.to_string().contains("--no-dns"), "{error}");
        assert_eq!(change.undo().unwrap(), DnsUndone::WasRestored);
        assert_eq!(fs::read_to_string(machine.path()).unwrap(), old);
        run("umount", &["--lazy", machine.dir.path().to_str().unwrap()]);
    });
}

#[test]
fn two_tunnels_do_not_fight_over_the_file() {
    let machine = Machine::new();
    fs::write(machine.path(), "nameserver 192.0.2.1\n").unwrap();
    machine.plan().unwrap().apply().unwrap();
    let second = machine.plan();
    assert!(matches!(&second, Err(DnsError::HeldBy { interface, .. }) if interface == "vpn0"), "{second:?}");
}

#[test]
fn bad_settings_are_refused() {
    let system = DnsSystem {
        resolv_conf: "/nonexistent/resolv.conf".into(),
        resolved_runtime: "/nonexistent".into(),
        nsswitch: "/nonexistent".into(),
        network_manager: "/nonexistent".into(),
    };
    for domain in ["a\nnameserver 192.0.2.66", "", "a b", "-x.example", "a..b", ".", "~."] {
        let bad = DnsSettings { search: vec![domain.to_owned()], ..settings() };
        assert!(matches!(DnsChange::plan(&bad, &system, &[]), Err(DnsError::BadDomain(_))), "{domain:?}");
    }
    let none = DnsSettings { servers: vec![], ..settings() };
    assert!(matches!(DnsChange::plan(&none, &system, &[]), Err(DnsError::NoServers)));
}

#[test]
fn systemd_resolved_is_configured_in_its_own_syntax() {
    let calls: Vec<String> = resolvectl_calls(&settings()).iter().map(|call| call.join(" ")).collect();
    assert_eq!(
        calls,
        ["dns vpn0 10.8.0.1 fd00:8::1", "domain vpn0 campus.example ~.", "default-route vpn0 yes"]
    );
    let split = DnsSettings { search: vec![], all_names: false, ..settings() };
    let calls: Vec<String> = resolvectl_calls(&split).iter().map(|call| call.join(" ")).collect();
    assert_eq!(calls[1..], ["domain vpn0 ", "default-route vpn0 no"]);
}

#[test]
fn servers_in_use_are_those_of_the_file_and_of_systemd_resolved() {
    let machine = Machine::new();
    let runtime = machine.dir.path().join("resolved");
    fs::create_dir(&runtime).unwrap();
    fs::write(machine.path(), "# nameserver 192.0.2.9\nnameserver 127.0.0.53\noptions edns0\n").unwrap();
    fs::write(runtime.join("resolv.conf"), "nameserver\t192.0.2.1\n nameserver fe80::1%eth0\nnameserver x\n")
        .unwrap();
    let system =
        DnsSystem { resolv_conf: machine.path(), resolved_runtime: runtime.clone(), ..DnsSystem::default() };
    let found = || servers_in_use(&system).iter().map(ToString::to_string).collect::<Vec<_>>();
    let running = UnixListener::bind(runtime.join("io.systemd.Resolve")).unwrap();
    assert_eq!(found(), ["127.0.0.53", "192.0.2.1", "fe80::1"]);
    drop(running);
    assert_eq!(found(), ["127.0.0.53"], "a file that a stopped systemd-resolved has left");
}
