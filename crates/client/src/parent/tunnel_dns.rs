//! The tunnel's name servers: whether the machine uses them now, and how they come back when
//! another program takes them away.
//!
//! The worker reports whether the tunnel leads somewhere; all else is decided here, so that nothing
//! depends on how far the worker came with what it had begun.
//!
//! INVARIANT: while a gateway's name is looked up, or the tunnel leads nowhere, the machine has its
//! own name servers; else it has the tunnel's. INVARIANT: while a full tunnel's are to be in force,
//! no others are asked ([`TunnelDns::closes_names`]). INVARIANT: what comes back at the end is what
//! another program wrote last, not what was there at the start.

use std::net::IpAddr;
use std::time::Duration;

use vpnd_proto::time::Time;

use super::network::NetworkError;
use vpnd_journal::{ChangeId, Journal, JournalError};
use vpnd_sys::allowance::Allowance;
use vpnd_sys::change::{Change, ChangeError};
use vpnd_sys::clock::now;
use vpnd_sys::dns::{self, DnsChange, DnsError, DnsFound, DnsSettings, DnsSystem, FileState};
use vpnd_sys::netlink::Netlink;
use vpnd_sys::renewal_log::ORDINARY;

mod other_links;
mod watch;

use other_links::OtherLinks;
pub(super) use watch::DnsWatch;

/// The content that another program writes has to stay the same for this long before it counts: it
/// may be writing.
const SETTLES: Duration = Duration::from_millis(100);
/// A systemd-resolved that restarts is back sooner.
const RESTARTS: Duration = Duration::from_secs(2);
/// Time for which a program that rewrites again and again is left alone.
const PAUSE: Duration = Duration::from_secs(60);

pub(super) struct TunnelDns {
    system: DnsSystem,
    interface_index: u32,
    /// The gateway's, as far as the profile permits them. `None` leaves the machine's as they are.
    settings: Option<DnsSettings>,
    /// Whether the tunnel is for everything.
    is_full: bool,
    /// Whether the tunnel leads somewhere.
    is_reachable: bool,
    /// Whether a gateway's name is being looked up.
    is_looking_up: bool,
    in_force: Vec<(ChangeId, DnsChange)>,
    /// The name servers that the machine used before.
    own: Vec<IpAddr>,
    /// The content that another program has written, and when it was first seen.
    seen: Option<(FileState, Time)>,
    rewrites: Rewrites,
    other_links: OtherLinks,
    /// The settings of systemd-resolved after the last change.
    memory: Option<Vec<u8>>,
    /// The problem that was logged last, so that it is not logged each second.
    problem: Option<String>,
    /// Whether names have not been tried since the name servers were set.
    is_untried: bool,
}

impl TunnelDns {
    pub(super) fn new(interface_index: u32) -> Self {
        Self {
            system: DnsSystem::default(),
            interface_index,
            settings: None,
            is_full: false,
            is_reachable: true,
            is_looking_up: false,
            in_force: Vec::new(),
            own: Vec::new(),
            seen: None,
            rewrites: Rewrites::new(),
            other_links: OtherLinks::default(),
            memory: None,
            problem: None,
            is_untried: false,
        }
    }

    /// Takes the gateway's new settings, of a tunnel for everything or for a part. They are in
    /// force once [`TunnelDns::settle`] was called.
    pub(super) fn set(&mut self, settings: Option<DnsSettings>, is_full: bool) {
        self.is_untried |= settings.is_some() && self.settings != settings;
        (self.settings, self.is_full) = (settings, is_full);
    }

    /// Whether no name servers but the tunnel's may be asked: those are to be in force, and the
    /// tunnel is for everything. Then it does not matter what another program writes or the local
    /// network names.
    pub(super) fn closes_names(&self) -> bool {
        self.is_full && self.wanted().is_some()
    }

    /// The tunnel's name servers, as long as the machine uses them.
    pub(super) fn in_use(&self) -> Option<&DnsSettings> {
        self.wanted().filter(|_| !self.in_force.is_empty())
    }

    fn wanted(&self) -> Option<&DnsSettings> {
        self.settings.as_ref().filter(|_| self.is_reachable && !self.is_looking_up)
    }

    pub(super) fn set_reachable(&mut self, is_reachable: bool) {
        self.is_reachable = is_reachable;
    }

    pub(super) fn set_looking_up(&mut self, is_looking_up: bool) {
        self.is_looking_up = is_looking_up;
    }

    pub(super) fn is_looking_up(&self) -> bool {
        self.is_looking_up
    }

