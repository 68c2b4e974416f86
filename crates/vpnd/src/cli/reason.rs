//! The reason of a deed, as it is typed.

use clap::Args;

use vpnd_store::audit::whois::{MAX_REASON, is_reason};

/// Why something is done.
#[derive(Args, Debug)]
pub struct ReasonArgs {
    /// Why, such as the number of a ticket. It is recorded
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub reason: Option<String>,
}

impl ReasonArgs {
    /// A description with the reason behind it, as the web pages record it.
    #[must_use]
    pub fn behind(&self, description: String) -> String {
        match &self.reason {
            Some(reason) if description.is_empty() => reason.clone(),
            Some(reason) => format!("{description}: {reason}"),
            None => description,
        }
    }
}

/// Reads a reason.
pub(super) fn reason(text: &str) -> Result<String, String> {
    match is_reason(text) {
        true => Ok(text.to_owned()),
        false => Err(format!("a reason is 1 to {MAX_REASON} bytes of text without control characters")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_stands_behind_what_was_done() {
        let with = |reason: Option<&str>| ReasonArgs { reason: reason.map(str::to_owned) };
        assert_eq!(with(Some("call 4711")).behind(String::new()), "call 4711");
        assert_eq!(with(Some("call 4711")).behind("totp: none".to_owned()), "totp: none: call 4711");
        assert_eq!(with(None).behind("totp: none".to_owned()), "totp: none");
        assert!(reason("call 4711").is_ok());
        for wrong in ["", " ", "two\nlines"] {
            assert!(reason(wrong).is_err(), "{wrong:?}");
        }
    }
}
