//! The cases of a measurement of capacity in words.

use std::fmt::Write as _;

use vpnd_swarm::load::{Direction, SMALL_PACKET};

use super::results::{Case, Row, Traffic};
use crate::experiment::held_sessions::REAL_STREAMS;
use trafficspeed::lab::cpu_limit::CpuLimit;
use trafficspeed::system::AGAIN;
use trafficspeed::unit::significant;

/// A case in words.
pub fn name(case: Case) -> String {
    let limit = limited(case.gateway_cpu());
    match case {
        Case::Made { sessions, traffic, .. } => format!("{sessions} sessions {}{limit}", describe(traffic)),
        Case::Real { clients, .. } => {
            format!("{clients} real clients, {REAL_STREAMS} TCP streams a pair{limit}")
        }
    }
}

/// The case of a row in words, and whether it is its second measurement.
pub fn row_name(row: &Row) -> String {
    name(row.case) + again(row)
}

/// The name of a second measurement.
pub fn again(row: &Row) -> &'static str {
    if row.again { AGAIN } else { "" }
}

/// The gateway's limit in words.
pub fn limited(limit: Option<CpuLimit>) -> String {
    limit.map_or_else(String::new, |limit| format!(", gateway limited to {limit}"))
}

/// Traffic in words.
pub fn describe(traffic: Traffic) -> String {
    let Traffic { direction, packet, burst, rate, small, greedy, calls, .. } = traffic;
    let size = packet.map_or_else(|| "full".into(), |bytes| format!("{bytes} B"));
    let mut text = format!("{}, {size} packets, bursts of {burst}", direction_words(direction));
    let mut add = |is_so: bool, words: String| {
        if is_so {
            text.push_str(&words);
        }
    };
    add(small > 0, format!(", {small} % of them of {SMALL_PACKET} B"));
    add(rate.is_some(), format!(", {} Mbit/s each", significant(rate.unwrap_or(0) as f64 / 1e6)));
    add(greedy > 1, format!(", the first as {greedy}"));
    add(calls > 0, format!(", {calls} with calls"));
    if let Some(percent) = traffic.unusual_acknowledge() {
        let _ = write!(text, ", {percent} % of runs acknowledged");
    }
    if let Some(delay_ms) = traffic.unusual_ack_delay_ms() {
        let _ = write!(text, ", acknowledgements after {delay_ms} ms at most");
    }
    text
}

/// A direction in words.
pub fn direction_words(direction: Direction) -> &'static str {
    match direction {
        Direction::Pairs => "in pairs",
        Direction::Up => "to the campus",
        Direction::Down => "from the campus",
        Direction::Both => "to and from the campus",
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::samples;
    use super::*;

    #[test]
    fn the_second_measurement_of_a_case_is_named() {
        let results = samples::results();
        let name = |row: usize| row_name(&results.rows[row]);
        assert_eq!(name(0), "8 sessions in pairs, full packets, bursts of 44");
        assert_eq!(name(3), "8 sessions in pairs, full packets, bursts of 44 (again)");
    }

    #[test]
    fn traffic_is_described_with_what_is_unusual_about_it() {
        let usual = samples::traffic();
        assert_eq!(describe(usual), "in pairs, full packets, bursts of 44");
        let traffic = Traffic {
            packet: Some(64),
            rate: Some(5_000_000),
            small: 10,
            greedy: 512,
            calls: 2,
            acknowledge: 0,
            ..usual
        };
        assert_eq!(
            describe(traffic),
            "in pairs, 64 B packets, bursts of 44, 10 % of them of 64 B, 5.00 Mbit/s each, the first as 512, 2 with calls, \
             0 % of runs acknowledged"
        );
        let down = Traffic { direction: Direction::Down, acknowledge: 0, ..usual };
        assert_eq!(describe(down), "from the campus, full packets, bursts of 44");
        let late = Traffic { ack_delay_ms: 10_000, ..usual };
        assert_eq!(
            describe(late),
            "in pairs, full packets, bursts of 44, acknowledgements after 10000 ms at most"
        );
        assert_eq!(limited("0.5".parse().ok()), ", gateway limited to 0.5 of a core");
    }
}
