//! The settings that a running gateway goes by, and those of a changed file that wait for its next
//! start.
//!
//! INVARIANT: [`AT_START`] is the one list of keys that a reload leaves out. What a reload reports,
//! what `vpnd doctor` compares and what docs/CONFIGURATION.md says of each key come from it. An
//! upgrade is refused by a changed one that [`AT_UPGRADE`] does not list. This module must not know
//! what a key means.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;

use toml::Value;

use crate::read::DEFAULT_LOG_LEVEL;
use crate::{Places, Server, ServerConfig};

/// Keys that take effect when the gateway starts, by section. A section without keys is one as a
/// whole.
const AT_START: [(&str, &[&str]); 16] = [
    ("store", &[]),
    ("fleet", &[]),
    ("server", &["listen", "more_ports", "shards", "priority", "busy_poll_us", "state_dir", "journal_dir"]),
    ("tls", &["client_ca", "require_client_certificate"]),
    ("tunnel", &[]),
    ("nat", &[]),
    ("crypto", &[]),
    ("offload", &[]),
    (
        "limits",
        &[
            "max_sessions",
            "logins_per_user",
            "max_handshakes",
            "handshakes_per_address_s",
            "password_workers",
            "password_queue",
        ],
    ),
    (
        "timeouts",
        &[
            "idle_timeout_s",
            "dead_peer_timeout_s",
            "keepalive_s",
            "rekey_after_s",
            "authentication_deadline_s",
            "forget_device_s",
        ],
    ),
    ("admin", &[]),
    ("process", &[]),
    ("log", &[]),
    ("wireguard", &["enabled"]),
    ("source", &[]),
    ("portal", &["url"]),
];

/// Those of [`AT_START`] whose change is no reason to refuse an upgrade: the new processes go by
/// them. [log] stays as it is until a restart, and matters less than a new version.
const AT_UPGRADE: [(&str, &[&str]); 8] = [
    ("server", &["priority", "busy_poll_us"]),
    ("tls", &[]),
    ("crypto", &[]),
    ("limits", &[]),
    ("timeouts", &[]),
    ("log", &[]),
    ("source", &[]),
    ("portal", &[]),
];

/// Whether a change of this key waits for the gateway's next start. `key` is empty for a list of
/// tables.
#[must_use]
pub fn waits(section: &str, key: &str) -> bool {
    has(&AT_START, section, key)
}

fn has(list: &[(&str, &[&str])], section: &str, key: &str) -> bool {
    list.iter().any(|(listed, keys)| *listed == section && (keys.is_empty() || keys.contains(&key)))
}

/// Digests of the values that a file sets, by `section.key`, or by `section` for a list of tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(BTreeMap<String, String>);

impl Settings {
    /// Those of a file's text; none if it is malformed. A key with its default value is as one that
    /// is missing.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let document: toml::Table = text.parse().unwrap_or_default();
        let whole = meaning(&document);
        let mut settings = BTreeMap::new();
        for (section, value) in &document {
            match value {
                Value::Table(keys) => {
                    let is_default =
                        |key: &str| whole.is_some() && meaning(&without(&document, section, key)) == whole;
                    let said = keys.iter().filter(|(key, _)| !is_default(key));
                    settings.extend(said.map(|(key, value)| (format!("{section}.{key}"), digest(value))));
                }
                list => drop(settings.insert(section.clone(), digest(list))),
            }
        }
        Self(settings)
    }

    /// A gateway that goes on as another version keeps the log level that it began with, whatever
    /// the file says by then.
    pub fn keep_log_level(&mut self, level: &str) {
        self.0.remove("log.level");
        if level != DEFAULT_LOG_LEVEL {
            self.0.insert("log.level".to_owned(), digest(&Value::String(level.to_owned())));
        }
    }

    /// Returns the settings that were reported.
    #[must_use]
    pub fn reported(settings: BTreeMap<String, String>) -> Self {
        Self(settings)
    }

    #[must_use]
    pub fn report(&self) -> BTreeMap<String, String> {
        self.0.clone()
    }

    /// Returns differences, in words, as `(waits for a start, waits for a reload)`.
    #[must_use]
    pub fn differences(&self, file: &Self) -> (Vec<String>, Vec<String>) {
        let differing = self.differing(file).into_iter();
        let (start, reload): (Vec<&String>, _) = differing.partition(|name| self.keeps(name));
        (
            start.into_iter().map(|name| title(name)).collect(),
            reload.into_iter().map(|name| title(name)).collect(),
        )
    }

    /// Returns the first difference, in words, that a restart alone puts into force: an upgrade
    /// does not, for devices, sockets or the machine's network depend on it.
    #[must_use]
    pub fn restart_only(&self, file: &Self) -> Option<String> {
        let takes_restart = |name: &&&String| {
            let (section, key) = parts(name);
            waits(section, key) && !has(&AT_UPGRADE, section, key)
        };
        self.differing(file).iter().find(takes_restart).map(|name| title(name))
    }

    fn differing<'s>(&'s self, file: &'s Self) -> Vec<&'s String> {
        let names = self.0.keys().chain(file.0.keys().filter(|name| !self.0.contains_key(*name)));
        let mut differing: Vec<&String> =
            names.filter(|name| self.0.get(*name) != file.0.get(*name)).collect();
        differing.sort();
        differing
    }

    /// A reload takes over what it can.
    pub fn reload(&mut self, file: &Self) {
        let taken = file.0.iter().filter(|(name, _)| !self.keeps(name));
        let taken: Vec<_> = taken.map(|(name, digest)| (name.clone(), digest.clone())).collect();
        self.0.retain(|name, _| name_waits(name));
        self.0.extend(taken);
    }

    /// Whether a change of this key waits for a start: that of the pages' address does, the first
    /// address does not ([`ServerConfig::reloaded`]).
    fn keeps(&self, name: &str) -> bool {
        name_waits(name) && (name != "portal.url" || self.0.contains_key(name))
    }
}

