//! The tunnels that the service runs, and what a user may do with them.
//!
//! INVARIANT: only a tunnel's owner and root end it, see more of it than that its profile is
//! in use, or bring another one up at the same time: the newest tunnel is the innermost, so it
//! would carry what the others carry. The machine's own tunnel is root's, but each user sees it and
//! takes its place, once it is that user's turn; it does not begin while a user has one. After
//! users' logins that came to nothing it stays for as long as they have kept it down. A login keeps
//! other users out only in its turn, for [`LOGIN_LIMIT`], and after one that came to nothing they
//! come first for as long. Pure: times are arguments, and `H`, the handle that sends to a tunnel,
//! is only kept here.

use std::collections::VecDeque;
use std::time::Duration;

use vpnd_client::user_messages::{TunnelState, TunnelStatus, UsedBy};
use vpnd_proto::time::Time;

/// Tunnels at the same time. Each has a separate layer.
pub(super) const MAX_TUNNELS: usize = 4;
/// Tunnels of one user that have ended and are still shown.
const MAX_ENDED: usize = 8;
/// Lines of a tunnel that are kept.
const MAX_LINES: usize = 64;
/// The longest line that is kept, characters.
const MAX_LINE: usize = 512;

/// Time for a user's login to connect in its turn, while the machine's tunnel or another user
/// waits.
pub(super) const LOGIN_LIMIT: Duration = Duration::from_secs(180);
/// The shortest time for which the machine's tunnel stays up, or other users come first, after a
/// login that came to nothing: many short ones would leave them no time to connect.
const SHORTEST_REST: Duration = Duration::from_secs(10);

/// Bytes of the lines in one reply, and how many a line takes besides its text: a command reads a
/// message of 1 MiB.
const MAX_LOG: usize = 512 << 10;
const LINE_OVERHEAD: usize = 32;

/// Why a user gets nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Denied {
    #[error(
        "another user of this machine is connected: only they or an administrator can end that (`vpnd down` as root)"
    )]
    Another,
    #[error("another user of this machine is logging in: try again in {0} s")]
    LoggingIn(u64),
    #[error(
        "your login that came to nothing has kept another user waiting, who comes first now: try again in {0} s"
    )]
    Yielding(u64),
    #[error("'{0}' is being connected already: `vpnd down {0}` ends that")]
    UnderWay(String),
    #[error("{MAX_TUNNELS} tunnels are up already, which is the most: end one of them with `vpnd down`")]
    TooMany,
    #[error("'{0}' is not connected")]
    NotUp(String),
    #[error("'{0}' is this machine's own tunnel: an administrator ends it (`sudo vpnd down {0}`)")]
    Machines(String),
    #[error(
        "a login that came to nothing has kept this machine's own tunnel down, which now stays up as long: try again in {0} s"
    )]
    Resting(u64),
    #[error("there is nothing to show of '{0}'")]
    Unknown(String),
}

/// A tunnel of the table.
pub(super) type TunnelId = u64;

struct Tunnel<H> {
    id: TunnelId,
    owner: u32,
    /// Whether it is the machine's.
    is_machines: bool,
    profile: String,
    /// In the name of its interface; it has none before its turn.
    number: Option<usize>,
    /// Whether its client may change the machine: its user has answered what is asked before.
    has_turn: bool,
    /// Since when its login, and those before that it has overlapped, keep the machine's tunnel
    /// down; `None` once it is connected.
    login_since: Option<Time>,
    /// Since when its login, and those of the same user that it has overlapped, have their turn;
    /// `None` before, and once it is connected.
    turn_since: Option<Time>,
    /// Whether its login has kept another user from connecting.
    keeps_waiting: bool,
    state: TunnelState,
    since_s: u64,
    /// Each with its time.
    lines: VecDeque<(u64, String)>,
    /// `None` once it has ended.
    handle: Option<H>,
}

pub(super) struct Tunnels<H> {
    next_id: TunnelId,
    /// The oldest first.
    all: Vec<Tunnel<H>>,
    /// Whether root has ended the machine's, until root wants it again.
    is_held: bool,
    /// Commands for which it stays down, until they are done.
    pauses: usize,
    /// Until then it gives way to no user's.
    rests_until: Time,
    /// Users whose logins came to nothing and have kept others waiting, and until when those come
    /// first.
    yielding: Vec<(u32, Time)>,
}

