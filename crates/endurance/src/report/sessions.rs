//! The figures of many sessions, for people.

use std::fmt::Write as _;

use crate::experiment::sessions::Restart;
use crate::experiment::sessions::results::{Beside, PairRates, Phase, Restarted, SessionsResults};
use trafficspeed::experiment::outcome::Taken;
use trafficspeed::report::grid::{Grid, NARROW, wrapped};
use trafficspeed::report::noise::percent;
use trafficspeed::stats::Spread;
use trafficspeed::unit::{gbit, significant};

/// Stands below the table.
const DEFINITIONS: &str = "\
Up: the gateway answered in a session's new keys; answered: a packet then went through its tunnel and back.
Until all: from the first login, or from the end of the old gateway. ms: from a connection's first datagram until it was up.
CPU each: CPU milliseconds of the gateway, user and system, for each new epoch. Each storm is a single one (n = 1): what differs from
one to the next is in no figure; repeat the command to see it.
Steal, others: of the machine's CPU time, what the hypervisor took and what processes without a part in it used, until all were up: from
the first login, from before an upgrade, or from when a restarted gateway was there.";

/// Limits promised for WireGuard devices: the gateway's memory for an idle one, KiB, and the time
/// until all are back after a restart, seconds.
const DEVICE_KIB: f64 = 16.0;
const BACK_SECONDS: f64 = 5.0;

/// The figures as text, no line longer than a terminal.
pub fn table(results: &SessionsResults) -> String {
    wrapped(&text(results), NARROW)
}

fn text(results: &SessionsResults) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        writeln!(text, "{words}").expect("writing to a string");
    };
    line(grid(results).text(Some(NARROW)));
    line(DEFINITIONS.into());
    line(format!(
        "{} {} of {} users in {} processes; gateway: {}",
        results.count,
        if results.wireguard { "WireGuard devices" } else { "sessions" },
        results.users,
        results.processes,
        results.facts.version
    ));
    if let Some(each) = results.memory_each_kib() {
        let slope = results.slope_kib.map_or_else(|| "-".into(), significant);
        let (before, after) = (results.memory_before, results.login.as_ref().map(|login| login.memory));
        let after = after.unwrap_or_default();
        line(format!(
            "Memory of the gateway (PSS): {} KiB before, {} KiB after: {} KiB a session (slope {slope})",
            before.pss_kib,
            after.pss_kib,
            significant(each)
        ));
    }
    if results.wireguard {
        devices(results).into_iter().for_each(&mut line);
    }
    if let Some(idle) = results.idle {
        let share = |cpu_seconds: f64| significant(100.0 * cpu_seconds / idle.seconds.max(f64::MIN_POSITIVE));
        let (gateway, clients) = (share(idle.gateway_cpu_seconds), share(idle.clients_cpu_seconds));
        line(format!(
            "CPU while all sessions idle, of a core: gateway {gateway} %, the sessions' processes {clients} %; {}",
            taken(idle.taken)
        ));
    }
    if results.talked.0 > 0 {
        line(format!("Talkers: {} packets sent, {} answered", results.talked.0, results.talked.1));
    }
    results.traffic.iter().for_each(|traffic| line(pair(traffic)));
    if let Some(machine) = &results.machine {
        let when = if results.restarts.is_empty() { "over all of it" } else { "until the first restart" };
        let all = Taken { steal: machine.steal_percent(), others: machine.foreign_percent() };
        line(format!("Of the machine's CPU time {when}: {}", taken(all)));
    }
    line(results.environment.machine());
    for (name, phase) in phases(results) {
        for (reason, count) in &phase.storm.failures {
            line(format!("{name}: {count} attempts failed and were repeated: {reason}"));
        }
        if phase.storm.gave_up > 0 {
            line(format!("{name}: {} clients gave up", phase.storm.gave_up));
        }
    }
    for Beside { before, meanwhile } in results.restarts.iter().filter_map(|restart| restart.watched) {
        line(format!(
            "Upgrade: the longest gap of a watched session {} ms, before it {} ms; {} of {} packets answered",
            significant(meanwhile.gap_ms),
            significant(before.gap_ms),
            meanwhile.answered,
            meanwhile.sent
        ));
    }
    for problem in &results.problems {
        line(format!("Problem: {problem}"));
    }
    if results.interrupted {
        line("Interrupted: the figures are of what was measured until then.".into());
    }
    text
}

