//! Any bytes from another host of an experiment, at either end: nothing panics or is kept without a
//! bound, no peer without the token gets past the greeting, and what is read can be written and is
//! then read as the same.
//!
//! Input: one byte that chooses the pieces in which the bytes come, and the bytes.

use std::io::{BufReader, Read};
use std::sync::LazyLock;

use trafficspeed::coordinate::message::{Command, Report};
use trafficspeed::coordinate::token::{Token, demand, prove};
use trafficspeed::line::{LineReader, LineWriter};
use trafficspeed::load::task::Task;

static TOKEN: LazyLock<Token> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("fuzzing-token-{}", std::process::id()));
    Token::create(&path).expect("a file can be written");
    let token = Token::read(&path).expect("it was written just now");
    std::fs::remove_file(&path).expect("it was written just now");
    token
});

/// Checks one input.
pub(crate) fn run(data: &[u8]) {
    let Some((piece, bytes)) = data.split_first() else { return };
    let piece = usize::from(*piece) + 1;
    let input = || BufReader::with_capacity(piece, bytes);
    let mut said = Vec::new();
    assert!(demand(&TOKEN, &mut input(), &mut said).is_err(), "somebody without the token is let in");
    // The greeting, which says nothing of the token.
    assert_eq!(said.iter().filter(|byte| **byte == b'\n').count(), 1);
    said.clear();
    assert!(prove(&TOKEN, &mut input(), &mut said).is_err(), "somebody without the token is believed");

    let whole = commands(bytes);
    assert_eq!(commands(input()), whole, "pieces make a difference");
    for command in whole {
        check_command(&command);
    }
    let mut reader = LineReader::new(bytes, None);
    while let Ok(Some(report)) = reader.read::<Report>() {
        LineWriter::new(std::io::sink(), None).write(&report).expect("what was read can be written");
    }
}

fn commands(input: impl Read) -> Vec<Command> {
    let mut reader = LineReader::new(BufReader::new(input), None);
    let mut commands = Vec::new();
    while let Ok(Some(command)) = reader.read() {
        commands.push(command);
    }
    commands
}

/// An agent checks the bounds of a command before it does anything.
fn check_command(command: &Command) {
    let mut written = Vec::new();
    LineWriter::new(&mut written, None).write(command).expect("what was read can be written");
    assert_eq!(
        LineReader::new(&written[..], None).read::<Command>().expect("it was written").as_ref(),
        Some(command)
    );
    let _ = match command {
        Command::TakeBlocks { blocks, .. } | Command::VerifyBlocks { blocks, .. } => blocks.problem(),
        Command::WriteBlocks(job) => job.problem(),
        Command::Prepare { tasks, .. } | Command::Reach { tasks, .. } => tasks.iter().find_map(Task::problem),
        _ => None,
    };
}
