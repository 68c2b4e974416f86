//! A profile that a user without root brings: whether it is one, and what of it has an effect.
//!
//! INVARIANT: of a user's own profile nothing but `[user]` has an effect, who logs in and by what;
//! and the proxy, if the machine's profile permits one. Gateway, routes, DNS and all else are those
//! of a profile of the machine for the same gateway, so no user sends other users' packets
//! elsewhere. A machine's profile is no user's. Pure.

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use vpnd_config::profile::{FORMAT, Profile, Trust};
use zeroize::Zeroizing;

/// Why a text is not taken as a profile.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotImported {
    #[error(
        "this is a file of a stock WireGuard client, which vpnd's own does not read: use it with wg-quick or NetworkManager, or get \
         the profile for vpnd from the gateway's web pages"
    )]
    WireGuard,
    #[error(
        "this is a web page and no profile: log in there in a browser, save the profile, and import the file"
    )]
    WebPage,
    #[error(
        "this profile is for another version of vpnd (format {0}, and this one reads {FORMAT}): update vpnd, or get the profile again \
         from the gateway's web pages"
    )]
    Version(u64),
    #[error("this is the profile of a machine, which only an administrator adds ('sudo vpnd import FILE')")]
    Machine,
    #[error("this profile is damaged ({0}): get it again from the gateway's web pages or its administrator")]
    Damaged(String),
    #[error(
        "no profile of this machine is for the gateway {0} with the same authority: an administrator adds one ('sudo vpnd import \
         FILE'), and then users may bring their own"
    )]
    Foreign(String),
    #[error(
        "the profile '{0}' of this machine, which this one follows, is gone, wrong or for another gateway now: ask an administrator, \
         or 'vpnd forget' this one and import it again"
    )]
    Gone(String),
}

/// The first line of a profile that follows one of the machine: so no change of that one has it
/// follow another.
const FOLLOWS: &str = "# Follows the machine's profile ";

/// The text in which a user's profile is kept.
pub(super) fn text(profile: &Profile, followed: &str) -> Zeroizing<String> {
    Zeroizing::new(format!("{FOLLOWS}{followed}\n{}", *profile.to_toml()))
}

/// The machine's profile that a kept text follows; `None` in one of an earlier version.
pub(super) fn followed(text: &str) -> Option<&str> {
    text.lines().next()?.strip_prefix(FOLLOWS)
}

/// Reads a profile's text.
///
/// # Errors
/// [`NotImported`], which names what the text is instead, and what to do.
pub(super) fn read(text: &str) -> Result<Profile, NotImported> {
    let has_line = |wanted: &str| text.lines().any(|line| line.trim().eq_ignore_ascii_case(wanted));
    match version(text) {
        _ if text.trim_start().starts_with('<') => return Err(NotImported::WebPage),
        _ if has_line("[Interface]") => return Err(NotImported::WireGuard),
        Some(version) if version != FORMAT => return Err(NotImported::Version(version)),
        _ => {}
    }
    Profile::parse(text, "profile").map_err(|invalid| {
        let place = |line: Option<usize>| line.map(|line| format!("line {line}: ")).unwrap_or_default();
        let first = invalid.problems.first();
        let first = first.map(|problem| format!("{}{}", place(problem.line), problem.message));
        let more = match invalid.problems.len() {
            0 | 1 => String::new(),
            count => format!("; and {} more", count - 1),
        };
        NotImported::Damaged(first.unwrap_or_default() + &more)
    })
}

/// The format that a text says it has.
fn version(text: &str) -> Option<u64> {
    let top = text.lines().map(str::trim).take_while(|line| !line.starts_with('['));
    let value = |line: &str| line.strip_prefix("version")?.trim_start().strip_prefix('=').map(str::to_owned);
    let value = top.filter_map(value).next()?;
    value.split('#').next()?.trim().parse().ok()
}

