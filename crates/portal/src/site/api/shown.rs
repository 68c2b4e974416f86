//! Replies of the auth process as JSON.

use serde_json::{Value, json};

use crate::browser::hex;
use vpnd_ipc::gateway::auth::{PoolUsage, SourceHealth};
use vpnd_ipc::gateway::portal::desk::sessions::{
    DeviceTraffic, ListedSession, ListedSessions, ProfileUse, Throughput,
};
use vpnd_ipc::gateway::portal::desk::{
    AuditRecord, DeskRefusal, DeskState, ExportedPart, FoundUser, FoundUsers, ListedFinding, Made, Role,
    ShownCertificate, ShownUser, UserState, Whois,
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
        DeskRefusal::NoGuest => "no-guest",
        DeskRefusal::NoWireGuard => "no-wireguard",
        DeskRefusal::Full => "full",
        DeskRefusal::TooManyDevices => "too-many-devices",
        DeskRefusal::TooManyRoutes => "too-many-routes",
    }
}

/// The result of a change.
pub(super) fn made(made: Option<Made>) -> Value {
    match made {
        Some(Made::Device { device, configuration }) => {
            json!({ "device": hex(&*device), "configuration": &*configuration })
        }
        Some(Made::Link(link)) => json!({ "invitation": link.expose() }),
        None => json!({ "invitation": null }),
    }
}

pub(super) fn state(state: &DeskState) -> Value {
    let profiles = state
        .profiles
        .iter()
        .map(|count| json!({ "profile": count.profile.as_deref(), "sessions": count.sessions }));
    let pool = |PoolUsage { pool, taken, total }: &PoolUsage| json!({ "pool": &**pool, "taken": taken, "total": total });
    let source = |source: &SourceHealth| {
        json!({
            "name": &*source.name,
            "up": source.up,
            "last_answer_s": source.last_answer_s,
            "silent_s": source.silent_s,
            "missing": source.missing,
        })
    };
    json!({
        "role": state.role.name(),
        "users": state.users,
        "sessions": profiles.collect::<Vec<_>>(),
        "pools": state.pools.iter().map(pool).collect::<Vec<_>>(),
        "sources": state.sources.iter().map(source).collect::<Vec<_>>(),
        "refused": state.refused.iter().map(|refused| (refused.name.to_string(), refused.count.into()))
            .collect::<serde_json::Map<String, Value>>(),
        "findings": state.findings.iter().map(finding).collect::<Vec<_>>(),
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

/// Returns a finding of `vpnd doctor --json`.
fn finding(finding: &ListedFinding) -> Value {
    json!({
        "check": &*finding.check,
        "verdict": finding.verdict,
        "found": &*finding.found,
        "advice": finding.advice.as_deref(),
    })
}

pub(super) fn sessions(list: &ListedSessions) -> Value {
    let session = |session: &ListedSession| {
        let protocol = if session.wireguard.is_some() { "wireguard" } else { "vpnd" };
        let shown = json!({
            "user": &*session.user,
            "source": &*session.source,
            "device": hex(&*session.device),
            "protocol": protocol,
            "name": session.wireguard.as_deref(),
            "profile": session.profile.as_deref(),
            "walled": session.walled,
            "addresses": &session.addresses[..],
            "network": session.network.as_deref(),
            "age_s": session.age_s,
            "left_s": session.left_s,
        });
        with_throughput(shown, session.throughput.as_ref())
    };
    let profile = |sum: &ProfileUse| {
        let shown = json!({ "profile": sum.profile.as_deref(), "sessions": sum.sessions });
        with_throughput(shown, Some(&sum.throughput))
    };
    let sessions: Vec<Value> = list.sessions.iter().map(session).collect();
    let profiles: Vec<Value> = list.profiles.iter().map(profile).collect();
    json!({ "sessions": sessions, "more": list.more, "next": list.next.as_deref(), "profiles": profiles })
}

/// Adds bytes, and bytes each second.
fn with_throughput(mut shown: Value, throughput: Option<&Throughput>) -> Value {
    let rates = throughput.and_then(|throughput| throughput.rates);
    for (at, way) in ["received", "sent"].into_iter().enumerate() {
        shown[format!("{way}_bytes")] = json!(throughput.map(|throughput| throughput.bytes[at]));
        shown[format!("{way}_rate")] = json!(rates.map(|rates| rates[at]));
    }
    shown
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
        let of_device = |traffic: &&DeviceTraffic| traffic.device == device.device;
        let traffic = shown.traffic.iter().find(of_device);
        let shown = json!({
            "device": hex(&*device.device),
            "addresses": &device.addresses[..],
            "session_age_s": device.session_age_s,
            "from": device.from,
            "wireguard": device.wireguard.as_ref().map(|wireguard| json!({
                "name": &*wireguard.name, "key": &*wireguard.key, "left_s": wireguard.left_s,
            })),
        });
        with_throughput(shown, traffic.map(|traffic| &traffic.throughput))
    };
    user["profile"] = json!(shown.profile.as_deref());
    user["groups"] = shown.groups.iter().map(|group| group.to_string()).collect();
    user["totp"] = json!(shown.codes);
    user["certificates"] = shown.certificates.iter().map(certificate).collect();
    user["role"] = json!(shown.role.map(Role::name));
    user["addresses"] = json!(&shown.reserved[..]);
    user["disabled"] = json!(shown.disabled.as_ref().map(
        |disabled| json!({ "time": rfc3339(disabled.at_s), "by": &*disabled.by, "reason": &*disabled.reason }),
    ));
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

fn certificate(ShownCertificate { fingerprint, revoked }: &ShownCertificate) -> Value {
    json!({ "fingerprint": hex(&**fingerprint), "revoked": revoked })
}

/// Returns a user's devices: those of WireGuard with the fields of `vpnd device list --json`.
pub(super) fn devices(shown: &ShownUser) -> Value {
    let device = |device: &OwnDevice| {
        let wireguard = device.wireguard.as_ref();
        let of_traffic = |traffic: &&DeviceTraffic| traffic.device == device.device;
        let traffic = shown.traffic.iter().find(of_traffic);
        let listed = json!({
            "user": &*shown.user.name,
            "device": hex(&*device.device),
            "protocol": if wireguard.is_some() { "wireguard" } else { "vpnd" },
            "name": wireguard.map(|wireguard| &*wireguard.name),
            "public_key": wireguard.map(|wireguard| &*wireguard.public_key),
            "addresses": &device.addresses[..],
            "renewed_s": wireguard.map(|wireguard| wireguard.renewed_s),
            "walled_s": wireguard.and_then(|wireguard| wireguard.walled_s),
            "outer": wireguard.and_then(|wireguard| wireguard.outer),
            "state": wireguard.map(|wireguard| &*wireguard.state),
            "session_age_s": device.session_age_s,
            "from": device.from,
            "added_age_s": device.added_age_s,
            "unseen_s": device.unseen_s,
            "network": device.network.as_deref(),
        });
        with_throughput(listed, traffic.map(|traffic| &traffic.throughput))
    };
    json!({ "devices": shown.devices.devices.iter().map(device).collect::<Vec<_>>() })
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
        "gateway": record.gateway.as_deref(),
    })
}
