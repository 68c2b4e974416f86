//! The extended BPF program that gives each inner flow a queue of the TUN device, the same for as
//! long as it lives.
//!
//! Without it the kernel moves a flow to the queue on which its other direction was written last,
//! and back when that was three seconds ago. What still waits in the queue before is then
//! overtaken: each move can change the order of packets. The program answers with a hash of
//! addresses and ports that is the same for both directions; fragments, which may have no ports,
//! and other protocols are known by their addresses. The kernel takes the answer modulo the number
//! of queues.
//!
//! INVARIANT: this is a matter of order within a flow only. Where the kernel refuses the program,
//! everything works but for that.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd as _, OwnedFd};

use rustix::ioctl::{self, opcode};

const TUNSETSTEERINGEBPF: ioctl::Opcode = opcode::read::<i32>(b'T', 224);

/// `BPF_PROG_LOAD` and `BPF_PROG_TYPE_SOCKET_FILTER` of `linux/bpf.h`.
const PROG_LOAD: libc::c_long = 5;
const SOCKET_FILTER: u32 = 1;

/// Registers: the result, the kernel's argument, where packet loads look for the packet, the hash,
/// the place of the ports.
const RESULT: u8 = 0;
const ARGUMENT: u8 = 1;
const PACKET: u8 = 6;
const HASH: u8 = 7;
const PORTS: u8 = 8;

/// Operation codes of `linux/bpf_common.h` and `linux/bpf.h`: class, size or operation, and mode.
mod op {
    pub(super) const MOVE: u8 = 0xBF;
    pub(super) const SET: u8 = 0xB7;
    pub(super) const XOR: u8 = 0xAF;
    pub(super) const AND: u8 = 0x57;
    pub(super) const SHIFT_LEFT: u8 = 0x67;
    pub(super) const SHIFT_RIGHT: u8 = 0x77;
    pub(super) const MULTIPLY_32: u8 = 0x24;
    pub(super) const LOAD_BYTE: u8 = 0x30;
    pub(super) const LOAD_HALF: u8 = 0x28;
    pub(super) const LOAD_WORD: u8 = 0x20;
    pub(super) const LOAD_HALF_BEHIND: u8 = 0x48;
    pub(super) const JUMP: u8 = 0x05;
    pub(super) const JUMP_IF: u8 = 0x15;
    pub(super) const JUMP_UNLESS: u8 = 0x55;
    pub(super) const EXIT: u8 = 0x95;
}

/// `struct bpf_insn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Instruction {
    code: u8,
    /// Target in the low half, source in the high one.
    registers: u8,
    offset: i16,
    constant: i32,
}

/// The part of `union bpf_attr` that loading a program takes.
#[repr(C)]
struct LoadAttributes {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
}

/// Places to jump to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    V4,
    V4Ports,
    V6Ports,
    XorPorts,
    Mix,
}

/// A program under construction: jumps forward are resolved when their place is reached.
#[derive(Default)]
struct Assembler {
    program: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn step(&mut self, code: u8, target: u8, source: u8, constant: u32) {
        let constant = constant.cast_signed();
        self.program.push(Instruction { code, registers: target | source << 4, offset: 0, constant });
    }

    fn jump(&mut self, code: u8, constant: u32, to: Label) {
        self.jumps.push((self.program.len(), to));
        self.step(code, RESULT, 0, constant);
    }

    fn bind_label(&mut self, label: Label) {
        let end = self.program.len();
        for (from, _) in self.jumps.extract_if(.., |(_, to)| *to == label) {
            self.program[from].offset = (end - from - 1) as i16;
        }
    }

    /// Mixes a word of the packet into the hash.
    fn xor_word(&mut self, offset: u32) {
        self.step(op::LOAD_WORD, 0, 0, offset);
        self.step(op::XOR, HASH, RESULT, 0);
    }

    /// Goes on at `ports` for TCP and UDP, else at the end.
    fn look_for_ports(&mut self, protocol_offset: u32, ports: Label) {
        self.step(op::LOAD_BYTE, 0, 0, protocol_offset);
        self.jump(op::JUMP_IF, 6, ports);
        self.jump(op::JUMP_UNLESS, 17, Label::Mix);
        self.bind_label(ports);
    }
}

fn program() -> Vec<Instruction> {
    let mut p = Assembler::default();
    p.step(op::MOVE, PACKET, ARGUMENT, 0);
    p.step(op::SET, HASH, 0, 0);
    p.step(op::LOAD_BYTE, 0, 0, 0);
    p.step(op::SHIFT_RIGHT, RESULT, 0, 4);
    p.jump(op::JUMP_IF, 4, Label::V4);
    p.jump(op::JUMP_UNLESS, 6, Label::Mix);
    (8..40).step_by(4).for_each(|offset| p.xor_word(offset));
    p.look_for_ports(6, Label::V6Ports);
    p.step(op::SET, PORTS, 0, 40);
    p.jump(op::JUMP, 0, Label::XorPorts);
    p.bind_label(Label::V4);
    p.xor_word(12);
    p.xor_word(16);
    // More fragments, or not the first.
    p.step(op::LOAD_HALF, 0, 0, 6);
    p.step(op::AND, RESULT, 0, 0x3FFF);
    p.jump(op::JUMP_UNLESS, 0, Label::Mix);
    p.look_for_ports(9, Label::V4Ports);
    p.step(op::LOAD_BYTE, 0, 0, 0);
    p.step(op::AND, RESULT, 0, 15);
    p.step(op::SHIFT_LEFT, RESULT, 0, 2);
    p.step(op::MOVE, PORTS, RESULT, 0);
    p.bind_label(Label::XorPorts);
    for offset in [0, 2] {
        p.step(op::LOAD_HALF_BEHIND, 0, PORTS, offset);
        p.step(op::XOR, HASH, RESULT, 0);
    }
    p.bind_label(Label::Mix);
    // Multiplying spreads neighbouring ports over the upper bits (Knuth 6.4).
    p.step(op::MULTIPLY_32, HASH, 0, 0x9E37_79B1);
    p.step(op::MOVE, RESULT, HASH, 0);
    p.step(op::SHIFT_RIGHT, RESULT, 0, 16);
    p.step(op::EXIT, 0, 0, 0);
    assert!(p.jumps.is_empty(), "every place is reached");
    p.program
}

/// Lets the program choose the queues of the TUN device that `queue` is one of, from now on.
///
/// # Errors
/// `EPERM` without CAP_BPF, `EINVAL` before Linux 4.16. The kernel then chooses by itself.
pub fn pin_flows(queue: &impl AsFd) -> io::Result<()> {
    let program = load(&program())?;
    // SAFETY: TUNSETSTEERINGEBPF reads one `int`, the program's descriptor, through the pointer
    // that `Setter` passes, and takes another reference to the program, which lives until the call
    // has returned.
    unsafe {
        ioctl::ioctl(queue, ioctl::Setter::<TUNSETSTEERINGEBPF, i32>::new(program.as_raw_fd()))?;
    }
    Ok(())
}

fn load(instructions: &[Instruction]) -> io::Result<OwnedFd> {
    // The program calls no function of the kernel, so any licence will do.
    let license = c"Dual MIT/GPL";
    let attributes = LoadAttributes {
        kind: SOCKET_FILTER,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
    };
    // SAFETY: the call reads `attributes`, of the given size, and what its two pointers lead to;
    // all of it lives until the call has returned, and the kernel keeps copies only.
    let fd = unsafe {
        libc::syscall(libc::SYS_bpf, PROG_LOAD, &raw const attributes, size_of::<LoadAttributes>())
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
