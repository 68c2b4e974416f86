//! One end as a process of its own, so that its CPU time is its own: orders come as lines, answers leave as lines.

use std::fs::OpenOptions;
use std::io::{BufRead, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt;

use serde::{Deserialize, Serialize};

use super::target::{FileDisk, Received, serve};
use super::writer::{Wrote, write};
use super::{MAX_AHEAD, TargetJob, WriterJob};
use crate::coordinate::line::{LineError, LineReader, LineWriter};

/// What a coordinator wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Be the target of one connection.
    Receive(TargetJob),
    /// Be the writer of one connection.
    Write(WriterJob),
}

/// What the process says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The target waits for its writer on this port.
    Listening(u16),
    /// The target's connection is over.
    Received(Received),
    /// The writer's connection is over.
    Wrote(Wrote),
    /// It could not be done.
    Failed(String),
}

/// Obeys until the orders end.
///
/// # Errors
/// [`LineError`]: the coordinator is gone or speaks otherwise.
pub fn run(orders: impl BufRead, answers: impl Write) -> Result<(), LineError> {
    let mut orders = LineReader::new(orders, None);
    let mut answers = LineWriter::new(answers, None);
    while let Some(order) = orders.read()? {
        let answer = match order {
            Order::Receive(job) => receive(&job, &mut answers)?,
            Order::Write(job) => problem(&job)
                .map_or_else(|| write(&job).map(Answer::Wrote).unwrap_or_else(failed), Answer::Failed),
        };
        answers.write(&answer)?;
    }
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> Answer {
    Answer::Failed(error.to_string())
}

fn problem(job: &WriterJob) -> Option<String> {
    let ahead = || format!("{} blocks in progress asked for, 1 to {MAX_AHEAD} are possible", job.ahead);
    job.blocks.problem().or_else(|| (!(1..=MAX_AHEAD).contains(&job.ahead)).then(ahead))
}

fn receive(job: &TargetJob, answers: &mut LineWriter<impl Write>) -> Result<Answer, LineError> {
    if let Some(problem) = job.blocks.problem() {
        return Ok(Answer::Failed(problem));
    }
    let open = || {
        let file = OpenOptions::new().write(true).open(&job.file)?;
        let kind = file.metadata()?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(std::io::Error::other("it is neither a file nor a block device"));
        }
        Ok(file)
    };
    let file = match open() {
        Ok(file) => file,
        Err(error) => return Ok(Answer::Failed(format!("opening {}: {error}", job.file.display()))),
    };
    let listening = TcpListener::bind(SocketAddr::new(job.bind, 0))
        .and_then(|listener| Ok((listener.local_addr()?.port(), listener)));
    let (port, listener) = match listening {
        Ok(listening) => listening,
        Err(error) => return Ok(Answer::Failed(format!("listening on {}: {error}", job.bind))),
    };
    answers.write(&Answer::Listening(port))?;
    let disk = FileDisk { file, sync: job.sync };
    Ok(serve(&listener, &job.blocks, &disk).map(Answer::Received).unwrap_or_else(failed))
}
