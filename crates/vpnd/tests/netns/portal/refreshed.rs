//! Behaviour: a real OpenID provider is asked about its users between logins: groups follow, a user
//! whom it has removed is out of sessions and pages, and while it is down no user is before the
//! time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use serde_json::json;

use super::at_provider::with_provider;
use super::connect::{answer, in_browser, page_of};
use super::{Browser, SOON, serves};
use crate::gateway::must;
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::openid::Traveller;
use crate::process::{self, Process};
use crate::traffic::ping_until;
use crate::wireguard::{Stock, add_device, before_the_wall, program, stays_out};

const GRACE: Duration = Duration::from_secs(6);

#[test]
fn users_of_a_provider_are_checked_between_logins() {
    let Some(lab) = Lab::new(2) else { return };
    let more = format!("recheck_s = 1\nrecheck_grace_s = {}\n", GRACE.as_secs());
    let Some((mut provider, gateway)) = with_provider(&lab, &more) else { return };
    let portal = gateway.file("portal.pem");
    serves(&Browser::new(&lab, &lab.clients[0], &gateway));
    let log_in = |name: &str| {
        let mut client = Process::start(&lab, name, in_browser(&lab, 1, &gateway));
        let ann = Traveller::new(&lab, &lab.clients[0], &portal);
        ann.get(&page_of(&mut client));
        answer(&ann, &ann.log_in("ann"), "yes");
        ping_until(&lab.clients[0], CAMPUS_V4.into(), SOON);
        (client, ann)
    };
    let (mut client, ann) = log_in("client1");
    // Each answer has another token, and the one before is good no longer.
    for group in ["first", "second", "third"] {
        provider.groups(&json!({"ann": ["staff", group], "bob": ["staff"]}));
        eventually("her groups are those of the provider", SOON, || {
            let shown = process::text(&must(process::run(gateway.user(&["list"]))));
            shown.contains(group).then_some(())
        });
    }
    assert_eq!(gateway.sessions().len(), 1);
    assert!(ann.overview().is_none(), "other groups end a visit");
    // One who is on the pages alone.
    let bob = Traveller::new(&lab, &lab.clients[1], &portal);
    assert!(bob.log_in("bob").body.contains("bob@uni.example"));

    provider.groups(&json!({}));
    let since = Instant::now();
    eventually("her session is over", SOON, || gateway.sessions().is_empty().then_some(()));
    eprintln!("from the removal at the provider to the end of the session: {:?}", since.elapsed());
    assert!(!client.wait(SOON).success());
    eventually("the other is out of the pages", SOON, || bob.overview().is_none().then_some(()));

    provider.groups(&json!({"ann": ["staff"]}));
    let (mut client, ann) = log_in("client2");
    provider.stop();
    let since = Instant::now();
    eventually("her session is over", SOON, || gateway.sessions().is_empty().then_some(()));
    assert!(since.elapsed() >= GRACE - Duration::from_secs(2), "after {:?}", since.elapsed());
    assert!(!client.wait(SOON).success() && ann.overview().is_none());
    let log = client.output();
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn a_user_removed_at_the_provider_loses_wireguard_devices() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(2) else { return };
    let Some((provider, mut gateway)) = with_provider(&lab, "recheck_s = 1\n") else { return };
    gateway.terminate();
    gateway.configure("wireguard.enabled", true);
    gateway.start();
    serves(&Browser::new(&lab, &lab.clients[0], &gateway));
    let ann = Traveller::new(&lab, &lab.clients[0], &gateway.file("portal.pem"));
    assert!(ann.log_in("ann").body.contains("ann@uni.example"));
    let phone = Stock::start(&lab, 2, &program, &add_device(&gateway, "ann@uni.example"));
    ping_until(phone.place, CAMPUS_V4.into(), SOON);
    // It goes on while the provider confirms her again and again.
    std::thread::sleep(3 * Duration::from_secs(1));
    ping_until(phone.place, CAMPUS_V4.into(), SOON);
    assert_eq!(before_the_wall(&gateway), 1);

    provider.groups(&json!({"bob": ["staff"]}));
    let since = Instant::now();
    eventually("her phone's session is over", SOON, || (before_the_wall(&gateway) == 0).then_some(()));
    eprintln!(
        "from the refusal of the refresh token to the end of the phone's session: {:?}",
        since.elapsed()
    );
    stays_out(&gateway, &phone);
    assert!(ann.overview().is_none());
}
