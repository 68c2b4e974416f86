//! Questions of the gateway to the person at the terminal: a one-time code and challenges (PROTOCOL
//! §4, §4.2).
//!
//! INVARIANT: they come in a login alone, and a login is tried only where no token is good; an
//! attempt that no user can answer ends without an answer, so that no server counts a wrong one.

use std::time::Duration;

use tokio::time::timeout;
use vpnd_control_channel::login::ANSWER_TIMEOUT;
use vpnd_proto::control::{
    Challenge, ChallengeKind, ChallengeResponse, Message, OneTimeCode, OneTimePassword,
};

use super::DialError;
use crate::messages::Question;
use crate::worker::parent_client::ParentClient;
use vpnd_sys::logging::NEWS;
use vpnd_sys::text::harmless;

/// Time for a person to type a one-time code; a little less than the gateway waits.
const PERSON_TIMEOUT: Duration = Duration::from_secs(80);
/// The longest time that a gateway can have a person take (PROTOCOL §4.2), and the way back.
const LONGEST: Duration = Duration::from_secs(125);

/// Limit for the gateway's message behind this challenge.
pub(super) fn time_for_reply(challenge: &Challenge) -> Duration {
    let time = match challenge.kind {
        ChallengeKind::Push => Duration::from_secs(challenge.time_s.into()) + ANSWER_TIMEOUT,
        // The server may have the person approve the answer elsewhere, which is another challenge.
        ChallengeKind::Code | ChallengeKind::Choice => ANSWER_TIMEOUT,
    };
    time.min(LONGEST)
}

/// Prompts the person at the terminal. Without an answer an empty code is sent, so that the
/// gateway refuses with its reason.
pub(super) async fn one_time_code(parent: &ParentClient) -> Result<Message, DialError> {
    let answer = timeout(PERSON_TIMEOUT, parent.ask(Question::Code)).await;
    let code = match answer.ok().flatten() {
        Some(typed) => OneTimePassword::new(typed.expose())?,
        None => {
            tracing::warn!(
                "the gateway asks for a one-time code, which it does after a wrong password, too, and none was typed"
            );
            OneTimePassword::new("")?
        }
    };
    Ok(Message::OneTimeCode(OneTimeCode { code }))
}

/// Shows a challenge; the answer, if it needs one.
pub(super) async fn answer(
    parent: &ParentClient,
    challenge: &Challenge,
) -> Result<Option<Message>, DialError> {
    let text = harmless(&challenge.text);
    if challenge.kind == ChallengeKind::Push {
        tracing::info!(target: NEWS, time_s = challenge.time_s, "the gateway asks: {text}");
        // The client service shows it to a user who is not at this terminal.
        let _ = parent.tell(challenge.text.clone()).await;
        return Ok(None);
    }
    let is_shown = challenge.kind == ChallengeKind::Choice;
    let question = Question::Challenge { text: challenge.text.clone(), is_shown };
    let longest = Duration::from_secs(challenge.time_s.into()).min(LONGEST);
    let typed = timeout(longest, parent.ask(question)).await.ok().flatten();
    let answer = typed.ok_or(DialError::NoPerson(text))?;
    Ok(Some(Message::ChallengeResponse(ChallengeResponse { answer })))
}