/// A user's profile as it has an effect, with the name of the machine's that all but `[user]` is
/// of: the one that is `followed`, or one that says the same as the user's, if there is one.
///
/// # Errors
/// [`NotImported::Machine`], [`NotImported::Foreign`], [`NotImported::Gone`].
pub(super) fn of_machine<'m>(
    own: &Profile,
    machine: &'m [(String, Profile)],
    followed: Option<&str>,
) -> Result<(Profile, &'m str), NotImported> {
    if own.machine {
        return Err(NotImported::Machine);
    }
    let merged = |theirs: &Profile| {
        let Profile { user, totp, browser, identity, .. } = own.clone();
        // One that is kept may have the proxy of the machine's profile as that was before.
        let users = own.proxy.as_ref().filter(|_| followed.is_none() || own.user_proxy);
        let users = users.filter(|_| theirs.user_proxy);
        let (proxy, user_proxy) = (users.or(theirs.proxy.as_ref()).cloned(), users.is_some());
        Profile { user, totp, browser, identity, proxy, user_proxy, ..theirs.clone() }
    };
    let mut same = machine.iter().filter(|(_, theirs)| is_same_gateway(own, theirs));
    if let Some(followed) = followed {
        let found = same.find(|(name, _)| name == followed);
        let found = found.map(|(name, theirs)| (merged(theirs), name.as_str()));
        return found.ok_or_else(|| NotImported::Gone(followed.to_owned()));
    }
    let mut first = None;
    for (name, theirs) in same {
        let profile = merged(theirs);
        if profile == *own {
            return Ok((profile, name.as_str()));
        }
        first.get_or_insert((profile, name.as_str()));
    }
    first.ok_or_else(|| NotImported::Foreign(own.server_name.clone()))
}

