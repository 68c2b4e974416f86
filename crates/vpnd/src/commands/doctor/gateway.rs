//! The gateway's part: whether it runs, what it says of itself, its pools and its certificate.

use std::net::IpAddr;
use std::path::Path;

use super::{Finding, Verdict, plural};
use crate::commands::admin::table;
use vpnd_config::ServerConfig;
use vpnd_config::certificate;
use vpnd_config::certificate::order::{Ordered, Outcome, Owner};
use vpnd_config::in_force::Settings;
use vpnd_config::profile::ServerAddress;
use vpnd_config::read_text;
use vpnd_ipc::admin::Status;
use vpnd_ipc::admin::client::{Client, ClientError};
use vpnd_ipc::admin::status::Counters;
use vpnd_ipc::health;
use vpnd_pki::leaf::Leaf;
use vpnd_sys::clock::wall_s;
use vpnd_sys::sandbox::Landlock;

const DAY_S: u64 = 86_400;
/// With less than one of this many permitted sessions left, they are used up soon.
const LAST_PART: u64 = 10;

/// A gateway that answers on its control socket, if there is one.
pub(super) struct Running {
    pub(super) status: Option<Box<Status>>,
    pub(super) findings: Vec<Finding>,
}

pub(super) fn running(config: &ServerConfig) -> Running {
    const CHECK: &str = "gateway";
    let asked = Client::connect(&config.admin.socket).and_then(|mut client| client.status());
    let status = match asked {
        Ok(status) => status,
        Err(error) => {
            let finding = match error {
                ClientError::NotRunning(_) => Finding::warning(
                    CHECK,
                    "no gateway runs with this configuration",
                    "systemctl start vpnd-server",
                ),
                ClientError::Forbidden(_) => Finding::unknown(CHECK, error.to_string(), "run this as root"),
                other => Finding::problem(CHECK, other.to_string(), "look at: journalctl -u vpnd-server"),
            };
            return Running { status: None, findings: vec![finding] };
        }
    };
    let mut findings = vec![version(&status)];
    findings.extend(fleet(config));
    findings.push(offloads(&status));
    findings.push(protections(&status));
    findings.push(health::certificate(status.certificate_left_s));
    findings.extend(audit(&status));
    findings.extend(status.portal.as_ref().map(health::portal));
    findings.extend(status.portal.as_ref().and_then(health::portal_certificate));
    findings.extend(sources(&status));
    findings.extend(draining(&status));
    findings.extend(read_text(Path::new(&config.file)).ok().map(|text| settings(&status, &text)));
    Running { status: Some(Box::new(status)), findings }
}

/// The other gateways of the fleet, if it is in one.
fn fleet(config: &ServerConfig) -> Vec<Finding> {
    if config.fleet.is_none() {
        return Vec::new();
    }
    match Client::connect(&config.admin.socket).and_then(|mut client| client.fleet()) {
        Ok(gateways) => {
            let literal = |address: &ServerAddress| Some(address.literal()?.ip());
            let addresses: Vec<IpAddr> = config.server.addresses.iter().filter_map(literal).collect();
            health::fleet::findings(&gateways, &addresses)
        }
        Err(error) => {
            let advice = "the findings about the database say more, and: journalctl -u vpnd-server";
            vec![Finding::problem(
                "fleet.gateways",
                format!("the other gateways are not known: {error}"),
                advice,
            )]
        }
    }
}

/// Sources that do not answer, that no longer show many of their users, or whose records are lost;
/// `identity` has the others.
fn sources(status: &Status) -> Vec<Finding> {
    let findings = status.sources.iter().flat_map(health::source);
    findings.filter(|finding| finding.verdict >= Verdict::Warning).collect()
}

/// A gateway that refuses all logins, and why.
fn draining(status: &Status) -> Option<Finding> {
    let state = table::drain(status.drain?);
    let advice = "stop or restart the gateway when it is empty; to let clients in again: vpnd drain --cancel";
    Some(Finding::warning("gateway.drain", state, advice))
}

/// Whether the gateway goes by the file as it is now.
fn settings(status: &Status, file: &str) -> Finding {
    const CHECK: &str = "gateway.configuration";
    let (start, reload) = Settings::reported(status.settings.clone()).differences(&Settings::of(file));
    let found = |keys: &[String]| {
        format!("the file differs from what the running gateway goes by: {}", keys.join(", "))
    };
    match (&start[..], &reload[..]) {
        ([], []) => Finding::good(CHECK, "the running gateway goes by the file as it is"),
        (start, []) => {
            Finding::warning(CHECK, found(start), "restart the gateway, and it goes by these, too")
        }
        ([], reload) => Finding::warning(CHECK, found(reload), "run: vpnd reload"),
        (start, reload) => Finding::warning(
            CHECK,
            found(&[start, reload].concat()),
            format!("restart the gateway for all of them; 'vpnd reload' takes over {}", reload.join(", ")),
        ),
    }
}

