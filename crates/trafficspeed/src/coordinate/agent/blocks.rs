//! How an agent takes and writes blocks ([`crate::load::block`]): one connection at a time.
//!
//! INVARIANT: blocks are written only into the place that the owner of this host named when the
//! agent was started, and only as far as that place reaches. A coordinator names no path and lets
//! no file grow. INVARIANT: the ends use a secret that is bound to the owner's token, so who reads
//! or plays the coordinator's lines without the token can neither write nor read blocks.

use std::net::IpAddr;

use zeroize::Zeroizing;

use super::{Agent, Gone, failed};
use crate::coordinate::message::Report;
use crate::coordinate::token::Token;
use crate::load::block::content::{Content, verify};
use crate::load::block::place::Place;
use crate::load::block::target::{self, serve};
use crate::load::block::writer::write;
use crate::load::block::{Blocks, WriterJob};

/// The permission of a host's owner for the holders of a token to write blocks.
#[derive(Debug)]
pub struct BlockPermission {
    key: Zeroizing<[u8; 32]>,
    place: Option<Place>,
}

impl BlockPermission {
    /// Blocks may be written from here, and into `place` if there is one.
    pub fn new(token: &Token, place: Option<Place>) -> Self {
        Self { key: token.derive(b"blocks"), place }
    }

    /// For the agents of a lab: their coordinator started them and speaks to them by pipes that
    /// no other process reads, so there is no token, and the secret of each connection is as good
    /// as any that it could be bound to.
    pub fn in_lab(place: Option<Place>) -> Self {
        Self { key: Zeroizing::default(), place }
    }

    fn bound(&self, blocks: &Blocks) -> Blocks {
        Blocks { secret: blocks.secret.bound(&self.key), ..blocks.clone() }
    }
}

impl Agent {
    fn place(&self) -> Result<(&BlockPermission, &Place), String> {
        let permission = self.permission.as_deref().ok_or("this agent has no permission for blocks")?;
        let place = permission.place.as_ref();
        let place =
            place.ok_or("no blocks may be written there; start `trafficspeed serve` with --block-target")?;
        Ok((permission, place))
    }

    /// Says where blocks may be written.
    pub(super) fn block_place(&self) -> Report {
        match self.place() {
            Ok((_, place)) => Report::BlockPlace { description: place.describe(), bytes: place.bytes() },
            Err(reason) => failed(reason),
        }
    }

    /// Tells its port, takes one writer's blocks and says what came.
    pub(super) fn take_blocks(&self, blocks: &Blocks, sync: bool, bind: IpAddr) -> Result<(), Gone> {
        let opened = self.place().and_then(|(permission, place)| {
            fits(blocks, place)?;
            Ok((permission.bound(blocks), target::open(place.path(), sync, bind, blocks.congestion)?))
        });
        let (blocks, (disk, listener, port)) = match opened {
            Ok(opened) => opened,
            Err(reason) => return self.send(failed(reason)),
        };
        self.send(Report::Listening { port })?;
        let took = serve(&listener, &blocks, &disk, &mut || self.stopped());
        self.send(took.map_or_else(|error| failed(error.to_string()), Report::TookBlocks))
    }

    /// Writes blocks to a target and says how that went.
    pub(super) fn write_blocks(&self, job: &WriterJob) -> Report {
        let Some(permission) = &self.permission else {
            return failed("this agent has no permission for blocks".into());
        };
        if let Some(problem) = job.problem() {
            return failed(problem);
        }
        let job = WriterJob { blocks: permission.bound(&job.blocks), ..job.clone() };
        let wrote = write(&job, &mut || self.stopped());
        wrote.map_or_else(|error| failed(error.to_string()), Report::WroteBlocks)
    }

    /// Says whether the place holds what was acknowledged.
    pub(super) fn verify_blocks(&self, blocks: &Blocks, seed: u64, acknowledged: u64, sent: u64) -> Report {
        let verified = self.place().and_then(|(_, place)| {
            fits(blocks, place)?;
            let read = |offset: u64, data: &mut [u8]| place.read_at(offset, data);
            verify(blocks, &Content::new(seed), acknowledged, sent, read)
                .map_err(|error| format!("reading {}: {error}", place.path().display()))
        });
        verified.map_or_else(failed, Report::VerifiedBlocks)
    }
}

