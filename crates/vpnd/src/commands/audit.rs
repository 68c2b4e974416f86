//! `vpnd audit`: who had an address or a port at a time, and everything that is recorded, for an
//! abuse desk.
//!
//! Invariants: a question is recorded with its reason and with who asks, before it is answered; an
//! answer that may be wrong says why. This module opens nothing: the process that opens the store
//! does.

use std::fmt;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use serde_json::{Value, json};

use crate::admin_store::{AdminStore, Opening, Stores};
use crate::cli::{AuditCommand, AuditExportArgs, AuditWhoisArgs, ExportFormat};
use vpnd_config::OuterAddresses;
use vpnd_config::{ConfigError, NatMode, ServerConfig};
use vpnd_store::StoreError;
use vpnd_store::audit::AuditEntry;
use vpnd_store::audit::query::{Answer, Cursor, Range, Record};
use vpnd_sys::date::{Moment, rfc3339};
use vpnd_sys::port_blocks::{Block, PortBlocks};

/// The longest reason, in bytes.
const MAX_REASON: usize = 500;

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
    #[error("nothing is recorded here: 'enabled' in [audit] is false")]
    Disabled,
    #[error("can't write the result: {0}")]
    Output(#[from] io::Error),
    #[error("can't write the result: {0}")]
    Csv(#[from] csv::Error),
}

/// An address that is asked about, perhaps with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub(crate) address: IpAddr,
    pub(crate) port: Option<u16>,
}

impl FromStr for Asked {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            return Ok(Self { address: address.to_canonical(), port: None });
        }
        let socket: SocketAddr = text.parse().map_err(|_| {
            "write an address such as 10.86.0.7, 10.86.0.7:443, fd00::7 or [fd00::7]:443".to_owned()
        })?;
        Ok(Self { address: socket.ip().to_canonical(), port: Some(socket.port()) })
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.address, port).fmt(f),
            None => self.address.fmt(f),
        }
    }
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
    let fine =
        !reason.trim().is_empty() && reason.len() <= MAX_REASON && !reason.chars().any(char::is_control);
    if fine { Ok(reason) } else { Err(AuditCommandError::Reason) }
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
    let mut store = open(&config, stores)?;
    let detail = format!("{} at {}: {reason}", args.address, rfc3339(at_s));
    let answer = store.whois(args.address.address, args.address.port, at_s, now_s, detail)?;
    let blocks = answer.blocks.as_ref().and_then(|text| text.parse::<PortBlocks>().ok());
    let notes =
        Notes { config: &config, asked: args.address, at_s, answer: &answer, blocks: blocks.as_ref() }.all();
    if args.json {
        let records: Vec<Value> = answer.found.iter().map(shown).collect();
        let all = json!({
            "address": args.address.to_string(), "at": rfc3339(at_s), "found": records,
            "certain": !answer.found.is_empty() && notes.is_empty(), "notes": notes,
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&all).map_err(io::Error::from)?)?;
    } else {
        for record in &answer.found {
            out.write_all(described(record).as_bytes())?;
        }
        for note in &notes {
            writeln!(out, "{note}")?;
        }
    }
    Ok(!answer.found.is_empty())
}

/// An answer, and the question.
struct Notes<'a> {
    config: &'a ServerConfig,
    asked: Asked,
    at_s: u64,
    answer: &'a Answer,
    /// Those in force at that time.
    blocks: Option<&'a PortBlocks>,
}

