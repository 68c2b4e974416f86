//! Why logins are refused. Clients do not learn it: the audit file has it.

use crate::access::NotAdmitted;

/// Declares the causes once, with the name of each in the log and the audit file.
macro_rules! causes {
    ($($(#[doc = $doc:literal])* $cause:ident = $name:literal;)+) => {
        /// The cause of a refusal, for the log and the audit file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Cause { $($(#[doc = $doc])* $cause,)+ }

        impl Cause {
            #[cfg(test)]
            const ALL: &'static [Self] = &[$(Self::$cause,)+];

            /// The name in the log and the audit file.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$cause => $name,)+
                }
            }
        }
    };
}

causes! {
    /// No user has that name.
    UnknownUser = "unknown-user";
    WrongPassword = "wrong-password";
    Disabled = "disabled";
    /// The user's time is over.
    Expired = "expired";
    /// The one-time code is wrong.
    WrongCode = "wrong-code";
    /// The one-time code was used before.
    ReplayedCode = "replayed-code";
    /// The password was right, and too many one-time codes have come: this one was not looked at.
    TooManyCodes = "too-many-codes";
    /// Everything was right but the one-time code or the answer to a challenge, which did not come.
    NoCode = "no-code";
    /// A client certificate is required and there was none.
    NoCertificate = "no-certificate";
    /// The client certificate is not one of this user.
    ForeignCertificate = "foreign-certificate";
    /// Too many wrong guesses; nothing was checked.
    Throttled = "throttled";
    /// Too many logins wait, or for too long; nothing was checked.
    Overloaded = "overloaded";
    /// There is no memory to check a password; nothing was checked.
    NoMemory = "no-memory";
    StoreFailed = "store-failed";
    /// The user's source can't be asked; nothing was checked.
    SourceUnavailable = "source-unavailable";
    /// The source's answer does not lead to one user.
    NoRecord = "no-record";
    TooManyGroups = "too-many-groups";
    /// A server has challenged again and again.
    TooManyRounds = "too-many-rounds";
    /// The login was not approved in time.
    NotApproved = "not-approved";
    /// The provider's answer does not prove that the login is of the user.
    NotProved = "not-proved";
    /// The user's provider asks for credentials itself; nothing was checked.
    NeedsBrowser = "needs-browser";
    /// The grant of a login in a browser is used already, too old, or for another client or user.
    GrantVoid = "grant-void";
    /// Everything was right, and no access profile is for the user.
    NoProfile = "no-profile";
    /// Everything was right, and the user's access profile requires another factor.
    MissingFactor = "missing-factor";
    /// Everything was right, and the user's access profile requires a login that is newer.
    OldLogin = "old-login";
}

impl From<NotAdmitted> for Cause {
    fn from(why: NotAdmitted) -> Self {
        match why {
            NotAdmitted::Expired => Self::Expired,
            NotAdmitted::NoProfile => Self::NoProfile,
            NotAdmitted::MissingFactor(_) => Self::MissingFactor,
            NotAdmitted::OldLogin => Self::OldLogin,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_documented() {
        let operations = include_str!("../../../../docs/OPERATIONS.md");
        let (_, table) = operations.split_once("| reason of a refusal |").unwrap();
        let (table, _) = table.split_once("\n\n").unwrap();
        let missing: Vec<&str> = Cause::ALL
            .iter()
            .map(|cause| cause.name())
            .filter(|name| !table.contains(&format!("`{name}`")))
            .collect();
        assert!(missing.is_empty(), "not in the table of OPERATIONS.md: {missing:?}");
    }
}
