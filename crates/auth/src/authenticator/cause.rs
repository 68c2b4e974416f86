//! Why logins are refused. Clients do not learn it: the audit file has it.

use crate::access::NotAdmitted;

/// The cause of a refusal, for the audit file and counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// No user has that name.
    UnknownUser,
    WrongPassword,
    Disabled,
    /// The user's time is over.
    Expired,
    /// The one-time code is wrong.
    WrongCode,
    /// The one-time code was used before.
    ReplayedCode,
    /// Everything was right but the one-time code or the answer to a challenge, which did not come.
    NoCode,
    /// A client certificate is required and there was none.
    NoCertificate,
    /// The client certificate is not one of this user.
    ForeignCertificate,
    /// Too many wrong guesses; nothing was checked.
    Throttled,
    /// Too many logins wait, or for too long; nothing was checked.
    Overloaded,
    /// There is no memory to check a password; nothing was checked.
    NoMemory,
    StoreFailed,
    /// The user's source can't be asked; nothing was checked.
    SourceUnavailable,
    /// The source's answer does not lead to one user.
    NoRecord,
    TooManyGroups,
    /// A server has challenged again and again.
    TooManyRounds,
    /// The login was not approved in time.
    NotApproved,
    /// Everything was right, and no access profile is for the user.
    NoProfile,
    /// Everything was right, and the user's access profile requires another factor.
    MissingFactor,
}

impl From<NotAdmitted> for Cause {
    fn from(why: NotAdmitted) -> Self {
        match why {
            NotAdmitted::NoProfile => Self::NoProfile,
            NotAdmitted::MissingFactor(_) => Self::MissingFactor,
        }
    }
}

impl Cause {
    /// The name in the audit file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::UnknownUser => "unknown-user",
            Self::WrongPassword => "wrong-password",
            Self::Disabled => "disabled",
            Self::Expired => "expired",
            Self::WrongCode => "wrong-code",
            Self::ReplayedCode => "replayed-code",
            Self::NoCode => "no-code",
            Self::NoCertificate => "no-certificate",
            Self::ForeignCertificate => "foreign-certificate",
            Self::Throttled => "throttled",
            Self::Overloaded => "overloaded",
            Self::NoMemory => "no-memory",
            Self::StoreFailed => "store-failed",
            Self::SourceUnavailable => "source-unavailable",
            Self::NoRecord => "no-record",
            Self::TooManyGroups => "too-many-groups",
            Self::TooManyRounds => "too-many-rounds",
            Self::NotApproved => "not-approved",
            Self::NoProfile => "no-profile",
            Self::MissingFactor => "missing-factor",
        }
    }
}
