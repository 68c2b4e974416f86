//! Profiles: what is written is read back, what is wrong is named, what is secret stays hidden.

use super::*;

/// A profile with everything in it, and a real certificate and key.
fn full() -> Profile {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(["ann".to_owned()]).unwrap().self_signed(&key).unwrap();
    Profile {
        servers: vec!["vpn.example.org:4433".parse().unwrap(), "[2001:db8::1]:443".parse().unwrap()],
        server_name: "vpn.example.org".to_owned(),
        trust: Trust::Pinned { ca_pem: certificate.pem() },
        renew: false,
        spread: true,
        tcp_port: Some(443),
        proxy: Some("http://ann:secret@proxy.example.org:3128".parse().unwrap()),
        user_proxy: true,
        user: Some("ann".to_owned()),
        totp: true,
        browser: true,
        machine: false,
        identity: Some(ClientIdentity {
            certificate_pem: certificate.pem(),
            key_pem: Zeroizing::new(key.serialize_pem()),
        }),
        suites: vec![Suite::ChaCha20Poly1305, Suite::Aes256Gcm],
        routes: Routes::Only(vec!["10.20.0.0/16".parse().unwrap()]),
        dns: false,
        local_network: false,
        kill_switch: KillSwitch {
            mode: Some(KillSwitchMode::Persistent),
            allow_local: true,
            inbound: vec![22, 8_080],
        },
        lanes: 4,
        copy_dscp: true,
        busy_poll: Duration::from_micros(70),
        offload: Offload { tso: false, udp_gro: false, ..Offload::default() },
    }
}

/// PEM texts may gain or lose white space at their ends.
fn trimmed(mut profile: Profile) -> Profile {
    if let Trust::Pinned { ca_pem } = &mut profile.trust {
        *ca_pem = ca_pem.trim().to_owned();
    }
    if let Some(identity) = &mut profile.identity {
        identity.certificate_pem = identity.certificate_pem.trim().to_owned();
        identity.key_pem = Zeroizing::new(identity.key_pem.trim().to_owned());
    }
    profile
}

fn problem(text: &str) -> String {
    Profile::parse(text, "ann.toml").unwrap_err().to_string()
}

#[test]
fn what_is_written_is_read_back() {
    let simple = Profile {
        trust: Trust::System,
        identity: None,
        suites: vec![],
        routes: Routes::Pushed,
        kill_switch: KillSwitch::default(),
        lanes: DEFAULT_LANES,
        copy_dscp: false,
        busy_poll: Duration::ZERO,
        offload: Offload::default(),
        ..full()
    };
    let machine = Profile { totp: false, browser: false, machine: true, ..full() };
    assert!(machine.to_toml().contains("an attacker can log in as ann"));
    for profile in [full(), Profile { routes: Routes::All, ..full() }, simple, machine] {
        let read = Profile::parse(&profile.to_toml(), "ann.toml").unwrap();
        assert_eq!(trimmed(read), trimmed(profile));
    }
}

#[test]
fn a_saved_profile_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ann.toml");
    let profile = full();
    profile.save(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(trimmed(Profile::load(&path).unwrap()), trimmed(profile.clone()));
    assert!(profile.save(&path).is_err(), "a profile is not overwritten");
}

#[test]
fn the_key_shows_neither_in_debug_nor_in_problems() {
    let profile = full();
    let body = profile.identity.as_ref().unwrap().key_pem.lines().nth(1).unwrap().to_owned();
    assert!(!format!("{profile:?}").contains(&body));
    let broken = profile.to_toml().replace("BEGIN PRIVATE KEY", "BEGIN PRIVAT KEY");
    let message = problem(&broken);
    assert!(message.contains("'key' in [user] must be a private key"), "{message}");
    assert!(!message.contains(&body));
    assert!(!problem(&profile.to_toml().replace("key = '''", "key = ''")).contains(&body));
}

#[test]
fn a_published_profile_holds_no_secret() {
    let profile = full();
    let body = profile.identity.as_ref().unwrap().key_pem.lines().nth(1).unwrap().to_owned();
    let machine = Profile { totp: false, browser: false, machine: true, ..profile.clone() };
    assert!(Profile::parse(&machine.without_secrets().to_toml(), "x").is_ok());
    let text = profile.clone().without_secrets().to_toml();
    for secret in [&body, "ann", "secret", "key =", "certificate ="] {
        assert!(!text.contains(secret), "{secret} in {}", *text);
    }
    let shown = Profile::parse(&text, "x").unwrap();
    assert_eq!((shown.servers, shown.tcp_port), (profile.servers, profile.tcp_port));
}

