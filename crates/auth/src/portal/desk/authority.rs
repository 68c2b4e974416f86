//! Decisions of the desk: who may do what, from where, how often. This module must not know of the
//! store.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::time::Duration;

use vpnd_config::desk::Desk;
use vpnd_ipc::gateway::portal::desk::{Deed, DeskRefusal, Role};
use vpnd_proto::time::Time;
use vpnd_store::{LOCAL, User, UserId};
use vpnd_sys::allowance::Allowance;

/// Pages of one person at once, and the time from one to the next after that.
const LOOKS: (u32, Duration) = (60, Duration::from_secs(1));
/// Limit for changes and look-ups.
const CHANGES: (u32, Duration) = (20, Duration::from_secs(30));

/// Requests of one program.
const PROGRAMS: (u32, Duration) = (1_000, Duration::from_millis(100));

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Look,
    /// Look-ups of personal data.
    Ask,
    Change,
}

/// The role of a user who may do this from there.
pub(super) fn admit(
    rules: &Desk,
    user: &User,
    address: IpAddr,
    is_recent: bool,
    act: Act,
) -> Result<Role, DeskRefusal> {
    let role = rules.role(&user.source, &user.groups).ok_or(DeskRefusal::NoRole)?;
    permit(rules, role, address, is_recent, act).map(|()| role)
}

/// Whether this role may do this from there.
pub(super) fn permit(
    rules: &Desk,
    role: Role,
    address: IpAddr,
    is_recent: bool,
    act: Act,
) -> Result<(), DeskRefusal> {
    if !is_near(rules, address) {
        return Err(DeskRefusal::Elsewhere);
    }
    match act {
        Act::Ask | Act::Change if role < Role::HelpDesk => Err(DeskRefusal::NoRole),
        Act::Change if !is_recent => Err(DeskRefusal::LogInAgain),
        Act::Look | Act::Ask | Act::Change => Ok(()),
    }
}

/// Whether the desk is open from there.
pub(super) fn is_near(rules: &Desk, address: IpAddr) -> bool {
    let address = address.to_canonical();
    rules.networks.iter().any(|network| network.contains(&address))
}

/// Whether people may do this to that user, whatever their role. INVARIANT: nothing here makes an
/// administrator or gives an account of one, or a portal that was taken over would keep the rights
/// of the person whose browser it sends for.
pub(super) fn is_for_people(rules: &Desk, deed: &Deed, user: Option<&User>) -> bool {
    match deed {
        Deed::Add(account) => {
            let groups: Vec<String> = account.groups.iter().map(ToString::to_string).collect();
            rules.role(LOCAL, &groups).is_none()
        }
        Deed::Remove
        | Deed::SetGroups(_)
        | Deed::Modify(_)
        | Deed::RemoveDevice(_)
        | Deed::AddDevice { .. }
        | Deed::RenewDevice { .. } => false,
        Deed::Invite => user.is_none_or(|user| rules.role(&user.source, &user.groups).is_none()),
        Deed::Kick(_)
        | Deed::Disable
        | Deed::Enable
        | Deed::ResetCodes
        | Deed::Extend(_)
        | Deed::RevokeCertificates(_) => true,
    }
}

/// Whether this role may change that user; `by` is the person, if it is one. The help
/// desk has no power over those who administer, or it would have theirs.
pub(super) fn may_change(
    rules: &Desk,
    by: Option<&User>,
    role: Role,
    user: &User,
) -> Result<(), DeskRefusal> {
    let has_role = rules.role(&user.source, &user.groups).is_some();
    match role {
        Role::Viewer => Err(DeskRefusal::NoRole),
        _ if by.is_some_and(|by| by.id == user.id) => Err(DeskRefusal::Own),
        Role::HelpDesk if has_role => Err(DeskRefusal::Senior),
        Role::HelpDesk | Role::Administrator => Ok(()),
    }
}

/// Limits of requests, by person.
#[derive(Debug, Default)]
pub(super) struct Rates {
    looks: HashMap<UserId, Allowance>,
    changes: HashMap<UserId, Allowance>,
    /// By the hash of the token.
    programs: HashMap<[u8; 32], Allowance>,
}

impl Rates {
    /// Takes one request of this person: `false` if there were too many.
    pub(super) fn take(&mut self, person: UserId, act: Act, now: Time) -> bool {
        let ((burst, interval), of_kind) = match act {
            Act::Look => (LOOKS, &mut self.looks),
            Act::Ask | Act::Change => (CHANGES, &mut self.changes),
        };
        take(of_kind, person, (burst, interval), now)
    }

    /// Takes one request of a program.
    pub(super) fn take_of_program(&mut self, token: [u8; 32], now: Time) -> bool {
        take(&mut self.programs, token, PROGRAMS, now)
    }
}

