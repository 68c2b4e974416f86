//! The database of a fleet, as a model for simulations: one transaction after another, in virtual
//! time.
//!
//! It carries out the statements of [`crate::sql`] on SQLite in memory, with the tables that only a
//! fleet has. What a gateway puts off and what it concludes from a loss is the code of the real
//! store. A gateway may be cut off from it, a change may end without a word, and the newest changes
//! may be lost.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rusqlite::Connection as Sqlite;
use rusqlite::backup::Backup;
use vpnd_proto::session::SessionId;

use crate::postgres::history::{Histories, History, Mark, SETTLING};
use crate::postgres::holder::{IS_LOST, RAISE};
use crate::postgres::trouble::{Trouble, of_store};
use crate::put_off::{self, Behind, Pace, PutOff, Wall};
use crate::sql::{
    Connection, Database, Dialect, Engine, Optional as _, Result as SqlResult, Rows, Transaction, Value,
    digest, params, sessions, users, wireguard,
};
use crate::{HandshakeShown, NewUser, SessionChange, SessionRecord, StoreError, UserId};

const NAME: &str = "simulated";

/// The database.
#[derive(Clone)]
pub struct Simulated {
    state: Arc<Mutex<State>>,
    /// The virtual clock.
    now: Arc<Mutex<Instant>>,
}

struct State {
    database: Sqlite,
    history: History,
    /// Grows with each start of the server, which ends all connections.
    start: u32,
}

/// A moment that the database may go back to.
pub struct Moment(Sqlite);

/// The end of a change whose answer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    Made,
    NotMade,
    /// It is made, and the gateway is cut off.
    MadeThenCut,
}

type Hook = Box<dyn FnOnce() + Send>;

/// The database as a gateway of the fleet uses it.
pub struct AtGateway {
    server: Simulated,
    gateway: [u8; 16],
    histories: Histories,
    put_off: PutOff,
    link: Mutex<Link>,
    queries: AtomicUsize,
    changes: AtomicUsize,
}

#[derive(Default)]
struct Link {
    /// The server's start that has admitted the gateway.
    admitted: Option<u32>,
    is_cut: bool,
    unanswered: Option<Unanswered>,
    /// Runs before the next change.
    meanwhile: Option<Hook>,
}

/// Statements of one gateway.
struct Of<'d>(&'d Sqlite, [u8; 16]);

impl Engine for Of<'_> {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn gateway(&self) -> Option<[u8; 16]> {
        Some(self.1)
    }

    fn query(&self, sql: &str, params: &[Value]) -> SqlResult<Rows> {
        Engine::query(self.0, sql, params)
    }

    fn execute(&self, sql: &str, params: &[Value]) -> SqlResult<usize> {
        Engine::execute(self.0, sql, params)
    }
}

/// The definition of a table that only databases have.
fn definition(table: &str) -> &'static str {
    let schema = include_str!("../schema.sql");
    let from = schema.find(&format!("CREATE TABLE {table} (")).unwrap();
    let text = &schema[from..];
    &text[..=text.find(';').unwrap()]
}

fn copy(from: &Sqlite) -> Sqlite {
    let mut to = Sqlite::open_in_memory().unwrap();
    Backup::new(from, &mut to).unwrap().run_to_completion(1_000, Duration::ZERO, None).unwrap();
    to
}

