//! The systems of a campaign, as each reports itself, all runs drawn together.

use serde::Serialize;

use super::grid::Grid;
use crate::experiment::outcome::{Campaign, Program, Run};
use crate::stats::distinct;
use crate::system::buffers::METHOD;
use crate::unit::{gbit, significant};

/// One system as it ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct System {
    /// Its name in the report.
    pub label: String,
    /// Its version; several if it changed on the way.
    pub version: String,
    /// The ciphers that were in use; several if it chose differently.
    pub cipher: String,
    /// The MTUs of the clients' devices.
    pub mtu: Vec<u32>,
    /// Whatever else it said.
    pub notes: Vec<String>,
    /// Its programs in the first run.
    pub programs: Vec<Program>,
}

/// Every system that ran at least once, in the order they first appear.
pub fn systems(campaign: &Campaign) -> Vec<System> {
    campaign.labels().into_iter().filter_map(|label| system(campaign, label)).collect()
}

/// One sentence about the buffers that all systems had alike; `None` of runs from before they did,
/// and of real hosts.
pub fn common_buffers(campaign: &Campaign) -> Option<String> {
    let are_set = campaign.environment.links.as_ref().is_some_and(|links| links.contains(METHOD));
    are_set.then(|| format!("Buffers: {METHOD}."))
}

/// The description that each system gave of itself.
pub fn described(systems: &[System]) -> Grid {
    let mut grid = Grid::new(1, ["system", "version", "cipher", "MTU", "notes"]);
    grid.rows.extend(systems.iter().map(|system| {
        let mtu: Vec<String> = system.mtu.iter().map(u32::to_string).collect();
        let (version, cipher) = (system.version.clone(), system.cipher.clone());
        vec![system.label.clone(), version, cipher, mtu.join("; "), system.notes.join("; ")]
    }));
    grid
}

/// How its programs were started.
pub fn programs(systems: &[System]) -> Grid {
    let mut grid = Grid::new(1, ["system", "where", "command line", "SHA-256 of the executable"]);
    grid.rows.extend(systems.iter().flat_map(|system| {
        system.programs.iter().map(|program| {
            let (role, command) = (program.role.clone(), program.command.clone());
            vec![system.label.clone(), role, command, program.sha256.clone()]
        })
    }));
    grid
}

/// Figures of each pair, for the first whole run of each system at its largest number of clients.
pub fn pairs(campaign: &Campaign) -> Grid {
    let head = ["system", "pair", "goodput, Gbit/s", "slowest stream, Mbit/s", "fastest stream, Mbit/s"];
    let mut grid = Grid::new(2, head);
    for label in campaign.labels() {
        let whole = campaign.runs.iter().filter(|run| run.label == label && run.is_whole());
        // The first of the largest, so not `max_by_key`, which finds the last.
        let largest = whole.rev().max_by_key(|run| run.clients);
        grid.rows.extend(largest.into_iter().flat_map(pair_rows));
    }
    grid
}

fn pair_rows(run: &Run) -> impl Iterator<Item = Vec<String>> {
    run.pairs.iter().map(|pair| {
        let rates: Vec<f64> = pair.streams().iter().map(|stream| stream.bits_per_second / 1e6).collect();
        let (slowest, fastest) = crate::stats::range(&rates).unwrap_or_default();
        vec![
            run.label.clone(),
            format!("{} = {}", pair.ends[0].name, pair.ends[1].name),
            gbit(pair.goodput()),
            significant(slowest),
            significant(fastest),
        ]
    })
}

fn system(campaign: &Campaign, label: String) -> Option<System> {
    let runs: Vec<&Run> =
        campaign.runs.iter().filter(|run| run.label == label && !run.pairs.is_empty()).collect();
    let first = runs.first()?;
    Some(System {
        version: distinct(runs.iter().map(|run| run.facts.version.clone())).join("; "),
        cipher: distinct(runs.iter().map(|run| run.facts.cipher.clone())).join("; "),
        mtu: distinct(runs.iter().filter_map(|run| run.facts.mtu)),
        notes: distinct(runs.iter().flat_map(|run| run.facts.notes.iter().cloned())),
        programs: first.programs.clone(),
        label,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::samples;

    #[test]
    fn every_system_that_ran_is_described_once_with_all_it_said() {
        let mut campaign = samples::campaign();
        for (run, (version, cipher)) in
            campaign.runs.iter_mut().step_by(2).zip([("1", "a"), ("1", "b"), ("1", "a")])
        {
            (run.facts.version, run.facts.cipher) = (version.into(), cipher.into());
            run.facts.mtu = Some(1420);
        }
        campaign.runs.retain(|run| run.label != "plain routing" || run.repeat == 1);
        campaign.runs.truncate(6);
        let systems = systems(&campaign);
        assert_eq!(systems.len(), 2);
        assert_eq!((systems[0].version.as_str(), systems[0].cipher.as_str()), ("1", "a; b"));
        assert_eq!((&systems[0].mtu[..], &systems[1].mtu[..]), (&[1420][..], &[][..]));
        campaign.runs.iter_mut().for_each(|run| run.pairs.clear());
        assert_eq!(super::systems(&campaign), [], "who never ran has no facts");
    }
}
