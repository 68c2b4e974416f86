//! Streams, requests and datagrams between real hosts: the same plan as in the lab, over whatever
//! the data addresses lead through. All pairs are measured at once, and each is a run of the
//! campaign.

use super::host_pairs::{HostPairs, HostPairsPlan};
use crate::clock;
use crate::coordinate::fleet::FleetError;
use crate::coordinate::token::Token;
use crate::experiment::environment::Environment;
use crate::experiment::generate::{LoadCampaign, LoadPlan, LoadRun, fresh, search};
use crate::experiment::pair_run::PairResult;
use crate::experiment::progress::Progress;
use crate::interrupt::Interrupt;
use crate::load::task::Task;

/// Runs the plan. A host that cannot be reached or is lost takes out its pair only.
///
/// # Errors
/// When no pair at all can be measured.
pub fn run(
    plan: &LoadPlan,
    hosts_plan: &HostPairsPlan,
    token: &Token,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<LoadCampaign, FleetError> {
    let mut host_pairs = HostPairs::connect(hosts_plan, token)?;
    let mut campaign = plan.campaign(Environment::read(None), host_pairs.ip());
    for repeat in 1..=plan.repeats {
        if interrupt.is_set() || host_pairs.is_over() {
            break;
        }
        for &congestion in &plan.congestion {
            let (plan, suffix) = plan.under(congestion);
            let runs = repetition(&plan, &suffix, &mut host_pairs, repeat, progress, interrupt);
            runs.iter().for_each(|run| run.tell(progress));
            campaign.runs.extend(runs);
        }
    }
    Ok(campaign.close(interrupt))
}

fn repetition(
    plan: &LoadPlan,
    suffix: &str,
    host_pairs: &mut HostPairs,
    repeat: u32,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Vec<LoadRun> {
    let started = clock::wall_text();
    let congestion = plan.congestion[0];
    let new = |name: String| {
        let label = name + suffix;
        LoadRun { label, congestion, repeat, started: started.clone(), ..LoadRun::default() }
    };
    let mut runs: Vec<LoadRun> = host_pairs.names().into_iter().map(new).collect();
    for run in &runs {
        progress.note(&format!("{}, run {repeat}", run.label));
    }
    if plan.search.is_some() {
        // The command line allows one pair: a rate is searched on a path that nothing else uses.
        let run = &mut runs[0];
        let mut attempt = |tasks: Vec<Task>, times, run: &mut LoadRun| {
            let mut results = host_pairs.measure(&tasks, times, interrupt);
            take(run, &tasks, results.swap_remove(0));
            run.error.clone().map_or(Ok(()), Err)
        };
        // An error is in the run already.
        let _: Result<(), String> = search::or_once(plan, run, &mut attempt, interrupt);
    } else {
        let tasks: Vec<Task> = plan.tasks.iter().map(|named| fresh(&named.task)).collect();
        let results = host_pairs.measure(&tasks, plan.times, interrupt);
        for (run, result) in runs.iter_mut().zip(results) {
            take(run, &tasks, result);
        }
    }
    for (run, at) in runs.iter_mut().zip(0..) {
        run.hosts = host_pairs.hosts(at);
    }
    runs
}

fn take(run: &mut LoadRun, tasks: &[Task], result: Result<PairResult, String>) {
    match result {
        Ok(PairResult { reports, error }) => {
            run.take(tasks, &reports);
            run.error = error.map(|error| error.to_string());
        }
        Err(reason) => run.error = Some(reason),
    }
}
