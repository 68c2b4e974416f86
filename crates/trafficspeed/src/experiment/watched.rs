//! The processes of a VPN, watched while something is measured through them: without one of them
//! there is no result, whatever was counted until then.

use crate::observe::ProcessStat;
use crate::system::System;

/// Processes by their ids, and the instants of their starts.
pub struct Watched(Vec<(u32, Option<u64>)>);

impl Watched {
    pub fn new(processes: impl IntoIterator<Item = u32>) -> Self {
        Self(processes.into_iter().map(|pid| (pid, started(pid))).collect())
    }

    /// Those of a system, at the gateway and at all clients.
    pub fn of_system(system: &dyn System) -> Self {
        let (gateway, clients) = system.processes();
        Self::new(gateway.into_iter().chain(clients))
    }

    /// One that has not run all the time.
    pub fn ended(&self) -> Option<u32> {
        let has_run = |(pid, since): &&(u32, Option<u64>)| since.is_some() && started(*pid) == *since;
        self.0.iter().find(|process| !has_run(process)).map(|(pid, _)| *pid)
    }
}

/// The instant of a process's start; `None` if it does not run.
fn started(pid: u32) -> Option<u64> {
    ProcessStat::read(pid).filter(|stat| !stat.has_ended).map(|stat| stat.started)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_killed_process_is_named_before_it_is_reaped() {
        let mut children = [0, 1].map(|_| Command::new("sleep").arg("600").spawn().unwrap());
        let [kept, killed] = children.each_ref().map(std::process::Child::id);
        let watched = Watched::new([kept, killed]);
        assert_eq!(watched.ended(), None);
        children[1].kill().unwrap();
        while watched.ended().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(watched.ended(), Some(killed));
        children[1].wait().unwrap();
        assert_eq!(watched.ended(), Some(killed));
        assert_eq!(Watched::new([kept, killed]).ended(), Some(killed), "nor from the beginning");
        children[0].kill().unwrap();
        children[0].wait().unwrap();
    }
}
