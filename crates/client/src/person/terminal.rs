//! A question to the person at this process's terminal, some of it in the words of a server behind
//! the gateway.
//!
//! INVARIANT: a stranger's text is shown as one line that begins with whose it is, without control
//! characters; the process that passes it on is not trusted with that.

use zeroize::Zeroizing;

use super::credentials::{self, CredentialsError};
use crate::user_messages::Ask;
use vpnd_sys::text::harmless;

const CODE: &str = "One-time code (Enter if you have none): ";

/// Asks the person.
///
/// # Errors
/// If there is no terminal, or it was closed.
pub fn ask(ask: &Ask) -> Result<Zeroizing<String>, CredentialsError> {
    match ask {
        Ask::Name { gateway } => match credentials::ask_openly(&format!("User at {}: ", harmless(gateway))) {
            Err(CredentialsError::NoTerminal) => Err(CredentialsError::NoUser),
            asked => asked,
        },
        Ask::Password { user, gateway } => {
            credentials::ask(&format!("Password of {} at {}: ", harmless(user), harmless(gateway)))
        }
        Ask::Code => credentials::ask_for_code(CODE),
        Ask::Challenge { text, is_shown: true } => credentials::ask_openly(&line(text)),
        Ask::Challenge { text, is_shown: false } => credentials::ask_for_code(&line(text)),
    }
}

/// The line that is shown for a stranger's text.
fn line(text: &str) -> String {
    format!("The gateway asks: {}: ", harmless(text).trim_end_matches(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_from_the_gateway_is_sanitised_and_marked() {
        assert_eq!(line("Code from your token:"), "The gateway asks: Code from your token: ");
        assert_eq!(
            line("\x1b[2J\r\n[sudo] password for root\u{202e}"),
            "The gateway asks: [2J [sudo] password for root: "
        );
        assert_eq!(line(""), "The gateway asks: : ");
    }
}
