//! Figures as the stages' program would give them on a machine whose costs are known; for tests.

use super::costs::{self, End};
use super::counts::Counts;
use super::real::Real;
use super::stages::{Calls, Live, LiveEnd, Raw, Suite, Timed};
use super::sum::{Beside, Sum};
use super::{Again, Case, Compared, Model, compare};
use crate::experiment::environment::Environment;
use crate::experiment::outcome::Taken;
use crate::load::congestion::CongestionControl;
use crate::system::SystemInfo;

/// Packet lengths and pieces of its streams.
const SIZES: [(usize, usize); 5] = [(1408, 48), (1408, 16), (1408, 4), (700, 64), (700, 8)];
/// Super-packets of each stream.
const READS: f64 = 1000.0;
/// Nanoseconds of a cipher for each packet and byte, at each end.
const CIPHER: (f64, f64) = (100.0, 0.2);

fn calls(count: f64, bytes: f64, each: f64, per_byte: f64) -> Calls {
    let work = Timed { calls: count as u64, ns: count * each + bytes * per_byte };
    let empty = Timed { calls: 10, ns: 3000.0 };
    Calls { work, empty, messages: count as u64, bytes: (bytes + 62.0 * count) as u64 }
}

/// Reading costs 1,000 ns and 0.1 ns a byte, sending twice that; each end wakes up for each second
/// read, for 2,000 ns.
fn live((packet, pieces): (usize, usize), suite: &str, clocked: bool) -> Live {
    let payload = READS * (pieces * (packet - 52)) as f64;
    let (packets, acks) = (READS * pieces as f64, READS / 2.0);
    let cipher = if suite == "none" { (0.0, 0.0) } else { CIPHER };
    let data = 500.0 * READS + 50.0 * packets + cipher.0 * packets + cipher.1 * payload;
    let ack = (300.0 + 2.0 * cipher.0) * acks;
    let end = |read: Calls, write: Calls, send: Calls, receive: Calls, way: (f64, f64)| {
        let work = [read, write, send, receive].iter().map(|calls| calls.work.ns).sum::<f64>();
        LiveEnd {
            cpu_ns: work + way.0 + way.1 + 2000.0 * READS / 2.0,
            wake_ups: (READS / 2.0) as u64,
            read,
            send,
            receive,
            write,
            transmit_ns: way.0,
            deliver_ns: way.1,
        }
    };
    let data_call = |factor: f64| calls(READS, payload, 1000.0 * factor, 0.1 * factor);
    let ack_call = |each: f64| calls(acks, 0.0, each, 0.0);
    Live {
        packet,
        pieces,
        streams: 1,
        suite: suite.into(),
        clocked,
        client: end(data_call(1.0), ack_call(900.0), data_call(2.0), ack_call(400.0), (data, ack)),
        gateway: end(ack_call(500.0), data_call(3.0), ack_call(800.0), data_call(1.5), (ack, data)),
    }
}

/// Streams without a cipher and with one.
pub fn raw() -> Raw {
    let suite = |name: &str| Suite { name: name.into(), backend: "made up".into() };
    let suites = vec![suite("none"), suite("aes-256-gcm")];
    let of_suite = |suite: &Suite| {
        let with = |clocked: bool| SIZES.map(|size| live(size, &suite.name, clocked));
        [with(false), with(true)].concat()
    };
    Raw {
        form: 3,
        mss: 1356,
        mtu: 1408,
        max_slices: 48,
        live: suites.iter().flat_map(of_suite).collect(),
        suites,
        stages: Vec::new(),
        handover: Vec::new(),
    }
}

/// A model whose sums of CPU time are off by `errors`, without a cipher and with one.
pub fn model(errors: &[f64; 2]) -> Model {
    let raw = raw();
    let (costs, disturbance) = costs::fit_all(&raw).expect("made-up figures can be fitted");
    let case = Case { packet: 1408, streams: 1 };
    let counts = Counts::of_live(&raw.live[0]);
    let beside = Beside { generators: 0.02, kernel: 0.01, in_use: 1.0 };
    let mut sums: Vec<Compared> = Vec::new();
    for (suite, error) in raw.suites.iter().zip(errors) {
        let made = Sum::make(&costs, &suite.name, counts);
        let own = |end: End| made.end(end) / (1.0 + error);
        let whole = own(End::Client) + own(End::Gateway) + beside.generators + beside.kernel;
        let real = Real {
            bits_per_second: 1.1e9,
            client_seconds_per_gbit: own(End::Client),
            gateway_seconds_per_gbit: own(End::Gateway),
            beside,
            cpus: 2.0,
            softirq: 0.1,
            counts,
            each: vec![1e9, 1.1e9, 1.2e9, 1.1e9, 1.1e9],
            cpu_range: (0.0, 1.0),
            cpu_each: vec![0.1, 0.11, 0.5, 0.11, 0.11],
            whole_each: vec![whole; 5],
            taken: Taken { steal: Some(1.5), others: Some(2.5) },
            facts: SystemInfo::default(),
        };
        let known = sums.first();
        sums.push(compare(&costs, (suite, case), Some(real), known));
    }
    // The last one measured again differed from itself by a quarter in one turn.
    let first = sums.last().expect("there is one");
    let mut real = first.real.clone();
    real.iter_mut().for_each(|real| real.each[2] *= 1.25);
    let control = vec![Again { suite: first.suite.clone(), case, real, error: None }];
    let (environment, stages) = (Environment::default(), Vec::new());
    Model {
        environment,
        congestion: Some(CongestionControl::default()),
        raw,
        stages,
        costs,
        disturbance,
        sums,
        control,
        original: Vec::new(),
        original_cpu: None,
        interrupted: false,
    }
}
