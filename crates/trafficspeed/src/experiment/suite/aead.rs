//! Experiment 5: which cipher is the fastest, on a CPU with AES instructions and on one without.
//!
//! One TCP stream, one segment size for all ciphers so that padding and tags do not change the
//! number of packets, each direction. The segment size is set on the sockets (`TCP_MAXSEG`), which
//! holds on every host and needs no firewall; like a clamp in the network it includes TCP's
//! options. A CPU without AES instructions is had by hiding them from the one library that lets
//! itself be told so, on both ends. What vpnd chooses by itself is asked of it under the same
//! conditions.

use serde::Serialize;

use super::{Case, Quantity, Row, Stage, SuiteCampaign, SuitePlan, are_several, subjects};
use crate::experiment::outcome::Taken;
use crate::experiment::pair_run::Times;
use crate::experiment::testbed::RemoteEnd;
use crate::lab::LinkSettings;
use crate::load::task::Task;
use crate::load::tcp::{Job, Shape, Way};
use crate::observation::{ByRound, ratio};
use crate::stats::{CLAIM_ROUNDS, Spread};
use crate::system::vpnd::Code;
use crate::system::{Cipher, Kind, Priority, Programs, Subject};

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

#[derive(Clone, Debug)]
pub struct Options {
    pub ciphers: Vec<Cipher>,
    /// With and without AES instructions.
    pub codes: Vec<Code>,
    /// Largest TCP segment, options included.
    pub mss: u32,
    pub streams: u32,
    /// Times of each measurement.
    pub times: Times,
    pub repeats: u32,
    pub ip: u8,
    pub links: LinkSettings,
    /// Where the far end is.
    pub far: RemoteEnd,
    pub programs: Programs,
    /// Measure one cipher a second time, as its own control.
    pub control: bool,
    /// The systems besides plain routing.
    pub kinds: Vec<Kind>,
    /// The CPU priorities of those that take one.
    pub priorities: Vec<Priority>,
}

pub fn plan(options: &Options) -> SuitePlan {
    let stage = |subject, code, cases| Stage {
        subject,
        code,
        links: options.links,
        among_others: are_several(&options.kinds),
        cases,
    };
    let mut stages =
        vec![stage(Subject::new(Kind::None, Cipher::None), Code::Native, cases(options, Code::Native))];
    for &code in &options.codes {
        // The others' code is what it is: they are not told to do without AES instructions.
        let is_measured = |subject: &Subject| code == Code::Native || subject.kind == Kind::Vpnd;
        let measured =
            subjects(&options.kinds, &options.ciphers, &options.priorities).into_iter().filter(is_measured);
        stages.extend(measured.map(|subject| stage(subject, code, cases(options, code))));
        if options.control {
            let of_code: Vec<Stage> = stages.iter().filter(|stage| stage.code == code).cloned().collect();
            stages.extend(Stage::control(&of_code));
        }
        if options.kinds.contains(&Kind::Vpnd) {
            let priority = options.priorities.first().copied().unwrap_or_default();
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
        options.repeats,
        options.times.duration.as_secs_f64()
    );
    SuitePlan {
        name: "aead",
        about,
        far: options.far,
        stages,
        repeats: options.repeats,
        await_load: false,
        programs: options.programs.clone(),
    }
}

fn cases(options: &Options, code: Code) -> Vec<Case> {
    let one = |(way, name): (Way, &str)| {
        let task = Task::Bulk(Job {
            streams: options.streams,
            congestion: options.links.congestion,
            shape: Shape { way, window: None, mss: Some(options.mss) },
            ..Job::default()
        });
        Case {
            section: section(code).to_owned(),
            name: name.to_owned(),
            task,
            ip: options.ip,
            quantities: vec![Quantity::Throughput],
            hogs: 0,
            search: None,
            times: options.times,
        }
    };
    [(Way::Forward, "client sends"), (Way::Backward, "client receives")].map(one).to_vec()
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
    /// The choice is the fastest, or the ranges of both overlap, or they differ no more than a
    /// cipher from itself.
    pub right: Option<bool>,
}

/// The verdict for each machine code that was measured.
pub fn verdicts(campaign: &SuiteCampaign) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> = Vec::new();
    for stage in &campaign.stages {
        let is_choice = |subject: &Subject| subject.kind == Kind::Vpnd && subject.cipher == Cipher::Auto;
        let Some(subject) = stage.subject.filter(is_choice).filter(|_| stage.error.is_none()) else {
            continue;
        };
        if !verdicts.iter().any(|verdict| verdict.code == stage.code) {
            verdicts.push(verdict(campaign, stage.code, subject, &stage.facts.cipher));
        }
    }
    verdicts
}

