//! Behaviour: the pages work in a browser that enforces their own policies: its script makes the
//! key of a WireGuard device, and a client's login ends at the client.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use vpnd_crypto::Secret;
use vpnd_wireguard::key::StaticKey;

use super::connect::{in_browser, page_of};
use super::{Browser, SOON, configure, serves};
use crate::chromium::Chromium;
use crate::gateway::Gateway;
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, eventually};
use crate::process::Process;
use crate::traffic::ping_until;
use crate::wireguard::{Configuration, Stock, program};

/// Counts the keys that the browser itself makes.
const COUNT: &str = "globalThis.made = 0;
    const make = crypto.subtle.generateKey.bind(crypto.subtle);
    crypto.subtle.generateKey = async (...what) => { const pair = await make(...what); made++; return pair; };";

fn log_in(browser: &mut Chromium, user: &str) {
    browser.fill("user", user);
    browser.fill("password", &format!("{user}'s password"));
    browser.press("main button");
}

/// No page did anything that its policy forbids.
fn nothing_was_forbidden(browser: &mut Chromium) {
    let forbidden: Vec<_> = browser.complaints().iter().filter(|said| said.contains("Content")).collect();
    assert!(forbidden.is_empty(), "{forbidden:#?}");
}

#[test]
fn a_browser_makes_the_key_of_a_device_and_the_server_never_has_it() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(2) else { return };
    let Some(mut browser) = Chromium::start(&lab, &lab.clients[1]) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.add_user("ann");
    gateway.configure("wireguard.enabled", true);
    configure(&gateway);
    gateway.start();
    serves(&Browser::new(&lab, &lab.clients[1], &gateway));
    browser.before_scripts(COUNT);
    browser.save_to(&lab.path("chromium-files"));
    browser.open(&format!("https://{GATEWAY_V4}/"));
    log_in(&mut browser, "ann");
    browser.until("she is logged in", "location.pathname === '/'");
    browser.open(&format!("https://{GATEWAY_V4}/devices/add"));
    browser.until("the script has the page", "document.getElementById('public_key').offsetParent === null");
    browser.fill("name", "phone");
    browser.press("#add button");
    browser.until("there is a configuration", "document.getElementById('configuration') !== null");
    browser.until("its code is drawn", "document.querySelector('#qr svg path') !== null");
    assert_eq!(browser.value("made"), 1, "WebCrypto has made the key");
    let text = browser.value("document.getElementById('configuration').textContent");
    let text = text.as_str().unwrap().to_owned();
    nothing_was_forbidden(&mut browser);

    browser.press("#file");
    let file = lab.path("chromium-files").join("vpn.conf");
    eventually("the file is saved", SOON, || (fs::read_to_string(&file).ok()? == text).then_some(()));
    let line = |key: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(&format!("{key} = ")));
        found.unwrap_or_else(|| panic!("no {key} in {text}")).to_owned()
    };
    let secret: [u8; 32] = BASE64.decode(line("PrivateKey")).unwrap().try_into().unwrap();
    let public = StaticKey::new(Secret::new(secret)).public().to_string();
    let listed = crate::process::text(&crate::process::run(device_list(&gateway)));
    assert!(listed.contains(&public), "the gateway has the public half: {listed}");
    let stock = Stock::start(&lab, 1, &program, &Configuration::parse(&text));
    ping_until(stock.place, CAMPUS_V4.into(), SOON);
}

fn device_list(gateway: &Gateway<'_>) -> std::process::Command {
    let mut command = gateway.vpnd(&["device", "list", "--json"]);
    command.arg("--config").arg(gateway.config());
    command
}

#[test]
fn a_browser_takes_the_login_of_a_client_back_to_it() {
    let Some(lab) = Lab::new(1) else { return };
    let Some(mut browser) = Chromium::start(&lab, &lab.clients[0]) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.add_user("ann");
    configure(&gateway);
    gateway.configure("portal.url", format!("https://{GATEWAY_V4}"));
    gateway.start();
    serves(&Browser::new(&lab, &lab.clients[0], &gateway));
    let mut client = Process::start(&lab, "client1", in_browser(&lab, 1, &gateway));
    browser.open(&page_of(&mut client));
    log_in(&mut browser, "ann");
    browser.until("she is asked", "location.pathname === '/connect'");
    browser.press("button[value=yes]");
    browser.until("the client has the answer", "location.hostname === '127.0.0.1'");
    browser.until("it is shown", "document.readyState === 'complete'");
    let shown = browser.text();
    assert!(shown.contains("You are logged in"), "{shown}");
    nothing_was_forbidden(&mut browser);
    ping_until(&lab.clients[0], CAMPUS_V4.into(), SOON);
    assert_eq!(gateway.sessions()[0]["user"], "ann");
}
