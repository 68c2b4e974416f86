//! `vpnd device …` on a real directory made by `vpnd init`.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Parser as _;
use ipnet::IpNet;

use super::*;
use crate::admin_store::InThisProcess;
use crate::cli::{Cli, Command};
use vpnd_store::password::Hasher;
use vpnd_store::sqlite::Sqlite;
use vpnd_store::{NewUser, Users as _, WireGuardDevices as _};

const NOW_S: u64 = 1_800_000_000;
const KEY: &str = "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=";

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new(change: impl Fn(String) -> String) -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap() };
        let line = ["vpnd", "init", "--name", "vpn.example.org", "--name", "192.0.2.1", "--dir"];
        let cli = Cli::parse_from(line.into_iter().chain([bench.path("").to_str().unwrap()]));
        let Command::Init(args) = cli.command else { panic!("not init") };
        crate::commands::init::init(&args, &InThisProcess, UNIX_EPOCH + Duration::from_secs(NOW_S)).unwrap();
        let text = fs::read_to_string(bench.config()).unwrap();
        let on = text.replace("[wireguard]\n", "[wireguard]\nenabled = true\n");
        assert_ne!(on, text);
        fs::write(bench.config(), change(on)).unwrap();
        let hash = Hasher::with_cost(8, 1).hash(&vpnd_store::password::Password::generate()).unwrap();
        for name in ["ann", "bob"] {
            bench.store().add_user(&NewUser::new(name, hash.clone()), NOW_S).unwrap();
        }
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn config(&self) -> PathBuf {
        self.path("server.toml")
    }

    fn store(&self) -> Sqlite {
        Sqlite::open(&self.path("state/vpnd.db")).unwrap()
    }

    fn at(&self, line: &str, now_s: u64) -> Result<String, DeviceError> {
        let words = ["vpnd", "device"].into_iter().chain(line.split(' '));
        let cli = Cli::parse_from(words.chain(["--config", self.config().to_str().unwrap()]));
        let Command::Device(command) = cli.command else { panic!("not device") };
        let mut out = Vec::new();
        run(&command, &InThisProcess, now_s, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    fn device(&self, line: &str) -> Result<String, DeviceError> {
        self.at(line, NOW_S)
    }

    fn refused(&self, line: &str) -> String {
        let before = self.store().wireguard_devices().unwrap();
        let error = self.device(line).unwrap_err().to_string();
        assert_eq!(self.store().wireguard_devices().unwrap(), before, "nothing was changed");
        error
    }

    fn state(&self, now_s: u64) -> String {
        let listed: serde_json::Value =
            serde_json::from_str(&self.at("list --json", now_s).unwrap()).unwrap();
        listed[0]["state"].as_str().unwrap().to_owned()
    }
}

type Parsed = BTreeMap<&'static str, BTreeMap<String, String>>;

/// A configuration as wg-quick(8) reads it, strictly: known keys once, with values of their kind.
fn parse(text: &str) -> Parsed {
    let known: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("Interface", &["PrivateKey", "Address", "DNS", "MTU"][..]),
        ("Peer", &["PublicKey", "PresharedKey", "AllowedIPs", "Endpoint", "PersistentKeepalive"][..]),
    ]);
    let (mut parsed, mut section) = (Parsed::new(), None);
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let (name, _) = known.get_key_value(name).expect("a known section");
            assert!(parsed.insert(*name, BTreeMap::new()).is_none(), "{name} twice");
            section = Some(*name);
            continue;
        }
        let (key, value) = line.split_once(" = ").expect("a setting");
        let section = section.expect("a setting stands in a section");
        assert!(known[section].contains(&key), "{key} in [{section}]");
        let values: Vec<&str> = value.split(", ").collect();
        let is_right = match key {
            "PrivateKey" | "PublicKey" | "PresharedKey" => value.parse::<PublicKey>().is_ok(),
            "Address" | "AllowedIPs" => values.iter().all(|value| value.parse::<IpNet>().is_ok()),
            "MTU" | "PersistentKeepalive" => value.parse::<u16>().is_ok(),
            "Endpoint" => value.parse::<vpnd_config::profile::ServerAddress>().is_ok(),
            _ => !value.is_empty(),
        };
        assert!(is_right, "{line}");
        let before = parsed.get_mut(section).expect("it is there").insert(key.to_owned(), value.to_owned());
        assert!(before.is_none(), "{key} twice");
    }
    parsed
}

