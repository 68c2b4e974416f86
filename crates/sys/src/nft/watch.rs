//! A subscription to changes of one nftables table, by whatever program.
//!
//! INVARIANT: no change passes without a report. Several may be reported as one, and reports that
//! the kernel had no room for count as a change of this table. This module must not know which
//! rules the table should have.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{SocketFlags, bind};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::netfilter::{self, NETFILTER_HEADER, attributes, messages};

/// The multicast group `NFNLGRP_NFTABLES`, as a bit.
const GROUP: u32 = 1 << 6;
/// `NFNL_SUBSYS_NFTABLES`, the upper byte of a message's type.
const SUBSYSTEM: u16 = 10;
/// `NFT_MSG_NEWGEN`, which ends each transaction.
const NEW_GENERATION: u16 = 15;
/// Attribute that names the table, in all messages but that one.
const TABLE: u16 = 1;
/// `NFTA_GEN_PROC_NAME`.
const PROGRAM: u16 = 3;
/// More than the kernel puts into one datagram.
const BUFFER: usize = 64 << 10;

/// A subscription.
#[derive(Debug)]
pub struct TableWatch {
    socket: AsyncFd<OwnedFd>,
    table: String,
    buffer: Vec<u8>,
    seen: Seen,
}

/// The reports since the last one that was passed on.
#[derive(Debug, Default)]
struct Seen {
    is_changed: bool,
    program: Option<String>,
}

impl TableWatch {
    /// Subscribes within the current tokio runtime, for the network namespace of the calling
    /// thread. All changes from here on are reported.
    ///
    /// # Errors
    /// If the kernel has no nftables, or no descriptor is left.
    pub fn open(table: &str) -> io::Result<Self> {
        let socket = netfilter::socket(SocketFlags::NONBLOCK)?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUP))?;
        // SAFETY: the descriptor is owned, and nothing closes or replaces it before it is dropped.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }?;
        Ok(Self { socket, table: table.to_owned(), buffer: vec![0; BUFFER], seen: Seen::default() })
    }

    /// Waits for a change of the table; returns the name of the program that made the last one, if
    /// the kernel gave it. Safe to cancel.
    ///
    /// # Errors
    /// If the socket fails.
    pub async fn changed(&mut self) -> io::Result<Option<String>> {
        loop {
            let mut ready = self.socket.readable().await?;
            loop {
                match rustix::io::read(ready.get_inner(), &mut self.buffer) {
                    Ok(length) => self.seen.note(&self.buffer[..length], &self.table),
                    Err(Errno::NOBUFS) => self.seen.is_changed = true,
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            ready.clear_ready();
            if self.seen.is_changed {
                return Ok(std::mem::take(&mut self.seen).program);
            }
        }
    }
}

impl Seen {
    fn note(&mut self, datagram: &[u8], table: &str) {
        for (kind, body) in messages(datagram) {
            let Some((_, body)) = body.split_at_checked(NETFILTER_HEADER) else { continue };
            let text = |kind: u16| {
                let value = attributes(body).find(|attribute| attribute.kind == kind)?.value;
                Some(std::str::from_utf8(value).ok()?.trim_end_matches('\0'))
            };
            match (kind >> 8, kind & 0xff) {
                (SUBSYSTEM, NEW_GENERATION) if self.is_changed => {
                    self.program = text(PROGRAM).map(str::to_owned);
                }
                (SUBSYSTEM, NEW_GENERATION) => {}
                (SUBSYSTEM, _) => self.is_changed |= text(TABLE) == Some(table),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::{in_namespace_async, run};

    const LIMIT: Duration = Duration::from_secs(60);

    async fn reported(watch: &mut TableWatch) -> Option<String> {
        tokio::time::timeout(LIMIT, watch.changed()).await.expect("a report").unwrap()
    }

    fn nft(command: &str) {
        run("nft", &[command]);
    }

    #[test]
    fn every_kind_of_change_is_reported_with_its_program() {
        in_namespace_async(async || {
            let mut watch = TableWatch::open("ours").unwrap();
            for command in [
                "add table inet ours",
                "add chain inet ours c { type filter hook input priority 0; }",
                "add set inet ours s { type ipv4_addr; }",
                "add rule inet ours c drop",
                "insert rule inet ours c accept",
                "add element inet ours s { 192.0.2.1 }",
                "flush set inet ours s",
                "flush chain inet ours c",
                "delete chain inet ours c",
                "flush ruleset",
            ] {
                nft(command);
                assert_eq!(reported(&mut watch).await.as_deref(), Some("nft"), "{command}");
            }
        });
    }

    #[test]
    fn changes_of_other_tables_are_not_reported() {
        in_namespace_async(async || {
            let mut watch = TableWatch::open("ours").unwrap();
            nft(
                "add table inet others; add chain inet others ours; add table ip ours2; delete table inet others",
            );
            // Reports have arrived already, since nft has ended.
            let others = tokio::time::timeout(Duration::from_millis(50), watch.changed()).await;
            assert!(others.is_err(), "{others:?}");
            nft("add table inet ours");
            reported(&mut watch).await;
        });
    }

    #[test]
    fn reports_that_were_lost_count_as_a_change() {
        in_namespace_async(async || {
            let mut watch = TableWatch::open("ours").unwrap();
            rustix::net::sockopt::set_socket_recv_buffer_size(watch.socket.get_ref(), 1).unwrap();
            let many: Vec<String> = (0..500).map(|n| format!("add chain inet others chain{n}")).collect();
            nft(&format!("add table inet others; {}", many.join("; ")));
            reported(&mut watch).await;
        });
    }

    #[test]
    fn bytes_that_are_no_report_are_none() {
        let mut seen = Seen::default();
        for bytes in [&[][..], &[0; 3], &[0; 16], &[255; 40], &[17, 0, 0, 0, 0, 10]] {
            seen.note(bytes, "ours");
        }
        assert!(!seen.is_changed);
    }
}
