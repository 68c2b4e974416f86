//! CPU time of the VPN, of everything else and of the machine, between the two instants that bound
//! a measurement.

use super::outcome::CpuUse;
use crate::clock;
use crate::observe::{HostCpu, foreign_cpu_seconds, tree_cpu_seconds, tree_sleeps};
use crate::sys::realtime;

/// Reads CPU time where a measurement begins and where it ends.
pub struct CpuMeter {
    gateway: Vec<u32>,
    clients: Vec<u32>,
    first: Option<Reading>,
    last: Option<Reading>,
}

#[derive(Clone, Copy)]
struct Reading {
    at_ns: u64,
    gateway: f64,
    gateway_wakes: u64,
    client_wakes: u64,
    clients: f64,
    foreign: f64,
    host: HostCpu,
}

impl CpuMeter {
    /// For the VPN processes of the gateway and of the clients, each with all its children.
    pub fn new((gateway, clients): (Vec<u32>, Vec<u32>)) -> Self {
        Self { gateway, clients, first: None, last: None }
    }

    /// Takes the reading of the beginning; the next one is that of the end.
    pub fn read(&mut self) {
        let reading = self.reading();
        if self.first.is_none() {
            self.first = Some(reading);
        } else {
            self.last = Some(reading);
        }
    }

    fn reading(&self) -> Reading {
        // With hundreds of busy processes, seconds could pass between two of these.
        realtime::at_once(|| Reading {
            at_ns: clock::now_ns(),
            gateway: tree_cpu_seconds(&self.gateway),
            gateway_wakes: tree_sleeps(&self.gateway),
            client_wakes: tree_sleeps(&self.clients),
            clients: tree_cpu_seconds(&self.clients),
            foreign: foreign_cpu_seconds(&self.own()),
            host: HostCpu::read(),
        })
    }

    /// The roots of all processes that belong to the measurement.
    fn own(&self) -> Vec<u32> {
        let roots = [std::process::id()].into_iter().chain(self.gateway.iter().copied());
        roots.chain(self.clients.iter().copied()).collect()
    }

    /// The time used between the two readings, without that of the generators; `None` unless both
    /// were taken.
    pub fn used(&self) -> Option<CpuUse> {
        let (first, last) = (self.first?, self.last?);
        Some(CpuUse {
            // One that was not waited for takes its time along, and less than none was never used.
            gateway: (last.gateway - first.gateway).max(0.0),
            gateway_wakes: last.gateway_wakes.saturating_sub(first.gateway_wakes),
            clients: (last.clients - first.clients).max(0.0),
            client_wakes: last.client_wakes.saturating_sub(first.client_wakes),
            generators: 0.0,
            generator_ends: [0.0; 2],
            foreign: (last.foreign - first.foreign).max(0.0),
            host: last.host.since(first.host),
            seconds: (last.at_ns - first.at_ns) as f64 / 1e9,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_readings_are_needed_and_the_time_between_them_counts() {
        // A separate process: other tests start some, too.
        let script = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); sleep 0.001; done";
        let mut child = std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
        let own = vec![child.id()];
        let mut meter = CpuMeter::new((own.clone(), own));
        meter.read();
        assert_eq!(meter.used(), None);
        // The kernel counts in ticks, and a busy machine may give the process few of them.
        let before = tree_cpu_seconds(&[child.id()]);
        let deadline = clock::now_ns() + 30_000_000_000;
        while tree_cpu_seconds(&[child.id()]) < before + 0.05 && clock::now_ns() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        meter.read();
        child.kill().unwrap();
        child.wait().unwrap();
        let used = meter.used().unwrap();
        assert!(used.seconds > 0.0 && used.gateway > 0.0 && used.clients > 0.0, "{used:?}");
        assert!(used.gateway_wakes > 0 && used.client_wakes > 0, "{used:?}");
    }
}
