//! The guard of a client: its inner addresses are reached through the tunnel and from nowhere else.
//!
//! Linux takes packets for any of its addresses from any interface. A neighbour on the same Wi-Fi could so find out the inner
//! address, see that a connection exists, and slip packets into it (CVE-2019-14899).

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{NftError, Script, Version, host_set, plain, remove_script, run};

/// The addresses that packets from outside the tunnel don't reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardRules {
    /// Name of the TUN device.
    pub tunnel: String,
    /// The client's inner addresses.
    pub addresses: Vec<IpAddr>,
}

impl GuardRules {
    /// Puts the guard in force, in place of an earlier one of this tunnel.
    ///
    /// # Errors
    /// [`NftError`]; nothing has changed then.
    pub async fn apply(&self) -> Result<(), NftError> {
        run(&self.script()?).await
    }

    /// Removes the guard; does nothing if there is none.
    ///
    /// # Errors
    /// [`NftError`].
    pub async fn remove(&self) -> Result<(), NftError> {
        run(&remove_script(&self.table()?)).await
    }

    /// Checks that the guard can be set and removed, and means what it says.
    ///
    /// # Errors
    /// [`NftError::BadName`].
    pub fn check(&self) -> Result<(), NftError> {
        self.script().map(drop)
    }

    fn script(&self) -> Result<String, NftError> {
        let mut script = Script::replacing(&self.table()?);
        script.line("chain arrivals {");
        script.line("type filter hook prerouting priority raw; policy accept;");
        for version in Version::BOTH {
            if let Some(own) = host_set(&self.addresses, version) {
                script.line(&format!(
                    "iifname != {{ \"lo\", \"{}\" }} {} daddr {own} fib saddr type != local drop",
                    self.tunnel,
                    version.keyword()
                ));
            }
        }
        script.line("}");
        script.line("}");
        Ok(script.0)
    }

    /// Not the name of any gateway's table.
    fn table(&self) -> Result<String, NftError> {
        Ok(format!("vpndguard_{}", plain(&self.tunnel)?))
    }
}
