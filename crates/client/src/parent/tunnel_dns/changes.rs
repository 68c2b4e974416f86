//! The changes that have the machine use the tunnel's name servers, and how they come back when
//! another program takes them away. This does not know when the machine is to use them.
//!
//! INVARIANT: what comes back at the end is what another program wrote last, not what was there at
//! the start.

use std::net::IpAddr;
use std::time::Duration;

use vpnd_proto::time::Time;

use crate::parent::network::NetworkError;
use vpnd_journal::{ChangeId, Journal};
use vpnd_sys::allowance::Allowance;
use vpnd_sys::change::Change;
use vpnd_sys::clock::now;
use vpnd_sys::dns::{self, DnsChange, DnsFound, DnsSettings, DnsSystem, FileState};
use vpnd_sys::netlink::Netlink;
use vpnd_sys::renewal_log::ORDINARY;

/// The content that another program writes has to stay the same for this long before it counts: it
/// may be writing.
pub(super) const SETTLES: Duration = Duration::from_millis(100);
/// A systemd-resolved that restarts is back sooner.
const RESTARTS: Duration = Duration::from_secs(2);
/// Time for which a program that rewrites again and again is left alone.
const PAUSE: Duration = Duration::from_secs(60);

pub(super) struct DnsChanges {
    system: DnsSystem,
    interface_index: u32,
    in_force: Vec<(ChangeId, DnsChange)>,
    /// The name servers that the machine used before.
    own: Vec<IpAddr>,
    /// The content that another program has written, and when it was first seen.
    seen: Option<(FileState, Time)>,
    rewrites: Rewrites,
    /// The settings of systemd-resolved after the last change.
    memory: Option<Vec<u8>>,
}

impl DnsChanges {
    pub(super) fn new(interface_index: u32) -> Self {
        Self {
            system: DnsSystem::default(),
            interface_index,
            in_force: Vec::new(),
            own: Vec::new(),
            seen: None,
            rewrites: Rewrites::new(),
            memory: None,
        }
    }

    /// Whether no change is in force.
    pub(super) fn is_empty(&self) -> bool {
        self.in_force.is_empty()
    }

    /// Whether the machine asks the tunnel's name servers through systemd-resolved.
    pub(super) fn has_resolved(&self) -> bool {
        self.in_force.iter().any(|(_, change)| !change.is_file())
    }

    /// The tunnel's settings that systemd-resolved has now; `None` while it does not run.
    pub(super) fn memory_now(&self) -> Option<Vec<u8>> {
        dns::resolved_memory(&self.system, self.interface_index)
    }

    /// The name servers that the machine uses without the tunnel, whose settings are these.
    pub(super) fn own_servers(&self, settings: Option<&DnsSettings>) -> Vec<IpAddr> {
        let mut servers = dns::servers_in_use(&self.system);
        if let (false, Some(settings)) = (self.in_force.is_empty(), settings) {
            servers.retain(|server| !settings.servers.contains(server));
            servers.extend(&self.own);
        }
        servers
    }

    /// Has the machine use the servers of these settings, whatever other programs did. Returns
    /// whether that is done; otherwise another look is needed soon.
    pub(super) async fn put_in_force(
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
            self.memory = self.memory_now();
            self.in_force.push((id, change));
        }
        Ok(true)
    }

    /// Puts the settings back that another program has changed in systemd-resolved, or that it has
    /// forgotten.
    async fn renew_resolved(&mut self, journal: &Journal, netlink: &Netlink) -> Result<(), NetworkError> {
        let Some(memory) = self.memory_now() else { return Ok(()) };
        let resolved = self.in_force.iter().find(|(_, change)| !change.is_file());
        let Some((id, _)) = resolved.filter(|_| self.memory.as_ref() != Some(&memory)) else { return Ok(()) };
        if self.rewrites.may_be_undone(now()) {
            journal.renew(netlink, *id).await?;
            self.memory = self.memory_now();
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
        self.memory = self.memory_now();
        Ok(())
    }

    /// Has the machine use its own name servers.
    pub(super) async fn take_back(
        &mut self,
        journal: &mut Journal,
        netlink: &Netlink,
    ) -> Result<(), NetworkError> {
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
