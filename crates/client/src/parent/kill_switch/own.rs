//! The kill switch that a running client has, because its machine or its gateway requires one.
//!
//! INVARIANT: what this machine's profile or arguments say of a kill switch counts, whatever the
//! gateway requires. It switches one on and ends none, and who may end one, is as with a profile
//! that asks for it: no gateway holds a machine that its user can't open again.

use vpnd_config::profile::KillSwitchMode;
use vpnd_proto::control::KILL_SWITCH_PERSISTENT;
use vpnd_sys::text::format_chain;

use super::{End, KillSwitch, Wanted, WouldCutOff};
use crate::parent::console::Console;
use vpnd_ipc::spawn::ChildError;
use vpnd_journal::JournalDirectory;
use vpnd_journal::kill_switch::KillSwitchPlace;

/// The kill switch of a running client, if it has one: since its start, or since the gateway has
/// required it.
pub(in super::super) struct OwnKillSwitch {
    held: Option<KillSwitch>,
    wanted: Wanted,
    journals: JournalDirectory,
    /// The name of the gateway that may require one.
    gateway: String,
    console: Console,
    /// Whether the person knows that this machine forbids what the gateway requires.
    is_refusal_known: bool,
    /// The reason why the requirement waits for a person: it would have cut off a session. Met as
    /// soon as that ends, it would lock out the person who worked there.
    undecided: Option<String>,
}

impl OwnKillSwitch {
    /// None is on yet.
    pub(in super::super) fn new(
        wanted: Wanted,
        journals: JournalDirectory,
        gateway: &str,
        console: &Console,
    ) -> Self {
        let (gateway, console) = (gateway.to_owned(), console.clone());
        let (is_refusal_known, undecided) = (false, None);
        Self { held: None, wanted, journals, gateway, console, is_refusal_known, undecided }
    }

    /// Keeps the one that was switched on at the start.
    pub(in super::super) fn hold(&mut self, kill_switch: Option<KillSwitch>) {
        self.held = kill_switch;
    }

    pub(in super::super) fn is_on(&self) -> bool {
        self.held.is_some()
    }

    /// Switches on the kill switch that the gateway requires, before the tunnel carries anything.
    ///
    /// # Errors
    /// [`ChildError::Refused`] if that can't be: the client must not work without it. Also each
    /// time after it would have cut off a session.
    pub(in super::super) async fn meet_requirement(
        &mut self,
        required: Option<u8>,
    ) -> Result<(), ChildError> {
        let Some(required) = required.filter(|required| *required != 0) else { return Ok(()) };
        if self.is_on() {
            return Ok(());
        }
        if let Some(reason) = &self.undecided {
            return Err(ChildError::Refused(reason.clone()));
        }
        if self.wanted.mode == Some(KillSwitchMode::Off) {
            if !std::mem::replace(&mut self.is_refusal_known, true) {
                let line = "the gateway requires a kill switch, which this machine's profile, or --kill-switch=off, forbids: there is none";
                tracing::warn!("{line}");
                self.console.say(line);
            }
            return Ok(());
        }
        let holder = KillSwitchPlace::of_this_namespace(&self.journals).map(|place| place.holder());
        if matches!(holder, Ok(Ok(Some(_)))) {
            // Its tunnel carries this one.
            return Ok(());
        }
        let mode =
            if required == KILL_SWITCH_PERSISTENT { KillSwitchMode::Persistent } else { KillSwitchMode::On };
        let mut wanted = self.wanted.clone();
        (wanted.mode, wanted.required_by) = (Some(mode), Some(self.gateway.clone()));
        match KillSwitch::close(&wanted, false, &self.journals, &self.console).await {
            Ok(kill_switch) => {
                self.held = kill_switch;
                Ok(())
            }
            Err(error) => Err(self.refusal(&error)),
        }
    }

    /// Whether this requirement waits for a person, and is refused until the client's next start.
    pub(in super::super) fn awaits_person(&self, required: Option<u8>) -> bool {
        required.is_some_and(|required| required != 0) && !self.is_on() && self.undecided.is_some()
    }

    fn refusal(&mut self, error: &anyhow::Error) -> ChildError {
        let reason = format!(
            "the gateway requires a kill switch, and this machine can't have it: {}",
            format_chain(error)
        );
        self.undecided = error.is::<WouldCutOff>().then(|| reason.clone());
        ChildError::Refused(reason)
    }

    /// Follows the machine to other local networks.
    pub(in super::super) async fn follow(&self, tunnel: u32) {
        if let Some(kill_switch) = &self.held {
            kill_switch.follow(tunnel).await;
        }
    }

    /// Opens the network, or leaves it closed, as this end of the client demands.
    pub(in super::super) async fn end(self, end: End) {
        if let Some(kill_switch) = self.held {
            kill_switch.end(end, &self.console).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parent::console::tests::console;
    use crate::parent::kill_switch::inbound::Inbound;
    use crate::parent::kill_switch::wanted::tests::wanted;
    use vpnd_sys::nft::KillSwitchRules;
    use vpnd_sys::testing::in_namespace_async;

    #[test]
    fn a_requirement_that_would_have_cut_off_a_session_is_not_met_once_that_has_ended() {
        in_namespace_async(async || {
            let place = tempfile::tempdir().unwrap();
            let journals = JournalDirectory::create(place.path()).unwrap();
            let (console, _reader, _writer) = console();
            let mut own = OwnKillSwitch::new(wanted(None, 0, false), journals, "vpn.example", &console);
            let peer = "192.0.2.9".parse().unwrap();
            let session = Inbound { peer, peer_port: 40_000, port: 22, is_roots: true };
            let first = own.refusal(&WouldCutOff(session).into());
            assert!(matches!(first, ChildError::Refused(_)), "{first:?}");
            assert!(own.awaits_person(Some(KILL_SWITCH_PERSISTENT)) && !own.awaits_person(None));
            // The session has ended by now.
            let second = own.meet_requirement(Some(KILL_SWITCH_PERSISTENT)).await;
            assert!(matches!(second, Err(ChildError::Refused(_))), "{second:?}");
            assert!(!own.is_on() && KillSwitchRules::in_force().await.unwrap().is_none());
            own.meet_requirement(None).await.unwrap();
        });
    }
}
