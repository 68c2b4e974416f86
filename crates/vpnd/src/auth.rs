//! Who may log in: password, one-time code, client certificate, and how fast one may guess.
//!
//! Invariants: a refusal tells the client nothing about its cause ([`Refused`]), while the audit log has it; an
//! unknown user costs as much time as a known one; a code is good once; guesses from elsewhere can't lock out a
//! person from a place they came from before; if the store fails, nobody is let in. Hashing takes tens of
//! milliseconds and megabytes, so it runs on a bounded number of threads behind a bounded queue, never on a shard, and
//! steps back behind other work. This module must not know of connections or sessions.

pub mod password;
mod throttle;
pub mod totp;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::store::{AuditEntry, CertificateHash, PasswordHash, Store, StoreError, User, UserId};
use crate::sys::process;
use password::{Hasher, NoMemory, Password};
use throttle::{Throttle, place};

/// For how long a place counts as one the user came from before, seconds.
const KNOWN_SOURCE_S: u64 = 90 * 86_400;

/// How long a login may wait for its turn. A client gives up after 20 s, and on a machine where turns take that long, what comes
/// before and after takes its time too: to check passwords of clients that have gone would keep out those that come.
pub const LONGEST_WAIT: Duration = Duration::from_secs(8);

/// When a client that found too many others waiting should come back, seconds.
pub const BUSY_S: u64 = 2;

/// What a client shows.
#[derive(Debug)]
pub struct Login {
    /// The user's name, as given.
    pub user: String,
    /// The password, as given.
    pub password: Password,
    /// The one-time code, if one was given.
    pub code: Option<Password>,
    /// SHA-256 of the client certificate that the TLS handshake verified.
    pub certificate: Option<CertificateHash>,
    /// The outer address.
    pub source: IpAddr,
}

/// The answer to a login.
#[derive(Debug)]
pub enum Outcome {
    /// Let in.
    Granted(Box<User>),
    /// The password is right, and this user must show a one-time code too.
    CodeWanted,
    /// Not let in.
    Refused(Refused),
    /// Too many wait already, its turn did not come, or there is no memory now: nothing was checked, and the client should
    /// come back in so many seconds.
    Busy(u64),
}

/// What the client is told of a refusal: no cause, except that it should come back later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// When it makes sense to try again, if it is a matter of time alone.
    pub retry_after_s: Option<u64>,
}

/// The cause of a refusal, for the audit log and counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// No user has that name.
    UnknownUser,
    /// The password is wrong.
    WrongPassword,
    /// The user is disabled.
    Disabled,
    /// The one-time code is wrong.
    WrongCode,
    /// The one-time code was used before.
    ReplayedCode,
    /// A client certificate is wanted and there was none.
    NoCertificate,
    /// The client certificate is not one of this user.
    ForeignCertificate,
    /// Too many wrong guesses; nothing was checked.
    Throttled,
    /// Too many logins wait, or for too long; nothing was checked.
    Overloaded,
    /// There is no memory to check a password; nothing was checked.
    NoMemory,
    /// The store failed.
    StoreFailed,
}

impl Cause {
    /// The word in the audit log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::UnknownUser => "unknown-user",
            Self::WrongPassword => "wrong-password",
            Self::Disabled => "disabled",
            Self::WrongCode => "wrong-code",
            Self::ReplayedCode => "replayed-code",
            Self::NoCertificate => "no-certificate",
            Self::ForeignCertificate => "foreign-certificate",
            Self::Throttled => "throttled",
            Self::Overloaded => "overloaded",
            Self::NoMemory => "no-memory",
            Self::StoreFailed => "store-failed",
        }
    }
}

/// How an [`Authenticator`] works.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Logins that are checked at the same time; at least 1.
    pub workers: usize,
    /// Logins that may wait for their turn.
    pub queue: usize,
    /// How long one may wait; [`LONGEST_WAIT`] outside tests.
    pub longest_wait: Duration,
    /// Whether every user must show a client certificate.
    pub require_certificate: bool,
}

/// Checks logins.
pub struct Authenticator {
    store: Arc<dyn Store>,
    hasher: Hasher,
    /// A hash that no password has, for users that do not exist.
    nobody: PasswordHash,
    throttle: Mutex<Throttle>,
    admission: Arc<Semaphore>,
    workers: Arc<Semaphore>,
    longest_wait: Duration,
    require_certificate: bool,
}

