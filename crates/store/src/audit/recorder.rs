//! The gateway's writer of the audit file, on its own thread: no caller waits for it.
//!
//! Invariants: neither a full disk nor a slow one holds up a login or a packet. Events wait here,
//! [`QUEUE`] at most, until they can be written; of what there is no room for, the number and the
//! time are recorded as a gap, as soon as something can be. Refusals and moves, which anybody can
//! cause, are limited, so that they neither fill the disk nor take the place of others.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use vpnd_config::AuditPolicy as Policy;

use super::query::{HEARTBEAT_S, OUTER_LEFT_OUT};
use super::{AuditEntry, AuditError, AuditFile, CLOCK_SET_BACK, Event, Gap, SessionStart};
use vpnd_sys::clock::{steady_s, wall_s};
use vpnd_sys::log_limit::LogLimit;
use vpnd_sys::port_blocks::PortBlocks;

/// Events that wait for the disk at most.
const QUEUE: usize = 16_384;
/// Events of one transaction.
const BATCH: usize = 512;
/// Events of this time share a transaction: each costs a trip to the disk, and writes pages that
/// many events change.
const GATHERED: Duration = Duration::from_millis(10);
const HEARTBEAT: Duration = Duration::from_secs(HEARTBEAT_S);
/// Limit for the wait at the end.
const FINISH_TIMEOUT: Duration = Duration::from_secs(4);
/// Pause between two attempts to write again.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Interval at which sessions without an end are looked up in the store: one whose client never
/// comes back ends without an event.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(600);
/// Pause between two steps of the erasure.
const ERASE_PAUSE: Duration = Duration::from_millis(100);
/// Interval at which is looked for what is to be erased.
const ERASE_INTERVAL: Duration = Duration::from_secs(3600);
/// Refused logins at once, and after that one for each interval: as many as guesses take to check.
const REFUSALS: u32 = 1_000;
const REFUSAL_INTERVAL: Duration = Duration::from_millis(200);
/// Changes of outer addresses at once, and after that one for each interval.
const MOVES: u32 = 8_192;
const MOVE_INTERVAL: Duration = Duration::from_millis(2);
/// Difference from the monotonic clock above which the wall clock was set, seconds.
const CLOCK_STEP_S: u64 = 5;

/// Reads the sessions that there are from the store.
pub type LiveSessions = Box<dyn Fn() -> Result<Vec<SessionStart>, String> + Send>;

/// Takes events in. Copies share one thread, which ends with the last of them, once all is written.
#[derive(Clone)]
pub struct Recorder {
    events: SyncSender<Message>,
    state: Arc<State>,
}

/// A message to the thread.
pub enum Message {
    Event(Event),
    /// Write all, and reply. The run ended in order, or was cut off.
    Finish(RunEnd, SyncSender<()>),
}

/// How a gateway's run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// Nothing happened that is not recorded.
    InOrder,
    /// Some process of the gateway was lost: what came after the last record is not known.
    CutOff,
}

struct State {
    policy: Mutex<Policy>,
    /// Events that were not recorded since the process began.
    lost: AtomicU64,
    /// When the first of them came that no gap stands for yet; 0 if there is none.
    lost_since_s: AtomicU64,
    /// Refusals that were too many.
    refusals_left_out: AtomicU64,
    /// Moves that were too many.
    moves_left_out: AtomicU64,
    /// Whether nothing can be written now, and why.
    failure: Mutex<Option<String>>,
    refusals: LogLimit,
    moves: LogLimit,
}

/// State of the audit file, for administrators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    pub lost: u64,
    /// Why nothing is recorded now.
    pub failure: Option<String>,
}

