//! The report of experiment 3.

pub mod section;
pub mod words;

use super::chart::{BarChart, Measure, Point};
use super::document::Document;
use super::page::Picture;
use super::published::board;
use crate::experiment::model::Model;
use section::sections;

/// The report of the model.
pub fn document(model: &Model) -> Document<'_> {
    let lead = format!(
        "Where the time goes. The stages of a running tunnel were measured on this host; then the real VPN carried each case, and \
         they were summed over what passed for a Gbit. {}",
        words::off(model)
    );
    let mut document = Document::new("Where the time goes", "Where the time goes", lead, &model.environment);
    document.interrupted = model.interrupted;
    document.pictures(pictures(model));
    document.sections(sections(model));
    document.section("What the figures say");
    document.lines(words::lines(model));
    document.published(board::SOURCE, Vec::new(), &[board::FIGURES]);
    document.words(&board::FINDINGS.join("\n"));
    document
}

/// The cost of a Gbit in the VPN's processes: the sum of the stages, and measured if it was.
fn pictures(model: &Model) -> Vec<Picture> {
    let style_of = |suite: &str| model.raw.suites.iter().position(|known| known.name == suite).unwrap_or(0);
    let bars = model.sums.iter().flat_map(|one| {
        let style = style_of(&one.suite);
        let name = format!("{}, {} bytes, streams: {}", one.suite, one.case.packet, one.case.streams);
        let bar = |kind: &str, y, range| (format!("{name}, {kind}"), style, Point { x: 0.0, y, range });
        let sum = one.sum.as_ref().map(|sum| bar("sum of stages", sum.seconds_per_gbit(), None));
        let measured = one.real.as_ref();
        let measured =
            measured.map(|real| bar("measured", real.vpn_seconds_per_gbit(), Some(real.cpu_range)));
        sum.into_iter().chain(measured)
    });
    let chart = BarChart {
        title: "CPU time for a Gbit, sum of stages and measured".into(),
        measure: Measure::lower_is_better("CPU seconds per Gbit, both VPN processes"),
        bars: bars.collect(),
    };
    let caption = "The sum is of the stages over what passed in the run. The whisker of a measurement is the range of its \
                   repetitions.";
    let picture = |svg| Picture::new("model-cost", "Sum of stages and measured", caption, svg);
    chart.svg().map(picture).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::model::made_up;

    fn text(model: &Model) -> String {
        document(model).text(true, true)
    }

    #[test]
    fn every_form_says_how_far_the_sums_are_off() {
        let mut model = made_up::model(&[0.05, -0.16]);
        for text in [text(&model), document(&model).page()] {
            assert!(text.contains("The sums are off by -16 to +5 %."), "{text}");
        }
        model.sums.iter_mut().for_each(|one| one.real = None);
        assert!(text(&model).contains("their errors are unknown"));
    }

    #[test]
    fn what_others_took_repetitions_far_off_and_a_cipher_against_itself_are_shown() {
        let mut model = made_up::model(&[0.05, -0.1]);
        let shown = text(&model);
        for expected in [
            "1.5 %",
            "2.5 %",
            "A/A: aes-256-gcm, its second measurement in each turn / its first",
            "1.00 (1.00–1.25)",
            "differed from itself by up to 25 %",
            "Look at none, 1408 bytes, streams: 1: 0.500 CPU s/Gbit is far from the median of 0.110 CPU s/Gbit",
        ] {
            assert!(shown.contains(expected), "{expected}: {shown}");
        }
        model.control[0].error = Some("gone".into());
        assert!(
            !model.is_whole() && text(&model).contains("aes-256-gcm, the second time: not measured: gone")
        );
        model.control.clear();
        assert!(!text(&model).contains("A/A"));
    }

    #[test]
    fn an_error_within_what_a_cipher_was_of_itself_is_marked() {
        let mut model = made_up::model(&[0.05, -0.1]);
        let errors = |model: &Model| {
            let rows = sections(model).swap_remove(0).grid.rows;
            [rows[0][4].clone(), rows[1][4].clone()]
        };
        // In CPU time both measurements were the same.
        assert_eq!(errors(&model), ["+5 %", "-10 %"]);
        let again = model.control[0].real.as_mut().unwrap();
        again.cpu_each[2] *= 1.12;
        assert_eq!(errors(&model), ["+5 %", "-10 % ≈"], "of what was measured but once nothing is said");
        model.control[0].real.as_mut().unwrap().cpu_each[2] /= 1.12 * 1.05;
        assert_eq!(errors(&model), ["+5 %", "-10 %"]);
    }

    #[test]
    fn every_sum_has_its_error() {
        let model = made_up::model(&[0.05, -0.16]);
        let page = text(&model);
        assert!(page.contains("+5 %") && page.contains("-16 %"), "{page}");
        let narrow = document(&model).text(false, true);
        let tables = narrow.lines().filter(|line| line.starts_with(['│', '┌', '╞', '├', '└']));
        assert!(tables.map(|line| line.chars().count()).max().is_some_and(|most| most <= 120), "{narrow}");
    }
}
