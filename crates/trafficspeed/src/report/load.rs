//! The report of the generators' own commands.

pub mod clients;
pub mod pictures;
pub mod searched;

use super::document::Document;
use super::noise::TAKEN;
use super::observed::{self, Section};
use crate::experiment::generate::{LoadCampaign, LoadRun, NamedTask};
use crate::experiment::problems::said_once;
use crate::experiment::quantities as q;
use crate::load::task::Task;
use crate::unit::{Unit, rate, significant};

/// Less than this share of the messages that a rate asked for is said, in percent.
const LEAST_DELIVERED: f64 = 99.0;

/// Stands below the table.
const DEFINITIONS: &str = "\
Received: payload that arrived per second.
Lost, reordered (RFC 4737), jitter (RFC 3550): by the messages' numbers and time stamps.
Delay: one way for messages, the round trip for requests; 50 % and 99 % of them were at most this long.
Up to 10,000 datagrams per second at a rate each leaves when it is due and its delay counts from then; else, and over \
TCP, it counts from when it was sent.
The lab has one clock; real hosts' clocks are compared before each measurement, and a delay is known as well as both \
of them together.
Variation: the difference of every two neighbouring messages' delays (RFC 3393), of which jitter is the smoothed value \
at the end.
Delivered: of the messages that the rate asked for.
CPU: of one CPU, of the gateway's VPN, the clients' VPN, and the generator (both ends).";

/// The report of a campaign, rates in `unit`.
pub fn document(campaign: &LoadCampaign, unit: Option<Unit>) -> Document<'_> {
    let settings = &campaign.settings;
    let names: Vec<&str> = settings.tasks.iter().map(|named| named.name.as_str()).collect();
    let several = clients::title(campaign).map_or_else(String::new, |title| format!(" {title}."));
    let lead = format!(
        "{} through each system, {} s after {} s of warm-up, IPv{}.{several}",
        names.join(", "),
        settings.seconds,
        settings.warmup_seconds,
        settings.ip
    );
    let title = match settings.clients {
        1 => format!("trafficspeed {}", campaign.command),
        clients => format!("trafficspeed {}, {clients} clients", campaign.command),
    };
    let mut document = Document::new(&title, "trafficspeed", lead, &campaign.environment);
    document.interrupted = campaign.interrupted;
    document.problems = problems(&campaign.runs);
    let (table, compared) = (campaign.observations(), campaign.compared());
    document.lines(observed::claims(&table, &compared));
    document.pictures(pictures::pictures(campaign));
    let sections = sections(campaign, unit);
    if !sections.is_empty() {
        document.sections(sections);
        for words in [observed::MEDIANS, DEFINITIONS, TAKEN, observed::RATIOS] {
            document.words(words);
        }
        if settings.clients > 1 {
            document.words(clients::DEFINITIONS);
        }
    }
    document.remarks(observed::remarks(&table, &compared, unit));
    document.lines(campaign.runs.iter().flat_map(|run| notes(campaign, run)).collect());
    let hosts = campaign.runs.first().map(|run| &run.hosts[..]).unwrap_or_default();
    let hosts = hosts.iter().zip(["Near host", "Far host"]);
    document.set_up = hosts.map(|(host, name)| (name.to_owned(), host.words())).collect();
    document
}

fn problems(runs: &[LoadRun]) -> Vec<String> {
    let of_run = |run: &LoadRun| {
        let (label, place) = (run.label.clone(), format!("run {}", run.repeat));
        run.problems().into_iter().map(move |problem| (label.clone(), place.clone(), problem))
    };
    said_once(runs.iter().flat_map(of_run))
}

/// The tables that have rows.
fn sections(campaign: &LoadCampaign, unit: Option<Unit>) -> Vec<Section> {
    let table = campaign.observations();
    let figures = [
        q::RECEIVED,
        q::PACKETS,
        q::TRANSACTIONS,
        q::DELAY_50,
        q::DELAY_99,
        q::LOST,
        q::DELIVERED,
        q::JITTER,
        q::VARIATION_50,
        q::VARIATION_95,
        q::VARIATION_99,
        q::OUT_OF_ORDER,
        q::GATEWAY_CPU,
        q::CLIENT_CPU,
        q::GENERATOR_CPU,
        q::STEAL,
        q::OTHERS,
    ];
    let comparisons = table.comparisons(&campaign.compared());
    observed::sections([
        ("Figures", observed::grid(&table, &campaign.cases(), &figures, unit)),
        ("Differences", observed::differences(&comparisons)),
        (searched::TITLE, searched::grid(campaign)),
    ])
}