/// The figures of WireGuard devices, and whether they are what is promised.
fn devices(results: &SessionsResults) -> Vec<String> {
    let verdict = |figure: f64, most: f64| if figure <= most { "kept" } else { "MISSED" };
    let mut lines = Vec::new();
    if let Some(each) = results.memory_each_kib() {
        let verdict = verdict(each, DEVICE_KIB);
        lines.push(format!(
            "Memory of a device, at most {DEVICE_KIB} KiB: {} KiB, {verdict}",
            significant(each)
        ));
    }
    if let Some(login) = &results.login {
        lines.push(format!(
            "Handshakes per second, all devices at once: {}",
            significant(login.storm.per_second)
        ));
    }
    for Restarted { how, gateway_back_seconds, watched, phase } in &results.restarts {
        let storm = &phase.storm;
        if let Some(Beside { meanwhile, .. }) = watched {
            let seconds = if storm.up < results.count { f64::INFINITY } else { meanwhile.gap_ms / 1e3 };
            lines.push(format!(
                "Longest gap of a watched device in an upgrade, at most {BACK_SECONDS} s: {} s, {}; {} devices answered then",
                significant(meanwhile.gap_ms / 1e3),
                verdict(seconds, BACK_SECONDS),
                storm.up,
            ));
            continue;
        }
        // Those that are not back have no time.
        let seconds = if storm.up < results.count { f64::INFINITY } else { storm.seconds };
        let verdict = verdict(seconds, BACK_SECONDS);
        lines.push(format!(
            "All back after {}, at most {BACK_SECONDS} s: {} s, {verdict}; {} s after the gateway",
            restart_name(*how),
            significant(storm.seconds),
            significant((storm.seconds - gateway_back_seconds).max(0.0)),
        ));
    }
    lines
}

fn restart_name(how: Restart) -> &'static str {
    match how {
        Restart::Kill => "kill -9",
        Restart::Clean => "clean restart",
        Restart::Upgrade => "upgrade",
    }
}

/// A pair of real clients alone and with the sessions.
fn pair(traffic: &PairRates) -> String {
    let (alone, beside) = (Spread::of(&traffic.alone), Spread::of(&traffic.beside));
    let rate = |runs: Option<Spread>| runs.map_or_else(|| "-".into(), |spread| spread.text(gbit));
    let ratio = traffic.ratio.map_or_else(|| "-".into(), significant);
    let verdict = match alone.zip(beside) {
        Some((alone, beside)) if alone.is_apart_from(beside) => "",
        _ => "; the runs overlap, so no difference is shown",
    };
    format!(
        "A pair of real clients, median of {} runs (least to most): {} Gbit/s alone, {} Gbit/s with the sessions: {ratio}{verdict}; at \
         most, alone, {}, with the sessions {}",
        traffic.alone.len(),
        rate(alone),
        rate(beside),
        taken(traffic.taken[0]),
        taken(traffic.taken[1])
    )
}

/// The share of the machine that others took.
fn taken(of: Taken) -> String {
    let (steal, others) = (percent(of.steal), percent(of.others));
    format!("the hypervisor took {steal}, processes without a part in it {others}")
}

fn phases(results: &SessionsResults) -> Vec<(String, &Phase)> {
    let login = results.login.iter().map(|phase| ("login".to_owned(), phase));
    let restarts = results.restarts.iter().map(|restart| {
        let done = if restart.how == Restart::Upgrade { "done" } else { "gateway back" };
        let how = restart_name(restart.how);
        (format!("{how}, {done} in {} s", significant(restart.gateway_back_seconds)), &restart.phase)
    });
    login.chain(restarts).collect()
}

