//! Behaviour: a user who is not root brings a profile, which says who logs in and nothing else; one
//! that is none, or for a gateway that the machine does not know, is refused in one sentence, and
//! nothing has changed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::client_service::{ANN, BOB, Machine, User, refused};
use crate::gateway::{Gateway, edit_toml, must, write_secret};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, eventually};
use crate::over_tcp;
use crate::process::{self, Process, text};
use crate::reload::counter;
use crate::traffic::ping_until;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A file of this user with this text.
fn file(lab: &Lab, user: User, name: &str, text: &[u8]) -> PathBuf {
    let path = lab.path(format!("{}-{name}", user.name));
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&path, Some(user.uid), Some(user.uid)).unwrap();
    path
}

fn has_own(lab: &Lab, user: User) -> bool {
    lab.path("state1").join(format!("users/{}-{}/profiles", user.uid, user.name)).exists()
}

#[test]
fn a_user_brings_who_logs_in_and_the_machine_all_else() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    gateway.start();
    let machine = Machine::new(&lab, &ann);
    edit_toml(&bob.profile, |profile| {
        let tunnel = profile["tunnel"].as_table_mut().unwrap();
        tunnel.insert("routes".to_owned(), "all".into());
        tunnel.insert("kill_switch".to_owned(), "persistent".into());
    });
    let own = file(&lab, BOB, "mine.toml", &fs::read(&bob.profile).unwrap());
    let said = text(&must(machine.run(BOB, &["import", own.to_str().unwrap(), "--name", "mine"])));
    assert!(said.contains("'mine' is a profile of yours now") && said.contains("'work'"), "{said}");
    let listed = |user| text(&must(machine.run(user, &["list"])));
    assert_eq!(listed(BOB), "mine (your own): 198.18.0.2\nwork: 198.18.0.2\n");
    assert_eq!(listed(ANN), "work: 198.18.0.2\n", "it is nobody else's");
    refused(&machine.run(ANN, &["up", "mine"]), "there is no profile 'mine'");
    refused(&machine.run(ANN, &["forget", "mine"]), "there is no profile 'mine'");

    let password = machine.password(BOB, "bob's password");
    must(machine.run(BOB, &["up", "mine", "--credentials", &password]));
    ping_until(machine.place(), CAMPUS_V4.into(), TIMEOUT);
    assert_eq!(gateway.sessions()[0]["user"], "bob");
    let routes = machine.tunnels(BOB)[0]["details"]["routes"].clone();
    assert!(!routes.as_array().unwrap().contains(&"0.0.0.0/0".into()), "{routes}");
    assert!(crate::kill_switch::rules(&lab).is_none(), "that is not the user's to say");
    refused(&machine.run(BOB, &["forget", "mine"]), "is connected");
    must(machine.run(BOB, &["down"]));
    machine.is_clean();

    // An administrator who takes the gateway away takes it from the user's profile, too.
    let work = fs::read_to_string(machine.profile()).unwrap();
    edit_toml(&machine.profile(), |profile| profile["server"]["name"] = "other.example".into());
    refused(
        &machine.run(BOB, &["up", "mine", "--credentials", &password]),
        "is gone, wrong or for another gateway now",
    );
    fs::write(machine.profile(), work).unwrap();
    let said = text(&must(machine.run(BOB, &["forget", "mine"])));
    assert_eq!(said, "'mine' is removed\n");
    refused(&machine.run(BOB, &["forget", "work"]), "an administrator removes it");
    assert_eq!(listed(BOB), "work: 198.18.0.2\n");

    // Root's is everybody's.
    let said = must(machine.run_as_root(&["import", bob.profile.to_str().unwrap(), "--name", "lab"]));
    assert!(text(&said).contains("a profile of this machine now"), "{}", text(&said));
    assert_eq!(listed(ANN), "lab: 198.18.0.2\nwork: 198.18.0.2\n");
    must(machine.run_as_root(&["forget", "lab"]));
    assert_eq!(listed(ANN), "work: 198.18.0.2\n");
}

