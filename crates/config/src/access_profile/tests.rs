use std::path::Path;

use super::*;
use crate::testing::smallest;

const GROUPS: &str = "[push]\nroutes = ['10.20.0.0/16']\ndns = ['10.20.0.53']\n\
    [policy]\nclient_to_client = true\n[[policy.rules]]\naction = 'deny'\nto = '10.20.9.0/24'\n\
    [[profile]]\nname = 'staff'\ngroups = ['staff', 'admins']\nsources = ['local']\nroutes = ['10.30.0.0/16']\n\
    client_to_client = false\n[[profile.rules]]\naction = 'allow'\nto = '10.20.9.1'\n\
    [[profile]]\nname = 'ann'\nusers = 'ann'\nsearch = ['lab.example']\n";

fn of<'p>(profiles: &'p AccessProfiles, user: &str, source: &str, groups: &[&str]) -> Option<&'p str> {
    let groups: Vec<String> = groups.iter().copied().map(str::to_owned).collect();
    profiles.of(Who { user, source, groups: &groups }).map(AccessProfile::title)
}

#[test]
fn without_profiles_all_users_share_one() {
    let config = smallest("[push]\nroutes = ['10.20.0.0/16']\n[policy]\nclient_to_client = true\n");
    let implied = config.profiles.of(Who { user: "ann", source: "staff", groups: &[] }).unwrap();
    assert_eq!((implied.name.as_deref(), &implied.push), (None, &config.push));
    assert!(implied.client_to_client && !config.profiles.are_configured());
}

#[test]
fn the_first_profile_whose_keys_all_match_is_chosen() {
    let profiles = smallest(GROUPS).profiles;
    assert_eq!(of(&profiles, "bob", "local", &["staff"]), Some("staff"));
    assert_eq!(of(&profiles, "bob", "local", &["pupils", "admins"]), Some("staff"));
    assert_eq!(of(&profiles, "ann", "local", &["staff"]), Some("staff"), "the first");
    assert_eq!(of(&profiles, "ann", "radius", &["staff"]), Some("ann"), "the same group of another source");
    assert_eq!(of(&profiles, "ann", "local", &[]), Some("ann"));
    for (user, source, groups) in
        [("bob", "local", &[][..]), ("bob", "radius", &["staff"]), ("Ann", "local", &[])]
    {
        assert_eq!(of(&profiles, user, source, groups), None, "{user} of {source}");
    }
}

#[test]
fn settings_that_a_profile_has_not_are_those_of_all() {
    let config = smallest(GROUPS);
    let [staff, ann] = &config.profiles.list[..] else { panic!("two profiles") };
    let nets = |push: &Push| push.routes.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        (nets(&staff.push), nets(&ann.push)),
        (vec!["10.30.0.0/16".into()], vec!["10.20.0.0/16".into()])
    );
    assert_eq!((&staff.push.dns, staff.push.search.len()), (&config.push.dns, 0));
    assert_eq!(ann.push.search[0].as_str(), "lab.example");
    assert_eq!((staff.client_to_client, ann.client_to_client), (false, true));
    assert_eq!((staff.rules.len(), staff.own_rules, ann.rules.len(), ann.own_rules), (2, 1, 1, 0));
    let line = "profile staff: groups staff, admins; sources local: 1 route, 1 name server, 1 own rule";
    assert_eq!(staff.to_string(), line);
    assert_eq!(staff.rules[1], config.policy.rules[0], "its own come first");
    assert!(staff.rules[0].line > config.policy.rules[0].line);
    assert_eq!(
        nets(&Push { routes: config.profiles.routes(), ..Push::default() }),
        ["10.20.0.0/16", "10.30.0.0/16"]
    );
}