/// What one check found, before it is told to anybody.
enum Verdict {
    Granted(Box<User>),
    CodeWanted,
    Refused(Cause),
    NotChecked(NoMemory),
}

impl Authenticator {
    /// Makes an authenticator over `store`. Takes as long as one login, to hash a password that nobody has.
    ///
    /// # Errors
    /// [`NoMemory`], as for any login.
    pub fn new(store: Arc<dyn Store>, hasher: Hasher, settings: Settings) -> Result<Self, NoMemory> {
        let workers = settings.workers.max(1);
        Ok(Self {
            store,
            nobody: hasher.hash(&Password::generate())?,
            hasher,
            throttle: Mutex::new(Throttle::default()),
            admission: Arc::new(Semaphore::new(workers + settings.queue)),
            workers: Arc::new(Semaphore::new(workers)),
            longest_wait: settings.longest_wait,
            require_certificate: settings.require_certificate,
        })
    }

    /// Checks a login on a thread that may wait. If too many wait already, it is refused at once; if its turn does not come in
    /// time, then.
    pub async fn authenticate(self: &Arc<Self>, login: Login, now_s: u64) -> Outcome {
        let overloaded = Outcome::Busy(BUSY_S);
        let Ok(admitted) = Arc::clone(&self.admission).try_acquire_owned() else {
            log_refusal(&login, Cause::Overloaded);
            return overloaded;
        };
        let turn = Arc::clone(&self.workers).acquire_owned();
        let Ok(Ok(turn)) = tokio::time::timeout(self.longest_wait, turn).await else {
            log_refusal(&login, Cause::Overloaded);
            return overloaded;
        };
        let this = Arc::clone(self);
        // The permits move into the thread: a client that hangs up does not make room before its hash is done.
        let checked = tokio::task::spawn_blocking(move || {
            let outcome = this.check(&login, now_s);
            drop((turn, admitted));
            outcome
        });
        checked.await.unwrap_or_else(|error| {
            tracing::error!(%error, "checking a login failed");
            Outcome::Refused(Refused { retry_after_s: None })
        })
    }

    /// Checks a login on this thread, which waits for the hash and the store.
    pub fn check(&self, login: &Login, now_s: u64) -> Outcome {
        let place = place(login.source);
        let (user, known) = match self.look_up(login, &place, now_s) {
            Ok(found) => found,
            Err(error) => return self.failed(login, &error),
        };
        let wait_s = || self.throttle().wait_s(&login.user, &place, known, now_s);
        if let retry_after_s @ Some(_) = wait_s() {
            // Nothing was checked, so this neither counts nor costs a write.
            log_refusal(login, Cause::Throttled);
            return Outcome::Refused(Refused { retry_after_s });
        }
        match self.judge(login, user, now_s) {
            Ok(Verdict::Granted(user)) => self.granted(login, &place, user, now_s),
            Ok(Verdict::CodeWanted) => Outcome::CodeWanted,
            Ok(Verdict::Refused(cause)) => {
                self.refused(login, &place, cause, now_s);
                Outcome::Refused(Refused { retry_after_s: wait_s() })
            }
            Ok(Verdict::NotChecked(none)) => {
                // As if it had not come: it does not count as a guess, and may come again.
                tracing::error!(error = %none, "a login could not be checked");
                log_refusal(login, Cause::NoMemory);
                Outcome::Busy(BUSY_S)
            }
            Err(error) => self.failed(login, &error),
        }
    }

    /// The user, and whether they have come from this place before. Asks the store as much about unknown users.
    fn look_up(&self, login: &Login, place: &str, now_s: u64) -> Result<(Option<User>, bool), StoreError> {
        let user = self.store.user(&login.user)?;
        let id = user.as_ref().map_or(UserId([0; 16]), |user| user.id);
        let known = self.store.knows_source(id, place, now_s.saturating_sub(KNOWN_SOURCE_S))?;
        Ok((user, known))
    }

