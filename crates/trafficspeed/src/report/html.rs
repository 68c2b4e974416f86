//! One self-contained HTML page: no script, no font, no picture from anywhere else.
//!
//! Readable on a phone, in dark mode and on paper. The order is that of a paper: result, pictures, figures, set-up,
//! what was published before, definitions.

use std::fmt::Write as _;

use super::chart::{BarChart, Horizontal, LineChart, Point, Series, escape};
use super::summary::{Spread, Summary, labels, summarise};
use super::{gbit, published, significant};
use crate::experiment::outcome::{Campaign, Run, rate};

const STYLE: &str = include_str!("page.css");

/// The page of a campaign.
pub fn html(campaign: &Campaign) -> String {
    let summaries = summarise(campaign);
    let mut page = String::new();
    let title = format!("TrafficSpeed: {}", labels(campaign).join("; "));
    put(
        &mut page,
        &format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>",
            escape(&title)
        ),
    );
    head(&mut page, campaign);
    if campaign.interrupted {
        put(
            &mut page,
            "<p class=\"warning\">Interrupted: the figures are of what was measured until then.</p>",
        );
    }
    problems(&mut page, campaign);
    pictures(&mut page, campaign, &summaries);
    if !summaries.is_empty() {
        put(&mut page, "<h2>Figures</h2>");
        put(&mut page, &figures(&summaries));
    }
    systems(&mut page, campaign);
    pairs(&mut page, campaign);
    environment(&mut page, campaign);
    before(&mut page);
    put(&mut page, "</main>\n</body>\n</html>");
    page
}

fn head(page: &mut String, campaign: &Campaign) {
    let s = &campaign.settings;
    let times = |n: u32| if n == 1 { "once".to_owned() } else { format!("{n} times, systems taking turns") };
    put(page, "<h1>TrafficSpeed</h1>");
    put(
        page,
        &format!(
            "<p class=\"lead\">What a VPN carries as its clients grow. {} TCP connections per pair of clients, half \
             each way, seeded random data, all pairs at once for {} s after {} s of warm-up, IPv{}, measured {}.</p>",
            s.streams,
            s.seconds,
            s.warmup_seconds,
            s.ip,
            times(s.repeats)
        ),
    );
    let environment = &campaign.environment;
    put(
        page,
        &format!(
            "<p class=\"meta\">{} · {} · {} × {} · {}</p>",
            escape(&environment.started),
            escape(&environment.host.system),
            environment.host.cpus,
            escape(&environment.host.cpu),
            escape(&environment.host.program)
        ),
    );
}

fn problems(page: &mut String, campaign: &Campaign) {
    let lines: Vec<String> = campaign
        .runs
        .iter()
        .flat_map(|run| {
            let name = format!("{}, {} clients, run {}", run.label, run.clients, run.repeat);
            run.problems()
                .into_iter()
                .map(move |problem| format!("<li>{}</li>", escape(&format!("{name}: {problem}"))))
        })
        .collect();
    if !lines.is_empty() {
        put(
            page,
            "<h2>What went wrong</h2>\n<p>Runs that did not end in order are left out of the figures.</p>",
        );
        put(page, &format!("<ul class=\"problems\">{}</ul>", lines.join("\n")));
    }
}

fn pictures(page: &mut String, campaign: &Campaign, summaries: &[Summary]) {
    let order = labels(campaign);
    let style = |label: &str| order.iter().position(|known| known == label).unwrap_or(0);
    let throughput = over_clients(
        summaries,
        &style,
        "Communication throughput over clients",
        "communication throughput, Gbit/s",
        |s| Some((gigabits(s.communication), s.repeats > 1)),
    );
    figure(
        page,
        "Communication throughput",
        throughput,
        &format!("Bytes received plus bytes sent by all clients, per second. {}", ranges_note(summaries)),
    );
    let efficiency = over_clients(
        summaries,
        &style,
        "Goodput per CPU second of the gateway",
        "Gbit per CPU second of the gateway",
        |s| {
            let value = s.gbit_per_gateway_second?;
            Some((Spread { median: value, low: value, high: value }, false))
        },
    );
    figure(
        page,
        "Cost at the gateway",
        efficiency,
        "Goodput that went through the tunnel, per CPU second (user and system) of the gateway's VPN \
        processes: higher is cheaper. Plain routing has no process to count.",
    );
    figure(
        page,
        "Over time",
        over_time(campaign, &style),
        "Goodput of every second, all clients together, first run \
        at the largest number of clients.",
    );
}

