//! Experiments between real hosts. Here experiment 1: the same pairs, driven over the network;
//! below the others.
//!
//! The tool sets nothing up here: the VPN is whatever the data addresses lead through, and the
//! label has its name.

pub mod block;
pub mod host_pairs;
pub mod load;
pub mod suite;

use std::net::{IpAddr, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

use super::bulk_pairs::{self, SecondsObserver};
use super::environment::Environment;
use super::outcome::{Campaign, Run, Settings};
use super::progress::Progress;
use crate::clock;
use crate::coordinate::fleet::FleetError;
use crate::coordinate::token::Token;
use crate::interrupt::Interrupt;
use host_pairs::{HostPairs, HostPairsPlan};

/// From the last connection to the start: a command must have crossed the network by then.
const LEAD: Duration = Duration::from_secs(1);

/// The port of `trafficspeed serve` unless another is named.
pub const DEFAULT_PORT: u16 = 5206;

/// A host of a pair: `CONTROL[:PORT][/DATA]`.
///
/// CONTROL is where `trafficspeed serve` is reached, DATA the address that the measured connections
/// use (by default the same), for example `gate-a.example.org/10.86.0.5` or
/// `[2001:db8::1]:5206/fd86::5`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSpec {
    /// The text that the user wrote.
    pub text: String,
    /// Host and port of the control connection.
    pub control: String,
    /// The address inside the VPN, if it differs.
    pub data: Option<IpAddr>,
}

/// Two hosts: `HOSTA=HOSTB`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairSpec {
    /// The host that listens.
    pub a: HostSpec,
    /// The host that connects.
    pub b: HostSpec,
}

impl FromStr for HostSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (control, data) = match text.split_once('/') {
            Some((control, data)) => {
                let data = data.parse().map_err(|_| format!("`{data}` after the `/` is no IP address"))?;
                (control, Some(data))
            }
            None => (text, None),
        };
        if control.is_empty() || control.chars().any(char::is_whitespace) {
            return Err(format!("`{text}` names no host; write HOST[:PORT][/DATA-ADDRESS]"));
        }
        if control.matches(':').count() > 1 && !control.starts_with('[') {
            return Err(format!("write the IPv6 address as `[{control}]`"));
        }
        let has_port =
            control.rsplit_once(':').is_some_and(|(host, _)| !host.is_empty() && !control.ends_with(']'));
        let control = if has_port { control.to_owned() } else { format!("{control}:{DEFAULT_PORT}") };
        Ok(Self { text: text.to_owned(), control, data })
    }
}

impl FromStr for PairSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (a, b) = text.split_once('=').ok_or_else(|| format!("`{text}` is no pair; write HOSTA=HOSTB"))?;
        let (a, b): (HostSpec, HostSpec) = (a.parse()?, b.parse()?);
        if a.control == b.control {
            return Err(format!("`{text}` pairs a host with itself"));
        }
        Ok(Self { a, b })
    }
}

impl HostSpec {
    /// Where the measured connections go.
    pub(super) fn data_address(&self) -> Result<IpAddr, FleetError> {
        self.data.map_or_else(|| self.control_address(), Ok)
    }

    /// Where its agent is reached.
    pub(super) fn control_address(&self) -> Result<IpAddr, FleetError> {
        let reach = |source| FleetError::Reach { name: self.text.clone(), source };
        let first = self.control.to_socket_addrs().map_err(reach)?.next();
        first.map(|address| address.ip()).ok_or_else(|| {
            reach(std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address"))
        })
    }
}

#[derive(Debug)]
pub struct HostsPlan {
    pub hosts: HostPairsPlan,
    pub settings: Settings,
}

/// Runs the campaign. A host that cannot be reached takes out its pair only.
///
/// # Errors
/// When no pair at all can be measured.
pub fn run(
    plan: &HostsPlan,
    token: &Token,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<Campaign, FleetError> {
    let mut host_pairs = HostPairs::connect(&plan.hosts, token)?;
    let mut runs = Vec::new();
    for repeat in (1..=plan.settings.repeats).take_while(|_| !interrupt.is_set()) {
        runs.push(run_one(plan, &mut host_pairs, repeat, progress, interrupt));
    }
    Ok(Campaign {
        settings: plan.settings.clone(),
        environment: Environment::read(None),
        runs,
        interrupted: interrupt.is_set(),
        baseline: None,
    })
}

fn run_one(
    plan: &HostsPlan,
    host_pairs: &mut HostPairs,
    repeat: u32,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Run {
    let hosts = 2 * host_pairs.count() as u32;
    let label = &plan.hosts.label;
    let title = format!("{label:<26} {hosts:>3} hosts  run {repeat}");
    let mut run = Run {
        label: label.clone(),
        clients: hosts,
        repeat,
        attempt: 1,
        started: clock::wall_text(),
        error: left_out(host_pairs),
        ..Run::default()
    };
    progress.starting(&title);
    let tasks = bulk_pairs::tasks(&plan.settings, host_pairs.count());
    let runs = host_pairs.runs(|pair| &tasks[pair][..]);
    let mut observer = SecondsObserver::new(progress, &title, &plan.settings);
    let results = host_pairs.run(&runs, bulk_pairs::times(&plan.settings), &mut observer, interrupt);
    run.probe = tasks.first().zip(results.first()).and_then(|(tasks, found)| bulk_pairs::probe(tasks, found));
    (run.pairs, run.intervals) = bulk_pairs::collect(host_pairs.fleet(), &runs, results);
    progress.finished(&title, &run);
    run
}

/// Names the pairs that could not be reached.
fn left_out(host_pairs: &HostPairs) -> Option<String> {
    let texts: Vec<String> = host_pairs.problems().map(ToString::to_string).collect();
    (!texts.is_empty()).then(|| format!("pairs left out: {}", texts.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_with_ports_data_addresses_and_ipv6() {
        let read = |text: &str| text.parse::<HostSpec>().map(|spec| (spec.control, spec.data));
        assert_eq!(read("a.example"), Ok(("a.example:5206".into(), None)));
        assert_eq!(read("a.example:7/10.0.0.1"), Ok(("a.example:7".into(), Some([10, 0, 0, 1].into()))));
        assert_eq!(read("[2001:db8::1]"), Ok(("[2001:db8::1]:5206".into(), None)));
        assert_eq!(read("[2001:db8::1]:7/fd86::5").unwrap().1, Some("fd86::5".parse().unwrap()));
        assert!(read("2001:db8::1").unwrap_err().contains("`[2001:db8::1]`"));
        assert!(read("a/b").unwrap_err().contains("no IP address"));
        assert!(read("").is_err() && read("a b").is_err());
    }

    #[test]
    fn pairs_need_two_different_hosts() {
        assert!("a=b".parse::<PairSpec>().is_ok());
        assert!("a".parse::<PairSpec>().unwrap_err().contains("HOSTA=HOSTB"));
        assert!("a=a".parse::<PairSpec>().unwrap_err().contains("with itself"));
    }
}
