//! Experiment 3 as a table, JSON, CSV and a page.

pub mod html;
pub mod section;
pub mod words;

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::grid::Grid;
use super::published::board;
use crate::experiment::model::{Again, Compared, Model};
use section::sections;

/// The results as text, tables at most so wide.
pub fn table(model: &Model, width: Option<usize>) -> String {
    let mut text = format!("{}\n\n", words::title(&model.judgement));
    for section in sections(model) {
        let mut grid = Grid::new(1, section.head);
        grid.rows = section.rows;
        writeln!(text, "{}\n{}\n", section.title, grid.text(width)).expect("writing to a string");
    }
    for line in words::lines(model) {
        writeln!(text, "{line}").expect("writing to a string");
    }
    writeln!(text, "\nOriginal ({}): {}", board::SOURCE, board::FIGURES.caption)
        .expect("writing to a string");
    let then = board::FIGURES.head.iter().zip(board::FIGURES.rows[0]);
    let then: Vec<String> = then.map(|(what, figure)| format!("{what} {figure}")).collect();
    writeln!(text, "{}", then.join(", ")).expect("writing to a string");
    for finding in board::FINDINGS {
        writeln!(text, "{finding}").expect("writing to a string");
    }
    text
}

pub fn json(model: &Model) -> Value {
    json!({
        "experiment": "model",
        "title": words::title(&model.judgement),
        "predicts": model.judgement.predicts(),
        "judgement": model.judgement,
        "summary": model.predictions.iter().map(summary).collect::<Vec<_>>(),
        "control": model.control.iter().map(|again| control(model, again)).collect::<Vec<_>>(),
        "notes": words::lines(model),
        "model": model,
        "published": { "source": board::SOURCE, "figures": board::FIGURES, "findings": board::FINDINGS },
        "whole": model.is_whole(),
    })
}

fn control(model: &Model, again: &Again) -> Value {
    let [cpu, speed] = section::against_itself(model, again);
    json!({
        "suite": again.suite,
        "packet": again.case.packet,
        "streams": again.case.streams,
        "seconds_per_gbit": cpu,
        "bits_per_second": speed,
    })
}

fn summary(one: &Compared) -> Value {
    let predicted = one.predicted.as_ref();
    let savings = predicted.zip(one.beside).map(|(predicted, beside)| predicted.savings(beside));
    json!({
        "suite": one.suite,
        "packet": one.case.packet,
        "streams": one.case.streams,
        "predicted_seconds_per_gbit": predicted.map(|made| made.seconds_per_gbit()),
        "measured_seconds_per_gbit": one.real.as_ref().map(|real| real.vpn_seconds_per_gbit()),
        "cpu_error": one.cpu_error(),
        "cpu_error_with_own_counts": one.counted_error(),
        "predicted_bits_per_second": one.bits_per_second(),
        "measured_bits_per_second": one.real.as_ref().map(|real| real.bits_per_second),
        "speed_error": one.speed_error(),
        "bottleneck": savings.as_ref().and_then(|savings| savings.first()),
        "measured_saving_without_cipher": one.measured_saving(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::model::made_up;

    #[test]
    fn the_title_of_every_form_follows_the_errors() {
        let mut model = made_up::model(&[0.05, -0.1]);
        for text in [table(&model, None), json(&model)["title"].to_string(), html::html(&model)] {
            assert!(text.contains("a model that predicts it"), "{text}");
        }
        assert_eq!(json(&model)["predicts"], true);
        model = made_up::model(&[0.05, -0.16]);
        for text in [table(&model, None), json(&model)["title"].to_string(), html::html(&model)] {
            assert!(!text.contains("that predicts it") && text.contains("off by up to 16 %"), "{text}");
        }
        assert_eq!(json(&model)["predicts"], false);
    }

    #[test]
    fn what_others_took_repetitions_far_off_and_a_cipher_against_itself_are_shown() {
        let mut model = made_up::model(&[0.05, -0.1]);
        let text = table(&model, None);
        for expected in [
            "1.5 %",
            "2.5 %",
            "A/A: aes-256-gcm against itself",
            "1.00 (1.00–1.25)",
            "differed from itself by up to 25 %",
            "Look at none, 1408 bytes, streams: 1: 0.500 CPU s/Gbit is far from the median of 0.110 CPU s/Gbit",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        model.control[0].error = Some("gone".into());
        assert!(
            !model.is_whole()
                && table(&model, None).contains("aes-256-gcm, the second time: not measured: gone")
        );
        model.control.clear();
        assert!(!table(&model, None).contains("A/A"));
    }

    #[test]
    fn an_error_within_what_a_cipher_was_of_itself_is_marked() {
        let mut model = made_up::model(&[0.05, -0.1]);
        let errors = |model: &Model| {
            let rows = sections(model).swap_remove(0).rows;
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
    fn every_prediction_stands_beside_its_error() {
        let model = made_up::model(&[0.05, -0.16]);
        let page = table(&model, None);
        assert!(page.contains("+5 %") && page.contains("-16 %"), "{page}");
        let narrow = table(&model, Some(120));
        let tables = narrow.lines().filter(|line| line.starts_with(['│', '┌', '╞', '├', '└']));
        assert!(tables.map(|line| line.chars().count()).max().is_some_and(|most| most <= 120), "{narrow}");
    }
}