/// `chosen` in words is what vpnd chose as `choice`.
fn verdict(campaign: &SuiteCampaign, code: Code, choice: Subject, chosen: &str) -> Verdict {
    let name = chosen.split(' ').next().unwrap_or(chosen);
    let throughputs_of = |cipher| throughputs(campaign, code, Subject { cipher, ..choice });
    let measured: Vec<(&str, ByRound, Spread)> =
        [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305]
            .into_iter()
            .filter_map(|cipher| {
                let values = throughputs_of(cipher);
                let rates: Vec<f64> = values.values().copied().collect();
                Some((cipher.name(), values, Spread::of(&rates)?))
            })
            .collect();
    let fastest = measured.iter().max_by(|a, b| a.2.median.total_cmp(&b.2.median));
    let own = measured.iter().find(|(cipher, ..)| *cipher == name);
    let right = own.zip(fastest).and_then(|(own, fastest)| {
        let is_within = || {
            let same = control(campaign, code)?;
            Some(!ratio(&fastest.1, &own.1)?.differs_beyond(same)?)
        };
        let is_right = own.0 == fastest.0 || !own.2.is_apart_from(fastest.2) || is_within() == Some(true);
        // Few rounds prove nothing, nor does a difference of what the sender limited.
        let is_bound = [own.0, fastest.0].iter().any(|cipher| is_limited(campaign, code, choice, cipher));
        let mut taken =
            campaign.rows.iter().filter(|row| row.code == code).filter_map(|row| row.cpu.as_ref());
        let is_disturbed =
            campaign.environment.is_emulated() || taken.any(|cpu| Taken::most([cpu]).is_disturbed());
        let is_enough = !is_disturbed && own.2.n.min(fastest.2.n) >= CLAIM_ROUNDS;
        (is_enough && (own.0 == fastest.0 || !is_bound)).then_some(is_right)
    });
    Verdict {
        code,
        chosen: chosen.to_owned(),
        chosen_mbit: own.map(|own| own.2),
        fastest: fastest.map(|fastest| fastest.0.to_owned()),
        fastest_mbit: fastest.map(|fastest| fastest.2),
        right,
    }
}

/// Whether the sender was the limit of a cipher's throughput in one of its runs.
fn is_limited(campaign: &SuiteCampaign, code: Code, choice: Subject, cipher: &str) -> bool {
    let is_it = |subject: Subject| {
        subject.cipher.name() == cipher && Subject { cipher: choice.cipher, ..subject } == choice
    };
    let mut rows = campaign.rows.iter().filter(|row| row.code == code && row.error.is_none());
    rows.any(|row| row.subject.is_some_and(is_it) && row.is_limited_by_sender(Quantity::Throughput))
}

/// The cipher that was measured twice in each round, against itself.
fn control(campaign: &SuiteCampaign, code: Code) -> Option<Spread> {
    let again = |row: &&Row| row.code == code && row.subject.is_some_and(|subject| subject.again);
    let subject = campaign.rows.iter().find(again)?.subject?;
    let first = Subject { again: false, ..subject };
    ratio(&throughputs(campaign, code, subject), &throughputs(campaign, code, first))
}

