//! The configuration of a vpnd in a lab: what `vpnd init` and `vpnd user add` wrote, with the
//! changes that the lab and the measurement need.

use std::fs;
use std::io;
use std::path::Path;

use toml_edit::{Array, DocumentMut, Item, Table, value};

use super::{BUSY_POLL, Vpnd};
use crate::system::{Priority, SystemError};

impl Vpnd {
    pub(super) fn edit_config(&self) -> Result<(), SystemError> {
        let path = self.files().config();
        let failed = |source| SystemError::Io { action: format!("editing {}", path.display()), source };
        let text = fs::read_to_string(&path).map_err(failed)?;
        let edited = self
            .config(&text, &self.files().socket())
            .map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, error)))?;
        fs::write(&path, edited).map_err(failed)
    }

    /// Sets in a client's profile what the user named.
    pub(super) fn edit_profile(&self, path: &Path) -> Result<(), SystemError> {
        let Some(microseconds) = self.programs.busy_poll_us() else { return Ok(()) };
        let failed = |source| SystemError::Io { action: format!("editing {}", path.display()), source };
        let text = fs::read_to_string(path).map_err(failed)?;
        let mut profile: DocumentMut =
            text.parse().map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, error)))?;
        profile["tunnel"][BUSY_POLL] = value(i64::from(microseconds));
        fs::write(path, profile.to_string()).map_err(failed)
    }

    /// The configuration that `vpnd init` wrote, set up for a lab: clients may talk to each other,
    /// no NAT.
    pub(super) fn config(&self, text: &str, socket: &Path) -> Result<String, toml_edit::TomlError> {
        let mut config: DocumentMut = text.parse()?;
        let mut set = |section: &str, key: &str, item: Item| {
            let table = config.entry(section).or_insert_with(|| Item::Table(Table::new()));
            table[key] = item;
        };
        set("policy", "client_to_client", value(true));
        set("nat", "mode", value("none"));
        set("admin", "socket", value(socket.to_string_lossy().into_owned()));
        // Next to the socket and apart from the machine's own.
        set("server", "journal_dir", value(socket.with_file_name("journal").to_string_lossy().into_owned()));
        if self.priority == Priority::Same {
            set("server", "priority", value(0));
        }
        if let Some(microseconds) = self.programs.busy_poll_us() {
            set("server", BUSY_POLL, value(i64::from(microseconds)));
        }
        if let Some(database) = &self.database {
            let directory = database.directory().to_string_lossy().into_owned();
            set("store", "engine", value("postgres"));
            set("store", "hosts", value(Array::from_iter([directory])));
            set("store", "database", value("postgres"));
        }
        if let Some(mtu) = self.wireguard {
            set("wireguard", "enabled", value(true));
            set("wireguard", "mtu", value(i64::from(mtu)));
        }
        if let Some(suite) = self.only_suite() {
            set("crypto", "suites", value(Array::from_iter([suite])));
        }
        if let Some(backend) = &self.backend {
            set("crypto", "backend", value(backend));
        }
        if let Some(room) = self.room {
            set("limits", "max_sessions", value(i64::from(room.sessions)));
            set("limits", "max_sessions_per_user", value(i64::from(room.per_user)));
            // Each of these sessions begins by a login, and some again.
            set("limits", "logins_per_user", value(i64::from(room.per_user).max(30) * 100));
            if let Some(seconds) = room.rekey_after_s {
                set("timeouts", "rekey_after_s", value(i64::from(seconds)));
            }
        }
        Ok(config.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Code, Room};
    use super::*;
    use crate::system::{Cipher, Kind, Programs, Subject};

    #[test]
    fn the_lab_configuration_keeps_what_init_wrote() {
        let init =
            "# written by init\nname = \"x\"\n\n[policy]\n# closed by default\nclient_to_client = false\n";
        let programs = Programs::default;
        let without_aes =
            Vpnd::with_code(&programs(), Subject::new(Kind::Vpnd, Cipher::Aes256Gcm), Code::WithoutAes);
        let edited = without_aes.config(init, Path::new("/run/x/admin.sock")).unwrap();
        assert!(
            edited.contains("# written by init") && edited.contains("client_to_client = true"),
            "{edited}"
        );
        assert!(
            edited.contains("suites = [\"aes-256-gcm\"]") && edited.contains("mode = \"none\""),
            "{edited}"
        );
        assert!(edited.contains("socket = \"/run/x/admin.sock\""), "{edited}");
        assert!(edited.contains("journal_dir = \"/run/x/journal\""), "{edited}");
        let text_of = |vpnd: &Vpnd| vpnd.config(init, Path::new("/s")).unwrap();
        let auto = text_of(&Vpnd::new(programs(), Cipher::Auto));
        assert!(edited.contains("backend = \"aws-lc\"") && !auto.contains("backend"), "{edited}");
        assert!(!auto.contains("suites"), "the system's own choice stays: {auto}");
        let room = Room { clients: 2, sessions: 5_010, per_user: 400, rekey_after_s: Some(30) };
        let roomy = text_of(&Vpnd::with_room(programs(), Subject::new(Kind::Vpnd, Cipher::Auto), room));
        assert!(roomy.contains("max_sessions = 5010") && roomy.contains("max_sessions_per_user = 400"));
        assert!(roomy.contains("rekey_after_s = 30"), "{roomy}");
        let subject = Subject { priority: Priority::Same, ..Subject::new(Kind::Vpnd, Cipher::Auto) };
        assert!(
            text_of(&Vpnd::of(&programs(), subject)).contains("priority = 0") && !auto.contains("priority")
        );
        let serving = Vpnd { wireguard: Some(1_420), ..Vpnd::new(programs(), Cipher::Auto) };
        assert!(
            text_of(&serving).contains("[wireguard]\nenabled = true\nmtu = 1420"),
            "{}",
            text_of(&serving)
        );
        assert!(!auto.contains("wireguard"), "{auto}");
        assert!(without_aes.config("not toml", Path::new("/s")).is_err());
    }

    #[test]
    fn polling_is_set_at_both_ends_and_only_if_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let profile = directory.path().join("profile");
        let text = "# by vpnd\nversion = 1\n\n[tunnel]\nroutes = \"pushed\"\n";
        for asked in [None, Some(70)] {
            fs::write(&profile, text).unwrap();
            let vpnd = Vpnd::new(Programs::default().with_busy_poll(asked), Cipher::Auto);
            let config = vpnd.config("[server]\nlisten = \"[::]:1\"\n", Path::new("/s")).unwrap();
            vpnd.edit_profile(&profile).unwrap();
            let edited = fs::read_to_string(&profile).unwrap();
            let wanted = asked.map_or(String::new(), |_| "busy_poll_us = 70\n".to_owned());
            assert_eq!(edited, format!("{text}{wanted}"));
            assert_eq!(config.contains("busy_poll_us = 70"), asked.is_some(), "{config}");
        }
    }
}
