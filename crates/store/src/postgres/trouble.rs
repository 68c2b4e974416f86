//! Failures of a database server: what PostgreSQL, TLS and the network report, and what they mean
//! to people.

use std::error::Error as _;
use std::io;

use tokio_postgres::error::SqlState;

use crate::StoreError;

/// Why a database can't be used, as the end of a sentence that begins with its name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    #[error("can't be reached ({0}): sessions go on, new logins wait for it")]
    Unreachable(String),
    #[error("refuses the user of [store]: {0}; check 'user', and 'password_file' or 'certificate' and 'key'")]
    Credentials(String),
    #[error("can't be used with the files of [store]: {0}")]
    Files(String),
    #[error("has no such database: {0}; check 'database' in [store], or make it with 'createdb'")]
    NoDatabase(String),
    #[error("shows a TLS certificate that is not trusted: {0}; check 'ca' and 'server_name' in [store]")]
    Untrusted(String),
    #[error("offers no TLS, without which vpnd uses a Unix socket alone: switch 'ssl' on in postgresql.conf")]
    NoTls,
    #[error("is a read-only standby: name the primary in 'hosts' of [store]")]
    Standby,
    #[error(
        "was left behind by a server that took over from it (timeline {found} after {known}): name that one in \
         'hosts' of [store]; if you still want this one, remove {file}"
    )]
    LeftBehind { found: u32, known: u32, file: String },
    #[error(
        "has no connection left: raise 'max_connections' there, or that role's limit (a gateway takes 4)"
    )]
    ConnectionsUsedUp,
    #[error(
        "belongs to the gateway '{0}': two gateways must not share a database, unless both have the same 'id' in \
             [fleet]; if that one is gone for good, run 'vpnd store adopt --from {0}' here"
    )]
    Foreign(String),
    #[error(
        "belongs to the fleet '{found}', and 'id' in [fleet] here is '{ours}': give this gateway that id, or a separate \
             database"
    )]
    OtherFleet { found: String, ours: String },
    #[error(
        "belongs to the fleet '{0}', and this gateway is none of it yet: with 'id' = \"{0}\" in [fleet] it joins at \
             its first start"
    )]
    NotJoined(String),
    #[error("has a gateway of the name '{0}' already: choose another 'name' in [fleet]")]
    NameTaken(String),
    #[error(
        "has a clock that is {apart_s} s apart from this machine's: have both synchronised (chrony, systemd-timesyncd), \
             then restart the gateway"
    )]
    ClockApart { apart_s: u64 },
    #[error(
        "is in use by the running gateway '{0}': two gateways must not share a database; stop the other one, \
             which may be a copy of this machine"
    )]
    InUse(String),
    #[error("has no tables of vpnd yet: 'vpnd init' or 'vpnd store migrate --to postgres' makes them")]
    Empty,
    #[error(
        "has format {found}, of an earlier vpnd, and this one reads {known} alone; install the vpnd that made it"
    )]
    Older { found: u64, known: u64 },
    #[error("has format {found}, this vpnd supports {known}; install the newer vpnd that made it")]
    Newer { found: u64, known: u64 },
    /// Only logged.
    #[error(
        "lacks changes that it had acknowledged, change {0} of this gateway among them: an older backup was restored, \
             or a standby took over that did not have them; sessions that it lacks end, and what was changed since \
             (users, passwords, devices) has to be changed again"
    )]
    Lost(u64),
    #[error(
        "was restored, or another server has taken over: new logins wait {wait_s} s for all gateways to end the sessions \
             that it lacks"
    )]
    Settling { wait_s: u64 },
    #[error(
        "did not say whether the last change was made, and can't be asked now; look before you repeat it"
    )]
    Uncertain,
    #[error("has no space left; the change was not made. Free some space there and try again")]
    Full,
    #[error("is busy with another change; try again")]
    Busy,
    #[error("is out of order ({0}): sessions go on, new logins wait for it")]
    OutOfOrder(String),
    /// It is the change that can't be made, or this program that is wrong.
    #[error("failed: {0}")]
    Failed(String),
    /// In words, from the process that has used it.
    #[error("{0}")]
    Told(String),
    /// So, of one that may be there again in a while.
    #[error("{0}")]
    ToldForNow(String),
}

impl Trouble {
    /// Whether sessions go on meanwhile: what is wrong with a database says nothing against them,
    /// unless they are another gateway's by now.
    #[must_use]
    pub fn is_for_now(&self) -> bool {
        !matches!(
            self,
            Self::Foreign(_)
                | Self::InUse(_)
                | Self::OtherFleet { .. }
                | Self::NotJoined(_)
                | Self::NameTaken(_)
                | Self::Failed(_)
                | Self::Told(_)
        )
    }
}

/// A statement that a server did not carry out.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// The connection is of no use any more.
    #[error("{0}")]
    Lost(String),
    /// The connection goes on, without its transaction.
    #[error("{message}")]
    Refused { code: String, message: String },
    #[error("{0}")]
    Trouble(Trouble),
}

