//! `[[profile]]`: access profiles, by which users of one gateway get different networks and rules.
//!
//! Invariants: a user is in one profile at most, the first whose keys match; without any
//! `[[profile]]` there is one for everybody, made of the other sections; with one, who matches none
//! is in none. A client profile (`crate::profile`) is something else: the file that a client
//! connects with.

use std::fmt;
use std::time::Duration;

use ipnet::IpNet;

use super::document::{Log as Problems, Section};
use super::pool::{self, PoolChoice, Pools};
use super::rate::{self, GroupRates};
use super::{Push, Rule, ServerConfig, Tunnel, WireGuardProfile, read, wireguard};
use crate::factor::{Factors, Requirement};

/// Profiles at most.
const MAX_PROFILES: usize = 64;
/// Stands for a profile's name at sessions of devices that reach nothing but the portal. No profile
/// can have it.
pub const WALLED: &str = "(walled)";
/// Values of one key that decides who is in a profile.
const MAX_VALUES: usize = 256;
/// Rules of one profile, those of `[policy]` included.
const MAX_RULES: usize = vpnd_proto::policy::MAX_RULES;

/// The access profiles of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessProfiles {
    list: Vec<AccessProfile>,
}

/// One access profile: who is in it, and what its clients get and may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessProfile {
    /// `None` for the one that is implied where none is configured.
    pub name: Option<String>,
    /// The users in it.
    pub members: Members,
    /// Settings sent to its clients.
    pub push: Push,
    /// Whether its clients reach others where no rule says otherwise.
    pub client_to_client: bool,
    /// Its own rules, then those of `[policy]`; the first that matches decides.
    pub rules: Vec<Rule>,
    /// Number of its own rules among them.
    pub own_rules: usize,
    /// Factors that its users must have proved.
    pub require: Vec<Requirement>,
    /// Whether accounts without a password, which machines have, are in it: they log in by their
    /// client certificates alone.
    pub machines: bool,
    /// The longest time from the user's credentials to the login.
    pub max_login_age: Option<Duration>,
    /// Where its clients' addresses come from, IPv4 first.
    pub pools: [PoolChoice; 2],
    /// Its rate limits; with some, those of `[limits]` and of its users' groups don't count.
    pub rates: Option<GroupRates>,
    /// Live sessions of one of its users.
    pub max_sessions_per_user: usize,
    /// Longest life of a session.
    pub session_lifetime: Option<Duration>,
    /// Whether its users may have stock WireGuard clients, and what these get.
    pub wireguard: WireGuardProfile,
}

/// The members of a profile: all users whom all the keys that are there match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Groups, one of which the user must be in.
    pub groups: Option<Vec<String>>,
    /// Names, one of which must be the user's.
    pub users: Option<Vec<String>>,
    /// Sources of users, one of which must be the user's; `local` is the gateway's own store.
    pub sources: Option<Vec<String>>,
}

/// A user, as far as profiles go by it.
#[derive(Clone, Copy, Debug)]
pub struct Who<'u> {
    pub user: &'u str,
    pub source: &'u str,
    pub groups: &'u [String],
}

impl AccessProfiles {
    /// The one profile of a gateway whose configuration has none: everybody is in it.
    pub(super) fn implied(config: &ServerConfig) -> Self {
        let ServerConfig { push, policy, limits, timeouts, .. } = config;
        let implied = AccessProfile {
            push: push.clone(),
            client_to_client: policy.client_to_client,
            rules: policy.rules.clone(),
            max_sessions_per_user: limits.max_sessions_per_user,
            session_lifetime: timeouts.session_lifetime,
            wireguard: WireGuardProfile::implied(config.wireguard),
            ..AccessProfile::default()
        };
        Self { list: vec![implied] }
    }

    /// The profile of this user, if there is one.
    #[must_use]
    pub fn of(&self, who: Who<'_>) -> Option<&AccessProfile> {
        self.position(who).and_then(|position| self.list.get(position))
    }

    /// The place of that profile in the list.
    #[must_use]
    pub fn position(&self, who: Who<'_>) -> Option<usize> {
        self.list.iter().position(|profile| profile.members.include(who))
    }

    /// The profile at a place that [`AccessProfiles::position`] has returned.
    #[must_use]
    pub fn at(&self, position: usize) -> &AccessProfile {
        &self.list[position]
    }

    /// One profile that everybody is in, with nothing in it.
    #[must_use]
    pub fn of_everybody() -> Self {
        Self { list: vec![AccessProfile { max_sessions_per_user: 8, ..AccessProfile::default() }] }
    }

