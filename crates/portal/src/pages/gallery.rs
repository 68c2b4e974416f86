//! Every page with made-up content, in both languages.

mod accessible;

use askama::Template;
use vpnd_ipc::gateway::auth::{AuditHealth, Count, PoolUsage, SourceHealth, SourceName};
use vpnd_ipc::gateway::portal::desk::sessions::{
    DeviceTraffic, ListedSession, ListedSessions, Order, ProfileUse, Throughput,
};
use vpnd_ipc::gateway::portal::desk::{
    AuditRecord, DeskRefusal, DeskState, Disabling, FoundUser, FoundUsers, ListedFinding, Logins,
    ProfileCount, RefusedLogin, Role, ShownCertificate, ShownUser, UserState, Whois, WorkerShown,
};
use vpnd_ipc::gateway::portal::devices::{OwnDevice, OwnDevices, OwnWireGuard};
use vpnd_ipc::gateway::portal::visits::{BrowserKind, OwnVisit, Program, System};
use vpnd_ipc::gateway::portal::{Overview, OwnSession, PortalHealth, Provider};
use vpnd_ipc::health::Verdict;
use vpnd_ipc::request::Reason;
use vpnd_proto::control::{List, Text, UserName};

use super::connect::{ByCodePage, CodePage, ConnectPage};
use super::desk::sessions::SessionsPage;
use super::desk::{Again, DeskPage, LinkPage, SearchPage, UserPage, WhoisPage};
use super::devices::{AddDevicePage, AddedDevicePage, DevicesPage, WalledPage};
use super::{
    AnswerPage, CodesPage, Frame, InvitationPage, LoginPage, MessagePage, OverviewPage, PasswordPage,
    WaitPage,
};
use crate::texts::{ENGLISH, GERMAN, Texts};
use crate::typed::{Draft, Typed};

const TOTP: (&str, &str) = (
    "otpauth://totp/VPN:gus?secret=ABCDEFGHIJKLMNOPQRSTUVWXYZ234567&issuer=VPN",
    "ABCD EFGH IJKL MNOP QRST UVWX",
);
const THROUGHPUT: Throughput =
    Throughput { bytes: [1_234_567_890, 23_456_789_012], rates: Some([120_000, 3_400_000]) };

fn list<T, const N: usize>(items: Vec<T>) -> List<T, N> {
    List::new(items).unwrap()
}

pub(crate) fn state() -> DeskState {
    let pool = |pool: &str| PoolUsage { pool: Text::cut(pool), taken: 904, total: 65_000 };
    let profile = |name: Option<&str>| ProfileCount { profile: name.map(Text::cut), sessions: 812 };
    let count = |name: &str| Count { name: Text::cut(name), count: 1_234 };
    DeskState {
        role: Role::Administrator,
        users: 31_214,
        profiles: list(vec![
            profile(Some("students")),
            profile(Some("staff-with-a-long-name")),
            profile(None),
        ]),
        pools: list(vec![pool("10.86.0.0/16"), pool("fd86:1234:5678:9abc::/64")]),
        sources: list(vec![SourceHealth {
            name: SourceName::cut("uni-ldap"),
            up: Some(false),
            last_answer_s: None,
            silent_s: None,
            answers: 1,
            failures: 2,
            accounting: None,
            missing: 312,
        }]),
        audit: Some(AuditHealth { lost: 0, failure: Some(Reason::cut("the audit file's disk is full")) }),
        portal: Some(PortalHealth { up: true, visits: 14, certificate_left_s: Some(9 * 86_400) }),
        worker: Some(WorkerShown {
            version: Text::cut("0.1.0"),
            uptime_s: 400_000,
            certificate_left_s: 20 * 86_400,
            drops: list(vec![count("policy"), count("replayed")]),
        }),
        refused: list(vec![count("login_credentials"), count("connection_rate")]),
        findings: list(vec![finding(Verdict::Problem), finding(Verdict::Warning), finding(Verdict::Good)]),
    }
}

fn finding(verdict: Verdict) -> ListedFinding {
    ListedFinding {
        check: Text::cut("identity.answers"),
        verdict,
        found: Text::cut("the source uni-ldap has not answered for 31 min: its users can't log in"),
        advice: Some(Text::cut("'vpnd source test uni-ldap' shows each step; correct what it ends at")),
    }
}

