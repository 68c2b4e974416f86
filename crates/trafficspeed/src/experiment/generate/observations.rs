//! The table of the generators' own commands: what each load observed, and what it cost.

use super::{LoadCampaign, LoadRun, NamedTask};
use crate::experiment::quantities::{RECEIVED, TRANSACTIONS, of_cpu, of_drops, of_load};
use crate::load::task::Task;
use crate::observation::{Measured, Observations, Quantity};

/// The rate at which a search found no more loss than allowed.
pub const SEARCHED: Quantity = Quantity::new("highest rate", "packets/s").decimals(0);
/// 1 where the generator could not send more than that.
pub const LIMITED_BY_SENDER: Quantity = Quantity::count("searches that the sender limited");
/// The tunnel's MTU as it came up.
pub const MTU: Quantity = Quantity::new("MTU", "bytes");

impl LoadCampaign {
    /// The name of a load in tables, with the clients that share it.
    pub fn case(&self, named: &NamedTask) -> String {
        match self.settings.clients {
            1 => named.name.clone(),
            clients => format!("{}, {clients} clients", named.name),
        }
    }

    /// The names of all loads.
    pub fn cases(&self) -> Vec<String> {
        self.settings.tasks.iter().map(|named| self.case(named)).collect()
    }

    /// The quantities by which systems are compared under each load.
    pub fn compared(&self) -> Vec<(String, Quantity)> {
        let quantity = |named: &NamedTask| match named.task {
            Task::Exchange(_) | Task::Pages(_) => TRANSACTIONS,
            Task::Bulk(_) | Task::Messages(_) => RECEIVED,
        };
        self.settings.tasks.iter().map(|named| (self.case(named), quantity(named))).collect()
    }

    pub fn observations(&self) -> Observations {
        let mut table = Observations::of_machine(self.environment.is_emulated());
        for run in &self.runs {
            let congestion = run.congestion.to_string();
            table.name(&run.label, &congestion);
            let (system, problem) = (run.label.as_str(), run.problems().join("; "));
            let key = Measured {
                system,
                congestion: &congestion,
                case: "",
                round: run.repeat,
                problem: &problem,
                is_disturbed: run.taken().is_disturbed(),
            };
            if run.figures.is_empty() {
                table.add(&key, []);
            }
            for (named, figures) in self.settings.tasks.iter().zip(&run.figures) {
                let values = of_load(figures).into_iter().chain(of_run(run));
                table.add(&Measured { case: &self.case(named), ..key }, values);
                if run.is_whole() && run.search.as_ref().is_some_and(|search| search.limited_by_sender) {
                    for quantity in [RECEIVED, SEARCHED] {
                        table.bound(system, &self.case(named), quantity);
                    }
                }
            }
        }
        table
    }
}

fn of_run(run: &LoadRun) -> Vec<(Quantity, Option<f64>)> {
    let search = run.search.as_ref();
    let mut all = of_cpu(run.cpu.as_ref());
    all.extend(of_drops(run.socket_drops, run.generator_drops));
    all.extend([
        (SEARCHED, search.map(|search| search.packets_per_second)),
        (LIMITED_BY_SENDER, search.map(|search| f64::from(u8::from(search.limited_by_sender)))),
        (MTU, run.facts.mtu.map(f64::from)),
    ]);
    all
}