    /// Profiles whose sessions last no longer than this.
    #[cfg(any(test, feature = "testing"))]
    pub fn with_session_lifetime(mut self, lifetime: Option<Duration>) -> Self {
        for profile in &mut self.list {
            profile.session_lifetime = lifetime;
        }
        self
    }

    pub fn iter(&self) -> impl Iterator<Item = &AccessProfile> {
        self.list.iter()
    }

    /// The pools of the profiles, in their order, out of those of this tunnel.
    #[must_use]
    pub fn pools(&self, tunnel: &Tunnel) -> Vec<Pools> {
        pool::of_profiles(tunnel, &self.list)
    }

    /// The reason why the profiles can't have their pools out of those of this tunnel, if there is
    /// one.
    #[must_use]
    pub fn conflict(&self, tunnel: &Tunnel) -> Option<String> {
        pool::conflict(tunnel, &self.list)
    }

    /// Whether the configuration has profiles.
    #[must_use]
    pub fn are_configured(&self) -> bool {
        self.list.iter().any(|profile| profile.name.is_some())
    }

    /// The networks that clients of any profile are given, each once.
    #[must_use]
    pub fn routes(&self) -> Vec<IpNet> {
        let mut routes: Vec<_> = self.list.iter().flat_map(|profile| profile.push.routes.clone()).collect();
        routes.sort_unstable();
        routes.dedup();
        routes
    }

    /// The name servers that clients of any profile are given, each once.
    #[must_use]
    pub fn name_servers(&self) -> Vec<std::net::IpAddr> {
        let mut servers: Vec<_> = self.list.iter().flat_map(|profile| profile.push.dns.clone()).collect();
        servers.sort_unstable();
        servers.dedup();
        servers
    }

    pub(super) fn without_ipv6(mut self) -> Self {
        for profile in &mut self.list {
            profile.push.dns.retain(std::net::IpAddr::is_ipv4);
            profile.pools[1] = PoolChoice::Nothing;
        }
        self
    }
}

impl AccessProfile {
    /// The name for people.
    #[must_use]
    pub fn title(&self) -> &str {
        self.name.as_deref().unwrap_or("default")
    }
}

/// One line for people: who is in it, and what they get.
impl fmt::Display for AccessProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Members { groups, users, sources } = &self.members;
        let keys = [("groups", groups), ("users", users), ("sources", sources)];
        let keys = keys
            .into_iter()
            .filter_map(|(key, values)| values.as_ref().map(|values| format!("{key} {}", values.join(", "))));
        let members: Vec<_> = keys.collect();
        let members = if members.is_empty() { "all users".to_owned() } else { members.join("; ") };
        let count = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        write!(
            f,
            "profile {}: {members}: {}, {}, {}",
            self.title(),
            count(self.push.routes.len(), "route"),
            count(self.push.dns.len(), "name server"),
            count(self.own_rules, "own rule")
        )
    }
}

/// Whether a user in these groups is in `group`. As in directories, names of groups have no case.
pub fn is_in(group: &str, groups: &[String]) -> bool {
    let group = group.to_lowercase();
    groups.iter().any(|other| other.to_lowercase() == group)
}

impl Members {
    /// Whether this user is one.
    #[must_use]
    pub fn include(&self, who: Who<'_>) -> bool {
        let one_of = |key: &Option<Vec<String>>, value: &str| {
            key.as_ref().is_none_or(|values| values.iter().any(|one| one == value))
        };
        let in_group = |groups: &Vec<String>| groups.iter().any(|group| is_in(group, who.groups));
        self.groups.as_ref().is_none_or(in_group)
            && one_of(&self.users, who.user)
            && one_of(&self.sources, who.source)
    }

    /// Whether that is everybody.
    #[must_use]
    pub fn are_all(&self) -> bool {
        *self == Self::default()
    }
}

/// Reads the profiles; what one does not say is as in the other sections of `config`.
pub(super) fn profiles(s: &mut Section<'_>, p: &mut Problems, config: &ServerConfig) -> AccessProfiles {
    let list = s.tables(p, "profile", |s, p| profile(s, p, config));
    if list.len() > MAX_PROFILES {
        let message = format!("there are {} profiles; at most {MAX_PROFILES} are taken", list.len());
        s.problem(p, "profile", message);
    }
    let twice = (1..list.len()).find(|at| list[..*at].iter().any(|before| before.name == list[*at].name));
    if let Some(at) = twice {
        let message = format!("the profile '{}' has two entries in [[profile]]; keep one", list[at].title());
        s.problem(p, "profile", message);
    }
    if p.is_empty()
        && let Some(conflict) = pool::conflict(&config.tunnel, &list)
    {
        s.problem(p, "profile", conflict);
    }
    // Also where all of them have mistakes.
    if s.has("profile") { AccessProfiles { list } } else { AccessProfiles::implied(config) }
}

