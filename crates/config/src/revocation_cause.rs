//! Why rights were taken away.

use std::fmt;

use minicbor::{Decode, Encode};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum RevocationCause {
    #[n(0)]
    Disabled,
    #[n(1)]
    Removed,
    /// The user has a new password.
    #[n(2)]
    Password,
    /// A client certificate of the user was revoked.
    #[n(3)]
    Certificate,
    /// The user's time is over.
    #[n(4)]
    Expired,
    /// The user's source has another login name for them.
    #[n(5)]
    Renamed,
    /// The user is in other groups. Sessions go on, by the rules for these.
    #[n(6)]
    Groups,
    /// One of the user's devices was removed: its sessions end.
    #[n(7)]
    Device,
    /// The user's source has no such user any more, or has disabled them.
    #[n(8)]
    Source,
    /// The user's source could not be asked for longer than it may take.
    #[n(9)]
    Unconfirmed,
    /// A server of the user's source has ended the sessions.
    #[n(10)]
    Disconnected,
    /// The user has ended the session on a page of the portal.
    #[n(11)]
    Portal,
    /// An administrator or the help desk has ended the sessions on a page of the portal.
    #[n(12)]
    Kicked,
    /// The groups of a machine have no access profile for machines. Not stored: what is, is the
    /// change of groups.
    #[n(13)]
    NoProfile,
}

impl fmt::Display for RevocationCause {
    /// The explanation that the user's clients get.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disabled => "this user was disabled",
            Self::Removed => "this user was removed",
            Self::Password => "the password was changed; log in again",
            Self::Certificate => "a certificate of this user was revoked; log in again with a good one",
            Self::Expired => "this account has expired",
            Self::Renamed => "this user has another name now; log in again",
            Self::Groups => "the groups of this user were changed",
            Self::NoProfile => "no access profile for machines has this machine any more",
            Self::Device => "this device was removed; log in again",
            Self::Source => "this account is gone or disabled in its directory",
            Self::Portal => "its user has ended this session on the web page; log in again",
            Self::Kicked => "an administrator has ended the session; log in again",
            Self::Disconnected => "the server of this account has ended the session; log in again",
            Self::Unconfirmed => {
                "the directory of this account could not be asked for too long; log in again"
            }
        })
    }
}
