//! The results of a measurement of many sessions, as plain data.

use serde::Serialize;
use vpnd_swarm::tally::{Storm, Watched};

use super::Restart;
use trafficspeed::experiment::environment::Environment;
use trafficspeed::experiment::outcome::{CpuUse, Taken};
use trafficspeed::observe::memory::Memory;
use trafficspeed::system::SystemInfo;

#[derive(Clone, Debug, Serialize)]
pub struct SessionsResults {
    /// Sessions that were wanted.
    pub count: u32,
    /// Processes that held them.
    pub processes: u32,
    /// Users that they belonged to.
    pub users: u32,
    /// They are WireGuard devices.
    pub wireguard: bool,
    /// Logins under way at once.
    pub at_once: u32,
    pub environment: Environment,
    pub facts: SystemInfo,
    /// The machine's CPU time until the first restart; what comes after is with its phase.
    pub machine: Option<CpuUse>,
    /// All sessions logging in with their passwords.
    pub login: Option<Phase>,
    /// The gateway's memory before the first session.
    pub memory_before: Memory,
    /// PSS of the gateway over the number of sessions while they came up: KiB for each, by the best
    /// straight line.
    pub slope_kib: Option<f64>,
    /// All sessions doing nothing.
    pub idle: Option<Idle>,
    /// Packets of talkers through the tunnel: sent, and answered.
    pub talked: (u64, u64),
    /// Restarts of the gateway, in order.
    pub restarts: Vec<Restarted>,
    /// A pair of real clients alone, and with the sessions.
    pub traffic: Option<PairRates>,
    /// The user ended it.
    pub interrupted: bool,
    pub problems: Vec<String>,
}

/// Many sessions coming up, and what that cost the gateway.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    /// How they came up.
    pub storm: Storm,
    /// CPU seconds of the gateway meanwhile; absent if its processes were replaced.
    pub gateway_cpu_seconds: Option<f64>,
    /// CPU milliseconds of the gateway for each new epoch.
    pub cpu_ms_each: Option<f64>,
    /// Sessions that then carried a packet both ways.
    pub answered: u32,
    /// The gateway's memory afterwards.
    pub memory: Memory,
    /// The machine's CPU meanwhile: until all were up, from the first login, from before sessions
    /// were watched for an upgrade, or from when a restarted gateway was there.
    pub taken: Taken,
}

/// Sessions that do nothing.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Idle {
    pub seconds: f64,
    /// CPU seconds of the gateway meanwhile.
    pub gateway_cpu_seconds: f64,
    /// CPU seconds of the processes that hold the sessions.
    pub clients_cpu_seconds: f64,
    /// The machine's CPU meanwhile.
    pub taken: Taken,
}

/// A restart of the gateway. Times in its phase count from the moment the old gateway was asked or
/// made to end. A session that goes on in an upgrade comes up again there when it has a control
/// connection to the new process.
#[derive(Clone, Debug, Serialize)]
pub struct Restarted {
    pub how: Restart,
    /// Until the new one answered its administrator, in seconds.
    pub gateway_back_seconds: f64,
    /// Sessions that were watched before and through an upgrade; what else is restarted has a gap
    /// by its nature.
    pub watched: Option<Beside>,
    /// How the sessions came back.
    pub phase: Phase,
}

/// These sessions while nothing happened, and meanwhile.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Beside {
    /// While nothing happened: what machine and measurement do by themselves.
    pub before: Watched,
    /// From shortly before it began until all sessions were back.
    pub meanwhile: Watched,
}

/// Throughput of a pair of real clients, payload bits per second, each way together.
#[derive(Clone, Debug, Serialize)]
pub struct PairRates {
    /// Without sessions.
    pub alone: Vec<f64>,
    pub beside: Vec<f64>,
    /// The machine's CPU, the most in a measurement alone and in one with the sessions.
    pub taken: [Taken; 2],
    /// The ratio of the medians.
    pub ratio: Option<f64>,
}

impl SessionsResults {
    /// Whether every session came up, carried a packet, and came back after each restart without
    /// its password.
    pub fn is_whole(&self) -> bool {
        let all = |phase: &Phase| {
            phase.storm.up == self.count && phase.answered == self.count && phase.storm.gave_up == 0
        };
        // Devices have nothing to attach with.
        let attached = |restart: &Restarted| self.wireguard || restart.phase.storm.logins == 0;
        let back = |restart: &Restarted| all(&restart.phase) && attached(restart);
        self.problems.is_empty() && self.login.as_ref().is_some_and(all) && self.restarts.iter().all(back)
    }

    /// KiB of the gateway's memory for each session once all are up, by the difference.
    pub fn memory_each_kib(&self) -> Option<f64> {
        let login = self.login.as_ref().filter(|login| login.storm.up > 0)?;
        let more = login.memory.pss_kib.saturating_sub(self.memory_before.pss_kib);
        Some(more as f64 / f64::from(login.storm.up))
    }
}

#[cfg(test)]
pub(crate) mod samples {
    use super::*;
    use trafficspeed::observe::HostCpu;

    /// Ten sessions that came up and back.
    pub(crate) fn results() -> SessionsResults {
        let phase = |logins, attaches, pss_kib| Phase {
            storm: Storm { up: 10, logins, attaches, seconds: 2.0, per_second: 5.0, ..Storm::default() },
            gateway_cpu_seconds: Some(0.5),
            cpu_ms_each: Some(50.0),
            answered: 10,
            memory: Memory { rss_kib: pss_kib + 100, pss_kib },
            taken: Taken { steal: Some(0.5), others: Some(f64::from(logins)) },
        };
        let restarted = Restarted {
            how: Restart::Kill,
            gateway_back_seconds: 0.25,
            watched: None,
            phase: phase(0, 10, 10_500),
        };
        SessionsResults {
            count: 10,
            processes: 1,
            users: 2,
            wireguard: false,
            at_once: 5,
            environment: Environment::default(),
            facts: SystemInfo::default(),
            machine: Some(CpuUse {
                foreign: 2.0,
                host: HostCpu { steal: 1.0, idle: 3.0, ..HostCpu::default() },
                ..CpuUse::default()
            }),
            login: Some(phase(10, 0, 10_600)),
            memory_before: Memory { rss_kib: 10_100, pss_kib: 10_000 },
            slope_kib: Some(59.0),
            idle: Some(Idle {
                seconds: 10.0,
                gateway_cpu_seconds: 0.1,
                clients_cpu_seconds: 0.2,
                taken: Taken { steal: Some(3.5), others: None },
            }),
            talked: (0, 0),
            restarts: vec![restarted],
            traffic: None,
            interrupted: false,
            problems: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_means_every_session_at_every_step() {
        let whole = samples::results();
        assert!(whole.is_whole());
        assert_eq!(whole.memory_each_kib(), Some(60.0));
        let spoilt: [fn(&mut SessionsResults); 6] = [
            |results| results.login = None,
            |results| results.login.as_mut().unwrap().storm.up = 9,
            |results| results.login.as_mut().unwrap().answered = 9,
            |results| results.restarts[0].phase.storm.gave_up = 1,
            |results| results.restarts[0].phase.storm.logins = 1,
            |results| results.problems.push("x".into()),
        ];
        for spoil in spoilt {
            let mut results = whole.clone();
            spoil(&mut results);
            assert!(!results.is_whole());
        }
    }
}
