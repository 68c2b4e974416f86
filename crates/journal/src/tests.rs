//! The journal against a real machine: a network namespace with a link in it.

use std::fs;

use super::*;
use vpnd_sys::change::{Layer, TABLE_BASE};
use vpnd_sys::dns::{DnsChange, FileChange, FileState};
use vpnd_sys::netlink::{
    AddressSpec, Family, NetworkChange, NetworkWatch, RouteSpec, RouteTarget, RuleMatch, RuleSpec,
};
use vpnd_sys::sysctl::SysctlChange;
use vpnd_sys::testing::{in_namespace_async, run};

mod shared;

const SETTING: &str = "net/ipv4/ip_forward";

fn machine() -> String {
    let ip = |arguments: &[&str]| run("ip", arguments);
    [
        ip(&["-j", "route", "show", "table", "all"]),
        ip(&["-j", "-6", "route", "show", "table", "all"]),
        ip(&["-j", "rule"]),
        ip(&["-j", "-6", "rule"]),
        run("cat", &["/proc/sys/net/ipv4/ip_forward"]),
    ]
    .join("\n")
}

/// The number of the first device of a new namespace; loopback is 1.
const INDEX: u32 = 2;

fn link() {
    run("ip", &["tuntap", "add", "vp0", "mode", "tun"]);
    // Otherwise the kernel adds other addresses and routes a moment later.
    run("sysctl", &["-qw", "net.ipv6.conf.vp0.disable_ipv6=1"]);
    run("ip", &["link", "set", "vp0", "up"]);
}

fn route(destination: &str) -> Change {
    Change::Route(RouteSpec {
        destination: destination.parse().unwrap(),
        target: RouteTarget::Interface("vp0".to_owned()),
        source: None,
        table: TABLE_BASE + INDEX,
        metric: None,
    })
}

fn rule() -> Change {
    let layer = Layer::all().next().unwrap();
    let (mark, mask) = layer.passed_over();
    let (matches, priority) = (RuleMatch::NotMarked { mark, mask }, layer.priority(Layer::TUNNEL_RULE));
    Change::Rule(RuleSpec { family: Family::V4, priority, matches, table: TABLE_BASE + INDEX })
}

fn forwarding() -> Change {
    Change::Sysctl(SysctlChange::plan(SETTING, "1").unwrap().unwrap())
}

/// A directory for journals, and what is put into it.
struct TestJournals {
    dir: tempfile::TempDir,
    netlink: Netlink,
}