fn ranges_note(summaries: &[Summary]) -> &'static str {
    if summaries.iter().any(|s| s.repeats > 1) {
        "Medians of the repeats, with whiskers from their lowest to their highest."
    } else {
        "One run each, so no spread is shown."
    }
}

fn figure(page: &mut String, title: &str, svg: Option<String>, caption: &str) {
    if let Some(svg) = svg {
        put(page, &format!("<h2>{title}</h2>\n<figure>\n{svg}<figcaption>{caption}</figcaption>\n</figure>"));
    }
}

fn gigabits(spread: Spread) -> Spread {
    Spread { median: spread.median / 1e9, low: spread.low / 1e9, high: spread.high / 1e9 }
}

/// A curve over the client counts, or bars if there is but one.
fn over_clients(
    summaries: &[Summary],
    style: &dyn Fn(&str) -> usize,
    title: &str,
    label: &str,
    value: impl Fn(&Summary) -> Option<(Spread, bool)>,
) -> Option<String> {
    let mut counts: Vec<u32> = summaries.iter().map(|s| s.clients).collect();
    counts.sort_unstable();
    counts.dedup();
    let point = |s: &Summary| {
        let (spread, ranged) = value(s)?;
        let range = ranged.then_some((spread.low, spread.high));
        Some(Point { x: f64::from(s.clients), y: spread.median, range })
    };
    if let [only] = counts[..] {
        let bar = |s: &Summary| Some((s.label.clone(), style(&s.label), point(s)?));
        let bars = summaries.iter().filter_map(bar).collect();
        return BarChart { title: title.into(), x_label: format!("{label}, at {only} clients"), bars }.svg();
    }
    let mut series: Vec<Series> = Vec::new();
    for summary in summaries {
        let Some(point) = point(summary) else { continue };
        match series.iter_mut().find(|series| series.label == summary.label) {
            Some(series) => series.points.push(point),
            None => {
                let (label, style) = (summary.label.clone(), style(&summary.label));
                series.push(Series { label, style, points: vec![point] });
            }
        }
    }
    LineChart {
        title: title.into(),
        x_label: "clients (two are a pair)".into(),
        y_label: label.into(),
        horizontal: Horizontal::Doubling(counts.into_iter().map(f64::from).collect()),
        series,
    }
    .svg()
}

fn over_time(campaign: &Campaign, style: &dyn Fn(&str) -> usize) -> Option<String> {
    let most = campaign.runs.iter().filter(|run| run.is_whole()).map(|run| run.clients).max()?;
    let mut series: Vec<Series> = Vec::new();
    let mut end = 0.0_f64;
    for run in
        campaign.runs.iter().filter(|run| run.is_whole() && run.clients == most && run.intervals.len() > 2)
    {
        if series.iter().any(|series| series.label == run.label) {
            continue;
        }
        // A last, shorter second would show as a drop that never was.
        let whole = (campaign.settings.seconds.floor() as usize).min(run.intervals.len());
        let points: Vec<Point> = run.intervals[..whole]
            .iter()
            .zip(1_u32..)
            .map(|(interval, second)| Point {
                x: f64::from(second),
                y: rate(interval.received, 1.0) / 1e9,
                range: None,
            })
            .collect();
        end = end.max(whole as f64);
        series.push(Series { label: run.label.clone(), style: style(&run.label), points });
    }
    LineChart {
        title: "Goodput over time".into(),
        x_label: format!("seconds since the end of the warm-up, {most} clients"),
        y_label: "goodput, Gbit/s".into(),
        horizontal: Horizontal::Linear(end),
        series,
    }
    .svg()
}

