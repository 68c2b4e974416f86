//! Experiment 5: which cipher is the fastest, on a CPU with AES instructions and on one without.
//!
//! One TCP stream, one segment size for all ciphers so that padding and tags do not change the
//! number of packets, each direction. The segment size is set on the sockets (`TCP_MAXSEG`), which
//! holds on every host and needs no firewall; like a clamp in the network it includes TCP's
//! options. A CPU without AES instructions is had by hiding them from the one library that lets
//! itself be told so, on both ends. What vpnd chooses by itself is asked of it under the same
//! conditions.

use serde::Serialize;

use super::observations::case;
use super::{Case, Quantity, Row, Stage, SuiteCampaign, SuiteOptions, SuitePlan};
use crate::load::task::Task;
use crate::load::tcp::{Job, Shape, Way};
use crate::observation::{ByRound, Observations, ratio};
use crate::stats::Spread;
use crate::system::vpnd::Code;
use crate::system::{AGAIN, Cipher, Kind, Subject};

/// The largest segment of the original measurement.
pub const MSS: u32 = 1_334;
/// The ciphers, in the order of the report.
pub const CIPHERS: [Cipher; 5] = [
    Cipher::None,
    Cipher::Aes256CbcHmacSha256,
    Cipher::Aes128Gcm,
    Cipher::Aes256Gcm,
    Cipher::ChaCha20Poly1305,
];
pub const SECTION_NATIVE: &str = "With this CPU's instructions";
const SECTION_WITHOUT: &str = "Without AES instructions";
/// The cases, by their directions.
const DIRECTIONS: [(Way, &str); 2] = [(Way::Forward, "client sends"), (Way::Backward, "client receives")];

#[derive(Clone, Debug)]
pub struct Options {
    pub suite: SuiteOptions,
    /// With and without AES instructions.
    pub codes: Vec<Code>,
    /// Largest TCP segment, options included.
    pub mss: u32,
    pub streams: u32,
    pub ip: u8,
}

pub fn plan(options: &Options) -> SuitePlan {
    let suite = &options.suite;
    let stage = |subject, code, cases| Stage { code, ..suite.stage(subject, cases) };
    let mut stages =
        vec![stage(Subject::new(Kind::None, Cipher::None), Code::Native, cases(options, Code::Native))];
    for &code in &options.codes {
        // The others' code is what it is: they are not told to do without AES instructions.
        let is_measured = |subject: &Subject| code == Code::Native || subject.kind == Kind::Vpnd;
        let measured = suite.subjects().into_iter().filter(is_measured);
        stages.extend(measured.map(|subject| stage(subject, code, cases(options, code))));
        if suite.control {
            let of_code: Vec<Stage> = stages.iter().filter(|stage| stage.code == code).cloned().collect();
            stages.extend(Stage::control(&of_code));
        }
        if suite.kinds.contains(&Kind::Vpnd) {
            let priority = suite.priorities.first().copied().unwrap_or_default();
            let choice = Subject { priority, ..Subject::new(Kind::Vpnd, Cipher::Auto) };
            stages.push(stage(choice, code, Vec::new()));
        }
    }
    let about = format!(
        "Which cipher is the fastest. {} TCP stream{} with segments of at most {} bytes (options included), each \
         direction, {} times {} s.",
        options.streams,
        if options.streams == 1 { "" } else { "s" },
        options.mss,
        suite.repeats,
        suite.times.duration.as_secs_f64()
    );
    suite.plan("aead", about, stages)
}

fn cases(options: &Options, code: Code) -> Vec<Case> {
    let one = |(way, name): (Way, &str)| {
        let shape = Shape { way, window: None, mss: Some(options.mss) };
        let task = Task::Bulk(Job { streams: options.streams, shape, ..Job::default() });
        options.suite.case(section(code), name.to_owned(), task, options.ip, &[Quantity::Throughput])
    };
    DIRECTIONS.map(one).to_vec()
}

fn section(code: Code) -> &'static str {
    if code == Code::Native { SECTION_NATIVE } else { SECTION_WITHOUT }
}

/// Whether vpnd's own choice was the fastest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    pub code: Code,
    /// Its choice, in its own words.
    pub chosen: String,
    /// Throughput of that choice in Mbit/s, mean of both directions.
    pub chosen_mbit: Option<Spread>,
    /// The fastest of the ciphers that protect.
    pub fastest: Option<String>,
    pub fastest_mbit: Option<Spread>,
    /// The choice is the fastest, or the fastest differs from it no more than a cipher from itself;
    /// `None` where that is not known.
    pub right: Option<bool>,
}