#[test]
fn what_is_no_profile_of_the_machines_gateway_is_refused_and_changes_nothing() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, ann) = Gateway::for_ann(&lab);
    let machine = Machine::new(&lab, &ann);
    let good = fs::read_to_string(&ann.profile).unwrap();
    let import = |text: &[u8]| {
        let path = file(&lab, ANN, "x.toml", text);
        machine.run(ANN, &["import", path.to_str().unwrap()])
    };
    edit_toml(&ann.profile, |profile| profile["server"]["name"] = "vpn.other.example".into());
    let foreign = fs::read_to_string(&ann.profile).unwrap();
    edit_toml(&ann.profile, |profile| profile["server"]["ca"] = over_tcp::certificate("x").0.into());
    let impostor = fs::read_to_string(&ann.profile).unwrap().replace("vpn.other.example", "198.18.0.2");
    let long = "#".repeat(70_000);
    for (text, words) in [
        (foreign.as_str(), "no profile of this machine is for the gateway vpn.other.example"),
        (impostor.as_str(), "with the same authority"),
        (&good.replace("version = 1", "version = 9"), "another version of vpnd (format 9"),
        (&good[..good.len() / 2], "this profile is damaged"),
        (&good.replace("version = 1", "version = 1\n\"\x1b[2J\" = 1"), "this profile is damaged"),
        ("", "this profile is damaged"),
        ("[Interface]\nPrivateKey = x\n[Peer]\nEndpoint = a:1\n", "a file of a stock WireGuard client"),
        ("<!DOCTYPE html>\n<title>Log in</title>\n", "a web page and no profile"),
        (&long, "longer than 65536 bytes"),
    ] {
        let output = import(text.as_bytes());
        refused(&output, words);
    }
    refused(&import(&[0xFF, 0xFE]), "not text");
    for (source, words) in [
        ("/nonexistent/x.toml", "can't read"),
        ("http://198.18.0.2/x.toml", "begins with https://"),
        ("file:///etc/passwd", "begins with https://"),
        // The machine of this test trusts no authority.
        ("https://198.18.1.1:9/x.toml", "authorities can't be read"),
    ] {
        refused(&machine.run(ANN, &["import", source]), words);
    }
    // A file that the user can't read is not read for the user.
    let secret = lab.path("secret.toml");
    write_secret(&secret, &good);
    refused(&machine.run(ANN, &["import", secret.to_str().unwrap()]), "Permission denied");
    let open = file(&lab, ANN, "open.toml", good.as_bytes());
    fs::set_permissions(&open, fs::Permissions::from_mode(0o664)).unwrap();
    refused(&machine.run(ANN, &["import", open.to_str().unwrap()]), "chmod go-w");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    refused(&machine.run(BOB, &["import", open.to_str().unwrap()]), "belongs to user 61501");
    refused(&machine.run(ANN, &["import", open.to_str().unwrap(), "--name", "../x"]), "a profile's name has");
    refused(&machine.run(ANN, &["import", open.to_str().unwrap(), "--name", "work"]), "'work' already");
    assert!(!has_own(&lab, ANN) && !has_own(&lab, BOB), "nothing has changed");
    must(machine.run(ANN, &["import", open.to_str().unwrap()]));
    assert!(has_own(&lab, ANN) && text(&must(machine.run(ANN, &["list"]))).contains("ann-open (your own)"));
}

/// `openssl s_server`, which sends the files of a directory.
fn web_server(lab: &Lab, directory: &Path, certificate: &Path, key: &Path) -> Process {
    let mut command = process::command(lab, &lab.net, "sh");
    let serve = "cd \"$1\" && exec openssl s_server -accept 8443 -cert \"$2\" -key \"$3\" -WWW";
    command.args(["-c", serve, "sh"]).arg(directory).arg(certificate).arg(key);
    let server = Process::start(lab, "web-server", command);
    eventually("the web server is there", TIMEOUT, || {
        lab.clients[0].within(|| std::net::TcpStream::connect("198.18.1.1:8443").ok()).map(drop)
    });
    server
}

