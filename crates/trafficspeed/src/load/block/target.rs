//! The target: takes blocks, writes them, and answers once they are on disk.
//!
//! Two threads: one receives, opens and writes; the other syncs and answers. While a sync runs, further blocks are
//! received and written, and the next sync and answer cover all of them (group commit).
//!
//! INVARIANT: the answer n is sent after a sync that began after blocks 0 to n-1 had been written. After any error of
//! the disk no answer is sent any more.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::seal::{self, End, Opener, Salt, Sealer};
use super::{BlockError, Blocks, HEADER_BYTES, IDLE_TIMEOUT, MAX_AHEAD, Protection};
use crate::clock;

pub trait Disk: Sync {
    /// Writes all of `data` at `offset`.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Returns once everything written before is safe.
    fn sync(&self) -> io::Result<()>;
}

/// A file or block device.
#[derive(Debug)]
pub struct FileDisk {
    pub file: File,
    /// Whether [`Disk::sync`] does anything: without it an answer only means that the kernel has the block.
    pub sync: bool,
}

impl Disk for FileDisk {
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    fn sync(&self) -> io::Result<()> {
        if self.sync { self.file.sync_data() } else { Ok(()) }
    }
}

/// The account of a target for one connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Received {
    pub written: u64,
    pub acknowledged: u64,
    pub open_ns: u64,
    pub write_ns: u64,
    pub sync_ns: u64,
    pub syncs: u64,
    /// CPU time of the process, ns.
    pub cpu_ns: u64,
    /// Why it ended, if not because the writer was done.
    pub fault: Option<String>,
}

/// Takes one connection and serves it until the writer is done or something fails. `stopped` is asked until the writer
/// has come.
///
/// # Errors
/// [`BlockError`] when no writer that holds the secret came; later failures are in [`Received::fault`].
pub fn serve(
    listener: &TcpListener,
    blocks: &Blocks,
    disk: &impl Disk,
    stopped: &mut dyn FnMut() -> bool,
) -> Result<Received, BlockError> {
    let cpu_before = clock::process_cpu_ns();
    let (stream, keys) = greet(listener, blocks, stopped)?;
    let (sealer, opener) = match keys {
        Some((sealer, opener)) => (Some(sealer), Some(opener)),
        None => (None, None),
    };
    let answers = stream.try_clone().map_err(BlockError::connection("sharing the connection"))?;
    let (written, to_commit) = sync_channel(MAX_AHEAD as usize);
    let mut received = Received::default();
    let (taking, committing) = std::thread::scope(|scope| {
        let committer = scope.spawn(move || {
            let mut committer = Committer { stream: &answers, disk, sealer, done: Received::default() };
            let ended = committer.run(&to_commit);
            if ended.is_err() {
                // The receiver must not wait for a writer that waits for an answer.
                let _ = answers.shutdown(Shutdown::Both);
            }
            (ended, committer.done)
        });
        let mut taker = Taker { stream: &stream, blocks, disk, opener, done: &mut received };
        let taking = taker.run(&written);
        drop(written);
        (taking, committer.join().expect("the committer does not panic"))
    });
    let (committed, done) = committing;
    received.acknowledged = done.acknowledged;
    (received.sync_ns, received.syncs) = (done.sync_ns, done.syncs);
    received.cpu_ns = clock::process_cpu_ns() - cpu_before;
    // A disk that failed is the reason; that the connection then ended is not.
    received.fault = committed.and(taking).err().map(|error| error.to_string());
    Ok(received)
}

type Keys = Option<(Sealer, Opener)>;

fn greet(
    listener: &TcpListener,
    blocks: &Blocks,
    stopped: &mut dyn FnMut() -> bool,
) -> Result<(TcpStream, Keys), BlockError> {
    let failed = BlockError::connection("greeting the writer");
    let stream = accept(listener, stopped)?;
    let greeting = || {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(IDLE_TIMEOUT))?;
        stream.set_write_timeout(Some(IDLE_TIMEOUT))?;
        let (mut salt, mut shown) = (Salt::default(), Salt::default());
        (&stream).read_exact(&mut salt)?;
        (&stream).read_exact(&mut shown)?;
        Ok((salt, shown))
    };
    let (writer_salt, shown) = greeting().map_err(&failed)?;
    if !seal::is_proof(&blocks.secret, &writer_salt, &shown) {
        return Err(BlockError::NotAuthentic);
    }
    let own_salt: Salt = rand::random();
    (&stream).write_all(&own_salt).map_err(&failed)?;
    let sealed = blocks.protection == Protection::Sealed;
    let keys = sealed.then(|| seal::keys(&blocks.secret, End::Target, &writer_salt, &own_salt));
    Ok((stream, keys))
}

