//! The classic BPF program that lets the kernel pick the socket of a reuseport group.
//!
//! The sockets of one port share it by `SO_REUSEPORT`. For each datagram the kernel runs this
//! program, whose answer is the index of the socket in the group, in bind order: 0 is the QUIC
//! socket, `1 + s` is shard `s`. In a reuseport program offset 0 is the first byte of the UDP
//! payload, for IPv4 and IPv6 alike. Where stock WireGuard clients are served, their data go to
//! shards too, by the index that stands at the same place; their handshakes go to the QUIC socket.
//!
//! INVARIANT: steering is a matter of speed only. Where the kernel refuses the program it spreads
//! datagrams by a hash of their addresses, and the daemon must pass what lands on a wrong socket to
//! the right one.

pub mod flows;

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::udp::MAX_SHARDS;

/// A data datagram is recognised by the two top bits of its first byte (`docs/PROTOCOL.md`, section
/// 2).
const DATA_MASK: u32 = 0xC0;
const DATA_BITS: u32 = 0x80;
/// The first four bytes of WireGuard's data, in network order.
const WIREGUARD_DATA: u32 = 0x0400_0000;
/// Offset of the little-endian receiver index; its first byte names the shard.
const INDEX_OFFSET: u32 = 4;
/// The shortest payload that has a whole receiver index.
const INDEX_END: u32 = 8;

/// The kinds of peers whose data are steered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clients {
    /// Clients of our own. WireGuard's data are unknown datagrams.
    Own,
    /// And stock WireGuard clients.
    OwnAndWireGuard,
}

/// One step of a program, as far as this one needs the instruction set (`filter.h`). The machine
/// has one accumulator `A`; jumps skip that many of the following instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instruction {
    /// `A` becomes the length of the payload.
    LoadLen,
    /// `A` becomes the payload byte at this offset; past the end the program answers 0.
    LoadByte(u32),
    /// `A` becomes the four payload bytes at this offset, in network order; past the end the
    /// program answers 0.
    LoadWord(u32),
    /// `A &= constant`.
    And(u32),
    /// `A %= constant`, which is not 0.
    Mod(u32),
    /// `A += constant`.
    Add(u32),
    /// Skips `yes` instructions if `A == value`, else `no`.
    JumpIfEqual {
        /// The value to compare with.
        value: u32,
        /// Instructions to skip when equal.
        yes: u8,
        /// Instructions to skip when not.
        no: u8,
    },
    /// Skips `yes` instructions if `A >= value`, else `no`.
    JumpIfAtLeast {
        /// The value to compare with.
        value: u32,
        /// Instructions to skip when `A` is at least that.
        yes: u8,
        /// Instructions to skip when it is less.
        no: u8,
    },
    /// Ends with `A`.
    ReturnA,
    /// Ends with this constant.
    Return(u32),
}

impl Instruction {
    /// The kernel's form of the instruction.
    fn encode(self) -> libc::sock_filter {
        use libc::{
            BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_B, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD,
            BPF_LEN, BPF_MOD, BPF_RET, BPF_W,
        };
        let (code, k, jt, jf) = match self {
            Self::LoadLen => (BPF_LD | BPF_W | BPF_LEN, 0, 0, 0),
            Self::LoadByte(offset) => (BPF_LD | BPF_B | BPF_ABS, offset, 0, 0),
            Self::LoadWord(offset) => (BPF_LD | BPF_W | BPF_ABS, offset, 0, 0),
            Self::And(k) => (BPF_ALU | BPF_AND | BPF_K, k, 0, 0),
            Self::Mod(k) => (BPF_ALU | BPF_MOD | BPF_K, k, 0, 0),
            Self::Add(k) => (BPF_ALU | BPF_ADD | BPF_K, k, 0, 0),
            Self::JumpIfEqual { value, yes, no } => (BPF_JMP | BPF_JEQ | BPF_K, value, yes, no),
            Self::JumpIfAtLeast { value, yes, no } => (BPF_JMP | BPF_JGE | BPF_K, value, yes, no),
            Self::ReturnA => (BPF_RET | BPF_A, 0, 0, 0),
            Self::Return(k) => (BPF_RET | BPF_K, k, 0, 0),
        };
        libc::sock_filter { code: code as u16, jt, jf, k }
    }
}

/// The steering program for a group of one QUIC socket and `shards` shard sockets, which `clients`
/// use.
///
/// Only the index's first byte is looked at, so [`vpnd_proto::wire::Index::shard`] must agree.
///
/// # Panics
/// When `shards` is 0 or more than [`MAX_SHARDS`]: the group is built by this crate.
pub fn steering_program(shards: usize, clients: Clients) -> [Instruction; 12] {
    assert!((1..=MAX_SHARDS).contains(&shards), "a group has 1 to {MAX_SHARDS} shards");
    // Data of a client of our own are no WireGuard's whatever follows their first byte.
    let wireguard = match clients {
        Clients::Own => DATA_BITS << 24,
        Clients::OwnAndWireGuard => WIREGUARD_DATA,
    };
    [
        Instruction::LoadLen,
        Instruction::JumpIfAtLeast { value: INDEX_END, yes: 0, no: 9 },
        Instruction::LoadByte(0),
        Instruction::And(DATA_MASK),
        Instruction::JumpIfEqual { value: DATA_BITS, yes: 2, no: 0 },
        Instruction::LoadWord(0),
        Instruction::JumpIfEqual { value: wireguard, yes: 0, no: 4 },
        Instruction::LoadByte(INDEX_OFFSET),
        Instruction::Mod(shards as u32),
        Instruction::Add(1),
        Instruction::ReturnA,
        Instruction::Return(0),
    ]
}

/// Attaches the steering program to the group of `socket`, which must be bound with `SO_REUSEPORT`
/// and have company. It is in force for the whole group when this returns `Ok`.
///
/// # Errors
/// If the system call fails; the group then works without steering.
pub fn attach(socket: &impl AsFd, shards: usize, clients: Clients) -> io::Result<()> {
    let mut code = steering_program(shards, clients).map(Instruction::encode);
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    // SAFETY: the option reads one `sock_fprog` of the given size; it and the instructions it
    // points to live until the call has returned, and the kernel keeps a copy only.
    let status = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests;
