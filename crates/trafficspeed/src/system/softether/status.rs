//! A client's own account of its connection: a table of two columns.

use super::script::{CONNECTIONS, Transport};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    state: String,
    encryption: String,
    connections: u32,
    udp_active: bool,
}

impl Status {
    /// Reads the table; rows that are missing leave their values empty.
    pub fn read(said: &str) -> Self {
        let row = |name: &str| {
            let rows = said.lines().filter_map(|line| line.split_once('|'));
            let value = rows.into_iter().find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim());
            value.unwrap_or_default().to_owned()
        };
        Self {
            state: row("Session Status"),
            encryption: row("Encryption"),
            connections: row("Number of TCP Connections").parse().unwrap_or(0),
            udp_active: row("UDP Acceleration is Active") == "Yes",
        }
    }

    /// Whether the session stands and all of its transport is in use.
    pub fn is_complete(&self, transport: Transport) -> bool {
        let transport_stands = match transport {
            Transport::Tcp => self.connections >= CONNECTIONS,
            Transport::Udp => self.udp_active,
        };
        self.state.contains("Session Established") && transport_stands
    }

    /// Its state in its own words, with what a transport may still lack.
    pub fn state(&self) -> String {
        let udp = if self.udp_active { "active" } else { "not active" };
        format!("{}; {} TCP connections, UDP acceleration {udp}", self.state, self.connections)
    }

    /// Whether frames are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.encryption.starts_with("Enabled")
    }

    /// The cipher that TLS negotiated, or that there is none, in the client's own words.
    pub fn protection(&self) -> &str {
        if !self.is_encrypted() {
            return "none";
        }
        let named = self.encryption.split_once("Algorithm: ").and_then(|(_, rest)| rest.split_once(')'));
        named.map_or("unknown", |(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "Item                     |Value\n\
        Session Status                            |Connection Completed (Session Established)\n\
        Number of TCP Connections                 |8\n\
        Maximum Number of TCP Connections         |8\n\
        Encryption                                |Enabled (Algorithm: TLS_AES_256_GCM_SHA384)\n\
        UDP Acceleration is Supported             |Yes\n\
        UDP Acceleration is Active                |No\n";

    #[test]
    fn a_session_is_complete_with_its_whole_transport() {
        let status = Status::read(TABLE);
        assert!(status.is_complete(Transport::Tcp) && !status.is_complete(Transport::Udp));
        let fewer =
            Status::read(&TABLE.replace("Connections                 |8", "Connections                 |7"));
        assert!(!fewer.is_complete(Transport::Tcp));
        let udp = Status::read(&TABLE.replace("Active                |No", "Active                |Yes"));
        assert!(udp.is_complete(Transport::Udp));
        let retrying = Status::read(&TABLE.replace("Connection Completed (Session Established)", "Retrying"));
        assert!(!retrying.is_complete(Transport::Tcp) && retrying.state().starts_with("Retrying"));
    }

    #[test]
    fn the_cipher_is_the_negotiated_one() {
        let status = Status::read(TABLE);
        assert!(status.is_encrypted());
        assert_eq!(status.protection(), "TLS_AES_256_GCM_SHA384");
        let bare = Status::read(
            &TABLE.replace("Enabled (Algorithm: TLS_AES_256_GCM_SHA384)", "Disabled (No Encryption)"),
        );
        assert_eq!((bare.is_encrypted(), bare.protection()), (false, "none"));
        assert_eq!(Status::read(""), Status::default());
    }
}
