//! The figures of experiment 3 in sentences.

use super::section::against_itself;
use crate::experiment::model::disturbance::Disturbance;
use crate::experiment::model::original::Row;
use crate::experiment::model::stages::HandOver;
use crate::experiment::model::sum::{CIPHER, board_ns};
use crate::experiment::model::{Compared, Model};
use crate::observation::{in_rounds, ratio};
use crate::report::noise::{TAKEN, far};
use crate::stats::{CLAIM_ROUNDS, Spread, range};
use crate::system::AGAIN;
use crate::unit::{gbit, significant};

/// How far the sums are off.
pub fn off(model: &Model) -> String {
    let errors: Vec<f64> = model.sums.iter().filter_map(Compared::off).collect();
    range(&errors).map_or_else(
        || "No run was measured to compare the sums with, so their errors are unknown.".into(),
        |(low, high)| format!("The sums are off by {:+.0} to {:+.0} %.", 100.0 * low, 100.0 * high),
    )
}

/// All sentences, in the order in which they are to be read.
pub fn lines(model: &Model) -> Vec<String> {
    let mut lines = vec![
        "CPU sum: the stages' costs, fitted without a cipher in streams of packets of 1408 and 700 bytes, and the ciphers' beyond \
         them, times what passed in the real run. It explains a run and predicts none: how often the ends sleep and acknowledge \
         follows from the speed. Cores: without those that others took."
            .to_owned(),
        clocks(&model.disturbance),
        TAKEN.to_owned(),
    ];
    lines.extend(widest(model));
    lines.extend(remarks(model));
    for one in &model.sums {
        let subject = format!("{}, {} bytes, streams: {}", one.suite, one.case.packet, one.case.streams);
        lines.extend(one.error.iter().map(|error| format!("{subject}: not measured: {error}")));
        lines.extend(passed(one).map(|passed| format!("{subject}: {passed}")));
        lines.extend(bottleneck(one).map(|found| format!("{subject}: {found}")));
    }
    let failed = model.control.iter().filter_map(|again| Some((again, again.error.as_ref()?)));
    lines.extend(
        failed.map(|(again, error)| format!("{}, the second time: not measured: {error}", again.suite)),
    );
    let failed = model.original.iter().filter_map(|row| Some((row, row.error.as_ref()?)));
    lines
        .extend(failed.map(|(row, error)| format!("{}, as the original: not measured: {error}", row.system)));
    lines.extend(as_measured_then(&model.original));
    let suites = || model.raw.suites.iter().map(|suite| suite.name.as_str());
    lines.extend(suites().filter_map(|suite| verdict(suite, &model.hand_over(suite))));
    lines.extend(suites().filter_map(|suite| as_the_original(model, suite)));
    lines
}

/// The cost of measuring itself.
fn clocks(disturbance: &Disturbance) -> String {
    let more = |factor: f64| format!("{:+.0} %", 100.0 * (factor - 1.0));
    format!(
        "The clocks around system calls changed the CPU time of the streams by {} (client) and {} (gateway), beyond what reading them \
         takes; the stages are scaled to what each end takes without them.",
        more(disturbance.client),
        more(disturbance.gateway)
    )
}

/// How far a cipher differed from itself; an error that is no larger says little.
fn widest(model: &Model) -> Option<String> {
    let all = model.control.iter().flat_map(|again| against_itself(model, again)).flatten();
    let widest = all.map(|spread| spread.widest_ratio()).reduce(f64::max)?;
    Some(format!(
        "A/A: {} measured a second time differed from itself by up to {:.0} %; an error that is no larger is none that these \
         measurements can show (≈: no larger than with that load).",
        model.control.first()?.suite,
        100.0 * (widest - 1.0)
    ))
}

/// Repetitions that are far from the others.
fn remarks(model: &Model) -> Vec<String> {
    let remarks_of = |one: &Compared| {
        let subject = format!("{}, {} bytes, streams: {}", one.suite, one.case.packet, one.case.streams);
        let real = one.real.as_ref()?;
        let cpu = far(&subject, &real.cpu_each, |cost| format!("{} CPU s/Gbit", significant(cost)));
        Some(cpu.into_iter().chain(far(&subject, &real.each, |rate| format!("{} Gbit/s", gbit(rate)))))
    };
    let original = model.original.iter().filter_map(|row| {
        let subject =
            format!("{}, links of {} Mbit/s", row.system, significant(row.link_bits_per_second as f64 / 1e6));
        far(&subject, &row.each, |rate| format!("{} Mbit/s", significant(rate / 1e6)))
    });
    model.sums.iter().filter_map(remarks_of).flatten().chain(original).collect()
}

