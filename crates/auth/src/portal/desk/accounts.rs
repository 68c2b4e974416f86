//! Users that administrators and their programs add, and that the programs remove and put into
//! groups.
//!
//! INVARIANT: only programs give a user a group that has a role; [`super::authority`] sees to that.

use super::Desk;
use super::actor::Actor;
use super::deeds::{Deeds, Planned};
use vpnd_config::profile::is_user_name;
use vpnd_ipc::gateway::portal::desk::{
    AccountChange, Deed, DeskRefusal, Made, NewAccount, Replied, Role, Typed,
};
use vpnd_proto::control::SecretText;
use vpnd_store::{
    INVITATION_LIFETIME_S, InvitationToken, LOCAL, NewUser, PasswordHash, StoreError, User, UserChange,
};
use vpnd_sys::date::Expiry;

/// Adds a user with this unknown password and makes the invitation.
pub(super) fn add<'a>(
    deeds: &'a Deeds,
    actor: &'a Actor,
    existing: Option<&User>,
    (name, account, password): (&'a str, &NewAccount, Option<PasswordHash>),
) -> Result<Replied<Planned<'a>>, StoreError> {
    if actor.role < Role::Administrator {
        return Ok(Err(DeskRefusal::NoRole));
    }
    if existing.is_some() {
        return Ok(Err(DeskRefusal::Taken));
    }
    let now_s = (deeds.clocks.wall)();
    let NewAccount { groups, expires, sponsor, note } = account;
    let expires = expires.as_ref().map(|expires| expires.parse::<Expiry>()).transpose();
    let expires_s = expires.map(|expires| expires.and_then(Expiry::seconds));
    let sponsor_is_there = match sponsor {
        Some(sponsor) => deeds.store.user(sponsor)?.is_some(),
        None => true,
    };
    let (true, Ok(expires_s), Some(groups)) = (sponsor_is_there, expires_s, names(groups)) else {
        return Ok(Err(DeskRefusal::Unusable));
    };
    // A guest has an end.
    let is_endless_guest = sponsor.is_some() && expires_s.is_none();
    let is_over = expires_s.is_some_and(|expires_s| expires_s <= now_s);
    // A login by such a name goes to its source, and never here.
    if deeds.authenticator.has_source_for(name)
        || !is_user_name(name)
        || is_endless_guest
        || is_over
        || note.chars().any(char::is_control)
    {
        return Ok(Err(DeskRefusal::Unusable));
    }
    let Some(password) = password else { return Ok(Err(DeskRefusal::TooOften)) };
    let mut detail = format!("groups: {}", groups.join(" "));
    if let Some(expires_s) = expires_s {
        detail.push_str(&format!(", expires: {}", Expiry::At(expires_s)));
    }
    if let Some(sponsor) = sponsor {
        detail.push_str(&format!(", sponsor: {}", &**sponsor));
    }
    let user = NewUser {
        groups,
        expires_s,
        sponsor: sponsor.as_ref().map(ToString::to_string),
        note: note.to_string(),
        ..NewUser::new(name, password)
    };
    Ok(Ok(Planned::new("user-added", detail, move || {
        deeds.store.add_user(&user, now_s)?;
        invite(deeds, &actor.desk, name).map(Ok)
    })))
}

/// Removes a user, puts them into other groups, or changes what is known of them.
pub(super) fn change<'a>(
    deeds: &'a Deeds,
    actor: &Actor,
    user: &'a User,
    deed: &Deed,
) -> Replied<Planned<'a>> {
    if actor.role < Role::Administrator {
        return Err(DeskRefusal::NoRole);
    }
    let now_s = (deeds.clocks.wall)();
    match deed {
        Deed::Remove => Ok(Planned::new("user-removed", String::new(), move || {
            deeds.store.remove_user(&user.name, now_s).map(|_| Ok(None))
        })),
        Deed::Modify(change) => modify(deeds, user, change, now_s),
        Deed::SetGroups(groups) if user.source == LOCAL => {
            let groups = names(groups).ok_or(DeskRefusal::Unusable)?;
            let detail = format!("groups: {}", groups.join(" "));
            let change = UserChange { groups: Some(groups), ..UserChange::default() };
            Ok(Planned::modify(deeds.store.as_ref(), user, detail, change, now_s))
        }
        _ => Err(DeskRefusal::Unusable),
    }
}

fn modify<'a>(deeds: &'a Deeds, user: &'a User, change: &AccountChange, now_s: u64) -> Replied<Planned<'a>> {
    let AccountChange { expires, sponsor, note } = change;
    let expires = expires.as_ref().map(|expires| expires.parse::<Expiry>()).transpose();
    let expires = expires.map_err(|_| DeskRefusal::Unusable)?;
    let sponsor = sponsor.as_ref().map(|name| Some(name.to_string()).filter(|name| !name.is_empty()));
    let change = UserChange {
        expires_s: expires.map(Expiry::seconds),
        sponsor: sponsor.clone(),
        note: note.as_ref().map(ToString::to_string),
        ..UserChange::default()
    };
    let is_guest = change.sponsor.as_ref().unwrap_or(&user.sponsor).is_some();
    let is_endless = change.expires_s.unwrap_or(user.expires_s).is_none();
    if is_guest && is_endless || note.as_ref().is_some_and(|note| note.chars().any(char::is_control)) {
        return Err(DeskRefusal::Unusable);
    }
    let values = [
        expires.map(|expires| format!("expires: {expires}")),
        sponsor.map(|sponsor| format!("sponsor: {}", sponsor.as_deref().unwrap_or("none"))),
        note.as_ref().map(|note| format!("note: {}", &**note)),
    ];
    let detail: Vec<String> = values.into_iter().flatten().collect();
    if detail.is_empty() {
        return Err(DeskRefusal::Unusable);
    }
    Ok(Planned::modify(deeds.store.as_ref(), user, detail.join(", "), change, now_s))
}

/// Makes the invitation of a user; its link, if it is known where the pages are.
pub(super) fn invite(deeds: &Deeds, desk: &Desk, name: &str) -> Result<Option<Made>, StoreError> {
    let Some(pages) = &desk.pages else { return Ok(None) };
    let token = InvitationToken::new();
    deeds.store.invite(name, &token.hash(), (deeds.clocks.wall)() + INVITATION_LIFETIME_S)?;
    Ok(SecretText::new(token.link(pages.as_str()).as_str()).ok().map(Made::Link))
}

/// Groups, if these are names.
fn names(groups: &[Typed]) -> Option<Vec<String>> {
    let all_fine = groups.iter().all(|group| is_user_name(group));
    all_fine.then(|| groups.iter().map(ToString::to_string).collect())
}