impl<H> Tunnels<H> {
    pub(super) const fn new() -> Self {
        Self {
            next_id: 0,
            all: Vec::new(),
            is_held: false,
            pauses: 0,
            rests_until: Time::ZERO,
            yielding: Vec::new(),
        }
    }

    /// Whether other users' tunnels and the machine's let this user connect.
    ///
    /// # Errors
    /// If they don't for now; root they let at any time.
    pub(super) fn may_connect(&mut self, uid: u32, now: Time) -> Result<(), Denied> {
        self.may_interrupt(uid, now)?;
        let is_yielding = |(user, until): &&(u32, Time)| *user == uid && now < *until;
        if let Some((_, until)) = self.yielding.iter().find(is_yielding) {
            return Err(Denied::Yielding((*until - now).as_secs() + 1));
        }
        let mut left = Duration::ZERO;
        for tunnel in self.all.iter_mut().filter(|tunnel| tunnel.is_in_the_way_of(uid)) {
            // Root's logins take the time that they take.
            let since = tunnel.turn_since.filter(|_| tunnel.owner != 0).ok_or(Denied::Another)?;
            tunnel.keeps_waiting = true;
            left = left.max(LOGIN_LIMIT.saturating_sub(now - since));
        }
        if left.is_zero() { Ok(()) } else { Err(Denied::LoggingIn(left.as_secs() + 1)) }
    }

    /// Takes a place for a tunnel of this user, who may connect. What has ended of the same profile
    /// is forgotten. The machine's tunnel and other users' logins stay until it is the user's turn
    /// ([`Self::begin_turn`]).
    ///
    /// # Errors
    /// If there is no place.
    pub(super) fn begin(
        &mut self,
        uid: u32,
        profile: &str,
        now_s: u64,
        handle: H,
    ) -> Result<TunnelId, Denied> {
        self.check_place(uid, profile, None)?;
        Ok(self.add(uid, false, profile, now_s, handle))
    }

    /// Whether there is a place for a tunnel, or for this one in its turn. Where a user may
    /// connect, others' tunnels that have their turn are about to end; root's has its place beside
    /// them.
    fn check_place(&self, uid: u32, profile: &str, id: Option<TunnelId>) -> Result<(), Denied> {
        let is_beside = |tunnel: &&Tunnel<H>| {
            Some(tunnel.id) != id && (tunnel.owner == uid || uid == 0 && tunnel.has_turn)
        };
        let beside = || self.of_users().filter(is_beside);
        if beside().any(|tunnel| tunnel.profile == profile) {
            return Err(Denied::UnderWay(profile.to_owned()));
        }
        if beside().count() >= MAX_TUNNELS {
            return Err(Denied::TooMany);
        }
        Ok(())
    }

    /// Takes a place for the machine's tunnel, unless it has one, root has ended it, it stays down
    /// for a moment, or it is a user's turn.
    pub(super) fn begin_machines(&mut self, profile: &str, now_s: u64, handle: H) -> Option<TunnelId> {
        let is_taken = self.running().any(|tunnel| tunnel.is_machines || tunnel.has_turn);
        if self.is_held || self.pauses > 0 || is_taken {
            return None;
        }
        Some(self.add(0, true, profile, now_s, handle))
    }

    fn add(&mut self, owner: u32, is_machines: bool, profile: &str, now_s: u64, handle: H) -> TunnelId {
        self.all
            .retain(|tunnel| tunnel.handle.is_some() || tunnel.owner != owner || tunnel.profile != profile);
        let id = self.next_id;
        self.next_id += 1;
        self.all.push(Tunnel {
            id,
            owner,
            is_machines,
            profile: profile.to_owned(),
            number: None,
            has_turn: false,
            login_since: None,
            turn_since: None,
            keeps_waiting: false,
            state: TunnelState::Connecting,
            since_s: now_s,
            lines: VecDeque::new(),
            handle: Some(handle),
        });
        id
    }

    /// Whether the machine's tunnel gives way to this user's.
    ///
    /// # Errors
    /// If it stays for now; only to root it gives way at any time.
    fn may_interrupt(&self, uid: u32, now: Time) -> Result<(), Denied> {
        if now < self.rests_until && !self.is_held && uid != 0 {
            return Err(Denied::Resting((self.rests_until - now).as_secs() + 1));
        }
        Ok(())
    }

