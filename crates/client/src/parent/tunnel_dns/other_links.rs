//! Domains that systemd-resolved asks other links about, though they are the tunnel's: an attacker
//! who runs the local network may name them by DHCP. Of all links it asks the one with the longest
//! domain that a name ends in.
//!
//! INVARIANT: this only reports them, once for each change.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use vpnd_proto::time::Time;
use vpnd_sys::clock::now;
use vpnd_sys::dns::{self, DnsSettings};

/// Interval of looks: a lease, or another network, may bring domains at any time.
const INTERVAL: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct OtherLinks {
    next: Option<Time>,
    /// The last findings, so that each is logged once.
    found: Arc<Mutex<Vec<(String, String)>>>,
}

impl OtherLinks {
    /// Looks in a separate task, if it is time and systemd-resolved `runs`; `is_full`: a full
    /// tunnel's guard lets nothing else ask.
    pub(super) fn look(&mut self, settings: DnsSettings, is_full: bool, runs: impl FnOnce() -> bool) {
        if settings.search.is_empty() || self.next.is_some_and(|next| now() < next) || !runs() {
            return;
        }
        self.next = Some(now() + INTERVAL);
        let last = Arc::clone(&self.found);
        tokio::spawn(async move {
            // One that is just restarting is asked again later.
            let Ok(listing) = dns::domains_in_resolved().await else { return };
            let found = taken(&listing, &settings);
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            report(found.iter().filter(|found| !last.contains(found)), is_full);
            *last = found;
        });
    }
}

fn report<'f>(new: impl Iterator<Item = &'f (String, String)>, is_full: bool) {
    for (link, domain) in new {
        let outcome = if is_full {
            "not asked while a full tunnel is up, so names of it may fail"
        } else {
            "asked for names of it in the tunnel's place, in clear"
        };
        tracing::warn!(
            %link, %domain,
            "systemd-resolved has a domain of the tunnel for another link, whose name servers are {outcome}; the local network may \
             have named it: `resolvectl domain {link} \"\"` takes it away"
        );
    }
}

/// The links of a listing by `resolvectl domain`, but for the tunnel's, with their domains that are
/// the tunnel's search domains or below.
fn taken(listing: &str, settings: &DnsSettings) -> Vec<(String, String)> {
    let (mut link, mut found) = (None, Vec::new());
    for line in listing.lines() {
        let mut domains = line;
        // Long lists go on in the next line.
        if let Some((head, rest)) = line.split_once("):") {
            link = head.split_once(" (").map(|(_, name)| name.to_owned());
            domains = rest;
        } else if let Some(rest) = line.strip_prefix("Global:") {
            (link, domains) = (None, rest);
        }
        let Some(link) = link.as_ref().filter(|link| **link != settings.interface) else { continue };
        let names =
            domains.split_whitespace().map(|domain| domain.trim_start_matches('~').trim_end_matches('.'));
        let ours = names.filter(|domain| settings.search.iter().any(|search| is_within(domain, search)));
        found.extend(ours.map(|domain| (link.clone(), domain.to_owned())));
    }
    found
}

/// Whether a domain is another or below it.
fn is_within(domain: &str, other: &str) -> bool {
    let (domain, other) = (domain.to_ascii_lowercase(), other.trim_end_matches('.').to_ascii_lowercase());
    domain.strip_suffix(&other).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_of_other_links_count_where_they_are_the_tunnels_or_below() {
        let settings = DnsSettings {
            interface: "vpn0".to_owned(),
            index: None,
            servers: Vec::new(),
            search: vec!["campus.example".to_owned(), "lab.example.".to_owned()],
            all_names: false,
        };
        let listing = "Global: campus.example\n\
                       Link 2 (up0): Campus.Example ~www.campus.example notcampus.example example\n\
                       \x20            lab.example. other.test\n\
                       Link 3 (vpn0): campus.example ~lab.example\n\
                       Link 4 (up1):\n";
        let found = taken(listing, &settings);
        let up0 = |domain: &str| ("up0".to_owned(), domain.to_owned());
        assert_eq!(found, [up0("Campus.Example"), up0("www.campus.example"), up0("lab.example")]);
    }
}