/// How the payload travelled.
fn passed(one: &Compared) -> Option<String> {
    let real = one.real.as_ref()?;
    let kib = |count: f64| significant(real.counts.bytes / count.max(1.0) / 1024.0);
    Some(format!(
        "client {} and gateway {} CPU s/Gbit, generators {}, the rest of the kernel {}; KiB for each read {}, run of datagrams {}, write \
         {}, acknowledgement {}, wake-up {} and {}; {:.0} % of the cores to be had in use, soft interrupts {:.0} % of that",
        significant(real.client_seconds_per_gbit),
        significant(real.gateway_seconds_per_gbit),
        significant(real.beside.generators),
        significant(real.beside.kernel),
        kib(real.counts.reads),
        kib(real.counts.runs),
        kib(real.counts.writes),
        kib(real.counts.acks),
        kib(real.counts.wakes[0]),
        kib(real.counts.wakes[1]),
        100.0 * real.beside.in_use,
        100.0 * real.softirq,
    ))
}

/// The stage whose removal saves the most, and whether the run without a cipher agrees.
fn bottleneck(one: &Compared) -> Option<String> {
    let savings = one.sum.as_ref()?.savings(one.real.as_ref()?.beside);
    let first = savings.first()?;
    let share = |share: f64| format!("{:.0} %", 100.0 * share);
    let named = format!("most is saved without {}: {} of all CPU time", first.stage, share(first.share));
    let (Some(cipher), Some(measured)) = (savings.iter().find(|saving| saving.stage == CIPHER), one.saved)
    else {
        return Some(named);
    };
    let first_other = savings.iter().find(|saving| saving.stage != CIPHER)?;
    // The run without a cipher is the check of what is said here.
    let is_less = measured.high < first_other.share;
    let is_more = measured.low > first_other.share;
    let verdict = if one.is_disturbed || measured.n < CLAIM_ROUNDS {
        " (not judged: few rounds, or a disturbed machine)"
    } else if (first.stage == CIPHER && is_less) || (first.stage != CIPHER && is_more) {
        ", which contradicts that"
    } else {
        ""
    };
    let check = format!(
        "without {CIPHER} {} by the stages, {} % in the run without a cipher{verdict}",
        share(cipher.share),
        // Adding zero makes a negative zero an ordinary one.
        measured.scaled(0.01).text(|percent| format!("{:.0}", percent.round() + 0.0)),
    );
    Some(if first.stage == CIPHER {
        format!("{named}; next {}: {}; {check}", first_other.stage, share(first_other.share))
    } else {
        format!("{named}; {check}")
    })
}

/// The ratio of the original's systems, within a turn.
fn by_turns(one: &Row, other: &Row) -> Option<Spread> {
    ratio(&in_rounds(&one.each), &in_rounds(&other.each))
}

/// At each rate: throughput without any algorithm relative to that without a tunnel, and the system
/// that was measured twice compared with itself.
fn as_measured_then(rows: &[Row]) -> Vec<String> {
    let relative_to = |row: &Row, system: &str| {
        let mut same = rows.iter().filter(|other| other.link_bits_per_second == row.link_bits_per_second);
        by_turns(row, same.find(|other| other.system == system)?)
    };
    let line = |row: &Row| {
        let links = format!("links of {} Mbit/s", significant(row.link_bits_per_second as f64 / 1e6));
        if row.system.ends_with("no encryption") {
            let ratio = relative_to(row, "plain routing")?.text(significant);
            return Some(format!(
                "{links}: without an algorithm {ratio} of no tunnel (original: 0.971 at 100 Mbit/s)"
            ));
        }
        let system = row.system.strip_suffix(AGAIN)?;
        let ratio = relative_to(row, system)?.text(significant);
        Some(format!("{links}: A/A: {system} relative to itself {ratio}"))
    };
    rows.iter().filter_map(line).collect()
}

/// Inline or workers at equal numbers of threads; none wins if their ranges overlap.
fn verdict(suite: &str, figures: &[&HandOver]) -> Option<String> {
    let handed = figures.iter().find(|figure| figure.workers > 0)?;
    let inline = figures.iter().find(|figure| figure.workers == 0 && figure.threads == handed.threads)?;
    let single = figures.iter().find(|figure| figure.workers == 0 && figure.threads == 1)?;
    let more = |a: f64, b: f64| format!("{:+.0} %", 100.0 * (a / b - 1.0));
    let winner = if handed.range[0] > inline.range[1] {
        "workers win"
    } else if inline.range[0] > handed.range[1] {
        "inline wins"
    } else {
        "neither wins (the ranges overlap)"
    };
    Some(format!(
        "{suite}: {winner} at {} threads: {} Gbit/s with workers, {} inline; one flow gets {} from a separate worker, at {} \
         CPU for each byte",
        handed.threads,
        gbit(handed.bits_per_second),
        gbit(inline.bits_per_second),
        more(handed.bits_per_second, single.bits_per_second),
        more(handed.cpu_ns_per_byte, single.cpu_ns_per_byte),
    ))
}