    /// The tunnel's client is ready to change the machine. Before it does, the machine's tunnel and
    /// [late logins](Self::late_logins) have to give way to a user's, and the machine's does not
    /// begin any more. Returns since when logins keep it down.
    ///
    /// # Errors
    /// If another's tunnel stays for now, or there is no place any more.
    pub(super) fn begin_turn(&mut self, id: TunnelId, now: Time) -> Result<Time, Denied> {
        let Some(place) = self.all.iter().position(|tunnel| tunnel.id == id) else { return Ok(now) };
        let owner = self.all[place].owner;
        if !self.all[place].is_machines {
            self.may_connect(owner, now)?;
            self.check_place(owner, &self.all[place].profile, Some(id))?;
        }
        let since = self.of_users().filter_map(|tunnel| tunnel.login_since).min().unwrap_or(now);
        let owners = self.of_users().filter(|tunnel| tunnel.owner == owner);
        let turn_since = owners.filter_map(|tunnel| tunnel.turn_since).min().unwrap_or(now);
        let tunnel = &mut self.all[place];
        tunnel.has_turn = true;
        (tunnel.login_since, tunnel.turn_since) = (Some(since), Some(turn_since));
        Ok(since)
    }

    /// The logins of others that were not connected in time, and give way to this tunnel, whose
    /// turn has begun.
    pub(super) fn late_logins(&self, id: TunnelId) -> impl Iterator<Item = &H> {
        let owner = self.all.iter().find(|tunnel| tunnel.id == id).map_or(0, |tunnel| tunnel.owner);
        self.running().filter(move |tunnel| tunnel.is_in_the_way_of(owner)).filter_map(Tunnel::handle)
    }

    /// The tunnel is about to end. If its login came to nothing and has kept another user waiting,
    /// others come first for as long.
    pub(super) fn yield_turn(&mut self, id: TunnelId, now: Time) {
        let Some(tunnel) = self.all.iter().find(|tunnel| tunnel.id == id) else { return };
        let (owner, since) = (tunnel.owner, tunnel.turn_since.filter(|_| tunnel.keeps_waiting));
        self.yielding.retain(|(_, until)| now < *until);
        if let Some(since) = since {
            self.yielding.push((owner, now + (now - since).max(SHORTEST_REST)));
        }
    }

    /// A user's login came to nothing, which has kept the machine's tunnel down `since` then: it
    /// gives way to none for as long.
    pub(super) fn rest_machines(&mut self, since: Time, now: Time) {
        self.rests_until = self.rests_until.max(now + (now - since).max(SHORTEST_REST));
    }

    /// The machine's running tunnel.
    pub(super) fn machines(&self) -> Option<&H> {
        self.running().find(|tunnel| tunnel.is_machines).and_then(Tunnel::handle)
    }

