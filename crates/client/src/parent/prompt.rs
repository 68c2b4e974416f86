//! A question to the person at the terminal: a one-time code, or a challenge whose text comes from
//! a server behind the gateway.
//!
//! INVARIANT: a stranger's text is shown as one line that begins with whose it is, without control
//! characters; the worker that passes it on is not trusted with that.

use tokio::task::JoinHandle;
use vpnd_proto::control::ChallengeAnswer;
use zeroize::Zeroizing;

use super::console::Console;
use super::credentials::{self, CredentialsError};
use crate::messages::Question;
use crate::user_messages::Ask;
use vpnd_sys::text::harmless;

const CODE: &str = "One-time code (Enter if you have none): ";

/// A person who was asked something.
pub(super) struct Prompt {
    number: u64,
    asked: JoinHandle<Result<Zeroizing<String>, CredentialsError>>,
}

impl Prompt {
    /// Shows it; `number` is that of the worker's request.
    pub(super) fn show(number: u64, question: Question, console: &Console) -> Self {
        let ask = match question {
            Question::Code => Ask::Code,
            Question::Challenge { text, is_shown } => Ask::Challenge { text, is_shown },
        };
        Self { number, asked: console.begin_to_ask(ask) }
    }
}

/// Asks the person at this process's terminal.
///
/// # Errors
/// If there is no terminal, or it was closed.
pub(crate) fn at_terminal(ask: &Ask) -> Result<Zeroizing<String>, CredentialsError> {
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

/// The number of the prompt and the text typed, if any. Never ready without a prompt.
pub(super) async fn typed(prompt: &mut Option<Prompt>) -> (u64, Option<ChallengeAnswer>) {
    let Some(prompt) = prompt else { return std::future::pending().await };
    let typed = (&mut prompt.asked).await.ok().and_then(Result::ok);
    (prompt.number, typed.and_then(|typed| ChallengeAnswer::new(typed.trim()).ok()))
}

/// The line that is shown for a stranger's text.
fn line(text: &str) -> String {
    format!("The gateway asks: {}: ", harmless(text).trim_end_matches(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_text_neither_plays_with_the_terminal_nor_passes_for_the_machines() {
        assert_eq!(line("Code from your token:"), "The gateway asks: Code from your token: ");
        assert_eq!(
            line("\x1b[2J\r\n[sudo] password for root\u{202e}"),
            "The gateway asks: [2J [sudo] password for root: "
        );
        assert_eq!(line(""), "The gateway asks: : ");
    }
}