fn user(name: &str, state: UserState) -> FoundUser {
    FoundUser { name: Text::cut(name), source: SourceName::cut("local"), state }
}

fn devices() -> OwnDevices {
    let device = |number: u8, is_wireguard: bool, session_age_s: Option<u64>| OwnDevice {
        device: [number; 16].into(),
        addresses: list(vec![[10, 86, 1, number].into(), "fd86::1234:5678".parse().unwrap()]),
        session_age_s,
        from: Some([192, 0, 2, 7].into()),
        wireguard: is_wireguard.then(|| OwnWireGuard {
            name: Text::cut("phone"),
            key: Text::cut("abcdefgh"),
            renewed_age_s: 86_400,
            left_s: session_age_s.map(|_| 3 * 86_400).or(Some(0)),
            public_key: Text::cut("abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG="),
            renewed_s: 1_790_000_000,
            walled_s: None,
            outer: None,
            state: Text::cut("without end"),
            in_two_places: session_age_s.is_some(),
        }),
        added_age_s: Some(40 * 86_400),
        unseen_s: session_age_s.map(|_| 0),
        network: None,
    };
    let devices = vec![device(1, false, Some(4_000)), device(2, true, Some(90)), device(3, true, None)];
    OwnDevices { devices: list(devices), wireguard: true, profile: true }
}

pub(crate) fn shown(locked: Option<DeskRefusal>) -> ShownUser {
    let refused = RefusedLogin {
        at_s: 1_790_000_000,
        from: Text::cut("198.51.100.7"),
        cause: Text::cut("wrong-password"),
    };
    let is_disabled = locked.is_some();
    let disabling = || Disabling {
        at_s: 1_790_000_000,
        by: Text::cut("token idm"),
        reason: Text::cut("has left the university"),
    };
    ShownUser {
        user: user("gus", if is_disabled { UserState::Disabled } else { UserState::Enabled }),
        profile: Some(Text::cut("guests")),
        groups: list(vec![Text::cut("guests"), Text::cut("physics")]),
        codes: Some(true),
        certificates: list(vec![
            ShownCertificate { fingerprint: [1; 32].into(), revoked: true },
            ShownCertificate { fingerprint: [2; 32].into(), revoked: false },
        ]),
        expires_s: Some(1_900_000_000),
        sponsor: Some(Text::cut("ann")),
        note: Text::cut("Conference guest, room 4711"),
        created_s: 1_700_000_000,
        devices: devices(),
        logins: Some(Logins { last_s: Some(1_790_000_000), refused: list(vec![refused]) }),
        locked,
        traffic: list(vec![DeviceTraffic { device: [1; 16].into(), throughput: THROUGHPUT }]),
        can_be_invited: true,
        can_be_extended: true,
        role: is_disabled.then_some(Role::HelpDesk),
        disabled: is_disabled.then(disabling),
        reserved: list(vec![[10, 86, 0, 7].into()]),
    }
}

pub(crate) fn sessions() -> ListedSessions {
    let session = |number: u8, user: &str, wireguard: Option<&str>| ListedSession {
        user: Text::cut(user),
        source: SourceName::cut("local"),
        device: [number; 16].into(),
        addresses: list(vec![[10, 86, 1, number].into(), "fd86::1234:5678".parse().unwrap()]),
        age_s: 4_000,
        left_s: 40_000,
        wireguard: wireguard.map(Text::cut),
        network: (number < 3).then(|| Text::cut("2001:db8:1234::/48")),
        profile: Some(Text::cut("staff-with-a-long-name")),
        throughput: (number < 3).then_some(THROUGHPUT),
        walled: number == 3,
    };
    let sum = |profile: Option<&str>| ProfileUse {
        profile: profile.map(Text::cut),
        sessions: 1_412,
        throughput: THROUGHPUT,
    };
    ListedSessions {
        sessions: list(vec![
            session(1, "ann", None),
            session(2, "anna-katharina.mustermann-schmidt@students.uni.example", Some("phone")),
            session(3, "anton", Some("")),
        ]),
        more: 2_824,
        next: Some(Text::cut("anton 01")),
        profiles: list(vec![sum(Some("staff-with-a-long-name")), sum(None)]),
    }
}