impl Simulated {
    /// An empty one, whose clock stands at `now`.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        let mut database = Sqlite::open_in_memory().unwrap();
        crate::sqlite::FORMAT.bring_up(&mut database).unwrap();
        for table in ["fleet", "carriers", "leaving"] {
            database.execute_batch(definition(table)).unwrap();
        }
        let marks = "INSERT INTO fleet (generation) VALUES (0);
                     CREATE TABLE marks (number INTEGER PRIMARY KEY, mark BLOB NOT NULL UNIQUE);
                     CREATE TABLE notices (
                         number INTEGER PRIMARY KEY AUTOINCREMENT, origin BLOB NOT NULL, body BLOB NOT NULL
                     )";
        database.execute_batch(marks).unwrap();
        let history = History { system: 7, timeline: 1 };
        let state = State { database, history, start: 0 };
        Self { state: Arc::new(Mutex::new(state)), now: Arc::new(Mutex::new(now)) }
    }

    /// A gateway that uses it, with files in this directory.
    #[must_use]
    pub fn at(&self, number: u8, state_dir: &Path) -> AtGateway {
        let put_off = PutOff::beside(&state_dir.join(vpnd_config::STORE_FILE_NAME));
        let histories = Histories::of_state_dir(state_dir, true);
        let link = Mutex::default();
        let (server, gateway, queries) = (self.clone(), [number; 16], AtomicUsize::new(0));
        AtGateway { server, gateway, histories, put_off, link, queries, changes: AtomicUsize::new(0) }
    }

    /// Adds a user, whose id is this.
    pub fn add_user(&self, user: &NewUser, id: UserId) {
        let state = self.state.lock();
        let t = Transaction::new(&state.database);
        let made = users::add(&t, user, 1).unwrap().unwrap();
        t.execute("UPDATE memberships SET user_id = ? WHERE user_id = ?", params![id.0, made.0]).unwrap();
        t.execute("UPDATE users SET id = ? WHERE id = ?", params![id.0, made.0]).unwrap();
        digest::renew(&t, id).unwrap();
    }

    /// Lets time pass.
    pub fn pass(&self, time: Duration) {
        *self.now.lock() += time;
    }

    /// Does `work` while all queries and changes wait.
    pub fn hold<T>(&self, work: impl FnOnce() -> T) -> T {
        let _state = self.state.lock();
        work()
    }

    /// Time until addresses are leased again after a loss.
    #[must_use]
    pub const fn settling() -> Duration {
        SETTLING
    }

    #[must_use]
    pub fn moment(&self) -> Moment {
        Moment(copy(&self.state.lock().database))
    }

    /// Goes back to a moment: a standby takes over that lacks what came after it, or, if it
    /// `is_backup`, that moment is restored in the same place.
    pub fn go_back(&self, moment: &Moment, is_backup: bool) {
        let mut state = self.state.lock();
        state.database = copy(&moment.0);
        state.start += 1;
        state.history.timeline += u32::from(!is_backup);
    }

    /// The gateway that carries a session that there is, and its generation.
    #[must_use]
    pub fn carrier(&self, session: SessionId) -> Option<(u8, u64)> {
        let state = self.state.lock();
        let sql = "SELECT c.gateway, c.generation FROM carriers c JOIN sessions s ON s.id = c.session WHERE s.id = ?";
        let found = Connection::new(&state.database)
            .query_row(sql, [session.0], |row| Ok((row.blob("gateway")?[0], row.get("generation")?)));
        found.optional().unwrap()
    }
}

impl AtGateway {
    /// Cuts the gateway off, or has it reach the database again.
    pub fn cut(&self, is_cut: bool) {
        let mut link = self.link.lock();
        link.is_cut = is_cut;
        link.admitted = link.admitted.filter(|_| !is_cut);
    }

    /// Has the next change end without an answer.
    pub fn lose_answer(&self, unanswered: Unanswered) {
        self.link.lock().unanswered = Some(unanswered);
    }

    /// Runs something before the next change, when its caller has read what it goes by.
    pub fn meanwhile(&self, work: impl FnOnce() + Send + 'static) {
        self.link.lock().meanwhile = Some(Box::new(work));
    }

    /// Queries until now.
    pub fn queries(&self) -> usize {
        self.queries.load(Ordering::Relaxed)
    }

    /// Changes until now, with those that were not made.
    pub fn changes(&self) -> usize {
        self.changes.load(Ordering::Relaxed)
    }

    /// Whether changes of sessions wait for the database.
    pub fn has_put_off(&self) -> bool {
        self.put_off.is_left()
    }

    /// See [`crate::postgres::Postgres::catch_up`].
    pub fn catch_up(&self, now_s: u64) -> Result<usize, StoreError> {
        self.put_off.catch_up(self, now_s)
    }

    fn failed(trouble: Trouble) -> StoreError {
        of_store(NAME, trouble)
    }

    fn explained<T>(found: SqlResult<T>) -> Result<T, StoreError> {
        found.map_err(|error| Self::failed(Trouble::Failed(error.to_string())))
    }

    /// Connects to the server's present start, as `holder` admits a gateway.
    fn admit(&self, state: &State) -> Result<(), StoreError> {
        let mut link = self.link.lock();
        if link.is_cut {
            return Err(Self::failed(Trouble::Unreachable("it is cut off".to_owned())));
        }
        if link.admitted == Some(state.start) {
            return Ok(());
        }
        self.histories.check(state.history).map_err(Self::failed)?;
        let mut has_lost = false;
        if let Some(last) = self.histories.last() {
            let c = Connection::new(&state.database);
            let found = c.query_row(IS_LOST, params![last.mark, last.number], |row| row.get("is_lost"));
            has_lost = Self::explained(found)?;
            if has_lost {
                Self::explained(c.execute(RAISE, params![last.generation + 1]))?;
            }
        }
        self.histories.go_on_with(state.history, has_lost, *self.server.now.lock());
        link.admitted = Some(state.start);
        Ok(())
    }
}

