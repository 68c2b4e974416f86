//! Real paths: a download, an upload, a call and pages at once over a link as a home has it,
//! through each system and alone.
//!
//! Systems take turns within each round; each gets a fresh lab, in which everything runs at once
//! first, and then each part alone. The link stands below every system and treats outer packets
//! alike, of any sender. Before the first round it is measured by itself
//! ([`super::link_check`]), and each measurement has its own account of it: what it lost
//! because it was asked to, what its queue dropped, how late frames left.

pub mod flow;
pub mod observations;
pub mod results;

use std::time::Duration;

use super::environment::Environment;
use super::figures::figures;
use super::generate::fresh;
use super::link_check::{self, LinkCheckPlan, LinkChecked};
use super::outcome::Taken;
use super::pair_run::{LEAD, Times};
use super::progress::Progress;
use super::suite::faults;
use super::testbed::{RemoteEnd, Testbed, TestbedError, Trial, TrialResult};
use super::turns::{in_turns, pause, until_quiet};
use crate::clock;
use crate::coordinate::message::Measurement;
use crate::interrupt::Interrupt;
use crate::lab::emulator::{Emulation, Emulator};
use crate::lab::{LabError, LinkSettings};
use crate::system::{Programs, Subject};
use crate::unit::significant;
use flow::{Case, Flow};
use results::{CaseResult, HomeCampaign, HomeRun, HomeSettings, LinkCounts, LinkUse};

/// Time for which the link is probed, and loaded each way, before the first round; and how often.
const LINK_CHECK: Duration = Duration::from_secs(1);
const PROBES_PER_SECOND: u32 = 500;
/// The time to measure a link, to bring a system up, and to connect and drain before and after,
/// about.
const LINK_CHECK_TIME: Duration = Duration::from_secs(6);
const STAGE_TIME: Duration = Duration::from_millis(2_500);
/// From when a system is up to its first measurement, in which it may find the path's MTU.
const SETTLE: Duration = Duration::from_secs(1);
const CASE_TIME: Duration = Duration::from_millis(600);
/// The warm-up of a part alone, which has the path to itself.
const ALONE_WARMUP: Duration = Duration::from_millis(500);
/// One of this many frames may get lost by the emulator's own fault before a measurement counts as
/// spoilt.
const SPOILT_OF: u64 = 1_000;

#[derive(Clone, Debug)]
pub struct HomePlan {
    pub subjects: Vec<Subject>,
    /// The emulation is always there.
    pub links: LinkSettings,
    pub programs: Programs,
    /// Recorded with the results.
    pub settings: HomeSettings,
}

impl HomePlan {
    /// The measurements of a system; of a control only everything at once.
    fn cases(&self, subject: Subject) -> Vec<Case> {
        let alone = self.settings.alone_seconds > 0.0 && !subject.again;
        Case::ALL.into_iter().filter(|case| alone || *case == Case::AtOnce).collect()
    }

    fn times(&self, case: Case) -> Times {
        let (seconds, warmup) = match case {
            Case::AtOnce => (self.settings.seconds, Duration::from_secs_f64(self.settings.warmup_seconds)),
            _ => (self.settings.alone_seconds, ALONE_WARMUP),
        };
        let duration = Duration::from_secs_f64(seconds);
        Times { warmup, duration, interval: duration.min(Duration::from_secs(1)) }
    }

    /// About how long it takes.
    pub fn estimate(&self) -> Duration {
        let case = |case: Case| {
            let Times { warmup, duration, .. } = self.times(case);
            warmup + duration + LEAD + CASE_TIME
        };
        let stage = |subject: &Subject| {
            STAGE_TIME + SETTLE + self.cases(*subject).into_iter().map(case).sum::<Duration>()
        };
        LINK_CHECK_TIME + self.subjects.iter().map(stage).sum::<Duration>() * self.settings.repeats
    }

    /// The links of a round: the same chance for all systems, and another in each round.
    fn links_of(&self, repeat: u32) -> LinkSettings {
        let seeded = |emulation: Emulation| Emulation {
            seed: emulation.seed.wrapping_add(u64::from(repeat - 1)),
            ..emulation
        };
        LinkSettings { emulation: self.links.emulation.map(seeded), ..self.links }
    }