/// Remarks on a run.
fn notes(campaign: &LoadCampaign, run: &LoadRun) -> Vec<String> {
    let (name, mut lines) = (format!("{}, run {}", run.label, run.repeat), Vec::new());
    let mut say = |line: String| lines.push(format!("{name}: {line}"));
    clients::shares(campaign, run).into_iter().for_each(&mut say);
    if let Some(search) = &run.search {
        let limit = if search.limited_by_sender { "; the generator could not send more" } else { "" };
        let lowered = match search.steps_down {
            0 => String::new(),
            steps => format!(" and lowered {steps} times, since measurements lost more than trials"),
        };
        say(format!(
            "highest rate without more loss than allowed: {:.0} packets/s ({}), found with {} trials{limit}{lowered}; the row \
             above was measured at that rate afterwards",
            search.packets_per_second,
            rate(None, search.bits_per_second),
            search.trials.len(),
        ));
    }
    for lateness in run.figures.iter().filter_map(|figures| figures.lateness.as_ref()) {
        say(format!(
            "delays, jitter and variation count from when a message was due; 99 % left at most {} µs after that, the last one {} µs",
            significant(lateness.p99_us),
            significant(lateness.max_us),
        ));
    }
    for unanswered in run.figures.iter().filter_map(|figures| figures.timeouts.filter(|count| *count > 0)) {
        say(format!(
            "{unanswered} requests were not answered in time, or not at all when the measurement ended"
        ));
    }
    // One whose messages leave when they are due skips none; of several clients only the task says
    // so.
    let skips = |named: &&NamedTask| matches!(&named.task, Task::Messages(work) if work.open_loop.is_none());
    let tasks = campaign.settings.tasks.iter().zip(&run.figures);
    let paced = tasks.filter(|(named, _)| skips(named));
    for delivered in paced.filter_map(|(_, figures)| figures.delivered_percent) {
        if delivered < LEAST_DELIVERED {
            say(format!(
                "only {delivered:.1} % of the messages that the rate asked for arrived; `lost` counts those that were sent, and \
                 a sender that gets no CPU skips some"
            ));
        }
    }
    if run.generator_drops > 0 {
        say(format!(
            "{} datagrams arrived but were dropped because the generator was too slow",
            run.generator_drops
        ));
    }
    let others = run.socket_drops.saturating_sub(run.generator_drops);
    if others > 0 {
        say(format!(
            "{others} datagrams were dropped at full sockets that are not the generator's, such as the VPN's"
        ));
    }
    run.hosts.iter().for_each(|host| say(host.words()));
    lines
}

#[cfg(test)]
pub(crate) mod samples {
    use super::*;
    use crate::experiment::environment::Environment;
    use crate::experiment::figures::Figures;
    use crate::experiment::generate::LoadSettings;
    use crate::experiment::outcome::CpuUse;
    use crate::load::delays::DelaySummary;
    use crate::load::message::Messages;

    use crate::observe::HostCpu;