#[test]
fn limits_that_a_profile_has_not_are_those_of_all() {
    let config = smallest(
        "[limits]\nmax_sessions_per_user = 5\nsession_rate_up = '8mbit'\nuser_rate_up = '16mbit'\n[timeouts]\nsession_lifetime_s = 100\n\
         [[profile]]\nname = 'staff'\nusers = 'ann'\n\
         [[profile]]\nname = 'guests'\nrate_down = '80mbit'\nmax_sessions_per_user = 1\nsession_lifetime_s = 0\n",
    );
    let [staff, guests] = &config.profiles.list[..] else { panic!("two profiles") };
    let lifetime = Some(Duration::from_secs(100));
    assert_eq!((&staff.rates, staff.max_sessions_per_user, staff.session_lifetime), (&None, 5, lifetime));
    let rates = guests.rates.as_ref().unwrap();
    let pair = |rates: vpnd_proto::rate::Rates| (rates.down, rates.up);
    assert_eq!((pair(rates.together), pair(rates.session)), ((10_000_000, 0), (0, 1_000_000)));
    assert_eq!(pair(rates.user), (0, 2_000_000));
    assert_eq!(
        (rates.name.as_str(), guests.max_sessions_per_user, guests.session_lifetime),
        ("guests", 1, None)
    );
    let implied =
        smallest("[limits]\nmax_sessions_per_user = 5\n[timeouts]\nsession_lifetime_s = 100\n").profiles;
    assert_eq!((implied.list[0].max_sessions_per_user, implied.list[0].session_lifetime), (5, lifetime));
}

#[test]
fn mistakes_are_named_with_their_line() {
    let first = "[tls]\ncertificate = 'a'\nkey = 'b'\n[tunnel]\npool_v4 = '10.86.0.0/16'\n";
    for (text, problem) in [
        ("[[profile]]\ngroups = 'a'\n", "server.toml:6: [profile] needs the key 'name'"),
        ("[[profile]]\nname = 'a b'\n", "server.toml:7: 'name' in [profile] must be 1 to 32 letters"),
        ("[[profile]]\nname = 'a'\ngroups = []\n", "server.toml:8: 'groups' in [profile] needs a name"),
        (
            "[[profile]]\nname = 'a'\nsources = ['staf']\n",
            "server.toml:8: 'sources' in [profile] names 'staf'",
        ),
        (
            "[[profile]]\nname = 'a'\nroute = []\n",
            "server.toml:8: unknown key 'route' in [profile]; did you mean 'routes'",
        ),
        (
            "[[profile]]\nname = 'a'\nroutes = ['10.1.2.3/8']\n",
            "server.toml:8: 'routes' has a network with host bits",
        ),
        ("[[profile]]\nname = 'a'\nrequire = 'sms'\n", "server.toml:8: 'require' in [profile] must be"),
        ("[[profile]]\nname = 'a'\nrequire = 'swk'\n", "which needs 'client_ca' in [tls]"),
        (
            "[[profile]]\nname = 'a'\nmachines = true\n",
            "server.toml:8: 'machines' in [profile] needs 'client_ca'",
        ),
        (
            "[[profile]]\nname = 'a'\nmachines = true\nrequire = ['swk', 'otp']\n",
            "server.toml:8: 'machines' in [profile] contradicts 'require'",
        ),
        ("[[profile]]\nname = 'a'\n[[profile]]\nname = 'a'\n", "the profile 'a' has two entries"),
        (
            "[[profile]]\nname = 'a'\n[[profile.rules]]\naction = 'alow'\n",
            "server.toml:9: 'action' in [profile.rules] must be one of",
        ),
    ] {
        let error =
            ServerConfig::parse(&format!("{first}{text}"), "server.toml", Path::new("/")).unwrap_err();
        assert!(error.to_string().contains(problem), "{text}\n{error}");
    }
}

#[test]
fn groups_have_no_case() {
    let groups = ["STAFF".to_owned(), "Fakult\u{c4}t 1, Labor".to_owned()];
    for (group, is_one) in
        [("staff", true), ("fakult\u{e4}t 1, labor", true), ("staf", false), ("labor", false)]
    {
        assert_eq!(is_in(group, &groups), is_one, "{group}");
    }
}
