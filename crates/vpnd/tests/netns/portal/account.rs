//! Behaviour: a user of the gateway's store changes the own password, sets a second factor up and
//! removes it, within ten minutes of a login and with the present password; devices need the new
//! one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::UNIX_EPOCH;

use vpnd_store::TotpSecret;
use vpnd_store::sqlite::Sqlite;
use vpnd_store::totp;

use super::{Answer, Browser, SOON, serves, with_client};
use crate::lab::{Lab, eventually};

/// A code of `ann` at the time of a later step, if one was used already.
fn code(secret: &TotpSecret, steps: u64) -> String {
    totp::code_at(secret, UNIX_EPOCH.elapsed().unwrap().as_secs() + steps * totp::STEP_S)
}

/// The notice on a page.
fn notice(answer: &Answer) -> &str {
    let (_, notice) = answer.body.split_once("role=\"alert\">").unwrap_or_else(|| panic!("{answer:?}"));
    notice.split_once('<').unwrap().0
}

#[test]
fn a_user_changes_the_own_password_and_second_factor() {
    let Some(lab) = Lab::new(2) else { return };
    let (gateway, _client) = with_client(&lab);
    let browser = Browser::new(&lab, &lab.clients[1], &gateway);
    serves(&browser);
    let other = Browser::new(&lab, &lab.clients[1], &gateway);
    other.logged_in("ann");
    let page = browser.logged_in("ann");
    assert!(page.body.contains("logins ask for no code"), "{page:?}");

    // The password, not without the present one.
    let form = browser.get("/password").field("form");
    let change = |present: &str, new: &str, again: &str| {
        let fields = [("form", form.as_str()), ("present", present), ("new", new), ("again", again)];
        browser.post("/password", &fields)
    };
    let present = "ann's password";
    assert!(notice(&change("wrong", "another password", "another password")).contains("is wrong"));
    assert!(notice(&change(present, "another password", "another passwort")).contains("differ"));
    assert!(notice(&change(present, "short", "short")).contains("at least 8 characters"));
    assert!(notice(&change(present, "aaaaaaaaaa", "aaaaaaaaaa")).contains("at least 8 characters"));
    for tried_first in ["iloveyou", "Password2026!", "ANN-2026-2026"] {
        assert!(notice(&change(present, tried_first, tried_first)).contains("many people have"));
    }
    assert_eq!(gateway.sessions().len(), 1, "nothing was changed");
    let fields = [("present", present), ("new", "another password"), ("again", "another password")];
    assert_eq!(browser.post("/password", &fields).status, 403, "no form of ours");
    assert_eq!(change(present, "another password", "another password").status, 303);
    let page = browser.get("/?password");
    assert!(page.status == 200 && page.body.contains("password is changed"), "the visit goes on: {page:?}");
    assert!(other.overview().is_none(), "others of hers are over");
    eventually("her sessions are over", SOON, || gateway.sessions().is_empty().then_some(()));
    assert_eq!(other.log_in("ann", present).status, 403);
    assert_eq!(other.log_in("ann", "another password").status, 303);
    assert_eq!(crate::audit::recorded(&gateway, "password-changed")[0]["user"], "ann");

    // A second factor, not without a code of it.
    let browser = other;
    let before = Browser::new(&lab, &lab.clients[1], &gateway);
    assert_eq!(before.log_in("ann", "another password").status, 303);
    let form = browser.get("/").field("form");
    assert_eq!(browser.post("/codes", &[("form", "")]).status, 403);
    let offer = browser.post("/codes", &[("form", &form)]);
    assert!(offer.status == 200 && offer.body.contains("<svg"), "{offer:?}");
    let wrong = browser.post("/codes/take", &[("form", &form), ("code", "000000")]);
    assert!(notice(&wrong).contains("is wrong"), "{wrong:?}");
    let typed = |page: &Answer| {
        let (_, rest) = page.body.split_once("<strong>").unwrap();
        rest.split_once('<').unwrap().0.replace(' ', "")
    };
    assert_eq!(typed(&offer), typed(&wrong), "the secret that was scanned");
    let secret = TotpSecret::new(totp_rs::Secret::try_from_base32(typed(&offer)).unwrap().as_ref().to_vec());
    let taken = browser.post("/codes/take", &[("form", &form), ("code", &code(&secret, 0))]);
    assert_eq!(taken.status, 303, "{taken:?}");
    assert!(before.overview().is_none(), "a visit without a code is over");
    let page = browser.get("/?codes");
    assert!(page.body.contains("asks for a code of this app"), "{page:?}");
    let users = Sqlite::inspect(&gateway.file("state").join("vpnd.db")).unwrap();
    let stored = users.into_iter().find(|user| user.name == "ann").and_then(|user| user.totp).unwrap();
    assert!(stored == secret);
    let again = Browser::new(&lab, &lab.clients[1], &gateway);
    let asked = again.log_in("ann", "another password");
    assert_eq!(asked.status, 200, "{asked:?}");
    let fields = [("form", asked.field("form")), ("answer", code(&secret, 1))];
    let fields = fields.each_ref().map(|(name, value)| (*name, value.as_str()));
    assert_eq!(again.post("/login/answer", &fields).status, 303);

    // She does without again.
    let form = again.get("/").field("form");
    let page = again.post("/codes", &[("form", &form)]);
    assert!(page.body.contains("action=\"/codes/remove\""), "{page:?}");
    assert_eq!(again.post("/codes/remove", &[("form", "")]).status, 403);
    let removed = again.post("/codes/remove", &[("form", &form)]);
    assert!(removed.status == 303 && removed.head.contains("location: /?codes-removed"), "{removed:?}");
    assert_eq!(browser.log_in("ann", "another password").status, 303);
}

