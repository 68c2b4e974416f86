//! A gateway's status as OpenMetrics text.
//!
//! Pure. INVARIANT: names and labels are an interface, as the status is;
//! `config/grafana-dashboard.json` and `config/alerts.yml` use them. No series goes back or names a
//! user, unless the administrator asks for those of each session.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use vpnd_ipc::admin::status::{Accounting, Counters, Pool, Session, Status, Steering};

/// The whole exposition; `by_session` adds series for each session, with its user's name.
pub(super) fn encode(status: Status, by_session: bool) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("vpnd");
    registry.register_collector(Box::new(ExportedStatus { status, by_session }));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct ExportedStatus {
    status: Status,
    by_session: bool,
}

impl Collector for ExportedStatus {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Families(&mut encoder);
        process(&mut out, &self.status)?;
        data_path(&mut out, &self.status)?;
        events(&mut out, &self.status)?;
        totals(&mut out, &self.status)?;
        pools(&mut out, &self.status)?;
        sources(&mut out, &self.status)?;
        audit(&mut out, &self.status)?;
        portal(&mut out, &self.status)?;
        firewall(&mut out, &self.status)?;
        if self.by_session { each_session(&mut out, &self.status.sessions) } else { Ok(()) }
    }
}

struct Families<'a, 'e>(&'a mut DescriptorEncoder<'e>);

impl Families<'_, '_> {
    fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        series: impl Iterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        for (labels, value) in series {
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&value, None)?;
        }
        Ok(())
    }

    fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        series: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, value) in series {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        family.encode_counter::<NoLabelSet, u64, u64>(&value, None)
    }

    /// A counter of time.
    fn seconds(&mut self, name: &str, help: &str, value: Duration) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Counter)?;
        family.encode_counter::<NoLabelSet, f64, u64>(&value.as_secs_f64(), None)
    }

    fn gauge(&mut self, name: &str, help: &str, unit: Option<Unit>, value: u64) -> fmt::Result {
        self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?.encode_gauge(&value)
    }
}

fn process(out: &mut Families<'_, '_>, status: &Status) -> fmt::Result {
    let version = [("version", status.version.as_str())];
    out.0.encode_descriptor("build", "The daemon's build", None, MetricType::Info)?.encode_info(&version)?;
    if let Some(fleet) = &status.fleet {
        let member = [("fleet", fleet.fleet.as_str()), ("node", fleet.name.as_str())];
        let help = "The gateway's place in its fleet";
        out.0.encode_descriptor("node", help, None, MetricType::Info)?.encode_info(&member)?;
    }
    out.gauge("uptime", "Time since the daemon started", Some(Unit::Seconds), status.uptime_s)?;
    let help = "Time until the gateway's certificate expires";
    out.gauge("certificate_expiry", help, Some(Unit::Seconds), status.certificate_left_s)?;
    let draining = u64::from(status.drain.is_some());
    out.gauge("draining", "Whether the gateway is draining and refuses logins", None, draining)?;
    out.gauge("shards", "Threads of the data path", None, status.shards as u64)
}

