//! The loads of experiment 2 between real hosts: one system, which is whatever the data addresses
//! lead through.
//!
//! Left out is whatever needs a lab: ciphers side by side, links of another MTU, and CPU hogs
//! with the load.

use super::host_pairs::{HostPairs, HostPairsPlan};
use crate::coordinate::fleet::FleetError;
use crate::coordinate::token::Token;
use crate::experiment::environment::Environment;
use crate::experiment::figures::{Figures, figures};
use crate::experiment::generate::SearchOutcome;
use crate::experiment::pair_run::{PairResult, Times};
use crate::experiment::progress::Progress;
use crate::experiment::suite::ipsec::{self, Options, Sweep};
use crate::experiment::suite::{Case, Row, StageInfo, SuiteCampaign, faults};
use crate::interrupt::Interrupt;
use crate::load::task::Task;
use crate::system::SystemInfo;

/// Runs the loads one after the other, each with all pairs at once. A host that is lost takes out
/// its pair only.
///
/// # Errors
/// When no pair at all can be measured.
pub fn run(
    options: &Options,
    hosts_plan: &HostPairsPlan,
    token: &Token,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<SuiteCampaign, FleetError> {
    let mut host_pairs = HostPairs::connect(hosts_plan, token)?;
    let mut options = Options { ip: Some(host_pairs.ip()), ..options.clone() };
    options.suite.ciphers.clear();
    options.sweeps.retain(|sweep| *sweep != Sweep::Mtu);
    let plan = ipsec::plan(&options);
    // A search needs the path for itself.
    let can_search = host_pairs.names().len() == 1;
    let cases: Vec<&Case> = plan
        .stages
        .iter()
        .flat_map(|stage| &stage.cases)
        .filter(|case| case.hogs == 0 && (can_search || case.search.is_none()))
        .collect();
    if !can_search {
        progress.note("several pairs are measured at once, so no highest rate of UDP is searched");
    }
    let mut campaign = SuiteCampaign::begin(&plan, None, Environment::read(None));
    campaign.stages =
        host_pairs.names().into_iter().zip(0..).map(|(name, at)| facts(&host_pairs, name, at)).collect();
    for repeat in 1..=plan.repeats {
        progress.note(&format!("run {repeat} of {}, {} measurements", plan.repeats, cases.len()));
        for case in &cases {
            if interrupt.is_set() || host_pairs.is_over() {
                break;
            }
            progress.live(&case.name);
            campaign.rows.extend(measure(&mut host_pairs, case, repeat, interrupt));
        }
    }
    Ok(campaign.close(interrupt))
}

/// The hosts of a pair stand where the lab has what the system says of itself.
fn facts(host_pairs: &HostPairs, label: String, at: usize) -> StageInfo {
    let notes: Vec<String> = host_pairs.hosts(at).iter().map(super::host_pairs::HostEnd::words).collect();
    let error = notes.is_empty().then(|| "the pair did not come; its measurements say why".to_owned());
    StageInfo { label, facts: SystemInfo { notes, ..SystemInfo::default() }, error, ..StageInfo::default() }
}

fn measure(host_pairs: &mut HostPairs, case: &Case, repeat: u32, interrupt: &Interrupt) -> Vec<Row> {
    let mut measure = |task: Task, times: Times| {
        let results = host_pairs.measure(std::slice::from_ref(&task), times, interrupt);
        // A search has one pair.
        let figures = match (case.search, results.first()) {
            (None, _) => Figures::default(),
            (_, Some(Ok(PairResult { reports, error: None }))) => figures(&task, 0, reports),
            (_, Some(Ok(PairResult { error: Some(error), .. }))) => return Err(error.to_string()),
            (_, Some(Err(reason))) => return Err(reason.clone()),
            (_, None) => return Err("there is no pair".to_owned()),
        };
        Ok((figures, (task, results)))
    };
    let (search, (task, results)) = match case.measured(&mut measure, interrupt) {
        Ok(measured) => measured,
        Err(error) => {
            let row = |label| Row { error: Some(error.clone()), ..Row::new(label, case, repeat) };
            return host_pairs.names().into_iter().map(row).collect();
        }
    };
    let missed = search.as_ref().and_then(SearchOutcome::problem);
    let row = |(label, result): (String, Result<PairResult, String>)| {
        let (figures, error) = match result {
            Err(reason) => (None, Some(reason)),
            Ok(PairResult { reports, error }) => {
                let all: Vec<String> = error
                    .iter()
                    .map(ToString::to_string)
                    .chain(faults(&reports))
                    .chain(missed.clone())
                    .collect();
                (Some(figures(&task, 0, &reports)), (!all.is_empty()).then(|| all.join("; ")))
            }
        };
        Row { figures, search: search.clone(), error, ..Row::new(label, case, repeat) }
    };
    host_pairs.names().into_iter().zip(results).map(row).collect()
}