    /// Takes an interface for a tunnel, by its number, of which none is `taken`.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn take_number(
        &mut self,
        id: TunnelId,
        taken: impl Fn(usize) -> bool,
    ) -> Result<usize, Denied> {
        let is_free =
            |number: &usize| !taken(*number) && self.running().all(|tunnel| tunnel.number != Some(*number));
        let number = (0..u8::MAX.into()).find(is_free).ok_or(Denied::TooMany)?;
        if let Some(tunnel) = self.all.iter_mut().find(|tunnel| tunnel.id == id) {
            tunnel.number = Some(number);
        }
        Ok(number)
    }

    /// Root has ended the machine's tunnel, or lets it come back.
    pub(super) fn hold_machines(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Whether root has ended the machine's tunnel.
    pub(super) fn is_machines_held(&self) -> bool {
        self.is_held
    }

    /// Keeps the machine's tunnel from beginning until as many pauses have ended.
    pub(super) fn begin_pause(&mut self) {
        self.pauses += 1;
    }

    pub(super) fn end_pause(&mut self) {
        self.pauses = self.pauses.saturating_sub(1);
    }

    /// Whether this user has a tunnel that runs.
    pub(super) fn is_owner(&self, uid: u32) -> bool {
        self.running().any(|tunnel| tunnel.owner == uid)
    }

    /// The tunnel is in this state, and this was said of it.
    pub(super) fn note(&mut self, id: TunnelId, state: TunnelState, said: &str, now_s: u64) {
        let Some(tunnel) = self.all.iter_mut().find(|tunnel| tunnel.id == id) else { return };
        if tunnel.state != state {
            (tunnel.state, tunnel.since_s) = (state, now_s);
        }
        if state == TunnelState::Connected {
            (tunnel.login_since, tunnel.turn_since) = (None, None);
        }
        self.say(id, said, now_s);
    }

    /// This was said of the tunnel.
    pub(super) fn say(&mut self, id: TunnelId, said: &str, now_s: u64) {
        let Some(tunnel) = self.all.iter_mut().find(|tunnel| tunnel.id == id) else { return };
        if tunnel.lines.len() == MAX_LINES {
            tunnel.lines.pop_front();
        }
        tunnel.lines.push_back((now_s, said.chars().take(MAX_LINE).collect()));
    }

    /// The tunnel is no more. It is shown to its owner until there are too many, or another one of
    /// the same profile begins.
    pub(super) fn end(&mut self, id: TunnelId, said: &str, now_s: u64) {
        self.note(id, TunnelState::Ended, said, now_s);
        let Some(tunnel) = self.all.iter_mut().find(|tunnel| tunnel.id == id) else { return };
        tunnel.handle = None;
        // No user's tunnels push out another's.
        let owner = tunnel.owner;
        let has_ended = |tunnel: &Tunnel<H>| tunnel.handle.is_none() && tunnel.owner == owner;
        let ended = self.all.iter().filter(|tunnel| has_ended(tunnel)).count();
        let mut surplus = ended.saturating_sub(MAX_ENDED);
        self.all.retain(|tunnel| {
            let goes = has_ended(tunnel) && surplus > 0;
            surplus -= usize::from(goes);
            !goes
        });
    }

    /// The running tunnels that this user may end: all, or the one of this profile.
    ///
    /// # Errors
    /// If the named one is not up, or another user's.
    pub(super) fn to_end(&self, uid: u32, profile: Option<&str>) -> Result<Vec<&H>, Denied> {
        let Some(profile) = profile else {
            return Ok(self
                .running()
                .filter(|tunnel| tunnel.is_of(uid))
                .filter_map(Tunnel::handle)
                .collect());
        };
        // Others may be about to log in by profiles of the same name.
        let named = || self.running().filter(move |tunnel| tunnel.profile == profile);
        let own: Vec<&H> = named().filter(|tunnel| tunnel.is_of(uid)).filter_map(Tunnel::handle).collect();
        match named().next() {
            None => Err(Denied::NotUp(profile.to_owned())),
            Some(_) if !own.is_empty() => Ok(own),
            Some(tunnel) if tunnel.is_machines => Err(Denied::Machines(profile.to_owned())),
            Some(_) => Err(Denied::Another),
        }
    }

    /// The user's own running tunnel of this profile, if there is one.
    pub(super) fn own(&self, uid: u32, profile: &str) -> Option<TunnelId> {
        let own = |tunnel: &&Tunnel<H>| tunnel.owner == uid && tunnel.profile == profile;
        self.running().find(own).map(|tunnel| tunnel.id)
    }

    /// The tunnels that this user may see, each with its handle while it runs.
    pub(super) fn visible(&self, uid: u32) -> impl Iterator<Item = (TunnelId, TunnelStatus, Option<&H>)> {
        let is_visible =
            move |tunnel: &&Tunnel<H>| tunnel.is_of(uid) || tunnel.is_machines && tunnel.handle.is_some();
        self.all.iter().filter(is_visible).map(|tunnel| {
            let status = TunnelStatus {
                profile: tunnel.profile.clone(),
                uid: tunnel.owner,
                state: tunnel.state,
                since_s: tunnel.since_s,
                said: tunnel.lines.back().map(|(_, said)| said.clone()).unwrap_or_default(),
                details: None,
                machine: tunnel.is_machines,
            };
            (tunnel.id, status, tunnel.handle())
        })
    }

    /// The messages about tunnels that this user may see, of one profile or of all, each line with
    /// its time; the newest of them if there are many.
    ///
    /// # Errors
    /// If a profile is named and there is none of it.
    pub(super) fn log(&self, uid: u32, profile: Option<&str>) -> Result<Vec<(u64, String)>, Denied> {
        let is_wanted = |tunnel: &&Tunnel<H>| profile.is_none_or(|profile| tunnel.profile == profile);
        let mut wanted = self.all.iter().filter(|tunnel| tunnel.is_of(uid)).filter(is_wanted).peekable();
        if let (None, Some(profile)) = (wanted.peek(), profile) {
            return Err(Denied::Unknown(profile.to_owned()));
        }
        let of_one = |tunnel: &Tunnel<H>| {
            let line = |(at_s, said): &(u64, String)| (*at_s, format!("{}: {said}", tunnel.profile));
            tunnel.lines.iter().map(line).collect::<Vec<_>>()
        };
        let mut lines: Vec<_> = wanted.flat_map(of_one).collect();
        lines.sort_by_key(|(at_s, _)| *at_s);
        let mut room = MAX_LOG;
        let fits = |(_, said): &&(u64, String)| {
            room = room.saturating_sub(said.len() + LINE_OVERHEAD);
            room > 0
        };
        let newest = lines.iter().rev().take_while(fits).count();
        Ok(lines.split_off(lines.len() - newest))
    }

    /// The user of this profile's running tunnel, as far as this user may know.
    pub(super) fn used_by(&self, uid: u32, profile: &str) -> Option<UsedBy> {
        let named = || self.running().filter(move |tunnel| tunnel.profile == profile);
        let tunnel = named().find(|tunnel| tunnel.owner == uid).or_else(|| named().next())?;
        Some(match tunnel.owner {
            _ if tunnel.is_machines => UsedBy::Machine,
            owner if owner == uid => UsedBy::You,
            _ => UsedBy::AnotherUser,
        })
    }

    /// All that run.
    pub(super) fn handles(&self) -> impl Iterator<Item = &H> {
        self.running().filter_map(Tunnel::handle)
    }

    fn running(&self) -> impl Iterator<Item = &Tunnel<H>> {
        self.all.iter().filter(|tunnel| tunnel.handle.is_some())
    }

    fn of_users(&self) -> impl Iterator<Item = &Tunnel<H>> {
        self.running().filter(|tunnel| !tunnel.is_machines)
    }
}