impl Recorder {
    /// Starts the thread.
    ///
    /// # Errors
    /// If there is no thread.
    pub fn start(
        path: PathBuf,
        policy: Policy,
        blocks: Option<PortBlocks>,
        live: LiveSessions,
    ) -> std::io::Result<Self> {
        let (recorder, inbox) = Self::channel(policy);
        let state = Arc::clone(&recorder.state);
        std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || Writer::new(path, state, blocks, live).run(&inbox))?;
        Ok(recorder)
    }

    /// Without a thread: the events are read at the other end.
    pub fn channel(policy: Policy) -> (Self, Receiver<Message>) {
        let (events, inbox) = sync_channel(QUEUE);
        let state = State {
            policy: Mutex::new(policy),
            lost: AtomicU64::new(0),
            lost_since_s: AtomicU64::new(0),
            refusals_left_out: AtomicU64::new(0),
            moves_left_out: AtomicU64::new(0),
            failure: Mutex::default(),
            refusals: LogLimit::new(REFUSALS, REFUSAL_INTERVAL),
            moves: LogLimit::new(MOVES, MOVE_INTERVAL),
        };
        (Self { events, state: Arc::new(state) }, inbox)
    }

    /// Takes an event in, and never waits.
    pub fn record(&self, event: Event) {
        if !self.is_enabled() {
            return;
        }
        let State { refusals, refusals_left_out, moves, moves_left_out, .. } = &*self.state;
        let limited = match &event {
            Event::Entry(AuditEntry { event, .. }) if event == "login-refused" => {
                Some((refusals, refusals_left_out))
            }
            Event::Moved { .. } => Some((moves, moves_left_out)),
            _ => None,
        };
        if let Some((_, left_out)) = limited.filter(|(limit, _)| !limit.admits()) {
            left_out.fetch_add(1, Ordering::Relaxed);
        } else if self.events.try_send(Message::Event(event)).is_err() {
            self.state.lose(1);
        }
    }

    /// Ends the thread once all is written, if that is soon.
    pub fn finish(&self, end: RunEnd) {
        let (done, wait) = sync_channel(1);
        if self.events.try_send(Message::Finish(end, done)).is_ok() {
            let _ = wait.recv_timeout(FINISH_TIMEOUT);
        }
    }

    /// These rules hold from now on.
    pub fn set_policy(&self, policy: Policy) {
        *self.state.policy.lock().unwrap_or_else(PoisonError::into_inner) = policy;
    }

    /// Whether events are to be recorded.
    pub fn is_enabled(&self) -> bool {
        self.state.policy().enabled
    }

    pub fn health(&self) -> Health {
        Health { lost: self.state.lost.load(Ordering::Relaxed), failure: self.state.failure().clone() }
    }
}

impl State {
    fn policy(&self) -> Policy {
        *self.policy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lose(&self, events: u64) {
        let _ = self.lost_since_s.compare_exchange(0, wall_s().max(1), Ordering::Relaxed, Ordering::Relaxed);
        self.lost.fetch_add(events, Ordering::Relaxed);
    }
}

/// An open file, and the number of this run in it.
struct Open {
    file: AuditFile,
    run: i64,
}

struct Writer {
    path: PathBuf,
    state: Arc<State>,
    /// Those in force as long as this process runs: they change with a restart only.
    blocks: Option<PortBlocks>,
    live: LiveSessions,
    open: Option<Open>,
    /// Events that could not be written yet.
    waiting: VecDeque<Event>,
    /// Lost events for which gaps stand.
    accounted: u64,
    /// The times of both clocks at the last look.
    clocks: (u64, u64),
    heartbeat: Instant,
    reconciled: Option<Instant>,
    erase_at: Instant,
    progress: Progress,
}

/// How the last attempt to write went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    New,
    Working,
    Failing,
    /// Nothing is to be recorded.
    Off,
}

/// The last message, with the caller that waits until all is written, if there is one.
struct Over(RunEnd, Option<SyncSender<()>>);

impl Writer {
    fn new(path: PathBuf, state: Arc<State>, blocks: Option<PortBlocks>, live: LiveSessions) -> Self {
        let now = Instant::now();
        Self {
            path,
            state,
            blocks,
            live,
            open: None,
            waiting: VecDeque::new(),
            accounted: 0,
            clocks: (wall_s(), steady_s()),
            heartbeat: now,
            reconciled: None,
            erase_at: now,
            progress: Progress::New,
        }
    }