#[test]
fn a_configuration_has_all_that_a_client_needs() {
    let bench = Bench::new(|text| {
        text.replace(
            "routes = []",
            "routes = ['0.0.0.0/0']\ndns = ['10.20.0.53']\nsearch = ['campus.example']",
        )
    });
    let text = bench.device("add --user ann --wireguard --name phone --preshared-key").unwrap();
    let parsed = parse(&text);
    let (interface, peer) = (&parsed["Interface"], &parsed["Peer"]);
    assert_eq!(
        (interface["MTU"].as_str(), interface["DNS"].as_str()),
        ("1280", "10.20.0.53, campus.example")
    );
    assert_eq!(peer["Endpoint"], "vpn.example.org:4433", "by name");
    assert_eq!(peer["AllowedIPs"], "0.0.0.0/0, ::/0", "nothing of either IP version goes around the tunnel");
    assert!(!peer.contains_key("PersistentKeepalive") && !text.contains("ListenPort"));
    let stored = bench.store().wireguard_devices().unwrap().remove(0);
    let private: [u8; 32] = STANDARD.decode(&interface["PrivateKey"]).unwrap().try_into().unwrap();
    assert_eq!(StaticKey::new(Secret::new(private)).public().0, stored.public_key);
    let preshared = STANDARD.encode(stored.preshared.expect("it was asked for").expose());
    assert_eq!(peer["PresharedKey"], preshared);
    let gateway = vpnd_pki::wireguard_key::open_or_create(&bench.path("state"), 1).unwrap();
    assert_eq!(peer["PublicKey"], gateway.public().to_string());
    let user = bench.store().user("ann").unwrap().unwrap();
    let fixed: Vec<_> =
        user.fixed_addresses.iter().map(|fixed| IpNet::from(fixed.address).to_string()).collect();
    assert_eq!(interface["Address"], fixed.join(", "), "they stay its own");
    for file in fs::read_dir(bench.path("state")).unwrap() {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        let is_in = |needle: &[u8]| bytes.windows(needle.len()).any(|part| part == needle);
        assert!(!is_in(&private) && !is_in(interface["PrivateKey"].as_bytes()), "a private key is kept");
    }
}

#[test]
fn the_gateway_itself_is_left_out_of_the_networks() {
    let bench = Bench::new(|text| {
        let text = text.replace("# addresses = [\"vpn.uni", "addresses = [\"192.0.2.1:4433\"] # [\"vpn.uni");
        // With another one, addresses of the machine that runs the test are left out, too.
        let text = text.replace("listen = \"[::]:4433\"", "listen = \"192.0.2.1:4433\"");
        let text = text.replace(
            "[wireguard]\nenabled = true",
            "[wireguard]\nenabled = true\nmtu = 1400\nkeepalive_s = 25",
        );
        text.replace("routes = []", "routes = ['192.0.2.0/24', '10.20.0.0/16']")
    });
    let text = bench.device(&format!("add --user ann --wireguard --public-key {KEY}")).unwrap();
    assert!(text.contains(&format!("# PrivateKey = the private key of {KEY}")), "{text}");
    let parsed = parse(&text);
    let (interface, peer) = (&parsed["Interface"], &parsed["Peer"]);
    assert_eq!(interface.get("PrivateKey"), None);
    assert_eq!((interface["MTU"].as_str(), peer["PersistentKeepalive"].as_str()), ("1400", "25"));
    let allowed: Vec<IpNet> = peer["AllowedIPs"].split(", ").map(|net| net.parse().unwrap()).collect();
    let leads = |address: [u8; 4]| allowed.iter().any(|net| net.contains(&IpAddr::from(address)));
    assert!(
        !leads([192, 0, 2, 1]) && leads([192, 0, 2, 2]) && leads([192, 0, 2, 0]) && leads([10, 20, 3, 4])
    );
    assert!(leads([10, 86, 0, 9]), "other clients, too");
}

