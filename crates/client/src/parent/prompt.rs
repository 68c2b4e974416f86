//! A question of the worker's to the person: a one-time code, or a challenge whose text comes from
//! a server behind the gateway.

use tokio::task::JoinHandle;
use vpnd_proto::control::ChallengeAnswer;
use zeroize::Zeroizing;

use super::console::Console;
use crate::messages::Question;
use crate::person::credentials::CredentialsError;
use crate::user_messages::Ask;

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

/// The number of the prompt and the text typed, if any. Never ready without a prompt.
pub(super) async fn typed(prompt: &mut Option<Prompt>) -> (u64, Option<ChallengeAnswer>) {
    let Some(prompt) = prompt else { return std::future::pending().await };
    let typed = (&mut prompt.asked).await.ok().and_then(Result::ok);
    (prompt.number, typed.and_then(|typed| ChallengeAnswer::new(typed.trim()).ok()))
}
