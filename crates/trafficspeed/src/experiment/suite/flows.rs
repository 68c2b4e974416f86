//! Short flows and mixed sizes: what people notice of a path that carries pages and messages rather
//! than endless streams.
//!
//! Each flow has a separate TCP connection and takes from the first packet of the handshake to the
//! last byte: one after the other of one size, and many at a time of the sizes of RFC 9411 (mixed
//! objects, section 7.3) or so small that connecting is all (connections per second, section 7.2).
//! Packets of mixed sizes are IMIX, at the highest rate that is carried.

use super::ipsec::{ALLOWED_LOSS, UDP_SECTION};
use super::{Case, Quantity, Stage, SuiteOptions, SuitePlan};
use crate::experiment::generate::Search;
use crate::experiment::generate::search::RESOLUTION;
use crate::load::exchange::Exchange;
use crate::load::message::Messages;
use crate::load::task::Task;

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

/// The suite over one IP version.
pub fn plan(options: &SuiteOptions, ip: u8) -> SuitePlan {
    let stage = |subject| Stage { among_others: true, ..options.stage(subject, cases(options, ip)) };
    let mut stages: Vec<Stage> = options.plain_and_subjects().into_iter().map(stage).collect();
    if options.control {
        stages.extend(Stage::control(&stages));
    }
    let about = format!(
        "Short flows and mixed sizes; each measurement {} s after {} s of warm-up.",
        options.times.duration.as_secs_f64(),
        options.times.warmup.as_secs_f64()
    );
    options.plan("flows", about, stages)
}

fn cases(options: &SuiteOptions, ip: u8) -> Vec<Case> {
    let flows = |section: &str, name: &str, sizes: &[u32], quantities: &[Quantity]| {
        let streams = if section == SHORT_FLOWS { 1 } else { AT_ONCE };
        let work = Exchange { streams, request: REQUEST_BYTES, flows: sizes.to_vec(), ..Exchange::default() };
        options.case(section, format!("IPv{ip}, {name}"), Task::Exchange(work), ip, quantities)
    };
    let times = [Quantity::Flow50, Quantity::Flow95, Quantity::Flow99];
    let short = SIZES.map(|bytes| flows(SHORT_FLOWS, &format!("{} kB", bytes / 1_000), &[bytes], &times));
    let many = format!("Flows, {AT_ONCE} at a time");
    let carried = [Quantity::Flows, Quantity::Throughput, Quantity::Flow50, Quantity::Flow99];
    let mixed = flows(&many, "mixed objects of RFC 9411", &MIXED_OBJECTS, &carried);
    let small = flows(&many, "1 kB", &[SMALL], &[Quantity::Flows, Quantity::Flow50, Quantity::Flow99]);
    short.into_iter().chain([mixed, small, imix(options, ip)]).collect()
}

fn imix(options: &SuiteOptions, ip: u8) -> Case {
    let work = Messages::default().mixed();
    let quantities = [Quantity::Packets, Quantity::Throughput, Quantity::Loss];
    let case = options.case(UDP_SECTION, format!("IPv{ip}, IMIX"), Task::Messages(work), ip, &quantities);
    let search = Search {
        allowed_percent: ALLOWED_LOSS,
        resolution: RESOLUTION,
        trial_seconds: Some(2.0_f64.min(options.times.duration.as_secs_f64())),
    };
    Case { search: Some(search), ..case }
}

#[cfg(test)]
mod tests {
    use super::super::options::sample;
    use super::*;
    use crate::system::Kind;

    #[test]
    fn every_system_has_every_case_and_one_is_its_own_control() {
        let options = SuiteOptions { kinds: vec![Kind::Vpnd, Kind::Openvpn], ..sample(true) };
        let plan = plan(&options, 4);
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