#[test]
fn what_is_refused_changes_nothing() {
    let bench = Bench::new(|text| text);
    let with = |key: &str| format!("add --user ann --wireguard --public-key {key}");
    assert!(bench.refused(&with("short")).contains("44 characters"));
    let low_order = PublicKey([0; 32]).to_string();
    assert!(bench.refused(&with(&low_order)).contains("low order"));
    let own = vpnd_pki::wireguard_key::open_or_create(&bench.path("state"), 0).unwrap().public();
    assert!(bench.refused(&with(&own.to_string())).contains("gateway's own key"));
    bench.device(&with(KEY)).unwrap();
    let taken = bench.refused(&format!("add --user bob --wireguard --public-key {KEY}"));
    assert!(taken.contains("'ann' has this key"), "{taken}");
    bench.device("add --user bob --wireguard --name phone").unwrap();
    assert!(bench.refused("add --user bob --wireguard --name phone").contains("named 'phone' already"));
    assert!(bench.refused("add --user eve --wireguard").contains("no user 'eve'"));
    bench.store().set_enabled("bob", false, NOW_S).unwrap();
    assert!(bench.refused("add --user bob --wireguard").contains("is disabled"));
    assert!(bench.refused("renew --user bob phone").contains("is disabled"));
    bench.store().set_enabled("bob", true, NOW_S).unwrap();
    let change = vpnd_store::UserChange { expires_s: Some(Some(NOW_S)), ..vpnd_store::UserChange::default() };
    bench.store().modify_user("bob", &change, NOW_S).unwrap();
    assert!(bench.refused("add --user bob --wireguard").contains("has expired"));
    assert!(bench.refused("remove --user ann phone").contains("0 WireGuard devices of 'ann'"));
}

#[test]
fn profiles_decide_who_may_have_one() {
    let bench = Bench::new(|text| {
        text + "[[profile]]\nname = 'a'\nusers = ['ann']\nrequire = ['otp']\n[[profile]]\nname = 'c'\nusers = ['cid']\n"
    });
    assert!(
        bench
            .refused("add --user ann --wireguard")
            .contains("second factor or a recent login (max_login_age_s)")
    );
    assert!(bench.refused("add --user bob --wireguard").contains("no access profile"));
    let off = Bench::new(|text| text.replace("[wireguard]\nenabled = true", "[wireguard]\nenabled = false"));
    assert!(off.refused("add --user ann --wireguard").contains("enabled = true in [wireguard]"));
}

#[test]
fn a_user_has_as_many_devices_as_the_profile_allows() {
    let bench = Bench::new(|text| {
        let text = text.replace("[wireguard]\n", "[wireguard]\nmax_devices = 2\n");
        let few = "[[profile]]\nname = 'a'\nusers = ['ann']\nwireguard_max_devices = 1\n";
        text + few + "[[profile]]\nname = 'b'\n"
    });
    bench.device("add --user ann --wireguard").unwrap();
    let refused = bench.refused("add --user ann --wireguard");
    assert!(refused.contains("as many WireGuard devices as the access profile allows (1)"), "{refused}");
    for name in ["phone", "laptop"] {
        bench.device(&format!("add --user bob --wireguard --name {name}")).unwrap();
    }
    assert!(bench.refused("add --user bob --wireguard").contains("profile allows (2)"));
    bench.device("remove --user bob phone").unwrap();
    bench.device("add --user bob --wireguard").unwrap();
}

