//! Places in which a user without privileges could have written, and files that such a user could
//! have put there.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

use super::*;

const NOBODY: u32 = 65_534;

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    assert!(root || std::env::var_os("CI").is_none(), "this test needs root");
    root
}

/// The error with which the directory is refused, if it is.
fn refused(path: &Path) -> Option<String> {
    let opened = JournalDirectory::open(path).and(JournalDirectory::create(path));
    match opened {
        Ok(_) => None,
        Err(JournalError::Untrusted { reason, .. }) => Some(reason),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_directory_that_others_write_is_refused_and_so_is_one_below_it() {
    let dir = tempfile::tempdir().unwrap();
    let (above, below) = (dir.path().join("above"), dir.path().join("above/below"));
    fs::create_dir_all(&below).unwrap();
    assert_eq!(refused(&below), None);
    for place in [&above, &below] {
        for mode in [0o770, 0o707, 0o720, 0o702, 0o777] {
            chmod(place, mode);
            let reason = refused(&below).unwrap_or_else(|| panic!("{} with {mode:o}", place.display()));
            assert!(reason.contains("write"), "{reason}");
            chmod(place, 0o700);
        }
        chmod(place, 0o755);
        assert_eq!(refused(&below), None, "that others may look changes nothing");
    }
}

#[test]
fn in_a_shared_directory_entries_stay_their_owners_but_journals_do_not_lie_there() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (above, below) = (dir.path().join("above"), dir.path().join("above/below"));
    fs::create_dir_all(&below).unwrap();
    chmod(&above, 0o1777);
    assert_eq!(refused(&below), None, "as in /tmp");
    chown(&above, Some(NOBODY), None).unwrap();
    assert!(refused(&below).is_some(), "its owner may rename what is in it");
    chown(&above, Some(0), None).unwrap();
    chmod(&below, 0o1777);
    assert!(refused(&below).is_some());
}

#[test]
fn a_directory_of_another_user_is_refused_and_so_is_one_below_it() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (above, below) = (dir.path().join("above"), dir.path().join("above/below"));
    fs::create_dir_all(&below).unwrap();
    for place in [&above, &below] {
        chown(place, Some(NOBODY), None).unwrap();
        assert!(refused(&below).unwrap().contains("65534"));
        chown(place, Some(0), None).unwrap();
    }
    assert_eq!(refused(&below), None);
}

#[test]
fn no_link_leads_to_journals() {
    let dir = tempfile::tempdir().unwrap();
    let real = dir.path().join("real");
    fs::create_dir_all(real.join("journals")).unwrap();
    symlink(real.join("journals"), dir.path().join("last")).unwrap();
    symlink(&real, dir.path().join("middle")).unwrap();
    symlink("/nonexistent", dir.path().join("nowhere")).unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    for path in ["last", "middle/journals", "nowhere", "file", "file/x"] {
        let reason = refused(&dir.path().join(path)).unwrap_or_else(|| panic!("{path}"));
        assert!(reason.contains("symbolic link"), "{path}: {reason}");
    }
    assert!(refused(&real.join("../last")).unwrap().contains(".."));
    assert_eq!(refused(&real.join("./journals")), None);
}

#[test]
fn where_others_write_is_known_by_more_than_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    fs::create_dir(&state).unwrap();
    symlink(&state, dir.path().join("alias")).unwrap();
    let inside = JournalDirectory::create(&state.join("journals")).unwrap();
    let itself = JournalDirectory::create(&state).unwrap();
    let beside = JournalDirectory::create(&dir.path().join("journals")).unwrap();
    for name in ["state", "alias"] {
        let other = dir.path().join(name);
        assert!(inside.stay_clear_of(&other).is_err() && itself.stay_clear_of(&other).is_err(), "{name}");
        beside.stay_clear_of(&other).unwrap();
    }
    beside.stay_clear_of(&dir.path().join("not-there")).unwrap();
}

/// A directory with one abandoned journal that nothing is wrong with.
fn with_journal() -> (tempfile::TempDir, JournalDirectory, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let directory = JournalDirectory::create(dir.path()).unwrap();
    drop(directory.create_file("1-0.journal").unwrap());
    let path = dir.path().join("1-0.journal");
    fs::write(&path, "text").unwrap();
    (dir, directory, path)
}

fn fault(directory: &JournalDirectory) -> Option<String> {
    match directory.open_abandoned("1-0.journal").unwrap() {
        Opened::Abandoned(_, bytes) => {
            assert_eq!(bytes, b"text");
            None
        }
        Opened::Untrusted(reason) => Some(reason),
        Opened::InUse | Opened::Gone => panic!("it is there"),
    }
}

#[test]
fn a_file_that_others_read_or_write_or_with_special_bits_is_no_journal() {
    let (_dir, directory, path) = with_journal();
    assert_eq!(fault(&directory), None);
    for mode in [0o620, 0o602, 0o640, 0o604, 0o4600, 0o2600, 0o1600] {
        chmod(&path, mode);
        assert!(fault(&directory).unwrap().contains("mode"), "{mode:o}");
    }
    chmod(&path, 0o400);
    assert_eq!(fault(&directory), None);
}

#[test]
fn a_file_of_another_user_is_no_journal() {
    if !is_root() {
        return;
    }
    let (_dir, directory, path) = with_journal();
    chown(&path, Some(NOBODY), None).unwrap();
    assert!(fault(&directory).unwrap().contains("65534"));
}

#[test]
fn a_link_of_either_kind_is_no_journal() {
    let (dir, directory, path) = with_journal();
    let elsewhere = dir.path().join("elsewhere");
    fs::hard_link(&path, &elsewhere).unwrap();
    assert!(fault(&directory).unwrap().contains("second name"));
    fs::remove_file(&path).unwrap();
    symlink(&elsewhere, &path).unwrap();
    assert!(fault(&directory).unwrap().contains("symbolic link"));
}

#[test]
fn a_directory_a_pipe_and_a_file_without_end_are_no_journals() {
    let (dir, directory, path) = with_journal();
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(fault(&directory).unwrap().contains("regular"));
    fs::remove_dir(&path).unwrap();
    let pipe = rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::Fifo, PRIVATE_FILE, 0);
    pipe.unwrap();
    assert!(fault(&directory).unwrap().contains("regular"), "and nobody waits for its other end");
    fs::remove_file(&path).unwrap();
    drop(directory.create_file("1-0.journal").unwrap());
    fs::File::options().write(true).open(&path).unwrap().set_len(MAX_LEN + 1).unwrap();
    assert!(fault(&directory).unwrap().contains("longer"));
    drop(dir);
}

#[test]
fn a_file_that_is_written_is_locked_and_one_that_was_replaced_is_gone() {
    let (_dir, directory, _) = with_journal();
    let other = directory.create_file("2-0.journal").unwrap();
    assert!(matches!(directory.open_abandoned("2-0.journal").unwrap(), Opened::InUse));
    drop(other);
    assert!(matches!(directory.open_abandoned("2-0.journal").unwrap(), Opened::Abandoned(..)));
    assert!(directory.create_file("2-0.journal").is_err(), "never in place of another");
    directory.remove("2-0.journal").unwrap();
    assert!(matches!(directory.open_abandoned("2-0.journal").unwrap(), Opened::Gone));
}
