//! The journal against a real machine: a network namespace with a link in it.

use super::*;
use crate::sys::netlink::{Family, RouteSpec, RouteTarget, RuleMatch, RuleSpec};
use crate::sys::sysctl::SysctlChange;
use crate::sys::testing::{in_namespace_async, run};

fn machine() -> String {
    let ip = |arguments: &[&str]| run("ip", arguments);
    [
        ip(&["-j", "route", "show", "table", "all"]),
        ip(&["-j", "-6", "route", "show", "table", "all"]),
        ip(&["-j", "rule"]),
        ip(&["-j", "-6", "rule"]),
        run("cat", &["/proc/sys/net/ipv4/ip_default_ttl"]),
    ]
    .join("\n")
}

fn link() {
    run("ip", &["link", "add", "vp0", "type", "veth", "peer", "name", "vp1"]);
    // Else the kernel adds addresses and routes of its own a moment later.
    run("sysctl", &["-qw", "net.ipv6.conf.vp0.disable_ipv6=1", "net.ipv6.conf.vp1.disable_ipv6=1"]);
    run("ip", &["link", "set", "vp1", "up"]);
    run("ip", &["link", "set", "vp0", "up"]);
}

fn route(destination: &str) -> Change {
    Change::Route(RouteSpec {
        destination: destination.parse().unwrap(),
        target: RouteTarget::Interface("vp0".to_owned()),
        table: 7000,
        metric: None,
    })
}

fn rule(priority: u32) -> Change {
    let matches = RuleMatch::NotMarked(0x51);
    Change::Rule(RuleSpec { family: Family::V4, priority, matches, table: 7000 })
}

fn ttl(value: &str) -> Change {
    Change::Sysctl(SysctlChange::plan("net/ipv4/ip_default_ttl", value).unwrap().unwrap())
}

/// Gives the journal in `directory` to a process that is dead.
fn orphan(directory: &Path) -> PathBuf {
    let path = journals(directory).unwrap().remove(0);
    let owner = Owner { pid: u32::MAX, ..Owner::this_process().unwrap() };
    relabel(&path, &owner)
}

fn relabel(path: &Path, owner: &Owner) -> PathBuf {
    let text = fs::read_to_string(path).unwrap();
    let (_, rest) = text.split_once('\n').unwrap();
    let new = path.with_file_name(format!("{}.journal", owner.file_stem()));
    fs::remove_file(path).unwrap();
    fs::write(&new, Record::Start(owner.clone()).to_line() + rest).unwrap();
    new
}

