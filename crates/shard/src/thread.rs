//! A shard's thread: its place on the machine, and the loop that waits for work.
//!
//! INVARIANTS: the loop is its runtime's only task, and gives the runtime its turn after each piece
//! of work that leaves some, and while it polls: so it learns what else has become ready although
//! one source never runs dry. The two directions then take turns, and messages of the control plane
//! wait no longer than one batch takes.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::runtime::Runtime;
use vpnd_proto::plane::{Plane, Role};

use super::busy_poll::BusyPoll;
use super::devices::{DatagramSocket, PacketDevice};
use super::hand_off::HandOff;
use super::{
    Freeze, Links, Misdirected, Progress, Queued, Shard, ShardMessage, ShardProgress, ShardSpec, now,
};
use vpnd_sys::process;
use vpnd_sys::tun::TunQueue;

/// The scheduler's slice of a shard with priority: the shortest that Linux gives. So it is the
/// first of its kind to run when a packet wakes it up, also where its nice value is refused.
const SLICE: Duration = Duration::from_micros(100);

/// Runs the shard on the calling thread until the control plane is gone.
///
/// # Errors
/// If its device or socket is gone.
pub(super) fn run_thread(runtime: Runtime, spec: ShardSpec, links: Links) -> io::Result<()> {
    if let Some(core) = spec.core
        && let Err(error) = process::pin_current_thread(core)
    {
        tracing::warn!(shard = spec.number, core, %error, "can't pin the shard to its core");
    }
    // It goes the same way for all of them.
    take_priority(spec.priority, spec.number == 0);
    runtime.block_on(run(spec, links))
}

/// Puts the calling thread before other work of the machine by its nice value and its slice. With
/// priority 0, as a client's, it asks the scheduler for nothing. `logs` is whether to log refusals.
fn take_priority(priority: u8, logs: bool) {
    if priority == 0 {
        return;
    }
    if let Err(error) = process::prefer_current_thread(priority)
        && logs
    {
        tracing::warn!(
            priority,
            %error,
            "can't put shards before other work; that needs CAP_SYS_NICE, or LimitNICE=-20 in the service's unit, which the host of a \
             container has to permit",
        );
    }
    if let Err(error) = process::shorten_current_slice(SLICE)
        && logs
    {
        tracing::debug!(%error, "shards have the usual time slice: only Linux 6.12 and newer give shorter ones");
    }
}

/// Makes the shard, and runs its loop.
async fn run(mut spec: ShardSpec, mut links: Links) -> io::Result<()> {
    if spec.role == Role::Client
        && let Err(error) = spec.tun.write_together()
    {
        tracing::debug!(shard = spec.number, %error, "packets for the TUN device are written one by one: there is no Linux AIO");
    }
    let tun = spec.tun.into_async()?;
    let socket = spec.socket.into_async()?;
    let mut plane = Plane::new(spec.role, spec.policy, spec.hash_seed);
    plane.set_copies_dscp(spec.copy_dscp);
    let settings = (spec.tun_offloads, spec.mtu);
    let mut shard = Shard::new(spec.role, plane, settings, tun.get_ref(), socket.get_ref());
    // A client's shard opens whatever comes to it.
    let is_gateway = spec.role == Role::Gateway;
    let neighbours = if is_gateway { std::mem::take(&mut links.neighbours) } else { Vec::new() };
    shard.hand_off = HandOff { number: spec.number, neighbours, quic: spec.quic, wireguard: spec.wireguard };
    shard.busy_poll = BusyPoll::new(spec.busy_poll);
    for command in spec.first {
        shard.handle(ShardMessage::Plane(command));
    }
    run_loop(&mut shard, (&tun, &socket), links).await
}