fn version(status: &Status) -> Finding {
    const CHECK: &str = "gateway";
    let installed = env!("CARGO_PKG_VERSION");
    let sessions = plural(status.sessions.len(), "session");
    let found = format!("version {} runs for {} min, {sessions}", status.version, status.uptime_s / 60);
    if status.version == installed {
        return Finding::good(CHECK, found);
    }
    let advice = "run: vpnd server --upgrade. Sessions go on";
    Finding::warning(CHECK, format!("{found}; installed is {installed}"), advice)
}

/// Offloads that a kernel or driver promised and then refused.
fn offloads(status: &Status) -> Finding {
    const CHECK: &str = "gateway.offloads";
    let (tun, udp) = (status.offloads.tun, status.offloads.udp);
    let given_up: Vec<&str> = [
        (udp.gso_gave_up, "UDP GSO on the way to some peers (tried again each minute)"),
        (tun.checksum_gave_up, "checksums on the TUN device"),
        (tun.tso_gave_up, "TCP super-packets on the TUN device"),
        (tun.uso_gave_up, "UDP super-packets on the TUN device"),
    ]
    .into_iter()
    .filter_map(|(gave_up, name)| gave_up.then_some(name))
    .collect();
    let [single, all] = [1, 0].map(|least| status.sessions.iter().filter(|s| s.tx_single >= least).count());
    if single > all / 10 {
        return Finding::warning(
            CHECK,
            format!(
                "batches of datagrams (UDP GSO) to {single} of {all} clients are lost on the way while single ones arrive: \
                 these are sent single ones, for ten minutes at a time"
            ),
            "the log names the first client. If it is one client, its network is to blame. Else update this machine's kernel (and its host's, if it is virtual), or try another \
             network card or `ethtool -K DEVICE tx-udp-segmentation off`; `udp_gso = false` in [offload] does without for all",
        );
    }
    if given_up.is_empty() {
        return Finding::good(CHECK, "all that the kernel has are in use");
    }
    let found = format!("given up because the kernel refused them in use: {}", given_up.join(", "));
    Finding::warning(
        CHECK,
        found,
        "update kernel and driver; the log names the first peer. The TUN device's are tried again at the next start",
    )
}

fn protections(status: &Status) -> Finding {
    const CHECK: &str = "gateway.protections";
    let bare = status.processes.iter().filter(|process| {
        let has = &process.protections;
        !(has.no_capabilities && has.no_new_privs && has.seccomp && has.undumpable)
            || has.landlock == Landlock::Missing
    });
    let bare: Vec<&str> = bare.map(|process| process.name.as_str()).collect();
    if status.processes.is_empty() {
        return Finding::unknown(CHECK, "this version does not say", "run: vpnd server --upgrade");
    }
    if bare.is_empty() {
        return Finding::good(CHECK, "all processes are confined");
    }
    let found = format!("not fully confined: {}", bare.join(", "));
    let advice = "see 'vpnd status'; a kernel with Landlock and seccomp confines them, and sandbox = \"require\" insists on it";
    Finding::warning(CHECK, found, advice)
}

/// Whether the gateway records what 'vpnd audit' is asked for.
fn audit(status: &Status) -> Option<Finding> {
    let audit = status.audit.as_ref()?;
    Some(health::audit(audit.failure.as_deref(), Counters::of(&status.counters.audit, "lost")))
}

/// The certificate in its file, and who renews it.
pub(super) fn certificate(config: &ServerConfig) -> Finding {
    const CHECK: &str = "certificate";
    let path = config.tls.certificate.display();
    let leaf = certificate::read(&config.tls.certificate).map(|pem| vpnd_pki::leaf::chain(&pem));
    let Some(leaf) = leaf.ok().and_then(|chain| Leaf::parse(chain.first()?)) else {
        return Finding::problem(
            CHECK,
            format!("{path} has no certificate"),
            "see the configuration's findings",
        );
    };
    let (now_s, found) = (wall_s(), described(&config.tls.certificate, &leaf));
    if let Some(what) = Ordered::of(config, Owner::Gateway) {
        return ordered(CHECK, config, &what, Some(&leaf), found);
    }
    let renewable = certificate::renewable(&config.tls, std::time::SystemTime::now());
    match renewable {
        Ok(()) if now_s >= leaf.overdue_s() => Finding::warning(
            CHECK,
            format!("{found} and should have been renewed"),
            "is the gateway running? Its log says why not",
        ),
        Ok(()) => Finding::good(CHECK, format!("{found}; the gateway renews it automatically")),
        Err(reason) if now_s >= leaf.due_s() => Finding::warning(
            CHECK,
            format!("{found}, and the gateway can't renew it: {reason}"),
            "renew it, then run: vpnd reload",
        ),
        Err(_) => Finding::good(CHECK, format!("{found}; renewed elsewhere")),
    }
}

