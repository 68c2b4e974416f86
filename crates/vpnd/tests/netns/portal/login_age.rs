//! Behaviour: what takes a login of just now is not satisfied by one that a provider remembers: it
//! is asked for credentials again, and believed only if it says that it has asked.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use super::SOON;
use super::at_provider::with_provider;
use super::connect::{answer, in_browser, page_of};
use super::{Browser, serves};
use crate::gateway::edit_toml;
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, eventually};
use crate::openid::{Page, Traveller};
use crate::process::Process;
use crate::traffic::ping_until;

const LONGEST: Duration = Duration::from_secs(4);

fn field(page: &Page, name: &str) -> String {
    let rest = page.body.split(&format!("name=\"{name}\" value=\"")).nth(1);
    rest.and_then(|rest| rest.split('"').next()).unwrap_or_else(|| panic!("no {name}: {page:?}")).to_owned()
}

#[test]
fn a_profile_takes_logins_of_its_age_alone_from_provider_and_pages() {
    let Some(lab) = Lab::new(2) else { return };
    let Some((provider, mut gateway)) = with_provider(&lab, "") else { return };
    gateway.terminate();
    edit_toml(&gateway.config(), |table| {
        for profile in table["profile"].as_array_mut().unwrap() {
            let age = toml::Value::from(LONGEST.as_secs() as i64);
            profile.as_table_mut().unwrap().insert("max_login_age_s".to_owned(), age);
        }
    });
    gateway.start();
    serves(&Browser::new(&lab, &lab.clients[0], &gateway));
    let ann = Traveller::new(&lab, &lab.clients[0], &gateway.file("portal.pem"));
    assert!(ann.log_in("ann").body.contains("ann@uni.example"));
    assert!(!ann.is_asked_at_provider(""), "it was just now");
    eventually("the provider asks her again", SOON, || ann.is_asked_at_provider("").then_some(()));
    assert!(ann.log_in("ann").body.contains("ann@uni.example"));

    // Her visit goes on, and is too old for a client: she logs in again.
    let mut client = Process::start(&lab, "client1", in_browser(&lab, 1, &gateway));
    std::thread::sleep(LONGEST + Duration::from_secs(1));
    assert!(ann.overview().is_some());
    let page = ann.get(&page_of(&mut client));
    assert!(page.address.ends_with("/login"), "{page:?}");
    answer(&ann, &ann.log_in("ann"), "yes");
    ping_until(&lab.clients[0], CAMPUS_V4.into(), SOON);

    // A provider that has not asked, or does not claim it, proves nothing.
    for lie in ["old", "unsaid"] {
        provider.mode(lie);
        let eve = Traveller::new(&lab, &lab.clients[1], &gateway.file("portal.pem"));
        let page = eve.log_in("ann");
        assert!(page.status == 403 && page.body.contains("has not confirmed the login"), "{lie}: {page:?}");
    }
}

#[test]
fn changes_at_the_desk_take_credentials_of_just_now_and_no_login_of_the_morning() {
    let Some(lab) = Lab::new(1) else { return };
    let Some((provider, mut gateway)) = with_provider(&lab, "") else { return };
    gateway.terminate();
    gateway.configure("portal.administrator_groups", "staff");
    gateway.configure("portal.admin_sources", "uni");
    gateway.configure("portal.admin_networks", "198.18.1.0/24");
    gateway.start();
    serves(&Browser::new(&lab, &lab.clients[0], &gateway));
    let ann = Traveller::new(&lab, &lab.clients[0], &gateway.file("portal.pem"));
    let disable = || {
        let desk = ann.get(&format!("https://{GATEWAY_V4}/desk"));
        let form = field(&desk, "form");
        let fields = [("form", form.as_str()), ("user", "carl"), ("reason", "has left")];
        ann.request(&format!("https://{GATEWAY_V4}/desk/disable"), &fields, true)
    };
    let is_enabled = || {
        let listed = crate::process::text(&crate::process::run(gateway.user(&["show", "carl"])));
        !listed.contains("disabled")
    };
    for lie in ["old", "unsaid"] {
        provider.mode(lie);
        let _ = ann.log_in("ann");
        assert!(ann.overview().is_some(), "{lie}: she may look");
        let refused = disable();
        assert!(
            refused.status == 403 && refused.body.contains("/oidc/start/uni?again"),
            "{lie}: {refused:?}"
        );
        assert!(is_enabled());
    }
    provider.mode("");
    // She is back at the form, which is as she has typed it.
    let again = ann.log_in_again("ann");
    assert!(again.status == 200 && again.address.ends_with("/desk/again"), "{again:?}");
    assert!(again.body.contains("<h1>carl</h1>") && again.body.contains("value=\"has left\""), "{again:?}");
    assert!(is_enabled(), "nothing is done by a login");
    assert_eq!(disable().status, 200);
    assert!(!is_enabled());
}