fn figures(summaries: &[Summary]) -> String {
    let head = [
        "System",
        "Clients",
        "Communication, Gbit/s",
        "Lowest–highest",
        "Goodput, Gbit/s",
        "Of plain routing",
        "Fairness, streams",
        "Fairness, pairs",
        "Gateway CPUs",
        "Client CPUs",
        "Gbit per gateway CPU s",
        "Machine busy",
        "Steal",
    ];
    let optional =
        |value: Option<f64>, unit: &str| value.map_or("–".into(), |v| format!("{}{unit}", significant(v)));
    let rows = summaries.iter().map(|s| {
        let cpu = |value: Option<f64>| optional(value.filter(|_| s.gbit_per_gateway_second.is_some()), "");
        let (low, high) = (gbit(s.communication.low), gbit(s.communication.high));
        vec![
            s.label.clone(),
            s.clients.to_string(),
            gbit(s.communication.median),
            if s.repeats > 1 { format!("{low}–{high}") } else { "–".into() },
            gbit(s.goodput.median),
            optional(s.ratio_to_plain.map(|ratio| 100.0 * ratio.median), " %"),
            optional(s.stream_fairness, ""),
            optional(s.pair_fairness, ""),
            cpu(s.gateway_cpus),
            cpu(s.client_cpus),
            optional(s.gbit_per_gateway_second, ""),
            optional(s.busy_percent, " %"),
            optional(s.steal_percent, " %"),
        ]
    });
    let definitions = super::table::DEFINITIONS.lines().map(|line| format!("{}<br>\n", escape(line)));
    format!("{}<p class=\"note\">{}</p>", table(&head, rows), definitions.collect::<String>())
}

fn systems(page: &mut String, campaign: &Campaign) {
    let rows: Vec<Vec<String>> = labels(campaign)
        .into_iter()
        .filter_map(|label| {
            let run = campaign.runs.iter().find(|run| run.label == label && run.is_whole())?;
            let facts = &run.facts;
            let mtu = facts.mtu.map_or("–".into(), |mtu| mtu.to_string());
            Some(vec![label, facts.version.clone(), facts.cipher.clone(), mtu, facts.notes.join("; ")])
        })
        .collect();
    if !rows.is_empty() {
        put(page, "<h2>Systems</h2>");
        let body = table(&["System", "Version", "Cipher in use", "MTU", "Notes"], rows);
        put(page, &format!("<div class=\"prose\">{body}</div>"));
    }
}

/// Per pair, for the first whole run of each system at its largest number of clients.
fn pairs(page: &mut String, campaign: &Campaign) {
    let mut rows = Vec::new();
    for label in labels(campaign) {
        let whole = campaign.runs.iter().filter(|run| run.label == label && run.is_whole());
        // The first of the largest, so not `max_by_key`, which finds the last.
        if let Some(run) = whole.rev().max_by_key(|run| run.clients) {
            rows.extend(pair_rows(run));
        }
    }
    if !rows.is_empty() {
        put(
            page,
            "<h2>Pairs</h2>\n<details open><summary>Each pair of the first run at the largest number of clients</summary>",
        );
        put(
            page,
            &table(
                &["System", "Pair", "Goodput, Gbit/s", "Slowest stream, Mbit/s", "Fastest stream, Mbit/s"],
                rows,
            ),
        );
        put(page, "</details>");
    }
}

fn pair_rows(run: &Run) -> Vec<Vec<String>> {
    run.pairs
        .iter()
        .map(|pair| {
            let rates: Vec<f64> = pair.streams().iter().map(|stream| stream.bits_per_second / 1e6).collect();
            let (slowest, fastest) = super::stats::range(&rates).unwrap_or_default();
            vec![
                run.label.clone(),
                format!("{} = {}", pair.ends[0].name, pair.ends[1].name),
                gbit(pair.goodput()),
                significant(slowest),
                significant(fastest),
            ]
        })
        .collect()
}