impl ServerConfig {
    /// The configuration of a gateway that goes by `before` and has read this one again. What waits
    /// for its next start is as it was, if anything looks it up after the start.
    #[must_use]
    pub fn reloaded(mut self, before: &Self) -> Self {
        // Providers send browsers back to the address that they began with.
        if let (Some(portal), Some(pages)) = (&mut self.portal, before.pages()) {
            portal.url = Some(pages.clone());
        }
        let server = Server { addresses: self.server.addresses, ..before.server.clone() };
        let (tunnel, nat, sources) = (before.tunnel.clone(), before.nat.clone(), before.sources.clone());
        Self { server, tunnel, nat, sources, ..self }
    }
}

/// All that a configuration says, to be compared; `None` if it is none.
fn meaning(document: &toml::Table) -> Option<String> {
    let config = ServerConfig::parse(&document.to_string(), "", Path::new("/")).ok()?;
    Some(format!("{:?}", ServerConfig { places: Places::default(), ..config }))
}

fn without(document: &toml::Table, section: &str, key: &str) -> toml::Table {
    let mut document = document.clone();
    if let Some(Value::Table(keys)) = document.get_mut(section) {
        keys.remove(key);
    }
    document
}

fn name_waits(name: &str) -> bool {
    let (section, key) = parts(name);
    waits(section, key)
}

/// Section and key of a setting.
fn parts(name: &str) -> (&str, &str) {
    name.split_once('.').unwrap_or((name, ""))
}

fn title(name: &str) -> String {
    match name.split_once('.') {
        Some((section, key)) => format!("'{key}' in [{section}]"),
        None => format!("[[{name}]]"),
    }
}

