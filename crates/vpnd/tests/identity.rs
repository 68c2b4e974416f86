//! The real `vpnd` program: exit codes, and users that survive whatever kills it.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and helper functions of integration tests are not known as tests"
)]

use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use vpnd_store::Users as _;
use vpnd_store::sqlite::Sqlite;

fn vpnd(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vpnd"));
    command.current_dir(dir).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(dir: &Path, line: &str) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = vpnd(dir).args(line.split(' ')).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap())
}

/// A directory with a gateway in `v`.
fn initialised() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (code, text) = run(dir.path(), "init --dir v --name vpn.example.org");
    assert_eq!(code, Some(0), "{text}");
    dir
}

#[test]
fn exit_codes_tell_mistakes_from_failures() {
    let dir = initialised();
    let good = fs::read_to_string(dir.path().join("v/server.toml")).unwrap();
    fs::write(dir.path().join("v/bad.toml"), good.replace("pool_v4 =", "poool_v4 =")).unwrap();
    let unknown = "unknown key 'poool_v4' in [tunnel]; did you mean 'pool_v4'?";
    for (line, code, expected) in [
        ("user list --config v/server.toml", 0, "USER"),
        ("init --dir v --name vpn.example.org", 1, "exists already"),
        ("init --dir w --name a:b", 2, "neither a DNS name"),
        ("init --dir w", 2, "--name"),
        ("check v/bad.toml", 2, unknown),
        ("user list --config v/bad.toml", 2, unknown),
        ("check v/none.toml", 2, "can't read v/none.toml"),
        ("user disable ann --config v/server.toml", 1, "there is no user 'ann'"),
        ("user add a/b --config v/server.toml", 2, "can't be a name"),
        ("frobnicate", 2, "unrecognized subcommand"),
    ] {
        let (found, text) = run(dir.path(), line);
        assert_eq!(found, Some(code), "{line}: {text}");
        assert!(text.contains(expected), "{line}: {text}");
    }
}

#[test]
fn the_check_names_line_and_file() {
    let dir = initialised();
    fs::remove_file(dir.path().join("v/server-key.pem")).unwrap();
    let (code, text) = run(dir.path(), "check v/server.toml");
    let line = fs::read_to_string(dir.path().join("v/server.toml")).unwrap();
    let line = line.lines().position(|line| line.starts_with("key =")).unwrap() + 1;
    assert_eq!(code, Some(2));
    assert!(text.contains(&format!("v/server.toml:{line}: can't read v/server-key.pem")), "{text}");
}

#[test]
fn without_a_terminal_a_password_is_made_and_shown_once() {
    let dir = initialised();
    let (code, text) = run(dir.path(), "user add ann --config v/server.toml");
    assert_eq!(code, Some(0), "{text}");
    let password = text.lines().find_map(|line| line.strip_prefix("password, shown only now: ")).unwrap();
    let user = Sqlite::open(&dir.path().join("v/state/vpnd.db")).unwrap().user("ann").unwrap().unwrap();
    let typed = vpnd_store::password::Password::new(password.to_owned());
    assert!(vpnd_store::password::Hasher::default().verify(&typed, &user.password.unwrap()).unwrap());
}

/// Adds users and kills each `vpnd user add` after another delay, from before it does anything to
/// after it is done. A user who was reported as added is there, another is there whole or not
/// at all, and the file is sound.
#[test]
fn an_acknowledged_user_survives_kill_9() {
    let dir = initialised();
    let mut acknowledged = Vec::new();
    let mut killed = 0;
    for i in 0..30u64 {
        let name = format!("user{i}");
        let mut command = vpnd(dir.path());
        command.args(["user", "add", &name, "--config", "v/server.toml", "--group", "staff"]);
        command.args(["--password-fd", "0"]).stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"correct horse\n").unwrap();
        std::thread::sleep(Duration::from_millis(i * 7));
        child.kill().unwrap();
        let Output { status, stdout, .. } = child.wait_with_output().unwrap();
        killed += u32::from(status.signal() == Some(9));
        if String::from_utf8(stdout).unwrap().contains("added") {
            acknowledged.push(name);
        }
    }
    // Slow machine or fast: one more runs to its end, so that there is always something to lose.
    let (code, text) = run(dir.path(), "user add last --config v/server.toml --group staff");
    assert_eq!(code, Some(0), "{text}");
    acknowledged.push("last".to_owned());
    assert!(killed > 0, "no process was killed in time; nothing was tested");
    let users = Sqlite::open(&dir.path().join("v/state/vpnd.db")).unwrap().users().unwrap();
    for name in &acknowledged {
        assert!(users.iter().any(|user| user.name == *name), "{name} was acknowledged and is lost");
    }
    for user in &users {
        assert!(user.enabled && user.groups == ["staff"], "{user:?} is half there");
    }
}
