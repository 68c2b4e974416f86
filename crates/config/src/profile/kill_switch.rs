//! The kill switch that a profile asks for: nothing leaves the machine but by the tunnel.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use super::list;
use crate::document::{Log as Problems, Section};

/// For how long a kill switch is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KillSwitchMode {
    #[default]
    Off,
    /// Until its client ends in order, or a person ends it.
    On,
    /// Until a person ends it, over restarts of the client and of the machine.
    Persistent,
}

impl KillSwitchMode {
    /// Each with its word.
    pub const WORDS: [(&'static str, Self); 3] =
        [("off", Self::Off), ("on", Self::On), ("persistent", Self::Persistent)];

    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, mode)| *mode == self).map_or("off", |(word, _)| word)
    }
}

impl FromStr for KillSwitchMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::WORDS.iter().find(|(word, _)| *word == text).map(|(_, mode)| *mode);
        found.ok_or_else(|| "a kill switch is off, on or persistent".to_owned())
    }
}

/// `kill_switch` and what belongs to it in `[tunnel]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KillSwitch {
    /// `None` if the profile does not say.
    pub mode: Option<KillSwitchMode>,
    /// Whether hosts of the networks that the machine is directly connected to pass.
    pub allow_local: bool,
    /// TCP ports of this machine that others reach outside the tunnel.
    pub inbound: Vec<u16>,
}

impl KillSwitch {
    pub(super) fn read(s: &mut Section<'_>, p: &mut Problems) -> Self {
        Self {
            mode: s.choice(p, "kill_switch", &KillSwitchMode::WORDS),
            allow_local: s.flag(p, "kill_switch_allow_local", false),
            inbound: s
                .list(p, "kill_switch_inbound", "a TCP port such as \"22\"")
                .unwrap_or_default()
                .into_iter()
                .map(std::num::NonZeroU16::get)
                .collect(),
        }
    }

    pub(super) fn write(&self, out: &mut String) -> fmt::Result {
        if let Some(mode) = self.mode {
            writeln!(out, "# Whether nothing leaves the machine but by the tunnel.")?;
            writeln!(out, "kill_switch = \"{}\"", mode.word())?;
        }
        if self.allow_local {
            writeln!(out, "kill_switch_allow_local = true")?;
        }
        if !self.inbound.is_empty() {
            writeln!(out, "kill_switch_inbound = {}", list(self.inbound.iter().map(ToString::to_string)))?;
        }
        Ok(())
    }
}
