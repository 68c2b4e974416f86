//! The prediction from the sum of the stages.
//!
//! One TCP stream goes from a client to a host behind the gateway. The client sends its data and receives its
//! acknowledgements, the gateway the other way round. A stage that works on packets runs once for each `mss` bytes of
//! payload; one that works on super-packets once for each super-packet of the TUN device, or each run of datagrams of the
//! socket.

use serde::{Deserialize, Serialize};

use super::fit::{Line, Stage};
use super::stages::Raw;

/// Length of an acknowledgement, as the stages' smallest packet.
const ACK_BYTES: f64 = 64.0;
/// Bits in a byte over 10^9: nanoseconds for a byte into seconds for a Gbit.
const SECONDS_PER_GBIT: f64 = 0.125;

/// Which way a shard works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// From the TUN device to the socket.
    Sender,
    /// From the socket to the TUN device.
    Receiver,
}

impl Way {
    /// As the stages name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sender => "sender",
            Self::Receiver => "receiver",
        }
    }
}

/// In which pieces the payload travels, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shape {
    /// Payload of each inner packet.
    pub mss: f64,
    /// Of each super-packet that the sender reads.
    pub read: f64,
    /// Of each run of datagrams.
    pub run: f64,
    /// Of each super-packet that the receiver writes.
    pub written: f64,
    /// For which there is one acknowledgement.
    pub acknowledged: f64,
    /// For which there is one send that carries acknowledgements.
    pub ack_run: f64,
}

impl Shape {
    /// The best case: everything in the longest pieces.
    pub fn full(raw: &Raw) -> Self {
        let most = (raw.max_slices * raw.mss) as f64;
        Self { mss: raw.mss as f64, read: most, run: most, written: most, acknowledged: most, ack_run: most }
    }

