//! The original's own table: six rows on links of two rates, with packets of 1,280 bytes; null
//! against no tunnel, and one algorithm against itself.
//!
//! The original had 3DES with SHA-1, 3DES, DES with SHA-1, DES, no algorithm, and no IPsec. In
//! their places: the suite with a separate MAC, the cipher without instructions of the CPU, those
//! with longer and shorter keys, none, and no tunnel. Its point is that a cipher which fills the
//! slow link is the limit of the fast one; today's need a gateway with little of a CPU for that.

use anyhow::ensure;
use serde::{Deserialize, Serialize};

use super::real::carry;
use super::{Case, ModelPlan};
use crate::experiment::outcome::{CpuUse, Taken};
use crate::experiment::progress::Progress;
use crate::experiment::testbed::{RemoteEnd, Testbed};
use crate::experiment::turns::{order, pause};
use crate::interrupt::Interrupt;
use crate::lab::LinkSettings;
use crate::lab::emulator::Emulation;
use crate::lab::emulator::impairment::{Impairment, Rate};
use crate::stats::{median, range};
use crate::system::{Cipher, Kind, Subject};

/// The original's packets, and one stream.
const CASE: Case = Case { packet: 1280, streams: 1 };
/// The systems in its order.
const SYSTEMS: [(Kind, Cipher); 6] = [
    (Kind::Vpnd, Cipher::Aes256CbcHmacSha256),
    (Kind::Vpnd, Cipher::ChaCha20Poly1305),
    (Kind::Vpnd, Cipher::Aes256Gcm),
    (Kind::Vpnd, Cipher::Aes128Gcm),
    (Kind::Vpnd, Cipher::None),
    (Kind::None, Cipher::None),
];

/// One system on links of one rate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    pub system: String,
    pub link_bits_per_second: u64,
    /// Goodput: the median of all repetitions.
    pub bits_per_second: f64,
    /// The least and the most.
    pub range: (f64, f64),
    pub repeats: usize,
    /// CPU seconds of the VPN's processes for a Gbit; the link's emulation is no part of it.
    pub vpn_seconds_per_gbit: f64,
    /// Goodput of each turn.
    pub each: Vec<f64>,
    /// Share of the machine that others took meanwhile.
    pub taken: Taken,
    /// Why there is no figure.
    pub error: Option<String>,
}

/// One repetition.
struct Round {
    /// Goodput.
    bits_per_second: f64,
    /// CPU seconds of the VPN's processes for a Gbit.
    vpn_seconds_per_gbit: f64,
    cpu: CpuUse,
}

/// Measures all systems at each rate, and if the plan has a control one of them twice.
pub fn measure(plan: &ModelPlan, progress: &Progress, interrupt: &Interrupt) -> Vec<Row> {
    plan.original.iter().flat_map(|&rate| in_turns(plan, rate, progress, interrupt)).collect()
}

/// All systems at one rate. They take turns in shuffled order; one that failed takes no more.
fn in_turns(plan: &ModelPlan, rate: Rate, progress: &Progress, interrupt: &Interrupt) -> Vec<Row> {
    let repeats = plan.real.repeats;
    let mut subjects = SYSTEMS.map(|(kind, cipher)| Subject::new(kind, cipher)).to_vec();
    let usual = |subject: &Subject| subject.cipher == Cipher::Aes256Gcm;
    subjects.extend(Subject::control(&subjects, usual).filter(|_| plan.control));
    let mut found: Vec<anyhow::Result<Vec<Round>>> = subjects.iter().map(|_| Ok(Vec::new())).collect();
    for turn in 0..repeats {
        for at in order(0..subjects.len(), turn + 1) {
            let Ok(rounds) = &mut found[at] else { continue };
            if interrupt.is_set() {
                continue;
            }
            let label = subjects[at].label();
            progress.note(&format!("measuring {label} on links of {rate}, turn {} of {repeats}", turn + 1));
            pause();
            match round(plan, subjects[at], rate, interrupt) {
                Ok(round) => rounds.push(round),
                Err(error) => found[at] = Err(error),
            }
        }
    }
    let rows = subjects.into_iter().zip(found).map(|(subject, found)| Row::of(subject, rate, found));
    rows.filter(|row| row.repeats > 0 || row.error.is_some()).collect()
}

fn round(plan: &ModelPlan, subject: Subject, rate: Rate, interrupt: &Interrupt) -> anyhow::Result<Round> {
    let way = Impairment { rate: Some(rate), ..Impairment::default() };
    let emulation = Emulation { up: way, down: way, seed: 1 };
    let links = LinkSettings { emulation: Some(emulation), gateway_cpu: plan.original_cpu, ..plan.links };
    let system = subject.system(&plan.programs)?;
    let mut testbed = Testbed::build(system, RemoteEnd::Gateway, links, interrupt)?;
    let (found, cpu) = carry(plan, &mut testbed, CASE, interrupt)?;
    let goodput = found.received_bits_per_second;
    ensure!(goodput > 0.0, "the stream carried nothing");
    let vpn_seconds_per_gbit = (cpu.clients + cpu.gateway) / (goodput * cpu.seconds / 1e9);
    Ok(Round { bits_per_second: goodput, vpn_seconds_per_gbit, cpu })
}

impl Row {
    fn of(subject: Subject, rate: Rate, found: anyhow::Result<Vec<Round>>) -> Self {
        let (rounds, error) = match found {
            Ok(rounds) => (rounds, None),
            Err(error) => (Vec::new(), Some(format!("{error:#}"))),
        };
        let taken = Taken::most(rounds.iter().map(|round| &round.cpu));
        let (goodput, cost): (Vec<f64>, Vec<f64>) =
            rounds.iter().map(|round| (round.bits_per_second, round.vpn_seconds_per_gbit)).unzip();
        Self {
            system: subject.label(),
            link_bits_per_second: rate.bits_per_second,
            bits_per_second: median(&goodput).unwrap_or_default(),
            range: range(&goodput).unwrap_or_default(),
            repeats: goodput.len(),
            vpn_seconds_per_gbit: median(&cost).unwrap_or_default(),
            each: goodput,
            taken,
            error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_the_median_of_its_repetitions_or_says_why_there_is_none() {
        let rate: Rate = "100mbit".parse().unwrap();
        let subject = Subject::new(Kind::Vpnd, Cipher::None);
        let row = Row::of(
            subject,
            rate,
            Ok([(90e6, 0.4), (93e6, 0.2), (92e6, 0.3)]
                .map(|(bits_per_second, vpn_seconds_per_gbit)| Round {
                    bits_per_second,
                    vpn_seconds_per_gbit,
                    cpu: CpuUse::default(),
                })
                .into()),
        );
        assert_eq!((row.bits_per_second, row.range, row.repeats), (92e6, (90e6, 93e6), 3));
        assert_eq!((row.vpn_seconds_per_gbit, row.error), (0.3, None));
        let failed = Row::of(subject, rate, Err(anyhow::anyhow!("no device")));
        assert_eq!((failed.repeats, failed.error.as_deref()), (0, Some("no device")));
    }
}