fn accept(listener: &TcpListener, stopped: &mut dyn FnMut() -> bool) -> Result<TcpStream, BlockError> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let failed = BlockError::connection("waiting for the writer");
    let while_waiting = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    let deadline = Instant::now() + IDLE_TIMEOUT;
    loop {
        let mut ready = [PollFd::new(listener, PollFlags::IN)];
        match rustix::io::retry_on_intr(|| poll(&mut ready, Some(&while_waiting))) {
            Ok(0) if stopped() => return Err(BlockError::Stopped),
            Ok(0) if Instant::now() > deadline => return Err(failed(io::ErrorKind::TimedOut.into())),
            Ok(0) => {}
            Ok(_) => return listener.accept().map(|(stream, _)| stream).map_err(failed),
            Err(error) => return Err(failed(error.into())),
        }
    }
}

/// Receives, opens and writes blocks.
struct Taker<'a, D> {
    stream: &'a TcpStream,
    blocks: &'a Blocks,
    disk: &'a D,
    opener: Option<Opener>,
    done: &'a mut Received,
}

impl<D: Disk> Taker<'_, D> {
    fn run(&mut self, written: &SyncSender<u64>) -> Result<(), BlockError> {
        let plain = self.blocks.block_bytes as usize;
        let mut data = vec![0; if self.opener.is_some() { seal::sealed_len(plain) } else { plain }];
        loop {
            let mut header = [0; HEADER_BYTES];
            if !self.read_header(&mut header)? {
                return Ok(());
            }
            let number = self.done.written;
            if header != encode_header(self.blocks, number) {
                return Err(BlockError::Broken("a block that is not the next one"));
            }
            let lost = BlockError::connection("receiving a block");
            (&mut self.stream).read_exact(&mut data).map_err(lost)?;
            let plain = match &mut self.opener {
                Some(opener) => {
                    let begin = Instant::now();
                    let len = opener.open(&header, &mut data)?;
                    self.done.open_ns += begin.elapsed().as_nanos() as u64;
                    &data[..len]
                }
                None => &data[..],
            };
            let begin = Instant::now();
            let offset = self.blocks.offset(number);
            let failed = |source| BlockError::Disk { what: "write", source };
            self.disk.write_at(offset, plain).map_err(failed)?;
            self.done.write_ns += begin.elapsed().as_nanos() as u64;
            self.done.written += 1;
            if written.send(self.done.written).is_err() {
                // The committer has ended, and says why.
                return Ok(());
            }
        }
    }

    /// Reads a header; false where the writer has ended in order, between two blocks.
    fn read_header(&mut self, header: &mut [u8; HEADER_BYTES]) -> Result<bool, BlockError> {
        let lost = BlockError::connection("waiting for a block");
        let mut filled = 0;
        while filled < HEADER_BYTES {
            match (&mut self.stream).read(&mut header[filled..]) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => return Err(lost(io::ErrorKind::UnexpectedEof.into())),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(lost(error)),
            }
        }
        Ok(true)
    }
}

/// The header of block `number`. It is authenticated with each record of a sealed block.
pub(super) fn encode_header(blocks: &Blocks, number: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&number.to_le_bytes());
    header[8..16].copy_from_slice(&blocks.offset(number).to_le_bytes());
    header[16..20].copy_from_slice(&blocks.block_bytes.to_le_bytes());
    header
}

struct Committer<'a, D> {
    stream: &'a TcpStream,
    disk: &'a D,
    sealer: Option<Sealer>,
    done: Received,
}

impl<D: Disk> Committer<'_, D> {
    fn run(&mut self, written: &Receiver<u64>) -> Result<(), BlockError> {
        while let Ok(first) = written.recv() {
            let newest = written.try_iter().last().unwrap_or(first);
            let begin = Instant::now();
            self.disk.sync().map_err(|source| BlockError::Disk { what: "sync", source })?;
            self.done.sync_ns += begin.elapsed().as_nanos() as u64;
            self.done.syncs += 1;
            let mut answer = [0; 8 + seal::TAG_BYTES];
            answer[..8].copy_from_slice(&newest.to_le_bytes());
            let len = match &mut self.sealer {
                Some(sealer) => {
                    sealer.seal(&[], &mut answer)?;
                    answer.len()
                }
                None => 8,
            };
            (&mut self.stream).write_all(&answer[..len]).map_err(BlockError::connection("answering"))?;
            self.done.acknowledged = newest;
        }
        Ok(())
    }
}
