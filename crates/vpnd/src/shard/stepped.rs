//! A shard that its caller steps: what the shard's thread does with each batch, without the thread and its runtime, on any
//! devices. For benchmarks and tests; the daemon does not use it.
//!
//! INVARIANT: this adds no step of its own to a packet's way. What is measured here is what a shard does.

use std::io;
use std::sync::Arc;

use vpnd_proto::plane::{Command, Event, Role};
use vpnd_proto::policy::Policy;

use super::devices::{DatagramSocket, PacketDevice};
use super::{Order, Progress, Report, Shard, now};
use crate::sys::tun::TunOffloads;

/// What a stepped shard is made of, beside its devices.
#[derive(Clone, Debug)]
pub struct SteppedSpec {
    /// Which end of the tunnel this is.
    pub role: Role,
    /// The policy to begin with.
    pub policy: Arc<Policy>,
    /// The device's offloads.
    pub tun_offloads: TunOffloads,
    /// Largest inner packet that the tunnel carries, in bytes.
    pub mtu: u16,
}

/// The only shard of its gateway or client, stepped by hand.
pub struct Stepped<T, S> {
    shard: Shard,
    tun: T,
    socket: S,
}

impl<T: PacketDevice, S: DatagramSocket> Stepped<T, S> {
    /// A shard without sessions.
    pub fn new(spec: SteppedSpec, tun: T, socket: S) -> Self {
        let SteppedSpec { role, policy, tun_offloads, mtu } = spec;
        Self { shard: Shard::new(0, role, policy, 0, tun_offloads, mtu), tun, socket }
    }

    /// Carries out an order to its data plane.
    pub fn command(&mut self, command: Command) {
        self.shard.obey(Order::Plane(command), &self.socket);
    }

    /// One turn of the way from the socket: to the TUN device, or to other clients.
    pub fn receive(&mut self) -> Progress {
        self.shard.receive(&self.socket, &self.tun)
    }

    /// One turn of the way from the TUN device to the socket.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn transmit(&mut self) -> io::Result<Progress> {
        self.shard.outbound.transmit(now(), &self.tun, &mut self.shard.plane, &self.socket)
    }

    /// What the control plane would hear; packets that waited for it go their way.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shard.poll_event(&self.socket)
    }

    /// The shard's figures.
    #[must_use]
    pub fn report(&mut self) -> Report {
        self.shard.report(&self.socket)
    }

    /// Its TUN side.
    pub fn tun(&self) -> &T {
        &self.tun
    }

    /// Its socket.
    pub fn socket(&self) -> &S {
        &self.socket
    }
}

#[cfg(test)]
mod tests;
