//! Messages between the auth process and the portal process.
//!
//! INVARIANT: the portal names no user but in a login, with a password, or as what a person at the
//! help desk has typed, and no right at all. Every other request has the token of one browser, and
//! the auth process decides by it whose data are shown or changed; a device that a request names is
//! one of that user's or none.

pub mod connect;
pub mod desk;
pub mod devices;
pub mod invitations;
pub mod refusals;
pub mod turns;
pub mod visits;

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use minicbor::bytes::{ByteArray, ByteVec};
use minicbor::{Decode, Encode};
use vpnd_proto::control::{ChallengeAnswer, ChallengeKind, ChallengeText, List, SecretText, Text, UserName};

use super::acme::Proofs;
pub use super::auth::PortalHealth;
use super::auth::SourceName;
pub use super::idp::{Code, LogoutToken, Url};
use super::refusal::Refused;
use crate::messages::{Common, SecretBytes};
use connect::{AnswerToClient, CodeEnd, ConnectEnd, ConnectPage, ConnectQuery, TypedCode};
use desk::sessions::{ListSessions, ListedSessions};
use desk::{
    AskWhois, ChangeUser, DeskQuery, DeskState, ExportAudit, ExportedPart, FindUsers, FoundUsers, Made,
    Replied, ShowUser, ShownUser, Whois,
};
use devices::{
    AddDevice, DeviceChange, DevicesQuery, OwnDevices, OwnProfile, ProfileQuery, RemoveDevice, RenewDevice,
};
use invitations::{AcceptInvitation, InvitationStep, OpenInvitation};
use refusals::PortalRefusals;
use turns::{SourceNumber, TurnQuery};
use visits::{BrowserKind, EndVisit, MAX_VISITS, OwnVisit};

/// The longest frame in either direction, bytes.
pub const MAX_FRAME: usize = 160 << 10;
/// Sessions of a user that are shown, at most.
pub const MAX_SESSIONS: usize = 256;
/// Providers at most.
pub const MAX_PROVIDERS: usize = 32;

/// The portal's first message; with descriptors: its end of the channel to the auth process, and
/// its listening sockets. No other process is given its key, and it is given no other key.
#[derive(Clone, Debug, Encode, Decode)]
pub struct PortalLaunch {
    #[n(0)]
    pub common: Common,
    /// PEM, the portal's own certificate first; absent, and so is the key, until one was ordered.
    #[n(1)]
    pub chain: Option<ByteVec>,
    #[n(2)]
    pub key: Option<SecretBytes>,
    /// The name of the service on each page.
    #[n(3)]
    pub name: Text<64>,
    #[n(4)]
    pub logo: Option<Logo>,
    /// Where users may log in besides, in the order of the buttons.
    #[n(5)]
    pub providers: List<Provider, MAX_PROVIDERS>,
    /// Relays at the same time; 0 where there are none.
    #[cbor(n(6), default)]
    pub relays: u32,
    /// The answers to an authority's challenges, while a certificate is ordered.
    #[cbor(n(7), default)]
    pub proofs: Proofs,
    /// Whether browsers are to reach hosts below the portal's name by TLS alone, too.
    #[cbor(n(8), default)]
    pub hsts_subdomains: bool,
}

impl PortalLaunch {
    /// Its certificate, if it has one.
    #[must_use]
    pub fn certificate(&self) -> Option<PortalCertificate> {
        Some(PortalCertificate { chain: self.chain.clone()?, key: self.key.clone()? })
    }

    /// This message with another certificate, or without one.
    #[must_use]
    pub fn with(self, certificate: Option<PortalCertificate>) -> Self {
        let (chain, key) = certificate.map(|PortalCertificate { chain, key }| (chain, key)).unzip();
        Self { chain, key, ..self }
    }
}

/// The portal's certificate with its key.
#[derive(Clone, Debug, Encode, Decode)]
pub struct PortalCertificate {
    /// PEM, the portal's own certificate first.
    #[n(0)]
    pub chain: ByteVec,
    /// PEM.
    #[n(1)]
    pub key: SecretBytes,
}

/// An OpenID provider, as the login page shows it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Provider {
    #[n(0)]
    pub source: SourceName,
    /// On its button.
    #[n(1)]
    pub label: Text<64>,
}

