//! A kill switch that the gateway requires.
//!
//! INVARIANT: what this machine's profile or arguments say of a kill switch counts, whatever the
//! gateway requires. It switches one on and ends none, and who may end one, is as with a profile
//! that asks for it: no gateway holds a machine that its user can't open again.

use vpnd_config::profile::KillSwitchMode;
use vpnd_proto::control::KILL_SWITCH_PERSISTENT;
use vpnd_sys::text::format_chain;

use super::super::RunningClient;
use super::{KillSwitch, Wanted};
use vpnd_ipc::spawn::ChildError;
use vpnd_journal::JournalDirectory;
use vpnd_journal::kill_switch::KillSwitchPlace;

/// Everything that is needed to switch one on while the client runs.
pub(in super::super) struct Requirements {
    wanted: Wanted,
    journals: JournalDirectory,
    /// Whether the person knows that this machine does not do so.
    is_refusal_known: bool,
}

impl Requirements {
    pub(in super::super) fn new(wanted: Wanted, journals: JournalDirectory) -> Self {
        Self { wanted, journals, is_refusal_known: false }
    }
}

impl RunningClient {
    /// Switches on the kill switch that the gateway requires, before the tunnel carries anything.
    ///
    /// # Errors
    /// [`ChildError::Refused`] if that can't be: the client must not work without it.
    pub(in super::super) async fn meet_requirement(
        &mut self,
        required: Option<u8>,
    ) -> Result<(), ChildError> {
        let Some(required) = required.filter(|required| *required != 0) else { return Ok(()) };
        let Requirements { wanted, journals, is_refusal_known } = &mut self.requirements;
        if self.kill_switch.is_some() {
            return Ok(());
        }
        if wanted.mode == Some(KillSwitchMode::Off) {
            if !std::mem::replace(is_refusal_known, true) {
                let line = "the gateway requires a kill switch, which this machine's profile, or --kill-switch=off, forbids: there is none";
                tracing::warn!("{line}");
                self.console.say(line);
            }
            return Ok(());
        }
        let holder = KillSwitchPlace::of_this_namespace(journals).map(|place| place.holder());
        if matches!(holder, Ok(Ok(Some(_)))) {
            // Its tunnel carries this one.
            return Ok(());
        }
        let mode =
            if required == KILL_SWITCH_PERSISTENT { KillSwitchMode::Persistent } else { KillSwitchMode::On };
        let mut wanted = wanted.clone();
        (wanted.mode, wanted.required_by) = (Some(mode), Some(self.gateway.clone()));
        match KillSwitch::close(&wanted, false, journals, &self.console).await {
            Ok(kill_switch) => {
                self.lookups.mark(self.layer.layer().mark());
                self.kill_switch = kill_switch;
                Ok(())
            }
            Err(error) => Err(ChildError::Refused(format!(
                "the gateway requires a kill switch, and this machine can't have it: {}",
                format_chain(&error)
            ))),
        }
    }
}
