//! OpenMetrics text as Prometheus' text format 0.0.4, and which of the two a scraper prefers.
//!
//! INVARIANT: series and values are the same; only what describes a family is written differently.

use std::collections::HashMap;

/// Whether a header `Accept` prefers OpenMetrics. Without one, or with `*/*`, the older format is
/// meant, which everything reads.
pub(super) fn prefers_open_metrics(accept: &str) -> bool {
    let (mut open, mut text) = (0.0, 0.0_f32);
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        let quality = parts.find_map(|part| part.strip_prefix("q="));
        let quality: f32 = quality.map_or(1.0, |quality| quality.parse().unwrap_or(0.0));
        match kind {
            "application/openmetrics-text" => open = quality.max(open),
            "text/plain" => text = quality.max(text),
            _ => {}
        }
    }
    open > 0.0 && open >= text
}

/// Converts families to the format 0.0.4.
pub(super) fn of_open_metrics(open: &str) -> String {
    let kinds: HashMap<&str, &str> =
        open.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let mut text = String::with_capacity(open.len() + 64 * kinds.len());
    for line in open.lines() {
        let described = line.strip_prefix("# HELP ").map(|rest| ("HELP", rest));
        let described = described.or_else(|| Some(("TYPE", line.strip_prefix("# TYPE ")?)));
        match described.and_then(|(what, rest)| Some((what, rest.split_once(' ')?))) {
            Some((what, (family, rest))) => {
                // Here a family is named as its series are.
                let (suffix, kind) = match kinds.get(family).copied() {
                    Some("counter") => ("_total", "counter"),
                    Some("info") => ("_info", "gauge"),
                    Some("unknown") | None => ("", "untyped"),
                    Some(kind) => ("", kind),
                };
                let rest = if what == "TYPE" { kind.to_owned() } else { rest.replace("\\\"", "\"") };
                text.push_str(&format!("# {what} {family}{suffix} {rest}\n"));
            }
            None if line.starts_with('#') => {}
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scraper_gets_what_it_prefers() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert!(prefers_open_metrics(prometheus));
        assert!(prefers_open_metrics("application/openmetrics-text"));
        let others = [
            "",
            "*/*",
            "text/plain",
            "text/plain;version=0.0.4;q=1,*/*;q=0.1",
            "application/openmetrics-text; version=1.0.0; q=0.2, text/plain; q=0.5",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=much",
        ];
        for accept in others {
            assert!(!prefers_open_metrics(accept), "{accept}");
        }
    }

    #[test]
    fn families_are_named_as_their_series() {
        let open = "# HELP vpnd_drops Says \\\"no\\\".\n# TYPE vpnd_drops counter\nvpnd_drops_total{reason=\"# HELP\"} 7\n\
                    # HELP vpnd_build Version.\n# TYPE vpnd_build info\nvpnd_build_info{version=\"1\"} 1\n\
                    # HELP vpnd_uptime_seconds Time.\n# TYPE vpnd_uptime_seconds gauge\n# UNIT vpnd_uptime_seconds seconds\n\
                    vpnd_uptime_seconds 3\n# EOF\n";
        let text = "# HELP vpnd_drops_total Says \"no\".\n# TYPE vpnd_drops_total counter\nvpnd_drops_total{reason=\"# HELP\"} 7\n\
                    # HELP vpnd_build_info Version.\n# TYPE vpnd_build_info gauge\nvpnd_build_info{version=\"1\"} 1\n\
                    # HELP vpnd_uptime_seconds Time.\n# TYPE vpnd_uptime_seconds gauge\nvpnd_uptime_seconds 3\n";
        assert_eq!(of_open_metrics(open), text);
    }
}