pub(crate) fn whois() -> Whois {
    let record = AuditRecord {
        kind: Text::cut("session"),
        user: Some(Text::cut("ann")),
        profile: Some(Text::cut("staff-with-a-long-name")),
        at_s: 1_790_000_000,
        ipv4: Some([10, 86, 1, 2].into()),
        outer: Some(Text::cut("198.51.100.7:40000")),
        device: Some(Text::cut(&"ab".repeat(16))),
        public: Some(([203, 0, 113, 7].into(), 49_152, 49_663)),
        ..AuditRecord::default()
    };
    Whois {
        found: list(vec![record]),
        notes: list(vec![Text::cut("UNCERTAIN: records begin at 2026-01-01")]),
        address: Text::cut("10.86.1.2:443"),
        at_s: 1_790_000_000,
    }
}

fn overview() -> Overview {
    let session = OwnSession {
        device: [1; 16].into(),
        age_s: 4_000,
        addresses: list(vec![[10, 86, 1, 2].into(), "fd86::12".parse().unwrap()]),
        from: None,
    };
    let visit = |number: u8, program, system| OwnVisit {
        number: [number; 16].into(),
        is_this: number == 1,
        kind: BrowserKind { program, system },
        age_s: 400 * u64::from(number),
        unused_s: 0,
        from: "2001:db8:1234:5678:9abc:def0:1234:5678".parse().unwrap(),
    };
    Overview {
        user: UserName::cut("ann"),
        source: SourceName::cut("local"),
        left_s: 40_000,
        sessions: list(vec![session]),
        codes: Some(false),
        password: true,
        desk: true,
        visits: list(vec![
            visit(1, Program::Firefox, System::Linux),
            visit(2, Program::Other, System::Other),
        ]),
    }
}

/// The page with all its parts unfolded.
fn open(page: Result<String, askama::Error>) -> Result<String, askama::Error> {
    page.map(|page| page.replace("<details>", "<details open>"))
}

/// All pages, by name.
fn gallery(texts: &'static Texts) -> Vec<(&'static str, String)> {
    let form = || "f".repeat(64);
    let frame = || Frame { texts, name: "VPN of Example University", logo: false, log_out: Some(form()) };
    let (overview, devices) = (overview(), devices());
    let provider = [Provider { source: SourceName::cut("uni"), label: Text::cut("Example University") }];
    let problem = Some("Too many attempts. Wait 5 seconds.".to_owned());
    let configuration = "[Interface]\nAddress = 10.86.1.2/32\n[Peer]\nPublicKey = abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG=\nEndpoint = vpn.uni.example:4433\n";
    let reason = (texts.desk.why_not)(DeskRefusal::Elsewhere);
    let invitation = |password| {
        InvitationPage::new(frame(), form(), Some(texts.code_wrong), ("gus", password), TOTP).unwrap()
    };
    let (user, providers, again, has_left) = ("", &provider, true, true);
    let login = LoginPage { frame: frame(), form: form(), user, problem, providers, again, has_left };
    let answer = AnswerPage { frame: frame(), form: form(), demand: texts.code, shown: true };
    let device = ConnectPage {
        frame: frame(),
        form: form(),
        name: "laptop",
        from: [192, 0, 2, 7].into(),
        user: "ann",
        source: "local",
    };
    let add_device = |system, problem| AddDevicePage {
        frame: frame(),
        form: form(),
        name: "",
        problem,
        wireguard: true,
        profile: system == System::Linux,
        system,
    };
    let by_code = ByCodePage {
        frame: frame(),
        form: form(),
        name: "laptop-of-anna-katharina",
        from: "2001:db8:1234:5678:9abc:def0:1234:5678".parse().unwrap(),
        since: (texts.ago)(70),
        elsewhere: Some([192, 0, 2, 7].into()),
        user: "ann",
        source: "local",
    };
    let code_wrong = Some(texts.connect.code_wrong.to_owned());
    let pages: [(&str, Result<String, askama::Error>); 17] = [
        ("login", login.render()),
        ("answer", answer.render()),
        ("connect", device.render()),
        ("code", CodePage { frame: frame(), form: form(), problem: code_wrong }.render()),
        ("by-code", by_code.render()),
        ("wait", WaitPage { frame: frame() }.render()),
        ("message", message(frame(), reason).render()),
        ("password", PasswordPage { frame: frame(), form: form(), problem: None }.render()),
        ("codes", CodesPage::new(frame(), form(), None, TOTP, true).unwrap().render()),
        ("invitation", invitation(true).render()),
        ("invitation-app", invitation(false).render()),
        ("overview", OverviewPage::new(frame(), form(), &overview, Some(texts.session_ended)).render()),
        ("devices", DevicesPage::new(frame(), form(), &devices, Some(texts.devices.removed)).render()),
        ("add", open(add_device(System::Android, Some(texts.devices.full)).render())),
        ("add-linux", add_device(System::Linux, None).render()),
        ("added", AddedDevicePage { frame: frame(), configuration }.render()),
        (
            "walled",
            WalledPage { frame: frame(), provider: &provider[0], query: "anyway".to_owned() }.render(),
        ),
    ];
    let pages = pages.into_iter().chain(desk_pages(&frame));
    pages.map(|(name, page)| (name, page.unwrap())).collect()
}

