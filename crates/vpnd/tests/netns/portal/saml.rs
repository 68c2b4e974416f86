//! Behaviour: users of a SAML identity provider log in through a bridge, a real one (SATOSA), with
//! the files of docs/SAML.md; and what that page says is lost, is.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::{CertificateParams, KeyPair};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::connect::{answer, in_browser, page_of};
use super::{Browser, SOON, configure, serves};
use crate::audit::recorded;
use crate::gateway::{Gateway, edit_toml, must, write_secret};
use crate::identity::add_source;
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, eventually};
use crate::names::PROVIDERS;
use crate::openid::{Page, Traveller};
use crate::process::{self, Process};
use crate::traffic::ping_until;

const BRIDGE_PORT: u16 = 8443;
const IDP_PORT: u16 = 8901;
/// SATOSA decodes no other signs in a secret than letters and digits.
const SECRET: &str = "4ed60b1fc1d3ab1a4e0b1cf9a3a3a5e6";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Its packages, as `./x setup` installs them.
fn packages() -> Option<PathBuf> {
    let installed = root().join("target/tools/satosa");
    if installed.join("satosa").exists() {
        return Some(installed);
    }
    assert!(std::env::var_os("CI").is_none(), "this test needs satosa: ./x setup");
    eprintln!("SKIPPED: there is no satosa; run ./x setup");
    None
}

/// The blocks of docs/SAML.md that are files, by their names, and the commands that make keys.
fn documented() -> (Vec<(String, String)>, String) {
    let text = fs::read_to_string(root().join("docs/SAML.md")).unwrap();
    let (mut files, mut commands) = (Vec::new(), String::new());
    let mut parts = text.split("```");
    // The text before each block names it.
    while let (Some(before), Some(block)) = (parts.next(), parts.next()) {
        let (kind, block) = block.split_once('\n').unwrap();
        let lines = block.lines().map(|line| line.strip_prefix("   ").unwrap_or(line));
        let block = lines.collect::<Vec<_>>().join("\n");
        match kind {
            "sh" => commands.push_str(&block),
            "yaml" | "json" => {
                let named = before.trim_end().lines().last().unwrap().trim();
                let name = named.strip_prefix('`').and_then(|rest| rest.split('`').next()).unwrap();
                files.push((name.to_owned(), block));
            }
            _ => {}
        }
    }
    (files, commands)
}

/// The identity provider and the bridge before it, both at the edge of `net`.
struct Bridge<'l> {
    lab: &'l Lab,
    packages: PathBuf,
    directory: PathBuf,
    processes: Vec<Process>,
}

impl<'l> Bridge<'l> {
    /// Starts both, for users of whom the identity provider says this.
    fn start(lab: &'l Lab, users: &Value) -> Option<Self> {
        let packages = packages()?;
        let directory = lab.path("bridge");
        fs::create_dir(&directory).unwrap();
        let (files, commands) = documented();
        assert_eq!(files.len(), 5, "{files:?}");
        for (name, text) in files {
            let text = text.replace("bridge.uni.example", &format!("{PROVIDERS}:{BRIDGE_PORT}"));
            let text = text.replace("vpn.uni.example", &GATEWAY_V4.to_string()).replace("/sso", "/uni");
            fs::write(directory.join(name), text.replace("REPLACE-3", SECRET)).unwrap();
        }
        // Outside of the laboratory, whose /etc has no configuration of openssl.
        let mut keys = Command::new("sh");
        keys.args(["-ec", &commands]).current_dir(&directory);
        must(process::run(keys));
        // The browsers of these tests trust what is in this file.
        let key = KeyPair::generate().unwrap();
        let own = CertificateParams::new(vec![PROVIDERS.to_owned()]).unwrap().self_signed(&key).unwrap();
        fs::write(lab.path("provider.pem"), own.pem()).unwrap();
        fs::write(lab.path("provider-key.pem"), key.serialize_pem()).unwrap();
        let mut bridge = Self { lab, packages, directory, processes: Vec::new() };
        bridge.users(users);
        bridge.restart();
        Some(bridge)
    }