/// The mean of both directions, for each repetition with its number.
fn throughputs(campaign: &SuiteCampaign, code: Code, subject: Subject) -> ByRound {
    let matches_subject = |row: &&Row| row.subject == Some(subject) && row.code == code;
    (1..=campaign.repeats)
        .map(|repeat| {
            let rows = campaign.rows.iter().filter(matches_subject).filter(|row| row.repeat == repeat);
            (repeat, rows.filter_map(|row| row.value(Quantity::Throughput)).collect::<Vec<_>>())
        })
        .filter(|(_, both)| both.len() == 2)
        .map(|(repeat, both)| (repeat, mean(&both)))
        .collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::experiment::environment::Environment;
    use crate::experiment::figures::Figures;
    use crate::experiment::suite::StageInfo;
    use crate::system::SystemInfo;

    fn options() -> Options {
        let second = Duration::from_secs(1);
        Options {
            ciphers: CIPHERS.to_vec(),
            codes: vec![Code::Native, Code::WithoutAes],
            mss: MSS,
            streams: 1,
            times: Times { warmup: second, duration: second, interval: second },
            repeats: 2,
            ip: 4,
            links: LinkSettings::default(),
            far: RemoteEnd::Gateway,
            programs: Programs::default(),
            control: false,
            kinds: vec![Kind::Vpnd],
            priorities: vec![Priority::Own],
        }
    }

    /// A campaign in which vpnd chose `chosen`; per cipher the throughput of each repetition, both
    /// directions alike.
    fn campaign(chosen: &str, figures: &[(Cipher, [f64; 2])]) -> SuiteCampaign {
        let facts = SystemInfo { cipher: chosen.into(), ..SystemInfo::default() };
        let subject = |cipher| Subject::new(Kind::Vpnd, cipher);
        let choice = StageInfo { subject: Some(subject(Cipher::Auto)), facts, ..StageInfo::default() };
        let mut rows = Vec::new();
        for (cipher, values) in figures {
            let [low, high] = values;
            for (mbit, repeat) in [low, high, &f64::midpoint(*low, *high), low, high].into_iter().zip(1..) {
                for case in cases(&options(), Code::Native) {
                    rows.push(Row {
                        label: cipher.name().into(),
                        subject: Some(subject(*cipher)),
                        code: Code::Native,
                        link_mtu: Some(1500),
                        case,
                        repeat,
                        figures: Some(Figures { received_bits_per_second: mbit * 1e6, ..Figures::default() }),
                        search: None,
                        cpu: None,
                        load_average: None,
                        error: None,
                    });
                }
            }
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
        assert_eq!(plan.count(), 2 * 2 * (1 + 2 * CIPHERS.len()));
    }

    #[test]
    fn a_choice_is_right_if_none_is_faster_beyond_the_spread() {
        let speeds = |gcm: [f64; 2], chacha: [f64; 2]| {
            [(Cipher::None, [9e3; 2]), (Cipher::Aes256Gcm, gcm), (Cipher::ChaCha20Poly1305, chacha)]
        };
        let right = |chosen: &str, gcm, chacha| verdicts(&campaign(chosen, &speeds(gcm, chacha)))[0].clone();
        let best = right("aes-256-gcm (aws-lc)", [800.0, 820.0], [400.0, 420.0]);
        assert_eq!((best.right, best.chosen_mbit.unwrap().median), (Some(true), 810.0));
        let wrong = right("chacha20-poly1305 (ring)", [800.0, 820.0], [400.0, 420.0]);
        assert_eq!((wrong.right, wrong.fastest.as_deref()), (Some(false), Some("aes-256-gcm")));
        let level = right("chacha20-poly1305 (ring)", [800.0, 820.0], [700.0, 805.0]);
        assert_eq!(level.right, Some(true), "the ranges overlap");
        let mut control = campaign("chacha20-poly1305 (ring)", &speeds([800.0, 820.0], [700.0, 720.0]));
        assert_eq!(verdicts(&control)[0].right, Some(false));
        let again: Vec<Row> = control.rows.iter().filter(|row| row.label == "aes-256-gcm").cloned().collect();
        for mut row in again {
            row.subject = row.subject.map(Subject::again);
            row.figures.as_mut().unwrap().received_bits_per_second *= 0.8;
            control.rows.push(row);
        }
        assert_eq!(verdicts(&control)[0].right, Some(true), "a cipher differs as much from itself");
        let mut among = campaign("chacha20-poly1305 (ring)", &speeds([800.0, 820.0], [400.0, 420.0]));
        let other = Subject::new(Kind::WireguardGo, Cipher::Auto);
        among.stages.insert(0, StageInfo { subject: Some(other), ..StageInfo::default() });
        assert_eq!(verdicts(&among)[0].right, Some(false), "another's choice is none of vpnd's");
        let unknown = right("aes-128-gcm (ring)", [800.0, 820.0], [400.0, 420.0]);
        assert_eq!(unknown.right, None, "what was not measured cannot be judged");
        let mut once = campaign("chacha20-poly1305 (ring)", &speeds([800.0, 820.0], [400.0, 420.0]));
        once.rows.retain(|row| row.repeat < 5);
        assert_eq!(verdicts(&once)[0].right, None, "four rounds");
    }
}
