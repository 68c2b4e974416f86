//! Behaviour: users log in to the pages at a real OpenID provider. Who they are comes from the
//! provider alone; what a browser, another provider or a liar sends lets no user in.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::json;

use super::{Browser, SOON, configure, serves};
use crate::gateway::{Gateway, edit_toml, must};
use crate::lab::{Lab, eventually};
use crate::openid::{OpenId, Page, Traveller};
use crate::process;

pub(super) fn with_provider<'l>(lab: &'l Lab, more: &str) -> Option<(OpenId<'l>, Gateway<'l>)> {
    let provider = OpenId::start(lab, &json!({"ann": ["staff"], "bob": ["guests"], "eve": []}))?;
    let mut gateway = Gateway::init(lab);
    gateway.add_user("carl");
    configure(&gateway);
    provider.configure(&gateway, more);
    edit_toml(&gateway.config(), |table| {
        let profiles: toml::Table =
            "[[profile]]\nname = 'staff'\ngroups = ['staff']\n[[profile]]\nname = 'local'\nsources = ['local']\n".parse().unwrap();
        table.extend(profiles);
    });
    gateway.start();
    Some((provider, gateway))
}

fn refused_with(page: &Page, words: &str) {
    assert!(page.body.contains("role=\"alert\"") && page.body.contains(words), "{page:?}");
}

#[test]
fn user_and_groups_are_those_of_the_provider() {
    let Some(lab) = Lab::new(2) else { return };
    let Some((provider, gateway)) = with_provider(&lab, "") else { return };
    let portal = gateway.file("portal.pem");
    let traveller = || Traveller::new(&lab, &lab.clients[0], &portal);
    let local = Browser::new(&lab, &lab.clients[0], &gateway);
    serves(&local);
    let page = local.get("/login");
    assert!(page.body.contains("href=\"/oidc/start/uni\"") && page.body.contains("The &#60;University&#62;"));
    assert_eq!(local.get("/oidc/start/other").status, 404);

    let ann = traveller();
    let page = ann.log_in("ann");
    assert!(page.status == 200 && page.body.contains("ann@uni.example"), "{page:?}");
    assert!(ann.overview().is_some());
    assert_eq!(crate::audit::recorded(&gateway, "portal-login")[0]["user"], "ann@uni.example");

    // A user without a profile gets that reason, for it is no guess.
    refused_with(&traveller().log_in("bob"), "has no access to the VPN");
    // The name alone is none: no password can let in here.
    let refused = local.log_in("ann@uni.example", "x");
    assert!(
        refused.status == 403 && refused.body.contains("button of their identity provider"),
        "{refused:?}"
    );

    must(process::run(gateway.user(&["disable", "ann@uni.example"])));
    assert!(ann.overview().is_none());
    refused_with(&traveller().log_in("ann"), "disabled here");
    must(process::run(gateway.user(&["enable", "ann@uni.example"])));
    // Groups are those of this login.
    provider.groups(&json!({"ann": [], "bob": ["staff"]}));
    refused_with(&traveller().log_in("ann"), "has no access to the VPN");
    assert!(traveller().log_in("bob").body.contains("bob@uni.example"));

    // A provider answers logins alone.
    let mut test = gateway.vpnd(&["source", "test", "uni", "--user", "ann@uni.example", "--config"]);
    test.arg(gateway.config());
    let said = process::text(&must(process::run(test)));
    assert!(said.contains("whether ann@uni.example gets in shows a login"), "{said}");

    let mut doctor = gateway.vpnd(&["doctor", "--json", "--config"]);
    doctor.arg(gateway.config());
    let findings: Vec<serde_json::Value> = serde_json::from_slice(&process::run(doctor).stdout).unwrap();
    let finding = findings.iter().find(|finding| finding["check"] == "identity").unwrap();
    assert!(finding["found"].as_str().unwrap().contains("has keys"), "{finding}");
}

