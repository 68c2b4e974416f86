//! Writing to the TUN device, several packets at once, and what to do when the kernel refuses.
//!
//! A refused packet that leaves work to the kernel is written again as ordinary packets with full
//! checksums, so that a kernel without the offload costs speed and no data. If that helps and
//! happens [`MAX_REFUSALS`] times in a row, the shard does not leave it that work any more. If it
//! does not help, the packet is to blame and not the offload.
//!
//! This concerns what is written only: what is read comes with the offloads that were agreed on
//! when the device was made.
//!
//! INVARIANT: packets are written in the order in which they came, but for one that is written
//! again: others that came with it are before it then.

use std::io::{self, IoSlice};
use std::iter::Peekable;

use arrayvec::ArrayVec;
use rustix::io::Errno;
use vpnd_packet::offload::{Held, Needs, Rebuilt, TunFeatures};
use vpnd_proto::plane::{Counters, DropReason};

use super::devices::PacketDevice;
use vpnd_sys::aio::MAX_WRITES;
use vpnd_sys::tun::TunOffloads;

/// The most slices by one system call.
const MAX_SLICES: usize = 512;
const _: () = assert!(MAX_SLICES >= Rebuilt::MAX_SLICES);

/// After this many refusals in a row an offload is given up.
const MAX_REFUSALS: u32 = 3;

/// The state of the offloads of a shard's writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunWrites {
    /// Packets that the kernel refused as they were and took as ordinary ones.
    pub refused: u64,
    /// Checksums are completed here because the kernel refused to.
    pub gave_up_checksum: bool,
    /// TCP super-packets are not made any more because the kernel refused them.
    pub gave_up_tso: bool,
    /// UDP super-packets are not made any more because the kernel refused them.
    pub gave_up_uso: bool,
}

/// Writes a shard's packets.
pub(super) struct Writer {
    /// Packets to be written, whose bytes stand in the shard's buffers.
    held: Held,
    features: TunFeatures,
    /// Refusals in a row, by what was asked for.
    streaks: [u32; 4],
    state: TunWrites,
}

impl Writer {
    pub(super) fn new(offloads: TunOffloads) -> Self {
        // A packet that does not fit any more comes with those that were collected before it.
        let held = Held::with_capacity(2 * MAX_WRITES, 2 * MAX_SLICES);
        Self { held, features: features(offloads), streaks: [0; 4], state: TunWrites::default() }
    }

    /// The features that the device is known to have.
    pub(super) fn features(&self) -> TunFeatures {
        self.features
    }

    pub(super) fn state(&self) -> TunWrites {
        self.state
    }

    /// Takes what the rebuilder made out of the buffer of this number. The buffer must stay as it
    /// is until this is written.
    #[inline]
    pub(super) fn hold(&mut self, buffer: usize, rebuilt: &Rebuilt<'_>) {
        self.held.push(buffer, rebuilt);
    }

