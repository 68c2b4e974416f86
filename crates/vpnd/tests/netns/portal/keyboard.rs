//! Behaviour: a person without a mouse reaches and uses every page, sees where the focus is, and
//! reads each at 200 % and at 320 CSS pixels without scrolling sideways (WCAG 2.1: 2.1.1, 2.1.2,
//! 2.4.3, 2.4.7, 1.4.4, 1.4.10).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::connect::{in_browser, page_of};
use super::short_codes::code_of;
use super::{Browser, configure, serves};
use crate::chromium::{Chromium, ENTER, SPACE, TAB};
use crate::gateway::{Gateway, must};
use crate::lab::{GATEWAY_V4, Lab};
use crate::process::{self, Process};

/// Windows in CSS pixels, and pixels of the screen for each: one of 1280 x 900 at 100 %, 200 % and
/// 400 %.
const WINDOWS: [((u32, u32), u32); 3] = [((1280, 900), 1), ((640, 450), 2), ((320, 225), 4)];
/// Presses of Tab after which a person gives up.
const MAX_TABS: usize = 150;
/// Numbers everything that takes the focus, in the order of the page.
const NUMBER_STOPS: &str = "(() => {
    const all = document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex]');
    const takes = (one) => one.tabIndex >= 0 && one.type !== 'hidden' && !one.disabled && one.checkVisibility();
    const stops = [...all].filter(takes);
    stops.forEach((one, number) => { one.dataset.stop = number; });
    return stops.length;
})()";
/// Where the focus is: the number, and what is wrong there.
const FOCUS: &str = "(() => {
    const one = document.activeElement;
    if (!one || one.dataset.stop === undefined) return null;
    const [style, box, wrong] = [getComputedStyle(one), one.getBoundingClientRect(), []];
    const ring = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
    if (!ring) wrong.push('no ring');
    const isShown = box.width > 1 && box.bottom > 0 && box.top < innerHeight && box.left >= 0 && box.left < innerWidth;
    if (!isShown) wrong.push(`out of sight: ${JSON.stringify(box)}`);
    return [Number(one.dataset.stop), wrong.map((what) => `${one.outerHTML}: ${what}`)];
})()";
/// Lists elements that are wider than their place.
const TOO_WIDE: &str = "(() => {
    const root = document.documentElement;
    const wide = root.scrollWidth > root.clientWidth ? [`the page: ${root.scrollWidth} > ${root.clientWidth}`] : [];
    for (const one of document.querySelectorAll('main *:not(input)')) {
        const box = one.getBoundingClientRect();
        const isShown = one.checkVisibility() && box.width > 0 && getComputedStyle(one).display !== 'inline';
        if (isShown && one.scrollWidth > one.clientWidth + 1) wide.push(one.outerHTML);
        if (isShown && box.right > innerWidth + 1) wide.push(`beyond the edge: ${one.outerHTML}`);
    }
    return wide;
})()";

/// Goes through all stops of the page by Tab, in windows of each size.
fn check(browser: &mut Chromium, name: &str) {
    browser.until(name, "document.readyState === 'complete'");
    for (size, scale) in WINDOWS {
        browser.resize(size, scale);
        let at = format!("{name} at {} pixels", size.0);
        let wide = browser.value(TOO_WIDE);
        assert_eq!(wide, serde_json::json!([]), "{at}: {wide:#}");
        let count = usize::try_from(browser.value(NUMBER_STOPS).as_u64().unwrap()).unwrap();
        assert!(count > 0, "{at}: nothing takes the focus");
        let (mut seen, mut before) = (vec![false; count], None);
        for _ in 0..MAX_TABS {
            browser.key(&TAB);
            let focus = browser.value(FOCUS);
            let Some(number) = focus[0].as_u64().map(|number| usize::try_from(number).unwrap()) else {
                before = None;
                continue;
            };
            assert_eq!(focus[1], serde_json::json!([]), "{at}");
            // A field of several parts keeps the focus for some presses; from the end it goes to
            // the beginning.
            let is_next = before.is_none_or(|before| number == before || number == (before + 1) % count);
            assert!(is_next, "{at}: from {before:?} to {number}: {focus}");
            seen[number] = true;
            before = Some(number);
            if seen.iter().all(|seen| *seen) {
                break;
            }
        }
        let missed: Vec<_> = (0..count).filter(|number| !seen[*number]).collect();
        assert!(missed.is_empty(), "{at}: Tab does not reach {missed:?} of {count}: {}", browser.text());
        browser.picture(&format!("{name}-{}", size.0));
    }
    let (size, scale) = WINDOWS[0];
    browser.resize(size, scale);
}

