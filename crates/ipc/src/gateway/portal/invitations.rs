//! Messages about invitations: links by which users choose their password and second factor.
//!
//! INVARIANT: the link's token is all that such a request proves, and nothing else can be done with
//! it.

use std::net::IpAddr;

use minicbor::{Decode, Encode};
use vpnd_proto::control::{SecretText, Text, UserName};

use crate::gateway::refusal::Refused;

/// The text of a link's last part.
pub type Invitation = SecretText<64>;

/// Asks for the user of this invitation, and a secret of one-time codes for them.
#[derive(Debug, Encode, Decode)]
pub struct OpenInvitation {
    #[n(0)]
    pub invitation: Invitation,
    #[n(1)]
    pub address: IpAddr,
    /// The name under which an app shows the codes.
    #[n(2)]
    pub issuer: Text<64>,
    /// The secret that was offered before, as it is typed.
    #[n(3)]
    pub before: Option<SecretText<64>>,
}

/// Choose this password and this secret, of which `code` is a code.
#[derive(Debug, Encode, Decode)]
pub struct AcceptInvitation {
    #[n(0)]
    pub invitation: Invitation,
    #[n(1)]
    pub address: IpAddr,
    /// Ignored for a user who has none here.
    #[n(2)]
    pub password: SecretText<1024>,
    /// The code as it was typed.
    #[n(3)]
    pub secret: SecretText<64>,
    #[n(4)]
    pub code: SecretText<16>,
}

/// The outcome of a request for an invitation.
#[derive(Debug, Encode, Decode)]
pub enum InvitationStep {
    #[n(0)]
    Open {
        #[n(0)]
        user: UserName,
        /// `otpauth://…`
        #[n(1)]
        address: SecretText<512>,
        /// To be typed.
        #[n(2)]
        secret: SecretText<64>,
        /// Whether the user has a password here, and is to choose another.
        #[n(3)]
        password: bool,
    },
    /// It is used, too old or none.
    #[n(1)]
    Over,
    #[n(2)]
    PasswordUnusable,
    #[n(3)]
    CodeWrong,
    #[n(4)]
    Refused(#[n(0)] Refused),
    #[n(5)]
    Done,
}