/// Both ends are one program, so it need not be the same in another version.
fn digest(value: &Value) -> String {
    let mut hasher = DefaultHasher::new();
    value.to_string().hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "[server]\nlisten = '[::]:4433' # here\n[push]\nroutes = []\n[limits]\nmax_sessions = 8\n\
                       [[source]]\nname = 'a'\n[[profile]]\nname = 'p'\n";

    #[test]
    fn a_reload_names_each_key_that_waits_for_a_start() {
        let new = "[server]\nlisten = '[::]:4434'\nshards = 2\n[limits]\nmax_sessions_per_user = 3\n[push]\nroutes = ['::/0']\n\
                   [[source]]\nname = 'b'\n[[profile]]\nname = 'q'\n";
        let (mut in_force, file) = (Settings::of(OLD), Settings::of(new));
        let (start, reload) = in_force.differences(&file);
        let waiting =
            ["'max_sessions' in [limits]", "'listen' in [server]", "'shards' in [server]", "[[source]]"];
        assert_eq!(start, waiting);
        assert_eq!(reload, ["'max_sessions_per_user' in [limits]", "[[profile]]", "'routes' in [push]"]);
        in_force.reload(&file);
        assert_eq!(in_force.differences(&file), (waiting.map(str::to_owned).into(), Vec::new()));
        let reported = Settings::reported(in_force.report());
        assert_eq!(reported.differences(&Settings::of(new)).0, waiting);
    }

    #[test]
    fn an_upgrade_is_refused_by_settings_that_it_does_not_carry_out() {
        let refused = |text: &str| Settings::of(OLD).restart_only(&Settings::of(&format!("{OLD}{text}")));
        for (text, setting) in [
            ("[wireguard]\nenabled = true\n", "'enabled' in [wireguard]"),
            ("[tunnel]\nmtu = 1300\n", "'mtu' in [tunnel]"),
            ("[crypto]\nbackend = 'ring'\n[nat]\nmode = 'route'\n", "'mode' in [nat]"),
        ] {
            assert_eq!(refused(text).as_deref(), Some(setting), "{text}");
        }
        for text in [
            "[policy]\nclient_to_client = true\n",
            "[timeouts]\nidle_timeout_s = 9\n[tls]\nclient_ca = 'c'\n[log]\nlevel = 'debug'\n",
            "[[source]]\nname = 'b'\n[portal]\nurl = 'https://two'\n",
        ] {
            assert_eq!(refused(text), None, "{text}");
        }
        let server = |text: &str| Settings::of(&OLD.replace("[server]\n", &format!("[server]\n{text}\n")));
        let refused = |text: &str| Settings::of(OLD).restart_only(&server(text));
        assert_eq!(refused("more_ports = '443'").as_deref(), Some("'more_ports' in [server]"));
        assert_eq!(refused("priority = 5"), None);
    }

    #[test]
    fn the_first_address_of_the_pages_waits_for_no_start() {
        let [first, next] =
            ["one", "two"].map(|name| Settings::of(&format!("[portal]\nurl = 'https://{name}'\n")));
        let url = ["'url' in [portal]".to_owned()];
        let mut in_force = Settings::default();
        assert_eq!(in_force.differences(&first), (vec![], url.to_vec()));
        in_force.reload(&first);
        assert_eq!((&in_force, in_force.differences(&next)), (&first, (url.to_vec(), vec![])));
        in_force.reload(&next);
        assert_eq!(in_force, first);
    }

    #[test]
    fn lines_comments_and_order_are_no_difference() {
        let moved = "# a comment\n[[profile]]\nname = 'p'\n[[source]]\nname = 'a'\n\n[limits]\nmax_sessions = 8\n[push]\nroutes = []\n\
                     [server]\nlisten = '[::]:4433'\n";
        assert_eq!(Settings::of(OLD), Settings::of(moved));
        assert_eq!(Settings::of("[["), Settings::default());
    }

    #[test]
    fn a_key_with_its_default_is_as_one_that_is_missing() {
        let base =
            "[tls]\ncertificate = 'a'\nkey = 'b'\n[tunnel]\npool_v4 = '10.86.0.0/16'\n[push]\nroutes = []\n";
        let spelt =
            format!("{base}dns = []\n[log]\nlevel = 'info'\n[server]\nshards = 0\nlisten = '[::]:4433'\n");
        assert_eq!(Settings::of(base), Settings::of(&spelt));
        let other = Settings::of(&format!("{base}[log]\nlevel = 'debug'\n[server]\nshards = 1\n"));
        let differing = ["'level' in [log]", "'shards' in [server]"].map(str::to_owned);
        assert_eq!(Settings::of(base).differences(&other).0, differing);
        let mut upgraded = other.clone();
        upgraded.keep_log_level("info");
        assert_eq!(upgraded.differences(&other).0, ["'level' in [log]"]);
        upgraded.keep_log_level("debug");
        assert_eq!(upgraded, other);
    }

    #[test]
    fn settings_that_need_a_restart_keep_their_value() {
        let config = |port: u16, pool: &str, pages: &str| {
            let text = format!(
                "[server]\nlisten = '[::]:{port}'\nstate_dir = '/{port}'\naddresses = ['{port}.example:4433']\n\
                 [tls]\ncertificate = 'a'\nkey = 'b'\n[tunnel]\npool_v4 = '{pool}'\n[push]\nroutes = []\n{pages}"
            );
            ServerConfig::parse(&text, "server.toml", Path::new("/")).unwrap()
        };
        let portal = "[portal]\nenabled = true\ncertificate = 'p'\nkey = 'k'\n";
        let at = |url: &str| format!("{portal}name = '{url}'\nurl = 'https://{url}'\n");
        let started = config(4433, "10.86.0.0/16", &at("one.example"));
        let read = config(4434, "10.96.0.0/16", &at("two.example"));
        let in_force = read.clone().reloaded(&started);
        assert_eq!(in_force.server.addresses, read.server.addresses);
        assert_eq!(in_force.portal.as_ref().unwrap().name, "two.example");
        assert_eq!(in_force.pages(), started.pages());
        assert_eq!((&in_force.server.listen, &in_force.tunnel), (&started.server.listen, &started.tunnel));
        assert_eq!(in_force.server.state_dir, started.server.state_dir);
        let without = config(4433, "10.86.0.0/16", portal).reloaded(&started);
        assert_eq!(without.pages(), started.pages());
        let first = read.clone().reloaded(&config(4433, "10.86.0.0/16", ""));
        assert_eq!(first.pages(), read.pages(), "the first address of all waits for nothing");
    }

    #[test]
    fn settings_that_need_a_restart_are_listed() {
        assert!(waits("server", "priority") && waits("source", "") && waits("tls", "client_ca"));
        assert!(
            !waits("server", "addresses")
                && !waits("tls", "ca")
                && !waits("profile", "")
                && !waits("limits", "user_rate_up")
        );
    }
}
