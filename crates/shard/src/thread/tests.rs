//! The loop with sources that never run dry: each direction has its turns whatever the other one
//! has to do.

use std::cell::{Cell, RefCell};
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::net::UnixDatagram;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::mpsc;
use vpnd_proto::policy::Policy;

use super::*;
use vpnd_sys::tun::TunOffloads;
use vpnd_sys::udp::{RecvMeta, SendOutcome, Transmit, UdpOffloads};

/// Calls of the socket and of the device that fit into one turn, and not into two: a gateway's
/// shard is behind and takes messages for 1 MiB, each for its 1,000 bytes of cost and the socket's
/// by the dozen.
const GATEWAY_CALLS: (usize, usize) = (40, 1_100);
/// The calls of a client, which handles what comes.
const CLIENT_CALLS: (usize, usize) = (10, 70);

/// The readiness that the kernel reports about a source, whatever the source then gives, and the
/// way to make it readable.
fn readiness() -> (TunQueue, UnixDatagram) {
    let (own, other) = UnixDatagram::pair().unwrap();
    own.set_nonblocking(true).unwrap();
    (TunQueue::adopt(own.into()), other)
}

/// The calls of the two devices, in their order.
#[derive(Default)]
struct Calls {
    /// Directions and how many calls each had in a row.
    rows: RefCell<Vec<(Direction, usize)>>,
    total: Cell<usize>,
}

impl Calls {
    fn note(&self, direction: Direction) {
        self.total.set(self.total.get() + 1);
        let mut rows = self.rows.borrow_mut();
        match rows.last_mut() {
            Some((last, count)) if *last == direction => *count += 1,
            _ => rows.push((direction, 1)),
        }
    }
}

/// Gives packets for no client, without end. After `most` calls of both devices it is gone.
struct Device {
    calls: Rc<Calls>,
    most: usize,
}

impl PacketDevice for Device {
    fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.calls.note(Direction::Out);
        if self.calls.total.get() >= self.most {
            return Err(io::ErrorKind::NotConnected.into());
        }
        buf[..20].fill(0);
        Ok(20)
    }

    fn try_write_vectored(&self, _: &[IoSlice<'_>]) -> io::Result<usize> {
        panic!("nothing is for the TUN device");
    }
}

/// Gives datagrams of no session, without end. In its tenth call the device becomes readable.
struct Socket {
    calls: Rc<Calls>,
    wakes_device: UnixDatagram,
}

impl DatagramSocket for Socket {
    fn try_recv(&self, bufs: &mut [IoSliceMut<'_>], meta: &mut [RecvMeta]) -> io::Result<usize> {
        self.calls.note(Direction::In);
        let total = self.calls.total.get();
        if total == 10 {
            self.wakes_device.send(b"x").unwrap();
        }
        assert!(total < 200_000, "the device never has its turn");
        for (buf, meta) in bufs.iter_mut().zip(&mut *meta) {
            buf[0] = 0;
            (meta.len, meta.stride) = (1, 1);
        }
        Ok(bufs.len())
    }

    fn try_send(&self, _: &Transmit<'_>) -> SendOutcome {
        panic!("nothing is to be sent");
    }

    fn try_send_many(&self, _: &[Transmit<'_>]) -> usize {
        panic!("nothing is to be sent");
    }

    fn wait_writable(&self, _: Duration) -> Duration {
        Duration::ZERO
    }

    fn offloads(&self) -> UdpOffloads {
        panic!("nobody asks");
    }
}

/// Runs the loop of a shard whose devices never run dry, until they had `most` calls. The TUN
/// device is readable from the tenth on. Returns which calls they had.
fn run_until(role: Role, most: usize) -> Vec<(Direction, usize)> {
    let calls = Rc::new(Calls::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        let ((tun, wakes_device), (socket, wakes_socket)) = (readiness(), readiness());
        let (tun, socket) = (tun.into_async().unwrap(), socket.into_async().unwrap());
        wakes_socket.send(b"x").unwrap();
        let devices =
            (Device { calls: Rc::clone(&calls), most }, Socket { calls: Rc::clone(&calls), wakes_device });
        let plane = Plane::new(role, Arc::new(Policy::default()), 0);
        let settings = (TunOffloads::ALL, 1_400);
        let mut shard = Shard::new(role, plane, settings, devices.0, devices.1);
        let (_queue, inbox) = mpsc::channel(1);
        let (_neighbour, misdirected) = mpsc::channel(1);
        let (events, _inbox) = mpsc::channel(1);
        let links = Links { inbox, misdirected, neighbours: Vec::new(), events, stir: Arc::default() };
        run_loop(&mut shard, (&tun, &socket), links).await.expect_err("the device is gone");
    });
    calls.rows.take()
}

#[test]
fn a_socket_that_never_runs_dry_does_not_keep_the_other_direction_out() {
    for (role, (calls_in, _)) in [(Role::Gateway, GATEWAY_CALLS), (Role::Client, CLIENT_CALLS)] {
        // The turn in which the device became readable was ended, and that of the device came.
        let rows = run_until(role, 0);
        assert!(matches!(rows[..], [(Direction::In, 10..), (Direction::Out, 1)]), "{role:?}: {rows:?}");
        assert!(rows[0].1 <= 10 + calls_in, "{role:?}: {rows:?}");
    }
}

#[test]
fn directions_that_both_have_work_take_turns() {
    for (role, (calls_in, calls_out)) in [(Role::Gateway, GATEWAY_CALLS), (Role::Client, CLIENT_CALLS)] {
        let rows = run_until(role, 50_000);
        assert!(rows.len() > 40, "{role:?}: {rows:?}");
        // In the first row the socket was alone.
        let most = |direction| rows[1..].iter().filter(|row| row.0 == direction).map(|row| row.1).max();
        assert!(most(Direction::In) <= Some(calls_in) && most(Direction::Out) <= Some(calls_out), "{rows:?}");
    }
}

/// The calling thread's priority and slice in the kernel's words; nothing where it shows neither.
fn scheduling() -> Vec<String> {
    let shown = std::fs::read_to_string("/proc/thread-self/sched").unwrap_or_default();
    let lines = shown.lines().filter(|line| line.starts_with("prio ") || line.starts_with("se.slice "));
    lines.map(str::to_owned).collect()
}

#[test]
fn a_shard_without_priority_is_scheduled_as_any_other_thread() {
    let scheduled = std::thread::spawn(|| {
        let before = scheduling();
        take_priority(0, true);
        let without = scheduling();
        take_priority(7, true);
        let with = scheduling();
        assert_eq!(without, before);
        let has_slices = process::shorten_current_slice(SLICE).is_ok();
        assert!(with != before || !has_slices || before.is_empty(), "{with:?}");
    });
    scheduled.join().unwrap();
}
