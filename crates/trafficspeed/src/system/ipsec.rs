//! The kernel's IPsec in tunnel mode: ESP, AH, or AH around ESP, with keys that are set by hand.
//!
//! Each host has one XFRM interface. The gateway has states and policies for each client, and its
//! kernel routes packets between clients from the interface into it again. No key exchange runs: it
//! would not take part in what is measured.

pub mod config;

use super::folder::Folder;
use super::{Cipher, ClientAddress, Profile, Subject, System, SystemError, SystemInfo, kernel};
use crate::interrupt::Interrupt;
use crate::lab::Lab;
use crate::lab::namespace::Namespace;
use config::{DEVICE, Keys, Protection};

const MODULES: &[&str] = &["xfrm_user", "xfrm_interface", "esp4", "ah4"];

/// The kernel's ESP or AH before it runs.
pub const PROFILE: Profile = Profile {
    label: "IPsec (kernel)",
    ciphers: &[
        Cipher::Aes128Gcm,
        Cipher::Aes256Gcm,
        Cipher::ChaCha20Poly1305,
        Cipher::AuthOnly,
        Cipher::EncryptOnly,
        Cipher::Aes256CbcHmacSha256,
    ],
    programs: &[],
    has_priority: false,
    adapter: |_, Subject { cipher, .. }| {
        Box::new(Ipsec::new(Protection::of(cipher).expect("the profile has no other ciphers")))
    },
};

/// The kernel's AH around ESP before it runs: the first encrypts, the second authenticates.
pub const AH_ESP_PROFILE: Profile = Profile {
    label: "IPsec, AH and ESP (kernel)",
    ciphers: &[Cipher::Aes256CbcHmacSha256],
    adapter: |_, _| Box::new(Ipsec::new(Protection::BOTH)),
    ..PROFILE
};

/// The kernel's IPsec in a lab.
#[derive(Debug)]
struct Ipsec {
    protection: Protection,
    facts: SystemInfo,
}

impl Ipsec {
    fn new(protection: Protection) -> Self {
        Self { protection, facts: SystemInfo::default() }
    }
}

/// Gives a host its interface, then its states, policies and routes. They come from a file: keys
/// are not for the list of processes.
fn set_up(namespace: &Namespace, folder: &Folder, mtu: u32, script: &str) -> Result<(), SystemError> {
    let words = ["link", "add", DEVICE, "type", "xfrm", "dev", "lo", "if_id", config::IF_ID];
    namespace.ip(&words)?;
    namespace.ip(&["link", "set", DEVICE, "mtu", &mtu.to_string(), "up"])?;
    let file = folder.write(&format!("{}.ip", namespace.name()), script)?;
    Ok(namespace.ip(&["-batch", &file.to_string_lossy()])?)
}

impl System for Ipsec {
    fn check(&self) -> Result<(), SystemError> {
        kernel::check("IPsec", MODULES)
    }

    fn bring_up(&mut self, lab: &Lab, interrupt: &Interrupt) -> Result<Vec<ClientAddress>, SystemError> {
        kernel::load(MODULES)?;
        let folder = Folder::make(lab, "ipsec")?;
        let mtu = lab.link_mtu()? - self.protection.overhead();
        let keys: Vec<Keys> = lab.clients().iter().map(|_| Keys::random()).collect();
        set_up(lab.gateway(), &folder, mtu, &config::gateway(&self.protection, &keys))?;
        for ((namespace, keys), number) in lab.clients().iter().zip(&keys).zip(1..) {
            if interrupt.is_set() {
                return Err(SystemError::Interrupted);
            }
            set_up(namespace, &folder, mtu, &config::client(&self.protection, number, keys))?;
        }
        self.facts = SystemInfo {
            version: format!("Linux {}", kernel::release()),
            cipher: self.protection.words(),
            mtu: Some(mtu),
            notes: vec![kernel::NOTE.to_owned(), "tunnel mode, keys set by hand".to_owned()],
        };
        Ok((1..=lab.clients().len() as u32).map(config::client_address).collect())
    }

    fn processes(&self) -> (Vec<u32>, Vec<u32>) {
        (Vec::new(), Vec::new())
    }

    fn facts(&mut self) -> &mut SystemInfo {
        &mut self.facts
    }

    fn down(&mut self) {
        // States and policies end with the lab's namespaces.
    }
}
