//! Views of users at the desk.
//!
//! INVARIANT: a view of a user is recorded before the user is shown.

use std::net::IpAddr;
use std::sync::Arc;

use super::actor::Actor;
use super::authority::{Act, is_for_people, may_change};
use super::deeds::extends;
use super::sessions::traffic_of;
use crate::portal::devices::Devices;
use crate::portal::first;
use vpnd_admission::access::Access;
use vpnd_admission::authenticator::Authenticator;
use vpnd_ipc::gateway::auth::SourceName;
use vpnd_ipc::gateway::portal::desk::{
    Deed, DeskRefusal, Disabling, FindUsers, FoundUser, FoundUsers, Logins, MAX_FOUND, MAX_GROUPS,
    RefusedLogin, Replied, ShownCertificate, ShownUser, UserState,
};
use vpnd_proto::control::Text;
use vpnd_store::audit::query::Record;
use vpnd_store::audit::whois::{Asked, is_reason, question};
use vpnd_store::{CertificateHash, LOCAL, ListedUser, Store, StoreError, User, UserPage};
use vpnd_sys::clock::Clocks;

/// Text of a search.
pub(super) enum Sought {
    Name(String),
    Address(IpAddr),
}

impl Sought {
    pub(super) fn of(text: &str) -> Self {
        let text = text.trim();
        let address = text.parse::<IpAddr>().map(|address| Self::Address(address.to_canonical()));
        address.unwrap_or_else(|_| Self::Name(text.to_owned()))
    }

    /// The kind of request: a search for an address asks who has it.
    pub(super) fn act(&self) -> Act {
        match self {
            Self::Name(_) => Act::Look,
            Self::Address(_) => Act::Ask,
        }
    }
}

pub(super) struct Views {
    pub(super) store: Arc<dyn Store>,
    pub(super) authenticator: Arc<Authenticator>,
    pub(super) access: Arc<Access>,
    pub(super) clocks: Clocks,
    pub(super) devices: Arc<Devices>,
}

impl Views {
    /// The users whose name has this in it, the whole name first, or who have this address.
    pub(super) fn find_users(
        &self,
        actor: &Actor,
        sought: &Sought,
        find: &FindUsers,
    ) -> Result<Replied<FoundUsers>, StoreError> {
        let (now_s, after) = ((self.clocks.wall)(), find.after.as_deref());
        let found = match sought {
            Sought::Address(address) => {
                let asked = Asked { address: *address, port: None };
                let Some(reason) = find.reason.as_deref().filter(|reason| is_reason(reason)) else {
                    return Ok(Err(DeskRefusal::NoReason));
                };
                if let Err(refusal) = actor.record("whois", "", question(asked, now_s, reason), now_s) {
                    return Ok(Err(refusal));
                }
                let mut users: Vec<ListedUser> =
                    self.users_at(*address)?.iter().map(ListedUser::from).collect();
                users.retain(|user| after.is_none_or(|after| user.name.as_str() > after));
                let more = users.len().saturating_sub(MAX_FOUND) as u64;
                users.truncate(MAX_FOUND);
                UserPage { users, more }
            }
            Sought::Name(text) => self.users_named(text, after)?,
        };
        let UserPage { users, more } = found;
        Ok(Ok(FoundUsers { users: first(users.iter().map(|user| found_user(user, now_s))), more }))
    }

    /// The users whose name has this in it; the one with this very name is the first of all.
    fn users_named(&self, text: &str, after: Option<&str>) -> Result<UserPage, StoreError> {
        let wanted = text.to_lowercase();
        let mut page = self.store.find_users(&wanted, after, MAX_FOUND)?;
        let is_it = |user: &ListedUser| user.name.to_lowercase() == wanted;
        let whole = match page.users.iter().position(is_it) {
            Some(at) if after.is_none() => Some(page.users.remove(at)),
            None if after.is_none() && page.more > 0 => {
                self.store.user(text)?.map(|user| ListedUser::from(&user)).filter(is_it)
            }
            _ => None,
        };
        if let Some(user) = whole {
            page.users.insert(0, user);
            if page.users.len() > MAX_FOUND {
                // It has this one's place, and the last one is on the next page.
                page.users.truncate(MAX_FOUND);
                page.more += 1;
            }
        }
        Ok(page)
    }