    fn judge(&self, login: &Login, user: Option<User>, now_s: u64) -> Result<Verdict, StoreError> {
        let hash = user.as_ref().map_or(&self.nobody, |user| &user.password);
        // Whoever waits for the store, as clients that attach do, goes first.
        let right = match process::behind_others(|| self.hasher.verify(&login.password, hash)) {
            Ok(right) => right,
            Err(none) => return Ok(Verdict::NotChecked(none)),
        };
        let Some(user) = user else { return Ok(Verdict::Refused(Cause::UnknownUser)) };
        if !right {
            return Ok(Verdict::Refused(Cause::WrongPassword));
        }
        self.judge_user(login, user, now_s)
    }

    /// Everything but the password, which was right.
    fn judge_user(&self, login: &Login, user: User, now_s: u64) -> Result<Verdict, StoreError> {
        if !user.enabled {
            return Ok(Verdict::Refused(Cause::Disabled));
        }
        if let Some(cause) = self.certificate_problem(login, &user) {
            return Ok(Verdict::Refused(cause));
        }
        let Some(secret) = &user.totp else { return Ok(Verdict::Granted(Box::new(user))) };
        let Some(code) = &login.code else { return Ok(Verdict::CodeWanted) };
        let Some(step) = totp::matching_step(secret, code, now_s) else {
            return Ok(Verdict::Refused(Cause::WrongCode));
        };
        if self.store.use_totp_step(user.id, step)? {
            Ok(Verdict::Granted(Box::new(user)))
        } else {
            Ok(Verdict::Refused(Cause::ReplayedCode))
        }
    }

    fn certificate_problem(&self, login: &Login, user: &User) -> Option<Cause> {
        let wanted = self.require_certificate || !user.certificates.is_empty();
        match &login.certificate {
            Some(shown) if wanted && !user.certificates.contains(shown) => Some(Cause::ForeignCertificate),
            None if wanted => Some(Cause::NoCertificate),
            _ => None,
        }
    }

    fn granted(&self, login: &Login, place: &str, user: Box<User>, now_s: u64) -> Outcome {
        self.throttle().succeeded(&login.user, place);
        if self.hasher.is_outdated(&user.password) {
            let fresh = self.hasher.hash(&login.password).map_err(|error| error.to_string());
            let stored = fresh.and_then(|fresh| {
                self.store.rehash(user.id, &user.password, &fresh).map_err(|error| error.to_string())
            });
            if let Err(error) = stored {
                tracing::warn!(%error, "a password hash stays at its old strength");
            }
        }
        if let Err(error) = self.store.remember_source(user.id, place, now_s) {
            tracing::warn!(%error, "where a user came from is not remembered");
        }
        // What is granted must be on record: without the audit line there is no login.
        match self.store.audit(&entry(login, "login", "", now_s)) {
            Ok(()) => Outcome::Granted(user),
            Err(error) => {
                tracing::error!(%error, "a login can't be recorded, so it is refused");
                Outcome::Refused(Refused { retry_after_s: None })
            }
        }
    }

    fn refused(&self, login: &Login, place: &str, cause: Cause, now_s: u64) {
        log_refusal(login, cause);
        self.throttle().failed(&login.user, place, now_s);
        if let Err(error) = self.store.audit(&entry(login, "login-refused", cause.name(), now_s)) {
            tracing::error!(%error, "a refused login can't be recorded");
        }
    }

    /// Nobody is let in while the store does not answer.
    fn failed(&self, login: &Login, error: &StoreError) -> Outcome {
        tracing::error!(%error, "a login could not be checked");
        log_refusal(login, Cause::StoreFailed);
        Outcome::Refused(Refused { retry_after_s: None })
    }

    fn throttle(&self) -> std::sync::MutexGuard<'_, Throttle> {
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn log_refusal(login: &Login, cause: Cause) {
    tracing::info!(user = %printable(&login.user), source = %login.source, cause = cause.name(), "login refused");
}

fn entry(login: &Login, event: &str, detail: &str, now_s: u64) -> AuditEntry {
    AuditEntry {
        at_s: now_s,
        event: event.to_owned(),
        user: printable(&login.user),
        source: login.source.to_string(),
        detail: detail.to_owned(),
    }
}

/// A name from outside, made safe for logs: no control characters, at most 64 characters.
fn printable(name: &str) -> String {
    name.chars().take(64).map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests;