impl From<Trouble> for Fault {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(refusal) if !ends_connection(refusal.code()) => Self::Refused {
                code: refusal.code().code().to_owned(),
                message: vpnd_sys::text::plain(refusal.message()),
            },
            Some(refusal) => Self::Lost(vpnd_sys::text::plain(refusal.message())),
            None => Self::Lost(in_words(&error)),
        }
    }
}

/// Classes 08 (connection) and 57P (operator intervention): the server ends the connection.
fn ends_connection(code: &SqlState) -> bool {
    code.code().starts_with("08")
        || code.code().starts_with("57P")
        || *code == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT
}

impl Fault {
    pub(crate) fn into_trouble(self) -> Trouble {
        match self {
            Self::Lost(why) => Trouble::Unreachable(why),
            Self::Trouble(trouble) => trouble,
            Self::Refused { code, message } => match code.as_str() {
                "28P01" | "28000" => Trouble::Credentials(message),
                "3D000" => Trouble::NoDatabase(message),
                "53300" => Trouble::ConnectionsUsedUp,
                "53100" => Trouble::Full,
                "55P03" | "57014" | "40001" | "40P01" => Trouble::Busy,
                "25006" => Trouble::Standby,
                // Data that does not fit; anything else is the server's matter.
                code if code.starts_with("22") || code.starts_with("23") => Trouble::Failed(message),
                _ => Trouble::OutOfOrder(message),
            },
        }
    }
}

/// The trouble of a connection that was not made.
pub(super) fn of_connection(error: tokio_postgres::Error, is_tls: bool) -> Trouble {
    if error.as_db_error().is_some() {
        return Fault::from(error).into_trouble();
    }
    let cause = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    match cause {
        // rustls reports so whatever it finds wrong.
        Some(cause) if is_tls && cause.kind() == io::ErrorKind::InvalidData => {
            Trouble::Untrusted(cause.to_string())
        }
        _ if in_words(&error).contains("does not support TLS") => Trouble::NoTls,
        _ if in_words(&error).contains("password missing") => {
            Trouble::Credentials("it asks for a password, and none is configured".to_owned())
        }
        _ => Trouble::Unreachable(in_words(&error)),
    }
}

/// The trouble of a database of which none of the hosts can be used: one that may be the primary
/// and can't be reached tells more than its standbys.
pub(super) fn of_hosts(found: Vec<(String, Trouble)>) -> Trouble {
    let is_away = |(_, trouble): &(String, Trouble)| matches!(trouble, Trouble::Unreachable(_));
    if found.iter().any(is_away) {
        let words = found.into_iter().filter_map(|(host, trouble)| match trouble {
            Trouble::Unreachable(why) => Some(format!("{host}: {why}")),
            Trouble::Standby => None,
            trouble => Some(format!("{host} {trouble}")),
        });
        return Trouble::Unreachable(words.collect::<Vec<_>>().join("; "));
    }
    let mut troubles = found.into_iter().map(|(_, trouble)| trouble);
    let first = troubles.next().unwrap_or(Trouble::Unreachable("there is no host".to_owned()));
    if first == Trouble::Standby { troubles.find(|other| *other != first).unwrap_or(first) } else { first }
}

fn in_words(error: &tokio_postgres::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| source.to_string())
}

/// The trouble of the database of this name, as an error of the store.
pub(super) fn of_store(database: &str, trouble: Trouble) -> StoreError {
    StoreError::Database { database: database.to_owned(), trouble }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_helpful_error_of_several_hosts_is_reported() {
        let away = || Trouble::Unreachable("refused".to_owned());
        let login = || Trouble::Credentials("no entry".to_owned());
        let combined = |troubles: &[Trouble]| {
            of_hosts(
                troubles.iter().zip('a'..).map(|(trouble, host)| (host.into(), trouble.clone())).collect(),
            )
        };
        assert_eq!(combined(&[login()]), login());
        let text = |troubles: &[Trouble]| combined(troubles).to_string();
        assert!(text(&[away(), Trouble::Standby]).starts_with("can't be reached (a: refused)"));
        assert!(text(&[away(), login()]).starts_with("can't be reached (a: refused; b refuses the user"));
        assert_eq!(combined(&[Trouble::Standby, login()]), login());
        assert_eq!(combined(&[Trouble::Standby, Trouble::Standby]), Trouble::Standby);
    }

    #[test]
    fn only_another_gateway_and_what_can_not_be_kept_end_sessions() {
        let refused = |code: &str| {
            Fault::Refused { code: code.to_owned(), message: String::new() }.into_trouble().is_for_now()
        };
        for code in ["28P01", "28000", "3D000", "53100", "53200", "58030", "XX001", "42501", "42P01", "57014"]
        {
            assert!(refused(code), "{code}");
        }
        assert!(!refused("22003") && !refused("23505"), "it would wait for ever, and others behind it");
        assert!(
            !Trouble::InUse("gw1".to_owned()).is_for_now()
                && !Trouble::Foreign("gw1".to_owned()).is_for_now()
        );
        assert!(Trouble::NoTls.is_for_now() && Trouble::Newer { found: 4, known: 3 }.is_for_now());
    }
}
