//! Questions who had an address: what may be asked, what is recorded of it, and why an answer may
//! be wrong.
//!
//! INVARIANT: a question is on the disk, with its reason and with who asks, before it is answered.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::str::FromStr;

use ipnet::IpNet;

use super::query::{Answer, Record};
use super::{AuditEntry, AuditError, AuditFile, Event};
use vpnd_config::{NatMode, OuterAddresses, ServerConfig};
use vpnd_sys::date::rfc3339;
use vpnd_sys::port_blocks::PortBlocks;

/// The longest reason, in bytes.
pub const MAX_REASON: usize = 500;

/// Whether this is a reason that can be recorded.
#[must_use]
pub fn is_reason(text: &str) -> bool {
    !text.trim().is_empty() && text.len() <= MAX_REASON && !text.chars().any(char::is_control)
}

/// A question and its reason, as they are recorded.
#[must_use]
pub fn question(asked: Asked, at_s: u64, reason: &str) -> String {
    format!("{asked} at {}: {reason}", rfc3339(at_s))
}

/// An address that is asked about, perhaps with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub address: IpAddr,
    pub port: Option<u16>,
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

impl AuditFile {
    /// Records a question, and answers it as [`AuditFile::who_had`] does.
    pub fn whois(
        &mut self,
        question: AuditEntry,
        asked: Asked,
        at_s: u64,
        now_s: u64,
    ) -> Result<Answer, AuditError> {
        self.record(&[Event::Entry(question)])?;
        self.who_had(asked.address, asked.port, at_s, now_s)
    }
}

/// The configuration of the addresses that are recorded.
#[derive(Clone, Debug)]
pub struct Recording {
    pools: Vec<IpNet>,
    nat: NatMode,
    outer: OuterAddresses,
}

impl Recording {
    #[must_use]
    pub fn of(config: &ServerConfig) -> Self {
        Self { pools: config.tunnel.pools().collect(), nat: config.nat.mode, outer: config.audit.outer }
    }

    /// Opens the file that is there.
    pub fn open(&self, path: &Path) -> Result<AuditFile, AuditError> {
        let mut file = AuditFile::open(path)?;
        file.set_outer(self.outer);
        Ok(file)
    }

    /// Why an answer may be wrong, or why there is none.
    #[must_use]
    pub fn notes(&self, asked: Asked, at_s: u64, answer: &Answer) -> Vec<String> {
        let blocks = answer.blocks.as_ref().and_then(|text| text.parse::<PortBlocks>().ok());
        Notes { recording: self, asked, at_s, answer, blocks: blocks.as_ref() }.all()
    }
}

/// An answer, and the question.
struct Notes<'a> {
    recording: &'a Recording,
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
        let is_inner = self.recording.pools.iter().any(|pool| pool.contains(&asked.address));
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
            _ => Some(match self.recording.nat {
                NatMode::Nftables => format!(
                    "{asked} is no inner address, and no port blocks were in force at that time. Without 'addresses' in [nat] all clients \
                     share the gateway's own address, and their ports are not recorded: the client can't be determined; {}",
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
        match (self.recording.outer, self.asked.port) {
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
            let note = "UNCERTAIN: within a minute of that time outer addresses changed so often that not all of them are recorded";
            notes.push(note.to_owned());
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
