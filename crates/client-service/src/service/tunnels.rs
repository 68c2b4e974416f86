//! The tunnels that the service runs, and what a user may do with them.
//!
//! INVARIANT: only a tunnel's owner and root end it, see more of it than that its profile is
//! in use, or bring another one up at the same time: the newest tunnel is the innermost, so it
//! would carry what the others carry. The machine's own tunnel is root's, but each user sees it and
//! takes its place, once it is that user's turn; it does not begin while a user has one. After
//! users' logins that came to nothing it stays for as long as they have kept it down. Pure: times
//! are arguments, and `H`, the handle that sends to a tunnel, is only kept here.

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

/// The shortest time for which the machine's tunnel stays up after a login that came to nothing:
/// many short ones would leave it no time to connect.
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
}

impl<H> Tunnels<H> {
    pub(super) const fn new() -> Self {
        Self { next_id: 0, all: Vec::new(), is_held: false, pauses: 0, rests_until: Time::ZERO }
    }

    /// Takes a place for a tunnel of this user. What has ended of the same profile is forgotten.
    /// The machine's tunnel stays until it is the user's turn ([`Self::begin_turn`]).
    ///
    /// # Errors
    /// If the user may not, or there is no place.
    pub(super) fn begin(
        &mut self,
        uid: u32,
        profile: &str,
        now_s: u64,
        handle: H,
    ) -> Result<TunnelId, Denied> {
        if uid != 0 && self.of_users().any(|tunnel| tunnel.owner != uid) {
            return Err(Denied::Another);
        }
        if self.of_users().any(|tunnel| tunnel.profile == profile) {
            return Err(Denied::UnderWay(profile.to_owned()));
        }
        if self.of_users().count() >= MAX_TUNNELS {
            return Err(Denied::TooMany);
        }
        Ok(self.add(uid, false, profile, now_s, handle))
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
    pub(super) fn may_interrupt(&self, uid: u32, now: Time) -> Result<(), Denied> {
        if now < self.rests_until && !self.is_held && uid != 0 {
            return Err(Denied::Resting((self.rests_until - now).as_secs() + 1));
        }
        Ok(())
    }

    /// The tunnel's client is ready to change the machine. Before it does, the machine's tunnel has
    /// to give way to a user's, and does not begin any more. Returns since when logins keep it
    /// down.
    ///
    /// # Errors
    /// If the machine's tunnel stays for now.
    pub(super) fn begin_turn(&mut self, id: TunnelId, now: Time) -> Result<Time, Denied> {
        let Some(place) = self.all.iter().position(|tunnel| tunnel.id == id) else { return Ok(now) };
        self.may_interrupt(self.all[place].owner, now)?;
        let since = self.of_users().filter_map(|tunnel| tunnel.login_since).min().unwrap_or(now);
        (self.all[place].has_turn, self.all[place].login_since) = (true, Some(since));
        Ok(since)
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
            tunnel.login_since = None;
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
        match self.running().find(|tunnel| tunnel.profile == profile) {
            None => Err(Denied::NotUp(profile.to_owned())),
            Some(tunnel) if tunnel.is_machines && uid != 0 => Err(Denied::Machines(profile.to_owned())),
            Some(tunnel) if !tunnel.is_of(uid) => Err(Denied::Another),
            Some(tunnel) => Ok(tunnel.handle().into_iter().collect()),
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
        let tunnel = self.running().find(|tunnel| tunnel.profile == profile)?;
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
        let mut begin = |uid, profile| tunnels.begin(uid, profile, 6, "new");
        assert_eq!(begin(BOB, "work"), Err(Denied::Another));
        assert_eq!(begin(BOB, "home"), Err(Denied::Another), "nor by another profile");
        assert_eq!(begin(ANN, "work"), Err(Denied::UnderWay("work".to_owned())));
        assert_eq!(begin(ANN, "home"), Ok(1));
        assert_eq!(begin(ROOT, "lab"), Ok(2));
        assert_eq!(begin(ANN, "lab"), Err(Denied::Another), "root's is another user's");
        assert_eq!(begin(ROOT, "x"), Ok(3));
        assert_eq!(begin(ROOT, "y"), Err(Denied::TooMany));
        let numbers = [id, 1, 2, 3].map(|id| tunnels.take_number(id, |number| number == 2).unwrap());
        assert_eq!(numbers, [0, 1, 3, 4], "each has another, and none that is taken");
        for id in [id, 1, 2, 3] {
            tunnels.end(id, "over", 7);
        }
        let bobs = tunnels.begin(BOB, "work", 8, "bob's").unwrap();
        assert_eq!(tunnels.take_number(bobs, |number| number < 2), Ok(2));
        assert_eq!(tunnels.take_number(bobs, |_| true), Err(Denied::TooMany));
        assert_eq!(tunnels.used_by(ANN, "work"), Some(UsedBy::AnotherUser));
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
        assert_eq!(tunnels.begin(BOB, "work", 6, "bob's"), Err(Denied::Another));
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
        assert_eq!(tunnels.may_interrupt(ANN, at(261)), Err(Denied::Resting(2)), "no shorter one counts");
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
