//! The kill switch that arguments and profile ask for.

use std::net::SocketAddr;

use super::WouldCutOff;
use super::inbound::{self, Inbound, cut_off};
use crate::args::ConnectArgs;
use crate::person::session;
use vpnd_config::profile::{KillSwitchMode, Profile};
use vpnd_journal::kill_switch::{KillSwitchPlace, KillSwitchRecord};
use vpnd_sys::nft::KillSwitchRules;

/// The settings of this machine: the command's and the profile's.
#[derive(Clone)]
pub(in super::super) struct Wanted {
    /// `None` if neither says anything.
    pub(super) mode: Option<KillSwitchMode>,
    pub(super) tunnel: String,
    /// For whom the client runs.
    pub(super) user: u32,
    /// Whether it connects without a person.
    is_machines: bool,
    /// The gateway that requires it, if this machine does not.
    pub(super) required_by: Option<String>,
    inbound: Vec<u16>,
    /// Whether the person has named these ports.
    is_meant: bool,
    passes_local: bool,
    pub(super) sessions: Vec<SocketAddr>,
}

impl Wanted {
    pub(in super::super) fn new(args: &ConnectArgs, profile: &Profile) -> Self {
        let named = args.kill_switch_inbound.as_ref();
        Self {
            mode: args.kill_switch.or(profile.kill_switch.mode),
            tunnel: args.tun.clone(),
            user: args.on_behalf_of,
            is_machines: profile.machine,
            required_by: None,
            inbound: named.map_or(&profile.kill_switch.inbound, |ports| &ports.0).clone(),
            is_meant: named.is_some(),
            passes_local: args.kill_switch_allow_local || profile.kill_switch.allow_local,
            sessions: args.sessions.clone(),
        }
    }

    /// The mode to put in force. No person starts the client of a machine, so `off` in its profile
    /// ends no switch that is on.
    pub(super) fn asked(&self) -> Option<KillSwitchMode> {
        self.mode.filter(|mode| *mode != KillSwitchMode::Off || !self.is_machines)
    }

    /// Whether this client may put another switch in the place of that one. The machine's may not
    /// take a user's, though it is root's: no person starts it.
    pub(super) fn may_change(&self, before: &KillSwitchRecord) -> bool {
        if self.is_machines { before.user == self.user } else { before.is_of(self.user) }
    }

    pub(super) fn record(&self, place: &KillSwitchPlace, mode: KillSwitchMode) -> KillSwitchRecord {
        let (tunnel, inbound) = (self.tunnel.clone(), self.inbound.clone());
        let rules = KillSwitchRules { tunnel, inbound, local: Vec::new() };
        let is_persistent = mode == KillSwitchMode::Persistent;
        let record = place.record(self.user, is_persistent, self.passes_local, rules);
        KillSwitchRecord { required_by: self.required_by.clone(), ..record }
    }

    /// The connections that it cuts off.
    ///
    /// # Errors
    /// [`WouldCutOff`], unless that is meant.
    pub(super) fn check_cut_off(
        &self,
        record: &KillSwitchRecord,
        before: Option<&KillSwitchRecord>,
    ) -> Result<Vec<Inbound>, WouldCutOff> {
        let open = inbound::established();
        // The kernel still lists connections that the kill switch of before has cut off.
        let dead: Vec<&Inbound> = before.into_iter().flat_map(|before| cut_off(&open, before)).collect();
        let cut: Vec<&Inbound> = cut_off(&open, record).filter(|inbound| !dead.contains(inbound)).collect();
        let own = inbound::session(&cut, &self.sessions, &session::logged_in_from());
        if !self.is_meant
            && let Some(own) = own
        {
            return Err(WouldCutOff(own.clone()));
        }
        Ok(cut.into_iter().cloned().collect())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn wanted(mode: Option<KillSwitchMode>, user: u32, is_machines: bool) -> Wanted {
        Wanted {
            mode,
            tunnel: "vpn0".to_owned(),
            user,
            is_machines,
            required_by: None,
            inbound: Vec::new(),
            is_meant: false,
            passes_local: false,
            sessions: Vec::new(),
        }
    }

    #[test]
    fn a_machines_client_ends_no_kill_switch() {
        let (on, off) = (Some(KillSwitchMode::On), Some(KillSwitchMode::Off));
        for (mode, of_person, of_machine) in [(on, on, on), (off, off, None), (None, None, None)] {
            assert_eq!(wanted(mode, 0, false).asked(), of_person);
            assert_eq!(wanted(mode, 0, true).asked(), of_machine);
        }
    }

    #[test]
    fn a_machines_client_leaves_a_users_kill_switch_as_it_is() {
        let files = tempfile::tempdir().unwrap();
        let journals = vpnd_journal::JournalDirectory::create(files.path()).unwrap();
        let place = KillSwitchPlace::of_this_namespace(&journals).unwrap();
        for (before, user, is_machines, may) in [
            (0, 0, true, true),
            (7, 0, true, false),
            (7, 0, false, true),
            (7, 7, false, true),
            (0, 7, false, false),
        ] {
            let before = wanted(None, before, false).record(&place, KillSwitchMode::Persistent);
            assert_eq!(wanted(None, user, is_machines).may_change(&before), may, "{user} {is_machines}");
        }
    }
}
