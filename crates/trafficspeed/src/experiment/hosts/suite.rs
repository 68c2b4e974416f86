//! The loads of experiment 2 between real hosts: one system, which is whatever the data addresses lead through.
//!
//! What the lab alone can do is left out: ciphers side by side, links of another MTU, and CPU hogs beside the load.

use super::party::{Meeting, Party};
use crate::coordinate::fleet::FleetError;
use crate::coordinate::token::Token;
use crate::experiment::environment::Environment;
use crate::experiment::figures::figures;
use crate::experiment::generate::fresh;
use crate::experiment::pair_run::{Moment, PairResult};
use crate::experiment::progress::Progress;
use crate::experiment::suite::ipsec::{self, Sweep, Wishes};
use crate::experiment::suite::{Case, Row, StageFacts, SuiteCampaign, faults, tell};
use crate::interrupt::Interrupt;
use crate::system::Facts;
use crate::system::vpnd::Code;

/// Runs the loads one after the other, each with all pairs at once. A host that is lost takes out its pair only.
///
/// # Errors
/// When no pair at all can be measured.
pub fn run(
    wishes: &Wishes,
    meeting: &Meeting,
    token: &Token,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<SuiteCampaign, FleetError> {
    let mut party = Party::gather(meeting, token)?;
    let mut wishes = Wishes { ciphers: Vec::new(), ip: Some(party.ip()), ..wishes.clone() };
    wishes.sweeps.retain(|sweep| *sweep != Sweep::Mtu);
    let plan = ipsec::plan(&wishes);
    let cases: Vec<&Case> =
        plan.stages.iter().flat_map(|stage| &stage.cases).filter(|case| case.hogs == 0).collect();
    let mut campaign = SuiteCampaign::begin(&plan, None, Environment::read(None), progress);
    campaign.stages = party.names().into_iter().zip(0..).map(|(name, at)| facts(&party, name, at)).collect();
    for repeat in 1..=plan.repeats {
        progress.note(&format!("run {repeat} of {}, {} measurements", plan.repeats, cases.len()));
        for case in &cases {
            if interrupt.is_set() || party.is_over() {
                break;
            }
            progress.live(&case.name);
            for row in measure(&mut party, case, repeat, progress, interrupt) {
                campaign.add(row, progress);
            }
        }
    }
    Ok(campaign.close(interrupt, progress))
}

/// The hosts of a pair stand where the lab has what the system says of itself.
fn facts(party: &Party, label: String, at: usize) -> StageFacts {
    let notes: Vec<String> = party.hosts(at).iter().map(super::party::HostEnd::words).collect();
    let error = notes.is_empty().then(|| "the pair did not come; its measurements say why".to_owned());
    StageFacts { label, facts: Facts { notes, ..Facts::default() }, error, ..StageFacts::default() }
}

fn measure(
    party: &mut Party,
    case: &Case,
    repeat: u32,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Vec<Row> {
    let tasks = [fresh(&case.task)];
    let told = |name: &str, number: usize, moment: &Moment| {
        tell(progress, (name, repeat), case, number, moment);
    };
    let result = party.measure(&tasks, case.times, told, interrupt);
    let row = |(label, result): (String, Result<PairResult, String>)| {
        let (figures, error) = match result {
            Err(why) => (None, Some(why)),
            Ok(PairResult { heard, error }) => {
                let all: Vec<String> = error.iter().map(ToString::to_string).chain(faults(&heard)).collect();
                (Some(figures(&tasks[0], 0, &heard)), (!all.is_empty()).then(|| all.join("; ")))
            }
        };
        Row {
            label,
            subject: None,
            code: Code::default(),
            link_mtu: None,
            case: case.clone(),
            repeat,
            figures,
            cpu: None,
            error,
        }
    };
    party.names().into_iter().zip(result).map(row).collect()
}