    /// Two systems, measured three times each, the first of which was once at a third of its rate
    /// in bit/s.
    pub(crate) fn campaign(rate: f64) -> LoadCampaign {
        let task = Task::Messages(Messages {
            length: 1_200,
            bits_per_second: Some(13_000_000),
            ..Messages::default()
        });
        let delay = DelaySummary { p50_us: 12_345.6, p99_us: 1_234_567.8, ..DelaySummary::default() };
        let figures = |rate: f64| Figures {
            received_bits_per_second: rate,
            received_per_second: Some(rate / 9_600.0),
            lost_percent: Some(12.345_678),
            delivered_percent: Some(87.654_321),
            reordered: Some(123_456_789),
            jitter_us: Some(1_234.5),
            variation: Some(delay.clone()),
            delay: Some(delay.clone()),
            ..Figures::default()
        };
        let cpu = CpuUse {
            gateway: 1.23,
            gateway_wakes: 1,
            client_wakes: 1,
            clients: 1.23,
            generators: 1.23,
            generator_ends: [0.61, 0.62],
            foreign: 1.0,
            host: HostCpu { steal: 1.0, idle: 8.0, user: 1.0, ..HostCpu::default() },
            seconds: 1.0,
        };
        let run = |label: &str, repeat: u32, rate: f64| LoadRun {
            label: label.into(),
            repeat,
            figures: vec![figures(rate)],
            cpu: Some(cpu),
            ..LoadRun::default()
        };
        LoadCampaign {
            command: "udp".into(),
            settings: LoadSettings {
                far: None,
                clients: 1,
                congestion: Vec::new(),
                ip: 4,
                seconds: 1.0,
                warmup_seconds: 0.1,
                interval_seconds: 1.0,
                tasks: vec![NamedTask { name: "UDP from the client".into(), task }],
                search_loss_percent: None,
            },
            environment: Environment::default(),
            runs: (1..=3)
                .flat_map(|repeat| {
                    let first = if repeat == 2 { rate / 3.0 } else { rate + f64::from(repeat) };
                    [run("vpnd, aes-256-gcm", repeat, first), run("plain routing", repeat, rate)]
                })
                .collect(),
            interrupted: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::generate::search::SearchOutcome;
    use crate::load::delays::DelaySummary;
    use crate::load::message::open_loop::OpenLoop;

    #[test]
    fn repeats_are_one_row_with_their_spread_and_what_shared_the_machine() {
        let text = document(&samples::campaign(3e9), None).text(false, true);
        for expected in [
            "3.00 (1.00–3.00) Gbit/s",
            "12.346 (12.346–12.346)",
            "12.3 (12.3–12.3) ms",
            "only 87.7 % of the messages",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        let line = "Look at vpnd, aes-256-gcm, UDP from the client, received: 1.00 Gbit/s is far from the median of 3.00 Gbit/s";
        assert!(text.contains(line), "{text}");
        assert_eq!(text.matches("Look at").count(), 1);
    }

    #[test]
    fn only_drops_at_its_own_sockets_are_said_to_be_the_generators() {
        let mut campaign = samples::campaign(3e9);
        (campaign.runs[0].socket_drops, campaign.runs[0].generator_drops) = (7, 2);
        campaign.runs[1].socket_drops = 9;
        let text = document(&campaign, None).text(true, true);
        for expected in [
            "2 datagrams arrived but",
            "5 datagrams were dropped at full",
            "9 datagrams were dropped at full",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert_eq!(text.matches("the generator was too slow").count(), 1, "{text}");
    }

    #[test]
    fn notes_report_lateness_and_unanswered_requests() {
        let mut campaign = samples::campaign(3e9);
        let run = &mut campaign.runs[0];
        run.search =
            Some(SearchOutcome { packets_per_second: 950.0, steps_down: 2, ..SearchOutcome::default() });
        run.figures[0].lateness =
            Some(DelaySummary { p99_us: 70.0, max_us: 900.0, ..DelaySummary::default() });
        run.figures[0].timeouts = Some(3);
        let text = document(&campaign, None).text(true, true);
        for expected in [
            "950 packets/s",
            "lowered 2 times",
            "99 % left at most 70.0 µs after that, the last one 900 µs",
            "3 requests were not answered",
        ] {
            assert_eq!(text.matches(expected).count(), 1, "{expected}: {text}");
        }
    }

    #[test]
    fn only_closed_loop_senders_are_reported_to_skip() {
        let mut campaign = samples::campaign(3e9);
        campaign.runs.iter_mut().for_each(|run| run.figures[0].delivered_percent = Some(50.0));
        let says = |campaign: &LoadCampaign| {
            document(campaign, None).text(true, true).contains("gets no CPU skips some")
        };
        assert!(says(&campaign));
        let Task::Messages(work) = &mut campaign.settings.tasks[0].task else { panic!("messages") };
        work.open_loop = Some(OpenLoop::EVEN);
        assert!(!says(&campaign), "each left when it was due");
    }

    #[test]
    fn broken_runs_are_shown_only_where_there_are_no_others_and_marked() {
        let mut campaign = samples::campaign(3e9);
        campaign.runs[0].error = Some("gone".into());
        let rows = |campaign: &LoadCampaign| {
            let grid = sections(campaign, None).remove(0).grid;
            grid.rows.iter().map(|row| row[..4].join("|")).collect::<Vec<_>>()
        };
        let load = "UDP from the client";
        assert_eq!(
            rows(&campaign),
            [
                format!("vpnd, aes-256-gcm|{load}|2|2.00 (1.00–3.00) Gbit/s"),
                format!("plain routing|{load}|3|3.00 (3.00–3.00) Gbit/s"),
            ]
        );
        campaign.runs.iter_mut().for_each(|run| run.stopped_early = true);
        assert!(rows(&campaign).iter().all(|row| row.ends_with("Gbit/s !") && row.contains("|3|")));
        assert_eq!(sections(&campaign, None).len(), 1, "and nothing is compared");
        let text = document(&campaign, None).text(true, true);
        assert!(text.contains("!: of measurements that broke"), "{text}");
    }

    #[test]
    fn csv_names_the_clients_of_a_figure_and_the_limit_of_a_search() {
        let mut campaign = samples::campaign(3e9);
        campaign.settings.clients = 8;
        let limited_by_sender = true;
        campaign.runs[0].search = Some(SearchOutcome { limited_by_sender, ..SearchOutcome::default() });
        let shown = document(&campaign, None).text(true, true);
        assert!(shown.contains("≥ 3.00 (1.00–3.00) Gbit/s"), "{shown}");
        let text = observed::csv([(campaign.observations(), &campaign.environment)]);
        let received = "plain routing,\"UDP from the client, 8 clients\",1,received,bit/s,3000000000,,cubic,";
        assert_eq!(text.matches(received).count(), 1, "{text}");
        assert_eq!(text.matches(",searches that the sender limited,,1,,").count(), 1, "{text}");
    }
}
