//! `vpnd audit`: who had an address or a port at a time, and everything that is recorded, for an
//! abuse desk.
//!
//! Invariants: a question is recorded with its reason and with who asks, before it is answered; an
//! answer that may be wrong says why. This module opens nothing: the process that opens the store
//! does.

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::admin_store::{AdminStore, Opening, Stores};
use crate::cli::{AuditCommand, AuditExportArgs, AuditWhoisArgs, ExportFormat};
use vpnd_admission::whois::{OfGateway, Recorded};
use vpnd_config::{ConfigError, ServerConfig};
use vpnd_store::StoreError;
use vpnd_store::audit::AuditEntry;
use vpnd_store::audit::query::{Cursor, Range, Record};
use vpnd_store::audit::whois::{MAX_REASON, Recording, is_reason, question};
use vpnd_sys::date::{Moment, rfc3339};
use vpnd_sys::port_blocks::Block;

#[derive(Debug, thiserror::Error)]
pub enum AuditCommandError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(
        "a reason is 1 to {MAX_REASON} bytes of text without control characters, such as 'complaint 4711'"
    )]
    Reason,
    #[error("that time is in the future")]
    Future,
    #[error("--from is later than --to")]
    Backwards,
    #[error("this gateway is of no fleet: leave out --fleet")]
    NoFleet,
    #[error("nothing is recorded here: 'enabled' in [audit] is false")]
    Disabled,
    #[error("can't write the result: {0}")]
    Output(#[from] io::Error),
    #[error("can't write the result: {0}")]
    Csv(#[from] csv::Error),
}

/// Runs a command. Whether there was an answer.
///
/// # Errors
/// [`AuditCommandError`].
pub fn run(
    command: &AuditCommand,
    stores: &dyn Stores,
    now_s: u64,
    out: &mut dyn Write,
) -> Result<bool, AuditCommandError> {
    match command {
        AuditCommand::Whois(args) => whois(args, stores, now_s, out),
        AuditCommand::Export(args) => export(args, stores, now_s, out).map(|()| true),
    }
}

fn open(config: &ServerConfig, stores: &dyn Stores) -> Result<AdminStore, AuditCommandError> {
    if !config.audit.enabled {
        return Err(AuditCommandError::Disabled);
    }
    Ok(stores.open(config, Opening::Audit)?)
}

fn checked(reason: &str) -> Result<&str, AuditCommandError> {
    if is_reason(reason) { Ok(reason) } else { Err(AuditCommandError::Reason) }
}

fn whois(
    args: &AuditWhoisArgs,
    stores: &dyn Stores,
    now_s: u64,
    out: &mut dyn Write,
) -> Result<bool, AuditCommandError> {
    let (reason, Moment(at_s)) = (checked(&args.reason)?, args.at);
    if at_s > now_s {
        return Err(AuditCommandError::Future);
    }
    let config = ServerConfig::load(&args.store.config)?;
    if args.fleet && config.fleet.is_none() {
        return Err(AuditCommandError::NoFleet);
    }
    let mut store = open(&config, stores)?;
    let detail = question(args.address, at_s, reason);
    let answer = store.whois(args.address.address, args.address.port, at_s, now_s, detail)?;
    let notes = Recording::of(&config).notes(args.address, at_s, &answer);
    if let Some(fleet) = config.fleet.as_ref().filter(|_| args.fleet) {
        drop(store);
        let detail = question(args.address, at_s, reason);
        let mut store = stores.open(&config, Opening::Existing)?;
        let mut all = store.ask_fleet(args.address, at_s, detail, &fleet.name)?;
        let recorded = Some(Recorded { found: answer.found, notes });
        all.insert(0, OfGateway { name: fleet.name.clone(), recorded });
        return write_fleet(args, at_s, &all, out);
    }
    if args.json {
        let records: Vec<Value> = answer.found.iter().map(shown).collect();
        let all = json!({
            "address": args.address.to_string(), "at": rfc3339(at_s), "found": records,
            "certain": !answer.found.is_empty() && notes.is_empty(), "notes": notes,
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&all).map_err(io::Error::from)?)?;
    } else {
        write_records(&answer.found, &notes, out)?;
    }
    Ok(!answer.found.is_empty())
}

fn write_records(found: &[Record], notes: &[String], out: &mut dyn Write) -> io::Result<()> {
    for record in found {
        out.write_all(described(record).as_bytes())?;
    }
    notes.iter().try_for_each(|note| writeln!(out, "{note}"))
}

/// Writes the answers of all gateways of a fleet. Whether any has found the client.
fn write_fleet(
    args: &AuditWhoisArgs,
    at_s: u64,
    all: &[OfGateway],
    out: &mut dyn Write,
) -> Result<bool, AuditCommandError> {
    let recorded = || all.iter().filter_map(|gateway| gateway.recorded.as_ref());
    let is_found = recorded().any(|recorded| !recorded.found.is_empty());
    if args.json {
        let is_uncertain =
            |recorded: &Recorded| recorded.notes.iter().any(|note| note.starts_with("UNCERTAIN"));
        let certain = is_found && recorded().count() == all.len() && !recorded().any(is_uncertain);
        let of_gateway = |OfGateway { name, recorded }: &OfGateway| {
            let found = recorded.iter().flat_map(|recorded| &recorded.found).map(shown);
            let notes: Vec<_> = recorded.iter().flat_map(|recorded| &recorded.notes).collect();
            let found: Vec<Value> = found.collect();
            json!({ "gateway": name, "answered": recorded.is_some(), "found": found, "notes": notes })
        };
        let gateways: Vec<Value> = all.iter().map(of_gateway).collect();
        let all = json!({
            "address": args.address.to_string(), "at": rfc3339(at_s), "certain": certain, "gateways": gateways,
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&all).map_err(io::Error::from)?)?;
        return Ok(is_found);
    }
    for OfGateway { name, recorded } in all {
        writeln!(out, "gateway:  {}", vpnd_sys::text::plain(name))?;
        match recorded {
            Some(Recorded { found, notes }) => write_records(found, notes, out)?,
            None => writeln!(out, "UNCERTAIN: it has not answered: ask there, or again once it runs")?,
        }
    }
    Ok(is_found)
}

fn described(record: &Record) -> String {
    let given = |value: &Option<String>| match value {
        Some(text) if !text.is_empty() => vpnd_sys::text::plain(text),
        _ => "not recorded, or erased".to_owned(),
    };
    let until = match (record.until_s, &record.detail) {
        (Some(until_s), Some(why)) => format!("{} ({})", rfc3339(until_s), vpnd_sys::text::plain(why)),
        (Some(until_s), None) => rfc3339(until_s),
        (None, _) => "now: it goes on".to_owned(),
    };
    let inner: Vec<String> = record
        .ipv4
        .map(|v4| v4.to_string())
        .into_iter()
        .chain(record.ipv6.map(|v6| v6.to_string()))
        .collect();
    format!(
        "user:     {}\nsource:   {}\nprofile:  {}\ndevice:   {}\nsession:  {}\nfrom:     {}\nuntil:    {until}\ninner:    {}\n{}outer:    {}\n",
        given(&record.user),
        given(&record.source),
        record
            .profile
            .as_deref()
            .filter(|profile| !profile.is_empty())
            .map_or("-".to_owned(), vpnd_sys::text::plain),
        given(&record.device),
        given(&record.session),
        rfc3339(record.at_s),
        inner.join(", "),
        record.public.map_or(String::new(), |block| format!("public:   {block}\n")),
        given(&record.outer),
    )
}

/// A record as scripts read it: times as text.
fn shown(record: &Record) -> Value {
    let public = record.public.map(|Block { address, ports: (first, last) }| {
        json!({ "address": address, "first_port": first, "last_port": last })
    });
    json!({
        "kind": record.kind, "time": rfc3339(record.at_s), "until": record.until_s.map(rfc3339),
        "user": record.user, "source": record.source, "profile": record.profile, "device": record.device,
        "ipv4": record.ipv4, "ipv6": record.ipv6, "outer": record.outer, "session": record.session,
        "detail": record.detail, "by": record.by, "public": public,
    })
}

const COLUMNS: [&str; 14] = [
    "kind", "time", "until", "user", "source", "profile", "device", "ipv4", "ipv6", "outer", "session",
    "detail", "by", "public",
];

fn export(
    args: &AuditExportArgs,
    stores: &dyn Stores,
    now_s: u64,
    out: &mut dyn Write,
) -> Result<(), AuditCommandError> {
    let (reason, Moment(from_s), Moment(to_s)) = (checked(&args.reason)?, args.from, args.to);
    if from_s > to_s {
        return Err(AuditCommandError::Backwards);
    }
    let config = ServerConfig::load(&args.store.config)?;
    let mut store = open(&config, stores)?;
    let range = Range { from_s, to_s, user: args.user.clone() };
    let subject = args.user.as_ref().map_or("all users".to_owned(), |user| format!("user {user}"));
    store.audit(AuditEntry {
        at_s: now_s,
        event: "audit-exported".to_owned(),
        user: String::new(),
        source: String::new(),
        detail: format!("{subject} from {} to {}: {reason}", rfc3339(from_s), rfc3339(to_s)),
        by: String::new(),
    })?;
    let mut sheet = Sheet::new(args.format, out)?;
    let mut cursor = Some(Cursor::default());
    while let Some(here) = cursor {
        let (records, next) = store.export(&range, here)?;
        records.iter().try_for_each(|record| sheet.add(record))?;
        cursor = next;
    }
    sheet.end()
}

/// The output of an export.
enum Sheet<'o> {
    Csv(Box<csv::Writer<&'o mut dyn Write>>),
    /// Whether there is a record before the next one.
    Json(&'o mut dyn Write, bool),
}

impl<'o> Sheet<'o> {
    fn new(format: ExportFormat, out: &'o mut dyn Write) -> Result<Self, AuditCommandError> {
        Ok(match format {
            ExportFormat::Csv => {
                let mut writer = csv::Writer::from_writer(out);
                writer.write_record(COLUMNS)?;
                Self::Csv(Box::new(writer))
            }
            ExportFormat::Json => {
                out.write_all(b"[")?;
                Self::Json(out, false)
            }
        })
    }

    fn add(&mut self, record: &Record) -> Result<(), AuditCommandError> {
        let shown = shown(record);
        match self {
            Self::Csv(writer) => {
                let cell = |column: &&str| match &shown[*column] {
                    Value::String(text) => harmless_cell(text),
                    Value::Object(_) => record.public.map_or(String::new(), |Block { address, ports }| {
                        format!("{address}:{}-{}", ports.0, ports.1)
                    }),
                    _ => String::new(),
                };
                writer.write_record(COLUMNS.iter().map(cell))?;
            }
            Self::Json(out, goes_on) => {
                let text = serde_json::to_string(&shown).map_err(io::Error::from)?;
                write!(out, "{}\n{text}", if *goes_on { "," } else { "" })?;
                *goes_on = true;
            }
        }
        Ok(())
    }

    fn end(self) -> Result<(), AuditCommandError> {
        match self {
            Self::Csv(mut writer) => writer.flush()?,
            Self::Json(out, _) => out.write_all(b"\n]\n")?,
        }
        Ok(())
    }
}

/// The text for a spreadsheet, which would compute what begins like a formula: anyone can type
/// names at a login.
fn harmless_cell(text: &str) -> String {
    let text = vpnd_sys::text::plain(text);
    if text.starts_with(['=', '+', '-', '@', '\t', '\n']) { format!("'{text}") } else { text }
}

#[cfg(test)]
mod tests;
