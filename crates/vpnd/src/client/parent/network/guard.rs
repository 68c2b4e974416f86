//! The guard of the tunnel's addresses, kept up to date.

use std::net::IpAddr;

use super::{NetworkError, NetworkSetup};
use crate::sys::change::Change;
use crate::sys::nft::{GuardRules, MarkMatch};

impl NetworkSetup {
    /// Guards these addresses in place of those before. There is no moment without.
    pub(super) async fn guard(&mut self, addresses: Vec<IpAddr>) -> Result<(), NetworkError> {
        let (mark, mask) = self.layer.passed_over();
        let rules = GuardRules {
            tunnel: self.interface.clone(),
            addresses,
            returning: self.returning,
            excluded: Some(MarkMatch { mark, mask }),
        };
        let change = Change::Guard(rules.clone());
        let id = match &self.guard {
            Some((_, in_force)) if *in_force == rules => return Ok(()),
            Some((id, _)) => {
                let id = *id;
                self.journal.replace(&self.netlink, id, change).await?;
                id
            }
            None => self.journal.apply(&self.netlink, change).await?,
        };
        self.guard = Some((id, rules));
        Ok(())
    }
}
