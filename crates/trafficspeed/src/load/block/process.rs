//! One end as a process of its own, so that its CPU time is its own: orders come as lines, answers leave as lines.

use std::fs::OpenOptions;
use std::io::{BufRead, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::target::{FileDisk, Received, serve};
use super::writer::{Wrote, write};
use super::{TargetJob, WriterJob};
use crate::line::{LineError, LineReader, LineWriter};
use crate::load::congestion::CongestionControl;

/// From the coordinator to the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessRequest {
    /// Be the target of one connection.
    Receive(TargetJob),
    /// Be the writer of one connection.
    Write(WriterJob),
}

/// From the process to the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessReply {
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
        // Whoever gives the orders ends the process, so nothing else has to stop it.
        let answer = match order {
            ProcessRequest::Receive(job) => receive(&job, &mut answers)?,
            ProcessRequest::Write(job) => job.problem().map_or_else(
                || write(&job, &mut || false).map(ProcessReply::Wrote).unwrap_or_else(failed),
                ProcessReply::Failed,
            ),
        };
        answers.write(&answer)?;
    }
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> ProcessReply {
    ProcessReply::Failed(error.to_string())
}

fn receive(job: &TargetJob, answers: &mut LineWriter<impl Write>) -> Result<ProcessReply, LineError> {
    if let Some(problem) = job.blocks.problem() {
        return Ok(ProcessReply::Failed(problem));
    }
    let (disk, listener, port) = match open(&job.file, job.sync, job.bind, job.blocks.congestion) {
        Ok(opened) => opened,
        Err(why) => return Ok(ProcessReply::Failed(why)),
    };
    answers.write(&ProcessReply::Listening(port))?;
    Ok(serve(&listener, &job.blocks, &disk, &mut || false).map(ProcessReply::Received).unwrap_or_else(failed))
}

/// Opens the file or device of a target and a port on `bind` for its writer; the port.
///
/// # Errors
/// In words, what could not be opened and why.
pub fn open(
    file: &Path,
    sync: bool,
    bind: IpAddr,
    congestion: CongestionControl,
) -> Result<(FileDisk, TcpListener, u16), String> {
    let opened = OpenOptions::new().write(true).open(file).and_then(|file| {
        let kind = file.metadata()?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(std::io::Error::other("it is neither a file nor a block device"));
        }
        Ok(FileDisk { file, sync })
    });
    let disk = opened.map_err(|error| format!("opening {}: {error}", file.display()))?;
    let listening = TcpListener::bind(SocketAddr::new(bind, 0)).and_then(|listener| {
        congestion.set(&listener)?;
        Ok((listener.local_addr()?.port(), listener))
    });
    let (port, listener) = listening.map_err(|error| format!("listening on {bind}: {error}"))?;
    Ok((disk, listener, port))
}
