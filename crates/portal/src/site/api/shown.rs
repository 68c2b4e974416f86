//! Replies of the auth process as JSON.

use serde_json::{Value, json};

use crate::browser::hex;
use vpnd_ipc::gateway::auth::{PoolUsage, SourceHealth};
use vpnd_ipc::gateway::portal::desk::{
    AuditRecord, DeskRefusal, DeskState, ExportedPart, FoundUser, FoundUsers, ListedSession, ListedSessions,
    ShownUser, UserState, Whois,
};
use vpnd_ipc::gateway::portal::devices::OwnDevice;
use vpnd_sys::date::rfc3339;

pub(super) fn name(refusal: DeskRefusal) -> &'static str {
    match refusal {
        DeskRefusal::NoVisit => "no-token",
        DeskRefusal::NoRole => "no-role",
        DeskRefusal::Elsewhere => "elsewhere",
        DeskRefusal::LogInAgain => "log-in-again",
        DeskRefusal::NoReason => "no-reason",
        DeskRefusal::NotThere => "not-there",
        DeskRefusal::TooOften => "too-often",
        DeskRefusal::Own => "own-account",
        DeskRefusal::Senior => "has-a-role",
        DeskRefusal::Unusable => "unusable",
        DeskRefusal::NotRecorded => "not-recorded",
        DeskRefusal::Taken => "taken",
    }
}

pub(super) fn state(state: &DeskState) -> Value {
    let profiles = state
        .profiles
        .iter()
        .map(|count| json!({ "profile": count.profile.as_deref(), "sessions": count.sessions }));
    let pool = |PoolUsage { pool, taken, total }: &PoolUsage| json!({ "pool": &**pool, "taken": taken, "total": total });
    let source =
        |source: &SourceHealth| json!({ "name": &*source.name, "up": source.up, "missing": source.missing });
    json!({
        "role": state.role.name(),
        "users": state.users,
        "sessions": profiles.collect::<Vec<_>>(),
        "pools": state.pools.iter().map(pool).collect::<Vec<_>>(),
        "sources": state.sources.iter().map(source).collect::<Vec<_>>(),
        "portal": state.portal.map(|portal| json!({
            "visits": portal.visits, "certificate_left_s": portal.certificate_left_s,
        })),
        "audit_failure": state.audit.as_ref().and_then(|audit| audit.failure.as_deref()),
        "gateway": state.worker.as_ref().map(|worker| json!({
            "version": &*worker.version,
            "uptime_s": worker.uptime_s,
            "certificate_left_s": worker.certificate_left_s,
            "drops": worker.drops.iter().map(|drop| (drop.name.to_string(), drop.count.into()))
                .collect::<serde_json::Map<String, Value>>(),
        })),
    })
}

pub(super) fn sessions(list: &ListedSessions) -> Value {
    let session = |session: &ListedSession| {
        json!({
            "user": &*session.user,
            "source": &*session.source,
            "device": hex(&*session.device),
            "addresses": &session.addresses[..],
            "age_s": session.age_s,
            "left_s": session.left_s,
        })
    };
    let sessions: Vec<Value> = list.sessions.iter().map(session).collect();
    json!({ "sessions": sessions, "more": list.more, "next": list.next.as_deref() })
}

pub(super) fn users(found: &FoundUsers) -> Value {
    let users: Vec<Value> = found.users.iter().map(found_user).collect();
    json!({ "users": users, "more": found.more, "next": found.next() })
}

fn found_user(user: &FoundUser) -> Value {
    let state = match user.state {
        UserState::Enabled => "enabled",
        UserState::Disabled => "disabled",
        UserState::Expired => "expired",
    };
    json!({ "name": &*user.name, "source": &*user.source, "state": state })
}

pub(super) fn user(shown: &ShownUser) -> Value {
    let mut user = found_user(&shown.user);
    let device = |device: &OwnDevice| {
        let traffic = shown.traffic.iter().find(|traffic| traffic.device == device.device);
        json!({
            "device": hex(&*device.device),
            "addresses": &device.addresses[..],
            "session_age_s": device.session_age_s,
            "from": device.from,
            "wireguard": device.wireguard.as_ref().map(|wireguard| json!({
                "name": &*wireguard.name, "key": &*wireguard.key, "left_s": wireguard.left_s,
            })),
            "received_bytes": traffic.map(|traffic| traffic.bytes[0]),
            "sent_bytes": traffic.map(|traffic| traffic.bytes[1]),
        })
    };
    user["profile"] = json!(shown.profile.as_deref());
    user["groups"] = shown.groups.iter().map(|group| group.to_string()).collect();
    user["totp"] = json!(shown.codes);
    user["certificates"] = json!(shown.certificates);
    user["expires"] = json!(shown.expires_s.map(rfc3339));
    user["sponsor"] = json!(shown.sponsor.as_deref());
    user["note"] = json!(&*shown.note);
    user["created"] = json!(rfc3339(shown.created_s));
    user["devices"] = shown.devices.devices.iter().map(device).collect();
    let logins = shown.logins.as_ref();
    user["last_login"] = json!(logins.and_then(|logins| logins.last_s).map(rfc3339));
    user["refused_logins"] = json!(logins.map(|logins| {
        let refused = logins.refused.iter().map(
            |login| json!({ "time": rfc3339(login.at_s), "from": &*login.from, "cause": &*login.cause }),
        );
        refused.collect::<Vec<_>>()
    }));
    user
}

/// Returns the output of `vpnd audit whois --json`.
pub(super) fn whois(answer: &Whois) -> Value {
    json!({
        "address": &*answer.address,
        "at": rfc3339(answer.at_s),
        "found": answer.found.iter().map(record).collect::<Vec<_>>(),
        "certain": !answer.found.is_empty() && answer.notes.is_empty(),
        "notes": answer.notes.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

pub(super) fn export(part: &ExportedPart) -> Value {
    json!({ "records": part.records.iter().map(record).collect::<Vec<_>>(), "next": part.next.as_deref() })
}

/// Returns a record of `vpnd audit export --format json`.
fn record(record: &AuditRecord) -> Value {
    let public = record
        .public
        .map(|(address, first, last)| json!({ "address": address, "first_port": first, "last_port": last }));
    json!({
        "kind": &*record.kind,
        "time": rfc3339(record.at_s),
        "until": record.until_s.map(rfc3339),
        "user": record.user.as_deref(),
        "source": record.source.as_deref(),
        "profile": record.profile.as_deref(),
        "device": record.device.as_deref(),
        "ipv4": record.ipv4,
        "ipv6": record.ipv6,
        "outer": record.outer.as_deref(),
        "session": record.session.as_deref(),
        "detail": record.detail.as_deref(),
        "by": record.by.as_deref(),
        "public": public,
    })
}
