//! A change that several processes need: the last one takes it back, however the others ended.

use super::*;
use vpnd_sys::sysctl;

const KEY: &str = "/proc/sys/net/ipv4/conf/all/src_valid_mark";

fn change() -> Change {
    Change::Sysctl(sysctl::valid_marks())
}

fn value() -> String {
    fs::read_to_string(KEY).unwrap().trim_end().to_owned()
}

async fn journal(journals: &TestJournals) -> Journal {
    let mut journal = journals.journal();
    journal.apply_shared(&journals.netlink, change()).await.unwrap().expect("vpnd has made it");
    assert_eq!(value(), "1");
    journal
}

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    InOrder,
    Undone,
    Killed,
}

#[test]
fn the_last_user_of_a_shared_change_undoes_it() {
    in_namespace_async(async || {
        let journals = TestJournals::new();
        let ends = [End::InOrder, End::Undone, End::Killed];
        for first in ends {
            for last in ends {
                let mut running = vec![journal(&journals).await, journal(&journals).await];
                for (end, after) in [(first, "1"), (last, "0")] {
                    let mut ending = running.remove(0);
                    match end {
                        End::InOrder => assert!(ending.undo_all(&journals.netlink).await.is_complete()),
                        End::Undone => {
                            let (id, _) = ending.in_force()[0];
                            ending.undo(&journals.netlink, id).await.unwrap();
                            drop(ending);
                        }
                        End::Killed => {
                            drop(ending);
                            assert_eq!(value(), "1", "nobody has cleaned up yet");
                        }
                    }
                    // The next client does this at its start.
                    journals.recover().await;
                    assert_eq!(value(), after, "{first:?}, then {last:?}");
                }
                assert!(journals.names().is_empty(), "{first:?}, then {last:?}: {:?}", journals.names());
            }
        }
    });
}

#[test]
fn a_shared_change_that_another_vpn_needs_by_now_is_that_ones() {
    in_namespace_async(async || {
        let journals = TestJournals::new();
        let ending = journal(&journals).await;
        run("ip", &["rule", "add", "not", "fwmark", "0xca6c", "lookup", "51820"]);
        assert!(ending.undo_all(&journals.netlink).await.is_complete());
        assert_eq!(value(), "1");
        assert!(journals.names().is_empty(), "{:?}", journals.names());
        run("ip", &["rule", "del", "lookup", "51820"]);
        let mut next = journals.journal();
        assert_eq!(next.apply_shared(&journals.netlink, change()).await.unwrap(), None);
    });
}

#[test]
fn a_shared_change_that_another_vpn_did_without_is_undone() {
    in_namespace_async(async || {
        let journals = TestJournals::new();
        run("ip", &["rule", "add", "fwmark", "0x80000/0xff0000", "lookup", "main", "priority", "5210"]);
        let [first, second] = [journal(&journals).await, journal(&journals).await];
        assert!(second.undo_all(&journals.netlink).await.is_complete());
        assert_eq!(value(), "1");
        assert!(first.undo_all(&journals.netlink).await.is_complete());
        assert_eq!(value(), "0");
        assert!(journals.names().is_empty(), "{:?}", journals.names());

        // After a kill, too.
        drop(journal(&journals).await);
        journals.recover().await;
        assert_eq!(value(), "0");
    });
}

#[test]
fn a_shared_change_of_another_program_stays() {
    in_namespace_async(async || {
        let journals = TestJournals::new();
        // A file of a client before a power cut.
        drop(journals.directory().take("src-valid-mark-another-boot-1-1-0").unwrap());
        fs::write(KEY, "1").unwrap();
        let mut running = [journals.journal(), journals.journal()];
        for journal in &mut running {
            assert_eq!(journal.apply_shared(&journals.netlink, change()).await.unwrap(), None);
        }
        for journal in running {
            assert!(journal.undo_all(&journals.netlink).await.is_complete());
        }
        assert_eq!(value(), "1");
        assert!(journals.names().is_empty(), "{:?}", journals.names());
    });
}