    fn run(mut self, inbox: &Receiver<Message>) {
        loop {
            let over = self.wait(inbox);
            self.progress = self.go_on();
            if let Some(Over(end, done)) = over {
                if end == RunEnd::InOrder {
                    self.close();
                }
                // The caller may have given up.
                let _ = done.map(|done| done.send(()));
                return;
            }
        }
    }

    fn go_on(&mut self) -> Progress {
        if !self.state.policy().enabled {
            self.close();
            self.waiting.clear();
            return Progress::Off;
        }
        match self.write() {
            Ok(()) => {
                if self.state.failure().take().is_some() {
                    tracing::warn!("events are recorded in the audit file again");
                }
                Progress::Working
            }
            Err(error) => {
                self.failed(&error);
                Progress::Failing
            }
        }
    }

    /// Waits for events, or until something else is due. Who waits for the end, if this is it.
    fn wait(&mut self, inbox: &Receiver<Message>) -> Option<Over> {
        let due = self.erase_at.saturating_duration_since(Instant::now()).min(HEARTBEAT);
        let pause = match self.progress {
            Progress::New => Duration::ZERO,
            Progress::Off => HEARTBEAT,
            Progress::Failing => {
                // Events wait in the channel meanwhile, as far as it has room.
                std::thread::sleep(RETRY_INTERVAL);
                Duration::ZERO
            }
            Progress::Working => due,
        };
        if self.waiting.len() >= BATCH {
            return None;
        }
        let mut next = inbox.recv_timeout(pause);
        let until = Instant::now() + GATHERED;
        loop {
            match next {
                Ok(Message::Event(event)) => self.waiting.push_back(event),
                Ok(Message::Finish(end, done)) => return Some(Over(end, Some(done))),
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => return Some(Over(RunEnd::CutOff, None)),
            }
            if self.waiting.len() >= BATCH {
                return None;
            }
            next = inbox.recv_timeout(until.saturating_duration_since(Instant::now()));
        }
    }

    fn failed(&mut self, error: &AuditError) {
        // The next attempt begins with the file as it is then.
        self.open = None;
        let text = error.to_string();
        let mut failure = self.state.failure();
        if failure.as_ref() != Some(&text) {
            tracing::error!(%error, path = %self.path.display(), "events can't be recorded in the audit file; the gateway goes on");
        }
        *failure = Some(text);
        drop(failure);
        if matches!(error, AuditError::Damaged(_)) {
            self.move_aside();
        }
    }

    fn write(&mut self) -> Result<(), AuditError> {
        let policy = self.state.policy();
        if free_bytes(&self.path) < policy.min_free {
            return Err(AuditError::Reserved(policy.min_free >> 20));
        }
        let now_s = wall_s();
        let mut open = match self.open.take() {
            Some(open) => open,
            None => {
                let mut file = AuditFile::open_or_create(&self.path)?;
                let run = file.begin_run(now_s, self.blocks.as_ref())?;
                self.reconciled = None;
                Open { file, run }
            }
        };
        open.file.set_outer(policy.outer);
        self.note_clock(&mut open.file, now_s)?;
        if !self.waiting.is_empty() {
            open.file.record_all(open.run, self.waiting.make_contiguous(), now_s)?;
            self.waiting.clear();
        }
        let lost = self.state.lost.load(Ordering::Relaxed);
        let caught_up = lost == self.accounted;
        if !caught_up {
            let from_s = match self.state.lost_since_s.swap(0, Ordering::Relaxed) {
                // The time was taken with the gap before.
                0 => now_s.saturating_sub(HEARTBEAT_S),
                since_s => since_s.min(now_s),
            };
            let gap = Gap {
                from_s,
                to_s: now_s,
                lost: Some(lost - self.accounted),
                cause: "events had no room".to_owned(),
            };
            open.file.record_gap(&gap)?;
            self.accounted = lost;
            tracing::warn!(lost = gap.lost, from_s, "the audit file has a gap");
        }
        if !caught_up || self.reconciled.is_none_or(|at| at.elapsed() >= RECONCILE_INTERVAL) {
            self.reconcile(&mut open.file, now_s)?;
        }
        // The thread may wake a moment before.
        if self.heartbeat.elapsed() + Duration::from_secs(1) >= HEARTBEAT {
            open.file.alive(open.run, now_s)?;
            self.heartbeat = Instant::now();
            self.record_left_out(&mut open.file, now_s)?;
        }
        if Instant::now() >= self.erase_at {
            // A clock that is suddenly ahead erases nothing.
            let more = open.file.erase(&policy.retention, now_s.min(steady_s() + 3600))?;
            self.erase_at = Instant::now() + if more { ERASE_PAUSE } else { ERASE_INTERVAL };
        }
        self.open = Some(open);
        Ok(())
    }

