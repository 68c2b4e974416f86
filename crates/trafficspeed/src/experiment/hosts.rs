//! Experiments between real hosts. Here experiment 1: the same pairs, driven over the network; below the others.
//!
//! The tool sets nothing up here: the VPN is whatever the data addresses lead through, and the label says so.

pub mod block;
pub mod load;
pub mod party;
pub mod suite;

use std::net::{IpAddr, ToSocketAddrs};
use std::str::FromStr;

use super::environment::Environment;
use super::outcome::{Campaign, Interval, Run, Settings};
use super::pairs::{PairPlan, Watch, drive};
use super::progress::Progress;
use super::traffic::plan_of;
use crate::clock;
use crate::coordinate::fleet::{Fleet, FleetError};
use crate::coordinate::token::Token;
use crate::interrupt::Interrupt;

/// The port of `trafficspeed serve` unless another is named.
pub const DEFAULT_PORT: u16 = 5206;

/// A host of a pair: `CONTROL[:PORT][/DATA]`.
///
/// CONTROL is where `trafficspeed serve` is reached, DATA the address that the measured connections use (by
/// default the same), for example `gate-a.example.org/10.86.0.5` or `[2001:db8::1]:5206/fd86::5`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSpec {
    /// As the user wrote it.
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

/// What to run.
#[derive(Debug)]
pub struct HostsPlan {
    /// The pairs.
    pub pairs: Vec<PairSpec>,
    /// What the report calls the network between them.
    pub label: String,
    /// The work.
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
    let mut fleet = Fleet::default();
    let mut pairs = Vec::new();
    let mut problems = Vec::new();
    for spec in &plan.pairs {
        match join(&mut fleet, spec, token) {
            Ok(pair) => pairs.push(pair),
            Err(error) => problems.push(error),
        }
    }
    if pairs.is_empty() {
        return Err(problems.swap_remove(0));
    }
    let mut runs = Vec::new();
    for repeat in (1..=plan.settings.repeats).take_while(|_| !interrupt.is_set()) {
        runs.push(run_one(plan, &mut fleet, &pairs, repeat, &problems, progress, interrupt));
    }
    Ok(Campaign {
        settings: plan.settings.clone(),
        environment: Environment::read(None),
        runs,
        interrupted: interrupt.is_set(),
        baseline: None,
    })
}

fn join(fleet: &mut Fleet, spec: &PairSpec, token: &Token) -> Result<PairPlan, FleetError> {
    let address = spec.a.data_address()?;
    let listener = fleet.add_host(&spec.a.text, &spec.a.control, token)?;
    let connector = fleet.add_host(&spec.b.text, &spec.b.control, token)?;
    Ok(PairPlan { listener, address, connector })
}

fn run_one(
    plan: &HostsPlan,
    fleet: &mut Fleet,
    pairs: &[PairPlan],
    repeat: u32,
    problems: &[FleetError],
    progress: &Progress,
    interrupt: &Interrupt,
) -> Run {
    let title = format!("{:<26} {:>3} hosts  run {repeat}", plan.label, 2 * pairs.len());
    let mut run = Run {
        label: plan.label.clone(),
        clients: 2 * pairs.len() as u32,
        repeat,
        attempt: 1,
        started: clock::wall_text(),
        error: (!problems.is_empty()).then(|| left_out(problems)),
        ..Run::default()
    };
    progress.starting(&title, &run);
    let mut work = plan_of(pairs.to_vec(), &plan.settings);
    work.lead = std::time::Duration::from_secs(1);
    let seconds = work.duration.as_secs() as usize;
    let mut watch = HostsWatch { progress, title: &title, seconds };
    let driven = drive(fleet, &work, &mut watch, interrupt);
    (run.pairs, run.intervals) = (driven.pairs, driven.intervals);
    progress.finished(&title, &run);
    run
}

fn left_out(problems: &[FleetError]) -> String {
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    format!("pairs left out: {}", texts.join("; "))
}

struct HostsWatch<'a> {
    progress: &'a Progress,
    title: &'a str,
    seconds: usize,
}

impl Watch for HostsWatch<'_> {
    fn begin(&mut self) {}

    fn end(&mut self) {}

    fn second(&mut self, number: usize, interval: Interval) {
        self.progress.second(self.title, number, self.seconds, interval);
    }
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