    /// The users who have this inner address or had it last, and those who are heard from it.
    fn users_at(&self, address: IpAddr) -> Result<Vec<User>, StoreError> {
        let mut ids = self.devices.heard().users_at(address);
        ids.extend(self.store.lease_on(address)?.map(|lease| lease.owner.user));
        let users = ids.into_iter().map(|id| self.store.user_by_id(id));
        let mut users: Vec<User> = users.filter_map(Result::transpose).collect::<Result<_, _>>()?;
        users.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(users)
    }

    /// Whether the user of this name has a session.
    pub(super) fn has_session(&self, name: &str) -> Result<bool, StoreError> {
        let Some(user) = self.store.user(&self.authenticator.name_at(name).0)? else { return Ok(false) };
        Ok(self.store.devices(user.id)?.iter().any(|device| device.session_since_s.is_some()))
    }

    pub(super) fn show_user(&self, actor: &Actor, name: &str) -> Result<Replied<ShownUser>, StoreError> {
        let now_s = (self.clocks.wall)();
        let name = self.authenticator.name_at(name).0;
        let Some(user) = self.store.user(&name)? else { return Ok(Err(DeskRefusal::NotThere)) };
        let file = match actor.record("user-shown", &user.name, String::new(), now_s) {
            Ok(file) => file,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let logins = file.logins(&user.name, now_s);
        let logins = logins.map_err(|error| tracing::error!(%error, "the desk has no logins to show")).ok();
        let (logins, disabled) = match logins {
            Some(logins) => (
                Some(Logins {
                    last_s: logins.last_s,
                    refused: first(logins.refused.into_iter().map(refused)),
                }),
                logins.disabled.filter(|_| !user.enabled).map(disabling),
            ),
            None => (None, None),
        };
        let certificate = |hash: &CertificateHash| ShownCertificate {
            fingerprint: (*hash).into(),
            revoked: user.revoked_certificates.contains(hash),
        };
        let may_be_invited =
            actor.person().is_none() || is_for_people(&actor.desk.rules, &Deed::Invite, Some(&user));
        Ok(Ok(ShownUser {
            profile: self.access.of(&user).map(|profile| Text::cut(profile.title())),
            groups: first(user.groups.iter().take(MAX_GROUPS).map(|group| Text::cut(group))),
            codes: (user.source == LOCAL || user.totp.is_some()).then_some(user.totp.is_some()),
            certificates: first(user.certificates.iter().map(certificate)),
            expires_s: user.expires_s,
            sponsor: user.sponsor.as_deref().map(Text::cut),
            note: Text::cut(&user.note),
            created_s: user.created_s,
            devices: self.devices.devices_of(&user)?,
            logins,
            locked: may_change(&actor.desk.rules, actor.person(), actor.role, &user).err(),
            traffic: first(traffic_of(self.store.as_ref(), &actor.desk, user.id)?),
            can_be_invited: self.authenticator.sets_up_codes(&user)
                && actor.desk.pages.is_some()
                && may_be_invited,
            can_be_extended: user.expires_s.is_some() && extends(actor.role, &user),
            role: actor.desk.rules.role(&user.source, &user.groups),
            disabled,
            reserved: first(user.fixed_addresses.iter().map(|fixed| fixed.address)),
            user: found_user(&ListedUser::from(&user), now_s),
        }))
    }
}

fn found_user(user: &ListedUser, now_s: u64) -> FoundUser {
    let has_expired = user.expires_s.is_some_and(|expires_s| expires_s <= now_s);
    let state = match (user.enabled, has_expired) {
        (false, _) => UserState::Disabled,
        (true, true) => UserState::Expired,
        (true, false) => UserState::Enabled,
    };
    FoundUser { name: Text::cut(&user.name), source: SourceName::cut(&user.source), state }
}

fn disabling(record: Record) -> Disabling {
    Disabling {
        at_s: record.at_s,
        by: Text::cut(&record.by.unwrap_or_default()),
        reason: Text::cut(&record.detail.unwrap_or_default()),
    }
}

fn refused(record: Record) -> RefusedLogin {
    RefusedLogin {
        at_s: record.at_s,
        from: Text::cut(&record.outer.unwrap_or_default()),
        cause: Text::cut(&record.detail.unwrap_or_default()),
    }
}
