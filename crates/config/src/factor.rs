//! Factors of authentication by the names of RFC 8176 (`amr`): which ones a login has proved, and
//! which ones an access profile requires.
//!
//! INVARIANT: a factor that this version does not know counts for nothing.

use std::fmt;
use std::str::FromStr;

use minicbor::{Decode, Encode};

/// Factors that a login has proved.
#[derive(Clone, Copy, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(transparent)]
pub struct Factors(u8);

/// The names of the factors, by their bits.
const NAMES: [&str; 5] = ["pwd", "otp", "swk", "mca", "mfa"];

/// A demand of an access profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Requirement {
    /// `otp`: a one-time code.
    #[n(0)]
    OneTimeCode,
    /// `swk`: the key of a client certificate.
    #[n(1)]
    Key,
    /// `mca`: an approval on another device.
    #[n(2)]
    Approval,
    /// `mfa`: any of these besides the password.
    #[n(3)]
    Several,
}

impl Factors {
    pub const PASSWORD: Self = Self(1);
    pub const ONE_TIME_CODE: Self = Self(2);
    pub const KEY: Self = Self(4);
    pub const APPROVAL: Self = Self(8);
    /// Several, of which it is not known which ones.
    pub const SEVERAL: Self = Self(16);

    /// These and those.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// These but for those.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// Those of these that a source of users can have checked.
    #[must_use]
    pub const fn checked_elsewhere(self) -> Self {
        Self(self.0 & (Self::ONE_TIME_CODE.0 | Self::APPROVAL.0 | Self::SEVERAL.0))
    }

    /// Whether anything besides the password is among them.
    #[must_use]
    pub const fn has_second(self) -> bool {
        self.0 & !Self::PASSWORD.0 != 0
    }

    /// The first of these requirements that is not met.
    #[must_use]
    pub fn missing(self, required: &[Requirement]) -> Option<Requirement> {
        required.iter().copied().find(|requirement| self.0 & requirement.factors().0 == 0)
    }
}

/// The names, with spaces between them, as the store has them.
impl fmt::Display for Factors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = (0..).zip(NAMES).filter(|(bit, _)| self.0 & (1 << bit) != 0);
        f.write_str(&names.map(|(_, name)| name).collect::<Vec<_>>().join(" "))
    }
}

impl fmt::Debug for Factors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

/// The factors of this text that are known.
impl From<&str> for Factors {
    fn from(names: &str) -> Self {
        let known =
            |name: &str| (0..).zip(NAMES).find(|(_, known)| *known == name).map(|(bit, _)| Self(1 << bit));
        names.split(' ').filter_map(known).fold(Self::default(), Self::and)
    }
}

impl Requirement {
    /// Factors, any of which meets it.
    fn factors(self) -> Factors {
        match self {
            Self::OneTimeCode => Factors::ONE_TIME_CODE,
            Self::Key => Factors::KEY,
            Self::Approval => Factors::APPROVAL,
            Self::Several => {
                Factors::ONE_TIME_CODE.and(Factors::KEY).and(Factors::APPROVAL).and(Factors::SEVERAL)
            }
        }
    }
}

impl FromStr for Requirement {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        match name {
            "otp" => Ok(Self::OneTimeCode),
            "swk" => Ok(Self::Key),
            "mca" => Ok(Self::Approval),
            "mfa" => Ok(Self::Several),
            _ => Err(()),
        }
    }
}

/// A factor that a source of users can have checked, as an administrator names it; the others are
/// checked by the gateway alone.
pub struct CheckedElsewhere(pub Factors);

impl FromStr for CheckedElsewhere {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        if matches!(name, "otp" | "mca") { Ok(Self(Factors::from(name))) } else { Err(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_what_their_names_say_and_unknown_names_are_none() {
        for (names, same) in [
            ("", ""),
            ("pwd", "pwd"),
            ("mca otp pwd", "pwd otp mca"),
            ("pwd swk otp mca mfa", "pwd otp swk mca mfa"),
            ("hwk otpp  PWD", ""),
        ] {
            let factors = Factors::from(names);
            assert_eq!(factors.to_string(), same);
            assert_eq!(Factors::from(factors.to_string().as_str()), factors);
        }
    }

    #[test]
    fn a_source_checks_neither_keys_nor_unknown_factors() {
        assert_eq!(Factors(u8::MAX).checked_elsewhere(), Factors::from("otp mca mfa"));
        assert_eq!(Factors::from("pwd swk").checked_elsewhere(), Factors::default());
    }

    #[test]
    fn every_requirement_has_to_be_met() {
        let missing = |names: &str, required: &[&str]| {
            let required: Vec<Requirement> = required.iter().map(|name| name.parse().unwrap()).collect();
            Factors::from(names).missing(&required)
        };
        assert_eq!(missing("", &[]), None);
        assert_eq!(missing("pwd", &["otp"]), Some(Requirement::OneTimeCode));
        assert_eq!(missing("pwd", &["mfa"]), Some(Requirement::Several), "a password is not several");
        assert_eq!(
            missing("pwd swk mca", &["otp"]),
            Some(Requirement::OneTimeCode),
            "no other stands for it"
        );
        assert_eq!(missing("pwd otp", &["otp", "swk"]), Some(Requirement::Key));
        assert_eq!(missing("pwd otp", &["mca"]), Some(Requirement::Approval));
        for factor in ["otp", "swk", "mca"] {
            assert_eq!(missing(&format!("pwd {factor}"), &[factor, "mfa"]), None);
        }
    }
}
