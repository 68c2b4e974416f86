//! Why a system could not be measured.

use crate::lab::LabError;

/// Why a system could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum SystemError {
    /// It is not installed, or this machine cannot run it; nothing was changed.
    #[error("{0}")]
    Missing(String),
    /// It is a part of the kernel, and this kernel has it not.
    #[error("{0}")]
    NoModule(String),
    /// It did not come up.
    #[error("{failure}{}", quoted(log))]
    Start {
        /// The event that did not happen.
        failure: String,
        /// The last lines of its log.
        log: String,
    },
    /// The user ended it.
    #[error("interrupted before it was up")]
    Interrupted,
    /// The lab failed.
    #[error("{0}")]
    Lab(#[from] LabError),
    /// The system said no.
    #[error("{action}: {source}")]
    Io {
        /// The call that failed.
        action: String,
        /// Why it failed.
        source: std::io::Error,
    },
}

fn quoted(log: &str) -> String {
    if log.trim().is_empty() {
        return String::new();
    }
    let lines: Vec<String> = log.trim().lines().map(|line| format!("\n    | {line}")).collect();
    format!("; its log ends:{}", lines.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_start_shows_the_end_of_the_log() {
        let error = SystemError::Start { failure: "vpnd did not come up".into(), log: "one\ntwo\n".into() };
        assert_eq!(error.to_string(), "vpnd did not come up; its log ends:\n    | one\n    | two");
        assert_eq!(SystemError::Start { failure: "x".into(), log: " ".into() }.to_string(), "x");
    }
}