    /// The payload in each call of a stage.
    fn piece(&self, stage: &Stage) -> f64 {
        match (stage.unit.as_str(), stage.name.as_str()) {
            ("packet", _) => self.mss,
            (_, "UDP send" | "UDP receive") => self.run,
            _ if stage.side == Way::Sender.name() => self.read,
            _ => self.written,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageCost {
    pub stage: String,
    /// Whose work it is.
    pub way: Way,
    /// Nanoseconds for each byte of payload, its share of the packets' costs included.
    pub ns_per_byte: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The pieces that were assumed.
    pub shape: Shape,
    /// The data's way, stage by stage.
    pub parts: Vec<StageCost>,
    /// Nanoseconds of the client for the acknowledgements of each byte.
    pub client_acks: f64,
    /// Nanoseconds of the gateway for them.
    pub gateway_acks: f64,
}

impl Prediction {
    /// Sums the stages of `suite`.
    pub fn make(stages: &[Stage], suite: &str, shape: Shape) -> Self {
        let mine = |stage: &&Stage| stage.suite.as_deref().is_none_or(|of| of == suite);
        let parts = stages.iter().filter(mine).filter_map(|stage| {
            let way = way_of(stage)?;
            let piece = shape.piece(stage);
            // Whole inner packets are what a call works on; their headers are little beside the payload.
            Some(StageCost { stage: stage.name.clone(), way, ns_per_byte: stage.line.ns(piece) / piece })
        });
        let acks = |way: Way| {
            let of_way = stages.iter().filter(mine).filter(|stage| way_of(stage) == Some(way));
            of_way.map(|stage| ack_ns(stage, &shape)).sum::<f64>()
        };
        Self {
            shape,
            parts: parts.collect(),
            client_acks: acks(Way::Receiver),
            gateway_acks: acks(Way::Sender),
        }
    }

    /// Nanoseconds of the stages of one way for each byte.
    pub fn stages_ns(&self, way: Way) -> f64 {
        self.parts.iter().filter(|part| part.way == way).map(|part| part.ns_per_byte).sum()
    }

    /// CPU seconds of the client for a Gbit of payload.
    pub fn client(&self) -> f64 {
        SECONDS_PER_GBIT * (self.stages_ns(Way::Sender) + self.client_acks)
    }

    /// CPU seconds of the gateway for a Gbit of payload.
    pub fn gateway(&self) -> f64 {
        SECONDS_PER_GBIT * (self.stages_ns(Way::Receiver) + self.gateway_acks)
    }

    /// CPU seconds of both for a Gbit of payload.
    pub fn seconds_per_gbit(&self) -> f64 {
        self.client() + self.gateway()
    }

    /// Throughput of one stream if client and gateway have a core each and nothing else is slower.
    pub fn core_each(&self) -> f64 {
        1e9 / self.client().max(self.gateway())
    }

    /// Throughput of one stream on a machine whose `cpus` cores also do the generators' work.
    pub fn bits_per_second(&self, cpus: u32, generator_seconds_per_gbit: f64) -> f64 {
        let shared = f64::from(cpus) * 1e9 / (self.seconds_per_gbit() + generator_seconds_per_gbit);
        shared.min(self.core_each())
    }

    /// The most expensive stage of the slower end.
    pub fn bottleneck(&self) -> Option<&StageCost> {
        let slower = if self.client() > self.gateway() { Way::Sender } else { Way::Receiver };
        let parts = self.parts.iter().filter(|part| part.way == slower);
        parts.max_by(|a, b| a.ns_per_byte.total_cmp(&b.ns_per_byte))
    }

    /// The cost of each stage that a rate needs.
    pub fn target(&self, bits_per_second: f64) -> Target {
        let budget = 8e9 / bits_per_second;
        let needs = self.parts.iter().map(|part| {
            let acks = if part.way == Way::Sender { self.client_acks } else { self.gateway_acks };
            let sum = self.stages_ns(part.way) + acks;
            let alone = part.ns_per_byte - (sum - budget);
            Need {
                stage: part.stage.clone(),
                way: part.way,
                now: part.ns_per_byte,
                all_alike: part.ns_per_byte * (budget / sum).min(1.0),
                alone: (alone > 0.0).then(|| alone.min(part.ns_per_byte)),
            }
        });
        Target { bits_per_second, budget, needs: needs.collect() }
    }
}

fn way_of(stage: &Stage) -> Option<Way> {
    [Way::Sender, Way::Receiver].into_iter().find(|way| stage.side == way.name())
}

/// The cost of a stage for the acknowledgements of each byte.
fn ack_ns(stage: &Stage, shape: &Shape) -> f64 {
    let Line { each, per_byte, .. } = stage.line;
    let calls = if stage.name.starts_with("UDP ") { shape.ack_run } else { shape.acknowledged };
    each / calls + per_byte * ACK_BYTES / shape.acknowledged
}

/// The answer for one rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    pub bits_per_second: f64,
    /// Nanoseconds that each end has for a byte of payload, on a core of its own.
    pub budget: f64,
    pub needs: Vec<Need>,
}

/// The cost that one stage must reach, in nanoseconds for each byte of payload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Need {
    pub stage: String,
    pub way: Way,
    pub now: f64,
    /// If all stages of that end get cheaper by the same factor.
    pub all_alike: f64,
    /// If the others stay as they are; `None` if even nothing would not be enough.
    pub alone: Option<f64>,
}

/// The model of 2001: nanoseconds for a packet of `blocks` blocks of 64 bits through the crypto board. `transfer` is the
/// time of one block over the bus, `cipher` of one block through 3DES, `hash` of 512 bits through SHA-1. Kasai, Watanabe,
/// Nakano (Hitachi), 2001; valid while `cipher > 4 transfer` and `hash > 16 transfer`.
pub fn board_ns(blocks: f64, transfer: f64, cipher: f64, hash: f64) -> f64 {
    blocks * (4.0 * transfer + cipher + hash / 8.0) + 26.0 * transfer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(name: &str, side: Way, unit: &str, each: f64, per_byte: f64) -> Stage {
        let line = Line { each, per_byte, worst: 0.0 };
        Stage { name: name.into(), side: side.name().into(), unit: unit.into(), suite: None, line }
    }

    fn shape() -> Shape {
        Shape {
            mss: 1000.0,
            read: 50_000.0,
            run: 10_000.0,
            written: 20_000.0,
            acknowledged: 40_000.0,
            ack_run: 80_000.0,
        }
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn each_stage_runs_as_often_as_its_pieces_come() {
        let stages = [
            stage("TUN read", Way::Sender, "super-packet", 500.0, 0.0),
            stage("seal", Way::Sender, "packet", 100.0, 0.1),
            stage("UDP send", Way::Sender, "super-packet", 4000.0, 0.0),
            stage("TUN write", Way::Receiver, "super-packet", 2000.0, 0.05),
        ];
        let made = Prediction::make(&stages, "none", shape());
        let ns: Vec<f64> = made.parts.iter().map(|part| part.ns_per_byte).collect();
        assert!(ns.iter().zip([0.01, 0.2, 0.4, 0.15]).all(|(a, b)| near(*a, b)), "{ns:?}");
        // Acknowledgements go through the same stages the other way round, fewer sends than packets.
        let sent = (500.0 + 100.0 + 0.1 * ACK_BYTES) / 40_000.0 + 4000.0 / 80_000.0;
        assert!(near(made.gateway_acks, sent), "{made:?}");
        assert!(near(made.client(), 0.125 * (0.61 + made.client_acks)));
        assert_eq!(made.bottleneck().map(|part| part.stage.as_str()), Some("UDP send"));
        assert!(near(made.core_each(), 1e9 / made.client()));
        assert!(made.bits_per_second(1, 0.0) < made.core_each());
        assert!(near(made.bits_per_second(64, 0.0), made.core_each()));
    }

    #[test]
    fn another_suites_cipher_does_not_count() {
        let of = |suite: &str| Stage {
            suite: Some(suite.into()),
            ..stage("seal", Way::Sender, "packet", 100.0, 0.0)
        };
        let made = Prediction::make(&[of("a"), of("b")], "a", shape());
        assert_eq!(made.parts.len(), 1);
    }

    #[test]
    fn a_target_says_what_each_stage_must_cost() {
        let stages = [
            stage("seal", Way::Sender, "packet", 300.0, 0.0),
            stage("UDP send", Way::Sender, "super-packet", 1000.0, 0.0),
        ];
        let mut made = Prediction::make(&stages, "none", shape());
        (made.client_acks, made.gateway_acks) = (0.0, 0.0);
        // The sender costs 0.4 ns a byte: 20 Gbit/s.
        let reached = made.target(10e9);
        assert!(
            reached.needs.iter().all(|need| near(need.all_alike, need.now) && need.alone == Some(need.now))
        );
        let half = made.target(40e9);
        assert!(near(half.budget, 0.2) && near(half.needs[0].all_alike, 0.15), "{half:?}");
        assert!(half.needs[0].alone.is_some_and(|alone| near(alone, 0.1)), "{half:?}");
        assert_eq!(half.needs[1].alone, None, "sealing alone takes longer than there is");
    }

    #[test]
    fn the_originals_model_gives_the_originals_answer() {
        // 100 Mbit/s is 640 ns for 64 bits; with a transfer of 30 ns and hash and cipher as 162 to 36, 332.8 ns are left.
        let cipher = 332.8;
        let block = board_ns(1.0, 30.0, cipher, cipher * 162.0 / 36.0) - 26.0 * 30.0;
        assert!((block - 640.0).abs() < 1e-9, "{block}");
    }
}
