//! Behaviour: a user sets password and second factor by the link of an invitation, once.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::UNIX_EPOCH;

use vpnd_store::totp;

use super::{Browser, configure, serves};
use crate::gateway::{Gateway, must};
use crate::lab::{GATEWAY_V4, Lab};
use crate::process;

#[test]
fn an_invitation_sets_up_an_account_once() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.add_user("ann");
    configure(&gateway);
    let invite = |arguments: &[&str]| process::run(gateway.user(arguments));
    assert!(!invite(&["add", "eva", "--invite"]).status.success(), "it needs to know where pages are");
    gateway.configure("portal.url", format!("https://{GATEWAY_V4}"));
    let output = must(invite(&["add", "eva", "--invite"]));
    let text = String::from_utf8(output.stdout).unwrap();
    let link = text.split_whitespace().find_map(|word| word.strip_prefix(&format!("https://{GATEWAY_V4}")));
    let link = link.unwrap_or_else(|| panic!("no link in {text}")).to_owned();
    assert!(!text.contains("password, shown"), "{text}");
    gateway.start();
    let browser = Browser::new(&lab, &lab.clients[0], &gateway);
    serves(&browser);
    assert_eq!(browser.get(&format!("/invitation/{}", "0".repeat(64))).status, 404);
    let page = browser.get(&link);
    assert!(page.status == 200 && page.body.contains("<strong>eva</strong>"), "{page:?}");
    assert!(page.head.contains("referrer-policy: no-referrer"), "{page:?}");
    let (form, secret) = (page.field("form"), page.field("secret"));
    let code = |steps: u64| {
        let now_s = UNIX_EPOCH.elapsed().unwrap().as_secs() + steps * totp::STEP_S;
        totp::code_at(&totp::from_typed(&secret).unwrap(), now_s)
    };
    let choose = |form: &str, new: &str, again: &str, code: &str| {
        let fields = [("form", form), ("secret", &secret), ("new", new), ("again", again), ("code", code)];
        browser.post(&link, &fields)
    };
    let good = "evas own password";
    assert!(choose("", good, good, &code(0)).body.contains("This page was too old"));
    for (new, again, typed) in
        [(good, "another", code(0)), ("short", "short", code(0)), (good, good, "1".into())]
    {
        let refused = choose(&form, new, again, &typed);
        assert!(refused.status == 403 && refused.field("secret") == secret, "{refused:?}");
    }
    assert_eq!(browser.log_in("eva", good).status, 403, "nothing was set");
    let done = choose(&form, good, good, &code(0));
    assert!(done.status == 200 && done.body.contains("Your account is set up"), "{done:?}");
    assert!(done.body.contains(">Log in</a>"), "{done:?}");
    assert!(browser.overview().is_none(), "it is no login");
    assert_eq!(choose(&form, good, good, &code(0)).status, 404, "once");
    assert_eq!(browser.get(&link).status, 404);
    let asked = browser.log_in("eva", good);
    let answer = [("form", asked.field("form")), ("answer", code(1))];
    let answer = answer.each_ref().map(|(name, value)| (*name, value.as_str()));
    assert_eq!(browser.post("/login/answer", &answer).status, 303);
    assert_eq!(crate::audit::recorded(&gateway, "invitation-accepted")[0]["user"], "eva");
}
