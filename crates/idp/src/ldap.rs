//! Users of a directory (LDAP, RFC 4511).
//!
//! Invariants: a password reaches a server only over TLS, in a bind as the one entry that the
//! user's name leads to; an empty one reaches none, for a server takes that for an anonymous bind
//! and agrees; exactly one entry is the user's, or none. Referrals are not followed: they would
//! have the gateway send passwords where a server says.

mod ber;
mod connection;
mod groups;
pub mod message;
mod trial;

use zeroize::Zeroizing;

pub(super) use ber::Malformed;
use connection::{Connection, Found};
use groups::Groups;
use message::{
    Entry, INVALID_CREDENTIALS, NO_SUCH_OBJECT, Outcome, SIZE_LIMIT_EXCEEDED, SUCCESS, Scope, Search,
};

use super::reply_memory::ReplyMemory;
use super::servers::{Answered, ServerError};
use vpnd_config::ldap_filter::Values;
use vpnd_config::source::{Bind, Ldap, Source, SourceServer};
use vpnd_config::source_tls::SourceTls;
use vpnd_config::user_name;
use vpnd_ipc::gateway::idp::{
    AcceptAttributes, Identity, LoginCheck, SourceRefusal, Subject, UserRecheck, Verdict,
};
use vpnd_proto::control::{List, UserName};

/// Results that mean: not this account, whatever the password (RFC 4511 appendix A).
const CONSTRAINT_VIOLATION: u32 = 19;
const UNWILLING_TO_PERFORM: u32 = 53;
/// Bit of Active Directory's `userAccountControl`: the account is disabled.
const ACCOUNT_DISABLED: u32 = 2;
/// Attributes by which directories say that an account is disabled.
const STATES: [&str; 4] = ["userAccountControl", "nsAccountLock", "loginDisabled", "pwdAccountLockedTime"];
/// The value of `pwdAccountLockedTime` of an account that an administrator has locked, rather than
/// wrong guesses.
const LOCKED_FOR_GOOD: &[u8] = b"000001010000Z";

/// How a subject begins whose bytes are written as digits.
const HEX: &str = "hex:";

/// A directory, ready to be asked.
pub(super) struct Directory {
    settings: Ldap,
    tls: SourceTls,
    /// The password of the gateway's account.
    password: Option<Zeroizing<String>>,
    answered: Answered,
    memory: ReplyMemory,
}

impl Directory {
    /// Reads authorities and password.
    pub(super) fn prepare(settings: &Ldap) -> anyhow::Result<Self> {
        let tls = SourceTls::trusting(settings.ca.as_deref())?;
        let password = match &settings.bind {
            Bind::Service { password, .. } => Some(vpnd_config::secret_place::read(password)?),
            Bind::User(_) => None,
        };
        let settings = settings.clone();
        Ok(Self { settings, tls, password, answered: Answered::default(), memory: ReplyMemory::default() })
    }

    async fn connect(&self, server: &SourceServer) -> Result<Connection, ServerError> {
        Connection::open(&self.answered, server, &self.tls, &self.memory).await
    }

    /// Whether this is the user's password, by the word of this server.
    pub(super) async fn check(
        &self,
        source: &Source,
        server: &SourceServer,
        login: &LoginCheck,
    ) -> Result<Verdict, ServerError> {
        if login.password.expose().is_empty() {
            return Ok(Verdict::Refused(SourceRefusal::WrongPassword));
        }
        let mut connection = self.connect(server).await?;
        match (&self.settings.bind, &self.password) {
            (Bind::Service { dn, .. }, Some(password)) => {
                self.bind_as_gateway(&mut connection, dn, password).await?;
                self.search_and_bind(&mut connection, source, login).await
            }
            (Bind::User(template), _) => {
                let dn = template.entry_of(&login.user);
                let checked = self.bind_and_search(&mut connection, source, login, &dn).await?;
                Ok(checked.map_or_else(Verdict::Refused, Verdict::Accepted))
            }
            (Bind::Service { .. }, None) => Err(ServerError::Answer("no password was read".to_owned())),
        }
    }