/// Presses Tab until the focus is there.
fn tab_to(browser: &mut Chromium, selector: &str) {
    let is_there = format!("document.activeElement.matches({})", serde_json::json!(selector));
    for _ in 0..MAX_TABS {
        if browser.value(&is_there) == true {
            return;
        }
        browser.key(&TAB);
    }
    panic!("Tab does not reach {selector}: {}", browser.text());
}

fn fill(browser: &mut Chromium, field: &str, text: &str) {
    tab_to(browser, &format!("#{field}"));
    browser.type_text(text);
}

/// Activates a button or a link by Enter.
fn follow(browser: &mut Chromium, selector: &str, path: &str) {
    tab_to(browser, selector);
    enter(browser, path);
}

fn enter(browser: &mut Chromium, path: &str) {
    browser.value("globalThis.isBefore = true");
    browser.key(&ENTER);
    let has_arrived = format!("!globalThis.isBefore && location.pathname === {}", serde_json::json!(path));
    browser.until(path, &has_arrived);
    browser.until(path, "document.readyState === 'complete'");
}

fn log_in(browser: &mut Chromium, user: &str, path: &str) {
    fill(browser, "user", user);
    fill(browser, "password", &format!("{user}'s password"));
    enter(browser, path);
}

/// A gateway whose pages are all there, for `ann`, who is an administrator; and an invitation.
fn with_all_pages(lab: &Lab) -> (Gateway<'_>, String) {
    let mut gateway = Gateway::init(lab);
    for user in ["ann", "bob", "gus"] {
        gateway.add_user(user);
    }
    must(process::run(gateway.user(&["modify", "ann", "--group", "admins"])));
    must(process::run(gateway.user(&["modify", "bob", "--totp"])));
    must(process::run(gateway.user(&["modify", "gus", "--sponsor", "ann", "--expires", "2030-01-31"])));
    configure(&gateway);
    gateway.configure("wireguard.enabled", true);
    gateway.configure("portal.url", format!("https://{GATEWAY_V4}"));
    gateway.configure("portal.short_codes", true);
    gateway.configure("portal.administrator_groups", "admins");
    gateway.configure("portal.admin_networks", vec!["198.18.0.0/15"]);
    let invited = must(process::run(gateway.user(&["add", "eva", "--invite"])));
    gateway.start();
    serves(&Browser::new(lab, &lab.clients[0], &gateway));
    let link = process::text(&invited);
    let link = link.split_whitespace().find(|word| word.starts_with("https://")).unwrap().to_owned();
    (gateway, link)
}

/// An address of the pages.
fn address(path: &str) -> String {
    format!("https://{GATEWAY_V4}{path}")
}

#[test]
fn a_user_logs_in_and_cares_for_account_and_devices_by_the_keyboard_alone() {
    let Some(lab) = Lab::new(1) else { return };
    let Some(mut browser) = Chromium::start(&lab, &lab.clients[0]) else { return };
    let (_gateway, invitation) = with_all_pages(&lab);
    let browser = &mut browser;
    browser.open(&invitation);
    check(browser, "invitation");
    browser.open(&address("/"));
    check(browser, "login");
    log_in(browser, "bob", "/login");
    browser.until("a code is asked for", "document.getElementById('answer') !== null");
    check(browser, "answer");
    follow(browser, "main a[href='/']", "/login");
    log_in(browser, "ann", "/");
    check(browser, "overview");

    // The own account.
    follow(browser, "form[action='/password'] button", "/password");
    check(browser, "password");
    for (field, text) in [("present", "wrong"), ("new", "four random words"), ("again", "four random words")]
    {
        fill(browser, field, text);
    }
    enter(browser, "/password");
    check(browser, "password-wrong");
    follow(browser, "main a[href='/']", "/");
    follow(browser, "form[action='/codes'] button", "/codes");
    check(browser, "codes");
    follow(browser, "main a[href='/']", "/");

    // Devices.
    follow(browser, "form[action='/devices'] button", "/devices");
    follow(browser, "form[action='/devices/add'] button", "/devices/add");
    check(browser, "add");
    fill(browser, "name", "phone");
    browser.key(&ENTER);
    browser.until("the device is added", "document.getElementById('configuration') !== null");
    browser.until("its code is drawn", "document.querySelector('#qr svg path') !== null");
    check(browser, "added");
    follow(browser, "main a[href='/devices']:not([download])", "/devices");
    tab_to(browser, "summary");
    browser.key(&ENTER);
    browser.until("it is open", "document.querySelector('details').open");
    check(browser, "devices");
    follow(browser, "form[action='/devices/remove'] button", "/devices");
    check(browser, "no-devices");
}