/// The portal's certificate in its file, and who renews it.
pub(super) fn portal_certificate(config: &ServerConfig) -> Option<Finding> {
    const CHECK: &str = "portal.certificate";
    let portal = config.portal.as_ref()?;
    let chain = certificate::read(&portal.certificate).map(|pem| vpnd_pki::leaf::chain(&pem));
    let leaf = chain.ok().and_then(|chain| Leaf::parse(chain.first()?));
    if let Some(what) = Ordered::of(config, Owner::Portal) {
        let none = || format!("there is no certificate for web pages at {} yet", what.names.join(", "));
        let found = leaf.as_ref().map_or_else(none, |leaf| described(&portal.certificate, leaf));
        return Some(ordered(CHECK, config, &what, leaf.as_ref(), found));
    }
    // Without one, the configuration has a finding.
    let leaf = leaf?;
    let found = described(&portal.certificate, &leaf);
    Some(if wall_s() >= leaf.due_s() {
        let advice = "renew it as you got it, then run: vpnd reload; or have the gateway do that: acme = true in [portal]";
        Finding::warning(CHECK, found, advice)
    } else {
        Finding::good(CHECK, format!("{found}; renewed elsewhere"))
    })
}

fn described(path: &Path, leaf: &Leaf) -> String {
    let days = leaf.not_after_s.saturating_sub(wall_s()) / DAY_S;
    format!("{}, for {}, is good for {days} days", path.display(), leaf.names.join(", "))
}

/// The finding where an ACME authority is to issue it.
fn ordered(
    check: &'static str,
    config: &ServerConfig,
    what: &Ordered,
    leaf: Option<&Leaf>,
    found: String,
) -> Finding {
    let acme = &what.acme;
    let (directory, challenge) = (acme.directory.as_str(), acme.challenge.name());
    let last = Outcome::read(config, what.owner);
    let found = match last.as_ref().and_then(|last| last.failed.as_ref()) {
        None => found,
        Some(reason) => {
            format!("{found}, but the last order at {directory} failed: {}", vpnd_sys::text::harmless(reason))
        }
    };
    let advice = format!(
        "the authority must reach port {} of each of the names for {challenge}, and this machine the authority; then run: vpnd reload",
        acme.listen.port()
    );
    let has_failed = last.is_some_and(|last| last.failed.is_some());
    match what.wanted(config) {
        _ if leaf.is_none_or(|leaf| wall_s() >= leaf.overdue_s()) => Finding::problem(check, found, advice),
        Ok(None) if has_failed => Finding::warning(check, found, advice),
        Ok(None) => Finding::good(check, format!("{found}; the gateway orders the next at {directory}")),
        Ok(Some(reason)) => Finding::warning(check, format!("{found}; another is wanted: {reason}"), advice),
        Err(error) => Finding::warning(check, format!("{found}; {error}"), advice),
    }
}