/// The verdict for each machine code that was measured.
pub fn verdicts(campaign: &SuiteCampaign) -> Vec<Verdict> {
    let table = campaign.observations();
    let mut verdicts: Vec<Verdict> = Vec::new();
    for stage in &campaign.stages {
        let is_choice = |subject: &Subject| subject.kind == Kind::Vpnd && subject.cipher == Cipher::Auto;
        let Some(subject) = stage.subject.filter(is_choice).filter(|_| stage.error.is_none()) else {
            continue;
        };
        if !verdicts.iter().any(|verdict| verdict.code == stage.code) {
            let runs = Runs { rows: &campaign.rows, table: &table, code: stage.code };
            verdicts.push(runs.verdict(subject, &stage.facts.cipher));
        }
    }
    verdicts
}

/// The measurements with one machine code.
struct Runs<'a> {
    rows: &'a [Row],
    table: &'a Observations,
    code: Code,
}

/// A cipher as it was measured.
struct Measured<'a> {
    cipher: &'static str,
    label: &'a str,
    by_round: ByRound,
    spread: Spread,
}

impl<'a> Runs<'a> {
    /// `chosen` in words is what vpnd chose as `choice`.
    fn verdict(&self, choice: Subject, chosen: &str) -> Verdict {
        let name = chosen.split(' ').next().unwrap_or(chosen);
        let measured = |cipher: Cipher| {
            let label = self.label(|subject| subject == Subject { cipher, ..choice })?;
            let by_round = self.throughputs(label);
            let spread = Spread::of(&by_round.values().copied().collect::<Vec<_>>())?;
            Some(Measured { cipher: cipher.name(), label, by_round, spread })
        };
        let measured = [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305].map(measured);
        let measured: Vec<Measured<'_>> = measured.into_iter().flatten().collect();
        let fastest = measured.iter().max_by(|a, b| a.spread.median.total_cmp(&b.spread.median));
        let own = measured.iter().find(|one| one.cipher == name);
        Verdict {
            code: self.code,
            chosen: chosen.to_owned(),
            chosen_mbit: own.map(|own| own.spread),
            fastest: fastest.map(|fastest| fastest.cipher.to_owned()),
            fastest_mbit: fastest.map(|fastest| fastest.spread),
            right: own.zip(fastest).and_then(|(own, fastest)| self.is_right(own, fastest)),
        }
    }

    fn is_right(&self, own: &Measured<'_>, fastest: &Measured<'_>) -> Option<bool> {
        let is_fastest = own.cipher == fastest.cipher;
        let differs = ratio(&fastest.by_round, &own.by_round)?.differs_beyond(self.control()?)?;
        // A difference of what the sender limited proves nothing.
        let is_bound = [own.label, fastest.label].iter().any(|label| self.is_limited(label));
        let is_disturbed = self.cases().iter().any(|case| self.table.is_disturbed(case));
        (!is_disturbed && (is_fastest || !is_bound)).then_some(!differs)
    }

    /// The cipher that was measured twice in each round, relative to itself.
    fn control(&self) -> Option<Spread> {
        let again = self.label(|subject| subject.again)?;
        ratio(&self.throughputs(again), &self.throughputs(&again.replace(AGAIN, "")))
    }

