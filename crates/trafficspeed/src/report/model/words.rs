//! The figures of experiment 3 in sentences.

use crate::experiment::model::predict::{Way, board_ns};
use crate::experiment::model::stages::HandOver;
use crate::experiment::model::{Model, SuiteModel};
use crate::unit::{gbit, significant};

/// The error above which the rest is explained.
const GOOD: f64 = 0.2;

/// All sentences, in the order in which they are to be read.
pub fn lines(model: &Model) -> Vec<String> {
    let mut lines = vec![
        "Full: 64 KiB super-packets, one acknowledgement for each; as it was: pieces as the devices counted them. CPU is \
         that of the two VPN processes. A core each: the slower end alone. Shared: all cores divided by the predicted CPU \
         and the generators' measured CPU for a Gbit."
            .to_owned(),
    ];
    for suite in &model.suites {
        lines.extend(suite.error.iter().map(|error| format!("{}: not measured: {error}", suite.suite)));
        lines.extend(pieces(suite));
        lines.extend(rest(model, suite));
    }
    lines.extend(
        model.suites.iter().filter_map(|suite| verdict(&suite.suite, &model.hand_over(&suite.suite))),
    );
    lines.extend(model.suites.iter().filter_map(|suite| as_the_original(model, suite)));
    if model.interrupted {
        lines.push("Interrupted: what was measured until then.".into());
    }
    lines
}

/// How the payload travelled.
fn pieces(suite: &SuiteModel) -> Option<String> {
    let real = suite.real.as_ref()?;
    let kib = |bytes: f64| significant(bytes / 1024.0);
    let shape = real.shape;
    Some(format!(
        "{}: client {} and gateway {} CPU s/Gbit (predicted {} and {}), generators {}; KiB for each read {}, run of datagrams \
         {}, write {}, acknowledgement {}; machine {:.0} % busy",
        suite.suite,
        significant(real.client_seconds_per_gbit),
        significant(real.gateway_seconds_per_gbit),
        significant(suite.as_it_was.as_ref().map_or(0.0, |was| was.client())),
        significant(suite.as_it_was.as_ref().map_or(0.0, |was| was.gateway())),
        significant(real.generator_seconds_per_gbit),
        kib(shape.read),
        kib(shape.run),
        kib(shape.written),
        kib(shape.acknowledged),
        real.busy_percent,
    ))
}

/// Where the rest goes, if the prediction is not good.
fn rest(model: &Model, suite: &SuiteModel) -> Option<String> {
    let error = suite.cpu_error()?;
    if error.abs() <= GOOD {
        return None;
    }
    let shard = [Way::Sender, Way::Receiver].map(|way| {
        let parts = suite.ahead.parts.iter().filter(|part| part.way == way);
        let computed =
            parts.filter(|part| !part.stage.starts_with("UDP ") && !part.stage.starts_with("TUN "));
        let sum: f64 = computed.map(|part| part.ns_per_byte).sum::<f64>() * suite.ahead.shape.read / 1000.0;
        let whole = model.whole_shard(&suite.suite, way).unwrap_or_default() / 1000.0;
        format!("{}: stages {} µs, whole shard {} µs", way.name(), significant(sum), significant(whole))
    });
    let why = if error < 0.0 {
        "The stages leave out: waiting for readiness and waking up; reads and receives that find nothing; the receiving \
         host's TCP, which the kernel runs inside the TUN write and charges to the gateway's process (the stage forwards \
         instead); caches that the processes push each other out of"
    } else {
        "The stages count too much: several short pieces share a system call; each stage parses the packet again; CPU time is \
         charged in ticks of the clock, which short runs escape"
    };
    Some(format!(
        "{}: the prediction is off by {:+.0} %. {why}. Without system calls, for a super-packet: {}",
        suite.suite,
        100.0 * error,
        shard.join("; "),
    ))
}

/// Who wins at equal numbers of threads.
fn verdict(suite: &str, figures: &[&HandOver]) -> Option<String> {
    let handed = figures.iter().find(|figure| figure.workers > 0)?;
    let inline = figures.iter().find(|figure| figure.workers == 0 && figure.threads == handed.threads)?;
    let single = figures.iter().find(|figure| figure.workers == 0 && figure.threads == 1)?;
    let more = |a: f64, b: f64| format!("{:+.0} %", 100.0 * (a / b - 1.0));
    let winner = if handed.bits_per_second > inline.bits_per_second { "workers win" } else { "inline wins" };
    Some(format!(
        "{suite}: {winner} at {} threads: {} Gbit/s with workers, {} inline; one flow gets {} from a worker of its own, at {} \
         CPU for each byte",
        handed.threads,
        gbit(handed.bits_per_second),
        gbit(inline.bits_per_second),
        more(handed.bits_per_second, single.bits_per_second),
        more(handed.cpu_ns_per_byte, single.cpu_ns_per_byte),
    ))
}

/// The original's formula with this host's figures: the four crossings of the kernel's border are the bus, sealing is cipher
/// and hash in one.
fn as_the_original(model: &Model, suite: &SuiteModel) -> Option<String> {
    let device = |stage: &&crate::experiment::model::fit::Stage| {
        stage.name.starts_with("TUN ") || stage.name.starts_with("UDP ")
    };
    let devices: Vec<f64> = model.stages.iter().filter(device).map(|stage| stage.line.per_byte).collect();
    let mut ciphers = model.stages.iter().filter(|stage| stage.suite.as_deref() == Some(&suite.suite));
    let cipher = 8.0 * ciphers.find(|stage| stage.name == "seal")?.line.per_byte;
    if devices.is_empty() {
        return None;
    }
    let transfer = 8.0 * devices.iter().sum::<f64>() / devices.len() as f64;
    let blocks = suite.ahead.shape.read / 8.0;
    let ns = board_ns(blocks, transfer, cipher, 0.0);
    Some(format!(
        "{}: the original's formula here, per 64 bits: Tb = {} ns (mean of TUN and UDP, by byte), Tadu = {} ns (sealing, by \
         byte; Tasu is in it): {} Gbit/s if only bytes cost; Tadu > 4Tb {}",
        suite.suite,
        significant(transfer),
        significant(cipher),
        significant(64.0 * blocks / ns.max(f64::MIN_POSITIVE)),
        if cipher > 4.0 * transfer {
            "holds: the cipher hides the transfers"
        } else {
            "does not hold: transfers rule"
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(flows: usize, workers: usize, gbit: f64, cpu: f64) -> HandOver {
        HandOver {
            suite: "none".into(),
            flows,
            workers,
            threads: flows * (1 + workers),
            bits_per_second: gbit * 1e9,
            cpu_ns_per_byte: cpu,
        }
    }

    #[test]
    fn workers_are_compared_at_equal_threads() {
        let [alone, handed, both] =
            [figure(1, 0, 10.0, 1.0), figure(1, 1, 12.0, 1.5), figure(2, 0, 19.0, 1.1)];
        let said = verdict("none", &[&alone, &handed, &both]).unwrap();
        assert!(said.contains("inline wins at 2 threads"), "{said}");
        assert!(said.contains("one flow gets +20 % from a worker of its own, at +50 % CPU"), "{said}");
        let fast = figure(1, 1, 20.0, 1.5);
        assert!(verdict("none", &[&alone, &fast, &both]).unwrap().contains("workers win"));
        assert_eq!(verdict("none", &[&alone]), None);
    }
}