fn profile(s: &mut Section<'_>, p: &mut Problems, config: &ServerConfig) -> Option<AccessProfile> {
    let missing = !s.has("name");
    let name = s.parsed::<Name>(p, "name", "1 to 32 letters, digits, '.', '_' and '-'").map(|name| name.0);
    if missing {
        s.missing(p, "name", "write name = \"students\"");
    }
    let members = Members {
        groups: values(s, p, "groups"),
        users: values(s, p, "users"),
        sources: values(s, p, "sources"),
    };
    if let Some(unknown) = members.sources.iter().flatten().find(|name| !config.has_source(name)) {
        let message = format!(
            "'sources' in [profile] names '{unknown}', and there is no [[source]] of that name; the gateway's own users are \"local\""
        );
        s.problem(p, "sources", message);
    }
    let push = read::push_or(s, p, &config.push, &config.tunnel);
    let client_to_client = s.flag(p, "client_to_client", config.policy.client_to_client);
    let mut rules = s.tables(p, "rules", read::rule);
    let own_rules = rules.len();
    rules.extend(config.policy.rules.iter().cloned());
    if rules.len() > MAX_RULES {
        let message = format!(
            "the profile has {own_rules} rules, and {} with those of [policy]; at most {MAX_RULES} are taken",
            rules.len()
        );
        s.problem(p, "rules", message);
    }
    let require = require(s, p, config);
    let machines = machines(s, p, config, &require);
    let max_login_age = read::max_login_age(s, p);
    let wireguard = wireguard::profile(s, p, config, !require.is_empty() || max_login_age.is_some());
    let pools = pool::choices(s, p);
    let rates = rate::profile(s, p, name.as_deref().unwrap_or_default(), &config.limits.rates);
    let most = config.limits.max_sessions_per_user;
    Some(AccessProfile {
        max_sessions_per_user: read::sessions_per_user(s, p, most),
        session_lifetime: read::session_lifetime(s, p, config.timeouts.session_lifetime),
        name: Some(name?),
        members,
        push,
        client_to_client,
        rules,
        own_rules,
        require,
        machines,
        max_login_age,
        pools,
        rates,
        wireguard,
    })
}

/// The factors that a profile requires.
fn require(s: &mut Section<'_>, p: &mut Problems, config: &ServerConfig) -> Vec<Requirement> {
    let names = "\"otp\" (a one-time code), \"swk\" (a client certificate), \"mca\" (an approval on another device) or \"mfa\" (any of these)";
    let required: Vec<Requirement> = s.list(p, "require", names).unwrap_or_default();
    if required.contains(&Requirement::Key) && config.tls.client_ca.is_none() {
        let message =
            "'require' in [profile] has \"swk\", which needs 'client_ca' in [tls], the CA that signs them";
        s.problem(p, "require", message.to_owned());
    }
    required
}

/// Whether a profile is for machines.
fn machines(s: &mut Section<'_>, p: &mut Problems, config: &ServerConfig, require: &[Requirement]) -> bool {
    let machines = s.flag(p, "machines", false);
    if machines && config.tls.client_ca.is_none() {
        let message =
            "'machines' in [profile] needs 'client_ca' in [tls], the CA that signs their certificates";
        s.problem(p, "machines", message.to_owned());
    }
    if machines && Factors::KEY.missing(require).is_some() {
        let message = "'machines' in [profile] contradicts 'require': a machine shows a certificate (\"swk\") and nothing else";
        s.problem(p, "machines", message.to_owned());
    }
    machines
}

/// A list that decides who is in a profile. An empty one would match no user, which is a mistake.
fn values(s: &mut Section<'_>, p: &mut Problems, key: &'static str) -> Option<Vec<String>> {
    let values: Vec<String> = s.list(p, key, "a name")?;
    if values.is_empty() || values.iter().any(String::is_empty) {
        let message = format!("'{key}' in [profile] needs a name; leave it out if it is not to matter");
        s.problem(p, key, message);
    }
    if values.len() > MAX_VALUES {
        let message =
            format!("'{key}' in [profile] has {} names; at most {MAX_VALUES} are taken", values.len());
        s.problem(p, key, message);
    }
    Some(values)
}

/// A profile's name, as it stands in logs and metrics.
struct Name(String);

impl std::str::FromStr for Name {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let is_allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let is_name = (1..=32).contains(&text.len()) && text.bytes().all(is_allowed);
        if is_name { Ok(Self(text.to_owned())) } else { Err(()) }
    }
}

#[cfg(test)]
mod tests;
