//! Reports of a gateway of a fleet to the others, through the database.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use vpnd_proto::session::SessionId;
use vpnd_proto::time::Time;

use super::administration::{OwnAddresses, StaticInfo};
use crate::worker::auth_client::AuthClient;
use crate::worker::core::{Core, CoreRequest, Reported, Stopped};
use vpnd_ipc::gateway::auth::{GatewayReport, MAX_ABSENCES, MAX_ADDRESSES};
use vpnd_sys::clock::now;
use vpnd_sys::process::cpu_time;

/// Interval of reports. The others wait for more than two before they take a gateway for gone
/// (`GATEWAY_SILENCE_S` of the store).
const INTERVAL: Duration = Duration::from_secs(5);

/// A drain is reported within this time.
const LOOK_INTERVAL: Duration = Duration::from_millis(400);

/// Makes the reports.
pub(crate) struct Reporter {
    address: Option<IpAddr>,
    /// The machine's.
    own: OwnAddresses,
    shards: usize,
    next: Time,
    /// When the last report was made, and the CPU time until then.
    before: (Time, Duration),
    was_draining: bool,
    /// Whether each session's client was away by the last report.
    were_away: HashMap<SessionId, bool>,
}

impl Reporter {
    pub(super) fn new(info: &StaticInfo, own: &OwnAddresses) -> Self {
        let address = Some(info.listen.ip()).filter(|address| !address.is_unspecified());
        let now = now();
        let before = (now, cpu_time());
        let were_away = HashMap::new();
        let (own, shards) = (Arc::clone(own), info.shards);
        Self { address, own, shards, next: now, before, was_draining: false, were_away }
    }

    /// Reports until the control plane has stopped.
    pub(super) async fn run(mut self, core: Core, auth: AuthClient) {
        while self.report(&core, &auth).await.is_ok() {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Reports if it is time, or a drain has begun or ended. A report that fails is made later.
    async fn report(&mut self, core: &Core, auth: &AuthClient) -> Result<(), Stopped> {
        let (now, is_draining) = (now(), core.is_draining());
        if now < self.next && is_draining == self.was_draining {
            return Ok(());
        }
        let Reported { absences, mut addresses } = core.reported().await?;
        {
            let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
            keep_own(&mut addresses, &own);
        }
        let in_use = absences.iter().filter(|(_, is_away)| !is_away).count();
        let news = Absences::since(&self.were_away, &absences);
        let cpu = cpu_time();
        let used = cpu.saturating_sub(self.before.1);
        let load_percent = percent(used, now.since(self.before.0), self.shards);
        let report = GatewayReport {
            address: self.address,
            sessions: in_use as u64,
            load_percent,
            is_draining,
            away: news.away.iter().map(|session| session.0.into()).collect(),
            back: news.back.iter().map(|session| session.0.into()).collect(),
            addresses,
        };
        (self.next, self.before) = (now + INTERVAL, (now, cpu));
        match auth.request(report).await {
            Ok(gateways) => {
                self.was_draining = is_draining;
                if news.are_all {
                    self.were_away = absences.into_iter().collect();
                } else {
                    self.were_away.extend(news.back.into_iter().map(|session| (session, false)));
                    self.were_away.extend(news.away.into_iter().map(|session| (session, true)));
                    self.next = now;
                }
                core.send(CoreRequest::Fleet(gateways)).await?;
            }
            // The task that follows the sessions logs it, too.
            Err(error) => tracing::debug!(%error, "the fleet was not told of this gateway"),
        }
        Ok(())
    }
}

/// The sessions whose clients have gone away or come back, as many as a report takes.
struct Absences {
    away: Vec<SessionId>,
    back: Vec<SessionId>,
    are_all: bool,
}

impl Absences {
    /// Those that `before` has otherwise. Of a session that is new it is not known what others
    /// know.
    fn since(before: &HashMap<SessionId, bool>, now: &[(SessionId, bool)]) -> Self {
        let changed = now.iter().filter(|(session, is_away)| before.get(session) != Some(is_away));
        let (away, back): (Vec<&(SessionId, bool)>, Vec<_>) = changed.partition(|(_, is_away)| *is_away);
        let are_all = away.len().max(back.len()) <= MAX_ABSENCES;
        let [away, back] = [away, back]
            .map(|changed| changed.into_iter().take(MAX_ABSENCES).map(|(session, _)| *session).collect());
        Self { away, back, are_all }
    }
}

/// Leaves those of the fleet's addresses that are the machine's.
fn keep_own(addresses: &mut Vec<IpAddr>, own: &BTreeSet<IpAddr>) {
    addresses.retain(|address| own.contains(address));
    addresses.dedup();
    addresses.truncate(MAX_ADDRESSES);
}

/// `used` of the time that `cores` have had.
fn percent(used: Duration, elapsed: Duration, cores: usize) -> u64 {
    let had = elapsed.as_millis().max(1) * cores.max(1) as u128;
    u64::try_from(used.as_millis() * 100 / had).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detached_and_returned_clients_are_reported_once() {
        let session = |number: u16| {
            let mut id = [0; 16];
            id[..2].copy_from_slice(&number.to_be_bytes());
            SessionId(id)
        };
        let news = Absences::since(&HashMap::new(), &[(session(1), false), (session(2), true)]);
        assert_eq!((news.away, news.back, news.are_all), (vec![session(2)], vec![session(1)], true));
        let before = HashMap::from([(session(1), false), (session(2), true), (session(3), false)]);
        let news = Absences::since(&before, &[(session(1), true), (session(2), true)]);
        assert_eq!((news.away, news.back, news.are_all), (vec![session(1)], vec![], true));
        let many: Vec<_> = (0..=MAX_ABSENCES as u16).map(|number| (session(number), false)).collect();
        let news = Absences::since(&HashMap::new(), &many);
        assert_eq!((news.back.len(), news.are_all), (MAX_ABSENCES, false));
    }

    #[test]
    fn a_gateway_reports_its_own_of_the_fleets_addresses() {
        let address = |last| IpAddr::from([192, 0, 2, last]);
        let own: BTreeSet<IpAddr> = (2..20).map(address).chain(["2001:db8::1".parse().unwrap()]).collect();
        let mut addresses = vec![address(1), address(2), address(2), "2001:db8::1".parse().unwrap()];
        keep_own(&mut addresses, &own);
        assert_eq!(addresses, [address(2), "2001:db8::1".parse().unwrap()]);
        let mut many: Vec<IpAddr> = (1..16).map(address).collect();
        keep_own(&mut many, &own);
        assert_eq!(many, [2, 3, 4, 5].map(address));
    }

    #[test]
    fn load_is_a_part_of_what_the_shards_have() {
        let [one, two] = [1, 2].map(Duration::from_secs);
        assert_eq!(percent(one, two, 1), 50);
        assert_eq!(percent(one, two, 2), 25);
        assert_eq!(percent(Duration::ZERO, Duration::ZERO, 0), 0);
    }
}
