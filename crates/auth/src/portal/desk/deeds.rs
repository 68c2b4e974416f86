//! Changes of users at the desk, and questions who had an address.

use super::authority::may_change;
use super::{Actor, Portal, accounts};
use crate::portal::first;
use vpnd_config::revocation_cause::RevocationCause;
use vpnd_ipc::gateway::portal::desk::{
    AskWhois, ChangeUser, Deed, DeskRefusal, Link, Replied, Whois, WhoisRecord,
};
use vpnd_proto::control::Text;
use vpnd_proto::session::DeviceId;
use vpnd_store::audit::query::Record;
use vpnd_store::audit::whois::{Asked, is_reason, question};
use vpnd_store::{LOCAL, LiveUser, StoreError, User, UserChange};
use vpnd_sys::date::{Expiry, Moment};

/// The longest time for which a guest is let in from here, seconds.
const LONGEST_STAY_S: u64 = 366 * 86_400;

/// The event that a deed is, what it was in words, and the link that was made.
pub(super) type Done = (&'static str, String, Option<Link>);

impl Portal {
    pub(super) fn change_user(
        &self,
        actor: &Actor,
        change: &ChangeUser,
    ) -> Result<Replied<Option<Link>>, StoreError> {
        let ChangeUser { user, deed, reason, .. } = change;
        if !is_reason(reason) {
            return Ok(Err(DeskRefusal::NoReason));
        }
        if self.audit.as_ref().is_some_and(|audit| audit.health().failure.is_some()) {
            return Ok(Err(DeskRefusal::NotRecorded));
        }
        let name = user.to_string();
        let done = match (self.store.user(&name)?, deed) {
            (user, Deed::Add(account)) => accounts::add(self, actor, user, (&name, account))?,
            (None, _) => Err(DeskRefusal::NotThere),
            (Some(user), deed) => match may_change(&actor.desk.rules, actor.person(), actor.role, &user) {
                Ok(()) => self.do_deed(actor, &user, deed)?,
                Err(refusal) => Err(refusal),
            },
        };
        let (event, detail, link) = match done {
            Ok(done) => done,
            Err(refusal) => {
                tracing::info!(user = name, by = %actor, ?refusal, "refused at the desk");
                return Ok(Err(refusal));
            }
        };
        let detail = if detail.is_empty() { reason.to_string() } else { format!("{detail}: {}", &**reason) };
        self.record_deed(actor.entry(event, &name, detail, (self.clocks.wall)()));
        Ok(Ok(link))
    }

    /// Does it; the event that it is, what it was in words, and the link that was made.
    fn do_deed(&self, actor: &Actor, user: &User, deed: &Deed) -> Result<Replied<Done>, StoreError> {
        let (name, now_s) = (user.name.as_str(), (self.clocks.wall)());
        Ok(Ok(match deed {
            Deed::Kick(device) => {
                let device = device.as_ref().map(|device| DeviceId((*device).into()));
                if !self.kick(user, device)? {
                    return Ok(Err(DeskRefusal::NotThere));
                }
                ("kicked", device.map_or_else(String::new, |device| format!("device {device}")), None)
            }
            Deed::Disable => {
                self.store.set_enabled(name, false, now_s)?;
                ("user-disabled", String::new(), None)
            }
            Deed::Enable => {
                self.store.set_enabled(name, true, now_s)?;
                ("user-enabled", String::new(), None)
            }
            Deed::ResetCodes if user.source == LOCAL && user.totp.is_some() => {
                let change = UserChange { totp: Some(None), ..UserChange::default() };
                self.store.modify_user(name, &change, now_s)?;
                ("user-modified", "totp: none".to_owned(), None)
            }
            Deed::Extend(until) => {
                let Some(until_s) = later_end(user, until, now_s) else {
                    return Ok(Err(DeskRefusal::Unusable));
                };
                let change = UserChange { expires_s: Some(Some(until_s)), ..UserChange::default() };
                self.store.modify_user(name, &change, now_s)?;
                ("user-modified", format!("expires: {}", Expiry::At(until_s)), None)
            }
            Deed::Invite if user.source == LOCAL => {
                let Some(link) = accounts::invite(self, &actor.desk, name)? else {
                    return Ok(Err(DeskRefusal::Unusable));
                };
                ("user-invited", String::new(), Some(link))
            }
            Deed::RemoveDevice(device) => {
                let device = DeviceId((*device).into());
                if !self.store.remove_device(name, device, now_s)? {
                    return Ok(Err(DeskRefusal::NotThere));
                }
                ("device-removed", format!("device {device}"), None)
            }
            Deed::Remove | Deed::SetGroups(_) | Deed::Add(_) => {
                return accounts::change(self, actor, user, deed);
            }
            Deed::ResetCodes | Deed::Invite => return Ok(Err(DeskRefusal::Unusable)),
        }))
    }

    /// Ends the session of a device, or all, and the visits of the user: `false` if the device has
    /// none.
    fn kick(&self, user: &User, device: Option<DeviceId>) -> Result<bool, StoreError> {
        if let Some(device) = device {
            if !self.end_session_of(user, device, RevocationCause::Kicked)? {
                return Ok(false);
            }
        } else {
            let now_s = (self.clocks.wall)();
            // WireGuard clients come back by themselves otherwise.
            for device in self.wireguard_devices(user)?.into_values() {
                self.store.wall_wireguard_device(device.id, now_s)?;
            }
            self.store.end_sessions(&LiveUser::of(user), RevocationCause::Kicked, now_s)?;
        }
        self.kicked(user.id);
        Ok(true)
    }

    pub(super) fn whois(&self, actor: &Actor, ask: &AskWhois) -> Replied<Whois> {
        let now_s = (self.clocks.wall)();
        let asked: Asked = ask.address.trim().parse().map_err(|_| DeskRefusal::Unusable)?;
        let at_s = match ask.at.trim() {
            "" => now_s,
            at => at.parse::<Moment>().map_err(|_| DeskRefusal::Unusable)?.0,
        };
        if at_s > now_s {
            return Err(DeskRefusal::Unusable);
        }
        if !is_reason(&ask.reason) {
            return Err(DeskRefusal::NoReason);
        }
        let desk = &actor.desk;
        let entry = actor.entry("whois", "", question(asked, at_s, &ask.reason), now_s);
        let answer = desk.audit_file().and_then(|mut file| {
            let answer = file.whois(entry, asked, at_s, now_s);
            answer.map_err(|error| tracing::error!(%error, "a question of the desk has no answer")).ok()
        });
        let answer = answer.ok_or(DeskRefusal::NotRecorded)?;
        let notes = desk.recording.notes(asked, at_s, &answer);
        Ok(Whois {
            found: first(answer.found.into_iter().map(whois_record)),
            notes: first(notes.iter().map(|note| Text::cut(note))),
        })
    }
}

/// The time at which a guest's account ends from now on, if that is later than now and not too far.
fn later_end(user: &User, until: &str, now_s: u64) -> Option<u64> {
    user.expires_s?;
    let until_s = until.trim().parse::<Expiry>().ok()?.seconds()?;
    (now_s < until_s && until_s <= now_s + LONGEST_STAY_S).then_some(until_s)
}

fn whois_record(record: Record) -> WhoisRecord {
    let text = |text: Option<String>| text.unwrap_or_default();
    WhoisRecord {
        user: Text::cut(&text(record.user)),
        source: Text::cut(&text(record.source)),
        from_s: record.at_s,
        until_s: record.until_s,
        inner: first(record.ipv4.map(Into::into).into_iter().chain(record.ipv6.map(Into::into))),
        outer: Text::cut(&text(record.outer)),
        device: Text::cut(&text(record.device)),
    }
}
