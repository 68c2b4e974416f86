//! The target: takes blocks, writes them, and answers once they are on disk.
//!
//! Two threads: one receives, opens and writes; the other syncs and answers. While a sync runs,
//! further blocks are received and written, and the next sync and answer cover all of them (group
//! commit).
//!
//! INVARIANT: the answer n is sent after a sync that began after blocks 0 to n-1 had been written.
//! After any error of the disk no answer is sent any more.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::seal::{self, End, Opener, Salt, Sealer};
use super::{BlockError, Blocks, Frame, HEADER_BYTES, IDLE_TIMEOUT, MAX_AHEAD, Protection, READY};
use crate::clock;
use crate::load::congestion::CongestionControl;

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
    /// Whether [`Disk::sync`] does anything: without it an answer only means that the kernel has
    /// the block.
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

/// Takes one connection and serves it until the writer is done or something fails. `stopped` is
/// asked until the writer has come.
///
/// # Errors
/// [`BlockError`] when no writer that holds the secret came; later failures are in
/// [`Received::fault`].
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
    let words = Words { stream: &answers, sealer: Mutex::new(sealer) };
    let (taking, committing) = std::thread::scope(|scope| {
        let words = &words;
        let committer = scope.spawn(move || {
            let mut committer = Committer { words, disk, done: Received::default() };
            let ended = committer.run(&to_commit);
            if ended.is_err() {
                // The receiver must not wait for a writer that waits for an answer.
                let _ = words.stream.shutdown(Shutdown::Both);
            }
            (ended, committer.done)
        });
        let mut taker =
            Taker { stream: &stream, words, blocks, disk, opener, commanded: 0, done: &mut received };
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
    let keys =
        sealed.then(|| seal::keys(&blocks.secret, blocks.sealing, End::Target, (&writer_salt, &own_salt)));
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

/// Whatever the target says after the greeting.
struct Words<'a> {
    stream: &'a TcpStream,
    sealer: Mutex<Option<Sealer>>,
}

impl Words<'_> {
    fn say(&self, word: u64) -> Result<(), BlockError> {
        let mut bytes = [0; 8 + seal::TAG_BYTES];
        bytes[..8].copy_from_slice(&word.to_le_bytes());
        // Held until it is sent: the other end opens records in the order in which they were
        // sealed.
        let mut sealer = self.sealer.lock().expect("nothing panics with it");
        let len = match sealer.as_mut() {
            Some(sealer) => {
                sealer.seal(&[], &mut bytes)?;
                bytes.len()
            }
            None => 8,
        };
        (&mut &*self.stream).write_all(&bytes[..len]).map_err(BlockError::connection("answering"))
    }
}

/// Receives, opens and writes blocks.
struct Taker<'a, D> {
    stream: &'a TcpStream,
    words: &'a Words<'a>,
    blocks: &'a Blocks,
    disk: &'a D,
    opener: Option<Opener>,
    /// Blocks that the writer wants to send, where the target asks for them.
    commanded: u64,
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
            if self.blocks.ready_first && header == encode_header(self.blocks, self.commanded, Frame::Command)
            {
                self.ask_for_next()?;
                continue;
            }
            let frame = if self.blocks.ready_first { Frame::Data } else { Frame::Block };
            let is_asked_for = !self.blocks.ready_first || number < self.commanded;
            if !is_asked_for || header != encode_header(self.blocks, number, frame) {
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
            let failed = |source| BlockError::Disk { action: "write", source };
            self.disk.write_at(offset, plain).map_err(failed)?;
            self.done.write_ns += begin.elapsed().as_nanos() as u64;
            self.done.written += 1;
            if written.send(self.done.written).is_err() {
                // The committer has ended, and says why.
                return Ok(());
            }
        }
    }

    /// Says that the target is ready for the block that the writer has named.
    fn ask_for_next(&mut self) -> Result<(), BlockError> {
        if self.commanded - self.done.written >= u64::from(MAX_AHEAD) {
            return Err(BlockError::Broken("more commands than blocks may be in progress"));
        }
        self.words.say(READY | self.commanded)?;
        self.commanded += 1;
        Ok(())
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
pub(super) fn encode_header(blocks: &Blocks, number: u64, frame: Frame) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&number.to_le_bytes());
    header[8..16].copy_from_slice(&blocks.offset(number).to_le_bytes());
    header[16..20].copy_from_slice(&blocks.block_bytes.to_le_bytes());
    header[20..].copy_from_slice(&(frame as u32).to_le_bytes());
    header
}

struct Committer<'a, D> {
    words: &'a Words<'a>,
    disk: &'a D,
    done: Received,
}

impl<D: Disk> Committer<'_, D> {
    fn run(&mut self, written: &Receiver<u64>) -> Result<(), BlockError> {
        while let Ok(first) = written.recv() {
            let newest = written.try_iter().last().unwrap_or(first);
            let begin = Instant::now();
            self.disk.sync().map_err(|source| BlockError::Disk { action: "sync", source })?;
            self.done.sync_ns += begin.elapsed().as_nanos() as u64;
            self.done.syncs += 1;
            self.words.say(newest)?;
            self.done.acknowledged = newest;
        }
        Ok(())
    }
}