impl Database for AtGateway {
    fn read<T>(&self, query: impl FnOnce(&Connection<'_>) -> SqlResult<T>) -> Result<T, StoreError> {
        self.queries.fetch_add(1, Ordering::Relaxed);
        let state = self.server.state.lock();
        self.admit(&state)?;
        Self::explained(query(&Connection::new(&Of(&state.database, self.gateway))))
    }

    fn change<T>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> SqlResult<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.changes.fetch_add(1, Ordering::Relaxed);
        let meanwhile = self.link.lock().meanwhile.take();
        meanwhile.into_iter().for_each(|work| work());
        let mut state = self.server.state.lock();
        self.admit(&state)?;
        let unanswered = self.link.lock().unanswered.take();
        let open = state.database.transaction().unwrap();
        let engine = Of(&open, self.gateway);
        let t = Transaction::new(&engine);
        let mark: [u8; 16] = rand::random();
        Self::explained(t.execute("INSERT INTO marks (mark) VALUES (?)", params![mark]))?;
        let sql = "SELECT generation, (SELECT max(number) FROM marks) AS number FROM fleet";
        let mark = t.query_row(sql, (), |row| {
            Ok(Mark { mark, number: row.get("number")?, generation: row.get("generation")? })
        });
        let (mark, value) = (Self::explained(mark)?, Self::explained(change(&t))??);
        if unanswered != Some(Unanswered::NotMade) {
            open.commit().unwrap();
        }
        if unanswered == Some(Unanswered::MadeThenCut) {
            self.cut(true);
        }
        if unanswered.is_some() {
            return Err(Self::failed(Trouble::Uncertain));
        }
        self.histories.acknowledged(mark, *self.server.now.lock());
        Ok(value)
    }

    fn revoke<T>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> SqlResult<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.change(change)
    }

    fn find_session(&self, id: SessionId, now_s: u64) -> Result<Option<SessionRecord>, StoreError> {
        self.put_off.session(self, id, now_s)
    }

    fn alter_sessions(&self, changes: &[SessionChange], now_s: u64) -> Result<Vec<bool>, StoreError> {
        self.put_off.change(self, changes, now_s)
    }

    fn keep_shown_handshakes(&self, shown: &[HandshakeShown]) -> Result<Vec<bool>, StoreError> {
        self.put_off.keep_handshakes(self, shown)
    }

    fn wall_device(&self, wall: Wall) -> Result<(), StoreError> {
        self.put_off.wall(self, wall)
    }

    fn put_off(&self) -> &PutOff {
        &self.put_off
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn may_lease(&self) -> Result<(), StoreError> {
        if self.histories.is_settled(*self.server.now.lock()) {
            return Ok(());
        }
        Err(Self::failed(Trouble::Settling { wait_s: SETTLING.as_secs() }))
    }

    fn present_history(&self) -> u64 {
        self.histories.number()
    }
}

impl Behind for AtGateway {
    fn name(&self) -> String {
        NAME.to_owned()
    }

    fn held_up(&self) -> StoreError {
        Self::failed(Trouble::Busy)
    }

    fn alter(&self, _: Pace, changes: &[SessionChange], now_s: u64) -> Result<Vec<bool>, StoreError> {
        self.change(|t| sessions::change(t, changes, now_s).map(Ok))
    }

    fn keep_shown(&self, _: Pace, shown: &[HandshakeShown]) -> Result<Vec<bool>, StoreError> {
        self.change(|t| wireguard::keep_handshakes(t, shown).map(Ok))
    }

    fn wall(&self, pace: Pace, walls: &[Wall]) -> Result<(), StoreError> {
        self.change(|t| wireguard::wall(t, pace, walls).map(Ok))
    }

    fn end_all(&self, at_s: u64) -> Result<(), StoreError> {
        self.change(|t| put_off::end_all(t, at_s).map(Ok))
    }

    fn stored_session(&self, id: SessionId, now_s: u64) -> Result<Option<SessionRecord>, StoreError> {
        self.read(|c| sessions::by_id(c, id, now_s))
    }
}