#[test]
fn a_user_logs_out_of_other_browsers_and_of_this_one() {
    let Some(lab) = Lab::new(2) else { return };
    let (gateway, _client) = with_client(&lab);
    let [here, there] = [0, 1].map(|at| Browser::new(&lab, &lab.clients[at], &gateway));
    serves(&here);
    let third = Browser::new(&lab, &lab.clients[1], &gateway);
    here.logged_in("ann");
    there.logged_in("ann");
    third.logged_in("ann");
    let agent = "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0";
    there.post_with("/", &[], &["--request", "GET", "--header", agent]);
    let page = here.overview().unwrap();
    assert!(page.body.contains("Firefox on Linux") && page.body.contains("198.18.2.2"), "{page:?}");
    assert_eq!(page.body.matches("name=\"visit\"").count(), 2, "the two others: {page:?}");
    let (form, number) = (page.field("form"), page.field("visit"));
    let end = |browser: &Browser<'_>, form: &str, visit: &str| {
        browser.post("/browsers/end", &[("form", form), ("visit", visit)]).status
    };
    assert_eq!((end(&here, "", &number), end(&here, &form, "x")), (403, 404));
    assert!(there.overview().is_some() && third.overview().is_some());
    assert_eq!(end(&here, &form, &number), 303);
    assert!(third.overview().is_none(), "the newest is the first of the list");
    assert!(there.overview().is_some());
    assert_eq!(end(&here, &form, ""), 303);
    assert!(there.overview().is_none() && here.get("/?browsers").body.contains("is logged out"));
    assert_eq!(crate::audit::recorded(&gateway, "portal-ended")[0]["detail"], "by-user 1");

    let before = here.moved(&lab.clients[0]);
    here.logged_in("ann");
    assert!(before.overview().is_none() && here.overview().is_some(), "another login is another token");
    let form = here.overview().unwrap().field("form");

    let gone = here.post("/logout", &[("form", &form)]);
    assert!(gone.head.contains("clear-site-data: \"cache\", \"storage\""), "{gone:?}");
    assert!(
        gone.head.contains("__host-vpnd=; path=/; secure; httponly; samesite=lax; max-age=0"),
        "{gone:?}"
    );
    assert!(here.overview().is_none());
}
