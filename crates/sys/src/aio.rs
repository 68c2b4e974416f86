//! Several writes by one system call: Linux AIO (io_submit(2)), for descriptors on which a write is
//! done before the call returns.
//!
//! The gain is not the saved calls. Each write to a TUN device wakes up the program that its packet
//! is for, and the kernel switches threads no later than when the call returns: so it switches once
//! for all packets instead of once for each.
//!
//! INVARIANT: nothing is under way when a call of this module returns.

use std::cell::Cell;
use std::ffi::{c_long, c_ulong};
use std::io::{self, IoSlice};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use arrayvec::ArrayVec;

/// The most writes by one system call.
pub const MAX_WRITES: usize = 64;

/// `IOCB_CMD_PWRITEV` of `linux/aio_abi.h`.
const PWRITEV: u16 = 8;

/// `struct iocb` of `linux/aio_abi.h`: one write.
#[repr(C)]
struct Request {
    /// Comes back in the [`Event`].
    place: u64,
    /// The kernel's key, and flags of which none is set. Both are zero, so their order, which is
    /// not the same on all machines, is no matter.
    key_and_flags: u64,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    parts: u64,
    part_count: u64,
    offset: i64,
    reserved: u64,
    /// How the end of the write is to be reported otherwise; nothing.
    notify: u64,
}

impl Request {
    fn write(place: usize, descriptor: BorrowedFd<'_>, parts: &[IoSlice<'_>]) -> Self {
        Self {
            place: place as u64,
            key_and_flags: 0,
            opcode: PWRITEV,
            priority: 0,
            descriptor: descriptor.as_raw_fd() as u32,
            parts: parts.as_ptr() as u64,
            part_count: parts.len() as u64,
            offset: 0,
            reserved: 0,
            notify: 0,
        }
    }
}

/// `struct io_event` of `linux/aio_abi.h`: the result of a write.
#[repr(C)]
#[derive(Clone, Copy)]
struct Event {
    place: u64,
    request: u64,
    /// Bytes, or the negative number of an error.
    result: i64,
    more: i64,
}

impl Event {
    const EMPTY: Self = Self { place: 0, request: 0, result: 0, more: 0 };
}

const _: () = assert!(size_of::<Request>() == 64 && size_of::<Event>() == 32);

/// A thread's means of writing several times with one call.
pub struct Writes {
    context: c_ulong,
    /// Two threads would get each other's results.
    one_thread: PhantomData<Cell<()>>,
}

impl Writes {
    /// # Errors
    /// If the kernel has no AIO (`ENOSYS`), a filter forbids one of its calls, or the machine's
    /// `fs.aio-max-nr` is used up (`EAGAIN`).
    pub fn new() -> io::Result<Self> {
        let mut context: c_ulong = 0;
        // SAFETY: the call writes one integer, which is on this frame.
        check(unsafe { libc::syscall(libc::SYS_io_setup, MAX_WRITES as c_long, &raw mut context) })?;
        let writes = Self { context, one_thread: PhantomData };
        // Whatever stands against the other calls shows now rather than in the middle of packets.
        writes.submit(&[])?;
        writes.results(&mut [])?;
        Ok(writes)
    }

    /// Writes up to [`MAX_WRITES`] of `all`, each gathered from its parts, in order. Returns how
    /// many the kernel took, from the first on. `failed` gets place and error of each of these that
    /// was not written; it did not keep those behind it from being written.
    ///
    /// `descriptor` must be one on which a write is done when the call returns, like that of a
    /// device or socket, and that does not wait.
    pub fn write(
        &self,
        descriptor: BorrowedFd<'_>,
        all: &[&[IoSlice<'_>]],
        mut failed: impl FnMut(usize, io::Error),
    ) -> usize {
        let mut requests: ArrayVec<_, MAX_WRITES> = all
            .iter()
            .enumerate()
            .take(MAX_WRITES)
            .map(|(place, parts)| Request::write(place, descriptor, parts))
            .collect();
        let pointers: ArrayVec<_, MAX_WRITES> =
            requests.iter_mut().map(|request| &raw mut *request).collect();
        // Whatever is against the first one shows when it is written by itself.
        let taken = self.submit(&pointers).unwrap_or(0);
        let mut events = [Event::EMPTY; MAX_WRITES];
        let mut done = 0;
        while done < taken {
            done += self.results(&mut events[done..taken]).expect("the same call worked at first");
        }
        for event in events[..taken].iter().filter(|event| event.result < 0) {
            failed(event.place as usize, io::Error::from_raw_os_error(-event.result as i32));
        }
        taken
    }

    /// Has the kernel carry out requests. Returns how many it took, from the first on.
    fn submit(&self, requests: &[*mut Request]) -> io::Result<usize> {
        // SAFETY: the kernel reads the requests and writes their keys; the only caller that has any
        // keeps them where they are, and borrows what they point to, until it has their results.
        check(unsafe {
            libc::syscall(libc::SYS_io_submit, self.context, requests.len() as c_long, requests.as_ptr())
        })
    }

    /// Waits for as many results as there is room for. Returns how many it got, which are less
    /// after a signal.
    fn results(&self, events: &mut [Event]) -> io::Result<usize> {
        let count = events.len() as c_long;
        let no_timeout = std::ptr::null::<libc::timespec>();
        // SAFETY: the kernel writes at most `count` events, for which there is room.
        let answer = unsafe {
            libc::syscall(libc::SYS_io_getevents, self.context, count, count, events.as_mut_ptr(), no_timeout)
        };
        match check(answer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            result => result,
        }
    }
}

impl Drop for Writes {
    fn drop(&mut self) {
        // SAFETY: nothing is under way in the context, and no other code has its number. A filter
        // may forbid this: then it goes with the process.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

/// The answer of a system call.
fn check(answer: c_long) -> io::Result<usize> {
    usize::try_from(answer).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests;
