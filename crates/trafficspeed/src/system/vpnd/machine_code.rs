//! The machine code that vpnd's ciphers run as: what this CPU is best at, or what one without AES
//! instructions would run.

use std::fs;

use serde::{Deserialize, Serialize};

use super::SystemError;
use crate::lab::namespace::Namespace;

/// Which machine code a cipher runs as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// The fastest for this CPU.
    #[default]
    Native,
    /// The code that a CPU without AES and carry-less multiplication instructions would run.
    WithoutAes,
}

/// Masks AESNI and PCLMULQDQ, then VAES and VPCLMULQDQ, in what that library sees of an x86 CPU.
pub(super) const WITHOUT_AES: &str = "OPENSSL_ia32cap=~0x200000200000000:~0x60000000000";

/// Makes sure that no process in `namespaces` has lost the mask on its way: it would quietly be the
/// faster.
pub(super) fn check_mask<'a>(namespaces: impl Iterator<Item = &'a Namespace>) -> Result<(), SystemError> {
    for process in namespaces.flat_map(Namespace::processes) {
        // One that has ended meanwhile moves no packets.
        let Ok(environment) = fs::read(format!("/proc/{process}/environ")) else { continue };
        if !environment.split(|byte| *byte == 0).any(|variable| variable == WITHOUT_AES.as_bytes()) {
            let failure =
                format!("process {process} of vpnd did not get OPENSSL_ia32cap, so it uses AES instructions");
            return Err(SystemError::Start { failure, log: String::new() });
        }
    }
    Ok(())
}