    /// Sets the attributes of the identity provider's users.
    fn users(&self, users: &Value) {
        fs::write(self.directory.join("users.json"), users.to_string()).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let file = |name: &str| self.directory.join(name);
        let mut command = process::command(self.lab, &self.lab.net, "python3");
        command.args(arguments).current_dir(&self.directory).env("PYTHONPATH", &self.packages);
        command.env("SATOSA_CONFIG", "proxy_conf.yaml").env("PYTHONWARNINGS", "ignore");
        command.env("HOME", &self.directory);
        command.env("BASE", format!("http://{PROVIDERS}:{IDP_PORT}")).env("XMLSEC", "/usr/bin/xmlsec1");
        // The identity provider's own key is made as the bridge's.
        command.env("KEY", file("idp-key.pem")).env("CERTIFICATE", file("idp.pem"));
        command.env("USERS", file("users.json")).env("BRIDGE", file("bridge.xml"));
        command
    }

    fn restart(&mut self) {
        for mut process in self.processes.drain(..) {
            // So that the bridge ends its worker, too.
            process.signal(Signal::TERM);
            process.wait(SOON);
        }
        let idp = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/netns/portal/saml/idp.py");
        let idp = idp.to_str().unwrap();
        if !self.directory.join("idp.xml").exists() {
            let mut key = Command::new("openssl");
            key.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=idp"]);
            key.args(["-keyout", "idp-key.pem", "-out", "idp.pem"]).current_dir(&self.directory);
            must(process::run(key));
            let metadata = must(process::run(self.command(&[idp, "metadata"])));
            fs::write(self.directory.join("idp.xml"), metadata.stdout).unwrap();
        }
        let bind = format!("{PROVIDERS}:{BRIDGE_PORT}");
        let (certificate, key) = (self.lab.path("provider.pem"), self.lab.path("provider-key.pem"));
        let tls = ["--certfile", certificate.to_str().unwrap(), "--keyfile", key.to_str().unwrap()];
        let arguments = [&["-m", "gunicorn", "--bind", &bind], &tls[..], &["satosa.wsgi:app"]].concat();
        let mut bridge = Process::start(self.lab, "satosa", self.command(&arguments));
        let metadata = eventually("the bridge serves its metadata", SOON, || {
            bridge.assert_running();
            let mut fetch = process::command(self.lab, &self.lab.net, "curl");
            fetch.args(["--silent", "--fail", "--cacert"]).arg(&certificate);
            fetch.arg(format!("https://{bind}/saml/metadata"));
            Some(process::run(fetch)).filter(|fetched| fetched.status.success())
        });
        fs::write(self.directory.join("bridge.xml"), metadata.stdout).unwrap();
        let mut provider = Process::start(self.lab, "saml-idp", self.command(&[idp]));
        eventually("the identity provider listens", SOON, || {
            provider.assert_running();
            provider.output().contains("listening").then_some(())
        });
        self.processes.extend([bridge, provider]);
    }

    /// A gateway whose users log in by it.
    fn gateway(&self) -> Gateway<'l> {
        let mut gateway = Gateway::init(self.lab);
        configure(&gateway);
        write_secret(&gateway.file("oidc.secret"), SECRET);
        gateway.configure("portal.url", format!("https://{GATEWAY_V4}"));
        let source = format!(
            "name = 'uni'\nkind = 'oidc'\nrealm = 'uni.example'\nissuer = 'https://{PROVIDERS}:{BRIDGE_PORT}'\n\
             client_id = 'vpn'\nclient_secret_file = 'oidc.secret'\nca = {:?}\n",
            self.lab.path("provider.pem")
        );
        add_source(&gateway, &source);
        edit_toml(&gateway.config(), |table| {
            table.extend("[[profile]]\nname = 'staff'\ngroups = ['staff']\n".parse::<toml::Table>().unwrap());
        });
        gateway.start();
        serves(&Browser::new(self.lab, &self.lab.clients[0], &gateway));
        gateway
    }

    /// Goes from the login page through the bridge to the identity provider, and back as far as
    /// that leads.
    fn log_in(&self, browser: &Traveller<'_>, query: &str, user: &str) -> Page {
        let mut page = browser.step(&format!("https://{GATEWAY_V4}/oidc/start/uni{query}"));
        while page.status == 303 {
            page = browser.step(&page.address);
        }
        let form = format!("http://{PROVIDERS}:{IDP_PORT}{}", part(&page, "action=\""));
        let page = browser.request(&form, &[("user", user)], false);
        if page.status != 200 {
            return page;
        }
        let fields = ["SAMLResponse", "RelayState"]
            .map(|name| (name, part(&page, &format!("name=\"{name}\" value=\"")).to_owned()));
        let fields = fields.each_ref().map(|(name, value)| (*name, value.as_str()));
        let page = browser.request(part(&page, "action=\""), &fields, false);
        if page.status == 303 { browser.get(&page.address) } else { page }
    }
}

