//! The page of real paths.

use super::groups::FlowGroup;
use super::{DEFINITIONS, Section, lead, link_lines, ratios, sections, system_lines};
use crate::experiment::home::flow::{Case, Flow};
use crate::experiment::home::results::HomeCampaign;
use crate::report::chart::{BarChart, CdfChart, Measure, Point, cdf};
use crate::report::html::{machine, opening};
use crate::report::page::{Page, Picture};

/// The page of a campaign.
pub fn html(campaign: &HomeCampaign) -> String {
    let mut page = Page::new("trafficspeed home", "trafficspeed home", &lead(&campaign.settings));
    let problems: Vec<String> = campaign.problems();
    opening(&mut page, &campaign.environment, campaign.interrupted, &problems);
    pictures(campaign).iter().for_each(|picture| page.figure(picture));
    for Section { name, grid } in sections(campaign) {
        page.section(name);
        page.table(&grid.head.iter().map(String::as_str).collect::<Vec<_>>(), grid.rows);
    }
    page.notes(DEFINITIONS.lines().chain(ratios::DEFINITIONS.lines()));
    let remarks = ratios::remarks(campaign);
    if !remarks.is_empty() {
        page.list("problems", &remarks);
    }
    page.section("Systems");
    page.list("", &system_lines(campaign));
    page.section("Link");
    page.list("", &link_lines(campaign));
    page.section("Set-up");
    machine(&mut page, &campaign.environment, []);
    page.finish()
}

/// Everything at once: rates, delays of voice, times of pages.
pub fn pictures(campaign: &HomeCampaign) -> Vec<Picture> {
    let rates = [Flow::Download, Flow::Upload].map(|flow| rate(campaign, flow));
    let delays = [Flow::VoiceDown, Flow::VoiceUp].map(|flow| delay(campaign, flow));
    rates.into_iter().chain(delays).chain([pages(campaign)]).flatten().collect()
}

/// A flow of every system beside all others, with the style of the system.
fn groups(campaign: &HomeCampaign, flow: Flow) -> Vec<(usize, FlowGroup<'_>)> {
    let of = |label| FlowGroup::of(campaign, label, Case::AtOnce, flow);
    campaign.labels().into_iter().map(of).enumerate().filter(|(_, group)| !group.runs.is_empty()).collect()
}

fn rate(campaign: &HomeCampaign, flow: Flow) -> Option<Picture> {
    let bar = |(style, group): (usize, FlowGroup<'_>)| {
        let rate = group.spread(|figures| Some(figures.received_bits_per_second / 1e6))?;
        Some((group.label.to_owned(), style, Point::of(0.0, rate)))
    };
    let name = flow.name();
    let svg = BarChart {
        title: format!("Rate of the {name}"),
        measure: Measure::higher_is_better("payload received, Mbit/s"),
        bars: groups(campaign, flow).into_iter().filter_map(bar).collect(),
    }
    .svg()?;
    let caption =
        format!("The {name} beside everything else; median of the rounds, lowest and highest as whiskers.");
    Some(Picture { name: name.replace(' ', "-"), title: format!("Rate of the {name}"), caption, svg })
}

fn delay(campaign: &HomeCampaign, flow: Flow) -> Option<Picture> {
    let curve = |(style, group): (usize, FlowGroup<'_>)| {
        let delay = group.runs.first()?.delay.as_ref()?;
        let shares: Vec<(f64, f64)> = delay.curve.iter().map(|(share, us)| (us / 1e3, *share)).collect();
        Some(cdf::of_shares(group.label, style, &shares))
    };
    let name = flow.name();
    let svg = CdfChart {
        title: format!("One-way delay of {name}"),
        measure: Measure::lower_is_better("delay, ms"),
        series: groups(campaign, flow).into_iter().filter_map(curve).collect(),
    }
    .svg()?;
    let caption =
        "The share of the packets that came with at most this delay, beside everything else; first round.";
    Some(Picture {
        name: name.replace(' ', "-"),
        title: format!("One-way delay of {name}"),
        caption: caption.into(),
        svg,
    })
}

fn pages(campaign: &HomeCampaign) -> Option<Picture> {
    let curve = |(style, group): (usize, FlowGroup<'_>)| {
        let mut all: Vec<f64> = group.runs.iter().flat_map(|figures| figures.pages_ms.clone()).collect();
        all.sort_by(f64::total_cmp);
        let count = all.len() as f64;
        let shares: Vec<(f64, f64)> =
            all.iter().zip(1_u32..).map(|(ms, number)| (*ms, f64::from(number) / count)).collect();
        cdf::of_shares(group.label, style, &shares)
    };
    let svg = CdfChart {
        title: "Time of a page".into(),
        measure: Measure::lower_is_better("time until its last byte, ms"),
        series: groups(campaign, Flow::Pages).into_iter().map(curve).collect(),
    }
    .svg()?;
    let caption =
        "The share of the pages that were whole after at most this time, beside everything else; all rounds.";
    Some(Picture { name: "pages".into(), title: "Time of a page".into(), caption: caption.into(), svg })
}
