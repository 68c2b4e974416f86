//! Questions who had an address, to all gateways of a fleet: each has an audit file of what was
//! there.
//!
//! INVARIANT: a gateway answers once the question, its reason and who asks are in its audit file.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vpnd_store::audit::AuditEntry;
use vpnd_store::audit::whois::{Asked, Recording};
use vpnd_store::{MAX_NOTICES, Store, StoreError};
use vpnd_sys::clock::{Clocks, steady_s};

use crate::notices::{self, Notice, Subscriber};
pub use crate::notices::{OfGateway, Question, Recorded};

/// Limit for the answers of others.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Age of a question that no one waits for any more, seconds.
const STALE_S: u64 = 30;
/// Records of one answer.
const MAX_FOUND: usize = 256;

/// Asks all other gateways of the fleet, and waits for those that are alive.
///
/// # Errors
/// If the database fails.
pub fn ask(store: &dyn Store, question: Question) -> Result<Vec<OfGateway>, StoreError> {
    let (id, origin) = (rand::random::<[u8; 16]>(), rand::random());
    let mut last = 0;
    loop {
        let found = store.notices(last)?.found;
        last = found.last().map_or(last, |notice| notice.number);
        if found.len() < MAX_NOTICES {
            break;
        }
    }
    let asked = notices::encode(&[Notice::Asked(id.into(), question, steady_s())]);
    store.leave_notice(origin, last, &mut |_| Some(asked.clone()))?;
    let others: Vec<_> = store.gateways()?.into_iter().filter(|gateway| !gateway.is_here).collect();
    let mut answers: Vec<OfGateway> =
        others.iter().map(|gateway| OfGateway { name: gateway.name.clone(), recorded: None }).collect();
    let until = Instant::now() + ANSWER_TIMEOUT;
    let is_awaited = |answers: &[OfGateway]| {
        others.iter().zip(answers).any(|(gateway, answer)| gateway.is_alive() && answer.recorded.is_none())
    };
    while is_awaited(&answers) && Instant::now() < until {
        std::thread::sleep(LOOK_INTERVAL);
        for notice in store.notices(last)?.found {
            last = notice.number;
            for item in notices::decode(&notice.body) {
                let Notice::Answered(of, OfGateway { name, recorded }) = item else { continue };
                let answer = answers.iter_mut().find(|answer| answer.name == name);
                if let Some(answer) = answer.filter(|_| *of == id) {
                    answer.recorded = recorded;
                }
            }
        }
    }
    Ok(answers)
}

/// Answers questions of the fleet's other gateways.
pub struct Answers {
    /// This gateway's, in its fleet.
    name: String,
    recording: Recording,
    audit: PathBuf,
    clocks: Clocks,
    made: Arc<Mutex<Vec<Notice>>>,
}

impl Answers {
    pub fn new(name: String, recording: Recording, audit: PathBuf) -> Self {
        Self { name, recording, audit, clocks: Clocks::default(), made: Arc::default() }
    }

    fn answer(
        name: &str,
        recording: &Recording,
        audit: &std::path::Path,
        asked: Question,
        now_s: u64,
    ) -> OfGateway {
        let Question { address, port, at_s, detail, by } = asked;
        let asked = Asked { address, port };
        let (event, user, source) = ("whois".to_owned(), String::new(), String::new());
        let entry = AuditEntry { at_s: now_s, event, user, source, detail, by };
        let answer = recording.open(audit).and_then(|mut file| file.whois(entry, asked, at_s, now_s));
        let recorded = match answer {
            Ok(answer) => {
                let mut notes = recording.notes(asked, at_s, &answer);
                let mut found = answer.found;
                if found.len() > MAX_FOUND {
                    notes.push(format!("UNCERTAIN: {} more are left out here", found.len() - MAX_FOUND));
                    found.truncate(MAX_FOUND);
                }
                Recorded { found, notes }
            }
            Err(error) => {
                tracing::error!(%error, "a question of another gateway has no answer");
                Recorded { found: Vec::new(), notes: vec![format!("UNCERTAIN: {error}")] }
            }
        };
        OfGateway { name: name.to_owned(), recorded: Some(recorded) }
    }
}

impl Subscriber for Answers {
    fn learn(&self, notice: &Notice) {
        let Notice::Asked(id, question, asked_s) = notice else { return };
        // The gateway that asks has recorded it.
        let is_of_here = question.by.ends_with(&format!(" at {}", self.name));
        if is_of_here || steady_s().abs_diff(*asked_s) > STALE_S {
            return;
        }
        let (id, question, made) = (*id, question.clone(), Arc::clone(&self.made));
        let (name, recording, audit) = (self.name.clone(), self.recording.clone(), self.audit.clone());
        let now_s = (self.clocks.wall)();
        // The caller does not wait for the disk.
        tokio::task::spawn_blocking(move || {
            let answer = Self::answer(&name, &recording, &audit, question, now_s);
            made.lock().unwrap_or_else(PoisonError::into_inner).push(Notice::Answered(id, answer));
        });
    }

    fn made(&self) -> Vec<Notice> {
        std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