    /// Whether the user is still there and not disabled, and in which groups: what the gateway's
    /// account can see.
    pub(super) async fn recheck(
        &self,
        source: &Source,
        server: &SourceServer,
        user: &UserRecheck,
    ) -> Result<Result<Identity, SourceRefusal>, ServerError> {
        let (Bind::Service { dn, .. }, Some(password)) = (&self.settings.bind, &self.password) else {
            return Err(ServerError::Answer("the gateway has no account there".to_owned()));
        };
        let mut connection = self.connect(server).await?;
        self.bind_as_gateway(&mut connection, dn, password).await?;
        let values = Values { user: &user.user, dn: "" };
        let base = &self.settings.base;
        let found = self.find(&mut connection, source, base, Scope::Subtree, values).await?;
        let entry = match exactly_one(found)? {
            Ok(entry) => entry,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let groups = self.groups(&mut connection, source, &entry, &user.user).await?;
        Ok(self.identity(source, &entry, groups))
    }

    async fn bind_as_gateway(
        &self,
        connection: &mut Connection,
        dn: &str,
        password: &str,
    ) -> Result<(), ServerError> {
        match connection.bind(dn, password).await? {
            Outcome { code: SUCCESS, .. } => Ok(()),
            Outcome { code, text } => Err(ServerError::Answer(format!(
                "the account '{dn}' of the gateway is refused ({code}) {text}"
            ))),
        }
    }

    /// Finds the user's entry and groups with the gateway's rights, then tries the password.
    async fn search_and_bind(
        &self,
        connection: &mut Connection,
        source: &Source,
        login: &LoginCheck,
    ) -> Result<Verdict, ServerError> {
        let values = Values { user: &login.user, dn: "" };
        let found = self.find(connection, source, &self.settings.base, Scope::Subtree, values).await?;
        let entry = match exactly_one(found)? {
            Ok(entry) => entry,
            Err(refusal) => return Ok(Verdict::Refused(refusal)),
        };
        let groups = self.groups(connection, source, &entry, &login.user).await?;
        // The last on this connection, whose rights it changes.
        let bound = bind_result(&connection.bind(&entry.dn, login.password.expose()).await?)?;
        Ok(match bound.and_then(|()| self.identity(source, &entry, groups)) {
            Ok(identity) => Verdict::Accepted(identity),
            Err(refusal) => match self.subject(&entry) {
                Ok(subject) => Verdict::RefusedEntry(refusal, subject),
                Err(_) => Verdict::Refused(refusal),
            },
        })
    }

    /// Tries the password, then reads the user's entry and groups with the user's rights.
    async fn bind_and_search(
        &self,
        connection: &mut Connection,
        source: &Source,
        login: &LoginCheck,
        dn: &str,
    ) -> Result<Result<Identity, SourceRefusal>, ServerError> {
        if let Err(refusal) = bind_result(&connection.bind(dn, login.password.expose()).await?)? {
            return Ok(Err(refusal));
        }
        let values = Values { user: &login.user, dn };
        let found = self.find(connection, source, dn, Scope::Base, values).await?;
        let entry = match exactly_one(found)? {
            Ok(entry) => entry,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let groups = self.groups(connection, source, &entry, &login.user).await?;
        Ok(self.identity(source, &entry, groups))
    }

    async fn find(
        &self,
        connection: &mut Connection,
        source: &Source,
        base: &str,
        scope: Scope,
        values: Values<'_>,
    ) -> Result<Found, ServerError> {
        let mut attributes = vec![self.settings.subject.as_str(), self.settings.group_attribute.as_str()];
        attributes.extend(STATES);
        attributes.extend(self.name_attributes());
        // One more than is right, to notice it.
        let search = (base, scope, 2);
        run(connection, source, search, &self.settings.filter.encode(values), &attributes).await
    }

    fn name_attributes(&self) -> impl Iterator<Item = &str> {
        let in_name = match &self.settings.bind {
            Bind::User(template) => template.name_attribute(),
            Bind::Service { .. } => None,
        };
        self.settings.filter.name_attributes().chain(in_name)
    }

    /// The entry's name for its user, whichever of its names was typed: of the first attribute that
    /// has one for this source. Of several values it is the first in the order of letters, for a
    /// directory keeps them in none.
    fn name(&self, source: &Source, entry: &Entry) -> Option<UserName> {
        let name_in = |attribute: &str| {
            let texts = entry.values(attribute).filter_map(|value| str::from_utf8(value).ok());
            let names = texts.filter_map(|text| user_name::canonical(&source.full_name(text)));
            names.filter(|name| source.rule.matches(name)).min()
        };
        self.name_attributes().find_map(name_in).and_then(|name| UserName::new(name).ok())
    }

    fn identity(
        &self,
        source: &Source,
        entry: &Entry,
        groups: Result<Groups, SourceRefusal>,
    ) -> Result<Identity, SourceRefusal> {
        if is_disabled(entry) {
            return Err(SourceRefusal::Disabled);
        }
        let subject = self.subject(entry)?;
        let groups = List::new(groups?.into_names()).map_err(|_| SourceRefusal::TooManyGroups)?;
        let name = self.name(source, entry);
        Ok(Identity { subject, groups, accept: AcceptAttributes::default(), name })
    }

    fn subject(&self, entry: &Entry) -> Result<Subject, SourceRefusal> {
        let mut values = entry.values(&self.settings.subject);
        let (Some(subject), None) = (values.next(), values.next()) else {
            return Err(SourceRefusal::NoSubject);
        };
        Subject::new(subject_text(subject)).map_err(|_| SourceRefusal::NoSubject)
    }
}

/// Searches below a base, for this number of entries.
async fn run(
    connection: &mut Connection,
    source: &Source,
    (base, scope, size_limit): (&str, Scope, u32),
    filter: &[u8],
    attributes: &[&str],
) -> Result<Found, ServerError> {
    let time_limit_s = source.timeout.as_secs().max(1) as u32;
    let search = Search { base, scope, size_limit, time_limit_s, filter, attributes };
    let found = connection.search(&search).await?;
    if scope == Scope::Subtree && found.code == NO_SUCH_OBJECT {
        // The directory is being restored, or rights have changed: this says nothing about a user.
        return Err(ServerError::Answer(format!(
            "the base '{base}' of the search is not there, or the gateway may not see it: check the directory"
        )));
    }
    Ok(found)
}

/// The entry that was found, if there is one and no other.
fn exactly_one(found: Found) -> Result<Result<Entry, SourceRefusal>, ServerError> {
    let Found { mut entries, code } = found;
    match (code, entries.len()) {
        (SIZE_LIMIT_EXCEEDED, _) | (SUCCESS, 2..) => Ok(Err(SourceRefusal::SeveralUsers)),
        (SUCCESS | NO_SUCH_OBJECT, 0) => Ok(Err(SourceRefusal::UnknownUser)),
        (SUCCESS, 1) => Ok(Ok(entries.remove(0))),
        _ => Err(ServerError::Answer(format!("the search for the user failed ({code})"))),
    }
}

/// The server's verdict on the user's password.
fn bind_result(outcome: &Outcome) -> Result<Result<(), SourceRefusal>, ServerError> {
    match outcome.code {
        SUCCESS => Ok(Ok(())),
        // Active Directory gives its reason in the text.
        INVALID_CREDENTIALS
            if ["data 533", "data 701", "data 775"].iter().any(|d| outcome.text.contains(d)) =>
        {
            Ok(Err(SourceRefusal::Disabled))
        }
        INVALID_CREDENTIALS => Ok(Err(SourceRefusal::WrongPassword)),
        NO_SUCH_OBJECT => Ok(Err(SourceRefusal::UnknownUser)),
        CONSTRAINT_VIOLATION | UNWILLING_TO_PERFORM => Ok(Err(SourceRefusal::Disabled)),
        code => Err(ServerError::Answer(format!("the user's bind failed ({code}) {}", outcome.text))),
    }
}

fn is_disabled(entry: &Entry) -> bool {
    let yes = |name| entry.values(name).any(|value| value.eq_ignore_ascii_case(b"true"));
    let control = entry.values(STATES[0]).filter_map(|value| str::from_utf8(value).ok()?.parse::<u32>().ok());
    control.into_iter().any(|bits| bits & ACCOUNT_DISABLED != 0)
        || yes(STATES[1])
        || yes(STATES[2])
        || entry.values(STATES[3]).any(|value| value == LOCKED_FOR_GOOD)
}

/// A value of any form as text, different ones as different texts.
pub fn subject_text(value: &[u8]) -> String {
    match str::from_utf8(value) {
        // One that looks like the other form would be the same as another value.
        Ok(text) if !text.is_empty() && !text.starts_with(HEX) && value.iter().all(u8::is_ascii_graphic) => {
            text.to_owned()
        }
        _ => value.iter().fold(HEX.to_owned(), |text, byte| format!("{text}{byte:02x}")),
    }
}

/// The name of a group: of an entry's name its first value (`cn=staff,ou=groups` is `staff`),
/// anything else as it is.
pub fn group_name(value: &[u8]) -> Option<String> {
    let text = str::from_utf8(value).ok()?;
    let name = match text.split_once('=') {
        Some((_, rest)) if is_entry_name(text) => unescaped(rest)?,
        _ => text.to_owned(),
    };
    let is_valid = !name.is_empty() && !name.chars().any(char::is_control);
    if is_valid { Some(name) } else { None }
}

/// Whether a group is given by the name of its entry.
fn is_entry_name(text: &str) -> bool {
    let attribute = text.split_once('=').map(|(attribute, _)| attribute.trim());
    attribute.is_some_and(|name| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
}

/// The first value of a name (RFC 4514), which begins behind its `=`.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b',' | b'+' => break,
            b'\\' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let first = rest.next()?;
                match digit(first) {
                    Some(high) => bytes.push((high * 16 + digit(rest.next()?)?) as u8),
                    None => bytes.push(first),
                }
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests;
