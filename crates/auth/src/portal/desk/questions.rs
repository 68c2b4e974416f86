//! Questions to the audit file at the desk: who had an address, and all that is recorded between two
//! times.
//!
//! INVARIANT: a question is on the disk, with its reason and with who asks, before any part of the
//! answer is read. Only programs of administrators read everything: no page needs it.

use std::sync::Arc;

use super::authority::Act;
use super::{Actor, Portal};
use crate::portal::first;
use vpnd_ipc::gateway::portal::desk::{
    AskWhois, AuditRecord, DeskRefusal, ExportAudit, ExportedPart, MAX_RECORDS, Replied, Role, Whois,
};
use vpnd_ipc::request::{Answer, Reason};
use vpnd_proto::control::{List, Text};
use vpnd_store::audit::query::{Cursor, Range, Record};
use vpnd_store::audit::whois::{Asked, is_reason, question};
use vpnd_sys::date::{Moment, rfc3339};
use vpnd_sys::port_blocks::Block;

/// Rows of one part of an export: a session that had several blocks of ports is several records.
const ROWS: u32 = 32;

impl Portal {
    fn whois(&self, actor: &Actor, ask: &AskWhois) -> Replied<Whois> {
        let now_s = (self.clocks.wall)();
        let asked: Asked = ask.address.trim().parse().map_err(|_| DeskRefusal::Unusable)?;
        let at_s = match ask.at.trim() {
            "" => now_s,
            at => moment(at)?,
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
        let left_out = answer.found.len().saturating_sub(MAX_RECORDS);
        let cut =
            (left_out > 0).then(|| format!("UNCERTAIN: {left_out} more are left out here; give the port"));
        let notes = cut.into_iter().chain(desk.recording.notes(asked, at_s, &answer));
        Ok(Whois {
            notes: first(notes.map(|note| Text::cut(&note))),
            found: first(answer.found.iter().map(shown)),
            address: Text::cut(&asked.to_string()),
            at_s,
        })
    }

    fn export(&self, actor: &Actor, ask: &ExportAudit) -> Replied<ExportedPart> {
        let now_s = (self.clocks.wall)();
        if actor.person().is_some() || actor.role < Role::Administrator {
            return Err(DeskRefusal::NoRole);
        }
        let (from_s, to_s) = (moment(&ask.from)?, moment(&ask.to)?);
        let after = ask.after.as_ref().map(|after| after.parse::<Cursor>()).transpose();
        let (true, Ok(after)) = (from_s <= to_s, after) else { return Err(DeskRefusal::Unusable) };
        if !is_reason(&ask.reason) {
            return Err(DeskRefusal::NoReason);
        }
        let subject =
            ask.user.as_ref().map_or_else(|| "all users".to_owned(), |user| format!("user {}", &**user));
        let goes_on = after.map_or_else(String::new, |after| format!(", after {after}"));
        let reason = &*ask.reason;
        let detail = format!("{subject} from {} to {}{goes_on}: {reason}", rfc3339(from_s), rfc3339(to_s));
        let file = actor.record("audit-exported", "", detail, now_s)?;
        let range = Range { from_s, to_s, user: ask.user.as_ref().map(ToString::to_string) };
        let mut after = Some(after.unwrap_or_default());
        let mut records = Vec::new();
        // A part is of one table, which may have nothing of that time.
        while let (true, Some(cursor)) = (records.is_empty(), after) {
            let part = file.export_rows(&range, cursor, ROWS);
            (records, after) = part.map_err(|error| {
                tracing::error!(%error, "records can't be read for a program");
                DeskRefusal::NotRecorded
            })?;
        }
        let records = List::new(records.iter().map(shown).collect()).map_err(|_| {
            tracing::error!("a part of the audit file has too many changes of port blocks for a program: use 'vpnd audit export'");
            DeskRefusal::Unusable
        })?;
        Ok(ExportedPart { records, next: after.map(|after| Text::cut(&after.to_string())) })
    }
}

fn moment(text: &str) -> Replied<u64> {
    text.trim().parse::<Moment>().map(|Moment(at_s)| at_s).map_err(|_| DeskRefusal::Unusable)
}

fn shown(record: &Record) -> AuditRecord {
    fn cut<const MAX: usize>(text: Option<&String>) -> Option<Text<MAX>> {
        text.map(|text| Text::cut(text))
    }
    AuditRecord {
        kind: Text::cut(&record.kind),
        at_s: record.at_s,
        until_s: record.until_s,
        user: cut(record.user.as_ref()),
        source: cut(record.source.as_ref()),
        profile: cut(record.profile.as_ref()),
        device: cut(record.device.as_ref()),
        ipv4: record.ipv4,
        ipv6: record.ipv6,
        outer: cut(record.outer.as_ref()),
        session: cut(record.session.as_ref()),
        detail: cut(record.detail.as_ref()),
        by: cut(record.by.as_ref()),
        public: record.public.map(|Block { address, ports: (first, last) }| (address, first, last)),
    }
}

impl Answer<AskWhois> for Portal {
    async fn answer(self: &Arc<Self>, ask: AskWhois) -> Result<Replied<Whois>, Reason> {
        self.from_store(move |portal| match portal.actor(&ask.caller, Act::Ask)? {
            Ok(actor) => Ok(portal.whois(&actor, &ask)),
            Err(refusal) => Ok(Err(refusal)),
        })
        .await
    }
}

impl Answer<ExportAudit> for Portal {
    async fn answer(self: &Arc<Self>, ask: ExportAudit) -> Result<Replied<ExportedPart>, Reason> {
        self.from_store(move |portal| match portal.actor(&ask.caller, Act::Ask)? {
            Ok(actor) => Ok(portal.export(&actor, &ask)),
            Err(refusal) => Ok(Err(refusal)),
        })
        .await
    }
}
