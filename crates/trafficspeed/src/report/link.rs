//! The emulated link, asked for and got, as a table for people.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};

use super::grid::{NARROW, wrapped};
use crate::experiment::link_check::{LinkChecked, Way};
use crate::unit::gbit;

/// The result as text.
pub fn table(checked: &LinkChecked) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(["", "up", "down"]);
    for (name, cell) in rows() {
        table.add_row([name.to_owned(), cell(&checked.up), cell(&checked.down)]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!("{}\n{table}\n", checked.link);
    for (name, way) in [("up", &checked.up), ("down", &checked.down)] {
        if let Some(figures) = &way.emulator {
            writeln!(text, "emulator, {name}: {figures}").expect("writing to a string");
        }
    }
    let carried = if checked.super_packets {
        "super-packets of up to 64 KiB crossed whole; the link only delays, so no share or rate of packets suffers"
    } else {
        "every frame crossed by itself"
    };
    writeln!(text, "Offload: {carried}.").expect("writing to a string");
    text.push_str(
        "Delays are from sendto() to recv() in the other namespace, so they include both kernels and the wake-ups.\n",
    );
    text.push_str(&wrapped(&(checked.environment.machine() + "\n"), NARROW));
    text
}

type Row = (&'static str, fn(&Way) -> String);

fn rows() -> [Row; 11] {
    [
        ("one-way delay asked, ms", |way| {
            let jitter = if way.asked.jitter_us > 0.0 {
                format!(" ± {}", ms(way.asked.jitter_us))
            } else {
                String::new()
            };
            format!("{}{jitter}", ms(way.asked.delay_us))
        }),
        ("mean ± deviation, ms", |way| {
            format!("{} ± {}", ms(way.probes.delay.mean_us), ms(way.probes.delay.deviation_us))
        }),
        ("shortest, ms", |way| ms(way.probes.delay.min_us)),
        ("median, ms", |way| ms(way.probes.delay.p50_us)),
        ("99 %, ms", |way| ms(way.probes.delay.p99_us)),
        ("longest, ms", |way| ms(way.probes.delay.max_us)),
        ("lost: asked, got, %", |way| {
            let lost = way.probes.lost_percent();
            format!(
                "{:.3}, {lost:.3} ({} of {})",
                way.asked.loss_percent,
                way.probes.sent - way.probes.arrived,
                way.probes.sent
            )
        }),
        ("mean run of losses", |way| format!("{:.2}", way.probes.mean_burst)),
        ("late: asked, overtaken, %", |way| {
            format!("{:.3}, {:.3}", way.asked.reorder_percent, way.probes.overtaken_percent())
        }),
        ("twice, %", |way| format!("{:.3}", way.probes.twice_percent())),
        ("rate: asked, got, Gbit/s", |way| match way.asked.bits_per_second {
            Some(asked) => format!("{}, {} (UDP, frames)", gbit(asked as f64), gbit(way.bits_per_second)),
            None => format!("–, {} (one TCP stream)", gbit(way.bits_per_second)),
        }),
    ]
}

fn ms(us: f64) -> String {
    format!("{:.3}", us / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::environment::Environment;
    use crate::experiment::link_check::{Asked, Probes};
    use crate::lab::emulator::Figures;
    use crate::load::delays::DelaySummary;

    #[test]
    fn the_table_shows_what_was_asked_and_measured() {
        let asked = Asked {
            delay_us: 16_000.0,
            jitter_us: 0.0,
            loss_percent: 1.0,
            reorder_percent: 0.0,
            bits_per_second: Some(100_000_000),
        };
        let delay = DelaySummary { p50_us: 16_123.0, ..DelaySummary::default() };
        let probes = Probes { sent: 1000, arrived: 988, delay, ..Probes::default() };
        let way = Way { asked, probes, bits_per_second: 99.5e6, emulator: Some(Figures::default()) };
        let down = Way { asked: Asked { bits_per_second: None, ..asked }, ..way.clone() };
        let text = table(&LinkChecked {
            environment: Environment::default(),
            link: "a link".into(),
            super_packets: false,
            up: way,
            down,
        });
        for expected in [
            "16.000",
            "16.123",
            "1.000, 1.200 (12 of 1000)",
            "0.100, 0.100 (UDP",
            "one TCP stream",
            "emulator, up",
            "emulator, down",
            "Machine: ",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
}