    fn check_link(&self) -> Result<Option<LinkChecked>, LabError> {
        let Some(emulation) = self.links.emulation else { return Ok(None) };
        link_check::run(&LinkCheckPlan {
            links: self.links,
            emulation,
            duration: LINK_CHECK,
            probes_per_second: PROBES_PER_SECOND,
        })
        .map(Some)
    }
}

/// Measures all systems in turns.
///
/// # Errors
/// The link alone could not be measured.
pub fn run(plan: &HomePlan, progress: &Progress, interrupt: &Interrupt) -> Result<HomeCampaign, LabError> {
    progress.live("measuring the link alone");
    let mut campaign = HomeCampaign {
        settings: plan.settings.clone(),
        environment: Environment::read(Some(plan.links)),
        link: plan.check_link()?,
        runs: Vec::new(),
        interrupted: false,
    };
    campaign.runs = in_turns(&plan.subjects, plan.settings.repeats, interrupt, |&subject, repeat| {
        pause();
        let run = run_stage(plan, subject, repeat, progress, interrupt);
        progress.note(&format!("{}, round {repeat}: {}", run.label, in_words(&run)));
        for problem in run.problems() {
            progress.note(&format!("{}, round {repeat}: {problem}", run.label));
        }
        run
    });
    campaign.interrupted = interrupt.is_set();
    Ok(campaign)
}

fn in_words(run: &HomeRun) -> String {
    let figures = |flow| run.figures(Case::AtOnce, flow);
    let rate = |flow| {
        let rate = figures(flow).map(|figures| figures.received_bits_per_second / 1e6);
        rate.map_or_else(|| "–".into(), significant)
    };
    let delay = figures(Flow::VoiceDown).and_then(|figures| figures.delay.as_ref());
    let page = figures(Flow::Pages).and_then(|figures| figures.round_trip.as_ref());
    let ms = |us: Option<f64>| us.map_or_else(|| "–".into(), |us| significant(us / 1e3));
    format!(
        "down {} Mbit/s, up {} Mbit/s, voice down p99 {} ms, page p50 {} ms",
        rate(Flow::Download),
        rate(Flow::Upload),
        ms(delay.map(|delay| delay.p99_us)),
        ms(page.map(|page| page.p50_us))
    )
}

/// One system in one lab: everything at once, then each part alone.
fn run_stage(
    plan: &HomePlan,
    subject: Subject,
    repeat: u32,
    progress: &Progress,
    interrupt: &Interrupt,
) -> HomeRun {
    let mut run = HomeRun {
        subject: Some(subject),
        label: subject.label_with(&plan.programs),
        repeat,
        started: clock::wall_text(),
        ..HomeRun::default()
    };
    let links = plan.links_of(repeat);
    let build = || {
        let testbed = Testbed::build(subject.system(&plan.programs)?, RemoteEnd::Gateway, links, interrupt)?;
        std::thread::sleep(SETTLE);
        Ok::<_, TestbedError>(testbed)
    };
    let mut testbed = match build() {
        Ok(testbed) => testbed,
        Err(error) => {
            run.error = Some(error.to_string());
            return run;
        }
    };
    run.facts = testbed.facts().clone();
    for case in plan.cases(subject) {
        if interrupt.is_set() {
            break;
        }
        progress.live(&format!("{}, round {repeat}: {}", run.label, case.name()));
        let taken = |found: &Result<CaseResult, TestbedError>| {
            found.as_ref().ok().filter(|found| found.problems.is_empty()).map(|found| Taken::most(&found.cpu))
        };
        let measured = until_quiet(interrupt, taken, || measure(plan, &mut testbed, case, interrupt));
        let is_lost = measured.as_ref().is_err_and(TestbedError::is_final);
        run.cases.push(measured.unwrap_or_else(|error| CaseResult {
            case,
            problems: vec![error.to_string()],
            ..CaseResult::default()
        }));
        if is_lost {
            run.link.add(account(&testbed));
            // Late reports of the ends must not be taken for those of the next case.
            drop(testbed);
            match build() {
                Ok(again) => testbed = again,
                Err(error) => {
                    run.error = Some(error.to_string());
                    return run;
                }
            }
        }
    }
    run.link.add(account(&testbed));
    run
}