/// The original's formula with this host's figures: the four crossings of the kernel's border are
/// the bus, sealing is cipher and hash in one.
fn as_the_original(model: &Model, suite: &str) -> Option<String> {
    let device = |stage: &&crate::experiment::model::fit::Stage| {
        stage.name.starts_with("TUN ") || stage.name.starts_with("UDP ")
    };
    let devices: Vec<f64> = model.stages.iter().filter(device).map(|stage| stage.line.per_byte).collect();
    let mut ciphers = model.stages.iter().filter(|stage| stage.suite.as_deref() == Some(suite));
    let cipher = 8.0 * ciphers.find(|stage| stage.name == "seal")?.line.per_byte;
    if devices.is_empty() {
        return None;
    }
    let transfer = 8.0 * devices.iter().sum::<f64>() / devices.len() as f64;
    let blocks = (model.raw.max_slices * model.raw.mss) as f64 / 8.0;
    let ns = board_ns(blocks, transfer, cipher, 0.0);
    Some(format!(
        "{}: the original's formula here, per 64 bits: Tb = {} ns (mean of TUN and UDP, by byte), Tadu = {} ns (sealing, by \
         byte; Tasu is in it): {} Gbit/s if only bytes cost; Tadu > 4Tb {}",
        suite,
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
    use crate::experiment::outcome::Taken;

    fn figure(flows: usize, workers: usize, gbit: f64, cpu: f64) -> HandOver {
        HandOver {
            suite: "none".into(),
            range: [0.95e9 * gbit, 1.05e9 * gbit],
            repeats: 5,
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
        assert!(said.contains("one flow gets +20 % from a separate worker, at +50 % CPU"), "{said}");
        let fast = figure(1, 1, 25.0, 1.5);
        assert!(verdict("none", &[&alone, &fast, &both]).unwrap().contains("workers win"));
        let alike = figure(1, 1, 18.0, 1.5);
        assert!(verdict("none", &[&alone, &alike, &both]).unwrap().contains("neither wins"));
        assert_eq!(verdict("none", &[&alone]), None);
    }

    #[test]
    fn the_bottleneck_is_checked_against_the_run_without_a_cipher() {
        // The made-up cipher costs more than any other stage; its run without one agrees.
        let mut model = crate::experiment::model::made_up::model(&[0.0, 0.0]);
        let with_cipher = model.sums.last_mut().unwrap();
        let said = bottleneck(with_cipher).unwrap();
        assert!(said.contains(CIPHER) && said.ends_with("in the run without a cipher"), "{said}");
        let shares = [0.0, 0.0, 0.01, 0.0, 0.01];
        with_cipher.saved = Spread::of(&shares);
        let said = bottleneck(with_cipher).unwrap();
        assert!(said.contains("0 (0–1) % in the run without a cipher, which contradicts that"), "{said}");
        with_cipher.saved = Spread::of(&shares[1..]);
        assert!(bottleneck(with_cipher).unwrap().contains("(not judged: few rounds"));
        with_cipher.saved = Spread::of(&shares);
        with_cipher.is_disturbed = true;
        assert!(bottleneck(with_cipher).unwrap().contains("(not judged: few rounds"));
    }

    #[test]
    fn null_and_the_control_are_compared_turn_by_turn() {
        let row = |system: &str, link: u64, each: [f64; 3]| Row {
            system: system.into(),
            link_bits_per_second: link,
            bits_per_second: each[1],
            range: (each[0], each[2]),
            repeats: 3,
            vpn_seconds_per_gbit: 0.1,
            each: each.into(),
            taken: Taken::default(),
            error: None,
        };
        let again = format!("vpnd, aes-256-gcm{AGAIN}");
        let rows = [
            row("vpnd, no encryption", 100_000_000, [80e6, 90e6, 95e6]),
            row("vpnd, aes-256-gcm", 100_000_000, [80e6, 80e6, 80e6]),
            row("plain routing", 1_000_000_000, [900e6; 3]),
            row("plain routing", 100_000_000, [100e6; 3]),
            row(&again, 100_000_000, [72e6, 80e6, 88e6]),
        ];
        let said = as_measured_then(&rows);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(
            said[0].contains("100 Mbit/s: without an algorithm 0.900 (0.800–0.950) of no tunnel"),
            "{said:?}"
        );
        assert!(said[1].contains("A/A: vpnd, aes-256-gcm relative to itself 1.00 (0.900–1.10)"), "{said:?}");
    }
}