fn data_path(out: &mut Families<'_, '_>, status: &Status) -> fmt::Result {
    let (tun, udp) = (&status.offloads.tun, &status.offloads.udp);
    let flags = [
        ("tun", "checksum", tun.checksum),
        ("tun", "tso4", tun.tso4),
        ("tun", "tso6", tun.tso6),
        ("tun", "tso_ecn", tun.tso_ecn),
        ("tun", "uso", tun.uso),
        ("udp", "gso", udp.gso_segments > 1),
        ("udp", "gro", udp.gro),
        ("udp", "steering", status.steering == Steering::Cbpf),
    ];
    let series = flags.map(|(layer, feature, on)| ([("layer", layer), ("feature", feature)], u64::from(on)));
    out.gauges("offload_enabled", "Whether a kernel offload is in use", None, series)?;
    let gave_up = [
        ("tun", "checksum", tun.checksum_gave_up),
        ("tun", "tso", tun.tso_gave_up),
        ("tun", "uso", tun.uso_gave_up),
        ("udp", "gso", udp.gso_gave_up),
    ];
    let series =
        gave_up.map(|(layer, feature, on)| ([("layer", layer), ("feature", feature)], u64::from(on)));
    out.gauges(
        "offload_gave_up",
        "Whether a refused kernel offload was given up; UDP GSO is for some peers only, and for a minute",
        None,
        series,
    )?;
    let refused = [([("layer", "tun")], tun.refused)].into_iter();
    out.counters(
        "offload_refusals",
        "Packets refused as they were and taken as ordinary ones",
        None,
        refused,
    )?;
    let segments = udp.gso_segments as u64;
    out.gauge("udp_gso_segments", "Datagrams that one send may hold", None, segments)?;
    let buffers = [("receive", udp.recv_buffer), ("send", udp.send_buffer)];
    let series = buffers.map(|(direction, bytes)| ([("direction", direction)], bytes as u64));
    out.gauges("udp_buffer", "Socket buffer of a shard", Some(Unit::Bytes), series)?;
    let series = status.suites.iter().map(|suite| {
        let labels = [("suite", suite.suite.as_str()), ("backend", suite.backend.as_str())];
        (labels, u64::from(suite.mbps) * 1_000_000)
    });
    out.gauges("suite_bytes_per_second", "Measured speed of a cipher suite on one core", None, series)
}

fn events(out: &mut Families<'_, '_>, status: &Status) -> fmt::Result {
    let drops = status.counters.drops.iter().map(|(reason, n)| ([("reason", reason.as_str())], *n));
    out.counters("drops", "Packets and datagrams dropped", None, drops)?;
    let logins = status.counters.logins.iter().map(|(outcome, n)| ([("outcome", outcome.as_str())], *n));
    out.counters("logins", "Attempts to log in or to attach", None, logins)?;
    let shown = status.counters.handshakes.iter().map(|(outcome, n)| ([("outcome", outcome.as_str())], *n));
    out.counters("handshakes", "Handshakes by outcome", None, shown)?;
    let polling = |name| Counters::of(&status.counters.polling, name);
    let series = ["expired", "found", "yielded"].map(|outcome| ([("outcome", outcome)], polling(outcome)));
    let help = "Waits in which shards looked for packets instead of sleeping (busy_poll_us)";
    out.counters("polls", help, None, series.into_iter())?;
    out.seconds("polling", "Time in which shards polled", Duration::from_millis(polling("time_ms")))?;
    let marks = status.counters.unused_marks.iter();
    let series = marks.map(|(combination, n)| ([("combination", combination.as_str())], *n));
    let help = "Packets whose congestion mark and their datagram's are an unused combination (RFC 6040)";
    out.counters("unused_marks", help, None, series)
}

/// All sessions together, those that have ended included.
fn totals(out: &mut Families<'_, '_>, status: &Status) -> fmt::Result {
    let sessions = &status.sessions;
    let connected = sessions.iter().filter(|session| session.connected).count();
    let states = [("connected", connected), ("away", sessions.len() - connected)];
    let series = states.map(|(state, n)| ([("state", state)], n as u64));
    out.gauges("sessions", "Sessions with and without a control connection", None, series)?;
    let single = sessions.iter().filter(|session| session.tx_single > 0).count();
    let help = "Sessions that were sent single datagrams, because batches (UDP GSO) were lost on the way";
    out.gauge("sessions_without_batches", help, None, single as u64)?;
    let ended = |name| Counters::of(&status.counters.ended, name);
    out.counter("sessions_ended", "Sessions that have ended", ended("sessions"))?;
    let ends = status.counters.ends.iter().map(|(reason, n)| ([("reason", reason.as_str())], *n));
    out.counters("session_ends", "Sessions that have ended, by reason", None, ends)?;
    let live = |bytes: fn(&Session) -> u64| sessions.iter().map(bytes).sum::<u64>();
    let series = [
        ([("direction", "receive")], ended("rx_bytes").saturating_add(live(|session| session.rx_bytes))),
        ([("direction", "send")], ended("tx_bytes").saturating_add(live(|session| session.tx_bytes))),
    ];
    out.counters("traffic", "Bytes of inner packets of all sessions", Some(Unit::Bytes), series.into_iter())
}

