//! A TAP device: one end of a link whose other end is this program.
//!
//! A read gives one virtio-net header ([`VNET_HEADER_LEN`] bytes) and one Ethernet frame, a write
//! takes the same. The header carries what the kernel left undone (checksum, segmentation), so a
//! frame that is read from one device and written to another of the same offloads arrives as it
//! was.
//!
//! INVARIANT: the device is made by this process, never joined, and goes away with its descriptor:
//! a killed run leaves no device behind.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;
use rustix::io::{Errno, retry_on_intr};
use rustix::ioctl::{self, opcode};

/// Length of the virtio-net header (virtio 1.2, 5.1.6.1, without `num_buffers`).
pub const VNET_HEADER_LEN: usize = 10;
/// Bytes that hold any read: the header, an Ethernet header with a VLAN tag, the largest IP packet.
pub const MAX_READ_LEN: usize = VNET_HEADER_LEN + 18 + 65_535;

const CHARACTER_DEVICE: &str = "/dev/net/tun";
/// Longest interface name, without the zero that ends it.
const MAX_NAME_LEN: usize = 15;

const TUNSETIFF: ioctl::Opcode = opcode::write::<i32>(b'T', 202);
const TUNSETOFFLOAD: ioctl::Opcode = opcode::write::<u32>(b'T', 208);
const TUNSETVNETHDRSZ: ioctl::Opcode = opcode::write::<i32>(b'T', 216);

/// `IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | IFF_TUN_EXCL` of `linux/if_tun.h`.
const FLAGS: u16 = 0x0002 | 0x1000 | 0x4000 | 0x8000;
/// `TUN_F_CSUM`: frames may come with a partial checksum.
const CHECKSUM: u32 = 0x01;
/// `TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN`: and as TCP super-packets.
const TCP_SEGMENTATION: u32 = 0x02 | 0x04 | 0x08;
/// `TUN_F_USO4 | TUN_F_USO6`: and as UDP super-packets (Linux 6.2).
const UDP_SEGMENTATION: u32 = 0x20 | 0x40;

/// `struct ifreq` as `TUNSETIFF` reads and writes it.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; MAX_NAME_LEN + 1],
    flags: u16,
    // The kernel copies the whole of the union behind the name.
    rest: [u8; 22],
}

const _: () = assert!(size_of::<InterfaceRequest>() == 40);

/// An open TAP device, non-blocking.
#[derive(Debug)]
pub struct Tap(OwnedFd);

impl Tap {
    /// Makes the device `name` in the network namespace of the calling thread. With `super_packets`
    /// it carries frames of up to 64 KiB that the kernel would otherwise have cut. The link stays
    /// down.
    ///
    /// # Errors
    /// By the kernel; nothing remains of the device then.
    pub fn create(name: &str, super_packets: bool) -> io::Result<Self> {
        if name.is_empty() || name.len() > MAX_NAME_LEN {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an interface name has 1 to 15 bytes"));
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(CHARACTER_DEVICE)?;
        let tap = Self(file.into());
        let mut request = InterfaceRequest { name: [0; MAX_NAME_LEN + 1], flags: FLAGS, rest: [0; 22] };
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        // SAFETY: TUNSETIFF reads one `struct ifreq` through the pointer and writes the name back
        // into it; the type above has its size and layout, and lives until the call returns.
        unsafe { ioctl::ioctl(&tap.0, ioctl::Updater::<TUNSETIFF, InterfaceRequest>::new(&mut request))? };
        // SAFETY: TUNSETVNETHDRSZ reads one `int` through the pointer that `Setter` passes and
        // keeps nothing of it.
        unsafe {
            ioctl::ioctl(&tap.0, ioctl::Setter::<TUNSETVNETHDRSZ, i32>::new(VNET_HEADER_LEN as i32))?;
        }
        tap.set_offloads(super_packets)?;
        Ok(tap)
    }

    /// Sets what the kernel may leave undone; UDP super-packets only where the kernel has them.
    fn set_offloads(&self, super_packets: bool) -> io::Result<()> {
        if !super_packets {
            return Ok(self.set_offload_bits(CHECKSUM)?);
        }
        match self.set_offload_bits(CHECKSUM | TCP_SEGMENTATION | UDP_SEGMENTATION) {
            Err(Errno::INVAL) => Ok(self.set_offload_bits(CHECKSUM | TCP_SEGMENTATION)?),
            other => Ok(other?),
        }
    }

    fn set_offload_bits(&self, bits: u32) -> Result<(), Errno> {
        // SAFETY: TUNSETOFFLOAD takes its bits by value in the argument and touches no memory of
        // ours.
        unsafe { ioctl::ioctl(&self.0, ioctl::IntegerSetter::<TUNSETOFFLOAD>::new_usize(bits as usize)) }
    }

    /// Reads one header and frame into `buf`, which should have [`MAX_READ_LEN`] bytes: the kernel
    /// cuts a longer frame without a word.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is none; others once the device is gone.
    pub fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(retry_on_intr(|| rustix::io::read(&self.0, &mut *buf))?)
    }

    /// Writes one header and frame.
    ///
    /// # Errors
    /// `EINVAL` when the kernel finds fault with it; `EIO` while the link is down.
    pub fn write(&self, frame: &[u8]) -> io::Result<usize> {
        Ok(retry_on_intr(|| rustix::io::write(&self.0, frame))?)
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_names_no_interface_is_refused_before_the_kernel_is_asked() {
        for name in ["", "sixteen-letters!"] {
            assert_eq!(Tap::create(name, true).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name}");
        }
    }
}