#[test]
fn a_callback_of_another_browser_or_a_repeated_one_is_refused() {
    let Some(lab) = Lab::new(2) else { return };
    let Some((_provider, gateway)) = with_provider(&lab, "") else { return };
    let portal = gateway.file("portal.pem");
    let [here, elsewhere] = [0, 1].map(|at| Traveller::new(&lab, &lab.clients[at], &portal));
    serves(&Browser::new(&lab, &lab.clients[0], &gateway));

    // Eve has a victim's browser come back with her own code, which is still good for hers.
    let eve = here.at_provider("ann");
    refused_with(&elsewhere.get(&eve), "has not confirmed");
    assert!(elsewhere.overview().is_none());
    // With a login of the victim's own under way it is not.
    elsewhere.at_provider("bob");
    refused_with(&elsewhere.get(&eve), "has not confirmed");
    refused_with(&here.get(&eve), "has not confirmed");
    assert!(here.overview().is_none() && elsewhere.overview().is_none(), "it was tried");
    // The code of another login with the state of the own.
    let (anns, bobs) = (here.at_provider("ann"), elsewhere.at_provider("bob"));
    let parameter = |address: &str, name: &str| {
        let rest = address.split(&format!("{name}=")).nth(1).unwrap();
        rest.split('&').next().unwrap().to_owned()
    };
    let mixed = bobs.replace(&parameter(&bobs, "code"), &parameter(&anns, "code"));
    refused_with(&elsewhere.get(&mixed), "has not confirmed");
    let audit = || crate::audit::recorded(&gateway, "login-refused");
    assert!(
        audit().iter().any(|entry| entry["detail"].as_str().unwrap().contains("not-proved")),
        "{:?}",
        audit()
    );

    // Another issuer's, or none's; twice the same.
    for (name, value) in [("iss", "https%3A%2F%2Fanother.example"), ("state", "x"), ("code", "x")] {
        let address = here.at_provider("ann");
        let before = parameter(&address, name);
        let address = address.replace(&format!("{name}={before}"), &format!("{name}={value}"));
        refused_with(&here.get(&address), "has not confirmed");
        let without = here.at_provider("ann");
        let before = parameter(&without, name);
        refused_with(&here.get(&without.replace(&format!("{name}={before}"), "x=y")), "has not confirmed");
    }
    let twice = here.at_provider("ann");
    refused_with(&here.get(&format!("{twice}&code=x")), "has not confirmed");
    assert!(here.overview().is_none());
    let good = here.at_provider("ann");
    assert!(here.get(&good).body.contains("ann@uni.example"));
    refused_with(&here.get(&good), "has not confirmed");
    assert!(here.overview().is_some(), "the visit goes on");
}

#[test]
fn what_one_provider_gives_is_nothing_to_another() {
    let Some(lab) = Lab::new(1) else { return };
    let users = json!({"ann": ["staff"]});
    let Some(provider) = OpenId::start(&lab, &users) else { return };
    let other = provider.start_other(&users);
    let mut gateway = Gateway::init(&lab);
    configure(&gateway);
    provider.configure(&gateway, "");
    other.configure(&gateway, "");
    gateway.start();
    let portal = gateway.file("portal.pem");
    let traveller = || Traveller::new(&lab, &lab.clients[0], &portal);
    serves(&Browser::new(&lab, &lab.clients[0], &gateway));
    for (name, another) in [("uni", "other"), ("other", "uni")] {
        // The answer of one at the address of the other.
        let back = traveller();
        let answer = back.at(name, "", "ann");
        let path = |name: &str| format!("/oidc/callback/{name}?");
        refused_with(&back.get(&answer.replace(&path(name), &path(another))), "has not confirmed");
        refused_with(&back.get(&answer), "has not confirmed");
        // Its code in a login that has begun at the other.
        let parameter = |address: &str, name: &str| {
            let rest = address.split(&format!("{name}=")).nth(1).unwrap();
            rest.split('&').next().unwrap().to_owned()
        };
        let first = back.at(name, "", "ann");
        let second = back.at(another, "", "ann");
        let mixed = second.replace(&parameter(&second, "code"), &parameter(&first, "code"));
        refused_with(&back.get(&mixed), "has not confirmed");
        assert!(back.overview().is_none());
        // Two users of one name.
        let good = traveller();
        let page = good.get(&good.at(name, "", "ann"));
        assert!(page.body.contains(&format!("ann@{name}.example")), "{page:?}");
    }
}

#[test]
fn a_provider_that_lies_changes_its_keys_or_is_gone() {
    let Some(lab) = Lab::new(1) else { return };
    let Some((mut provider, gateway)) = with_provider(&lab, "") else { return };
    let portal = gateway.file("portal.pem");
    let traveller = || Traveller::new(&lab, &lab.clients[0], &portal);
    let local = Browser::new(&lab, &lab.clients[0], &gateway);
    serves(&local);
    for mode in ["nonce", "audience", "party", "issuer", "expired", "stranger", "none", "userinfo", "overage"]
    {
        provider.mode(mode);
        let browser = traveller();
        let page = browser.log_in("ann");
        let text = if mode == "overage" { "more groups than the VPN takes" } else { "has not confirmed" };
        refused_with(&page, text);
        assert!(browser.overview().is_none(), "{mode}");
    }
    provider.mode("as it should be");
    assert!(traveller().log_in("ann").body.contains("ann@uni.example"));
    // It has another key now, and gives the first one up.
    provider.mode("rotated");
    eventually("its new key counts", SOON, || {
        traveller().log_in("ann").body.contains("ann@uni.example").then_some(())
    });

    provider.mode("slow");
    let slow = traveller().log_in("ann");
    assert_eq!(slow.status, 503, "{slow:?}");
    refused_with(&slow, "can&#39;t be reached");
    provider.mode("as it should be");
    let at_provider = traveller();
    let back = at_provider.at_provider("ann");
    provider.stop();
    let gone = at_provider.get(&back);
    assert_eq!(gone.status, 503, "{gone:?}");
    assert_eq!(local.log_in("carl", "carl's password").status, 303, "others come in meanwhile");
    provider.restart();
    eventually("it is asked again", SOON, || {
        traveller().log_in("ann").body.contains("ann@uni.example").then_some(())
    });
}