fn pools(out: &mut Families<'_, '_>, status: &Status) -> fmt::Result {
    let series = |value: fn(&Pool) -> u64| {
        status.pools.iter().map(move |pool| ([("pool", pool.pool.as_str())], value(pool)))
    };
    out.gauges("pool_addresses", "Inner addresses that can be leased", None, series(|pool| pool.total))?;
    out.gauges("pool_addresses_taken", "Inner addresses that sessions have", None, series(|pool| pool.taken))
}

fn sources(out: &mut Families<'_, '_>, status: &Status) -> fmt::Result {
    let up = status.sources.iter().filter_map(|source| Some((source, source.up?)));
    let series = up.map(|(source, up)| ([("source", source.name.as_str())], u64::from(up)));
    out.gauges("source_up", "Whether a source of identities answered its last login", None, series)?;
    let answered = status.sources.iter().filter_map(|source| Some((source, source.last_answer_s?)));
    let series = answered.map(|(source, ago_s)| ([("source", source.name.as_str())], ago_s));
    let help = "Time since a source of identities answered last";
    out.gauges("source_last_answer", help, Some(Unit::Seconds), series)?;
    let missing = status.sources.iter();
    let series = missing.map(|source| ([("source", source.name.as_str())], source.missing));
    let help = "Users with sessions whom a source no longer shows, if too many at once to be believed";
    out.gauges("source_missing_users", help, None, series)?;
    accounting(out, status)?;
    let counted = |counts: &BTreeMap<String, u64>| -> Vec<_> {
        counts.iter().map(|(source, n)| ([("source", source.clone())], *n)).collect()
    };
    let answers = counted(&status.counters.source_answers).into_iter();
    out.counters("source_answers", "Logins that a source of identities has answered", None, answers)?;
    let failures = counted(&status.counters.source_failures).into_iter();
    out.counters("source_failures", "Logins without an answer of their source", None, failures)
}

fn accounting(out: &mut Families<'_, '_>, status: &Status) -> fmt::Result {
    let series = |value: fn(&Accounting) -> u64| {
        let listed = status.sources.iter().filter_map(|source| Some((source, source.accounting.as_ref()?)));
        listed.map(move |(source, accounting)| ([("source", source.name.as_str())], value(accounting)))
    };
    let help = "Records of accounting that a server has";
    out.counters("accounting_records_sent", help, None, series(|accounting| accounting.sent))?;
    let help = "Records of accounting that no server will have";
    out.counters("accounting_records_lost", help, None, series(|accounting| accounting.lost))?;
    let help = "Records of accounting on their way";
    out.gauges("accounting_records_waiting", help, None, series(|accounting| accounting.waiting))
}

fn audit(out: &mut Families<'_, '_>, status: &Status) -> fmt::Result {
    if let Some(audit) = &status.audit {
        let help = "Whether events are recorded in the audit file";
        out.gauge("audit_recording", help, None, u64::from(audit.failure.is_none()))?;
    }
    let lost = Counters::of(&status.counters.audit, "lost");
    out.counter("audit_lost", "Events that are missing in the audit file", lost)
}

fn portal(out: &mut Families<'_, '_>, status: &Status) -> fmt::Result {
    let Some(portal) = status.portal else { return Ok(()) };
    out.gauge("portal_up", "Whether web pages are served", None, u64::from(portal.up))?;
    out.gauge("portal_visits", "Browsers whose users have logged in", None, portal.visits)?;
    if let Some(left_s) = portal.certificate_left_s {
        let help = "Time until the certificate of the web pages expires";
        out.gauge("portal_certificate_expiry", help, Some(Unit::Seconds), left_s)?;
    }
    let refused = status.counters.portal_refusals.iter();
    let refused = refused.map(|(reason, count)| ([("reason", reason.as_str())], *count));
    out.counters("portal_refusals", "What the web pages have refused", None, refused)?;
    out.gauge("relays", "TCP connections that carry clients' datagrams", None, portal.relays)?;
    let relays = |name| Counters::of(&status.counters.relays, name);
    out.counter("relays_begun", "TCP connections that have carried clients' datagrams", relays("begun"))?;
    let help = "Datagrams to clients over TCP that found no room on their connection";
    out.counter("relays_dropped", help, relays("dropped"))
}