/// The loop: whichever of messages, events and the two directions has work. It waits for `tun` and
/// `socket`.
async fn run_loop<T: PacketDevice, S: DatagramSocket>(
    shard: &mut Shard<T, S>,
    (tun, socket): (&AsyncFd<TunQueue>, &AsyncFd<impl AsRawFd>),
    mut links: Links,
) -> io::Result<()> {
    let mut last = Direction::Out;
    loop {
        let turn = tokio::select! {
            queued = links.inbox.recv() => Turn::Message(queued),
            // Only while the control plane is behind; otherwise events have left after the batch
            // that brought them.
            room = links.events.reserve(), if shard.tunnel.plane.has_events() => {
                if let Ok(room) = room && let Some(event) = shard.poll_event() {
                    room.send(event);
                }
                Turn::Done
            }
            Some(misdirected) = links.misdirected.recv() => Turn::Work(Work::Misdirected(misdirected)),
            ready = next_ready(tun, socket, last) => Turn::Work(ready?),
            // The runtime asks the kernel what is ready, without sleeping, before it comes back
            // here.
            () = tokio::task::yield_now(), if shard.busy_poll.is_polling() => Turn::Look,
        };
        let mut progress = Progress::Drained;
        match turn {
            Turn::Message(None) => return Ok(()),
            Turn::Message(Some(Queued::Message(message))) => shard.handle(message),
            Turn::Message(Some(Queued::Freeze(freeze))) => {
                if !shard.freeze(freeze).await {
                    return Ok(());
                }
            }
            Turn::Look => shard.offer_core(),
            Turn::Done => {}
            Turn::Work(work) => {
                last = work.direction().unwrap_or(last);
                progress = shard.carry_out(work)?;
                links.stir.note();
            }
        }
        shard.report_events(&links.events);
        shard.marks_log.look_at(shard.tunnel.plane.counters(), now);
        if progress == Progress::More {
            // Its source stays ready, so waiting for that would never ask the kernel about the
            // others.
            tokio::task::yield_now().await;
        }
    }
}

/// The source of packets that has some; if both have, the one that did not have the last turn.
async fn next_ready<'a, S: AsRawFd>(
    tun: &'a AsyncFd<TunQueue>,
    socket: &'a AsyncFd<S>,
    last: Direction,
) -> io::Result<Work<'a, S>> {
    // A deleted device has an error and is never readable.
    let transmit = tun.ready(Interest::READABLE | Interest::ERROR);
    let receive = socket.readable();
    Ok(match last {
        Direction::In => tokio::select! {
            biased;
            ready = transmit => Work::Transmit(ready?),
            ready = receive => Work::Receive(ready?),
        },
        Direction::Out => tokio::select! {
            biased;
            ready = receive => Work::Receive(ready?),
            ready = transmit => Work::Transmit(ready?),
        },
    })
}

/// A direction of packets, seen from the gateway's or client's own machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    In,
    Out,
}

/// Reason why the loop goes round.
enum Turn<'a, S: AsRawFd> {
    /// `None` when the control plane is gone.
    Message(Option<Queued>),
    Work(Work<'a, S>),
    /// A look while polling found nothing.
    Look,
    Done,
}

/// Packets to handle.
enum Work<'a, S: AsRawFd> {
    Misdirected(Misdirected),
    Receive(AsyncFdReadyGuard<'a, S>),
    Transmit(AsyncFdReadyGuard<'a, TunQueue>),
}

impl<S: AsRawFd> Work<'_, S> {
    /// The direction whose turn it is.
    fn direction(&self) -> Option<Direction> {
        match self {
            Self::Misdirected(_) => None,
            Self::Receive(_) => Some(Direction::In),
            Self::Transmit(_) => Some(Direction::Out),
        }
    }
}

impl<T: PacketDevice, S: DatagramSocket> Shard<T, S> {
    /// Handles packets, and notes the wait that they ended. Returns whether their source has more.
    fn carry_out(&mut self, work: Work<'_, impl AsRawFd>) -> io::Result<Progress> {
        let notes_waits = self.busy_poll.is_enabled();
        if notes_waits {
            self.busy_poll.wait_ended(now());
        }
        let progress = match work {
            Work::Misdirected(misdirected) => {
                self.handle_misdirected(misdirected);
                Progress::Drained
            }
            Work::Receive(mut ready) => {
                let progress = self.receive();
                if progress == Progress::Drained {
                    ready.clear_ready();
                }
                progress
            }
            Work::Transmit(mut ready) => {
                let progress = self.transmit()?;
                if progress == Progress::Drained {
                    ready.clear_ready();
                }
                progress
            }
        };
        if notes_waits {
            self.busy_poll.wait_began(now());
        }
        Ok(progress)
    }

    /// Lets other threads run, between two looks.
    fn offer_core(&mut self) {
        let before = now();
        process::yield_core();
        self.busy_poll.look_failed(before, now());
    }

    /// Stands still; whether it is to resume.
    async fn freeze(&mut self, Freeze { progress, resume }: Freeze) -> bool {
        // No other process has it: the next one gets only what is still in the socket and the
        // device.
        self.handle_backlog();
        // The caller may have given up; then it drops the other end, too.
        let plane = &self.tunnel.plane;
        let opened = plane.opened_by_wireguard().collect();
        let _ = progress.send(ShardProgress { lanes: plane.progress(), opened });
        resume.await.is_ok()
    }
}

#[cfg(test)]
mod tests;
