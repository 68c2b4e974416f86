//! The report of `trafficspeed verify`.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::claims::EMULATED;
use super::grid::{Grid, NARROW, wrapped};
use super::noise::{TAKEN, far, percent};
use crate::experiment::outcome::Taken;
use crate::experiment::verify::{Agreement, LIMIT, Verification};
use crate::stats::Spread;
use crate::unit::{rate, significant};

/// For people.
pub fn table(found: &Verification) -> String {
    let mut grid = Grid::new(
        1,
        ["generator", "version", "n", "received", "trafficspeed / it", "within 5 %", "steal", "others"],
    );
    let mut remarks = Vec::new();
    for (at, generator) in found.generators.iter().enumerate() {
        let rates: Vec<f64> = generator.bits_per_second.iter().copied().flatten().collect();
        let spread = Spread::of(&rates);
        let agreement = match found.agreement(at) {
            _ if at == 0 => "–",
            Agreement::Agrees => "yes",
            Agreement::Differs => "no",
            Agreement::WithinControl => "not beyond A/A",
            Agreement::NotMeasured => "not measured",
            Agreement::NotJudged => "not judged",
        };
        let ratio = found.ratio(at).filter(|_| at > 0);
        let taken = Taken::most(&generator.cpu);
        remarks.extend(far(&generator.name, &rates, |bits| rate(None, bits)));
        grid.rows.push(vec![
            generator.name.clone(),
            generator.version.lines().next().unwrap_or_default().to_owned(),
            rates.len().to_string(),
            spread.map_or("–".into(), |spread| spread.text(|bits| rate(None, bits))),
            ratio.map_or("–".into(), |ratio| ratio.text(significant)),
            agreement.to_owned(),
            percent(taken.steal),
            percent(taken.others),
        ]);
    }
    let mut text = grid.text(Some(NARROW)) + "\n";
    let window = found.window.map_or("the kernel's".to_owned(), |window| format!("{window} bytes"));
    writeln!(
        text,
        "{}; TCP from the client to the gateway through {}, cipher {}: {} stream{} of {} s, {} bytes for each send call, \
         congestion control {}, socket buffers: {window}; no warm-up.\n\
         In turns; medians of n runs, the lowest and the highest in parentheses, ratios within rounds. The last row is A/A. \
         trafficspeed discards what arrives in the kernel, the others copy it.\n\
         {TAKEN} For the other generators their start and end count, too.",
        verdict(found),
        found.system,
        found.facts.cipher,
        found.streams,
        if found.streams == 1 { "" } else { "s" },
        found.seconds,
        found.write_bytes,
        found.congestion,
    )
    .expect("writing to a string");
    remarks.iter().for_each(|line| writeln!(text, "{line}").expect("writing to a string"));
    for generator in &found.generators {
        if let Some(problem) = &generator.problem {
            writeln!(text, "{}: {problem}", generator.name).expect("writing to a string");
        }
    }
    if found.interrupted {
        text.push_str("Interrupted: the figures are of what was measured until then.\n");
    }
    text.push_str(&found.environment.machine());
    text.push('\n');
    wrapped(&text, NARROW)
}

fn verdict(found: &Verification) -> String {
    let percent = LIMIT * 100.0;
    if found.environment.is_emulated() {
        EMULATED.trim_end_matches('.').to_owned()
    } else if found.agrees() {
        format!("The generators agree within {percent:.0} %")
    } else {
        format!("Agreement within {percent:.0} % was not shown")
    }
}

pub fn json(found: &Verification) -> Value {
    let comparison = |at: usize| {
        json!({
            "generator": found.generators[at].name,
            "ratio": found.ratio(at),
            "agreement": found.agreement(at),
        })
    };
    json!({
        "format": 1,
        "experiment": "verify",
        "measured": found,
        "control": found.same(),
        "comparison": found.others().map(comparison).collect::<Vec<_>>(),
        "agrees": found.agrees(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::CpuUse;
    use crate::experiment::verify::tests::sample;
    use crate::observe::HostCpu;
    use crate::report::grid::tests::assert_narrow;

    #[test]
    fn three_figures_with_ratios_and_a_verdict_stand_in_text_and_json() {
        let mut found = sample([[2.0; 3], [1.98; 3], [1.5; 3], [2.0, 2.0, 2.02]]);
        let text = table(&found);
        for expected in ["1.01 (1.01–1.01)", "1.33 (1.33–1.33)", "not shown", "cubic", "2.00 Gbit/s"] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert_narrow(&text);
        let json = json(&found);
        assert_eq!(
            (&json["comparison"][1]["agreement"], &json["agrees"]),
            (&"differs".into(), &false.into())
        );
        // The processes of others used a quarter of the machine, and one round came to nothing.
        let host = HostCpu { user: 4.0, ..HostCpu::default() };
        found.generators[1].cpu = vec![CpuUse { foreign: 1.0, host, ..CpuUse::default() }];
        found.generators[1].bits_per_second[1] = Some(0.4e9);
        let text = table(&found);
        for expected in ["25.0 %", "Look at iperf3: 400 Mbit/s is far from the median of 1.98 Gbit/s"] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        found.generators[1].bits_per_second[1] = Some(1.98e9);
        found.generators[1].cpu.clear();
        found.generators[2].bits_per_second.clear();
        found.generators[2].problem = Some("`nuttcp` is not installed".into());
        let text = table(&found);
        assert!(text.contains("agree within 5 %") && text.contains("nuttcp: `nuttcp` is not"), "{text}");
    }
}
