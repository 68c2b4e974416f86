//! No VPN at all: the clients reach each other by the gateway kernel's routing.
//!
//! Every byte crosses the gateway as it does with a VPN, so this is the ceiling for all of them.

use super::{Cipher, ClientAddress, Profile, System, SystemError, SystemInfo, kernel};
use crate::interrupt::Interrupt;
use crate::lab::{CLIENT_LINK, Lab};

/// Plain routing before it runs.
pub const PROFILE: Profile = Profile {
    label: "plain routing",
    ciphers: &[Cipher::None],
    programs: &[],
    has_priority: false,
    adapter: |_, _| Box::new(Plain::default()),
};

#[derive(Debug, Default)]
pub struct Plain {
    facts: SystemInfo,
}

impl System for Plain {
    fn check(&self) -> Result<(), SystemError> {
        Ok(())
    }

    fn bring_up(&mut self, lab: &Lab, _interrupt: &Interrupt) -> Result<Vec<ClientAddress>, SystemError> {
        self.facts = SystemInfo {
            version: format!("Linux {}", kernel::release()),
            cipher: "none".into(),
            mtu: None,
            notes: vec!["forwarding runs in the kernel's interrupt time, which belongs to no process".into()],
        };
        let numbers = 1..=lab.clients().len() as u32;
        Ok(numbers
            .map(|n| ClientAddress {
                v4: Some(Lab::client_v4(n)),
                v6: Some(Lab::client_v6(n)),
                device: CLIENT_LINK.to_owned(),
            })
            .collect())
    }

    fn processes(&self) -> (Vec<u32>, Vec<u32>) {
        (Vec::new(), Vec::new())
    }

    fn facts(&mut self) -> &mut SystemInfo {
        &mut self.facts
    }

    fn down(&mut self) {}
}