fn grid(results: &SessionsResults) -> Grid {
    let head = [
        "",
        "up",
        "answered",
        "logins",
        "attaches",
        "until all s",
        "a second",
        "ms p50",
        "p90",
        "p99",
        "max",
        "CPU each",
        "steal",
        "others",
    ];
    let mut table = Grid::new(1, head);
    for (name, phase) in phases(results) {
        let (storm, latency) = (&phase.storm, phase.storm.latency_ms);
        // Devices with which the gateway began have none.
        let ms = |part: f64| if latency.max > 0.0 { significant(part) } else { "–".into() };
        // Devices that have gone on in an upgrade have not come up.
        let came = |figure: f64| if figure > 0.0 { significant(figure) } else { "–".into() };
        table.rows.push(vec![
            name,
            storm.up.to_string(),
            phase.answered.to_string(),
            storm.logins.to_string(),
            storm.attaches.to_string(),
            came(storm.seconds),
            came(storm.per_second),
            ms(latency.p50),
            ms(latency.p90),
            ms(latency.p99),
            ms(latency.max),
            phase.cpu_ms_each.map_or("–".into(), significant),
            percent(phase.taken.steal),
            percent(phase.taken.others),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use vpnd_swarm::tally::Watched;

    use super::*;
    use crate::experiment::sessions::results::samples;

    #[test]
    fn figures_of_devices_are_held_against_what_is_promised() {
        let mut results = samples::results();
        assert!(!text(&results).contains("Memory of a device"));
        results.wireguard = true;
        let lines = devices(&results);
        assert_eq!(lines[0], "Memory of a device, at most 16 KiB: 60.0 KiB, MISSED");
        assert_eq!(lines[1], "Handshakes per second, all devices at once: 5.00");
        assert_eq!(lines[2], "All back after kill -9, at most 5 s: 2.00 s, kept; 1.75 s after the gateway");
        results.memory_before.pss_kib = 10_440;
        results.restarts[0].phase.storm.up = 9;
        let lines = devices(&results);
        assert!(lines[0].ends_with("16.0 KiB, kept") && lines[2].contains(" s, MISSED; "), "{lines:?}");
        assert!(text(&results).contains(&lines[2]));
        let watched = Watched { gap_ms: 120.0, ..Watched::default() };
        results.restarts[0].watched = Some(Beside { before: Watched::default(), meanwhile: watched });
        assert!(devices(&results)[2].contains(": 0.120 s, MISSED; 9 devices"), "{:?}", devices(&results));
        results.restarts[0].phase.storm.up = 10;
        assert!(devices(&results)[2].contains(": 0.120 s, kept; 10 devices"), "{:?}", devices(&results));
    }

    #[test]
    fn the_table_shows_each_storm_memory_and_failures() {
        let mut results = samples::results();
        results.restarts[0].phase.storm.failures.insert("refused: busy".into(), 3);
        let taken = [1.5, 2.5].map(|steal| Taken { steal: Some(steal), others: Some(0.0) });
        results.traffic =
            Some(PairRates { alone: vec![8e9, 9e9], beside: vec![7e9, 8.5e9], taken, ratio: Some(0.91) });
        for expected in [
            "at most, alone, the hypervisor took 1.5 %, processes without a part in it 0.0 %, with the sessions the hypervisor",
            "the sessions' processes 2.00 %; the hypervisor took 3.5 %, processes without a part in it –",
            "CPU time until the first restart: the hypervisor took 25.0 %",
        ] {
            let text = super::text(&results);
            assert!(text.contains(expected), "{expected}: {text}");
        }
        results.login.as_mut().expect("it is there").storm.latency_ms.max = 2.0;
        let grid = grid(&results);
        assert_eq!((grid.rows[0][10].as_str(), grid.rows[1][10].as_str()), ("2.00", "–"));
        assert_eq!(grid.head[12..], ["steal", "others"]);
        assert_eq!(
            (&grid.rows[0][12..], &grid.rows[1][12..]),
            (&["0.5 %", "10.0 %"].map(str::to_owned)[..], &["0.5 %", "0.0 %"].map(str::to_owned)[..])
        );
        let text = table(&results);
        assert!(text.lines().all(|line| line.chars().count() <= NARROW), "{text}");
        assert!(
            text.contains("8.50 (8.00–9.00) Gbit/s alone") && text.contains("no difference is shown"),
            "{text}"
        );
        for expected in [
            "login",
            "kill -9, gateway back in 0.250 s",
            "the hypervisor took 25.0 %, processes without a part in it 50.0 %",
            "10000 KiB before, 10600 KiB after: 60.0 KiB a session (slope 59.0)",
            "of a core: gateway 1.00 %, the sessions' processes 2.00 %",
            "3 attempts failed and were repeated: refused: busy",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
}
