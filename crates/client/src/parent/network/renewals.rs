//! Renewals of what other programs have removed: their number, and their lines in the log.

use vpnd_proto::time::Time;

use vpnd_sys::renewal_log::{RenewalLine, RenewalLog};

/// Changes named in a line of the log.
const NAMED: usize = 6;

/// All renewals of one client.
pub(super) struct Renewals {
    total: u64,
    log: RenewalLog,
}

impl Renewals {
    pub(super) const fn new() -> Self {
        Self { total: 0, log: RenewalLog::new() }
    }

    /// Their number.
    pub(super) const fn total(&self) -> u64 {
        self.total
    }

    /// Counts and logs that this was removed and is in force again.
    pub(super) fn note(&mut self, removed: &[String], now: Time) {
        if removed.is_empty() {
            return;
        }
        self.total += 1;
        let renewals = self.total;
        let mut list = removed.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
        if let Some(more) = removed.len().checked_sub(NAMED).filter(|more| *more > 0) {
            list += &format!(", and {more} more");
        }
        match self.log.note(now) {
            Some(RenewalLine::Once) => {
                tracing::warn!(removed = %list, renewals, "another program removed what the tunnel needs; it is in force again");
            }
            Some(RenewalLine::Fight) => tracing::error!(
                removed = %list, renewals,
                "another program keeps removing what the tunnel needs, several times a minute: find it (`ip monitor link address \
                 route rule`, `nft monitor`) and have it leave alone what it did not make; for systemd-networkd that is \
                 ManageForeignRoutes=no in networkd.conf"
            ),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use vpnd_sys::logging::testing::logged_as_json;

    #[test]
    fn a_few_renewals_are_logged_each_and_a_fight_once_a_minute() {
        let mut renewals = Renewals::new();
        let removed: Vec<String> = (0..8).map(|number| format!("route {number}")).collect();
        let lines = logged_as_json(|| {
            renewals.note(&[], Time::ZERO);
            for second in 0..20 {
                renewals.note(&removed, Time::ZERO + Duration::from_secs(second));
            }
        });
        let levels: Vec<_> = lines.iter().map(|line| line["level"].as_str().unwrap()).collect();
        assert_eq!(levels, ["WARN", "WARN", "WARN", "WARN", "WARN", "ERROR", "WARN"]);
        let list = lines[0]["removed"].as_str().unwrap();
        assert!(list.contains("route 5, and 2 more") && !list.contains("route 6"), "{list}");
        assert_eq!((lines[0]["renewals"].as_u64(), lines[6]["renewals"].as_u64()), (Some(1), Some(13)));
        assert!(lines[5]["message"].as_str().unwrap().contains("networkd.conf"), "{}", lines[5]);
    }
}
