//! Questions to the audit file at the desk: who had an address, and all that is recorded between
//! two times.
//!
//! INVARIANT: a question is on the disk, with its reason and with who asks, before any part of the
//! answer is read. Only programs of administrators read everything: no page needs it.

use std::sync::Arc;

use super::actor::Actor;
use crate::portal::first;
use vpnd_admission::notices::Membership;
use vpnd_admission::whois::{self, OfGateway, Question, Recorded};
use vpnd_ipc::gateway::portal::desk::{
    AskWhois, AuditRecord, DeskRefusal, ExportAudit, ExportedPart, MAX_RECORDS, Replied, Role, Whois,
};
use vpnd_proto::control::{List, Text};
use vpnd_store::audit::query::{Cursor, Range, Record};
use vpnd_store::audit::whois::{Asked, is_reason, question};
use vpnd_store::{Store, StoreError};
use vpnd_sys::clock::Clocks;
use vpnd_sys::date::{Moment, rfc3339};
use vpnd_sys::port_blocks::Block;

/// Begins a note by which an answer may be wrong.
const UNCERTAIN: &str = "UNCERTAIN: ";

/// Rows of one part of an export: a session that had several blocks of ports is several records.
const ROWS: u32 = 32;

pub(super) struct Questions {
    pub(super) store: Arc<dyn Store>,
    pub(super) clocks: Clocks,
    pub(super) fleet: Arc<Membership>,
}

impl Questions {
    pub(super) fn whois(&self, actor: &Actor, ask: &AskWhois) -> Replied<Whois> {
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
        let notes = desk.recording.notes(asked, at_s, &answer);
        let mut said = Said { found: answer.found.iter().map(shown).collect(), notes };
        if self.fleet.is_in_fleet() {
            said.join(self.elsewhere(actor, asked, at_s, &ask.reason));
        }
        let left_out = said.found.len().saturating_sub(MAX_RECORDS);
        let cut =
            (left_out > 0).then(|| format!("{UNCERTAIN}{left_out} more are left out here; give the port"));
        Ok(Whois {
            notes: first(cut.into_iter().chain(said.notes).map(|note| Text::cut(&note))),
            found: first(said.found),
            address: Text::cut(&asked.to_string()),
            at_s,
        })
    }

    /// The answers of the fleet's other gateways.
    fn elsewhere(
        &self,
        actor: &Actor,
        asked: Asked,
        at_s: u64,
        reason: &str,
    ) -> Result<Vec<OfGateway>, StoreError> {
        let gateways = self.store.gateways()?;
        let own_name = gateways
            .iter()
            .find(|gateway| gateway.is_here)
            .map_or("another gateway", |gateway| &gateway.name);
        let Asked { address, port } = asked;
        let (detail, by) = (question(asked, at_s, reason), format!("{actor} at {own_name}"));
        whois::ask(self.store.as_ref(), Question { address, port, at_s, detail, by })
    }

    pub(super) fn export(&self, actor: &Actor, ask: &ExportAudit) -> Replied<ExportedPart> {
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

/// Records about an address, and why they may be wrong.
struct Said {
    found: Vec<AuditRecord>,
    notes: Vec<String>,
}

impl Said {
    /// Adds what the fleet's other gateways say. That one of them knows no client does not matter
    /// if another one does.
    fn join(&mut self, others: Result<Vec<OfGateway>, StoreError>) {
        let others = others.unwrap_or_else(|error| {
            self.notes.push(format!("{UNCERTAIN}the fleet's other gateways can't be asked: {error}"));
            Vec::new()
        });
        let mut uncertain = Vec::new();
        for OfGateway { name, recorded } in others {
            let Some(Recorded { found, notes }) = recorded else {
                uncertain
                    .push(format!("{UNCERTAIN}the gateway {name} has not answered: ask again once it runs"));
                continue;
            };
            let of_gateway = |record| AuditRecord { gateway: Some(Text::cut(&name)), ..shown(record) };
            self.found.extend(found.iter().map(of_gateway));
            let doubts = notes.iter().filter_map(|note| note.strip_prefix(UNCERTAIN));
            uncertain.extend(doubts.map(|doubt| format!("{UNCERTAIN}{name}: {doubt}")));
        }
        if !self.found.is_empty() {
            self.notes.retain(|note| note.starts_with(UNCERTAIN));
        }
        self.notes.extend(uncertain);
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
        gateway: None,
    }
}
