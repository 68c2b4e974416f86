//! Sending: one datagram or batch with its control messages (`sendmsg`), or several with one system
//! call (`sendmmsg`), for datagrams that no segmentation offload can join, because they differ in
//! length or go to different peers.

use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use socket2::SockAddr;

use super::{ShardSocket, Transmit};

/// The most sends in one system call.
pub const MAX_SENDS: usize = 64;

/// Room for the control messages of one send: the segment's length, the traffic class, and the
/// source address of either IP version.
const CONTROL_LEN: usize = 96;

/// Arguments of one send that the kernel reads besides its contents.
struct Send {
    destination: SockAddr,
    contents: libc::iovec,
    control: Control,
}

impl Send {
    fn new(transmit: &Transmit<'_>) -> Self {
        Self {
            destination: transmit.destination.into(),
            contents: libc::iovec {
                iov_base: transmit.contents.as_ptr().cast_mut().cast(),
                iov_len: transmit.contents.len(),
            },
            control: Control([0; CONTROL_LEN]),
        }
    }
}

#[repr(C, align(8))]
struct Control([u8; CONTROL_LEN]);

impl ShardSocket {
    /// Hands a datagram, or a batch for the kernel to cut, to the kernel.
    pub(super) fn send_message(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let mut send = Send::new(transmit);
        let header = describe(&mut send, transmit);
        loop {
            // SAFETY: the header points into `send`, which stays where it is, and to contents that
            // `transmit` borrows; the kernel only reads those.
            if unsafe { libc::sendmsg(self.as_raw_fd(), &raw const header, 0) } >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// Hands up to [`MAX_SENDS`] of `transmits` to the kernel at once. Returns how many it took,
    /// from the first on; what it has against the next one, [`Self::try_send`] says.
    pub fn try_send_many(&self, transmits: &[Transmit<'_>]) -> usize {
        // A batch that has to be cut here can't be part of it; fragments are allowed for all or
        // none.
        let may_fragment = transmits.first().is_some_and(Transmit::needs_fragments);
        let goes = |t: &&Transmit<'_>| {
            (t.segment_size.is_none() || self.segments_to(t.destination))
                && t.needs_fragments() == may_fragment
        };
        let count = transmits.iter().take(MAX_SENDS).take_while(goes).count();
        let transmits = &transmits[..count];
        if may_fragment {
            self.with_fragments(|| self.send_messages(transmits))
        } else {
            self.send_messages(transmits)
        }
    }

    /// Sends these, of which there are at most [`MAX_SENDS`].
    fn send_messages(&self, transmits: &[Transmit<'_>]) -> usize {
        let count = transmits.len().min(MAX_SENDS);
        let mut sends = [const { MaybeUninit::<Send>::uninit() }; MAX_SENDS];
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_SENDS];
        for ((transmit, send), header) in transmits[..count].iter().zip(&mut sends).zip(&mut headers) {
            let send = send.write(Send::new(transmit));
            header.write(libc::mmsghdr { msg_hdr: describe(send, transmit), msg_len: 0 });
        }
        // SAFETY: the first `count` headers are written above. They point into `sends`, which stays
        // where it is, and to contents that `transmits` borrows; the kernel only reads those.
        let sent = unsafe { libc::sendmmsg(self.as_raw_fd(), headers.as_mut_ptr().cast(), count as _, 0) };
        // Whatever went wrong with the first one shows when it is sent by itself.
        usize::try_from(sent).unwrap_or(0)
    }
}

/// The header of one send, with its control messages.
fn describe(send: &mut Send, transmit: &Transmit<'_>) -> libc::msghdr {
    // SAFETY: all fields are numbers or pointers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_name = send.destination.as_ptr().cast_mut().cast();
    header.msg_namelen = send.destination.len();
    header.msg_iov = &raw mut send.contents;
    header.msg_iovlen = 1;
    let mut control = ControlWriter { buffer: &mut send.control, len: 0 };
    if transmit.traffic_class != 0 {
        let class = libc::c_int::from(transmit.traffic_class);
        // An IPv4 address as a socket for both versions names it is reached over IPv4.
        if transmit.destination.ip().to_canonical().is_ipv4() {
            control.put(libc::IPPROTO_IP, libc::IP_TOS, class);
        } else {
            control.put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class);
        }
    }
    // Some drivers refuse to cut what is one segment.
    if let Some(segment) = transmit.segment_size.filter(|segment| *segment < transmit.contents.len()) {
        control.put(libc::SOL_UDP, libc::UDP_SEGMENT, segment as u16);
    }
    match transmit.src_ip {
        None => {}
        Some(IpAddr::V4(source)) => {
            let spec_dst = libc::in_addr { s_addr: u32::from_ne_bytes(source.octets()) };
            let info = libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: spec_dst,
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            control.put(libc::IPPROTO_IP, libc::IP_PKTINFO, info);
        }
        Some(IpAddr::V6(source)) => {
            let info =
                libc::in6_pktinfo { ipi6_ifindex: 0, ipi6_addr: libc::in6_addr { s6_addr: source.octets() } };
            control.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
        }
    }
    let len = control.len;
    if len > 0 {
        header.msg_control = (&raw mut send.control).cast();
        header.msg_controllen = len as _;
    }
    header
}

struct ControlWriter<'a> {
    buffer: &'a mut Control,
    len: usize,
}

impl ControlWriter<'_> {
    fn put<T: Copy>(&mut self, level: libc::c_int, kind: libc::c_int, value: T) {
        // SAFETY: these only compute lengths.
        let (space, len) =
            unsafe { (libc::CMSG_SPACE(size_of::<T>() as _), libc::CMSG_LEN(size_of::<T>() as _)) };
        let end = self.len + space as usize;
        assert!(end <= CONTROL_LEN, "there is room for each kind of control message");
        let place = self.buffer.0[self.len..end].as_mut_ptr().cast::<libc::cmsghdr>();
        // SAFETY: `place` has room for the header and the value, checked above, and is aligned for
        // the header, because the buffer is and all lengths are multiples of that alignment. The
        // value may stand unaligned.
        unsafe {
            (*place).cmsg_level = level;
            (*place).cmsg_type = kind;
            (*place).cmsg_len = len as _;
            libc::CMSG_DATA(place).cast::<T>().write_unaligned(value);
        }
        self.len = end;
    }
}