/// An image that is shown on each page.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Logo {
    /// Its media type.
    #[n(0)]
    pub media_type: Text<32>,
    #[n(1)]
    pub bytes: ByteVec,
}

/// Portal → parent, once it is prepared.
#[derive(Debug, Encode, Decode)]
pub enum FromPortal {
    /// The child failed, and why. The number is that of each child's first report.
    #[n(2)]
    Failed(#[n(0)] String),
    /// A client's TCP connection is to carry datagrams: make a relay's socket. Answered by
    /// [`ToPortal::Relay`] or [`ToPortal::NoRelay`].
    #[n(3)]
    Relay {
        /// Never the same twice.
        #[n(0)]
        number: u64,
        /// The client's end of the TCP connection.
        #[n(1)]
        client: SocketAddr,
    },
    /// A relay is over. Not answered.
    #[n(4)]
    RelayOver {
        #[n(0)]
        number: u64,
        /// Datagrams to the client that found no room.
        #[n(1)]
        dropped: u64,
    },
    /// It answers challenges by the [`ToPortal::Proofs`] that it was sent last.
    #[n(5)]
    Answering,
}

/// Parent → portal, once it is prepared.
#[derive(Debug, Encode, Decode)]
pub enum ToPortal {
    /// With the socket of the relay of this number, which is connected to the gateway's port.
    #[n(0)]
    Relay(#[n(0)] u64),
    /// There is no socket for the relay of this number.
    #[n(1)]
    NoRelay(#[n(0)] u64),
    /// Present this certificate in all handshakes from now on.
    #[n(2)]
    Certificate(#[n(0)] PortalCertificate),
    /// Answer an authority's challenges by these, and by none that came before. Answered by
    /// [`FromPortal::Answering`].
    #[n(3)]
    Proofs(#[n(0)] Proofs),
}

crate::requests! {
    /// A request of the portal.
    pub PortalRequest {
        LogIn = 0, PortalLogin => LoginStep;
        Answer = 1, PortalAnswer => LoginStep;
        Approval = 2, PortalApproval => Option<LoginStep>;
        Overview = 3, OverviewQuery => Option<Overview>;
        EndSession = 4, EndSession => Change;
        LogOut = 5, LogOut => ();
        ChangePassword = 6, ChangePassword => OwnChange;
        OfferCodes = 7, OfferCodes => CodesOffer;
        TakeCodes = 8, TakeCodes => OwnChange;
        Start = 9, StartAtProvider => ProviderStart;
        Finish = 10, FinishAtProvider => LoginStep;
        Devices = 11, DevicesQuery => Option<OwnDevices>;
        RemoveDevice = 12, RemoveDevice => Change;
        RenewDevice = 13, RenewDevice => DeviceChange;
        AddDevice = 14, AddDevice => DeviceChange;
        EndVisit = 15, EndVisit => OwnChange;
        Profile = 16, ProfileQuery => OwnProfile;
        Turn = 17, TurnQuery => SourceNumber;
        RemoveCodes = 18, RemoveCodes => OwnChange;
        Desk = 40, DeskQuery => Replied<DeskState>;
        FindUsers = 41, FindUsers => Replied<FoundUsers>;
        ShowUser = 42, ShowUser => Replied<ShownUser>;
        ChangeUser = 43, ChangeUser => Replied<Option<Made>>;
        Whois = 44, AskWhois => Replied<Whois>;
        ListSessions = 47, ListSessions => Replied<ListedSessions>;
        ExportAudit = 48, ExportAudit => Replied<ExportedPart>;
        OpenInvitation = 45, OpenInvitation => InvitationStep;
        AcceptInvitation = 46, AcceptInvitation => InvitationStep;
        Connect = 32, ConnectQuery => ConnectPage;
        AnswerToClient = 33, AnswerToClient => ConnectEnd;
        LoggedOut = 34, LoggedOutAtProvider => bool;
        TypeCode = 35, TypedCode => CodeEnd;
        Refused = 49, PortalRefusals => ();
    }
}

/// A secret by which a browser is recognised: of a login that waits for a person, or of a visit.
#[derive(Clone, PartialEq, Eq, Encode, Decode)]
pub struct Token(#[n(0)] pub ByteArray<32>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(<secret>)")
    }
}

/// The browser that a request is from.
#[derive(Clone, Debug, Encode, Decode)]
pub struct Browser {
    #[n(0)]
    pub token: Token,
    #[n(1)]
    pub address: IpAddr,
    /// The browser's own statement.
    #[cbor(n(2), default)]
    pub kind: BrowserKind,
}

/// Credentials that a person has typed.
#[derive(Debug, Encode, Decode)]
pub struct PortalLogin {
    #[n(0)]
    pub user: UserName,
    #[n(1)]
    pub password: SecretText<1024>,
    #[n(2)]
    pub address: IpAddr,
}

/// A browser begins a login at this provider.
#[derive(Debug, Encode, Decode)]
pub struct StartAtProvider {
    #[n(0)]
    pub source: SourceName,
    #[n(1)]
    pub address: IpAddr,
    /// Whether the provider is to ask for credentials if it has not just done so.
    #[n(2)]
    pub again: bool,
    /// Whether the person goes there although the device may not reach it.
    #[n(3)]
    pub anyway: bool,
}

/// Where the login goes on.
#[derive(Debug, Encode, Decode)]
pub enum ProviderStart {
    /// At this address, for the browser that shows the token when it comes back.
    #[n(0)]
    Go {
        #[n(0)]
        url: Url,
        #[n(1)]
        token: Token,
    },
    #[n(1)]
    Refused(#[n(0)] Refused),
    /// The browser is on a device whose session is over, which may reach these pages alone.
    #[n(2)]
    Walled,
}

/// The browser that began a login at a provider has come back.
#[derive(Debug, Encode, Decode)]
pub struct FinishAtProvider {
    #[n(0)]
    pub source: SourceName,
    #[n(1)]
    pub browser: Browser,
    /// The state as the browser sent it.
    #[n(2)]
    pub state: Text<64>,
    /// `None` if the provider has refused the login.
    #[n(3)]
    pub code: Option<Code>,
    #[n(4)]
    pub issuer: Option<Text<512>>,
}

/// A provider says that a user has logged out there. The reply is whether it has proved that.
#[derive(Debug, Encode, Decode)]
pub struct LoggedOutAtProvider {
    #[n(0)]
    pub source: SourceName,
    #[n(1)]
    pub token: LogoutToken,
    #[n(2)]
    pub address: IpAddr,
}

/// A person's input for the login of this browser: a one-time code, or the answer to a
/// challenge.
#[derive(Debug, Encode, Decode)]
pub struct PortalAnswer {
    #[n(0)]
    pub browser: Browser,
    #[n(1)]
    pub answer: ChallengeAnswer,
}

/// Whether the login of this browser is approved by now. The reply comes within moments: `None` if
/// the server still waits.
#[derive(Debug, Encode, Decode)]
pub struct PortalApproval(#[n(0)] pub Browser);

/// Asks for the data of this browser's user; no reply if it has none.
#[derive(Debug, Encode, Decode)]
pub struct OverviewQuery(#[n(0)] pub Browser);

/// End the session of this device of the browser's user.
#[derive(Debug, Encode, Decode)]
pub struct EndSession {
    #[n(0)]
    pub browser: Browser,
    #[n(1)]
    pub device: ByteArray<16>,
}

/// The visit or login of this browser is over.
#[derive(Debug, Encode, Decode)]
pub struct LogOut(#[n(0)] pub Browser);

/// Give the browser's user another password.
#[derive(Debug, Encode, Decode)]
pub struct ChangePassword {
    #[n(0)]
    pub browser: Browser,
    #[n(1)]
    pub present: SecretText<1024>,
    #[n(2)]
    pub new: SecretText<1024>,
}

/// Offer the browser's user a secret of one-time codes, the one that was offered last if it was not
/// taken.
#[derive(Debug, Encode, Decode)]
pub struct OfferCodes {
    #[n(0)]
    pub browser: Browser,
    /// The name under which an app shows the codes.
    #[n(1)]
    pub issuer: Text<64>,
}

/// Use the secret that was offered from now on: this is a code of it.
#[derive(Debug, Encode, Decode)]
pub struct TakeCodes {
    #[n(0)]
    pub browser: Browser,
    #[n(1)]
    pub code: SecretText<16>,
}

/// Ask the browser's user for one-time codes no longer.
#[derive(Debug, Encode, Decode)]
pub struct RemoveCodes(#[n(0)] pub Browser);

/// A secret of one-time codes, in both forms that apps take.
#[derive(Debug, Encode, Decode)]
pub enum CodesOffer {
    #[n(0)]
    Offer {
        /// `otpauth://…`
        #[n(0)]
        address: SecretText<512>,
        /// To be typed.
        #[n(1)]
        secret: SecretText<64>,
        /// Whether the user has codes and may do without.
        #[n(2)]
        removable: bool,
    },
    #[n(1)]
    Not(#[n(0)] OwnChange),
}

/// The outcome of a change of the user's own credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum OwnChange {
    #[n(0)]
    Done,
    /// The browser has no visit.
    #[n(1)]
    NoVisit,
    /// The login is too old for this.
    #[n(2)]
    LogInAgain,
    /// The user's source or access profile does not permit it.
    #[n(3)]
    NotPermitted,
    /// A person may not choose this password, or the code is none of the secret.
    #[n(4)]
    Unusable,
    #[n(5)]
    Refused(#[n(0)] Refused),
}

/// The decision about a login, or its next step.
#[derive(Debug, Encode, Decode)]
pub enum LoginStep {
    /// With the token of the visit.
    #[n(0)]
    LoggedIn(#[n(0)] Token),
    /// With the token of the login, which goes on by [`PortalAnswer`], or [`PortalApproval`] if it
    /// is a push. Without a text it is a one-time code.
    #[n(1)]
    Demand {
        #[n(0)]
        token: Token,
        #[n(1)]
        kind: ChallengeKind,
        #[n(2)]
        text: Option<ChallengeText>,
    },
    #[n(2)]
    Refused(#[n(0)] Refused),
}

/// A user's own state.
#[derive(Clone, Debug, Encode, Decode)]
pub struct Overview {
    #[n(0)]
    pub user: UserName,
    #[n(1)]
    pub source: SourceName,
    /// The latest end of the visit, seconds from now.
    #[n(2)]
    pub left_s: u64,
    #[n(3)]
    pub sessions: List<OwnSession, MAX_SESSIONS>,
    /// Whether the user has one-time codes; `None` if the user's source does not let users set them
    /// up.
    #[n(4)]
    pub codes: Option<bool>,
    /// Whether the pages of the help desk are open to the user here.
    #[n(5)]
    pub desk: bool,
    /// Where the user is logged in to these pages, the newest first.
    #[n(6)]
    pub visits: List<OwnVisit, MAX_VISITS>,
    /// Whether the user's password is changed here.
    #[n(7)]
    pub password: bool,
}

/// A session of the user who looks.
#[derive(Clone, Debug, Encode, Decode)]
pub struct OwnSession {
    #[n(0)]
    pub device: ByteArray<16>,
    /// Its age, seconds.
    #[n(1)]
    pub age_s: u64,
    /// Inner addresses.
    #[n(2)]
    pub addresses: List<IpAddr, 2>,
    /// Where the client was heard from last, if that is known.
    #[n(3)]
    pub from: Option<IpAddr>,
}

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Change {
    #[n(0)]
    Done,
    /// The user has nothing of that name.
    #[n(1)]
    NotThere,
    /// The browser has no visit.
    #[n(2)]
    NoVisit,
}

#[cfg(test)]
mod tests {
    use super::*;
    use vpnd_sys::logging::LogFormat;
    use vpnd_sys::sandbox::SandboxMode;

    #[test]
    fn a_launch_by_a_parent_that_knows_no_relays_and_no_proofs_is_understood() {
        let common = Common::new("info", LogFormat::Text, SandboxMode::On, None);
        let common = (&common.log_filter, false, common.sandbox, &common.identity, &common.clock);
        let chain = Some(ByteVec::from(b"chain".to_vec()));
        let providers = vec![Provider { source: SourceName::cut("sso"), label: Text::cut("The University") }];
        let providers: List<_, MAX_PROVIDERS> = List::new(providers).unwrap();
        let of_0_1 = (common, &chain, None::<SecretBytes>, "VPN", None::<Logo>, &providers);
        let read: PortalLaunch = minicbor::decode(&minicbor::to_vec(of_0_1).unwrap()).unwrap();
        assert_eq!((&*read.name, read.chain, read.providers), ("VPN", chain, providers));
        assert!(read.relays == 0 && read.proofs.is_empty() && read.logo.is_none());
    }
}