impl<H> Tunnel<H> {
    fn handle(&self) -> Option<&H> {
        self.handle.as_ref()
    }

    /// Whether it keeps this user from connecting, for now or for good.
    fn is_in_the_way_of(&self, uid: u32) -> bool {
        let has_turn = self.handle.is_some() && !self.is_machines && self.has_turn;
        has_turn && uid != 0 && self.owner != uid
    }

    /// Whether this user may end it and see all of it.
    fn is_of(&self, uid: u32) -> bool {
        uid == 0 || self.owner == uid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: u32 = 0;
    const ANN: u32 = 1_000;
    const BOB: u32 = 1_001;

    /// A table with a tunnel of ann's, by the profile `work`.
    fn with_anns() -> (Tunnels<&'static str>, TunnelId) {
        let mut tunnels = Tunnels::new();
        let id = tunnels.begin(ANN, "work", 5, "ann's").unwrap();
        (tunnels, id)
    }

    /// It is this user's turn, if the user may connect.
    fn turn(
        tunnels: &mut Tunnels<&'static str>,
        uid: u32,
        profile: &str,
        now: Time,
    ) -> Result<TunnelId, Denied> {
        tunnels.may_connect(uid, now)?;
        let id = tunnels.begin(uid, profile, 5, "a user's")?;
        tunnels.begin_turn(id, now).map(|_| id)
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn only_its_user_and_root_control_a_tunnel() {
        let (mut tunnels, id) = with_anns();
        tunnels.note(id, TunnelState::Connected, "connected over UDP", 6);
        for (uid, sees) in [(ANN, true), (ROOT, true), (BOB, false)] {
            assert_eq!(tunnels.visible(uid).count(), usize::from(sees), "{uid}");
            assert_eq!(tunnels.to_end(uid, None).unwrap().len(), usize::from(sees), "{uid}");
            assert_eq!(tunnels.to_end(uid, Some("work")).is_ok(), sees, "{uid}");
            assert_eq!(tunnels.log(uid, Some("work")).is_ok(), sees, "{uid}");
            assert_eq!(tunnels.log(uid, None).unwrap().len(), usize::from(sees), "{uid}");
        }
        assert_eq!(tunnels.to_end(BOB, Some("work")), Err(Denied::Another));
        assert_eq!(tunnels.used_by(ANN, "work"), Some(UsedBy::You));
        assert_eq!(tunnels.used_by(BOB, "work"), Some(UsedBy::AnotherUser));
        assert_eq!((tunnels.own(ANN, "work"), tunnels.own(BOB, "work")), (Some(id), None));
        tunnels.end(id, "the user has ended it", 7);
        assert_eq!(tunnels.visible(BOB).count(), 0, "nor what is left of it");
        assert!(tunnels.log(BOB, None).unwrap().is_empty());
    }

    #[test]
    fn only_root_connects_beside_another_users_tunnel() {
        let (mut tunnels, id) = with_anns();
        tunnels.begin_turn(id, at(0)).unwrap();
        tunnels.note(id, TunnelState::Connected, "connected", 6);
        let mut begin = |uid, profile| turn(&mut tunnels, uid, profile, at(9_000));
        assert_eq!(begin(BOB, "work"), Err(Denied::Another));
        assert_eq!(begin(BOB, "home"), Err(Denied::Another), "nor by another profile");
        assert_eq!(begin(ANN, "work"), Err(Denied::UnderWay("work".to_owned())));
        assert_eq!(begin(ANN, "home"), Ok(1));
        assert_eq!(begin(ROOT, "home"), Err(Denied::UnderWay("home".to_owned())));
        assert_eq!(begin(ROOT, "lab"), Ok(2));
        assert_eq!(begin(ANN, "lab"), Err(Denied::Another), "root's is another user's");
        assert_eq!(begin(ROOT, "x"), Ok(3));
        assert_eq!(begin(ROOT, "y"), Err(Denied::TooMany));
        let numbers = [id, 1, 2, 3].map(|id| tunnels.take_number(id, |number| number == 2).unwrap());
        assert_eq!(numbers, [0, 1, 3, 4], "each has another, and none that is taken");
        for id in [id, 1, 2, 3] {
            tunnels.end(id, "over", 7);
        }
        let bobs = turn(&mut tunnels, BOB, "work", at(9_000)).unwrap();
        assert_eq!(tunnels.take_number(bobs, |number| number < 2), Ok(2));
        assert_eq!(tunnels.take_number(bobs, |_| true), Err(Denied::TooMany));
        assert_eq!(tunnels.used_by(ANN, "work"), Some(UsedBy::AnotherUser));
    }

    #[test]
    fn a_login_before_its_turn_keeps_no_other_user_out() {
        let mut tunnels = Tunnels::new();
        for profile in ["work", "home", "lab", "x"] {
            tunnels.may_connect(BOB, at(0)).unwrap();
            tunnels.begin(BOB, profile, 5, "bob's").unwrap();
        }
        let anns = turn(&mut tunnels, ANN, "work", at(1)).unwrap();
        assert_eq!(tunnels.late_logins(anns).count(), 0);
        assert_eq!(tunnels.begin_turn(0, at(2)), Err(Denied::LoggingIn(180)), "it is ann's turn");
        tunnels.note(anns, TunnelState::Connected, "connected", 7);
        assert_eq!(tunnels.begin_turn(0, at(9_000)), Err(Denied::Another));
        assert_eq!(tunnels.used_by(ANN, "work"), Some(UsedBy::You));
        assert_eq!(tunnels.to_end(ANN, Some("work")), Ok(vec![&"a user's"]));
        assert_eq!(tunnels.to_end(BOB, Some("work")), Ok(vec![&"bob's"]));
        assert_eq!(tunnels.to_end(ANN, Some("home")), Err(Denied::Another));
        assert_eq!(tunnels.to_end(ROOT, Some("work")).unwrap().len(), 2);
        // Root's waits, too, for a place that a user has taken meanwhile.
        tunnels.end(anns, "over", 8);
        let roots = tunnels.begin(ROOT, "work", 5, "root's").unwrap();
        turn(&mut tunnels, ANN, "work", at(9_000)).unwrap();
        assert_eq!(tunnels.begin_turn(roots, at(9_001)), Err(Denied::UnderWay("work".to_owned())));
    }

    #[test]
    fn a_login_that_connects_too_late_gives_way_to_another_user() {
        let mut tunnels = Tunnels::new();
        let first = turn(&mut tunnels, BOB, "work", at(0)).unwrap();
        let second = turn(&mut tunnels, BOB, "home", at(170)).unwrap();
        assert_eq!(turn(&mut tunnels, ANN, "work", at(171)), Err(Denied::LoggingIn(10)));
        let anns = turn(&mut tunnels, ANN, "work", at(180)).expect("those that overlap count as one");
        assert_eq!(tunnels.late_logins(anns).count(), 2);
        assert_eq!(turn(&mut tunnels, BOB, "lab", at(180)), Err(Denied::LoggingIn(181)), "nor a third");
        for id in [first, second] {
            tunnels.yield_turn(id, at(181));
            tunnels.end(id, "gave way", 6);
        }
        assert_eq!(tunnels.late_logins(anns).count(), 0);
        tunnels.end(anns, "over", 7);
        assert_eq!(turn(&mut tunnels, BOB, "lab", at(200)), Err(Denied::Yielding(163)));
        let anns = turn(&mut tunnels, ANN, "work", at(200)).expect("she comes first now");
        tunnels.yield_turn(anns, at(361));
        tunnels.end(anns, "over", 8);
        assert_eq!(turn(&mut tunnels, BOB, "lab", at(362)).map(drop), Ok(()), "nobody waits for her end");
    }

    #[test]
    fn roots_login_and_one_that_no_other_user_waits_for_have_time() {
        let mut tunnels = Tunnels::new();
        let roots = turn(&mut tunnels, ROOT, "work", at(0)).unwrap();
        assert_eq!(turn(&mut tunnels, ANN, "home", at(9_000)), Err(Denied::Another));
        tunnels.end(roots, "over", 6);
        let anns = turn(&mut tunnels, ANN, "work", at(9_000)).unwrap();
        tunnels.yield_turn(anns, at(9_900));
        tunnels.end(anns, "over", 7);
        assert_eq!(turn(&mut tunnels, ANN, "work", at(9_900)).map(drop), Ok(()));
    }

    #[test]
    fn each_user_takes_the_place_of_the_machines_tunnel_and_only_root_ends_it() {
        let mut tunnels = Tunnels::new();
        let begin = |tunnels: &mut Tunnels<_>| tunnels.begin_machines("kiosk", 5, "the machine's");
        let machine = begin(&mut tunnels).unwrap();
        assert_eq!(tunnels.machines(), Some(&"the machine's"));
        assert_eq!(begin(&mut tunnels), None, "one is enough");
        for uid in [ANN, ROOT] {
            let (_, status, handle) = tunnels.visible(uid).next().unwrap();
            assert!(status.machine && handle.is_some(), "{uid}");
            assert_eq!(tunnels.used_by(uid, "kiosk"), Some(UsedBy::Machine), "{uid}");
        }
        assert_eq!(tunnels.to_end(ANN, Some("kiosk")), Err(Denied::Machines("kiosk".to_owned())));
        assert_eq!(tunnels.to_end(ANN, None), Ok(vec![]));
        assert_eq!(tunnels.to_end(ROOT, Some("kiosk")), Ok(vec![&"the machine's"]));
        assert!(tunnels.log(ANN, None).unwrap().is_empty());

        let anns = tunnels.begin(ANN, "work", 6, "ann's").unwrap();
        tunnels.end(machine, "failed", 7);
        let machine = begin(&mut tunnels).expect("ann has not answered yet");
        tunnels.begin_turn(anns, at(0)).unwrap();
        tunnels.end(machine, "gave way", 7);
        assert_eq!((tunnels.visible(ANN).count(), tunnels.visible(ROOT).count()), (1, 2));
        assert_eq!(begin(&mut tunnels), None, "it is ann's turn");
        tunnels.end(anns, "over", 8);
        tunnels.hold_machines(true);
        assert_eq!(begin(&mut tunnels), None, "root has ended it");
        tunnels.hold_machines(false);
        (0..2).for_each(|_| tunnels.begin_pause());
        tunnels.end_pause();
        assert_eq!(begin(&mut tunnels), None, "one command is not done");
        tunnels.end_pause();
        assert!(begin(&mut tunnels).is_some());
    }

    #[test]
    fn failed_logins_block_the_machines_tunnel_half_of_the_time_at_most() {
        let mut tunnels = Tunnels::new();
        let up = |tunnels: &mut Tunnels<_>, uid, now| {
            let id = tunnels.begin(uid, "work", 5, "a user's").unwrap();
            let turn = tunnels.begin_turn(id, now).map(drop);
            tunnels.end(id, "over", 6);
            turn
        };
        assert_eq!(up(&mut tunnels, ANN, at(100)), Ok(()));
        tunnels.rest_machines(at(100), at(160));
        assert_eq!(up(&mut tunnels, ANN, at(160)), Err(Denied::Resting(61)));
        assert_eq!(up(&mut tunnels, BOB, at(219)), Err(Denied::Resting(2)), "nor for another user");
        assert_eq!(up(&mut tunnels, ROOT, at(160)), Ok(()));
        assert_eq!(up(&mut tunnels, BOB, at(220)), Ok(()));
        // Many short ones.
        tunnels.rest_machines(at(220), at(221));
        assert_eq!(up(&mut tunnels, ANN, at(230)), Err(Denied::Resting(2)));
        tunnels.hold_machines(true);
        assert_eq!(up(&mut tunnels, ANN, at(230)), Ok(()), "root keeps it down anyway");
    }

    #[test]
    fn logins_that_overlap_count_as_one() {
        let (mut tunnels, first) = with_anns();
        assert_eq!(tunnels.begin_turn(first, at(100)), Ok(at(100)));
        let second = tunnels.begin(ANN, "home", 5, "ann's").unwrap();
        assert_eq!(tunnels.begin_turn(second, at(170)), Ok(at(100)));
        for (id, now) in [(first, at(180)), (second, at(181))] {
            tunnels.end(id, "over", 6);
            tunnels.rest_machines(at(100), now);
        }
        tunnels.rest_machines(at(181), at(182));
        assert_eq!(tunnels.may_connect(ANN, at(261)), Err(Denied::Resting(2)), "no shorter one counts");
        let third = tunnels.begin(ANN, "work", 5, "ann's").unwrap();
        tunnels.begin_turn(third, at(300)).unwrap();
        tunnels.note(third, TunnelState::Connected, "connected", 7);
        let fourth = tunnels.begin(ANN, "home", 5, "ann's").unwrap();
        assert_eq!(tunnels.begin_turn(fourth, at(9_000)), Ok(at(9_000)), "the other is no login any more");
    }

    #[test]
    fn root_gets_the_newest_lines_of_many_users() {
        let mut tunnels = Tunnels::new();
        for uid in 1..=200 {
            let id = tunnels.begin(uid, "work", 0, "a user's").unwrap();
            (0..u64::from(uid)).for_each(|_| tunnels.say(id, &"ü".repeat(MAX_LINE), u64::from(uid)));
            tunnels.end(id, "over", u64::from(uid));
        }
        let lines = tunnels.log(ROOT, None).unwrap();
        let bytes: usize = lines.iter().map(|(_, line)| line.len()).sum();
        assert!(bytes < MAX_LOG && bytes > MAX_LOG / 2, "{bytes}");
        assert_eq!(lines.last(), Some(&(200, "work: over".to_owned())));
    }

    #[test]
    fn ended_tunnels_and_their_logs_are_bounded() {
        let (mut tunnels, id) = with_anns();
        tunnels.end(id, "over", 6);
        for n in 0..100 {
            let id = tunnels.begin(BOB, &format!("p{n}"), n, "bob's").unwrap();
            assert_eq!(tunnels.take_number(id, |_| false), Ok(0));
            (0..200).for_each(|_| tunnels.note(id, TunnelState::Connected, &"x".repeat(9_999), n));
            tunnels.end(id, "over", n);
        }
        assert_eq!(tunnels.visible(BOB).count(), MAX_ENDED);
        let lines = tunnels.log(BOB, None).unwrap();
        assert_eq!(lines.len(), MAX_ENDED * MAX_LINES);
        assert!(lines.iter().all(|(_, line)| line.len() < MAX_LINE + 10));
        assert_eq!(tunnels.visible(ANN).count(), 1, "bob's many do not push out hers");
        // Another one of the same profile takes the place of what has ended.
        let (_, status, _) = tunnels.visible(BOB).last().unwrap();
        assert_eq!(
            (status.profile.as_str(), status.state, status.said.as_str()),
            ("p99", TunnelState::Ended, "over")
        );
        tunnels.begin(BOB, "p99", 200, "bob's").unwrap();
        let states: Vec<_> = tunnels.visible(BOB).filter(|(_, status, _)| status.profile == "p99").collect();
        assert!(
            states.len() == 1 && states[0].1.state == TunnelState::Connecting && states[0].1.since_s == 200
        );
    }
}