fn environment(page: &mut String, campaign: &Campaign) {
    let e = &campaign.environment;
    let s = &campaign.settings;
    let mut rows = vec![
        ("Command", format!("<code>{}</code>", escape(&e.command_line))),
        ("Program", escape(&e.host.program)),
        ("Kernel", escape(&e.host.system)),
        ("CPU", format!("{} × {}", e.host.cpus, escape(&e.host.cpu))),
        ("CPU flags for ciphers", escape(&e.cpu_flags.join(" "))),
        ("Memory", format!("{} MiB", e.memory_mib)),
        ("Links", escape(e.links.as_deref().unwrap_or("real network"))),
        ("Congestion control", escape(&s.congestion)),
        ("Bytes per send call", s.write_bytes.to_string()),
        ("Generator threads per host", s.threads.to_string()),
        (
            "Payload",
            format!(
                "random bytes, seed {}, {}",
                s.seed,
                if s.verify { "every received byte checked" } else { "discarded unread by the receiver" }
            ),
        ),
    ];
    rows.extend(e.sysctls.iter().map(|(name, value)| (name.as_str(), escape(value))));
    put(page, "<h2>Set-up</h2>\n<table class=\"facts\">");
    for (name, value) in rows {
        put(page, &format!("<tr><th scope=\"row\">{}</th><td>{value}</td></tr>", escape(name)));
    }
    put(page, "</table>");
}

fn before(page: &mut String) {
    put(page, "<h2>What was published before</h2>");
    put(
        page,
        &format!(
            "<p class=\"note\">{}. Text for comparison, not results of this run.</p>",
            escape(published::SOURCE)
        ),
    );
    let findings: Vec<String> =
        published::FINDINGS.iter().map(|line| format!("<li>{}</li>", escape(line))).collect();
    put(page, &format!("<ul>{}</ul>", findings.join("\n")));
}

fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut text = String::from("<div class=\"wide\"><table><thead><tr>");
    for cell in head {
        write!(text, "<th scope=\"col\">{}</th>", escape(cell)).expect("writing to a string");
    }
    text.push_str("</tr></thead><tbody>\n");
    for row in rows {
        text.push_str("<tr>");
        for cell in row {
            write!(text, "<td>{}</td>", escape(&cell)).expect("writing to a string");
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</tbody></table></div>");
    text
}

fn put(page: &mut String, text: &str) {
    page.push_str(text);
    page.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::samples;

    #[test]
    fn the_page_stands_alone_and_holds_pictures_figures_set_up_and_the_publication() {
        let page = html(&samples::campaign());
        assert_eq!(page.matches("<svg").count(), 2, "two curves; two seconds make no time series");
        for expected in
            ["Communication throughput", "16.3", "Congestion control", "PacketiX", "Text for comparison"]
        {
            assert!(page.contains(expected), "{expected} is missing");
        }
        for outside in ["<script", "src=", "href=", "@import", "url("] {
            assert!(!page.contains(outside), "the page needs nothing from elsewhere, but has {outside}");
        }
    }

    #[test]
    fn text_from_systems_is_escaped_and_failures_are_shown() {
        let page = html(&samples::campaign());
        assert!(page.contains("vpnd &lt;did&gt; not come up &amp; &quot;died&quot;"));
        assert!(!page.contains("<did>"));
    }

    #[test]
    fn one_client_count_makes_bars_and_longer_runs_a_time_series() {
        let mut campaign = samples::campaign();
        campaign.runs.retain(|run| run.clients == 8);
        campaign.settings.seconds = 5.0;
        for run in &mut campaign.runs {
            run.intervals = vec![run.intervals[0]; 5];
        }
        let page = html(&campaign);
        assert!(page.contains("at 8 clients") && page.contains("class=\"bar s1\""));
        assert_eq!(page.matches("<svg").count(), 3);
    }
}
