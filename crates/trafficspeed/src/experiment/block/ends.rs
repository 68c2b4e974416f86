//! Writer and target of the block experiment as processes, and one connection between them at a time.

use std::io::BufReader;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::interrupt::Interrupt;
use crate::lab::namespace::Namespace;
use crate::line::{LineReader, LineWriter};
use crate::load::block::process::{ProcessReply, ProcessRequest};
use crate::load::block::target::Received;
use crate::load::block::writer::Wrote;
use crate::load::block::{Blocks, TargetJob, WriterJob};

/// How long an end may take for what needs no work.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a connection may last beyond the time that it was given.
const END_TIMEOUT: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(100);

/// Why a connection gave no result.
#[derive(Debug, thiserror::Error)]
pub enum EndsError {
    /// A process could not be started.
    #[error("starting the {end} of blocks: {source}")]
    Spawn { end: &'static str, source: std::io::Error },
    /// An end did not answer as it should.
    #[error("the {end} of blocks: {why}")]
    Failed {
        end: &'static str,
        /// Its report, if there was one.
        why: String,
    },
    /// The user ended it.
    #[error("interrupted")]
    Interrupted,
}

/// One end's process. It ends with this value.
struct End {
    name: &'static str,
    child: Child,
    orders: LineWriter<ChildStdin>,
    answers: Receiver<ProcessReply>,
}

impl End {
    fn start(name: &'static str, namespace: &Namespace) -> Result<Self, EndsError> {
        let start = || {
            let own = std::env::current_exe()?;
            let parent = std::process::id().to_string();
            Command::new(own)
                .args(["block-end", "--parent", &parent, "--netns", namespace.name()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
        };
        let mut child = start().map_err(|source| EndsError::Spawn { end: name, source })?;
        let orders = LineWriter::new(child.stdin.take().expect("its standard input is piped"), None);
        let output = child.stdout.take().expect("its standard output is piped");
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            let mut lines = LineReader::new(BufReader::new(output), None);
            while let Ok(Some(answer)) = lines.read() {
                if sender.send(answer).is_err() {
                    return;
                }
            }
        });
        Ok(Self { name, child, orders, answers })
    }

    fn failed(&self, why: impl Into<String>) -> EndsError {
        EndsError::Failed { end: self.name, why: why.into() }
    }

    fn order(&mut self, order: &ProcessRequest) -> Result<(), EndsError> {
        self.orders.write(order).map_err(|error| self.failed(error.to_string()))
    }

    fn answer(&self, timeout: Duration, interrupt: &Interrupt) -> Result<ProcessReply, EndsError> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.answers.recv_timeout(POLL) {
                Ok(ProcessReply::Failed(why)) => return Err(self.failed(why)),
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(self.failed("its process has ended")),
                Err(RecvTimeoutError::Timeout) if interrupt.is_set() => return Err(EndsError::Interrupted),
                Err(RecvTimeoutError::Timeout) if Instant::now() > deadline => {
                    return Err(self.failed("it did not answer in time"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct Ends {
    writer: End,
    target: End,
}

#[derive(Clone, Copy, Debug)]
pub struct Connection<'a> {
    pub blocks: &'a Blocks,
    pub file: &'a Path,
    /// Sync before each answer.
    pub sync: bool,
    /// Where the target is reached.
    pub address: IpAddr,
    /// Seed of the content.
    pub seed: u64,
    pub ahead: u32,
    pub warmup: Duration,
    pub duration: Duration,
}

impl Ends {
    /// # Errors
    /// [`EndsError::Spawn`].
    pub fn start(writer: &Namespace, target: &Namespace) -> Result<Self, EndsError> {
        Ok(Self { writer: End::start("writer", writer)?, target: End::start("target", target)? })
    }

    /// Makes one connection and says what both ends did. After an error the ends are of no more use.
    pub fn run(
        &mut self,
        connection: &Connection<'_>,
        interrupt: &Interrupt,
    ) -> Result<(Wrote, Received), EndsError> {
        let Connection { blocks, file, sync, address, .. } = *connection;
        self.target.order(&ProcessRequest::Receive(TargetJob {
            blocks: blocks.clone(),
            file: file.to_owned(),
            sync,
            bind: address,
        }))?;
        let ProcessReply::Listening(port) = self.target.answer(ANSWER_TIMEOUT, interrupt)? else {
            return Err(self.target.failed("it answered out of turn"));
        };
        self.writer.order(&ProcessRequest::Write(WriterJob {
            blocks: blocks.clone(),
            seed: connection.seed,
            ahead: connection.ahead,
            warmup_ms: connection.warmup.as_millis() as u64,
            duration_ms: connection.duration.as_millis() as u64,
            most_blocks: None,
            peer: SocketAddr::new(address, port),
        }))?;
        let timeout = connection.warmup + connection.duration + END_TIMEOUT;
        let ProcessReply::Wrote(wrote) = self.writer.answer(timeout, interrupt)? else {
            return Err(self.writer.failed("it answered out of turn"));
        };
        let ProcessReply::Received(received) = self.target.answer(END_TIMEOUT, interrupt)? else {
            return Err(self.target.failed("it answered out of turn"));
        };
        Ok((wrote, received))
    }
}
