//! Refusals of logins: code, text, time to wait and counter of each, in one table.
//!
//! INVARIANT: a refusal is what the client may learn. The cause, of which several look alike, stays
//! in the auth process.

use std::time::Duration;

use minicbor::{Decode, Encode};
use vpnd_config::factor::Requirement;
use vpnd_proto::control::{self, Code, Explanation};

/// Declares the refusals once: number in messages, code, counter, seconds after which to try again,
/// and the text for the user where the code's own does not say enough; `{wait_s}` in it is the time
/// to wait.
macro_rules! refusals {
    ($($(#[doc = $doc:literal])+ $refusal:ident = $number:tt, $code:ident, $counter:literal, $retry_s:expr, $text:expr;)+) => {
        /// Why a login is not let in, as far as its client may learn it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
        #[cbor(index_only)]
        pub enum Refusal { $($(#[doc = $doc])+ #[n($number)] $refusal,)+ }

        impl Refusal {
            /// Every refusal, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$refusal,)+];

            const fn row(self) -> Row {
                match self {
                    $(Self::$refusal => {
                        Row { code: Code::$code, counter: $counter, retry_s: $retry_s, text: $text }
                    })+
                }
            }
        }
    };
}

struct Row {
    code: Code,
    counter: &'static str,
    retry_s: Option<u64>,
    text: Option<&'static str>,
}

refusals! {
    /// Not let in: which of the credentials is wrong does not show.
    Credentials = 0, Credentials, "refused", None, None;
    /// Every client needs a certificate, and the one shown is not of the user that the login names.
    /// Nothing else was looked at, and whether there is such a user does not show: the certificate
    /// would be the wrong one in any case.
    Certificate = 1, Certificate, "refused", None, None;
    /// Too many wrong guesses: nothing was checked. The throttle knows when to try again.
    Throttled = 2, Throttled, "refused", None, Some("too many attempts: wait {wait_s} s");
    /// Too many wait already, its turn did not come, or there is no memory now: nothing was
    /// checked.
    Busy = 3, Busy, "busy", Some(2), None;
    /// The directory or server that knows the user can't be asked now.
    SourceUnavailable = 4, Busy, "source_unavailable", Some(30),
        Some("the directory of your university can't be reached; try again in a minute");
    /// Too many logins wait for a person already.
    WaitingFull = 5, Busy, "waiting_full", Some(30),
        Some("too many logins wait for their second factor; try again in a minute");
    /// The login was not approved in time. Final: a client that tried again by itself would bother
    /// the person again.
    NotApproved = 6, Credentials, "refused", None, Some("the login was not approved in time");
    /// The client lacks the feature challenges, so it would fail each time.
    LacksChallenges = 7, Credentials, "refused", None,
        Some("a second factor is demanded that this client can't show: it needs a newer version of vpnd");
    /// Everything was right, more than the password, and no access profile is for the user.
    NoProfile = 8, NoProfile, "no_profile", None, None;
    /// All else is right, but the user's access profile requires a one-time code in addition.
    NeedsCode = 9, Factor, "missing_factor", None,
        Some("your account needs one-time codes for this access, and has none yet; ask the administrator to set them up");
    /// All else is right, but the user's access profile requires a client certificate in addition.
    NeedsCertificate = 10, Factor, "missing_factor", None,
        Some("your account needs a client certificate for this access; ask the administrator for one, and name it in the client's profile");
    /// All else is right, but the user's access profile requires an approval on another device
    /// in addition.
    NeedsApproval = 11, Factor, "missing_factor", None,
        Some("your account needs an approval on another device for this access; ask the administrator to set that up");
    /// All else is right, but the user's access profile requires any second factor.
    NeedsFactor = 12, Factor, "missing_factor", None,
        Some("your account needs a second factor for this access, such as one-time codes; ask the administrator to set one up");
    /// The user was let in, but there is no inner address.
    NoAddress = 13, NoAddress, "no_address", None, None;
    /// The gateway is being drained: nothing was checked, so that a one-time code stays good.
    Draining = 14, Drain, "draining", None, None;
    /// The user, or the gateway, has as many sessions as may be.
    TooMany = 15, TooMany, "too_many", None, None;
    /// The gateway failed.
    Internal = 16, Internal, "refused", None, None;
    /// Everything was right, more than the password, and the user's time is over.
    Expired = 17, Disabled, "refused", None,
        Some("your account has expired; ask the person who vouches for you, or the administrator, to extend it");
    /// The user's identity provider has not said that this is the user.
    NotConfirmed = 18, Credentials, "refused", None,
        Some("your identity provider has not confirmed the login; try again");
    /// The user's identity provider asks for credentials itself, in a browser.
    NeedsBrowser = 19, Credentials, "refused", None,
        Some("accounts of this kind log in on the web page of the VPN");
    /// The identity provider has shown who it is, and the user is disabled here.
    Disabled = 20, Disabled, "refused", None, None;
    /// [`Refusal::NeedsBrowser`] for a client that can open one.
    StartInBrowser = 21, Browser, "refused", None, None;
    /// The grant of a login in a browser is used already, too old or another device's.
    GrantVoid = 22, Credentials, "refused", None,
        Some("the login in the browser has ended, or was for another device or user; connect again");
    /// No web page has an address that a client can be sent to.
    NoPages = 23, Credentials, "refused", None,
        Some("this gateway has no web page for logins: connect with user name and password, or ask the administrator");
    /// The database server with the users can't be asked now.
    StoreUnavailable = 24, Busy, "store_unavailable", Some(4),
        Some("the gateway's user database can't be reached; sessions go on, try again in a minute");
    /// The user was asked for credentials too long ago for the access profile.
    OldLogin = 25, Factor, "missing_factor", None,
        Some("your login is too old for this access: connect and log in again");
    /// The person has not answered on the web page yet, to whom the client shows a short code.
    Pending = 26, Pending, "pending", Some(5), None;
    /// The person has said no there.
    DeviceRefused = 27, Credentials, "refused", None, Some("the login was refused on the web page");
    /// The identity provider has shown who it is, with more groups than are taken.
    TooManyGroups = 28, Credentials, "refused", None,
        Some("your account is in more groups than this gateway takes; tell the administrator");
}

impl Refusal {
    /// The code on the wire, which also says whether trying again helps.
    pub const fn code(self) -> Code {
        self.row().code
    }

    /// The name of its counter. Those that no administrator has to tell apart share one.
    pub const fn counter(self) -> &'static str {
        self.row().counter
    }

    /// The name of its counter among the refusals of the portal, in coarser classes.
    pub const fn portal_counter(self) -> &'static str {
        match self {
            Self::Credentials => "login_credentials",
            Self::Throttled => "login_throttled",
            Self::Busy | Self::WaitingFull => "login_busy",
            Self::SourceUnavailable | Self::StoreUnavailable => "login_unavailable",
            Self::NotConfirmed | Self::NotApproved => "login_not_confirmed",
            Self::NoProfile
            | Self::NeedsCode
            | Self::NeedsCertificate
            | Self::NeedsApproval
            | Self::NeedsFactor
            | Self::TooManyGroups
            | Self::OldLogin
            | Self::Expired
            | Self::Disabled => "login_not_allowed",
            _ => "login_other",
        }
    }

    /// This refusal with a time to wait that is known only now.
    pub const fn retry_after_s(self, retry_after_s: Option<u64>) -> Refused {
        Refused { refusal: self, retry_after_s }
    }
}

impl From<Requirement> for Refusal {
    fn from(missing: Requirement) -> Self {
        match missing {
            Requirement::OneTimeCode => Self::NeedsCode,
            Requirement::Key => Self::NeedsCertificate,
            Requirement::Approval => Self::NeedsApproval,
            Requirement::Several => Self::NeedsFactor,
        }
    }
}

/// A refused login: why, and when to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Refused {
    #[n(0)]
    pub refusal: Refusal,
    /// When it makes sense to try again, if it is a matter of time alone.
    #[n(1)]
    pub retry_after_s: Option<u64>,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        refusal.retry_after_s(refusal.row().retry_s)
    }
}

impl Refused {
    /// The text for the user.
    fn text(self) -> Explanation {
        let wait_s = self.retry_after_s.unwrap_or_default().to_string();
        let text = self.refusal.row().text.unwrap_or(self.refusal.code().explanation());
        Explanation::cut(&text.replace("{wait_s}", &wait_s))
    }
}

/// The message for the client.
impl From<Refused> for control::Refused {
    fn from(refused: Refused) -> Self {
        let wait = refused.retry_after_s.map(Duration::from_secs);
        Self {
            code: refused.refusal.code(),
            text: refused.text(),
            retry_after_ms: wait.map(|wait| u32::try_from(wait.as_millis()).unwrap_or(u32::MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn message(refusal: Refusal) -> control::Refused {
        control::Refused::from(Refused::from(refusal))
    }

    #[test]
    fn each_refusal_has_its_own_text_and_a_documented_counter() {
        let texts: BTreeSet<String> =
            Refusal::ALL.iter().map(|refusal| message(*refusal).text.to_string()).collect();
        assert_eq!(texts.len(), Refusal::ALL.len(), "{texts:?}");
        let operations = include_str!("../../../../docs/OPERATIONS.md");
        let row = operations.lines().find(|line| line.starts_with("| `vpnd_logins_total`")).unwrap();
        for refusal in Refusal::ALL {
            let (code, counter) = (refusal.code(), refusal.counter());
            assert!(Code::KNOWN.contains(&code), "{refusal:?}: no code of PROTOCOL §14");
            assert!(row.contains(&format!("`{counter}`")), "{refusal:?}: {counter} is not in OPERATIONS.md");
            let longest = Explanation::cut(&"x".repeat(1_024)).len();
            assert!(message(*refusal).text.len() < longest, "{refusal:?} does not fit");
            let number = minicbor::to_vec(refusal).unwrap();
            assert_eq!(minicbor::decode::<Refusal>(&number).unwrap(), *refusal);
            if refusal.code().is_final() {
                assert_eq!(message(*refusal).retry_after_ms, None, "{refusal:?} is final");
            }
        }
    }

    #[test]
    fn counters_of_the_portal_are_documented() {
        let operations = include_str!("../../../../docs/OPERATIONS.md");
        let row = operations.lines().find(|line| line.starts_with("| `vpnd_portal_refusals_total`")).unwrap();
        for refusal in Refusal::ALL {
            let counter = refusal.portal_counter();
            assert!(row.contains(&format!("`{counter}`")), "{refusal:?}: {counter} is not in OPERATIONS.md");
        }
    }

    #[test]
    fn a_wait_is_stated_in_text_and_field() {
        let refused = control::Refused::from(Refusal::Throttled.retry_after_s(Some(17)));
        assert_eq!(&*refused.text, "too many attempts: wait 17 s");
        assert_eq!(refused.retry_after_ms, Some(17_000));
        let refused = control::Refused::from(Refusal::Throttled.retry_after_s(Some(u64::MAX)));
        assert_eq!(refused.retry_after_ms, Some(u32::MAX));
    }
}