#[test]
fn a_profile_is_fetched_from_the_web_by_the_user_and_pages_are_none() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, ann) = over_tcp::installation(&lab);
    let machine = Machine::new(&lab, &ann);
    let (certificate, key) = over_tcp::certificate("198.18.1.1");
    let web = lab.path("web");
    fs::create_dir(&web).unwrap();
    fs::copy(&ann.profile, web.join("uni.toml")).unwrap();
    fs::write(web.join("web.pem"), &certificate).unwrap();
    write_secret(&lab.path("web-key.pem"), &key);
    let _server = web_server(&lab, &web, &web.join("web.pem"), &lab.path("web-key.pem"));
    // This machine trusts the web server and the gateway's pages.
    let pages = fs::read_to_string(gateway.file("portal.pem")).unwrap();
    let trusted = file(&lab, ANN, "trusted.pem", format!("{certificate}{pages}").as_bytes());
    let only_pages = file(&lab, ANN, "pages.pem", pages.as_bytes());
    let import_with = |trusted: &Path, source: &str| {
        let mut command = machine.command(ANN, &["import", source]);
        command.env("SSL_CERT_FILE", trusted);
        process::run(command)
    };
    let import = |source: &str| import_with(&trusted, source);
    refused(&import(&format!("https://{GATEWAY_V4}/profile")), "as pages do that need a login");
    refused(&import("https://198.18.1.1:8443/web.pem"), "this profile is damaged");
    refused(&import("https://198.18.1.1:9/uni.toml"), "can't be reached");
    let without = import_with(&only_pages, "https://198.18.1.1:8443/uni.toml");
    refused(&without, "no certificate that this machine trusts");
    assert!(!has_own(&lab, ANN));
    let said = text(&must(import("https://198.18.1.1:8443/uni.toml")));
    assert!(said.contains("'uni' is a profile of yours now"), "{said}");

    // The page on which its password is changed.
    let said = text(&must(machine.run(ANN, &["password", "uni"])));
    assert!(said.ends_with(&format!("https://{GATEWAY_V4}/password\n")), "{said}");
    refused(&machine.run(ANN, &["password"]), "there are several profiles");
    refused(&machine.run(ANN, &["password", "x"]), "there is no profile 'x'");
    must(machine.run(ANN, &["forget", "uni"]));
    edit_toml(&machine.profile(), |profile| {
        profile["server"].as_table_mut().unwrap().remove("tcp_port");
    });
    refused(&machine.run(ANN, &["password"]), "names no web pages");
    let mut curl = process::command(&lab, machine.place(), "curl");
    curl.args(["--silent", "--insecure", "--output", "/dev/null", "--write-out", "%{http_code}"]);
    curl.arg(format!("https://{GATEWAY_V4}/password"));
    assert_eq!(text(&must(process::run(curl))), "303", "the page is there, and wants a login first");
}

/// Has ann connect by `cafe` through a network that passes only what its proxy asks for; the client
/// does not get through.
fn tries_without_a_proxy(lab: &Lab, machine: &Machine<'_>, password: &str) {
    let failures = || machine.log().matches("no connection to the gateway: ").count();
    let asked = || counter(lab, &lab.net, "proxy", "asked");
    let before = (failures(), asked());
    let command = machine.command(ANN, &["up", "cafe", "--credentials", password]);
    let mut up = Process::start(lab, "up", command);
    eventually("the client has tried UDP and TCP", TIMEOUT, || {
        up.assert_running();
        (failures() > before.0).then_some(())
    });
    drop(up);
    machine.is_down();
    assert_eq!(asked(), before.1, "the proxy was asked");
}

#[test]
fn a_users_own_proxy_is_a_way_out_only_where_the_machines_profile_permits_it() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, ann) = over_tcp::installation(&lab);
    let machine = Machine::new(&lab, &ann);
    over_tcp::drop_udp(&lab, "meta nfproto { ipv4, ipv6 }");
    let _squid = over_tcp::squid(&lab, Some(("guest", "words")));
    lab.net.nft(
        "table inet proxy {\n\
           counter asked { }\n\
           chain in { type filter hook input priority 0; tcp dport 3128 ct state new counter name asked; }\n\
         }\n",
    );
    over_tcp::through(&ann, "http://guest:words@198.18.1.1:3128");
    let own = file(&lab, ANN, "own.toml", &fs::read(&ann.profile).unwrap());
    let import = || must(machine.run(ANN, &["import", own.to_str().unwrap(), "--name", "cafe"]));
    let permit = |permits: bool| {
        edit_toml(&machine.profile(), |profile| {
            profile["server"].as_table_mut().unwrap().insert("user_proxy".to_owned(), permits.into());
        });
    };
    let password = machine.password(ANN, "ann's password");
    import();
    tries_without_a_proxy(&lab, &machine, &password);
    permit(true);
    // Profiles that were imported without that permission have no proxy.
    tries_without_a_proxy(&lab, &machine, &password);

    must(machine.run(ANN, &["forget", "cafe"]));
    import();
    must(machine.run(ANN, &["up", "cafe", "--credentials", &password]));
    ping_until(machine.place(), CAMPUS_V4.into(), TIMEOUT);
    assert!(over_tcp::is_over_tcp(&gateway));
    assert_eq!(machine.tunnels(ANN)[0]["details"]["transport"], "tcp");
    assert!(!machine.log().contains("guest:words"), "{}", machine.log());
    must(machine.run(ANN, &["down"]));
    machine.is_down();

    permit(false);
    assert!(counter(&lab, &lab.net, "proxy", "asked") > 0);
    tries_without_a_proxy(&lab, &machine, &password);
}