#[test]
fn the_help_desk_works_by_the_keyboard_alone() {
    let Some(lab) = Lab::new(1) else { return };
    let Some(mut browser) = Chromium::start(&lab, &lab.clients[0]) else { return };
    let (_gateway, _) = with_all_pages(&lab);
    let browser = &mut browser;
    browser.open(&address("/"));
    log_in(browser, "ann", "/");
    follow(browser, "form[action='/desk'] button", "/desk");
    tab_to(browser, "summary");
    browser.key(&ENTER);
    check(browser, "desk");
    fill(browser, "address", "10.86.0.2");
    fill(browser, "reason", "call 4711");
    enter(browser, "/desk/whois");
    check(browser, "whois");
    follow(browser, "main a[href='/desk']", "/desk");
    follow(browser, "main a[href='/desk/sessions']", "/desk/sessions");
    check(browser, "sessions");
    follow(browser, "main a[href='/desk/sessions?order=rate']", "/desk/sessions");
    follow(browser, "main a[href='/desk']", "/desk");
    fill(browser, "text", "gus");
    enter(browser, "/desk/users");
    check(browser, "search");
    follow(browser, "ul.found a", "/desk/user");
    for deed in ["kick", "disable", "invite", "extend"] {
        tab_to(browser, &format!("details:has(form[action='/desk/{deed}']) > summary"));
        browser.key(&SPACE);
    }
    check(browser, "user");
    fill(browser, "reason-invite", "call 4711");
    enter(browser, "/desk/invite");
    check(browser, "link");
}

#[test]
fn devices_are_let_in_by_the_keyboard_alone() {
    let Some(lab) = Lab::new(2) else { return };
    let Some(mut browser) = Chromium::start(&lab, &lab.clients[0]) else { return };
    let (gateway, _) = with_all_pages(&lab);
    let browser = &mut browser;
    browser.open(&address("/"));
    log_in(browser, "ann", "/");
    // A device elsewhere, by its code.
    let mut elsewhere = Process::start(&lab, "client2", in_browser(&lab, 2, &gateway));
    let code = code_of(&mut elsewhere, "198.18.2.2");
    browser.open(&address("/code"));
    check(browser, "code");
    fill(browser, "code", "BBBB-BBBB");
    enter(browser, "/code");
    check(browser, "code-wrong");
    fill(browser, "code", &code);
    enter(browser, "/connect");
    check(browser, "by-code");
    tab_to(browser, "#compared");
    browser.key(&SPACE);
    follow(browser, "button[value=yes]", "/connect");
    assert!(browser.text().contains("Your device connects now"), "{}", browser.text());
    check(browser, "message");

    // A device of this machine; its user has logged out meanwhile.
    let mut command = in_browser(&lab, 1, &gateway);
    command.env("DISPLAY", ":0");
    let mut client = Process::start(&lab, "client1", command);
    follow(browser, "form[action='/logout'] button", "/login");
    browser.open(&page_of(&mut client));
    log_in(browser, "ann", "/connect");
    check(browser, "connect");
    tab_to(browser, "button[value=yes]");
    browser.key(&ENTER);
    browser.until("the client has the answer", "location.hostname === '127.0.0.1'");
}