async fn undone(directory: &Path, netlink: &Netlink) -> (UndoReport, usize) {
    let mut all = recover(directory, netlink).await.unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    match all.remove(0).outcome {
        RecoveryOutcome::Undone { report, damaged_lines } => (report, damaged_lines),
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_is_undone_and_the_journal_goes() {
    in_namespace_async(async || {
        link();
        let directory = tempfile::tempdir().unwrap();
        let netlink = Netlink::open().unwrap();
        let before = machine();
        let mut journal = Journal::create(directory.path()).unwrap();
        for change in [route("10.20.0.0/16"), rule(900), ttl("77"), route("10.21.0.0/16")] {
            journal.apply(&netlink, change).await.unwrap();
        }
        assert_ne!(machine(), before);
        let report = journal.undo_all(&netlink).await;
        assert_eq!((report.restored, report.is_complete()), (4, true), "{report:?}");
        assert_eq!(machine(), before);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    });
}

#[test]
fn what_was_changed_last_is_undone_first() {
    in_namespace_async(async || {
        let directory = tempfile::tempdir().unwrap();
        let netlink = Netlink::open().unwrap();
        let before = machine();
        let mut journal = Journal::create(directory.path()).unwrap();
        for value in ["77", "78"] {
            journal.apply(&netlink, ttl(value)).await.unwrap();
        }
        drop(journal);
        orphan(directory.path());
        undone(directory.path(), &netlink).await;
        assert_eq!(machine(), before, "the second change was made to what the first had left");
    });
}

#[test]
fn one_change_is_undone_while_the_others_stay() {
    in_namespace_async(async || {
        link();
        let directory = tempfile::tempdir().unwrap();
        let netlink = Netlink::open().unwrap();
        let mut journal = Journal::create(directory.path()).unwrap();
        let first = journal.apply(&netlink, route("10.20.0.0/16")).await.unwrap();
        journal.apply(&netlink, route("10.21.0.0/16")).await.unwrap();
        assert_eq!(journal.undo(&netlink, first).await.unwrap(), Undone::Restored);
        assert_eq!(journal.undo(&netlink, first).await.unwrap(), Undone::WasGone);
        let shown = run("ip", &["route", "show", "table", "7000"]);
        assert!(!shown.contains("10.20.0.0/16") && shown.contains("10.21.0.0/16"), "{shown}");
        drop(journal);
        orphan(directory.path());
        let (report, _) = undone(directory.path(), &netlink).await;
        assert_eq!((report.restored, report.were_gone), (1, 0), "only the one in force is left to undo");
    });
}

#[test]
fn the_record_is_durable_before_the_change_is_made() {
    in_namespace_async(async || {
        link();
        let directory = tempfile::tempdir().unwrap();
        let netlink = Netlink::open().unwrap();
        let mut journal = Journal::create(directory.path()).unwrap();
        // A journal that can't be written: its file is open for reading only.
        journal.file = File::open(&journal.path).unwrap();
        let before = machine();
        let refused = journal.apply(&netlink, route("10.20.0.0/16")).await;
        assert!(matches!(refused, Err(JournalError::Os { .. })), "{refused:?}");
        assert_eq!(machine(), before, "what can't be written down is not done");
    });
}

#[test]
fn a_change_that_was_not_made_is_undone_without_harm() {
    in_namespace_async(async || {
        link();
        let directory = tempfile::tempdir().unwrap();
        let netlink = Netlink::open().unwrap();
        let before = machine();
        let mut journal = Journal::create(directory.path()).unwrap();
        for (id, change) in [route("10.20.0.0/16"), rule(900), ttl("77")].into_iter().enumerate() {
            journal.append(&Record::Change { id: id as u64, change }).unwrap();
        }
        drop(journal);
        orphan(directory.path());
        let (report, _) = undone(directory.path(), &netlink).await;
        assert!(report.is_complete(), "{report:?}");
        assert_eq!(machine(), before);
    });
}

#[test]
fn what_was_there_before_survives_a_failed_change() {
    in_namespace_async(async || {
        link();
        let directory = tempfile::tempdir().unwrap();
        let netlink = Netlink::open().unwrap();
        // Even one of our own origin, as another instance would make it.
        route("10.20.0.0/16").apply(&netlink).await.unwrap();
        let before = machine();
        let mut journal = Journal::create(directory.path()).unwrap();
        let failed = journal.apply(&netlink, route("10.20.0.0/16")).await;
        assert!(matches!(failed, Err(JournalError::Change { .. })), "{failed:?}");
        journal.undo_all(&netlink).await;
        assert_eq!(machine(), before);
    });
}

#[test]
fn the_living_and_other_namespaces_are_left_alone() {
    in_namespace_async(async || {
        link();
        let directory = tempfile::tempdir().unwrap();
        let netlink = Netlink::open().unwrap();
        let mut journal = Journal::create(directory.path()).unwrap();
        journal.apply(&netlink, route("10.20.0.0/16")).await.unwrap();
        let changed = machine();
        let all = recover(directory.path(), &netlink).await.unwrap();
        assert!(matches!(all[0].outcome, RecoveryOutcome::StillRunning), "{all:?}");

        let path = orphan(directory.path());
        let elsewhere = Owner { pid: u32::MAX, namespace: (0, 0), ..Owner::this_process().unwrap() };
        let path = relabel(&path, &elsewhere);
        let all = recover(directory.path(), &netlink).await.unwrap();
        assert!(matches!(all[0].outcome, RecoveryOutcome::OtherNamespace), "{all:?}");
        assert_eq!(machine(), changed);

        // The same id, but started at another time.
        let reused = Owner { started: 1, ..Owner::this_process().unwrap() };
        relabel(&path, &reused);
        let (report, _) = undone(directory.path(), &netlink).await;
        assert_eq!(report.restored, 1);
    });
}

#[test]
fn after_a_reboot_only_files_are_put_back() {
    in_namespace_async(async || {
        let directory = tempfile::tempdir().unwrap();
        let netlink = Netlink::open().unwrap();
        let mut journal = Journal::create(directory.path()).unwrap();
        journal.apply(&netlink, ttl("77")).await.unwrap();
        let path = orphan(directory.path());
        relabel(&path, &Owner { boot: "an earlier one".to_owned(), ..Owner::this_process().unwrap() });
        let (report, _) = undone(directory.path(), &netlink).await;
        assert_eq!(report.restored, 0);
        // The value may be the administrator's own by now.
        assert_eq!(run("cat", &["/proc/sys/net/ipv4/ip_default_ttl"]).trim(), "77");
        assert!(journals(directory.path()).unwrap().is_empty());
    });
}

#[test]
fn a_damaged_journal_is_undone_as_far_as_it_can_be_read_and_kept() {
    in_namespace_async(async || {
        link();
        let directory = tempfile::tempdir().unwrap();
        let netlink = Netlink::open().unwrap();
        let mut journal = Journal::create(directory.path()).unwrap();
        for destination in ["10.20.0.0/16", "10.21.0.0/16", "10.22.0.0/16"] {
            journal.apply(&netlink, route(destination)).await.unwrap();
        }
        let path = orphan(directory.path());
        let text = fs::read_to_string(&path).unwrap().replace("10.21.0.0", "10.99.0.0");
        fs::write(&path, text + "torn").unwrap();
        let (report, damaged) = undone(directory.path(), &netlink).await;
        assert_eq!((report.restored, damaged), (2, 1));
        assert!(run("ip", &["route", "show", "table", "7000"]).contains("10.21.0.0/16"));
        assert!(path.with_extension("journal-damaged").exists());
        assert!(recover(directory.path(), &netlink).await.unwrap().is_empty(), "it is looked at once");
    });
}

#[test]
fn a_journal_whose_undoing_fails_is_kept_for_the_next_time() {
    in_namespace_async(async || {
        link();
        let directory = tempfile::tempdir().unwrap();
        let netlink = Netlink::open().unwrap();
        let mut journal = Journal::create(directory.path()).unwrap();
        journal.apply(&netlink, route("10.20.0.0/16")).await.unwrap();
        let mut broken = SysctlChange::plan("net/ipv4/ip_default_ttl", "77").unwrap().unwrap();
        broken.set.key = "../outside".to_owned();
        journal.append(&Record::Change { id: 9, change: Change::Sysctl(broken) }).unwrap();
        orphan(directory.path());
        let (report, _) = undone(directory.path(), &netlink).await;
        assert_eq!((report.restored, report.failed.len()), (1, 1), "one failure does not stop the rest");
        let (report, _) = undone(directory.path(), &netlink).await;
        assert_eq!((report.were_gone, report.failed.len()), (1, 1));
    });
}

#[test]
fn an_unfinished_journal_of_the_dead_is_swept_away() {
    in_namespace_async(async || {
        let directory = tempfile::tempdir().unwrap();
        let netlink = Netlink::open().unwrap();
        let this = Owner::this_process().unwrap();
        let living = directory.path().join(format!("{}.journal-new", this.file_stem()));
        let dead = directory.path().join("4294967295-1.journal-new");
        fs::write(&living, "").unwrap();
        fs::write(&dead, "").unwrap();
        assert!(recover(directory.path(), &netlink).await.unwrap().is_empty());
        assert!(living.exists() && !dead.exists());
        assert!(recover(Path::new("/nonexistent"), &netlink).await.unwrap().is_empty());
    });
}

#[test]
fn only_root_may_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("state");
    let journal = Journal::create(&directory).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&directory), mode(&journal.path)), (0o700, 0o600));
}
