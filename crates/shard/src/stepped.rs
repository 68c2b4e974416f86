//! A shard that its caller steps: the work of the shard's thread without the thread and its
//! runtime, on any devices. For benchmarks and tests; the daemon does not use it.
//!
//! INVARIANT: this adds no step to a packet's way, so measuring it measures a shard.

use std::io;
use std::sync::Arc;

use vpnd_proto::plane::{Command, Event, Plane, Role};
use vpnd_proto::policy::Policy;

use super::devices::{DatagramSocket, PacketDevice};
use super::{Progress, Report, Shard, ShardMessage};
use vpnd_sys::tun::TunOffloads;

/// A stepped shard's settings.
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
    shard: Shard<T, S>,
}

impl<T: PacketDevice, S: DatagramSocket> Stepped<T, S> {
    /// A shard without sessions.
    pub fn new(spec: SteppedSpec, tun: T, socket: S) -> Self {
        let SteppedSpec { role, policy, tun_offloads, mtu } = spec;
        let plane = Plane::new(role, policy, 0);
        Self { shard: Shard::new(role, plane, (tun_offloads, mtu), tun, socket) }
    }

    /// Carries out a command to its data plane.
    pub fn command(&mut self, command: Command) {
        self.shard.handle(ShardMessage::Plane(command));
    }

    /// One turn of the way from the socket: to the TUN device, or to other clients.
    pub fn receive(&mut self) -> Progress {
        self.shard.receive()
    }

    /// One turn of the way from the TUN device to the socket.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn transmit(&mut self) -> io::Result<Progress> {
        self.shard.transmit()
    }

    /// The next event for the control plane; packets that waited for its cause are sent.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shard.poll_event()
    }

    /// The shard's figures.
    #[must_use]
    pub fn report(&mut self) -> Report {
        self.shard.report()
    }

    /// Its TUN side.
    pub fn tun(&self) -> &T {
        &self.shard.tun
    }

    /// Its socket.
    pub fn socket(&self) -> &S {
        &self.shard.tunnel.socket
    }
}

#[cfg(test)]
mod tests;
