//! Questions of the worker's to the person: a one-time code, or a challenge whose text comes from
//! a server behind the gateway.
//!
//! INVARIANT: one is open at a time. It stays open when its login ends, for nothing takes back what
//! a person is typing; a later login that asks the same gets what is typed, and another question is
//! shown once the open one is over. What was typed for one question is no answer to another.

use tokio::task::JoinHandle;
use vpnd_proto::control::ChallengeAnswer;
use zeroize::Zeroizing;

use super::console::Console;
use crate::messages::Question;
use crate::person::credentials::CredentialsError;
use crate::user_messages::Ask;

/// The questions that a person has not answered.
pub(super) struct Prompts {
    console: Console,
    open: Option<Prompt>,
    /// The last one that was asked while another was open.
    next: Option<(u64, Ask)>,
}

/// A person who was asked something.
struct Prompt {
    /// The number of the worker's request.
    number: u64,
    ask: Ask,
    asked: JoinHandle<Result<Zeroizing<String>, CredentialsError>>,
}

impl Prompt {
    fn show(number: u64, ask: Ask, console: &Console) -> Self {
        let asked = console.begin_to_ask(ask.clone());
        Self { number, ask, asked }
    }
}

impl Prompts {
    pub(super) fn new(console: Console) -> Self {
        Self { console, open: None, next: None }
    }

    /// Shows the question of this request, or takes it down for later. Returns the request that it
    /// has displaced, which gets no answer any more: the worker asks again only after its login has
    /// ended.
    pub(super) fn ask(&mut self, number: u64, question: Question) -> Option<u64> {
        let ask = match question {
            Question::Code => Ask::Code,
            Question::Challenge { text, is_shown } => Ask::Challenge { text, is_shown },
        };
        let Some(open) = &self.open else {
            self.open = Some(Prompt::show(number, ask, &self.console));
            return None;
        };
        let displaced = self.next.replace((number, ask));
        Some(displaced.map_or(open.number, |(number, _)| number))
    }

    /// Waits for an answer: the number of its request, and the text typed, if any. Never ready
    /// without a question. Safe to cancel.
    pub(super) async fn typed(&mut self) -> (u64, Option<ChallengeAnswer>) {
        loop {
            let Some(open) = &mut self.open else { return std::future::pending().await };
            let typed = (&mut open.asked).await.ok().and_then(Result::ok);
            let typed = typed.and_then(|typed| ChallengeAnswer::new(typed.trim()).ok());
            let is_answer = |next: &Ask| typed.is_some() && *next == open.ask;
            match self.next.take() {
                Some((number, ask)) if !is_answer(&ask) => {
                    self.open = Some(Prompt::show(number, ask, &self.console));
                }
                next => {
                    let number = next.map_or(open.number, |(number, _)| number);
                    self.open = None;
                    return (number, typed);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use vpnd_proto::control::ChallengeText;

    use super::*;
    use crate::frames::{Reader, Writer};
    use crate::parent::console::tests::console;
    use crate::user_messages::{FromClient, ToClient, Typed};

    fn challenge(text: &str) -> Question {
        Question::Challenge { text: ChallengeText::new(text).unwrap(), is_shown: true }
    }

    /// The question that the person sees next.
    async fn seen(reader: &mut Reader) -> Ask {
        match reader.next().await.unwrap().unwrap() {
            FromClient::Ask(ask) => ask,
            other => panic!("{other:?}"),
        }
    }

    async fn type_in(writer: &mut Writer, text: &str) {
        writer.send(&ToClient::Answer(Some(Typed::new(text).unwrap()))).await.unwrap();
    }

    fn text(answer: (u64, Option<ChallengeAnswer>)) -> (u64, Option<String>) {
        (answer.0, answer.1.map(|typed| typed.expose().to_owned()))
    }

    #[tokio::test]
    async fn text_typed_late_answers_the_same_question_of_the_next_login() {
        let (console, mut reader, mut writer) = console();
        let mut prompts = Prompts::new(console);
        assert_eq!(prompts.ask(1, Question::Code), None);
        assert_eq!(seen(&mut reader).await, Ask::Code);
        assert_eq!(prompts.ask(2, Question::Code), Some(1));
        assert_eq!(prompts.ask(3, Question::Code), Some(2));
        type_in(&mut writer, "123456").await;
        assert_eq!(text(prompts.typed().await), (3, Some("123456".to_owned())));
        assert_eq!(prompts.ask(4, Question::Code), None, "it is shown again");
        assert_eq!(seen(&mut reader).await, Ask::Code);
    }

    #[tokio::test]
    async fn text_typed_for_a_question_answers_no_other() {
        let (console, mut reader, mut writer) = console();
        let mut prompts = Prompts::new(console);
        prompts.ask(1, challenge("1: phone, 2: token"));
        seen(&mut reader).await;
        assert_eq!(prompts.ask(2, challenge("1: token, 2: phone")), Some(1));
        type_in(&mut writer, "1").await;
        let answered = async { text(prompts.typed().await) };
        let person = async {
            assert!(
                matches!(seen(&mut reader).await, Ask::Challenge { text, .. } if text.starts_with("1: token"))
            );
            type_in(&mut writer, "2").await;
        };
        assert_eq!(tokio::join!(answered, person).0, (2, Some("2".to_owned())));
    }

    /// A person who comes back after the first question's time is asked again.
    #[tokio::test]
    async fn an_unanswered_question_is_asked_again_at_the_next_login() {
        let (console, mut reader, mut writer) = console();
        let mut prompts = Prompts::new(console);
        prompts.ask(1, Question::Code);
        seen(&mut reader).await;
        prompts.ask(2, Question::Code);
        let answered = async { text(prompts.typed().await) };
        let person = async {
            assert_eq!(seen(&mut reader).await, Ask::Code, "after the time of the first");
            type_in(&mut writer, "too late, for the first").await;
            type_in(&mut writer, "654321").await;
        };
        assert_eq!(tokio::join!(answered, person).0, (2, Some("654321".to_owned())));
    }
}
