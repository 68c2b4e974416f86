//! An OpenID provider for tests (`oidc-provider`, certified), at the edge of `net`, where gateways
//! and browsers reach it, and browsers that log in there.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};

use crate::gateway::{Gateway, must, write_secret};
use crate::identity::{add_further_source, add_source};
use crate::lab::{GATEWAY_V4, Lab, eventually};
use crate::names::PROVIDERS;
use crate::namespace::Namespace;
use crate::process::{self, Process};

const TIMEOUT: Duration = Duration::from_secs(60);
const PORT: u16 = 8443;
const OTHER_PORT: u16 = 8444;
const SECRET: &str = "the secret of the gateway, as long as it has to be";

/// Its packages, as `./x setup` installs them.
fn packages() -> Option<PathBuf> {
    let installed =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/oidc-provider/node_modules");
    if installed.exists() {
        return Some(installed.canonicalize().unwrap());
    }
    assert!(std::env::var_os("CI").is_none(), "this test needs oidc-provider: ./x setup");
    eprintln!("SKIPPED: there is no oidc-provider; run ./x setup");
    None
}

/// The provider's process.
pub(crate) struct OpenId<'l> {
    lab: &'l Lab,
    packages: PathBuf,
    process: Option<Process>,
    /// The name of the source.
    name: &'static str,
    port: u16,
}

impl<'l> OpenId<'l> {
    /// Starts one that knows these users with their groups.
    pub(crate) fn start(lab: &'l Lab, groups: &serde_json::Value) -> Option<Self> {
        let packages = packages()?;
        let key = KeyPair::generate().unwrap();
        let own = CertificateParams::new(vec![PROVIDERS.to_owned()]).unwrap().self_signed(&key).unwrap();
        fs::write(lab.path("provider.pem"), own.pem()).unwrap();
        fs::write(lab.path("provider-key.pem"), key.serialize_pem()).unwrap();
        Some(Self::begin(lab, packages, "uni", PORT, groups))
    }

    /// Starts another one besides, for the source `other`.
    pub(crate) fn start_other(&self, groups: &serde_json::Value) -> Self {
        Self::begin(self.lab, self.packages.clone(), "other", OTHER_PORT, groups)
    }

    fn begin(
        lab: &'l Lab,
        packages: PathBuf,
        name: &'static str,
        port: u16,
        groups: &serde_json::Value,
    ) -> Self {
        let mut provider = Self { lab, packages, process: None, name, port };
        provider.groups(groups);
        provider.mode("as it should be");
        provider.restart();
        provider
    }

    fn file(&self, name: &str) -> PathBuf {
        self.lab.path(format!("{}-{name}", self.name))
    }

    /// The users with their groups from now on.
    pub(crate) fn groups(&self, groups: &serde_json::Value) {
        replace(&self.file("groups.json"), &groups.to_string());
    }

    /// Changes its answers from now on (`openid/provider.mjs`).
    pub(crate) fn mode(&self, mode: &str) {
        replace(&self.file("mode"), mode);
    }

    pub(crate) fn stop(&mut self) {
        self.process = None;
    }

    pub(crate) fn restart(&mut self) {
        let lab = self.lab;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/netns/openid/provider.mjs");
        let mut command = process::command(lab, &lab.net, "node");
        command.arg(script).env("ISSUER", format!("https://{PROVIDERS}:{}", self.port));
        command.env("REDIRECT", format!("https://{GATEWAY_V4}/oidc/callback/{}", self.name));
        command.env("CERTIFICATE", lab.path("provider.pem")).env("KEY", lab.path("provider-key.pem"));
        command.env("LOGOUT", format!("https://{GATEWAY_V4}/oidc/logout/{}", self.name));
        command.env("NODE_EXTRA_CA_CERTS", lab.path("trusted-portal.pem"));
        command.env("PACKAGES", &self.packages).env("NODE_NO_WARNINGS", "1");
        command.env("MODE", self.file("mode")).env("GROUPS", self.file("groups.json"));
        let mut process = Process::start(lab, "oidc-provider", command);
        eventually("the provider listens", TIMEOUT, || {
            process.assert_running();
            process.output().contains("listening").then_some(())
        });
        self.process = Some(process);
    }

    /// Makes it a source of a gateway that has a portal.
    pub(crate) fn configure(&self, gateway: &Gateway<'_>, more: &str) {
        write_secret(&gateway.file("oidc.secret"), SECRET);
        gateway.configure("portal.url", format!("https://{GATEWAY_V4}"));
        let Self { name, port, .. } = self;
        let source = format!(
            "name = '{name}'\nkind = 'oidc'\nrealm = '{name}.example'\nissuer = 'https://{PROVIDERS}:{port}'\n\
             client_id = 'vpn'\nclient_secret_file = 'oidc.secret'\nlabel = 'The <University>'\nca = {:?}\n{more}",
            self.lab.path("provider.pem")
        );
        match self.port {
            PORT => add_source(gateway, &source),
            _ => add_further_source(gateway, &source),
        }
    }
}

/// In one step: it is read at any time.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

/// A browser that goes from the pages of a gateway to the provider and back.
pub(crate) struct Traveller<'l> {
    lab: &'l Lab,
    place: &'l Namespace,
    cookies: PathBuf,
    trust: PathBuf,
}