impl TestJournals {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), netlink: Netlink::open().unwrap() }
    }

    fn directory(&self) -> JournalDirectory {
        JournalDirectory::create(self.dir.path()).unwrap()
    }

    fn journal(&self) -> Journal {
        Journal::create(&self.directory()).unwrap()
    }

    fn names(&self) -> Vec<String> {
        self.directory().names().unwrap()
    }

    /// The only journal.
    fn path(&self) -> PathBuf {
        let names = self.names();
        assert_eq!(names.len(), 1, "{names:?}");
        self.dir.path().join(&names[0])
    }

    /// Gives the only journal, of which the process has ended, to another owner.
    fn relabel(&self, owner: &Owner) {
        let text = fs::read_to_string(self.path()).unwrap();
        let (_, rest) = text.split_once('\n').unwrap();
        fs::write(self.path(), Record::Start(owner.clone()).to_line() + rest).unwrap();
    }

    async fn recover(&self) -> Vec<Recovered> {
        recover(&self.directory(), &self.netlink).await.unwrap()
    }

    async fn outcome(&self) -> RecoveryOutcome {
        let mut all = self.recover().await;
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0).outcome
    }

    async fn undone(&self) -> (UndoReport, usize) {
        match self.outcome().await {
            RecoveryOutcome::Undone { report, damaged_lines } => (report, damaged_lines),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn undoing_all_removes_the_journal() {
    in_namespace_async(async || {
        link();
        let journals = TestJournals::new();
        let before = machine();
        let mut journal = journals.journal();
        for change in [route("10.20.0.0/16"), rule(), forwarding(), route("10.21.0.0/16")] {
            journal.apply(&journals.netlink, change).await.unwrap();
        }
        assert_ne!(machine(), before);
        let report = journal.undo_all(&journals.netlink).await;
        assert_eq!((report.restored, report.is_complete()), (4, true), "{report:?}");
        assert_eq!(machine(), before);
        assert!(journals.names().is_empty());
    });
}

/// Whatever of the two is in force when its process dies, the machine is as before afterwards.
#[test]
fn a_route_that_takes_the_place_of_another_is_undone_from_every_moment() {
    in_namespace_async(async || {
        link();
        let journals = TestJournals::new();
        let before = machine();
        run("ip", &["address", "add", "10.86.0.9/32", "dev", "vp0"]);
        let with_address = machine();
        let Change::Route(plain) = route("10.20.0.0/16") else { panic!("it is a route") };
        let sourced = Change::Route(RouteSpec { source: "10.86.0.9".parse().ok(), ..plain });
        for moment in ["written down", "made", "done"] {
            let mut journal = journals.journal();
            let old = journal.apply(&journals.netlink, route("10.20.0.0/16")).await.unwrap();
            match moment {
                "written down" => drop(journal.note(&sourced).unwrap()),
                "made" => {
                    journal.note(&sourced).unwrap();
                    sourced.replace(&journals.netlink).await.unwrap();
                }
                _ => drop(journal.supersede(&journals.netlink, old, sourced.clone()).await.unwrap()),
            }
            assert_ne!(machine(), with_address, "{moment}");
            drop(journal);
            let (report, damaged) = journals.undone().await;
            assert_eq!(
                (report.restored, report.is_complete(), damaged),
                (1, true, 0),
                "{moment}: {report:?}"
            );
            assert_eq!(machine(), with_address, "{moment}");
        }
        run("ip", &["address", "del", "10.86.0.9/32", "dev", "vp0"]);
        assert_eq!(machine(), before);
    });
}

#[test]
fn what_was_changed_last_is_undone_first() {
    in_namespace_async(async || {
        link();
        let journals = TestJournals::new();
        let before = machine();
        let mut journal = journals.journal();
        let (interface, address) = ("vp0".to_owned(), "10.86.0.9/32".parse().unwrap());
        let address = AddressSpec { interface, index: Some(INDEX), address };
        for change in [Change::Address(address), route("10.20.0.0/16")] {
            journal.apply(&journals.netlink, change).await.unwrap();
        }
        drop(journal);
        let mut watch = NetworkWatch::open().unwrap();
        let (report, _) = journals.undone().await;
        assert_eq!((report.restored, report.were_gone), (2, 0));
        let first = loop {
            let change = watch.next().await.unwrap();
            if matches!(change, NetworkChange::RouteRemoved | NetworkChange::Address { .. }) {
                break change;
            }
        };
        assert_eq!(first, NetworkChange::RouteRemoved);
        assert_eq!(machine(), before);
    });
}

#[test]
fn one_change_is_undone_while_the_others_stay() {
    in_namespace_async(async || {
        link();
        let journals = TestJournals::new();
        let mut journal = journals.journal();
        let first = journal.apply(&journals.netlink, route("10.20.0.0/16")).await.unwrap();
        journal.apply(&journals.netlink, route("10.21.0.0/16")).await.unwrap();
        assert_eq!(journal.undo(&journals.netlink, first).await.unwrap(), Undone::Restored);
        assert_eq!(journal.undo(&journals.netlink, first).await.unwrap(), Undone::WasGone);
        let shown = run("ip", &["route", "show", "table", "30002"]);
        assert!(!shown.contains("10.20.0.0/16") && shown.contains("10.21.0.0/16"), "{shown}");
        drop(journal);
        let (report, _) = journals.undone().await;
        assert_eq!((report.restored, report.were_gone), (1, 0), "only the one in force is left to undo");
    });
}

#[test]
fn the_record_is_durable_before_the_change_is_made() {
    in_namespace_async(async || {
        link();
        let journals = TestJournals::new();
        let mut journal = journals.journal();
        // A journal that can't be written: its file is open for reading only.
        journal.file.break_for_test();
        let before = machine();
        let refused = journal.apply(&journals.netlink, route("10.20.0.0/16")).await;
        assert!(matches!(refused, Err(JournalError::Os { .. })), "{refused:?}");
        assert_eq!(machine(), before, "what can't be written down is not done");
    });
}

#[test]
fn a_change_that_was_not_made_is_undone_without_harm() {
    in_namespace_async(async || {
        link();
        let journals = TestJournals::new();
        let before = machine();
        let mut journal = journals.journal();
        for (id, change) in [route("10.20.0.0/16"), rule(), forwarding()].into_iter().enumerate() {
            journal.write(&Record::Change { id: id as u64, change }.to_line()).unwrap();
        }
        drop(journal);
        let (report, _) = journals.undone().await;
        assert!(report.is_complete(), "{report:?}");
        assert_eq!(machine(), before);
    });
}

#[test]
fn what_was_there_before_survives_a_failed_change() {
    in_namespace_async(async || {
        link();
        let journals = TestJournals::new();
        // Even one of our own origin, as another instance would make it.
        route("10.20.0.0/16").apply(&journals.netlink).await.unwrap();
        let before = machine();
        let mut journal = journals.journal();
        let failed = journal.apply(&journals.netlink, route("10.20.0.0/16")).await;
        assert!(matches!(failed, Err(JournalError::Change { .. })), "{failed:?}");
        journal.undo_all(&journals.netlink).await;
        assert_eq!(machine(), before);
    });
}

#[test]
fn journals_of_live_processes_and_other_namespaces_are_left_alone() {
    in_namespace_async(async || {
        link();
        let journals = TestJournals::new();
        let mut journal = journals.journal();
        journal.apply(&journals.netlink, route("10.20.0.0/16")).await.unwrap();
        let changed = machine();
        let outcome = journals.outcome().await;
        assert!(matches!(outcome, RecoveryOutcome::StillRunning), "{outcome:?}");
        drop(journal);

        let this = Owner::this_process().unwrap();
        // Versions and kernels without cookies tell namespaces by their numbers.
        for cookie in [None, Some(u64::MAX)] {
            journals.relabel(&Owner { namespace: (0, 0), cookie, ..this.clone() });
            let outcome = journals.outcome().await;
            assert!(matches!(outcome, RecoveryOutcome::OtherNamespace), "{outcome:?}");
            assert_eq!(machine(), changed);
        }

        // A later process may have the same number: what counts is the lock.
        journals.relabel(&Owner::this_process().unwrap());
        assert_eq!(journals.undone().await.0.restored, 1);
    });
}

#[test]
fn a_namespace_with_a_reused_number_is_another() {
    in_namespace_async(async || {
        link();
        let journals = TestJournals::new();
        let mut journal = journals.journal();
        journal.apply(&journals.netlink, route("10.20.0.0/16")).await.unwrap();
        drop(journal);
        let changed = machine();
        let this = Owner::this_process().unwrap();
        assert!(this.cookie.is_some(), "this kernel is older than 5.14");
        journals.relabel(&Owner { cookie: Some(u64::MAX), ..this });
        assert_eq!(journals.undone().await.0.restored, 0);
        assert_eq!(machine(), changed, "the route is of somebody here");
        assert!(journals.names().is_empty(), "nothing else of it can be undone");
    });
}

#[test]
fn after_a_reboot_only_files_are_put_back() {
    in_namespace_async(async || {
        let journals = TestJournals::new();
        let mut journal = journals.journal();
        journal.apply(&journals.netlink, forwarding()).await.unwrap();
        drop(journal);
        journals.relabel(&Owner { boot: "an earlier one".to_owned(), ..Owner::this_process().unwrap() });
        let (report, _) = journals.undone().await;
        assert_eq!(report.restored, 0);
        // The value may be the administrator's own by now.
        assert_eq!(run("cat", &["/proc/sys/net/ipv4/ip_forward"]).trim(), "1");
        assert!(journals.names().is_empty());
    });
}

#[test]
fn a_damaged_journal_is_undone_as_far_as_it_can_be_read_and_kept() {
    in_namespace_async(async || {
        link();
        let journals = TestJournals::new();
        let mut journal = journals.journal();
        for destination in ["10.20.0.0/16", "10.21.0.0/16", "10.22.0.0/16"] {
            journal.apply(&journals.netlink, route(destination)).await.unwrap();
        }
        drop(journal);
        let path = journals.path();
        let text = fs::read_to_string(&path).unwrap().replace("10.21.0.0", "10.99.0.0");
        fs::write(&path, text + "torn").unwrap();
        let (report, damaged) = journals.undone().await;
        assert_eq!((report.restored, damaged), (2, 1));
        assert!(run("ip", &["route", "show", "table", "30002"]).contains("10.21.0.0/16"));
        assert!(path.with_extension("journal-damaged").exists());
        assert!(journals.recover().await.is_empty(), "it is looked at once");
    });
}

#[test]
fn a_journal_whose_undoing_fails_is_kept_for_the_next_time() {
    in_namespace_async(async || {
        link();
        let journals = TestJournals::new();
        let mut journal = journals.journal();
        journal.apply(&journals.netlink, route("10.20.0.0/16")).await.unwrap();
        let mut broken = SysctlChange::plan(SETTING, "1").unwrap().unwrap();
        broken.set.key = "../outside".to_owned();
        journal.write(&Record::Change { id: 9, change: Change::Sysctl(broken) }.to_line()).unwrap();
        drop(journal);
        let (report, _) = journals.undone().await;
        assert_eq!((report.restored, report.failed.len()), (1, 1), "one failure does not stop the rest");
        let (report, _) = journals.undone().await;
        assert_eq!((report.were_gone, report.failed.len()), (1, 1));
    });
}

#[test]
fn unfinished_journals_without_a_writer_are_removed() {
    in_namespace_async(async || {
        let journals = TestJournals::new();
        let directory = journals.directory();
        let living = directory.create_file("7-0.journal-new").unwrap();
        drop(directory.create_file("8-0.journal-new").unwrap());
        // A process that died in its first line.
        let header = Record::Start(Owner::this_process().unwrap()).to_line();
        drop(directory.create_file("9-0.journal").unwrap());
        fs::write(journals.dir.path().join("9-0.journal"), &header[..header.len() / 2]).unwrap();
        assert_eq!(journals.undone().await.0.restored, 0);
        assert_eq!(journals.names(), ["7-0.journal-new"]);
        drop(living);
        assert!(journals.recover().await.is_empty() && journals.names().is_empty());
        assert!(JournalDirectory::open(Path::new("/nonexistent")).unwrap().is_none());
    });
}

#[test]
fn a_journal_without_a_valid_owner_is_not_undone() {
    in_namespace_async(async || {
        link();
        let journals = TestJournals::new();
        let mut journal = journals.journal();
        journal.apply(&journals.netlink, route("10.20.0.0/16")).await.unwrap();
        drop(journal);
        let before = machine();
        let text = fs::read_to_string(journals.path()).unwrap();
        let (start, rest) = text.split_once('\n').unwrap();
        for forged in [rest.to_owned(), format!("{rest}{start}\n"), format!("{}\n{rest}", &start[1..])] {
            fs::write(journals.path(), forged).unwrap();
            let outcome = journals.outcome().await;
            assert!(
                matches!(&outcome, RecoveryOutcome::Refused(reason) if reason.contains("process")),
                "{outcome:?}"
            );
            assert_eq!(machine(), before);
        }
        fs::write(journals.path(), text).unwrap();
        assert_eq!(journals.undone().await.0.restored, 1, "it is the first line that counts");
    });
}

#[test]
fn a_journal_stays_short_however_much_is_changed() {
    in_namespace_async(async || {
        link();
        let journals = TestJournals::new();
        let mut journal = journals.journal();
        journal.apply(&journals.netlink, rule()).await.unwrap();
        let mut longest = 0;
        // More than is ever read, made and undone without asking the kernel for each.
        for id in 1_000..1_400 {
            let before = FileState::Absent;
            let change = FileChange { path: "/x".into(), before, after: "x".repeat(60_000), replaces: None };
            let change = Change::Dns(DnsChange::File(change));
            journal.write(&Record::Change { id, change }.to_line()).unwrap();
            journal.done(id).unwrap();
            longest = longest.max(fs::metadata(journals.path()).unwrap().len());
        }
        assert!(longest <= 2 << 20, "{longest} bytes");
        journal.apply(&journals.netlink, route("10.21.0.0/16")).await.unwrap();
        drop(journal);
        assert_eq!(journals.undone().await.0.restored, 2, "what is in force outlives being left out");
    });
}

#[test]
fn no_more_is_changed_than_can_be_read_again() {
    in_namespace_async(async || {
        let journals = TestJournals::new();
        let mut journal = journals.journal();
        let line = "x".repeat(usize::try_from(file::MAX_IN_FORCE).unwrap());
        journal.active.push(Active { id: 99, change: forwarding(), line });
        let before = machine();
        let refused = journal.apply(&journals.netlink, forwarding()).await;
        assert!(matches!(refused, Err(JournalError::Full(_))), "{refused:?}");
        assert_eq!(machine(), before);
    });
}

#[test]
fn only_its_user_may_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("state/journal");
    let journal = Journal::create(&JournalDirectory::create(&path).unwrap()).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&journal.file.path())), (0o700, 0o600));
}

