//! Output of the program without a laboratory: to a user who types its bare name or options of
//! another program, and into pipes whose reader has gone.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output, Stdio};

fn trafficspeed(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trafficspeed"));
    command.args(words);
    command
}

fn answer(words: &[&str]) -> String {
    let Output { status, stdout, stderr } = trafficspeed(words).output().expect("the program was built");
    assert_eq!((status.code(), stdout.len()), (Some(2), 0), "{words:?}");
    String::from_utf8(stderr).expect("text")
}

/// The writing end of a pipe without a reader.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("there are descriptors");
    drop(reader);
    writer.into()
}

#[test]
fn the_bare_name_shows_five_examples() {
    let said = answer(&[]);
    let examples = said.lines().filter(|line| line.starts_with("  trafficspeed ")).count();
    assert_eq!(examples, 5, "{said}");
    for line in said.lines().filter_map(|line| line.strip_prefix("  trafficspeed ")) {
        let words = line.split("  ").next().expect("one at least").trim();
        let mut words: Vec<&str> = words.split(' ').collect();
        words.push("--help");
        let output = trafficspeed(&words).output().expect("the program was built");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_overview_fits_a_screen_and_names_every_command() {
    let shown = |words: &[&str]| {
        let output = trafficspeed(words).output().expect("the program was built");
        assert!(output.status.success(), "{words:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let overview = shown(&["--help"]);
    assert_eq!(overview, shown(&["-h"]));
    assert!(overview.lines().count() <= 24, "{overview}");
    assert!(overview.lines().all(|line| line.chars().count() <= 100), "{overview}");
    let error = answer(&["nonexistent"]);
    let known = error.lines().find_map(|line| line.split("known ones: ").nth(1)).expect("the commands");
    for command in known.split(", ") {
        let named = overview.lines().any(|line| {
            line.strip_prefix("  ").is_some_and(|line| line.split([' ', ',']).any(|word| word == command))
        });
        assert!(named, "{command}: {overview}");
    }
    assert!(
        shown(&["lab", "--help"]).contains("--command-up"),
        "it has the options, and the example at its end"
    );
}

#[test]
fn the_options_of_iperf3_are_answered_with_the_way_here() {
    for words in [&["-c", "192.0.2.1"][..], &["-s"], &["stream", "-c", "192.0.2.1"]] {
        let said = answer(words);
        assert!(said.contains("trafficspeed serve --token-file FILE"), "{words:?}: {said}");
    }
    assert!(!answer(&["--clinets", "2"]).contains("token"));
}

#[test]
fn no_hidden_command_is_a_tip() {
    for mistyped in ["insid", "inside1", "hogg", "agen"] {
        let said = answer(&[mistyped]);
        for hidden in ["'inside'", "'hog'", "'agent'"] {
            assert!(!said.contains(hidden), "{said}");
        }
        assert!(said.contains("known ones: lab, compare"), "{said}");
    }
    assert!(answer(&["comprae"]).contains("'compare'"), "others are");
    assert!(answer(&["soak"]).contains("vpnd-endurance soak"));
}

#[test]
fn a_closed_output_pipe_ends_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let token = directory.path().join("token");
    let token = token.to_str().expect("text");
    for words in [&["completions", "bash"][..], &["doctor", "-J"], &["token", token]] {
        let output = trafficspeed(words).stdout(unread()).output().expect("the program was built");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.signal().is_none() && output.status.code() < Some(2), "{words:?}: {said}");
        assert_eq!(said, "", "{words:?}");
    }
    assert!(std::fs::metadata(token).is_ok(), "what it was to do is done");
    for words in [&[][..], &["token", token]] {
        let status = trafficspeed(words).stderr(unread()).stdout(unread()).status();
        assert_eq!(status.expect("the program was built").code(), Some(2), "{words:?}");
    }
}

#[test]
fn unwritable_results_are_a_failure_and_a_closed_pipe_is_none() {
    let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let output = trafficspeed(&["completions", "bash"]).stdout(full).output().expect("the program was built");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("trafficspeed: writing to standard output: "), "{said}");
    let output =
        trafficspeed(&["completions", "bash"]).stdout(unread()).output().expect("the program was built");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