fn firewall(out: &mut Families<'_, '_>, status: &Status) -> fmt::Result {
    let Some(firewall) = &status.firewall else { return Ok(()) };
    let help = "Whether the firewall table is as it was applied";
    out.gauge("firewall_in_force", help, None, u64::from(firewall.rules.is_some()))?;
    let help = "Renewals of the firewall table after another program had removed or changed it";
    out.counter("firewall_renewals", help, firewall.renewals)?;
    let help = "Packets that would have begun more connections than an inner address may have";
    out.counter("connections_over_limit", help, firewall.over_limit)
}

fn each_session(out: &mut Families<'_, '_>, sessions: &[Session]) -> fmt::Result {
    let received = by_session(sessions, "receive", |session| session.rx_bytes);
    let sent = by_session(sessions, "send", |session| session.tx_bytes);
    let unit = Some(Unit::Bytes);
    out.counters("session_traffic", "Bytes of inner packets", unit, received.chain(sent))?;
    let received = by_session(sessions, "receive", |session| session.rx_packets);
    let sent = by_session(sessions, "send", |session| session.tx_packets);
    out.counters("session_packets", "Inner packets", None, received.chain(sent))?;
    let received = by_session(sessions, "receive", |session| session.rx_halved);
    let sent = by_session(sessions, "send", |session| session.tx_halved);
    let help = "Inner packets in two halves, because the path carries no whole one";
    out.counters("session_halved_packets", help, None, received.chain(sent))?;
    let paths = sessions.iter().filter_map(|session| {
        let labels = [("session", session.id.as_str()), ("user", &session.user)];
        Some((labels, session.path_mtu?.into()))
    });
    out.gauges("session_path_mtu", "The largest inner packet that the path carries", Some(Unit::Bytes), paths)
}

