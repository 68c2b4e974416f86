//! The pictures of real paths.

use crate::experiment::figures::Figures;
use crate::experiment::home::flow::{Case, Flow};
use crate::experiment::home::results::HomeCampaign;
use crate::experiment::quantities::RECEIVED;
use crate::observation::Observations;
use crate::report::chart::{BarChart, CdfChart, Measure, Point, Series, cdf};
use crate::report::curves;
use crate::report::page::Picture;

/// Everything at once: rates, delays of voice, times of pages.
pub fn pictures(campaign: &HomeCampaign, table: &Observations) -> Vec<Picture> {
    // Each system with its style.
    let systems: Vec<(usize, &str)> = table.systems().into_iter().enumerate().collect();
    let rates = [Flow::Download, Flow::Upload].map(|flow| rate(table, &systems, flow));
    let delays = [Flow::VoiceDown, Flow::VoiceUp].map(|flow| delay(campaign, &systems, flow));
    rates.into_iter().chain(delays).chain([pages(campaign, &systems)]).flatten().collect()
}

/// The figures of a flow of a system together with all others.
fn rounds<'a>(campaign: &'a HomeCampaign, label: &'a str, flow: Flow) -> impl Iterator<Item = &'a Figures> {
    let selected = campaign.runs.iter().filter(move |run| run.label == label);
    selected.filter_map(move |run| run.figures(Case::AtOnce, flow))
}

fn rate(table: &Observations, systems: &[(usize, &str)], flow: Flow) -> Option<Picture> {
    let bar = |&(style, label): &(usize, &str)| {
        let rate = table.spread(label, &flow.in_case(Case::AtOnce), RECEIVED)?.scaled(1e6);
        Some((label.to_owned(), style, Point::of(0.0, rate)))
    };
    let name = flow.name();
    let svg = BarChart {
        title: format!("Rate of the {name}"),
        measure: Measure::higher_is_better("payload received, Mbit/s"),
        bars: systems.iter().filter_map(bar).collect(),
    }
    .svg()?;
    let caption =
        format!("The {name} while all else runs; median of the rounds, lowest and highest as whiskers.");
    Some(Picture::new(name, &format!("Rate of the {name}"), &caption, svg))
}

fn delay(campaign: &HomeCampaign, systems: &[(usize, &str)], flow: Flow) -> Option<Picture> {
    let first = systems
        .iter()
        .filter_map(|&(style, label)| Some((style, label, rounds(campaign, label, flow).next()?)))
        .collect::<Vec<_>>();
    let (name, title) = (flow.name(), format!("One-way delay of {}", flow.name()));
    let caption = "Share of the packets that arrived within this delay, while all else runs; first round.";
    Some(Picture::new(name.replace(' ', "-"), &title, caption, curves::delays(&title, &first)?))
}

fn pages(campaign: &HomeCampaign, systems: &[(usize, &str)]) -> Option<Picture> {
    let curve = |&(style, label): &(usize, &str)| {
        let mut all: Vec<f64> =
            rounds(campaign, label, Flow::Pages).flat_map(|figures| figures.pages_ms.clone()).collect();
        all.sort_by(f64::total_cmp);
        let count = all.len() as f64;
        let shares: Vec<(f64, f64)> =
            all.iter().zip(1_u32..).map(|(ms, number)| (*ms, f64::from(number) / count)).collect();
        cdf::of_shares(label, style, &shares)
    };
    let has_points = |series: &Series| !series.points.is_empty();
    let svg = CdfChart {
        title: "Time of a page".into(),
        measure: Measure::lower_is_better("time until its last byte, ms"),
        series: systems.iter().map(curve).filter(has_points).collect(),
    }
    .svg()?;
    let caption = "Share of the pages that were complete within this time, while all else runs; all rounds.";
    Some(Picture::new("pages", "Time of a page", caption, svg))
}
