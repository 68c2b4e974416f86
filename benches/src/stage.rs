//! A stage of the data path: what it is, how much one call of it does, and the work itself.

use std::time::{Duration, Instant};

use serde::Serialize;

/// The load of one call of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// One inner packet or datagram.
    Packet,
    /// One super-packet, or the datagrams that it becomes.
    SuperPacket,
}

/// The end of the tunnel that a stage belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// From the TUN device to the socket.
    Sender,
    /// From the socket to the TUN device, at a gateway.
    Receiver,
    /// From the socket to another client.
    Hub,
}

/// The names of a stage, the same for all its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Name {
    /// For example `seal`.
    pub stage: &'static str,
    /// The end that it belongs to.
    pub side: Side,
    /// The load of one call.
    pub unit: Unit,
    /// The cipher suite, where the work depends on it.
    pub suite: Option<&'static str>,
    /// True for the sum of other stages.
    pub whole: bool,
}

impl Name {
    /// A stage that is a part of the way and the same for every suite.
    pub const fn new(stage: &'static str, side: Side, unit: Unit) -> Self {
        Self { stage, side, unit, suite: None, whole: false }
    }

    /// The stage for one suite.
    #[must_use]
    pub const fn with(self, suite: &'static str) -> Self {
        Self { suite: Some(suite), ..self }
    }

    /// The stage as the sum of other stages.
    #[must_use]
    pub const fn whole(self) -> Self {
        Self { whole: true, ..self }
    }
}

/// The work of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Load {
    /// Inner packets.
    pub packets: usize,
    /// Bytes of these packets, their own headers included.
    pub bytes: usize,
}

/// One stage at one size.
pub struct Stage {
    /// Its name.
    pub name: Name,
    /// The work of a call.
    pub load: Load,
    work: Box<dyn FnMut(u64) -> Duration>,
}

impl Stage {
    /// A stage whose calls can follow each other without preparation.
    pub fn plain(name: Name, load: Load, mut call: impl FnMut() + 'static) -> Self {
        Self::timed(name, load, move |calls| {
            let start = Instant::now();
            for _ in 0..calls {
                call();
            }
            start.elapsed()
        })
    }

    /// A stage that times itself: `work` makes this many calls and returns their time without
    /// their preparation.
    pub fn timed(name: Name, load: Load, work: impl FnMut(u64) -> Duration + 'static) -> Self {
        Self { name, load, work: Box::new(work) }
    }

    /// Makes `calls` calls and says how long they took.
    pub fn run(&mut self, calls: u64) -> Duration {
        (self.work)(calls)
    }

    /// Its name in criterion.
    pub fn id(&self) -> String {
        let Load { packets, bytes } = self.load;
        let suite = self.name.suite.map_or_else(String::new, |suite| format!(", {suite}"));
        format!("{}{suite}/{packets} packets, {bytes} bytes", self.name.stage)
    }
}
