//! The page of a campaign. The order is that of a paper: result, pictures, figures, systems,
//! set-up, what was published before beside ours, definitions.

use super::grid::Grid;
use super::headline;
use super::page::Page;
use super::pictures::pictures;
use super::problems::problems;
use super::summary::{Summary, baseline, labels, summarise};
use super::systems::{System, common_buffers, systems};
use super::{published, table};
use crate::experiment::environment::Environment;
use crate::experiment::outcome::{Campaign, RemoteEnd, Run};
use crate::unit::{Unit, gbit, significant};

/// The page of a campaign.
pub fn html(campaign: &Campaign) -> String {
    let summaries = summarise(campaign);
    let title = format!("TrafficSpeed: {}", labels(campaign).join("; "));
    let mut page = Page::new(&title, "TrafficSpeed", &lead(campaign, &summaries));
    let environment = &campaign.environment;
    let host = &environment.host;
    let meta =
        [environment.started.clone(), host.system.clone(), processor(environment), host.program.clone()];
    page.paragraph("meta", &meta.join(" · "));
    page.paragraph("meta", &environment.machine());
    if campaign.interrupted {
        page.paragraph("warning", "Interrupted: the figures are of what was measured until then.");
    }
    page.list("", &headline::sentences(campaign));
    let missing = headline::missing(campaign);
    if !missing.is_empty() {
        page.list("problems", &missing);
    }
    let problems = problems(campaign);
    if !problems.is_empty() {
        page.section("What went wrong");
        page.paragraph(
            "",
            "Measurements that did not end in order or were rejected are left out of the figures.",
        );
        page.folded("problems", &counted(problems.len(), "problem"), &problems);
    }
    pictures(campaign).iter().for_each(|picture| page.figure(picture));
    if !summaries.is_empty() {
        page.section("Figures");
        figures(&mut page, campaign, &summaries);
    }
    described(&mut page, &systems(campaign));
    common_buffers(campaign).iter().for_each(|line| page.paragraph("note", line));
    pairs(&mut page, campaign);
    set_up(&mut page, campaign);
    before(&mut page, campaign, &summaries);
    page.finish()
}