#[test]
fn a_small_pool_gives_each_address_once() {
    let bench = Bench::new(|text| {
        let v6 = text.lines().find(|line| line.starts_with("pool_v6")).unwrap().to_owned();
        text.replace("10.86.0.0/16", "10.86.0.0/29").replace(&v6, "")
    });
    let address =
        || parse(&bench.device("add --user ann --wireguard").unwrap())["Interface"]["Address"].clone();
    let mut given: Vec<String> = (0..5).map(|_| address()).collect();
    given.sort();
    given.dedup();
    assert_eq!(given.len(), 5, "{given:?}");
    assert!(bench.refused("add --user ann --wireguard").contains("no address is free"));
    let device = bench.store().wireguard_devices().unwrap().remove(0);
    let key = PublicKey(device.public_key).to_string();
    bench.device(&format!("remove --user ann {key}")).unwrap();
    address();
}

#[test]
fn a_device_is_listed_renewed_and_removed() {
    let bench = Bench::new(|text| text);
    bench.device("add --user ann --wireguard --name phone").unwrap();
    let listed = bench.device("list").unwrap();
    assert!(listed.contains("ann") && listed.contains("phone") && listed.contains("10.86."), "{listed}");
    assert!(bench.device("list --user bob").unwrap().lines().count() == 1);
    let day = 86_400;
    assert!(bench.state(NOW_S).starts_with("until"));
    assert!(bench.state(NOW_S + day).contains("waits for 'vpnd device renew'"));
    bench.at("renew --user ann phone", NOW_S + day).unwrap();
    assert!(bench.state(NOW_S + day).starts_with("until"));
    let device = bench.store().wireguard_devices().unwrap().remove(0);
    bench.store().wall_wireguard_device(device.id, NOW_S).unwrap();
    assert!(bench.state(NOW_S).starts_with("kicked"));
    let shown = vpnd_store::HandshakeShown { public_key: device.public_key, time: [9; 12], is_own: false };
    bench.store().keep_handshakes(&[shown]).unwrap();
    bench.device("renew --user ann phone").unwrap();
    assert!(bench.store().wireguard_devices().unwrap()[0].latest.is_some());
    bench.device("renew --user ann phone --reset-clock").unwrap();
    let device = bench.store().wireguard_devices().unwrap().remove(0);
    assert_eq!((device.latest, device.walled_s), (None, None));
    bench.device("remove --user ann phone").unwrap();
    assert!(bench.store().wireguard_devices().unwrap().is_empty());
}

#[test]
fn a_users_name_is_the_one_that_its_source_has() {
    let bench = Bench::new(|text| {
        text + "\n[[source]]\nname = 'campus'\nkind = 'radius'\nmatch = '*@campus.example'\n\
                servers = ['radius://192.0.2.1']\nsecret_file = 'secret'\n"
    });
    let hash = Hasher::with_cost(8, 1).hash(&vpnd_store::password::Password::generate()).unwrap();
    bench.store().add_user(&NewUser::new("eve@campus.example", hash), NOW_S).unwrap();
    bench.device("add --user Eve@Campus.Example --wireguard --name phone").unwrap();
    assert!(bench.device("list --user EVE@campus.example").unwrap().contains("phone"));
    bench.device("renew --user Eve@Campus.Example phone").unwrap();
    bench.device("remove --user Eve@Campus.Example phone").unwrap();
    assert!(bench.store().wireguard_devices().unwrap().is_empty());
}

#[test]
fn the_addresses_in_a_devices_file_stay_its_own() {
    let bench = Bench::new(|text| text);
    bench.device("add --user ann --wireguard --name phone").unwrap();
    let device = hex(&bench.store().wireguard_devices().unwrap()[0].id.0);
    let before = bench.store().user("ann").unwrap().unwrap().fixed_addresses;
    for change in ["--no-address", "--address 10.86.0.77"] {
        let line = format!("vpnd user modify ann --device {device} {change}");
        let config = bench.config();
        let words = line.split(' ').chain(["--config", config.to_str().unwrap()]);
        let Command::User(command) = Cli::parse_from(words).command else { panic!("not user") };
        let error = users::run(&command, &InThisProcess, NOW_S, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("is a WireGuard device"), "{error}");
    }
    assert_eq!(bench.store().user("ann").unwrap().unwrap().fixed_addresses, before);
}