/// Whether both are for one name, for which the same authorities vouch.
fn is_same_gateway(one: &Profile, other: &Profile) -> bool {
    let authorities = |pem: &str| {
        let mut all: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok).collect();
        all.sort_by(|a, b| a.as_ref().cmp(b.as_ref()));
        all
    };
    let is_same_trust = match (&one.trust, &other.trust) {
        (Trust::System, Trust::System) => true,
        (Trust::Pinned { ca_pem: one }, Trust::Pinned { ca_pem: other }) => {
            authorities(one) == authorities(other)
        }
        (Trust::System, Trust::Pinned { .. }) | (Trust::Pinned { .. }, Trust::System) => false,
    };
    is_same_trust && one.server_name.eq_ignore_ascii_case(&other.server_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(user: &str, gateway: &str, tunnel: &str) -> Profile {
        let text = format!(
            "version = 1\n[server]\naddresses = [\"{gateway}\"]\ntrust = \"system\"\n[user]\nname = \"{user}\"\n[tunnel]\n{tunnel}\n"
        );
        read(&text).unwrap()
    }

    fn pinned(profile: &Profile, ca_pem: &str) -> Profile {
        Profile { trust: Trust::Pinned { ca_pem: ca_pem.to_owned() }, ..profile.clone() }
    }

    #[test]
    fn a_profile_of_another_version_is_reported_as_such() {
        let sentence = |text: &str| read(text).unwrap_err().to_string();
        assert!(matches!(read("<!doctype html>\n<html>"), Err(NotImported::WebPage)));
        assert!(matches!(read("[Interface]\nPrivateKey = x\n[Peer]\n"), Err(NotImported::WireGuard)));
        assert_eq!(read("# mine\nversion = 9 # new\n[server]\n"), Err(NotImported::Version(9)));
        for damaged in
            ["", "version = 1", "no profile", "version = 1\n[server]\naddresses = 7\n", "\0\u{202e}"]
        {
            assert!(matches!(read(damaged), Err(NotImported::Damaged(_))), "{damaged:?}");
            assert!(sentence(damaged).contains("get it again"), "{}", sentence(damaged));
        }
        let secret = "version = 1\n[user]\nkey = \"hushhush\"\n";
        assert!(!sentence(secret).contains("hushhush"), "{}", sentence(secret));
    }

    #[test]
    fn only_the_user_name_is_taken_from_a_users_profile() {
        let work =
            ("work".to_owned(), profile("any", "vpn.example", "routes = \"pushed\"\nkill_switch = \"on\""));
        let own = profile("ann", "vpn.example", "routes = [\"0.0.0.0/0\"]\ndns = false\nlanes = 16");
        let (merged, of) = of_machine(&own, std::slice::from_ref(&work), None).unwrap();
        assert_eq!((merged.user.as_deref(), of), (Some("ann"), "work"));
        assert_eq!(Profile { user: work.1.user.clone(), ..merged }, work.1);
        // One that says the same is taken before another one of that gateway.
        let all = ("all".to_owned(), profile("any", "vpn.example", "routes = \"all\""));
        let own = profile("ann", "vpn.example", "routes = \"all\"");
        assert_eq!(of_machine(&own, &[work, all], None).unwrap(), (own.clone(), "all"));
    }

    #[test]
    fn a_users_proxy_counts_if_the_machines_profile_permits_one() {
        let with = |server: &str, user: &str| {
            let text = format!(
                "version = 1\n[server]\naddresses = [\"vpn.example\"]\ntrust = \"system\"\ntcp_port = 443\n{server}\n[user]\nname = \"{user}\"\n"
            );
            read(&text).unwrap()
        };
        let merged = |machines: &str, own: &Profile, followed| {
            let machine = [("work".to_owned(), with(machines, "any"))];
            of_machine(own, &machine, followed).unwrap().0
        };
        let host = |profile: &Profile| profile.proxy.as_ref().map(|proxy| proxy.server.host.clone());
        let (theirs, users) = (Some("198.51.100.1".to_owned()), Some("192.0.2.7".to_owned()));
        let own = with("proxy = \"http://192.0.2.7:3128\"\nuser_proxy = true", "ann");
        assert_eq!(host(&merged("", &own, None)), None);
        let forbidden = "proxy = \"http://198.51.100.1:3128\"";
        assert_eq!(host(&merged(forbidden, &own, None)), theirs);
        let permitted = format!("{forbidden}\nuser_proxy = true");
        let kept = merged(&permitted, &own, None);
        assert_eq!((host(&kept), host(&merged(&permitted, &kept, Some("work")))), (users.clone(), users));
        let after = merged(forbidden, &kept, Some("work"));
        assert_eq!(host(&merged(&permitted, &after, Some("work"))), theirs, "it is not the user's any more");
        let kept = merged(&permitted, &with("", "ann"), None);
        assert_eq!(host(&kept), theirs, "the user names none");
        assert_eq!(host(&merged("user_proxy = true", &kept, Some("work"))), None, "nor does who keeps it");
    }

    #[test]
    fn a_profile_follows_the_one_that_it_was_imported_by() {
        let split = ("a-split".to_owned(), profile("any", "vpn.example", ""));
        let full = ("b-full".to_owned(), profile("any", "vpn.example", "kill_switch = \"on\""));
        let own = profile("ann", "vpn.example", "kill_switch = \"on\"");
        let kept = text(&own, "b-full");
        assert_eq!((followed(&kept), read(&kept).as_ref()), (Some("b-full"), Ok(&own)));
        // Another one is as it was before the change.
        let changed = ("b-full".to_owned(), profile("any", "vpn.example", "kill_switch = \"persistent\""));
        let machine = [split.clone(), changed.clone()];
        let (now, name) = of_machine(&own, &machine, followed(&kept)).unwrap();
        assert_eq!((now.kill_switch, name), (changed.1.kill_switch, "b-full"));
        // It is gone for a moment, or for good: then the other one does not take its place.
        let gone = of_machine(&own, std::slice::from_ref(&split), followed(&kept));
        assert_eq!(gone.err(), Some(NotImported::Gone("b-full".to_owned())));
        let elsewhere = ("b-full".to_owned(), profile("any", "vpn.other", ""));
        assert!(
            of_machine(&own, &[split, elsewhere, full], followed("# Follows the machine's profile x\n"))
                .is_err()
        );
        assert_eq!(followed("version = 1\n"), None);
    }

    #[test]
    fn a_gateway_that_no_profile_of_the_machine_names_is_refused() {
        let work = profile("any", "vpn.example", "");
        let machine = [("work".to_owned(), work.clone())];
        for other in [profile("ann", "vpn.other", ""), pinned(&work, "a CA of another one")] {
            assert!(matches!(of_machine(&other, &machine, None), Err(NotImported::Foreign(_))), "{other:?}");
        }
        assert!(of_machine(&work, &[], None).is_err());
        let authority = |name: &str| {
            let key = rcgen::KeyPair::generate().unwrap();
            rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap().pem()
        };
        let (one, other) = (authority("one.example"), authority("other.example"));
        let machine = [("work".to_owned(), pinned(&work, &format!("{one}{other}")))];
        assert!(of_machine(&pinned(&work, &format!("# text\n{other}\n{one}")), &machine, None).is_ok());
        assert!(of_machine(&pinned(&work, &one), &machine, None).is_err());
        assert!(
            of_machine(&pinned(&work, &format!("{one}{}", authority("x.example"))), &machine, None).is_err()
        );
    }
}