impl Notes<'_> {
    /// Why the answer may be wrong, or why there is none.
    fn all(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.translation().into_iter().collect();
        notes.extend(self.records());
        if self.answer.blocks_changed {
            notes
                .push("UNCERTAIN: other port blocks came into force within a minute of that time".to_owned());
        }
        notes
    }

    /// The notes about the address itself.
    fn translation(&self) -> Option<String> {
        let Self { asked, answer, .. } = self;
        let is_inner = self.config.tunnel.pools().any(|pool| pool.contains(&asked.address));
        let nobody = answer.found.is_empty();
        match (self.blocks, asked.address) {
            (Some(blocks), IpAddr::V4(public)) if blocks.addresses.contains(&public) => match asked.port {
                None => Some(format!(
                    "{asked} is a public address of up to {} clients: give the port to find which",
                    blocks.in_address()
                )),
                Some(port) => match blocks.inner_of(public, port) {
                    Some(inner) if nobody => Some(format!(
                        "{asked} is of the block of {inner}, and no client is on record with that address at that time"
                    )),
                    Some(_) => None,
                    None => Some(format!(
                        "{asked} is of no client's block: the gateway itself has sent from there, or another program on it"
                    )),
                },
            },
            _ if is_inner => nobody.then(|| format!("no client is on record with {asked} at that time")),
            _ if !nobody => None,
            (Some(blocks), IpAddr::V4(_)) => {
                let addresses: Vec<String> = blocks.addresses.iter().map(ToString::to_string).collect();
                let addresses = addresses.join(", ");
                Some(format!(
                    "{asked} is no inner address, and clients left by {addresses} only at that time; {}",
                    self.outer()
                ))
            }
            _ => Some(match self.config.nat.mode {
                NatMode::Nftables => format!(
                    "{asked} is no inner address, and no port blocks were in force at that time. Without 'addresses' in [nat] all clients \
                     share the gateway's own address, and nobody records which port is whose: who it was can't be told; {}",
                    self.outer()
                ),
                _ => format!(
                    "{asked} is no inner address of this gateway: clients keep theirs behind it; {}",
                    self.outer()
                ),
            }),
        }
    }

    /// Why the address is no client's outer address.
    fn outer(&self) -> &'static str {
        match (self.config.audit.outer, self.asked.port) {
            (OuterAddresses::Full, Some(_)) => "no client sent from there at that time",
            (OuterAddresses::Full, None) => "a client's outer address is found with its port only",
            _ => "clients' outer addresses are not recorded in full ('outer_addresses' in [audit])",
        }
    }

    /// A note if several sessions had the address or port.
    fn several(&self) -> Option<&'static str> {
        let asked = self.asked.to_string();
        // One answer may be of all inner addresses behind a public one.
        let key = |record: &Record| {
            let is_outer = self.asked.port.is_some() && record.outer.as_ref() == Some(&asked);
            (!is_outer).then_some((record.ipv4, record.ipv6))
        };
        let mut keys: Vec<_> = self.answer.found.iter().map(key).collect();
        keys.sort_unstable();
        keys.windows(2).any(|pair| pair[0] == pair[1]).then_some(
            "UNCERTAIN: within that second one session ended and the next began, or the clock was set back: it is one of these",
        )
    }

    /// The notes about what is recorded.
    fn records(&self) -> Vec<String> {
        let (answer, at_s, mut notes) = (self.answer, self.at_s, Vec::<String>::new());
        notes.extend(self.several().map(str::to_owned));
        match answer.since_s {
            Some(since_s) if since_s <= at_s => {}
            Some(since_s) => notes.push(format!("UNCERTAIN: records begin at {}", rfc3339(since_s))),
            None => notes.push("UNCERTAIN: no gateway has recorded anything yet".to_owned()),
        }
        if answer.outer_left_out {
            let why = "UNCERTAIN: within a minute of that time outer addresses changed so often that not all of them are recorded";
            notes.push(why.to_owned());
        }
        if let Some(gap) = &answer.gap {
            let lost = gap.lost.map_or(String::new(), |lost| format!(", {lost} events are missing"));
            notes.push(format!(
                "UNCERTAIN: not all is on record from {} to {} ({}{lost})",
                rfc3339(gap.from_s),
                rfc3339(gap.to_s),
                vpnd_sys::text::plain(&gap.cause)
            ));
        }
        notes
    }
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
    let whose = args.user.as_ref().map_or("all users".to_owned(), |user| format!("user {user}"));
    store.audit(AuditEntry {
        at_s: now_s,
        event: "audit-exported".to_owned(),
        user: String::new(),
        source: String::new(),
        detail: format!("{whose} from {} to {}: {reason}", rfc3339(from_s), rfc3339(to_s)),
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

/// The same for a spreadsheet, which would compute what begins like a formula: anyone can type
/// names at a login.
fn harmless_cell(text: &str) -> String {
    let text = vpnd_sys::text::plain(text);
    if text.starts_with(['=', '+', '-', '@', '\t', '\n']) { format!("'{text}") } else { text }
}

#[cfg(test)]
mod tests;