    fn record_left_out(&self, file: &mut AuditFile, now_s: u64) -> Result<(), AuditError> {
        let State { refusals_left_out, moves_left_out, .. } = &*self.state;
        let kinds = [
            ("left-out", "refused logins", refusals_left_out),
            (OUTER_LEFT_OUT, "outer addresses", moves_left_out),
        ];
        for (event, what, left_out) in kinds {
            let count = left_out.swap(0, Ordering::Relaxed);
            if count > 0 {
                let detail = format!("{count} {what}, because there were too many");
                let (event, (user, source, by)) = (event.to_owned(), Default::default());
                file.record(&[Event::Entry(AuditEntry { at_s: now_s, event, user, source, detail, by })])?;
            }
        }
        Ok(())
    }

    /// Where the wall clock was set back, times stand for two moments.
    fn note_clock(&mut self, file: &mut AuditFile, now_s: u64) -> Result<(), AuditError> {
        let steady_s = steady_s();
        let (before_s, steady_before_s) = self.clocks;
        let expected_s = before_s + (steady_s - steady_before_s);
        if now_s + CLOCK_STEP_S < expected_s {
            let cause = CLOCK_SET_BACK.to_owned();
            file.record_gap(&Gap { from_s: now_s, to_s: expected_s, lost: None, cause })?;
            tracing::warn!(
                by_s = expected_s - now_s,
                "the clock was set back: times of the audit file overlap"
            );
        }
        self.clocks = (now_s, steady_s);
        Ok(())
    }

    /// Ends the sessions that the store does not have any more, and adds those that are not
    /// recorded.
    fn reconcile(&mut self, file: &mut AuditFile, now_s: u64) -> Result<(), AuditError> {
        // In this order: whatever is open here and not there after that is over.
        let open = file.open_sessions()?;
        let live = (self.live)().map_err(AuditError::Failed)?;
        file.reconcile(&open, &live, now_s)?;
        self.reconciled = Some(Instant::now());
        Ok(())
    }

    /// Keeps a damaged file under another name, and begins another one.
    fn move_aside(&self) {
        let aside = aside(&self.path, wall_s());
        let moved = ["", "-wal", "-shm"].iter().try_for_each(|suffix| {
            match std::fs::rename(with_suffix(&self.path, suffix), with_suffix(&aside, suffix)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        });
        match moved {
            Ok(()) => {
                tracing::error!(aside = %aside.display(), "the damaged audit file was put aside, and another one is begun");
            }
            Err(error) => tracing::error!(%error, "the damaged audit file can't be put aside"),
        }
    }

    fn close(&mut self) {
        if let Some(Open { mut file, run }) = self.open.take()
            && let Err(error) = file.end_run(run, wall_s())
        {
            tracing::warn!(%error, "the end of this run is not recorded in the audit file");
        }
    }
}

fn aside(path: &Path, now_s: u64) -> PathBuf {
    with_suffix(path, &format!(".damaged-{now_s}"))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Room on the disk of `path`; what can't be known counts as enough.
fn free_bytes(path: &Path) -> u64 {
    let disk = rustix::fs::statvfs(vpnd_sys::secret_file::parent(path));
    disk.map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
}