fn take<K: Eq + Hash>(
    all: &mut HashMap<K, Allowance>,
    key: K,
    (burst, interval): (u32, Duration),
    now: Time,
) -> bool {
    // No more than have roles; those without a request for long are as new ones.
    all.retain(|known, allowance| *known == key || !allowance.is_full(now));
    all.entry(key).or_insert_with(|| Allowance::new(burst, interval)).take(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vpnd_ipc::gateway::portal::desk::{AccountChange, NewAccount};
    use vpnd_proto::control::Text;

    fn rules() -> Desk {
        Desk {
            viewers: vec!["viewers".to_owned()],
            help_desk: vec!["desk".to_owned()],
            administrators: vec!["admins".to_owned()],
            sources: vec!["local".to_owned()],
            networks: vec!["10.86.0.0/16".parse().unwrap(), "fd00::/64".parse().unwrap()],
        }
    }

    fn user(id: u8, group: &str) -> User {
        let groups = Some(group.to_owned()).filter(|group| !group.is_empty()).into_iter().collect();
        User { id: UserId([id; 16]), source: "local".to_owned(), groups, ..User::nobody() }
    }

    fn inside() -> IpAddr {
        [10, 86, 0, 7].into()
    }

    #[test]
    fn each_role_has_its_permissions() {
        let rules = rules();
        let may = |group: &str, act| admit(&rules, &user(1, group), inside(), true, act);
        for act in [Act::Look, Act::Ask, Act::Change] {
            assert_eq!(may("admins", act), Ok(Role::Administrator));
            assert_eq!(may("desk", act), Ok(Role::HelpDesk));
            assert_eq!(may("", act), Err(DeskRefusal::NoRole));
            let seen = if act == Act::Look { Ok(Role::Viewer) } else { Err(DeskRefusal::NoRole) };
            assert_eq!(may("viewers", act), seen);
        }
        let external = User { source: "uni".to_owned(), ..user(1, "admins") };
        assert_eq!(admit(&rules, &external, inside(), true, Act::Look), Err(DeskRefusal::NoRole));
    }

    #[test]
    fn the_desk_needs_its_networks_and_a_recent_login() {
        let (rules, admin) = (rules(), user(1, "admins"));
        let from = |address: &str| admit(&rules, &admin, address.parse().unwrap(), true, Act::Look);
        for outside in ["10.87.0.1", "198.18.1.2", "fd00:0:0:1::1", "::1", "::ffff:192.0.2.1"] {
            assert_eq!(from(outside), Err(DeskRefusal::Elsewhere), "{outside}");
        }
        assert!(from("::ffff:10.86.0.1").is_ok() && from("fd00::9").is_ok());
        let late = |act| admit(&rules, &admin, inside(), false, act);
        assert_eq!(late(Act::Change), Err(DeskRefusal::LogInAgain));
        assert!(late(Act::Look).is_ok() && late(Act::Ask).is_ok());
    }

    #[test]
    fn the_help_desk_changes_neither_staff_nor_itself() {
        let rules = rules();
        let (admin, other, desk, guest) =
            (user(1, "admins"), user(2, "viewers"), user(3, "desk"), user(4, "guests"));
        let may = |by: &User, role, target: &User| may_change(&rules, Some(by), role, target);
        assert_eq!(may(&desk, Role::HelpDesk, &guest), Ok(()));
        assert_eq!(may(&desk, Role::HelpDesk, &admin), Err(DeskRefusal::Senior));
        assert_eq!(may(&desk, Role::HelpDesk, &other), Err(DeskRefusal::Senior));
        assert_eq!(may(&desk, Role::HelpDesk, &desk), Err(DeskRefusal::Own));
        assert_eq!(may(&admin, Role::Administrator, &desk), Ok(()));
        assert_eq!(may(&admin, Role::Administrator, &admin), Err(DeskRefusal::Own));
        assert_eq!(may(&other, Role::Viewer, &guest), Err(DeskRefusal::NoRole));
    }

    #[test]
    fn browsers_neither_add_nor_invite_staff_nor_remove_users() {
        let (rules, invites) = (rules(), |user: &User| is_for_people(&rules(), &Deed::Invite, Some(user)));
        assert!(invites(&user(1, "guests")) && invites(&user(1, "")));
        assert!(!["admins", "desk", "viewers"].into_iter().any(|group| invites(&user(1, group))));
        let guest = user(1, "guests");
        let adds = |group: &str| {
            let groups = vpnd_proto::control::List::new(vec![Text::cut("guests"), Text::cut(group)]).unwrap();
            let (expires, sponsor, note) = (None, None, Text::cut(""));
            let account = NewAccount { groups, expires, sponsor, note };
            is_for_people(&rules, &Deed::Add(account), None)
        };
        assert!(adds("staff") && !["admins", "desk", "viewers"].into_iter().any(adds));
        for deed in [
            Deed::Remove,
            Deed::SetGroups(vpnd_proto::control::List::default()),
            Deed::Modify(AccountChange::default()),
            Deed::RemoveDevice([1; 16].into()),
            Deed::AddDevice { public_key: [1; 32].into(), name: Text::cut("phone") },
            Deed::RenewDevice { device: [1; 16].into(), reset_clock: false },
        ] {
            assert!(!is_for_people(&rules, &deed, Some(&guest)), "{deed:?}");
        }
        assert!(is_for_people(&rules, &Deed::Disable, Some(&guest)));
    }

    #[test]
    fn desk_actions_of_a_person_are_rate_limited() {
        let (mut rates, ann, bob) = (Rates::default(), UserId([1; 16]), UserId([2; 16]));
        let done = |rates: &mut Rates, who, act, at| (0..500).filter(|_| rates.take(who, act, at)).count();
        assert_eq!(done(&mut rates, ann, Act::Change, Time::ZERO), 20);
        assert_eq!(done(&mut rates, ann, Act::Ask, Time::ZERO), 0, "they share it");
        assert_eq!(done(&mut rates, ann, Act::Look, Time::ZERO), 60);
        assert_eq!(done(&mut rates, bob, Act::Change, Time::ZERO), 20);
        assert_eq!((0..5_000).filter(|_| rates.take_of_program([1; 32], Time::ZERO)).count(), 1_000);
        let later = Time::ZERO + Duration::from_secs(60);
        assert_eq!(done(&mut rates, ann, Act::Change, later), 2);
    }
}