/// # Errors
/// In words, why the blocks may not be written into `place`.
fn fits(blocks: &Blocks, place: &Place) -> Result<(), String> {
    if let Some(problem) = blocks.problem() {
        return Err(problem);
    }
    let (asked, there) = (blocks.span_bytes, place.bytes());
    if asked > there {
        return Err(format!(
            "{asked} bytes are to be written, and {there} may be; name a smaller --span, or give `trafficspeed serve` \
             a larger --block-space"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::tests::Host;
    use super::*;
    use crate::coordinate::message::Command;
    use crate::load::block::place::PlaceOptions;
    use crate::load::block::seal::Sealing;
    use crate::load::block::{Protection, Secret};
    use crate::load::congestion::CongestionControl;

    const PLACE_BYTES: u64 = 64 << 10;
    const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn host(secret: &[u8], place: Option<Place>) -> Host {
        let permission = Arc::new(BlockPermission::new(&Token::for_tests(secret), place));
        Host::start(move |agent| agent.with_block_permission(permission))
    }

    impl Host {
        fn refusal(&self) -> String {
            let Report::Failed { why: reason } = self.receive() else { panic!("not refused") };
            reason
        }
    }

    fn place() -> Option<Place> {
        Some(Place::prepare(&PlaceOptions::default(), PLACE_BYTES).unwrap())
    }

    fn blocks(span_bytes: u64) -> Blocks {
        Blocks {
            secret: Secret::random(),
            protection: Protection::Sealed,
            sealing: Sealing::default(),
            block_bytes: 4096,
            span_bytes,
            congestion: CongestionControl::default(),
            ready_first: false,
        }
    }

    fn job(blocks: &Blocks, port: u16) -> WriterJob {
        let peer = SocketAddr::new(LOCALHOST, port);
        let blocks = blocks.clone();
        WriterJob {
            blocks,
            seed: 7,
            ahead: 4,
            warmup_ms: 0,
            duration_ms: 60_000,
            most_blocks: Some(40),
            peer,
        }
    }

    fn listening(target: &Host, blocks: &Blocks) -> u16 {
        target.send(Command::TakeBlocks { blocks: blocks.clone(), sync: true, bind: LOCALHOST });
        let Report::Listening { port } = target.receive() else { panic!("it does not listen") };
        port
    }

    #[test]
    fn what_one_host_writes_the_other_holds_byte_for_byte() {
        let (target, writer) = (host(b"one", place()), host(b"one", None));
        let blocks = blocks(PLACE_BYTES);
        let port = listening(&target, &blocks);
        writer.send(Command::WriteBlocks(job(&blocks, port)));
        let Report::WroteBlocks(wrote) = writer.receive() else { panic!("nothing written") };
        assert_eq!((wrote.sent, wrote.acknowledged, wrote.fault), (40, 40, None));
        assert!(matches!(target.receive(), Report::TookBlocks(took) if took.acknowledged == 40));
        let verify = |seed| {
            target.send(Command::VerifyBlocks { blocks: blocks.clone(), seed, acknowledged: 40, sent: 40 });
            let Report::VerifiedBlocks(found) = target.receive() else { panic!("not verified") };
            (found.right, found.wrong)
        };
        assert_eq!((verify(7), verify(8)), ((16, 0), (0, 16)));
    }

    #[test]
    fn a_host_takes_blocks_only_where_and_as_far_as_its_owner_allows() {
        let (closed, open) = (host(b"one", None), host(b"one", place()));
        let take = |span| Command::TakeBlocks { blocks: blocks(span), sync: true, bind: LOCALHOST };
        for (host, command, expected) in [
            (&closed, Command::BlockPlace, "--block-target"),
            (&closed, take(4096), "--block-target"),
            (&open, take(PLACE_BYTES + 4096), "--block-space"),
            (&open, take(4097), "no whole number"),
        ] {
            host.send(command);
            let refusal = host.refusal();
            assert!(refusal.contains(expected), "{refusal}");
        }
        open.send(Command::BlockPlace);
        assert!(matches!(open.receive(), Report::BlockPlace { bytes: PLACE_BYTES, .. }));
    }

    #[test]
    fn blocks_are_not_written_without_the_token() {
        let target = host(b"one", place());
        let blocks = blocks(PLACE_BYTES);
        let port = listening(&target, &blocks);
        assert!(write(&job(&blocks, port), &mut || false).is_err(), "the secret as it was told");
        assert!(target.refusal().contains("not authentic"));
        let (port, stranger) = (listening(&target, &blocks), host(b"another", None));
        stranger.send(Command::WriteBlocks(job(&blocks, port)));
        stranger.refusal();
        assert!(target.refusal().contains("not authentic"), "the secret bound to another token");
    }

    #[test]
    fn targets_and_writers_end_on_request() {
        let (target, writer) = (host(b"one", place()), host(b"one", None));
        let blocks = blocks(PLACE_BYTES);
        listening(&target, &blocks);
        target.send(Command::Stop);
        assert!(target.refusal().contains("ended by the coordinator"));
        let port = listening(&target, &blocks);
        writer.send(Command::WriteBlocks(WriterJob { most_blocks: None, ..job(&blocks, port) }));
        std::thread::sleep(Duration::from_millis(100));
        writer.send(Command::Stop);
        let Report::WroteBlocks(wrote) = writer.receive() else { panic!("it says nothing of what it wrote") };
        assert!(wrote.fault.is_some_and(|reason| reason.contains("ended by the coordinator")));
        assert!(matches!(target.receive(), Report::TookBlocks(_)));
    }
}