/// A series for each session, as seen from the gateway.
fn by_session<'s>(
    sessions: &'s [Session],
    direction: &'static str,
    value: fn(&Session) -> u64,
) -> impl Iterator<Item = ([(&'static str, &'s str); 3], u64)> {
    sessions.iter().map(move |session| {
        let labels = [("session", session.id.as_str()), ("user", &session.user), ("direction", direction)];
        (labels, value(session))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use vpnd_proto::plane::DropReason;

    use super::*;
    use crate::worker::connection::Logins;
    use vpnd_ipc::admin::status::FleetMember;
    use vpnd_ipc::admin::testing::status;

    #[test]
    fn the_exposition_has_every_family_once() {
        let text = encode(status(), true).unwrap();
        let types: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        assert_eq!(
            types,
            [
                "vpnd_build info",
                "vpnd_uptime_seconds gauge",
                "vpnd_certificate_expiry_seconds gauge",
                "vpnd_draining gauge",
                "vpnd_shards gauge",
                "vpnd_offload_enabled gauge",
                "vpnd_offload_gave_up gauge",
                "vpnd_offload_refusals counter",
                "vpnd_udp_gso_segments gauge",
                "vpnd_udp_buffer_bytes gauge",
                "vpnd_suite_bytes_per_second gauge",
                "vpnd_drops counter",
                "vpnd_logins counter",
                "vpnd_handshakes counter",
                "vpnd_polls counter",
                "vpnd_polling_seconds counter",
                "vpnd_unused_marks counter",
                "vpnd_sessions gauge",
                "vpnd_sessions_without_batches gauge",
                "vpnd_sessions_ended counter",
                "vpnd_session_ends counter",
                "vpnd_traffic_bytes counter",
                "vpnd_pool_addresses gauge",
                "vpnd_pool_addresses_taken gauge",
                "vpnd_source_up gauge",
                "vpnd_source_last_answer_seconds gauge",
                "vpnd_source_missing_users gauge",
                "vpnd_accounting_records_sent counter",
                "vpnd_accounting_records_lost counter",
                "vpnd_accounting_records_waiting gauge",
                "vpnd_source_answers counter",
                "vpnd_source_failures counter",
                "vpnd_audit_recording gauge",
                "vpnd_audit_lost counter",
                "vpnd_portal_up gauge",
                "vpnd_portal_visits gauge",
                "vpnd_portal_certificate_expiry_seconds gauge",
                "vpnd_portal_refusals counter",
                "vpnd_relays gauge",
                "vpnd_relays_begun counter",
                "vpnd_relays_dropped counter",
                "vpnd_firewall_in_force gauge",
                "vpnd_firewall_renewals counter",
                "vpnd_connections_over_limit counter",
                "vpnd_session_traffic_bytes counter",
                "vpnd_session_packets counter",
                "vpnd_session_halved_packets counter",
                "vpnd_session_path_mtu_bytes gauge",
            ]
        );
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn a_gateway_of_a_fleet_is_named() {
        let (fleet, name) = ("campus".to_owned(), "gw1".to_owned());
        let member = Status { fleet: Some(FleetMember { fleet, name }), ..status() };
        let text = encode(member, false).unwrap();
        assert!(text.contains("\nvpnd_node_info{fleet=\"campus\",node=\"gw1\"} 1\n"), "{text}");
        assert!(!encode(status(), false).unwrap().contains("vpnd_node"));
    }

    #[test]
    fn values_are_those_of_the_status() {
        let text = encode(status(), true).unwrap();
        let ann = "session=\"0123456789abcdef0123456789abcdef\",user=\"ann\"";
        for line in [
            "vpnd_build_info{version=\"0.1.0\"} 1".to_owned(),
            "vpnd_uptime_seconds 183600".to_owned(),
            "vpnd_offload_enabled{layer=\"tun\",feature=\"tso4\"} 1".to_owned(),
            "vpnd_offload_enabled{layer=\"tun\",feature=\"uso\"} 0".to_owned(),
            "vpnd_offload_gave_up{layer=\"udp\",feature=\"gso\"} 0".to_owned(),
            "vpnd_offload_refusals_total{layer=\"tun\"} 0".to_owned(),
            "vpnd_udp_gso_segments 64".to_owned(),
            "vpnd_suite_bytes_per_second{suite=\"aes-256-gcm\",backend=\"aws-lc\"} 9800000000".to_owned(),
            "vpnd_drops_total{reason=\"replayed\"} 7".to_owned(),
            "vpnd_drops_total{reason=\"bad_header\"} 0".to_owned(),
            "vpnd_logins_total{outcome=\"wrong_password\"} 1".to_owned(),
            "vpnd_handshakes_total{outcome=\"retried\"} 8".to_owned(),
            "vpnd_polls_total{outcome=\"found\"} 9".to_owned(),
            "vpnd_polls_total{outcome=\"yielded\"} 0".to_owned(),
            "vpnd_polling_seconds_total 0.012".to_owned(),
            "vpnd_unused_marks_total{combination=\"ce_in_ect1\"} 3".to_owned(),
            "vpnd_sessions{state=\"connected\"} 1".to_owned(),
            "vpnd_sessions{state=\"away\"} 1".to_owned(),
            "vpnd_sessions_ended_total 1".to_owned(),
            "vpnd_session_ends_total{reason=\"kicked\"} 1".to_owned(),
            // One session that has ended, and those that live.
            "vpnd_traffic_bytes_total{direction=\"receive\"} 1610617736".to_owned(),
            "vpnd_traffic_bytes_total{direction=\"send\"} 2055".to_owned(),
            "vpnd_pool_addresses{pool=\"10.86.0.0/16\"} 65533".to_owned(),
            "vpnd_pool_addresses_taken{pool=\"10.86.0.0/16\"} 2".to_owned(),
            "vpnd_source_up{source=\"campus\"} 0".to_owned(),
            "vpnd_source_last_answer_seconds{source=\"campus\"} 75".to_owned(),
            "vpnd_source_missing_users{source=\"campus\"} 12".to_owned(),
            "vpnd_source_missing_users{source=\"guests\"} 0".to_owned(),
            "vpnd_accounting_records_sent_total{source=\"guests\"} 41".to_owned(),
            "vpnd_accounting_records_lost_total{source=\"guests\"} 2".to_owned(),
            "vpnd_accounting_records_waiting{source=\"guests\"} 1".to_owned(),
            "vpnd_source_answers_total{source=\"campus\"} 12".to_owned(),
            "vpnd_source_failures_total{source=\"campus\"} 3".to_owned(),
            "vpnd_audit_recording 1".to_owned(),
            "vpnd_audit_lost_total 2".to_owned(),
            "vpnd_portal_certificate_expiry_seconds 2000000".to_owned(),
            "vpnd_portal_up 1".to_owned(),
            "vpnd_portal_visits 3".to_owned(),
            "vpnd_portal_refusals_total{reason=\"form\"} 4".to_owned(),
            "vpnd_relays 2".to_owned(),
            "vpnd_relays_begun_total 5".to_owned(),
            "vpnd_firewall_in_force 1".to_owned(),
            "vpnd_firewall_renewals_total 2".to_owned(),
            "vpnd_connections_over_limit_total 30".to_owned(),
            format!("vpnd_session_traffic_bytes_total{{{ann},direction=\"receive\"}} 1610612736"),
            format!("vpnd_session_traffic_bytes_total{{{ann},direction=\"send\"}} 2048"),
            format!("vpnd_session_packets_total{{{ann},direction=\"receive\"}} 1200000"),
            format!("vpnd_session_halved_packets_total{{{ann},direction=\"send\"}} 31"),
            format!("vpnd_session_path_mtu_bytes{{{ann}}} 1200"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn metrics_name_no_user_unless_configured() {
        let text = encode(status(), false).unwrap();
        let named =
            |line: &&str| ["ann", "bob", "session=", "192.0.2"].iter().any(|word| line.contains(word));
        assert_eq!(text.lines().find(named), None);
        assert!(encode(status(), true).unwrap().lines().any(|line| named(&line)));
    }

    #[test]
    fn a_total_does_not_go_back_when_a_session_ends() {
        let before = status();
        let mut after = status();
        let gone = after.sessions.remove(0);
        for (name, value) in [("sessions", 1), ("rx_bytes", gone.rx_bytes), ("tx_bytes", gone.tx_bytes)] {
            *after.counters.ended.entry(name.to_owned()).or_default() += value;
        }
        let traffic = |status| -> Vec<String> {
            let text = encode(status, false).unwrap();
            text.lines()
                .filter(|line| line.starts_with("vpnd_traffic_bytes_total"))
                .map(str::to_owned)
                .collect()
        };
        assert_eq!(traffic(after), traffic(before));
    }

    /// Series that the dashboard and the alert rules name.
    fn used(text: &str) -> BTreeSet<&str> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| word.starts_with("vpnd_")).collect()
    }

    #[test]
    fn dashboard_and_alerts_use_series_that_exist() {
        let text = encode(status(), true).unwrap();
        let exported: BTreeSet<&str> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split(['{', ' ']).next())
            .collect();
        let dashboard = include_str!("../../../../../config/grafana-dashboard.json");
        let alerts = include_str!("../../../../../config/alerts.yml");
        serde_json::from_str::<serde_json::Value>(dashboard).unwrap();
        for (file, least) in [(dashboard, 8), (alerts, 5)] {
            let used = used(file);
            assert!(used.len() >= least, "{used:?}");
            let unknown: Vec<_> = used.difference(&exported).collect();
            assert!(unknown.is_empty(), "{unknown:?}");
        }
        // Values of labels, too: a misspelt reason is an alert that never comes.
        let reasons: BTreeSet<String> =
            DropReason::ALL.iter().map(|reason| reason.name().to_owned()).collect();
        let outcomes: BTreeSet<String> = Logins::default().counts().into_keys().collect();
        for (label, known) in [("reason", reasons), ("outcome", outcomes)] {
            for part in alerts.split(&format!("{label}=")).skip(1) {
                let quoted = part.split('"').nth(1).unwrap();
                assert_eq!(quoted.split('|').find(|value| !known.contains(*value)), None, "{label}");
            }
        }
    }

    #[test]
    fn a_name_cannot_forge_a_metric() {
        let mut status = status();
        status.sessions[0].user = "ann\"} 1\nvpnd_shards 99\n".to_owned();
        let text = encode(status, true).unwrap();
        assert!(!text.lines().any(|line| line == "vpnd_shards 99"), "{text}");
    }
}
