//! Short flows and mixed sizes: what people notice of a path that carries pages and messages rather
//! than endless streams.
//!
//! Each flow has a separate TCP connection and takes from the first packet of the handshake to the
//! last byte: one after the other of one size, and many at a time of the sizes of RFC 9411 (mixed
//! objects, section 7.3) or so small that connecting is all (connections per second, section 7.2).
//! Packets of mixed sizes are IMIX, at the highest rate that is carried.

use super::ipsec::{ALLOWED_LOSS, UDP_SECTION};
use super::{Case, Quantity, Stage, SuitePlan, subjects};
use crate::experiment::generate::Search;
use crate::experiment::generate::search::RESOLUTION;
use crate::experiment::pair_run::Times;
use crate::experiment::testbed::RemoteEnd;
use crate::lab::LinkSettings;
use crate::load::exchange::Exchange;
use crate::load::message::Messages;
use crate::load::task::Task;
use crate::system::vpnd::Code;
use crate::system::{Cipher, Kind, Priority, Programs, Subject};

pub const SHORT_FLOWS: &str = "Short flows, one after the other";
/// A request with its headers, as a browser's.
const REQUEST_BYTES: u32 = 400;
/// Bytes of the short flows.
const SIZES: [u32; 3] = [10_000, 100_000, 1_000_000];
/// Bytes of the mixed objects of RFC 9411, all of the same weight.
const MIXED_OBJECTS: [u32; 10] = [200, 6_000, 8_000, 9_000, 10_000, 25_000, 26_000, 35_000, 59_000, 347_000];
/// Bytes of a flow that shows what a connection costs: the smallest object of RFC 9411, section
/// 7.2.
const SMALL: u32 = 1_000;
/// Flows at a time, where there are many.
const AT_ONCE: u32 = 32;

/// The user's choices.
#[derive(Clone, Debug)]
pub struct Options {
    /// The systems besides plain routing.
    pub kinds: Vec<Kind>,
    pub ciphers: Vec<Cipher>,
    /// The CPU priorities of those that take one.
    pub priorities: Vec<Priority>,
    /// Times of each measurement.
    pub times: Times,
    pub repeats: u32,
    pub ip: u8,
    pub links: LinkSettings,
    /// Where the far end is.
    pub far: RemoteEnd,
    pub programs: Programs,
    /// Measure one system a second time, as its own control.
    pub control: bool,
}

pub fn plan(options: &Options) -> SuitePlan {
    let plain = Subject::new(Kind::None, Cipher::None);
    let all = std::iter::once(plain).chain(subjects(&options.kinds, &options.ciphers, &options.priorities));
    let stage = |subject| Stage {
        subject,
        code: Code::Native,
        links: options.links,
        among_others: true,
        cases: cases(options),
    };
    let mut stages: Vec<Stage> = all.map(stage).collect();
    if options.control {
        stages.extend(Stage::control(&stages));
    }
    SuitePlan {
        name: "flows",
        about: format!(
            "Short flows and mixed sizes; each measurement {} s after {} s of warm-up.",
            options.times.duration.as_secs_f64(),
            options.times.warmup.as_secs_f64()
        ),
        far: options.far,
        stages,
        repeats: options.repeats,
        await_load: false,
        programs: options.programs.clone(),
    }
}

fn cases(options: &Options) -> Vec<Case> {
    let times = [Quantity::Flow50, Quantity::Flow95, Quantity::Flow99];
    let short =
        SIZES.map(|bytes| flows(options, SHORT_FLOWS, &format!("{} kB", bytes / 1_000), &[bytes], &times));
    let many = format!("Flows, {AT_ONCE} at a time");
    let carried = [Quantity::Flows, Quantity::Throughput, Quantity::Flow50, Quantity::Flow99];
    let mixed = flows(options, &many, "mixed objects of RFC 9411", &MIXED_OBJECTS, &carried);
    let small =
        flows(options, &many, "1 kB", &[SMALL], &[Quantity::Flows, Quantity::Flow50, Quantity::Flow99]);
    short.into_iter().chain([mixed, small, imix(options)]).collect()
}

fn case(options: &Options, section: &str, name: &str, task: Task, quantities: &[Quantity]) -> Case {
    let mut task = task;
    task.set_congestion(options.links.congestion);
    Case {
        section: section.to_owned(),
        name: format!("IPv{}, {name}", options.ip),
        task,
        ip: options.ip,
        quantities: quantities.to_vec(),
        hogs: 0,
        search: None,
        times: options.times,
    }
}

fn flows(options: &Options, section: &str, name: &str, sizes: &[u32], quantities: &[Quantity]) -> Case {
    let streams = if section == SHORT_FLOWS { 1 } else { AT_ONCE };
    let work = Exchange { streams, request: REQUEST_BYTES, flows: sizes.to_vec(), ..Exchange::default() };
    case(options, section, name, Task::Exchange(work), quantities)
}

fn imix(options: &Options) -> Case {
    let work = Messages::default().mixed();
    let quantities = [Quantity::Packets, Quantity::Throughput, Quantity::Loss];
    let case = case(options, UDP_SECTION, "IMIX", Task::Messages(work), &quantities);
    let search = Search {
        allowed_percent: ALLOWED_LOSS,
        resolution: RESOLUTION,
        trial_seconds: Some(2.0_f64.min(options.times.duration.as_secs_f64())),
    };
    Case { search: Some(search), ..case }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_system_has_every_case_and_one_is_its_own_control() {
        let second = Duration::from_secs(1);
        let options = Options {
            kinds: vec![Kind::Vpnd, Kind::Openvpn],
            ciphers: vec![Cipher::Auto],
            priorities: vec![Priority::Own],
            times: Times { warmup: second, duration: second, interval: second },
            repeats: 5,
            ip: 4,
            links: LinkSettings::default(),
            far: RemoteEnd::Gateway,
            programs: Programs::default(),
            control: true,
        };
        let plan = plan(&options);
        let labels: Vec<String> = plan.stages.iter().map(Stage::label).collect();
        assert_eq!(labels, ["plain routing", "vpnd", "OpenVPN", "vpnd (again)"]);
        for stage in &plan.stages {
            assert_eq!(stage.cases.len(), 6);
            for case in &stage.cases {
                assert_eq!(case.task.problem(), None, "{}", case.name);
            }
        }
        assert_eq!(MIXED_OBJECTS.iter().sum::<u32>(), 525_200);
    }
}