/// So many of something.
pub(super) fn counted(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// How often it was measured, of the results that there are: fewer than were asked for where
/// measurements failed, or were never made.
fn times(asked: u32, summaries: &[Summary]) -> String {
    let found = || summaries.iter().map(|summary| summary.repeats);
    match (found().min().unwrap_or(0), found().max().unwrap_or(0)) {
        (1, 1) if asked == 1 => "once".to_owned(),
        (least, most) if least == asked && most == asked => format!("{asked} times, systems taking turns"),
        (least, most) if least == most => format!("{most} of {asked} times, systems taking turns"),
        (least, most) => format!("{least} to {most} of {asked} times, systems taking turns"),
    }
}

fn lead(campaign: &Campaign, summaries: &[Summary]) -> String {
    let s = &campaign.settings;
    let times = times(s.repeats, summaries);
    let pair = match s.far {
        RemoteEnd::Client => "pair of clients",
        RemoteEnd::Gateway => {
            "client with its partner behind the gateway (every byte crosses the tunnel once)"
        }
    };
    format!(
        "What a VPN carries as its clients grow. {} TCP connections per {pair}, half each way, seeded random \
         data, all pairs at once for {} s after {} s of warm-up, IPv{}, measured {times}.",
        s.streams, s.seconds, s.warmup_seconds, s.ip
    )
}

fn processor(environment: &Environment) -> String {
    format!("{} × {}", environment.host.cpus, environment.host.cpu)
}

/// The same tables as in a terminal.
fn figures(page: &mut Page, campaign: &Campaign, summaries: &[Summary]) {
    let put = |page: &mut Page, grid: Grid| {
        page.table(&grid.head.iter().map(String::as_str).collect::<Vec<_>>(), grid.rows);
    };
    put(page, table::grid(summaries, Unit::Gbit));
    page.notes(table::DEFINITIONS.lines());
    if table::has_limit(summaries) {
        page.notes(table::LIMIT.lines());
    }
    let outliers = table::outliers(campaign, summaries, Unit::Gbit);
    if !outliers.is_empty() {
        page.list("problems", &outliers);
    }
    if campaign.baseline.is_some()
        || summaries.iter().any(|s| s.control.is_some() || s.ratio_to_plain.is_some())
    {
        page.section("Ratios");
        put(page, table::ratios(summaries, baseline(campaign).as_deref()));
        page.notes(table::RATIOS.lines());
    }
}

fn described(page: &mut Page, systems: &[System]) {
    if systems.is_empty() {
        return;
    }
    page.section("Systems");
    let rows = systems.iter().map(|system| {
        let mtu: Vec<String> = system.mtu.iter().map(u32::to_string).collect();
        let mtu = if mtu.is_empty() { "–".into() } else { mtu.join("; ") };
        let (version, cipher) = (system.version.clone(), system.cipher.clone());
        vec![system.label.clone(), version, cipher, mtu, system.notes.join("; ")]
    });
    page.texts(&["System", "Version", "Cipher in use", "MTU", "Notes"], rows);
    let programs = systems.iter().flat_map(|system| {
        system.programs.iter().map(|program| {
            let (role, command) = (program.role.clone(), program.command.clone());
            vec![system.label.clone(), role, command, program.sha256.clone()]
        })
    });
    let programs: Vec<Vec<String>> = programs.collect();
    if !programs.is_empty() {
        page.texts(&["System", "Where", "Command line", "SHA-256 of the executable"], programs);
    }
}

/// Per pair, for the first whole run of each system at its largest number of clients.
fn pairs(page: &mut Page, campaign: &Campaign) {
    let mut rows = Vec::new();
    for label in labels(campaign) {
        let whole = campaign.runs.iter().filter(|run| run.label == label && run.is_whole());
        // The first of the largest, so not `max_by_key`, which finds the last.
        if let Some(run) = whole.rev().max_by_key(|run| run.clients) {
            rows.extend(pair_rows(run));
        }
    }
    if !rows.is_empty() {
        page.section("Pairs");
        page.paragraph("note", "Each pair of the first run at the largest number of clients.");
        page.table(
            &["System", "Pair", "Goodput, Gbit/s", "Slowest stream, Mbit/s", "Fastest stream, Mbit/s"],
            rows,
        );
    }
}

fn pair_rows(run: &Run) -> impl Iterator<Item = Vec<String>> {
    run.pairs.iter().map(|pair| {
        let rates: Vec<f64> = pair.streams().iter().map(|stream| stream.bits_per_second / 1e6).collect();
        let (slowest, fastest) = crate::stats::range(&rates).unwrap_or_default();
        vec![
            run.label.clone(),
            format!("{} = {}", pair.ends[0].name, pair.ends[1].name),
            gbit(pair.goodput()),
            significant(slowest),
            significant(fastest),
        ]
    })
}

fn set_up(page: &mut Page, campaign: &Campaign) {
    let s = &campaign.settings;
    let payload = if s.verify { "every received byte checked" } else { "discarded unread by the receiver" };
    page.section("Set-up");
    let rows = [
        ("Congestion control", s.congestion.to_string()),
        ("Bytes per send call", s.write_bytes.to_string()),
        ("Generator threads per host", s.threads.to_string()),
        ("Payload", format!("random bytes, seed {}, {payload}", s.seed)),
    ];
    machine(page, &campaign.environment, rows);
}

/// When and where it was measured, and what went wrong.
pub(super) fn opening(page: &mut Page, environment: &Environment, interrupted: bool, problems: &[String]) {
    page.paragraph("meta", &environment.started);
    page.paragraph("meta", &environment.machine());
    if interrupted {
        page.paragraph("warning", "Interrupted: the figures are of what was measured until then.");
    }
    if !problems.is_empty() {
        page.section("What went wrong");
        page.list("problems", problems);
    }
}

/// The command, the machine, and what else belongs to the set-up of an experiment.
pub(super) fn machine<'a>(
    page: &mut Page,
    e: &Environment,
    more: impl IntoIterator<Item = (&'a str, String)>,
) {
    page.paragraph("note", "The command that made these measurements:");
    page.commands(std::slice::from_ref(&e.command_line));
    let rows = [
        ("Program", e.host.program.clone()),
        ("Kernel", e.host.system.clone()),
        ("CPU", processor(e)),
        ("CPU flags that matter here", e.cpu_flags.join(" ")),
        ("Memory", format!("{} MiB", e.memory_mib)),
        ("Links and offloads", e.links.clone().unwrap_or_else(|| "real network".into())),
    ];
    let rows = rows.into_iter().chain(more).map(|(name, value)| (name.to_owned(), value));
    page.facts(rows.chain(e.sysctls.iter().cloned()));
}

fn before(page: &mut Page, campaign: &Campaign, summaries: &[Summary]) {
    page.section("What was published before");
    page.paragraph("note", &format!("{}. Text for comparison, not results of this run.", published::SOURCE));
    page.list("", &published::FINDINGS.map(str::to_owned));
    let rows = published::beside(campaign, summaries);
    if !rows.is_empty() {
        page.texts(&["Finding", "Then", "Here"], rows.into_iter().map(Vec::from));
    }
}

#[cfg(test)]
mod tests {
    use super::super::chart::markup::assert_well_formed;
    use super::*;
    use crate::experiment::outcome::samples;

    #[test]
    fn the_page_stands_alone_and_holds_pictures_figures_set_up_and_the_publication() {
        let mut campaign = samples::campaign();
        campaign.baseline = Some("vpnd, aes-256-gcm".into());
        campaign.environment.command_line = "trafficspeed compare --clients '2 & 4'".into();
        let page = html(&campaign);
        assert_well_formed(&page);
        assert_eq!(page.matches("<svg").count(), 6);
        for expected in [
            "Communication throughput",
            "16.3",
            "0.337–0.343",
            "of vpnd, aes-256-gcm",
            "Congestion control",
            "--clients &#39;2 &amp; 4&#39;",
            "PacketiX",
            "Text for comparison",
        ] {
            assert!(page.contains(expected), "{expected} is missing");
        }
        // The name of SVG's own language is no place to load anything from.
        let page = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for outside in
            ["<script", "<link", "<img", "<iframe", "src=", "href=", "@import", "url(", "http:", "https:"]
        {
            assert!(!page.contains(outside), "the page needs nothing from elsewhere, but has {outside}");
        }
    }

    #[test]
    fn the_lead_says_how_often_it_was_measured_not_how_often_it_was_to_be() {
        let mut campaign = samples::campaign();
        assert!(html(&campaign).contains("measured 3 times, systems taking turns."));
        campaign.settings.repeats = 5;
        assert!(html(&campaign).contains("measured 3 of 5 times, systems"));
        campaign.runs.retain(|run| run.repeat == 1 || run.clients == 2);
        assert!(html(&campaign).contains("measured 1 to 3 of 5 times, systems"));
        campaign.settings.repeats = 1;
        campaign.runs.retain(|run| run.repeat == 1);
        assert!(html(&campaign).contains("measured once."));
    }

    #[test]
    fn text_from_systems_is_escaped_and_failures_are_shown() {
        let page = html(&samples::campaign());
        assert!(page.contains("vpnd &lt;did&gt; not come up &amp; &quot;died&quot;"));
        assert!(!page.contains("<did>"));
    }

    #[test]
    fn a_page_of_nothing_is_still_a_page() {
        let mut campaign = samples::campaign();
        campaign.runs.clear();
        campaign.interrupted = true;
        let page = html(&campaign);
        assert_well_formed(&page);
        assert!(page.contains("Interrupted") && !page.contains("<svg"));
    }
}