#[test]
fn kept_changes_are_continued_by_their_keeper_only() {
    in_namespace_async(async || {
        link();
        let journals = TestJournals::new();
        let before = machine();
        let directory = journals.directory();
        let mut first = Journal::create_kept(&directory, "gateway a").unwrap();
        let changes = [route("10.20.0.0/16"), forwarding()];
        for change in &changes {
            first.apply(&journals.netlink, change.clone()).await.unwrap();
        }
        drop(first);
        let changed = machine();
        let outcome = journals.outcome().await;
        assert!(matches!(outcome, RecoveryOutcome::Kept), "{outcome:?}");
        assert!(Journal::create_kept(&directory, "gateway b").unwrap().in_force().is_empty());
        let others = take_back(&directory, &journals.netlink, Some("gateway b")).await.unwrap();
        assert!(others.iter().any(|one| matches!(one.outcome, RecoveryOutcome::Kept)), "{others:?}");
        assert_eq!(machine(), changed, "nobody else touches it");

        let second = Journal::create_kept(&directory, "gateway a").unwrap();
        let inherited: Vec<Change> = second.in_force().into_iter().map(|(_, change)| change).collect();
        assert_eq!(inherited, changes, "in the order they were made");
        drop(second);
        take_back(&directory, &journals.netlink, Some("gateway a")).await.unwrap();
        assert_eq!(machine(), before);
        assert!(Journal::create_kept(&directory, "gateway a").unwrap().in_force().is_empty());
    });
}