    fn label(&self, is_wanted: impl Fn(Subject) -> bool) -> Option<&'a str> {
        let mut rows = self.rows.iter().filter(|row| row.code == self.code);
        rows.find(|row| row.subject.is_some_and(&is_wanted)).map(|row| row.label.as_str())
    }

    fn cases(&self) -> [String; 2] {
        DIRECTIONS.map(|(_, name)| case(section(self.code), name))
    }

    fn is_limited(&self, label: &str) -> bool {
        self.cases().iter().any(|case| self.table.is_bound(label, case, Quantity::Throughput.observed()))
    }

    /// The mean of both directions in each round that has both.
    fn throughputs(&self, label: &str) -> ByRound {
        let [sent, received] =
            self.cases().map(|case| self.table.by_round((label, &case), Quantity::Throughput.observed()));
        let mean = |(round, sent): (u32, f64)| Some((round, f64::midpoint(sent, *received.get(&round)?)));
        sent.into_iter().filter_map(mean).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::environment::Environment;
    use crate::experiment::figures::Figures;
    use crate::experiment::suite::StageInfo;
    use crate::experiment::testbed::RemoteEnd;
    use crate::system::SystemInfo;

    fn options() -> Options {
        let suite = SuiteOptions { ciphers: CIPHERS.to_vec(), ..super::super::options::sample(false) };
        let codes = vec![Code::Native, Code::WithoutAes];
        Options { suite, codes, mss: MSS, streams: 1, ip: 4 }
    }

    /// A campaign in which vpnd chose `chosen`; per cipher the throughput of each repetition, both
    /// directions alike, and AES-256-GCM again with `again` times its throughput.
    fn campaign(chosen: &str, figures: &[(Cipher, [f64; 2])], again: Option<f64>) -> SuiteCampaign {
        let facts = SystemInfo { cipher: chosen.into(), ..SystemInfo::default() };
        let subject = |cipher| Subject::new(Kind::Vpnd, cipher);
        let choice = StageInfo { subject: Some(subject(Cipher::Auto)), facts, ..StageInfo::default() };
        let mut rows = Vec::new();
        for (cipher, values) in figures {
            let [low, high] = values;
            for (mbit, repeat) in [low, high, &f64::midpoint(*low, *high), low, high].into_iter().zip(1..) {
                for case in cases(&options(), Code::Native) {
                    let figures = Figures { received_bits_per_second: mbit * 1e6, ..Figures::default() };
                    let row = Row::new(cipher.name().into(), &case, repeat);
                    rows.push(Row { subject: Some(subject(*cipher)), figures: Some(figures), ..row });
                }
            }
        }
        let first = rows.iter().filter(|row: &&Row| row.label == "aes-256-gcm" && again.is_some());
        for mut row in first.cloned().collect::<Vec<Row>>() {
            row.subject = row.subject.map(Subject::again);
            row.label.push_str(AGAIN);
            row.figures.as_mut().unwrap().received_bits_per_second *= again.unwrap_or_default();
            rows.push(row);
        }
        SuiteCampaign {
            name: "aead".into(),
            about: String::new(),
            far: Some(RemoteEnd::Gateway),
            repeats: 5,
            environment: Environment::default(),
            stages: vec![choice],
            rows,
            interrupted: false,
        }
    }

    #[test]
    fn every_cipher_has_one_segment_size_both_directions_and_both_codes() {
        let plan = plan(&options());
        assert_eq!(plan.stages.len(), 1 + 2 * (CIPHERS.len() + 1));
        for case in plan.stages.iter().flat_map(|stage| &stage.cases) {
            let Task::Bulk(job) = &case.task else { panic!("bulk data") };
            assert_eq!(job.shape.mss, Some(1_334));
            assert_eq!(case.task.problem(), None);
        }
        assert_eq!(plan.count(), 5 * 2 * (1 + 2 * CIPHERS.len()));
    }

    #[test]
    fn a_choice_is_right_if_none_is_faster_beyond_the_control() {
        let speeds = |gcm: [f64; 2], chacha: [f64; 2]| {
            [(Cipher::None, [9e3; 2]), (Cipher::Aes256Gcm, gcm), (Cipher::ChaCha20Poly1305, chacha)]
        };
        let with = |chosen: &str, gcm, chacha, again| {
            verdicts(&campaign(chosen, &speeds(gcm, chacha), again))[0].clone()
        };
        let right = |chosen: &str, gcm, chacha| with(chosen, gcm, chacha, Some(1.0));
        let best = right("aes-256-gcm (aws-lc)", [800.0, 820.0], [400.0, 420.0]);
        assert_eq!((best.right, best.chosen_mbit.unwrap().median), (Some(true), 810.0));
        let wrong = right("chacha20-poly1305 (ring)", [800.0, 820.0], [400.0, 420.0]);
        assert_eq!((wrong.right, wrong.fastest.as_deref()), (Some(false), Some("aes-256-gcm")));
        let drifting = right("chacha20-poly1305 (ring)", [800.0, 400.0], [700.0, 350.0]);
        assert_eq!(drifting.right, Some(false), "the ranges overlap, and it is slower in each round");
        let within = with("chacha20-poly1305 (ring)", [800.0, 820.0], [700.0, 720.0], Some(0.8));
        assert_eq!(within.right, Some(true), "a cipher differs as much from itself");
        for chosen in ["aes-256-gcm (aws-lc)", "chacha20-poly1305 (ring)"] {
            let without = with(chosen, [800.0, 820.0], [400.0, 420.0], None);
            assert_eq!(without.right, None, "how far a cipher differs from itself is not known");
        }
        let slow = speeds([800.0, 820.0], [400.0, 420.0]);
        let mut among = campaign("chacha20-poly1305 (ring)", &slow, Some(1.0));
        let other = Subject::new(Kind::WireguardGo, Cipher::Auto);
        among.stages.insert(0, StageInfo { subject: Some(other), ..StageInfo::default() });
        assert_eq!(verdicts(&among)[0].right, Some(false), "another's choice is none of vpnd's");
        let unknown = right("aes-128-gcm (ring)", [800.0, 820.0], [400.0, 420.0]);
        assert_eq!(unknown.right, None, "what was not measured cannot be judged");
        let mut once = campaign("chacha20-poly1305 (ring)", &slow, Some(1.0));
        once.rows.retain(|row| row.repeat < 5);
        assert_eq!(verdicts(&once)[0].right, None, "four rounds");
    }
}