    /// Whether one system call could hardly take more than is held.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.held.len() >= MAX_WRITES || self.held.len() + self.held.packets() >= MAX_SLICES
    }

    /// Writes what is held, which stands in `buffers`. Packets that the device does not take are
    /// counted in `drops`.
    pub(super) fn write(
        &mut self,
        tun: &impl PacketDevice,
        buffers: &[impl AsRef<[u8]>],
        drops: &mut Counters,
    ) {
        // It leaves its place for as long as refusals change the rest.
        let mut held = std::mem::take(&mut self.held);
        let mut rest = held.iter(buffers).peekable();
        while rest.peek().is_some() {
            self.write_some(tun, &mut rest, drops);
        }
        drop(rest);
        held.clear();
        self.held = held;
    }

    /// Writes as many as go with one system call.
    fn write_some<'a>(
        &mut self,
        tun: &impl PacketDevice,
        rest: &mut Peekable<impl Iterator<Item = Rebuilt<'a>>>,
        drops: &mut Counters,
    ) {
        let mut group = ArrayVec::<_, MAX_WRITES>::new();
        let mut slices = ArrayVec::<_, MAX_SLICES>::new();
        let mut ends = ArrayVec::<_, MAX_WRITES>::new();
        while !group.is_full()
            && let Some(rebuilt) = rest.next_if(|next| next.max_slices() <= slices.remaining_capacity())
        {
            slices.extend(rebuilt.io_slices());
            ends.push(slices.len());
            group.push(rebuilt);
        }
        let mut start = 0;
        let packets: ArrayVec<&[IoSlice<'_>], MAX_WRITES> =
            ends.iter().map(|end| &slices[std::mem::replace(&mut start, *end)..*end]).collect();
        let mut refused = ArrayVec::<_, MAX_WRITES>::new();
        tun.try_write_many(&packets, |place, error| refused.push((place, error)));
        for (place, rebuilt) in group.iter().enumerate() {
            match refused.iter().find(|(refused, _)| *refused == place) {
                None => self.streaks[rebuilt.needs() as usize] = 0,
                Some((_, error)) => self.retry(tun, rebuilt, error, drops),
            }
        }
    }

    /// Writes what the device has just refused as the packets it was made of, if that may help.
    #[cold]
    fn retry(
        &mut self,
        tun: &impl PacketDevice,
        rebuilt: &Rebuilt<'_>,
        error: &io::Error,
        drops: &mut Counters,
    ) {
        let needs = rebuilt.needs();
        tracing::trace!(%error, ?needs, "the TUN device refused a packet");
        let cause = Cause::of(error);
        if needs == Needs::Nothing || cause == Cause::Device {
            drops.count(DropReason::TunWrite, rebuilt.packets());
            return;
        }
        let mut taken = 0;
        rebuilt.each_alone(|single| match write(tun, single) {
            Ok(()) => taken += 1,
            Err(_) => {
                drops.drop(DropReason::TunWrite);
            }
        });
        if taken == 0 {
            return;
        }
        self.state.refused += 1;
        if cause == Cause::Packet {
            let streak = &mut self.streaks[needs as usize];
            *streak += 1;
            if *streak == MAX_REFUSALS {
                self.give_up(needs, error);
            }
        }
    }

    fn give_up(&mut self, needs: Needs, error: &io::Error) {
        self.features = self.features.without(needs);
        let (gave_up, what, switch) = match needs {
            Needs::Nothing => return,
            Needs::Checksum => (&mut self.state.gave_up_checksum, "partial checksums", "tun"),
            Needs::Tcp => (&mut self.state.gave_up_tso, "TCP super-packets", "tso"),
            Needs::Udp => (&mut self.state.gave_up_uso, "UDP super-packets", "uso"),
        };
        *gave_up = true;
        tracing::warn!(
            %error,
            "the kernel refuses {what} at the TUN device, so this shard writes without them from now on: slower, but nothing \
             is lost. `{switch} = false` in [offload] keeps it from being tried"
        );
    }
}

/// The cause of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The packet, in the form it had.
    Packet,
    /// A lack of memory for so large a packet.
    Memory,
    /// The device, which takes no packet at all, as while the link is down.
    Device,
}

impl Cause {
    fn of(error: &io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(Errno::INVAL | Errno::OPNOTSUPP | Errno::PROTO | Errno::MSGSIZE | Errno::FAULT) => {
                Self::Packet
            }
            Some(Errno::NOMEM | Errno::NOBUFS) => Self::Memory,
            _ => Self::Device,
        }
    }
}

/// The features of a device with these offloads.
fn features(offloads: TunOffloads) -> TunFeatures {
    TunFeatures {
        vnet_header: true,
        checksum: offloads.checksum,
        tcp: offloads.tso4 && offloads.tso6,
        udp: offloads.uso,
    }
}

fn write(tun: &impl PacketDevice, rebuilt: &Rebuilt<'_>) -> io::Result<()> {
    let mut slices = [IoSlice::new(&[]); Rebuilt::MAX_SLICES];
    let mut count = 0;
    for (place, slice) in slices.iter_mut().zip(rebuilt.io_slices()) {
        *place = slice;
        count += 1;
    }
    tun.try_write_vectored(&slices[..count]).map(|_| ())
}

#[cfg(test)]
mod tests;
