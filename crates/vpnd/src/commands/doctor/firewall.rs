//! The gateway's own firewall table, and the kernel's table of connections.

use std::time::Duration;

use super::Finding;
use vpnd_config::{NatMode, ServerConfig};
use vpnd_ipc::admin::Status;
use vpnd_sys::nft_listing::Listing;

/// Time in which a gateway puts its table back.
const RENEWAL_TIME: Duration = Duration::from_secs(1);

/// The running gateway's own table, as the kernel has it.
pub(super) async fn own(status: Option<&Status>) -> Vec<Finding> {
    const CHECK: &str = "firewall.own";
    let Some(applied) = status.and_then(|status| status.firewall.as_ref()) else { return Vec::new() };
    let table = &applied.table;
    let mut fault = None;
    for attempt in 0..2 {
        if attempt > 0 {
            // The gateway may be about to put it back.
            tokio::time::sleep(RENEWAL_TIME).await;
        }
        fault = match Listing::read(table).await {
            Ok(None) => Some("is missing"),
            Ok(Some(found)) => {
                let is_known = applied.rules.as_ref() == Some(&found.digest());
                (!is_known).then_some("is not as the gateway has applied it")
            }
            Err(error) => return vec![Finding::unknown(CHECK, error.to_string(), "run this as root")],
        };
        if fault.is_none() {
            break;
        }
    }
    let renewals = applied.renewals;
    let advice = "the log says why, and which program did it; 'vpnd reload' applies the table again; have other programs leave it alone";
    vec![match fault {
        Some(fault) => Finding::problem(
            CHECK,
            format!("the gateway's firewall table inet {table} {fault}, so packets pass without its rules"),
            advice,
        ),
        None if renewals > 0 => Finding::warning(
            CHECK,
            format!(
                "another program has removed or changed the gateway's firewall table inet {table}, which was put back ({renewals} times)"
            ),
            advice,
        ),
        None => Finding::good(CHECK, format!("the gateway's firewall table inet {table} is in force")),
    }]
}

/// How full the kernel's table of connections is, and whether one client can fill it.
pub(super) fn connections(config: &ServerConfig) -> Vec<Finding> {
    let read = |name: &str| -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/sys/net/netfilter/nf_conntrack_{name}")).ok()?;
        text.trim().parse().ok()
    };
    match (config.nat.mode, read("count"), read("max")) {
        (NatMode::None, ..) | (_, None, _) | (_, _, None | Some(0)) => Vec::new(),
        (_, Some(count), Some(most)) => {
            let limit = config.limits.max_connections_per_address.map(|limit| u64::from(limit.get()));
            vec![judge_connections(count, most, limit)]
        }
    }
}

fn judge_connections(count: u64, most: u64, limit: Option<u64>) -> Finding {
    const CHECK: &str = "kernel.connections";
    let found = format!("{count} of {most} places in the kernel's table of connections are taken");
    let more =
        format!("sysctl -w net.netfilter.nf_conntrack_max={}, and in /etc/sysctl.d", most.saturating_mul(2));
    if count >= most {
        Finding::problem(CHECK, format!("{found}: new connections of clients fail"), more)
    } else if count >= most / 5 * 4 {
        Finding::warning(CHECK, found, more)
    } else if limit.is_none_or(|limit| limit > most / 4) {
        let limit = "max_connections_per_address in [limits]";
        Finding::warning(
            CHECK,
            format!(
                "{limit} lets few clients fill the kernel's table of connections, which has {most} places"
            ),
            format!("set it to {} or less; or {more}", most / 16),
        )
    } else {
        Finding::good(CHECK, found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Verdict;

    #[test]
    fn a_table_of_connections_that_fills_up_is_noticed_before_it_is_full() {
        for (count, most, limit, verdict) in [
            (0, 262_144, Some(4_096), Verdict::Good),
            (209_711, 262_144, Some(4_096), Verdict::Good),
            (209_712, 262_144, Some(4_096), Verdict::Warning),
            (262_144, 262_144, Some(4_096), Verdict::Problem),
            (0, 262_144, None, Verdict::Warning),
            (0, 8_192, Some(4_096), Verdict::Warning),
        ] {
            assert_eq!(judge_connections(count, most, limit).verdict, verdict, "{count} of {most}");
        }
    }
}
