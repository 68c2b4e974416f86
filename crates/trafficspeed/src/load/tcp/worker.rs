//! One thread that moves the bytes of its share of the connections.
//!
//! Level-triggered epoll; one send or receive per event, so that no connection starves another. The
//! byte counters are written by this thread alone and read by the caller at any time.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::{ABORT, RUN, Shared, Stream, StreamTotal};
use crate::clock;

/// Most bytes that one receive takes; above what autotuning lets a socket hold for long.
const READ_BYTES: usize = 1 << 20;
/// How soon a quiet worker notices that the phase changed.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

struct Lane {
    /// Place in the shared counters.
    slot: usize,
    stream: Stream,
    bytes: u64,
    /// Has nothing more to do.
    done: bool,
    complete: bool,
    fault: Option<String>,
}

pub(super) struct Worker {
    shared: Arc<Shared>,
    epoll: OwnedFd,
    lanes: Vec<Lane>,
    /// Where payload is read to when it is checked; otherwise a target that the kernel never
    /// writes.
    scratch: Box<[u8]>,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, share: Vec<(usize, Stream)>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let lanes = share
            .into_iter()
            .map(|(slot, stream)| Lane { slot, stream, bytes: 0, done: false, complete: false, fault: None })
            .collect();
        Ok(Self { shared, epoll, lanes, scratch: vec![0; READ_BYTES].into_boxed_slice() })
    }

    /// Runs from `start_ns` until draining has ended or the caller gives up.
    pub(super) fn run(mut self, start_ns: u64) -> Vec<StreamTotal> {
        for at in 0..self.lanes.len() {
            self.watch(at);
        }
        clock::sleep_until(start_ns);
        let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
        let mut sending = true;
        while self.lanes.iter().any(|lane| !lane.done) {
            let phase = self.shared.phase.load(Ordering::Relaxed);
            if phase == ABORT {
                break;
            }
            if phase != RUN && sending {
                self.end_sending();
                sending = false;
            }
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&TICK)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    self.fail_all(&error.to_string());
                    break;
                }
            }
            for event in &events {
                let data = event.data;
                self.step(data.u64() as usize);
            }
        }
        self.lanes.into_iter().map(Lane::total).collect()
    }

    fn watch(&mut self, at: usize) {
        let lane = &mut self.lanes[at];
        let flags = if lane.stream.sends { epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
        let data = epoll::EventData::new_u64(at as u64);
        if let Err(error) = epoll::add(&self.epoll, &lane.stream.socket, data, flags) {
            lane.end(&self.epoll, &self.shared, Some(error.to_string()));
        }
    }

    /// One send or receive on the lane `at`.
    fn step(&mut self, at: usize) {
        let lane = &mut self.lanes[at];
        if lane.done {
            return;
        }
        let moved = if lane.stream.sends {
            lane.send(&self.shared)
        } else if self.shared.job.verify {
            lane.receive_checked(&self.shared, &mut self.scratch)
        } else {
            lane.receive(&mut self.scratch)
        };
        match moved {
            Ok(bytes) => {
                lane.bytes += bytes as u64;
                self.shared.bytes[lane.slot].store(lane.bytes, Ordering::Relaxed);
                if bytes == 0 && !lane.stream.sends {
                    lane.complete = true;
                    lane.end(&self.epoll, &self.shared, None);
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => {
                let fault = lane.fault.take().unwrap_or_else(|| error.to_string());
                lane.end(&self.epoll, &self.shared, Some(fault));
            }
        }
    }

    fn end_sending(&mut self) {
        for lane in self.lanes.iter_mut().filter(|lane| lane.stream.sends && !lane.done) {
            match lane.stream.socket.shutdown(Shutdown::Write) {
                Ok(()) => {
                    lane.complete = true;
                    lane.end(&self.epoll, &self.shared, None);
                }
                Err(error) => lane.end(&self.epoll, &self.shared, Some(error.to_string())),
            }
        }
    }

    fn fail_all(&mut self, reason: &str) {
        for lane in self.lanes.iter_mut().filter(|lane| !lane.done) {
            lane.end(&self.epoll, &self.shared, Some(reason.to_owned()));
        }
    }
}

impl Lane {
    fn send(&self, shared: &Shared) -> Result<usize, Errno> {
        let limit = shared.job.write_bytes as usize;
        let chunk = shared.payload.chunk(self.stream.index, self.bytes, limit);
        rustix::net::send(&self.stream.socket, chunk, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    /// Takes bytes off the connection without copying them: on TCP, MSG_TRUNC discards in the
    /// kernel.
    fn receive(&self, scratch: &mut [u8]) -> Result<usize, Errno> {
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        rustix::net::recv(&self.stream.socket, scratch, flags).map(|(_, bytes)| bytes)
    }

    fn receive_checked(&mut self, shared: &Shared, scratch: &mut [u8]) -> Result<usize, Errno> {
        let (_, bytes) = rustix::net::recv(&self.stream.socket, &mut *scratch, RecvFlags::DONTWAIT)?;
        if shared.payload.matches(self.stream.index, self.bytes, &scratch[..bytes]) {
            return Ok(bytes);
        }
        let (from, to) = (self.bytes, self.bytes + bytes as u64);
        self.fault = Some(format!("wrong payload between bytes {from} and {to}"));
        Err(Errno::BADMSG)
    }

    fn end(&mut self, epoll: &OwnedFd, shared: &Shared, fault: Option<String>) {
        // The connection stays open until the transfer is over: closing one with data unread would
        // reset it.
        self.done = true;
        self.fault = fault;
        let socket: &TcpStream = &self.stream.socket;
        if let Err(error) = epoll::delete(epoll, socket)
            && self.fault.is_none()
        {
            self.fault = Some(error.to_string());
        }
        if self.fault.is_some() {
            shared.broken.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn total(self) -> StreamTotal {
        StreamTotal {
            index: self.stream.index,
            sends: self.stream.sends,
            bytes: self.bytes,
            complete: self.complete,
            fault: self.fault,
        }
    }
}