/// The emulator's account of a lab so far.
fn account(testbed: &Testbed) -> Option<LinkUse> {
    let [up, down] = testbed.lab().emulator().map(Emulator::observed)?;
    Some(LinkUse { up: up.figures(), down: down.figures() })
}

fn counts(testbed: &Testbed) -> [LinkCounts; 2] {
    let observed = testbed.lab().emulator().map(Emulator::observed).unwrap_or_default();
    observed.map(|way| LinkCounts::of(&way))
}

fn measure(
    plan: &HomePlan,
    testbed: &mut Testbed,
    case: Case,
    interrupt: &Interrupt,
) -> Result<CaseResult, TestbedError> {
    let tasks: Vec<_> = case.flows().iter().map(|flow| fresh(&flow.task(&plan.settings))).collect();
    let trial = Trial { tasks, ip: plan.settings.ip, times: plan.times(case) };
    let before = counts(testbed);
    let TrialResult { reports, cpu } = testbed.measure(&trial, interrupt)?;
    let after = counts(testbed);
    let link = [after[0].since(before[0]), after[1].since(before[1])];
    let found = case.flows().iter().zip(&trial.tasks).zip(0..);
    let mut problems = faults(&reports);
    for (way, counts) in ["up", "down"].into_iter().zip(link) {
        if counts.spoilt * SPOILT_OF > counts.entered {
            problems.push(format!(
                "the emulated link, {way}, dropped {} of {} frames though it was not asked to",
                counts.spoilt, counts.entered
            ));
        }
    }
    Ok(CaseResult {
        case,
        flows: found.map(|((flow, task), at)| (*flow, figures(task, at, &reports))).collect(),
        cpu: Some(cpu),
        link,
        socket_drops: reports.ends.each_ref().map(|end| end.socket_drops),
        generator_drops: reports.ends.each_ref().map(Measurement::generator_drops),
        problems,
    })
}

#[cfg(test)]
mod tests {
    use super::results::samples::settings;
    use super::*;
    use crate::lab::emulator::impairment::Span;
    use crate::system::{Cipher, Kind};

    fn plan(settings: HomeSettings) -> HomePlan {
        let vpnd = Subject::new(Kind::Vpnd, Cipher::Auto);
        let plain = Subject::new(Kind::None, Cipher::None);
        HomePlan {
            subjects: vec![vpnd, plain, vpnd.again()],
            links: LinkSettings::default(),
            programs: Programs::default(),
            settings,
        }
    }

    #[test]
    fn by_default_a_control_is_measured_with_all_loads_at_once() {
        let with = plan(settings());
        let count =
            |plan: &HomePlan| plan.subjects.iter().map(|one| plan.cases(*one).len()).collect::<Vec<_>>();
        assert_eq!(count(&with), [5, 5, 1]);
        assert_eq!(count(&plan(HomeSettings { alone_seconds: 0.0, ..settings() })), [1, 1, 1]);
        assert_eq!(with.times(Case::AtOnce).duration.as_secs_f64(), settings().seconds);
        assert_eq!(with.times(Case::Call).duration.as_secs_f64(), settings().alone_seconds);
    }

    #[test]
    fn all_systems_of_a_round_have_the_same_seed() {
        let emulation = Some(Emulation::delay(Span { ns: 1 }));
        let plan =
            HomePlan { links: LinkSettings { emulation, ..LinkSettings::default() }, ..plan(settings()) };
        let seed = |repeat| plan.links_of(repeat).emulation.map(|emulation| emulation.seed);
        assert_eq!((seed(1), seed(2)), (Some(1), Some(2)));
    }

    #[test]
    fn the_estimate_holds_all_rounds() {
        let once = plan(HomeSettings { repeats: 1, ..settings() }).estimate() - LINK_CHECK_TIME;
        assert_eq!(plan(settings()).estimate() - LINK_CHECK_TIME, once * settings().repeats);
        assert!(once > Duration::from_secs_f64(3.0 * settings().seconds));
    }
}
