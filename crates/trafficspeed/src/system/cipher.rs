//! How packets are protected: the ciphers that a system can be told to use.

use serde::{Deserialize, Serialize};

use super::Kind;

/// How packets are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Cipher {
    /// The system's own choice.
    Auto,
    /// AES-128-GCM.
    #[value(name = "aes-128-gcm")]
    #[serde(rename = "aes-128-gcm")]
    Aes128Gcm,
    /// AES-256-GCM.
    #[value(name = "aes-256-gcm")]
    #[serde(rename = "aes-256-gcm")]
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    #[value(name = "chacha20-poly1305")]
    #[serde(rename = "chacha20-poly1305")]
    ChaCha20Poly1305,
    /// No encryption; for the laboratory only.
    None,
    /// Authentication without encryption; for the laboratory only.
    AuthOnly,
    /// Encryption without authentication (AES-256-CBC); for the laboratory only.
    EncryptOnly,
    /// AES-256-CBC with HMAC-SHA-256; for the laboratory only.
    #[value(name = "aes-256-cbc-hmac-sha-256")]
    #[serde(rename = "aes-256-cbc-hmac-sha-256")]
    Aes256CbcHmacSha256,
}

impl Cipher {
    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Aes128Gcm => "aes-128-gcm",
            Self::Aes256Gcm => "aes-256-gcm",
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
            Self::None => "none",
            Self::AuthOnly => "auth-only",
            Self::EncryptOnly => "encrypt-only",
            Self::Aes256CbcHmacSha256 => "aes-256-cbc-hmac-sha-256",
        }
    }

    /// Whether vpnd refuses it outside a laboratory.
    pub fn is_lab_only(self) -> bool {
        matches!(self, Self::None | Self::AuthOnly | Self::EncryptOnly | Self::Aes256CbcHmacSha256)
    }

    /// Whether packets are both encrypted and authenticated, without which a system is a control
    /// and no VPN.
    pub fn protects(self) -> bool {
        !matches!(self, Self::None | Self::AuthOnly | Self::EncryptOnly)
    }

    /// Why `kind` can't be told to use it, where that is not just a choice of its makers.
    pub fn reason_against(self, kind: Kind) -> Option<&'static str> {
        if self != Self::EncryptOnly {
            return None;
        }
        match kind {
            Kind::Vpnd | Kind::VpndVaes | Kind::VpndPostgres => {
                Some("no suite of its encrypts without authenticating")
            }
            Kind::Strongswan => Some("ESP without integrity is forbidden by RFC 8221, section 4"),
            Kind::WireguardGo
            | Kind::WireguardGoTailscale
            | Kind::WireguardGoTailscaleProcs1
            | Kind::VpndWireguardGo
            | Kind::VpndWireguardGoTailscale
            | Kind::Boringtun
            | Kind::Gotatun
            | Kind::Wireguard => Some("WireGuard has one suite, and that authenticates"),
            Kind::IpsecAhEsp => Some("AH is there to authenticate"),
            Kind::OpenvpnDco => Some("the kernel's data channel has ciphers that authenticate only"),
            Kind::Pptp => Some("MPPE has one cipher, RC4"),
            Kind::Softether | Kind::SoftetherUdp => Some("every cipher suite of TLS authenticates"),
            Kind::Nebula | Kind::NebulaRoutines => Some("both of its ciphers authenticate"),
            Kind::Openvpn | Kind::OpenvpnMtu9000 | Kind::Ipsec | Kind::Command | Kind::None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::system::{Programs, Subject};

    #[test]
    fn cipher_names_agree_with_the_command_line_and_json() {
        for cipher in Cipher::value_variants() {
            assert_eq!(cipher.to_possible_value().unwrap().get_name(), cipher.name());
            assert_eq!(serde_json::to_value(cipher).unwrap(), cipher.name());
        }
    }

    #[test]
    fn few_systems_encrypt_without_authenticating_and_the_others_say_why_not() {
        let with: Vec<_> = Kind::value_variants()
            .iter()
            .filter(|kind| kind.profile().ciphers.contains(&Cipher::EncryptOnly))
            .collect();
        assert_eq!(with, [&Kind::Openvpn, &Kind::OpenvpnMtu9000, &Kind::Ipsec, &Kind::Command]);
        for (kind, reason) in [(Kind::Vpnd, "without authenticating"), (Kind::Strongswan, "RFC 8221")] {
            let subject = Subject::new(kind, Cipher::EncryptOnly);
            let refused = subject.check(&Programs::default()).unwrap_err().to_string();
            let (_, left_out) = Subject::with_their_ciphers(&[subject]);
            for said in [&refused, &left_out[0]] {
                assert!(said.contains(" has no encrypt-only (") && said.contains(reason), "{said}");
            }
        }
        assert_eq!(Subject::new(Kind::Openvpn, Cipher::EncryptOnly).label(), "OpenVPN, encrypt-only");
    }

    #[test]
    fn only_encryption_with_authentication_protects() {
        let bare: Vec<_> = Cipher::value_variants().iter().filter(|cipher| !cipher.protects()).collect();
        assert_eq!(bare, [&Cipher::None, &Cipher::AuthOnly, &Cipher::EncryptOnly]);
        assert!(bare.iter().all(|cipher| cipher.is_lab_only()));
    }
}
