//! The keys of `[portal]` for the pages of the help desk and of administrators.
//!
//! INVARIANT: groups of a source give rights here only if that source is named for it: a directory
//! that lies about its users makes none of them an administrator of all others.

use std::str::FromStr;

use ipnet::IpNet;
use minicbor::{Decode, Encode};

use super::document::{Log as Problems, Section};
use super::source::LOCAL;
use super::{ServerConfig, access_profile};

/// Names in one list, at most.
const MAX_NAMES: usize = 64;
const NETWORK: &str = "a network such as \"10.20.0.0/16\"";

/// Groups that may use these pages, and from where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desk {
    pub viewers: Vec<String>,
    pub help_desk: Vec<String>,
    pub administrators: Vec<String>,
    /// Sources whose groups count.
    pub sources: Vec<String>,
    /// Networks of the browsers.
    pub networks: Vec<IpNet>,
}

/// The rights of a person at the desk. A later one has those of the ones before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[cbor(index_only)]
pub enum DeskRole {
    /// Looks at users and the gateway's state.
    #[n(0)]
    Viewer,
    /// Changes users without a role, and asks who had an address.
    #[n(1)]
    HelpDesk,
    /// Changes all others.
    #[n(2)]
    Administrator,
}

impl DeskRole {
    /// The name for people and programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::HelpDesk => "help-desk",
            Self::Administrator => "administrator",
        }
    }
}

impl FromStr for DeskRole {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = [Self::Viewer, Self::HelpDesk, Self::Administrator];
        let role = known.into_iter().find(|role| role.name() == text);
        role.ok_or("write viewer, help-desk or administrator")
    }
}

impl Desk {
    /// The greatest role of a user of this source in these groups.
    #[must_use]
    pub fn role(&self, source: &str, groups: &[String]) -> Option<DeskRole> {
        let roles = [
            (&self.administrators, DeskRole::Administrator),
            (&self.help_desk, DeskRole::HelpDesk),
            (&self.viewers, DeskRole::Viewer),
        ];
        let has = |names: &Vec<String>| names.iter().any(|name| access_profile::is_in(name, groups));
        let role = roles.into_iter().find(|(names, _)| has(names)).map(|(_, role)| role);
        role.filter(|_| self.sources.iter().any(|counted| counted == source))
    }
}

/// Reads the keys. Without `admin_networks` it is the clients of this gateway.
pub(super) fn desk(s: &mut Section<'_>, p: &mut Problems, config: &ServerConfig) -> Desk {
    let mut names = |key: &'static str, expects: &str| -> Option<Vec<String>> {
        let names: Vec<String> = s.list(p, key, expects)?;
        if names.len() > MAX_NAMES || names.iter().any(String::is_empty) {
            let message = format!("'{key}' in [portal] takes up to {MAX_NAMES} names, none of them empty");
            s.problem(p, key, message);
        }
        Some(names)
    };
    let [viewers, help_desk, administrators] = ["viewer_groups", "help_desk_groups", "administrator_groups"]
        .map(|key| names(key, "the name of a group").unwrap_or_default());
    let sources = names("admin_sources", "the name of a source").unwrap_or_else(|| vec![LOCAL.to_owned()]);
    let is_known = |name: &String| name == LOCAL || config.sources.iter().any(|source| source.name == *name);
    if let Some(unknown) = sources.iter().find(|name| !is_known(name)) {
        let message = format!("'admin_sources' in [portal] names '{unknown}', which is no [[source]] here");
        s.problem(p, "admin_sources", message);
    }
    let networks: Option<Vec<IpNet>> = s.list(p, "admin_networks", NETWORK);
    if let Some(all) = networks.iter().flatten().find(|network| network.prefix_len() == 0) {
        let message = format!(
            "'admin_networks' in [portal] has {all}, which is everywhere: name the networks of the people who administer"
        );
        s.problem(p, "admin_networks", message);
    }
    let networks = networks.filter(|networks| !networks.is_empty());
    let networks = networks.unwrap_or_else(|| config.tunnel.pools().collect());
    Desk { viewers, help_desk, administrators, sources, networks }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{LEAST, smallest};
    use std::path::Path;

    const ON: &str = "[portal]\nenabled = true\ncertificate = 'p.pem'\nkey = 'p-key.pem'\n";

    #[test]
    fn a_role_takes_a_group_of_a_source_that_counts() {
        let groups =
            "viewer_groups = 'all'\nhelp_desk_groups = ['desk']\nadministrator_groups = ['Admins']\n";
        let desk = smallest(&format!("{ON}{groups}")).portal.unwrap().desk;
        let role = |source: &str, groups: &[&str]| {
            let groups: Vec<String> = groups.iter().map(|&group| group.to_owned()).collect();
            desk.role(source, &groups)
        };
        assert_eq!(role("local", &["all"]), Some(DeskRole::Viewer));
        assert_eq!(role("local", &["all", "admins", "desk"]), Some(DeskRole::Administrator));
        assert_eq!(role("local", &["DESK"]), Some(DeskRole::HelpDesk), "names of groups have no case");
        assert_eq!((role("local", &["x"]), role("local", &[]), role("uni", &["admins"])), (None, None, None));
        assert_eq!(desk.networks, ["10.86.0.0/16".parse::<IpNet>().unwrap()], "its clients");
        let none = smallest(ON).portal.unwrap().desk;
        assert_eq!(none.role("local", &["all".to_owned()]), None);
    }

    #[test]
    fn desk_networks_are_bounded_and_its_sources_exist() {
        let problems = |keys: &str| {
            let parsed = crate::ServerConfig::parse(
                &format!("{LEAST}{ON}{keys}"),
                "server.toml",
                Path::new("/etc/vpnd"),
            );
            parsed.map(|_| String::new()).unwrap_or_else(|invalid| invalid.to_string())
        };
        assert!(problems("admin_networks = ['10.0.0.0/8', '::/0']\n").contains("which is everywhere"));
        assert!(problems("admin_sources = ['uni']\n").contains("no [[source]] here"));
        assert!(problems("help_desk_groups = ['']\n").contains("none of them empty"));
        assert!(problems("admin_networks = ['10.20.0.0/16']\nadmin_sources = ['local']\n").is_empty());
    }
}