/// Where it is, and what it sees.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub(crate) status: u16,
    pub(crate) address: String,
    pub(crate) body: String,
}

impl<'l> Traveller<'l> {
    /// `portal` is the certificate of the gateway's pages.
    pub(crate) fn new(lab: &'l Lab, place: &'l Namespace, portal: &Path) -> Self {
        let number = (0..).map(|n| lab.path(format!("traveller-{n}"))).find(|path| !path.exists());
        let cookies = number.unwrap();
        fs::write(&cookies, "").unwrap();
        let trust = lab.path("provider-and-portal.pem");
        let certificates =
            [fs::read_to_string(portal).unwrap(), fs::read_to_string(lab.path("provider.pem")).unwrap()];
        fs::write(&trust, certificates.concat()).unwrap();
        Self { lab, place, cookies, trust }
    }

    /// The page at this address, after all redirections but those to an address that begins with
    /// `stop`.
    pub(crate) fn request(&self, address: &str, fields: &[(&str, &str)], follow: bool) -> Page {
        let mut command = process::command(self.lab, self.place, "curl");
        command.args(["--silent", "--show-error", "--max-time", "60", "--cacert"]).arg(&self.trust);
        command.arg("--cookie").arg(&self.cookies).arg("--cookie-jar").arg(&self.cookies);
        command.args(["--write-out", "\n%{http_code} %{url_effective} %{redirect_url}"]);
        if follow {
            command.arg("--location");
        }
        for (name, value) in fields {
            command.arg("--data-urlencode").arg(format!("{name}={value}"));
        }
        command.arg(address);
        let text = String::from_utf8(must(process::run(command)).stdout).unwrap();
        let (body, end) = text.rsplit_once('\n').unwrap();
        let mut words = end.split(' ');
        let (status, here, next) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap_or(""));
        let address = if next.is_empty() { here } else { next }.to_owned();
        Page { status: status.parse().unwrap(), address, body: body.to_owned() }
    }

    pub(crate) fn get(&self, address: &str) -> Page {
        self.request(address, &[], true)
    }

    /// Gets a page without following a redirection, whose address the page has then.
    pub(crate) fn step(&self, address: &str) -> Page {
        self.request(address, &[], false)
    }

    /// Goes from the login page to the provider, and logs in there; the address that the provider
    /// then sends the browser back to.
    pub(crate) fn at_provider(&self, user: &str) -> String {
        self.at_provider_from("", user)
    }

    /// Goes there from the login page with this query.
    fn at_provider_from(&self, query: &str, user: &str) -> String {
        self.at("uni", query, user)
    }

    /// Logs in at this provider.
    pub(crate) fn at(&self, provider: &str, query: &str, user: &str) -> String {
        let mut page = self.step(&format!("https://{GATEWAY_V4}/oidc/start/{provider}{query}"));
        let credentials = [("login", user), ("password", "x")];
        // A browser that has logged in there before is sent back at once.
        let mut steps = [("login", &credentials[..]), ("consent", &[])].into_iter();
        while page.address.starts_with(&format!("https://{PROVIDERS}")) {
            page = if page.status == 303 {
                self.step(&page.address)
            } else {
                let (prompt, fields) = steps.next().unwrap_or_else(|| panic!("{page:?}"));
                let form = page.body.split("action=\"").nth(1).and_then(|rest| rest.split('"').next());
                let fields = [&[("prompt", prompt)], fields].concat();
                self.request(form.unwrap(), &fields, false)
            };
        }
        let back = format!("/oidc/callback/{provider}?");
        assert!(page.status == 303 && page.address.contains(&back), "{page:?}");
        page.address
    }

    /// Logs in at the provider and comes back.
    pub(crate) fn log_in(&self, user: &str) -> Page {
        self.get(&self.at_provider(user))
    }

    /// Logs in with credentials that the provider asks for, unless it just has.
    pub(crate) fn log_in_again(&self, user: &str) -> Page {
        self.get(&self.at_provider_from("?again", user))
    }

    /// Whether the provider asks for credentials now.
    pub(crate) fn is_asked_at_provider(&self, query: &str) -> bool {
        let mut page = self.step(&format!("https://{GATEWAY_V4}/oidc/start/uni{query}"));
        while page.status == 303 && page.address.starts_with(&format!("https://{PROVIDERS}")) {
            page = self.step(&page.address);
        }
        page.status == 200
    }

    /// Logs out there; the moment at which the form was sent.
    pub(crate) fn log_out_at_provider(&self) -> std::time::Instant {
        let page = self.get(&format!("https://{PROVIDERS}:{PORT}/session/end"));
        let part = |before: &str| {
            let rest = page.body.split(before).nth(1).unwrap_or_else(|| panic!("no {before} in {page:?}"));
            rest.split('"').next().unwrap().to_owned()
        };
        let (form, proof) = (part("action=\""), part("name=\"xsrf\" value=\""));
        let since = std::time::Instant::now();
        let gone = self.request(&form, &[("xsrf", &proof), ("logout", "yes")], true);
        assert_eq!(gone.status, 200, "{gone:?}");
        since
    }

    /// The page of the logged-in user.
    pub(crate) fn overview(&self) -> Option<String> {
        let page = self.get(&format!("https://{GATEWAY_V4}/"));
        assert_eq!(page.status, 200, "{page:?}");
        (!page.address.contains("/login")).then_some(page.body)
    }
}