fn message<'p>(frame: Frame<'p>, text: &'p str) -> MessagePage<'p> {
    let Texts { desk, start_again, .. } = frame.texts;
    MessagePage { frame, heading: desk.refused, text, next: start_again }
}

/// Those of the help desk.
fn desk_pages(frame: &dyn Fn() -> Frame<'static>) -> [(&'static str, Result<String, askama::Error>); 7] {
    let form = || "f".repeat(64);
    let names = vec!["ann", "anna-katharina.mustermann-schmidt@students.uni.example", "anton"];
    let names = names.into_iter().map(|name| user(name, UserState::Disabled)).collect();
    let found = FoundUsers { users: list(names), more: 12 };
    let (whois, sessions) = (whois(), sessions());
    let (unlocked, locked) = (shown(None), shown(Some(DeskRefusal::Senior)));
    let draft = Draft::new("disable", Typed { reason: "call 4711".to_owned(), ..Typed::default() });
    let again = Some(Again { draft: &draft, refusal: Some(DeskRefusal::Senior) });
    let link = format!("https://vpn.uni.example/invitation/{}", "0123456789abcdef".repeat(4));
    [
        ("desk", open(DeskPage::new(frame(), form(), &state()).render())),
        ("sessions", SessionsPage::new(frame(), &Order::ByUser(None), &sessions, 1_790_000_000).render()),
        ("search", SearchPage::new(frame(), "an", &found, None).render()),
        ("user", open(UserPage::new(frame(), form(), &unlocked, true, None).render())),
        ("locked", UserPage::new(frame(), form(), &locked, false, again).render()),
        ("whois", WhoisPage::new(frame(), "10.86.1.2:443", &whois).render()),
        ("link", LinkPage { frame: frame(), name: "gus", link: &link }.render()),
    ]
}

#[test]
fn a_name_stays_one_part_of_an_address_and_one_text_of_a_page() {
    let name = "a&b=c#d?e/../%41 +ä\"><script>'";
    let frame = Frame { texts: &ENGLISH, name, logo: false, log_out: None };
    let found = FoundUsers { users: list(vec![user(name, UserState::Disabled)]), more: 1 };
    let page = SearchPage::new(frame, name, &found, None).render().unwrap();
    assert!(!page.contains("<script>") && !page.contains(name));
    let mut links = 0;
    for link in page.split("href=\"/desk/user").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        let Some((_, query)) = link.split_once('?') else { continue };
        let query = query.replace("&#38;", "&").replace("&amp;", "&");
        let query: Vec<_> = form_urlencoded::parse(query.as_bytes()).collect();
        assert!(
            query.iter().all(|(key, value)| ["name", "text", "after"].contains(&&**key) && value == name)
        );
        links += query.len();
    }
    assert_eq!(links, 3, "the user's page, and the next of the list");
}

#[test]
fn pages_hide_passwords_and_let_managers_fill_them_in() {
    let mut fields = 0;
    for (name, page) in gallery(&ENGLISH) {
        for field in page.split("<input ").skip(1).map(|rest| rest.split('>').next().unwrap()) {
            let is_password = field.contains("password\"") || field.contains("name=\"present\"");
            assert_eq!(is_password, field.contains("type=\"password\""), "{name}: {field}");
            let has_purpose =
                ["current-password", "new-password"].iter().any(|purpose| field.contains(purpose));
            assert_eq!(is_password, has_purpose, "{name}: {field}");
            fields += usize::from(is_password);
        }
        assert!(!page.contains("onpaste") && !page.contains("style="), "{name}");
    }
    assert!(fields >= 6, "{fields}");
}