    /// The name servers that the machine uses without the tunnel.
    pub(super) fn own_servers(&self) -> Vec<IpAddr> {
        let mut servers = dns::servers_in_use(&self.system);
        if let (false, Some(settings)) = (self.in_force.is_empty(), &self.settings) {
            servers.retain(|server| !settings.servers.contains(server));
            servers.extend(&self.own);
        }
        servers
    }

    /// A domain of the tunnel's names, once after its name servers were set: whether one can be
    /// looked up is to be tried. An empty one if the gateway names none.
    pub(super) fn take_untried(&mut self) -> Option<String> {
        if self.in_force.is_empty() || !std::mem::take(&mut self.is_untried) {
            return None;
        }
        self.settings.as_ref().map(|settings| settings.search.first().cloned().unwrap_or_default())
    }

    /// Has the machine use the name servers that it should use now. Returns whether that is done;
    /// otherwise another look is needed soon.
    ///
    /// # Errors
    /// If they could not be set or put back. That another tunnel has the file is none, and logged.
    pub(super) async fn settle(
        &mut self,
        journal: &mut Journal,
        netlink: &Netlink,
    ) -> Result<bool, NetworkError> {
        let outcome = match self.wanted().cloned() {
            Some(settings) => self.put_in_force(&settings, journal, netlink).await,
            None => self.take_back(journal, netlink).await.map(|()| true),
        };
        match outcome {
            // Each would put back the other's at its end.
            Err(NetworkError::Dns(error @ DnsError::HeldBy { .. })) => {
                self.report(format!("the gateway's name servers are not used: {error}"));
                Ok(true)
            }
            Err(NetworkError::Journal(JournalError::Change {
                source: ChangeError::Dns(DnsError::Changed(_)),
                ..
            })) => Ok(false),
            Ok(is_done) => {
                self.problem = None;
                Ok(is_done)
            }
            failed => failed,
        }
    }

    /// Whether the name servers are not those that they should be.
    pub(super) fn has_problem(&self) -> bool {
        self.problem.is_some()
    }

    /// Logs once what went wrong, where it is tried again from time to time.
    pub(super) fn checked(&mut self, outcome: Result<bool, NetworkError>) -> bool {
        outcome.unwrap_or_else(|error| {
            let error = vpnd_sys::text::format_chain(&error.into());
            self.report(format!("the machine's name servers are not those that they should be: {error}"));
            true
        })
    }

    fn report(&mut self, problem: String) {
        if self.problem.as_ref() != Some(&problem) {
            tracing::warn!("{problem}");
            self.problem = Some(problem);
        }
    }

    async fn put_in_force(
        &mut self,
        settings: &DnsSettings,
        journal: &mut Journal,
        netlink: &Netlink,
    ) -> Result<bool, NetworkError> {
        for index in 0..self.in_force.len() {
            let (id, change) = self.in_force[index].clone();
            match change.find(settings)? {
                DnsFound::InForce => {}
                DnsFound::Outdated(new) => self.replace(index, new, journal, netlink).await?,
                DnsFound::Foreign(state) => {
                    if !self.has_settled(&state, SETTLES) {
                        return Ok(false);
                    }
                    if !self.rewrites.may_be_undone(now()) {
                        return Ok(true);
                    }
                    // Its content is what is put back in the end, so ours is planned again.
                    self.own = dns::servers_in_use(&self.system);
                    let others = self.made_but(id);
                    let planned = DnsChange::plan(settings, &self.system, &others)?;
                    match planned.into_iter().find(DnsChange::is_file) {
                        Some(new) => self.replace(index, new, journal, netlink).await?,
                        // It leads to systemd-resolved now.
                        None => {
                            journal.undo(netlink, id).await?;
                            self.in_force.remove(index);
                            break;
                        }
                    }
                    self.rewrites.note(now(), &format!("{state} in the place of resolv.conf"));
                }
            }
        }
        self.renew_resolved(journal, netlink).await?;
        let is_done = self.make_missing(settings, journal, netlink).await?;
        if is_done {
            self.seen = None;
        }
        Ok(is_done)
    }

    /// Has another task look whether systemd-resolved asks others about the tunnel's names, if it
    /// is time.
    pub(super) fn look_at_other_links(&mut self) {
        let is_resolved = self.in_force.iter().any(|(_, change)| !change.is_file());
        let Some(settings) = self.wanted().filter(|_| is_resolved).cloned() else { return };
        // Asking one that was stopped would start it.
        let runs = || dns::resolved_memory(&self.system, self.interface_index).is_some();
        self.other_links.look(settings, self.is_full, runs);
    }