#[test]
fn problems_have_their_line_and_the_nearest_key() {
    let least =
        "version = 1\n[server]\naddresses = 'vpn.example.org'\ntrust = 'system'\n[user]\nname = 'ann'\n";
    assert!(Profile::parse(least, "ann.toml").is_ok());
    for (from, to, expected) in [
        (
            "addresses",
            "adresses",
            "ann.toml:3: unknown key 'adresses' in [server]; did you mean 'addresses'?",
        ),
        ("version = 1", "version = 2", "ann.toml:1: 'version' in the top of the file must be a whole number"),
        ("version = 1\n", "", "needs the key 'version'"),
        ("'system'", "'pinned'", "ann.toml:2: [server] needs the key 'ca'"),
        ("'system'", "'sytem'", "did you mean 'system'?"),
        ("'ann'", "'  '", "ann.toml:6: 'name' in [user] must be 1 to 128 bytes"),
        ("'vpn.example.org'", "'vpn.example.org:0'", "ann.toml:3: 'addresses' in [server] must be a name"),
        ("'vpn.example.org'", "[]", "takes 1 to 16 servers"),
        ("trust = 'system'", "ca = 'x'", "ann.toml:4: 'ca' must be certificates"),
        ("name = 'ann'", "name = 'ann'\nkey = 'x'", "needs the key 'certificate'"),
        ("trust = 'system'", "trust = 'system'\nuser_proxy = true", "needs the key 'tcp_port'"),
        ("name = 'ann'", "machine = true", "ann.toml:5: [user] needs the key 'name'"),
        ("name = 'ann'", "name = 'ann'\nmachine = true", "ann.toml:5: [user] needs the key 'certificate'"),
        ("name = 'ann'", "machine = true\ntotp = true", "ann.toml:6: 'machine' in [user] contradicts"),
    ] {
        let message = problem(&least.replace(from, to));
        assert!(message.contains(expected), "{to:?} gives {message}");
    }
}

/// The sections and keys of PROTOCOL §15.
fn published_keys() -> Vec<(String, String)> {
    let page = include_str!("../../../../docs/PROTOCOL.md");
    let (_, rows) = page.split_once("| section | key | meaning |").expect("the page has the table");
    let mut section = String::new();
    let mut keys = Vec::new();
    for row in rows.lines().skip(2).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        if !cells[1].is_empty() {
            section = cells[1].trim_matches(['`', '[', ']']).replace("(top)", "");
        }
        keys.extend(cells[2].split(", ").map(|key| (section.clone(), key.trim_matches('`').to_owned())));
    }
    keys
}

#[test]
fn a_profile_has_exactly_the_keys_of_the_page() {
    let full = full();
    let values = full.to_toml().parse::<toml::Table>().unwrap();
    let sample = |section: &str, key: &str| match (section, key) {
        ("offload", _) | ("user", "machine") => "false".into(),
        ("", _) => values[key].to_string(),
        _ => values[section][key].to_string(),
    };
    let keys = published_keys();
    let mut text = String::new();
    let mut last = "";
    for (section, key) in &keys {
        if section != last {
            text.push_str(&format!("[{section}]\n"));
            last = section;
        }
        text.push_str(&format!("{key} = {}\n", sample(section, key)));
    }
    let read = Profile::parse(&text, "ann.toml").unwrap_or_else(|invalid| panic!("{invalid}\n{text}"));
    let off =
        Offload { tun: false, tso: false, uso: false, udp_gso: false, udp_gro: false, ..Offload::default() };
    assert_eq!(
        trimmed(read),
        trimmed(Profile { offload: off, ..full }),
        "each key of the page has its meaning"
    );

    // And there are no others: the parser names those that it knows.
    for section in ["", "server", "user", "tunnel", "offload"] {
        let with_unknown = if section.is_empty() {
            format!("zzzzzzzz = 1\n{text}")
        } else {
            text.replace(&format!("[{section}]\n"), &format!("[{section}]\nzzzzzzzz = 1\n"))
        };
        let message = problem(&with_unknown);
        let (_, known) = message.split_once("; it knows ").expect(&message);
        for (_, key) in keys.iter().filter(|(of, _)| of == section) {
            assert!(known.contains(&format!("'{key}'")), "{key}: {known}");
        }
        let sections = if section.is_empty() { 4 } else { 0 };
        let count = keys.iter().filter(|(of, _)| of == section).count() + sections;
        assert_eq!(known.matches('\'').count(), 2 * count, "[{section}] of the page lacks one of {known}");
    }
}

#[test]
fn only_the_keys_that_the_page_requires_are_required() {
    let least = "version = 1\n[server]\naddresses = ['vpn.example.org:4433']\ntrust = 'system'\n";
    let profile = Profile::parse(least, "ann.toml").unwrap();
    assert_eq!((profile.user, profile.server_name.as_str()), (None, "vpn.example.org"));
    for line in least.lines().filter(|line| !line.starts_with('[')) {
        problem(&least.replace(line, ""));
    }
}

#[test]
fn servers_are_names_or_addresses_with_an_optional_port() {
    for (text, host, port) in [
        ("vpn.example.org", "vpn.example.org", 4433),
        ("vpn.example.org:443", "vpn.example.org", 443),
        ("192.0.2.1:443", "192.0.2.1", 443),
        ("[2001:db8::1]:443", "2001:db8::1", 443),
        ("[2001:db8::1]", "2001:db8::1", 4433),
        ("2001:db8::1", "2001:db8::1", 4433),
    ] {
        let server: ServerAddress = text.parse().unwrap();
        assert_eq!((server.host.as_str(), server.port), (host, port), "{text}");
        assert_eq!(server.to_string().parse(), Ok(server));
    }
    for text in ["", ":443", "a b:443", "vpn.example.org:", "vpn.example.org:99999", "[vpn]:443", "-x:1"] {
        assert!(text.parse::<ServerAddress>().is_err(), "{text}");
    }
}

#[test]
fn login_names_are_texts_that_users_can_type() {
    for name in ["ann", "UNI.EXAMPLE\\ann", "m\u{fc}ller@uni.example", "o'neill", "ann lee", &"a".repeat(128)]
    {
        assert!(is_login_name(name), "{name}");
    }
    for name in ["", "  ", "a\nb", "a\u{7f}", &"a".repeat(129)] {
        assert!(!is_login_name(name), "{name:?}");
    }
}
