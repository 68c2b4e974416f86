//! The sockets that share the gateway's port, with steering by the kernel and without.
//!
//! INVARIANT: with steering, member 0 of the group is the QUIC socket and member `1 + s` is shard
//! `s`; closing a member would renumber the others, so all of them live as long as the daemon.
//! Without, the members are the shards alone: the kernel spreads everything over all members by a
//! hash, and a member that can't pass datagrams on would lose its share.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{
    MAX_SHARDS, ShardSocket, SocketOptions, UdpError, bind, classify_setup, configure, open,
    open_preferring_v6,
};
use crate::bpf::{self, Clients};

/// Mechanism by which the kernel selects the group's member for a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steering {
    /// By the steering program ([`bpf`]) for these clients, if the kernel takes it.
    Program(Clients),
    /// By a hash of the addresses: members hand over what is not theirs.
    Off,
}

/// QUIC's part of a group.
pub enum QuicMember {
    /// A member, to which the steering program gives everything that is not a data datagram.
    Own(std::net::UdpSocket),
    /// No member: shards hand over what is for QUIC. This is a second handle of the first shard's
    /// socket, to send with.
    SendOnly(ShardSocket),
}

/// The sockets of one port.
pub struct ReuseportGroup {
    pub quic: QuicMember,
    /// One for each shard.
    pub shards: Vec<ShardSocket>,
    /// The reason why the kernel spreads datagrams by a hash of their addresses instead of by the
    /// steering program; `None` when the program is in force.
    pub steering_refused: Option<io::Error>,
}

impl ReuseportGroup {
    /// The descriptors of all sockets, for another process that takes them over by
    /// [`ReuseportGroup::adopt`].
    pub fn into_descriptors(self) -> Vec<OwnedFd> {
        let quic = match self.quic {
            QuicMember::Own(socket) => socket.into(),
            QuicMember::SendOnly(socket) => socket.into(),
        };
        self.shards.into_iter().map(OwnedFd::from).chain([quic]).collect()
    }

    /// Takes over a group that another process has bound with the same `options`;
    /// `steering_refused` is its word.
    ///
    /// # Errors
    /// [`UdpError`], also if there are no descriptors.
    pub fn adopt(
        mut descriptors: Vec<OwnedFd>,
        options: &SocketOptions,
        steering_refused: Option<String>,
    ) -> Result<Self, UdpError> {
        let quic = descriptors.pop().ok_or(UdpError::BadShardCount(0))?;
        let quic = match steering_refused {
            None => QuicMember::Own(quic.into()),
            Some(_) => QuicMember::SendOnly(ShardSocket::adopt(quic, options)?),
        };
        let shards = descriptors.into_iter().map(|socket| ShardSocket::adopt(socket, options));
        let mut shards = shards.collect::<Result<Vec<_>, _>>()?;
        // A finding of one shard about a destination is true for all of them.
        if let [first, others @ ..] = &mut shards[..] {
            others.iter_mut().for_each(|other| other.singles = Arc::clone(&first.singles));
        }
        Ok(Self { quic, shards, steering_refused: steering_refused.map(io::Error::other) })
    }
}

/// Binds `address` for QUIC and `shards` shards, in this order, and attaches the steering program.
/// Without steering QUIC gets no separate member.
///
/// An IPv6 address without zone takes IPv4 too if it is `::`; where the machine has no IPv6, `::`
/// means `0.0.0.0`. The first member is bound before it shares its port, so a port in use is
/// refused even if its owner would share it.
///
/// # Errors
/// [`UdpError`]; no socket remains open then.
pub fn bind_reuseport_group(
    address: SocketAddr,
    shards: usize,
    steering: Steering,
    options: &SocketOptions,
) -> Result<ReuseportGroup, UdpError> {
    if !(1..=MAX_SHARDS).contains(&shards) {
        return Err(UdpError::BadShardCount(shards));
    }
    let (first, address) = open_preferring_v6(address)?;
    bind(&first, address)?;
    let failed = |step| move |source| classify_setup(address, step, source);
    let bound = first.local_addr().map_err(failed("reading the address"))?;
    let address = bound.as_socket().ok_or_else(|| {
        failed("reading the address")(io::Error::other("the kernel names no internet address"))
    })?;
    configure(&first, address, options)?;
    first.set_reuse_port(true).map_err(failed("sharing the port"))?;
    let mut members = Vec::with_capacity(shards);
    for _ in 0..shards {
        let socket = open(address)?;
        socket.set_reuse_port(true).map_err(failed("sharing the port"))?;
        bind(&socket, address)?;
        members.push(ShardSocket::new(socket, address, options)?);
    }
    let steering_refused = match steering {
        Steering::Program(clients) => bpf::attach(&first, shards, clients).err(),
        Steering::Off => Some(io::Error::other("it is switched off")),
    };
    let quic = if steering_refused.is_none() {
        QuicMember::Own(first.into())
    } else {
        // The first socket leaves the group when it is dropped below.
        let handle = members[0].socket.try_clone().map_err(failed("sharing a socket"))?;
        QuicMember::SendOnly(ShardSocket::new(handle, address, options)?)
    };
    Ok(ReuseportGroup { quic, shards: members, steering_refused })
}