/// Returns the part of a page from there to the next quotation mark.
fn part<'p>(page: &'p Page, before: &str) -> &'p str {
    let rest = page.body.split(before).nth(1).unwrap_or_else(|| panic!("no {before} in {page:?}"));
    rest.split('"').next().unwrap()
}

fn refused_with(page: &Page, words: &str) {
    assert!(page.body.contains("role=\"alert\"") && page.body.contains(words), "{page:?}");
}

fn users() -> Value {
    json!({
        "ann": {"uid": "ann", "isMemberOf": ["staff", "all"], "pairwise-id": "7A3C@uni.example"},
        "bob": {"uid": "bob", "isMemberOf": ["guests"], "pairwise-id": "9F01@uni.example"},
        "eve": {"uid": "ann", "isMemberOf": ["staff"]},
    })
}

#[test]
fn users_of_a_saml_provider_log_in_through_a_bridge() {
    let Some(lab) = Lab::new(1) else { return };
    let Some(mut bridge) = Bridge::start(&lab, &users()) else { return };
    let gateway = bridge.gateway();
    let portal = gateway.file("portal.pem");
    let traveller = || Traveller::new(&lab, &lab.clients[0], &portal);
    let mut client = Process::start(&lab, "client1", in_browser(&lab, 1, &gateway));
    let ann = traveller();
    ann.get(&page_of(&mut client));
    let page = bridge.log_in(&ann, "", "ann");
    assert!(page.address.ends_with("/connect") && page.body.contains("ann@uni.example"), "{page:?}");
    answer(&ann, &page, "yes");
    ping_until(&lab.clients[0], CAMPUS_V4.into(), SOON);
    assert_eq!(gateway.sessions()[0]["user"], "ann@uni.example");

    // Groups decide; a user without a permanent identifier is stopped at the bridge.
    refused_with(&bridge.log_in(&traveller(), "", "bob"), "has no access to the VPN");
    assert_eq!(bridge.log_in(&traveller(), "", "eve").status, 500);
    // She is the same to a bridge that was started again.
    bridge.restart();
    assert!(bridge.log_in(&traveller(), "", "ann").body.contains("ann@uni.example"));
    let listed = process::text(&must(process::run(gateway.user(&["list"]))));
    assert_eq!(listed.matches("ann@uni.example").count(), 1, "{listed}");

    // The bridge does not say how old a login is.
    refused_with(&bridge.log_in(&traveller(), "?again", "ann"), "has not confirmed");
    // The gateway learns of a leaver at the next login only.
    bridge.users(&json!({}));
    assert_eq!(bridge.log_in(&traveller(), "", "ann").status, 403);
    assert!(ann.overview().is_some() && gateway.sessions().len() == 1);
}

#[test]
fn a_user_with_another_name_at_each_login_is_refused_from_the_second_on() {
    let Some(lab) = Lab::new(1) else { return };
    let Some(mut bridge) = Bridge::start(&lab, &users()) else { return };
    let path = bridge.directory.join("internal_attributes.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let transient = text.replace("user_id_from_attrs: [person]", "");
    assert_ne!(text, transient);
    fs::write(path, transient).unwrap();
    bridge.restart();
    let gateway = bridge.gateway();
    let portal = gateway.file("portal.pem");
    let log_in = || bridge.log_in(&Traveller::new(&lab, &lab.clients[0], &portal), "", "ann");
    assert!(log_in().body.contains("ann@uni.example"));
    assert!(!log_in().body.contains("ann@uni.example"));
    let refused = recorded(&gateway, "login-refused");
    assert!(
        refused.iter().any(|entry| entry["detail"].as_str().unwrap().contains("no-record")),
        "{refused:?}"
    );
}
