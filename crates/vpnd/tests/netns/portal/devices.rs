//! Behaviour: users see their devices, and add, renew and remove only their own; a key
//! that a user's browser has made is that of a stock client, and the server never has its private
//! half.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use vpnd_crypto::Secret;
use vpnd_wireguard::key::StaticKey;

use super::{Answer, Browser, SOON, configure, serves};
use crate::client::Client;
use crate::gateway::{Gateway, Login, must};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::traffic::ping_until;
use crate::wireguard::{Configuration, Stock, program};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

/// The text of a page's configuration, without its escapes.
fn configuration(page: &Answer) -> String {
    let (_, rest) = page.body.split_once("aria-labelledby=\"about\">").unwrap_or_else(|| panic!("{page:?}"));
    rest.split_once("</pre>").unwrap().0.replace("&#38;", "&")
}

#[test]
fn a_user_gets_the_profile_of_the_own_client_and_connects_with_it() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    configure(&gateway);
    gateway.start();
    let browser = Browser::new(&lab, &lab.clients[1], &gateway);
    serves(&browser);
    assert!(browser.get("/profile").head.contains("location: /login"));
    browser.logged_in("ann");
    let linux = ["--user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"];
    let get = |arguments: &[&str]| {
        let mut command = browser.curl("/devices/add");
        command.args(arguments);
        Browser::run(command)
    };
    for page in [get(&linux), get(&[])] {
        assert!(
            page.body.contains("href=\"/profile\"") && page.body.contains("sudo vpnd connect "),
            "{page:?}"
        );
        assert!(!page.body.contains("<script"), "this gateway serves no WireGuard: {page:?}");
    }
    let file = browser.get("/profile");
    assert!(file.head.contains("content-disposition: attachment; filename=\"vpn.toml\""), "{file:?}");
    assert!(file.body.contains("name = \"ann\""), "{file:?}");
    let profile = lab.path("vpn.toml");
    std::fs::write(&profile, &file.body).unwrap();
    let mut client = Client::connect(&lab, 1, &Login { profile, ..ann.clone() });
    ping_until(client.namespace(), CAMPUS_V4.into(), SOON);
    client.interrupt();
    eventually("it is known when and where the client was there last", SOON, || {
        let page = browser.get("/devices").body;
        let is_known = ["<dt>Added</dt>", "<dt>Last seen</dt>", "198.18.1.0/24"];
        is_known.iter().all(|text| page.contains(text)).then_some(())
    });

    // It is as the configuration is now.
    gateway.configure("server.addresses", vec!["vpn.uni.example:4433"]);
    must(gateway.ask(&["reload"]));
    eventually("the profile has them", SOON, || {
        browser.get("/profile").body.contains("addresses = [\"vpn.uni.example:4433\"]").then_some(())
    });
}

#[test]
fn a_user_adds_ends_renews_and_removes_a_wireguard_device() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.add_user("ann");
    gateway.add_user("bob");
    gateway.configure("wireguard.enabled", true);
    configure(&gateway);
    gateway.start();
    let [ann, bob] = [(); 2].map(|()| Browser::new(&lab, &lab.clients[1], &gateway));
    serves(&ann);
    assert_eq!(ann.get("/devices").status, 303, "not without a login");
    ann.logged_in("ann");
    bob.logged_in("bob");

    let page = ann.get("/devices/add");
    assert!(page.head.contains("script-src 'self'; connect-src 'self'"), "{page:?}");
    assert!(page.body.contains("<script src=\"/script.js\" defer></script>"), "{page:?}");
    let form = page.field("form");
    let secret = [7; 32];
    let public = StaticKey::new(Secret::new(secret)).public().to_string();
    let add = |browser: &Browser<'_>, form: &str, key: &str, name: &str| {
        browser.post("/devices/add", &[("form", form), ("name", name), ("public_key", key)])
    };
    assert_eq!(add(&ann, "", &public, "phone").status, 403, "no form of ours");
    for wrong in ["", "x", &BASE64.encode([0; 32])] {
        assert_eq!(add(&ann, &form, wrong, "phone").status, 409, "{wrong}");
    }
    let added = add(&ann, &form, &public, "phone");
    assert_eq!(added.status, 200, "{added:?}");
    let text = configuration(&added);
    assert!(text.contains(&format!("# PrivateKey = the private key of {public}")), "{text}");
    let his = bob.get("/devices/add").field("form");
    assert_eq!(add(&bob, &his, &public, "phone").status, 409, "the key is hers");
    assert_eq!(crate::audit::recorded(&gateway, "device-added")[0]["user"], "ann");

    let own = text.replace("# PrivateKey =", &format!("PrivateKey = {} #", BASE64.encode(secret)));
    let own: String =
        own.lines().map(|line| line.split('#').next().unwrap().trim_end().to_owned() + "\n").collect();
    let stock = Stock::start(&lab, 1, &program, &Configuration::parse(&own));
    ping_until(stock.place, CAMPUS_V4.into(), SOON);
    let page = ann.get("/devices");
    assert!(page.body.contains("WireGuard: phone") && page.body.contains("198.18.1.2"), "{page:?}");
    let device = page.field("device");
    let post = |browser: &Browser<'_>, form: &str, what: &str| {
        browser.post(&format!("/devices/{what}"), &[("form", form), ("device", &device)]).status
    };
    for what in ["end", "renew", "remove"] {
        assert_eq!(post(&bob, &his, what), 404, "{what}: it is not his");
        assert_eq!(post(&ann, "", what), 403, "{what}");
    }
    assert!(page.body.contains("<dt>Added</dt>") && !page.body.contains("<dt>Last seen</dt>"), "{page:?}");
    assert_eq!(post(&ann, &form, "end"), 303);
    eventually("its session is over", SOON, || gateway.sessions().is_empty().then_some(()));
    eventually("it is known when it was there last", SOON, || {
        let page = ann.get("/devices").body;
        (page.contains("<dt>Last seen</dt>") && !page.contains(">never<")).then_some(())
    });
    let page = ann.get("/devices?ended-wireguard");
    assert!(page.body.contains("Renew it to connect again"), "{page:?}");
    assert!(page.body.contains("notices after about 15 seconds"), "{page:?}");
    assert_eq!(post(&ann, &form, "renew"), 303);
    ping_until(stock.place, CAMPUS_V4.into(), SOON);
    assert_eq!(post(&ann, &form, "remove"), 303);
    eventually("it is gone", SOON, || gateway.sessions().is_empty().then_some(()));
    assert!(ann.get("/devices?removed").body.contains("You have no devices yet"));

    // Files lead where clients find the gateway now, and have what its profiles say now.
    assert!(!text.contains("vpn.uni.example"), "{text}");
    gateway.configure("server.addresses", vec!["vpn.uni.example:4433"]);
    gateway.configure("wireguard.mtu", 1300);
    must(gateway.ask(&["reload"]));
    let public = StaticKey::new(Secret::new([8; 32])).public().to_string();
    let text = configuration(&add(&ann, &form, &public, "laptop"));
    assert!(text.contains("Endpoint = vpn.uni.example:4433\n") && text.contains("MTU = 1300\n"), "{text}");
}
