//! The counts of a load: calls, packets, bytes and wake-ups for each Gbit of payload.

use serde::{Deserialize, Serialize};

use super::stages::Live;

pub const GBIT_BYTES: f64 = 1e9 / 8.0;
/// Length of IPv4 and TCP headers with time stamps, in bytes.
pub const HEADERS: f64 = 52.0;

/// A quantity that a stage's time depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Bytes of payload.
    Bytes,
    /// Inner packets with data; each is a datagram.
    Datagrams,
    /// Super-packets that the client reads.
    Reads,
    /// Runs of datagrams with data.
    Runs,
    /// Super-packets that the gateway writes.
    Writes,
    /// Acknowledgements that the gateway reads.
    AckReads,
    /// Datagrams with acknowledgements.
    Acks,
    /// Runs of them.
    AckRuns,
    /// Acknowledgements that the client writes.
    AckWrites,
    /// How often the client's shards sleep and are woken.
    ClientWakes,
    GatewayWakes,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Self::Bytes => "byte",
            Self::Datagrams | Self::Acks => "packet",
            Self::Reads | Self::Writes | Self::AckReads | Self::AckWrites => "call",
            Self::Runs | Self::AckRuns => "run",
            Self::ClientWakes | Self::GatewayWakes => "wake-up",
        }
    }
}

/// All of it for a Gbit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    pub bytes: f64,
    pub datagrams: f64,
    pub reads: f64,
    pub runs: f64,
    pub writes: f64,
    pub ack_reads: f64,
    pub acks: f64,
    pub ack_runs: f64,
    pub ack_writes: f64,
    /// Wakes of the client and of the gateway.
    pub wakes: [f64; 2],
}

impl Counts {
    pub fn of(&self, unit: Unit) -> f64 {
        match unit {
            Unit::Bytes => self.bytes,
            Unit::Datagrams => self.datagrams,
            Unit::Reads => self.reads,
            Unit::Runs => self.runs,
            Unit::Writes => self.writes,
            Unit::AckReads => self.ack_reads,
            Unit::Acks => self.acks,
            Unit::AckRuns => self.ack_runs,
            Unit::AckWrites => self.ack_writes,
            Unit::ClientWakes => self.wakes[0],
            Unit::GatewayWakes => self.wakes[1],
        }
    }

    /// Those of a stream through whole shards. Each end is counted by itself: the two are read one
    /// after the other.
    pub fn of_live(live: &Live) -> Self {
        let at_client = GBIT_BYTES / live.client_payload().max(1.0);
        let at_gateway = GBIT_BYTES / live.gateway_payload().max(1.0);
        Self {
            bytes: GBIT_BYTES,
            datagrams: GBIT_BYTES / (live.packet as f64 - HEADERS),
            reads: live.client.read.messages as f64 * at_client,
            runs: live.client.send.messages as f64 * at_client,
            writes: live.gateway.write.messages as f64 * at_gateway,
            ack_reads: live.gateway.read.messages as f64 * at_gateway,
            acks: live.gateway.read.messages as f64 * at_gateway,
            ack_runs: live.gateway.send.messages as f64 * at_gateway,
            ack_writes: live.client.write.messages as f64 * at_client,
            wakes: [live.client.wake_ups as f64 * at_client, live.gateway.wake_ups as f64 * at_gateway],
        }
    }

    /// The mean of several.
    pub fn mean(all: &[Self]) -> Self {
        let mean = |count: fn(&Self) -> f64| all.iter().map(count).sum::<f64>() / all.len().max(1) as f64;
        Self {
            bytes: mean(|counts| counts.bytes),
            datagrams: mean(|counts| counts.datagrams),
            reads: mean(|counts| counts.reads),
            runs: mean(|counts| counts.runs),
            writes: mean(|counts| counts.writes),
            ack_reads: mean(|counts| counts.ack_reads),
            acks: mean(|counts| counts.acks),
            ack_runs: mean(|counts| counts.ack_runs),
            ack_writes: mean(|counts| counts.ack_writes),
            wakes: [mean(|counts| counts.wakes[0]), mean(|counts| counts.wakes[1])],
        }
    }
}