#[test]
fn a_device_by_its_code_is_compared_before_a_yes_and_not_before_a_no() {
    let pages: Vec<_> = gallery(&ENGLISH).into_iter().filter(|(name, _)| *name == "by-code").collect();
    let (_, page) = &pages[0];
    for part in
        ["laptop-of-anna-katharina", "2001:db8:1234:5678:9abc:def0:1234:5678", "1 minute ago", "192.0.2.7"]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
    let input = page.split("<input ").find(|field| field.contains("name=\"compared\"")).unwrap();
    assert!(input.split('>').next().unwrap().contains("type=\"checkbox\"") && input.contains("required>"));
    assert!(!input.contains("checked"), "the person does that");
    assert!(page.contains("value=\"no\" formnovalidate>") && page.contains(ENGLISH.connect.granted));
}

#[test]
fn a_browser_on_linux_sees_the_own_client_first_and_others_the_wireguard_way() {
    let pages: std::collections::BTreeMap<_, _> = gallery(&ENGLISH).into_iter().collect();
    for (name, is_linux) in [("add-linux", true), ("add", false)] {
        let place = |text: &str| pages[name].find(text).unwrap_or_else(|| panic!("{name}: no {text}"));
        let own = place(ENGLISH.devices.own_client);
        assert_eq!(own < place("action=\"/devices/add\""), is_linux, "{name}");
        assert_eq!(pages[name].contains("href=\"/profile\""), is_linux, "{name}: where there is one");
    }
}

#[test]
fn a_browser_sees_the_steps_of_its_own_system_first() {
    let pages: std::collections::BTreeMap<_, _> = gallery(&ENGLISH).into_iter().collect();
    for (page, own) in [("add", System::Android), ("add-linux", System::Linux)] {
        let folded = pages[page].find("<details").expect("the others are folded");
        for (system, _, steps) in ENGLISH.devices.apps {
            let at: Vec<_> = pages[page].match_indices(&steps.replace('\'', "&#39;")).collect();
            assert_eq!(at.len(), 1, "{page}: {steps}");
            assert_eq!(at[0].0 < folded, system == own, "{page}: {steps}");
        }
    }
}

#[test]
fn every_page_offers_a_logout_after_login() {
    // Before a login there is nothing to log out of; a client's question is answered by yes or no.
    const WITHOUT: [&str; 8] =
        ["login", "answer", "wait", "invitation", "invitation-app", "connect", "by-code", "walled"];
    for (name, page) in gallery(&GERMAN) {
        assert_eq!(
            page.matches("action=\"/logout\"").count(),
            usize::from(!WITHOUT.contains(&name)),
            "{name}"
        );
    }
}

#[test]
fn the_desk_asks_for_no_renewal_that_it_has_no_button_for() {
    for texts in [&ENGLISH, &GERMAN] {
        let pages: std::collections::BTreeMap<_, _> = gallery(texts).into_iter().collect();
        let says = |page: &str, text: &str| {
            let text = text.replace('"', "&#34;").replace('\'', "&#39;");
            pages[page].contains(&format!("<dd>{text}</dd>"))
        };
        let (own, desk) = (texts.devices.has_to_be_renewed, texts.desk.has_to_be_renewed);
        assert_eq!([says("devices", own), pages["devices"].contains("/renew\"")], [true, true]);
        for page in ["user", "locked"] {
            assert_eq!([says(page, own), pages[page].contains("/renew\"")], [false, false], "{page}");
            assert!(says(page, desk), "{page}: {}", pages[page]);
        }
    }
}

#[test]
fn the_desk_offers_no_question_that_the_role_may_not_ask() {
    let frame = || Frame { texts: &ENGLISH, name: "VPN", logo: false, log_out: None };
    for (role, asks) in [(Role::Viewer, false), (Role::HelpDesk, true), (Role::Administrator, true)] {
        let page = DeskPage::new(frame(), String::new(), &DeskState { role, ..state() }).render().unwrap();
        assert_eq!(page.contains("/desk/whois"), asks, "{role:?}");
    }
}