    /// Goes the ways that no change goes yet: all of them at first; later those that names take
    /// since another program has written `resolv.conf`, or systemd-resolved was started or stopped.
    async fn make_missing(
        &mut self,
        settings: &DnsSettings,
        journal: &mut Journal,
        netlink: &Netlink,
    ) -> Result<bool, NetworkError> {
        let made: Vec<&DnsChange> = self.in_force.iter().map(|(_, change)| change).collect();
        let is_first = made.is_empty();
        let planned = DnsChange::plan(settings, &self.system, &made)?;
        if is_first {
            self.own = dns::servers_in_use(&self.system);
        }
        for change in planned {
            if let (DnsChange::File(file), false) = (&change, is_first)
                && !self.has_settled(&file.before, RESTARTS)
            {
                return Ok(false);
            }
            let id = journal.apply(netlink, Change::Dns(change.clone())).await?;
            self.memory = dns::resolved_memory(&self.system, self.interface_index);
            self.in_force.push((id, change));
        }
        Ok(true)
    }

    /// Puts the settings back that another program has changed in systemd-resolved, or that it has
    /// forgotten.
    async fn renew_resolved(&mut self, journal: &Journal, netlink: &Netlink) -> Result<(), NetworkError> {
        let Some(memory) = dns::resolved_memory(&self.system, self.interface_index) else { return Ok(()) };
        let resolved = self.in_force.iter().find(|(_, change)| !change.is_file());
        let Some((id, _)) = resolved.filter(|_| self.memory.as_ref() != Some(&memory)) else { return Ok(()) };
        if self.rewrites.may_be_undone(now()) {
            journal.renew(netlink, *id).await?;
            self.memory = dns::resolved_memory(&self.system, self.interface_index);
            self.rewrites.note(now(), "other settings of the tunnel in systemd-resolved");
        }
        Ok(())
    }

    async fn replace(
        &mut self,
        index: usize,
        new: DnsChange,
        journal: &mut Journal,
        netlink: &Netlink,
    ) -> Result<(), NetworkError> {
        let (id, now) = &mut self.in_force[index];
        journal.replace(netlink, *id, Change::Dns(new.clone())).await?;
        *now = new;
        self.memory = dns::resolved_memory(&self.system, self.interface_index);
        Ok(())
    }

    async fn take_back(&mut self, journal: &mut Journal, netlink: &Netlink) -> Result<(), NetworkError> {
        while let Some((id, _)) = self.in_force.last() {
            journal.undo(netlink, *id).await?;
            self.in_force.pop();
        }
        self.seen = None;
        Ok(())
    }

    fn made_but(&self, id: ChangeId) -> Vec<&DnsChange> {
        self.in_force.iter().filter(|(other, _)| *other != id).map(|(_, change)| change).collect()
    }

    /// Whether this has been there for that time.
    fn has_settled(&mut self, state: &FileState, time: Duration) -> bool {
        let now = now();
        match &self.seen {
            Some((seen, since)) if seen == state => now.since(*since) >= time,
            _ => {
                self.seen = Some((state.clone(), now));
                false
            }
        }
    }
}

/// How often another program has taken the tunnel's name servers away.
struct Rewrites {
    /// Those that may be a lease's renewals, or an administrator's changes.
    ordinary: Allowance,
    paused_until: Option<Time>,
}

impl Rewrites {
    const fn new() -> Self {
        Self { ordinary: ORDINARY, paused_until: None }
    }

    fn may_be_undone(&self, now: Time) -> bool {
        self.paused_until.is_none_or(|until| now >= until)
    }

    /// Notes that the tunnel's were put back, in the place of this.
    fn note(&mut self, now: Time, foreign: &str) {
        if self.ordinary.take(now) {
            tracing::info!("another program has put {foreign}: the tunnel's name servers are back");
            return;
        }
        self.paused_until = Some(now + PAUSE);
        tracing::warn!(
            "another program takes the tunnel's name servers away again and again, and has put {foreign}: they are put back once \
             more, and what it writes within the next {} s stays for as long; a full tunnel \
             lets no question leave to its servers. Have it leave the name servers alone, or connect with --no-dns",
            PAUSE.as_secs()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_does_not_stop_is_left_alone_for_a_while() {
        let mut rewrites = Rewrites::new();
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        for second in 0..5 {
            rewrites.note(at(second), "x");
            assert!(rewrites.may_be_undone(at(second)), "{second}");
        }
        rewrites.note(at(5), "x");
        assert!(!rewrites.may_be_undone(at(5)));
        assert!(!rewrites.may_be_undone(at(64)));
        assert!(rewrites.may_be_undone(at(65)));
        // A renewal each quarter of a minute is no fight.
        for turn in 0..20 {
            rewrites.note(at(100 + 15 * turn), "x");
            assert!(rewrites.may_be_undone(at(100 + 15 * turn)), "{turn}");
        }
    }
}