/// Room for the sessions that are permitted, and what is in use.
pub(super) fn pools(config: &ServerConfig, running: Option<&Status>) -> Vec<Finding> {
    const CHECK: &str = "pools";
    let sessions = running.map(|status| status.sessions.as_slice()).unwrap_or_default();
    let limit = config.limits.max_sessions as u64;
    let mut findings = Vec::new();
    if let Some(pool) = config.tunnel.pool_v4 {
        // Network, broadcast and the gateway's own address are not leased.
        let room = (1_u64 << (32 - pool.prefix_len())).saturating_sub(3);
        let used = sessions.iter().filter(|session| session.inner_v4.is_some()).count() as u64;
        let finding = health::pool(&pool.to_string(), room, used);
        findings.push(if finding.verdict == Verdict::Good && room < limit {
            let found = format!("{}, and {limit} sessions are permitted", finding.found);
            let advice = "give [tunnel] a larger 'pool_v4', or lower 'max_sessions' in [limits]";
            Finding::warning(CHECK, found, advice)
        } else {
            finding
        });
    }
    if running.is_some() && sessions.len() as u64 >= limit - limit / LAST_PART {
        let found = format!("{} of {limit} permitted sessions are in use", sessions.len());
        findings.push(Finding::warning("limits", found, "raise 'max_sessions' in [limits]"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use vpnd_ipc::admin::status::Drain;
    use vpnd_ipc::admin::testing::status;

    #[test]
    fn findings_follow_from_the_status_of_the_gateway() {
        let mut status = status();
        status.version = env!("CARGO_PKG_VERSION").to_owned();
        assert_eq!(version(&status).verdict, Verdict::Good);
        status.version = "0.0.1".to_owned();
        assert_eq!(version(&status).verdict, Verdict::Warning);
        status.offloads = Default::default();
        assert_eq!(offloads(&status).verdict, Verdict::Good);
        status.offloads.tun.tso_gave_up = true;
        assert!(offloads(&status).found.contains("TCP super-packets"));
        status.sessions[0].tx_single = 1;
        assert!(offloads(&status).found.contains("lost on the way"));
        for (left_s, verdict) in
            [(0, Verdict::Problem), (3_600, Verdict::Problem), (2 * DAY_S, Verdict::Good)]
        {
            status.certificate_left_s = left_s;
            assert_eq!(health::certificate(status.certificate_left_s).verdict, verdict);
            let mut portal = status.portal.unwrap();
            portal.certificate_left_s = Some(left_s);
            assert_eq!(health::portal_certificate(&portal).map(|finding| finding.verdict), Some(verdict));
            portal.certificate_left_s = None;
            assert_eq!(health::portal_certificate(&portal), None, "an older daemon does not say");
        }
    }

    #[test]
    fn a_gateway_that_is_drained_is_named() {
        let mut status = status();
        status.drain = None;
        assert_eq!(draining(&status), None);
        status.drain = Some(Drain { in_use: 2, left_s: None, over: false });
        let finding = draining(&status).unwrap();
        assert_eq!(finding.verdict, Verdict::Warning);
        assert!(
            finding.found.contains("DRAINING")
                && finding.advice.is_some_and(|advice| advice.contains("--cancel"))
        );
    }

    #[test]
    fn a_configuration_not_in_force_is_reported_by_its_keys() {
        let mut status = status();
        let file = "[server]\nshards = 2\n[push]\nroutes = []\n";
        status.settings = Settings::of(file).report();
        let judged = |file: &str| {
            let finding = settings(&status, file);
            (finding.verdict, finding.found, finding.advice.unwrap_or_default())
        };
        assert_eq!(judged(file).0, Verdict::Good);
        let (verdict, found, advice) = judged(&file.replace('2', "3"));
        assert_eq!((verdict, found.split_once(": ").unwrap().1), (Verdict::Warning, "'shards' in [server]"));
        assert!(advice.contains("restart"), "{advice}");
        let (_, found, advice) = judged(&file.replace("[]", "['::/0']"));
        assert_eq!(
            (found.split_once(": ").unwrap().1, &advice[..]),
            ("'routes' in [push]", "run: vpnd reload")
        );
        let (_, found, advice) = judged("");
        assert!(found.ends_with("'shards' in [server], 'routes' in [push]"), "{found}");
        assert!(advice.ends_with("takes over 'routes' in [push]"), "{advice}");
    }

    #[test]
    fn web_pages_that_are_not_served_are_a_problem() {
        let mut status = status();
        let verdict = |status: &Status| status.portal.as_ref().map(|portal| health::portal(portal).verdict);
        assert_eq!(verdict(&status), Some(Verdict::Good));
        status.portal.as_mut().unwrap().up = false;
        assert_eq!(verdict(&status), Some(Verdict::Problem));
        status.portal = None;
        assert_eq!(verdict(&status), None, "they are off");
    }

    #[test]
    fn a_gateway_that_records_nothing_is_a_problem() {
        let mut status = status();
        let verdict = |status: &Status| audit(status).map(|finding| finding.verdict);
        assert_eq!(verdict(&status), Some(Verdict::Warning), "two events were lost");
        status.counters.audit.clear();
        assert_eq!(verdict(&status), Some(Verdict::Good));
        status.audit.as_mut().unwrap().failure = Some("the disk is full".to_owned());
        assert_eq!(verdict(&status), Some(Verdict::Problem));
        status.audit = None;
        assert_eq!(verdict(&status), None);
    }

    #[test]
    fn a_process_without_one_of_its_protections_is_named() {
        let mut status = status();
        assert_eq!(protections(&status).verdict, Verdict::Good, "{:?}", protections(&status));
        status.processes[0].protections.seccomp = false;
        let finding = protections(&status);
        assert_eq!(finding.verdict, Verdict::Warning);
        assert!(finding.found.contains(&status.processes[0].name));
        status.processes.clear();
        assert_eq!(protections(&status).verdict, Verdict::Unknown);
    }
}