#[test]
fn changes_of_every_keeper_are_taken_back_without_their_names() {
    in_namespace_async(async || {
        link();
        let journals = TestJournals::new();
        let before = machine();
        let directory = journals.directory();
        let mut client = journals.journal();
        client.apply(&journals.netlink, forwarding()).await.unwrap();
        let of_client = machine();
        for (keeper, destination) in [("gateway a", "10.20.0.0/16"), ("gateway b", "10.21.0.0/16")] {
            let mut kept = Journal::create_kept(&directory, keeper).unwrap();
            kept.apply(&journals.netlink, route(destination)).await.unwrap();
        }
        let running = Journal::create_kept(&directory, "gateway c").unwrap();
        drop(client);
        let all = take_back(&directory, &journals.netlink, None).await.unwrap();
        let undone = all.iter().filter(|one| matches!(one.outcome, RecoveryOutcome::Undone { .. }));
        assert_eq!(undone.count(), 2, "{all:?}");
        assert!(all.iter().any(|one| matches!(one.outcome, RecoveryOutcome::StillRunning)), "{all:?}");
        assert_eq!(machine(), of_client, "'vpnd cleanup' is for clients");
        drop(running);
        journals.recover().await;
        assert_eq!(machine(), before);
    });
}

#[test]
fn a_change_in_place_of_another_is_undone_once() {
    in_namespace_async(async || {
        let journals = TestJournals::new();
        let before = machine();
        let mut journal = journals.journal();
        let rules = |address: &str| {
            Change::Guard(vpnd_sys::nft::GuardRules {
                tunnel: "vp0".to_owned(),
                addresses: vec![address.parse().unwrap()],
                returning: None,
                excluded: None,
                closes_names: false,
            })
        };
        let id = journal.apply(&journals.netlink, rules("10.8.0.2")).await.unwrap();
        journal.apply(&journals.netlink, forwarding()).await.unwrap();
        journal.replace(&journals.netlink, id, rules("10.8.0.3")).await.unwrap();
        let ruleset = || run("nft", &["list", "ruleset"]);
        assert!(ruleset().contains("10.8.0.3") && !ruleset().contains("10.8.0.2"), "{}", ruleset());

        let bad = vpnd_sys::nft::GuardRules {
            tunnel: "vp*".to_owned(),
            addresses: Vec::new(),
            returning: None,
            excluded: None,
            closes_names: false,
        };
        journal.replace(&journals.netlink, id, Change::Guard(bad)).await.unwrap_err();
        let kept: Vec<Change> = journal.in_force().into_iter().map(|(_, change)| change).collect();
        assert_eq!(kept[0], rules("10.8.0.3"), "and it keeps its place");
        drop(journal);
        assert_eq!(journals.undone().await.0.restored, 2);
        assert_eq!((ruleset().as_str(), machine()), ("", before));
    });
}
