//! Users that administrators and programs add, remove and put into groups.
//!
//! INVARIANT: only administrators do this, since groups give roles.

use super::deeds::Done;
use super::{Actor, Desk, Portal};
use vpnd_config::profile::is_user_name;
use vpnd_ipc::gateway::portal::desk::{Deed, DeskRefusal, Link, NewAccount, Replied, Role, Typed};
use vpnd_proto::control::SecretText;
use vpnd_store::password::{Hasher, Password};
use vpnd_store::{INVITATION_LIFETIME_S, InvitationToken, LOCAL, NewUser, StoreError, User, UserChange};
use vpnd_sys::date::Expiry;

/// Adds a user whose password nobody has yet, and makes the invitation.
pub(super) fn add(
    portal: &Portal,
    actor: &Actor,
    existing: Option<User>,
    (name, account): (&str, &NewAccount),
) -> Result<Replied<Done>, StoreError> {
    if actor.role < Role::Administrator {
        return Ok(Err(DeskRefusal::NoRole));
    }
    if existing.is_some() {
        return Ok(Err(DeskRefusal::Taken));
    }
    let now_s = (portal.clocks.wall)();
    let NewAccount { groups, expires, sponsor, note } = account;
    let expires = expires.as_ref().map(|expires| expires.parse::<Expiry>()).transpose();
    let expires_s = expires.map(|expires| expires.and_then(Expiry::seconds));
    let sponsor_is_there = match sponsor {
        Some(sponsor) => portal.store.user(sponsor)?.is_some(),
        None => true,
    };
    let (true, Ok(expires_s), Some(groups)) = (sponsor_is_there, expires_s, names(groups)) else {
        return Ok(Err(DeskRefusal::Unusable));
    };
    // A guest has an end.
    let is_endless_guest = sponsor.is_some() && expires_s.is_none();
    let is_over = expires_s.is_some_and(|expires_s| expires_s <= now_s);
    if !is_user_name(name) || is_endless_guest || is_over || note.chars().any(char::is_control) {
        return Ok(Err(DeskRefusal::Unusable));
    }
    let Ok(password) = Hasher::default().hash(&Password::generate()) else {
        return Ok(Err(DeskRefusal::TooOften));
    };
    let user = NewUser {
        groups,
        expires_s,
        sponsor: sponsor.as_ref().map(ToString::to_string),
        note: note.to_string(),
        ..NewUser::new(name, password)
    };
    portal.store.add_user(&user, now_s)?;
    let link = invite(portal, &actor.desk, name)?;
    Ok(Ok(("user-added", String::new(), link)))
}

/// Removes a user, or puts them into other groups.
pub(super) fn change(
    portal: &Portal,
    actor: &Actor,
    user: &User,
    deed: &Deed,
) -> Result<Replied<Done>, StoreError> {
    if actor.role < Role::Administrator {
        return Ok(Err(DeskRefusal::NoRole));
    }
    let now_s = (portal.clocks.wall)();
    Ok(match deed {
        Deed::Remove => {
            portal.store.remove_user(&user.name, now_s)?;
            Ok(("user-removed", String::new(), None))
        }
        Deed::SetGroups(groups) if user.source == LOCAL => {
            let Some(groups) = names(groups) else { return Ok(Err(DeskRefusal::Unusable)) };
            let detail = format!("groups: {}", groups.join(" "));
            let change = UserChange { groups: Some(groups), ..UserChange::default() };
            portal.store.modify_user(&user.name, &change, now_s)?;
            Ok(("user-modified", detail, None))
        }
        _ => Err(DeskRefusal::Unusable),
    })
}

/// Makes the invitation of a user; its link, if it is known where the pages are.
pub(super) fn invite(portal: &Portal, desk: &Desk, name: &str) -> Result<Option<Link>, StoreError> {
    let Some(pages) = &desk.pages else { return Ok(None) };
    let token = InvitationToken::new();
    portal.store.invite(name, &token.hash(), (portal.clocks.wall)() + INVITATION_LIFETIME_S)?;
    Ok(SecretText::new(token.link(pages.as_str()).as_str()).ok())
}

/// Groups, if these are names.
fn names(groups: &[Typed]) -> Option<Vec<String>> {
    let all_fine = groups.iter().all(|group| is_user_name(group));
    all_fine.then(|| groups.iter().map(ToString::to_string).collect())
}
