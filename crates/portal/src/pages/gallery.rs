//! Every page with made-up content, in both languages: what Chromium shows of it passes axe-core's
//! rules for WCAG 2.1 AA, light and dark, and fits into 320 CSS pixels and into 1280 with text of
//! twice the size (WCAG 1.4.10, 1.4.4). `netns/portal/keyboard` has the rest, by real keys.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use askama::Template;
use vpnd_ipc::gateway::auth::{AuditHealth, Count, PoolUsage, SourceHealth, SourceName};
use vpnd_ipc::gateway::portal::desk::{
    AuditRecord, DeskRefusal, DeskState, DeviceTraffic, FoundUser, FoundUsers, Logins, ProfileCount,
    RefusedLogin, Role, ShownUser, UserState, Whois, WorkerShown,
};
use vpnd_ipc::gateway::portal::devices::{OwnDevice, OwnDevices, OwnWireGuard};
use vpnd_ipc::gateway::portal::visits::{BrowserKind, OwnVisit, Program, System};
use vpnd_ipc::gateway::portal::{Overview, OwnSession, PortalHealth, Provider};
use vpnd_ipc::request::Reason;
use vpnd_proto::control::{List, Text, UserName};

use super::connect::{ByCodePage, CodePage, ConnectPage};
use super::desk::{DeskPage, LinkPage, SearchPage, UserPage, WhoisPage};
use super::devices::{AddDevicePage, AddedDevicePage, DevicesPage};
use super::{
    AnswerPage, CodesPage, Frame, InvitationPage, LoginPage, MessagePage, OverviewPage, PasswordPage,
    WaitPage,
};
use crate::texts::{ENGLISH, GERMAN, Texts};

const STYLE: &str = include_str!("../../assets/style.css");
const TOTP: (&str, &str) = (
    "otpauth://totp/VPN:gus?secret=ABCDEFGHIJKLMNOPQRSTUVWXYZ234567&issuer=VPN",
    "ABCD EFGH IJKL MNOP QRST UVWX",
);
/// Loads each page, one after the other, and lists what each has reported.
const DRIVER: &str = r#"<!doctype html><body><script>
const left = [PAGES];
const lines = [];
const next = () => {
    document.body.replaceChildren();
    const page = left.shift();
    if (!page) {
        const all = document.createElement('pre');
        all.id = 'all';
        all.textContent = lines.join('\n') + '\nEND';
        document.body.append(all);
        return;
    }
    const frame = document.createElement('iframe');
    frame.style = 'width: WIDTHpx; height: 800px; border: 0';
    frame.src = page;
    document.body.append(frame);
};
addEventListener('message', (event) => { lines.push(event.data); next(); });
next();
</script>"#;
/// What each page reports.
const REPORT: &str = r#"<script src="axe.min.js"></script><script>
const tags = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice'];
axe.run(document, { runOnly: { type: 'tag', values: tags } }).then((found) => {
    const where = (node) => node.target.join(' ');
    const broken = found.violations.map((rule) => `${rule.id}: ${rule.nodes.map(where).join(', ')}`);
    const width = document.documentElement.scrollWidth;
    if (width > innerWidth) broken.push(`${width} pixels wide`);
    const name = location.pathname.split('/').pop();
    parent.postMessage(`${name} ${found.passes.length} passed${broken.map((line) => ' BROKEN ' + line).join('')}`, '*');
});
</script></body>"#;

fn list<T, const N: usize>(items: Vec<T>) -> List<T, N> {
    List::new(items).unwrap()
}

fn state() -> DeskState {
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
        audit: Some(AuditHealth {
            lost: 0,
            failure: Some(Reason::cut("the disk of the audit file is full")),
        }),
        portal: Some(PortalHealth { up: true, visits: 14, certificate_left_s: Some(9 * 86_400) }),
        worker: Some(WorkerShown {
            version: Text::cut("0.1.0"),
            uptime_s: 400_000,
            certificate_left_s: 20 * 86_400,
            drops: list(vec![count("policy"), count("replayed")]),
        }),
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
        }),
    };
    let devices = vec![device(1, false, Some(4_000)), device(2, true, Some(90)), device(3, true, None)];
    OwnDevices { devices: list(devices), wireguard: true, profile: true }
}

fn shown(locked: Option<DeskRefusal>) -> ShownUser {
    let refused = RefusedLogin {
        at_s: 1_790_000_000,
        from: Text::cut("198.51.100.7"),
        cause: Text::cut("wrong-password"),
    };
    ShownUser {
        user: user("gus", UserState::Enabled),
        profile: Some(Text::cut("guests")),
        groups: list(vec![Text::cut("guests"), Text::cut("physics")]),
        codes: Some(true),
        certificates: 1,
        expires_s: Some(1_900_000_000),
        sponsor: Some(Text::cut("ann")),
        note: Text::cut("Conference guest, room 4711"),
        created_s: 1_700_000_000,
        devices: devices(),
        logins: Some(Logins { last_s: Some(1_790_000_000), refused: list(vec![refused]) }),
        locked,
        traffic: list(vec![DeviceTraffic {
            device: [1; 16].into(),
            bytes: [1_234_567_890, 23_456_789_012],
            rates: Some([120_000, 3_400_000]),
        }]),
        can_be_invited: true,
    }
}

fn whois() -> Whois {
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
        desk: true,
        visits: list(vec![
            visit(1, Program::Firefox, System::Linux),
            visit(2, Program::Other, System::Other),
        ]),
    }
}

/// All pages, by name.
fn gallery(texts: &'static Texts) -> Vec<(&'static str, String)> {
    let form = || "f".repeat(64);
    let frame = || Frame { texts, name: "VPN of Example University", logo: false, log_out: Some(form()) };
    let names = vec!["ann", "anna-katharina.mustermann-schmidt@students.uni.example", "anton"];
    let names = names.into_iter().map(|name| user(name, UserState::Disabled)).collect();
    let found = FoundUsers { users: list(names), more: 12 };
    let (overview, whois, devices) = (overview(), whois(), devices());
    let (open, locked) = (shown(None), shown(Some(DeskRefusal::Senior)));
    let provider = [Provider { source: SourceName::cut("uni"), label: Text::cut("Example University") }];
    let problem = Some("Too many attempts. Wait 5 seconds.".to_owned());
    let link = format!("https://vpn.uni.example/invitation/{}", "0123456789abcdef".repeat(4));
    let configuration = "[Interface]\nAddress = 10.86.1.2/32\n[Peer]\nPublicKey = abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG=\nEndpoint = vpn.uni.example:4433\n";
    let why = (texts.desk.why_not)(DeskRefusal::Elsewhere);
    let invitation = InvitationPage::new(frame(), form(), Some(texts.code_wrong), "gus", TOTP).unwrap();
    let login =
        LoginPage { frame: frame(), form: form(), user: "", problem, providers: &provider, again: true };
    let answer = AnswerPage { frame: frame(), form: form(), demand: texts.code, shown: true };
    let user = UserPage::new(frame(), form(), &open, true).render().unwrap();
    let desk = DeskPage::new(frame(), form(), &state()).render().unwrap();
    let device = ConnectPage {
        frame: frame(),
        form: form(),
        name: "laptop",
        from: [192, 0, 2, 7].into(),
        user: "ann",
        source: "local",
    };
    let add_device = |is_linux, problem| AddDevicePage {
        frame: frame(),
        form: form(),
        name: "",
        problem,
        wireguard: true,
        profile: is_linux,
        is_linux,
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
    let pages: [(&str, Result<String, askama::Error>); 21] = [
        ("login", login.render()),
        ("answer", answer.render()),
        ("connect", device.render()),
        ("code", CodePage { frame: frame(), form: form(), problem: code_wrong }.render()),
        ("by-code", by_code.render()),
        ("wait", WaitPage { frame: frame() }.render()),
        ("message", MessagePage { frame: frame(), heading: texts.desk.refused, text: why }.render()),
        ("password", PasswordPage { frame: frame(), form: form(), problem: None }.render()),
        ("codes", CodesPage::new(frame(), form(), None, TOTP).unwrap().render()),
        ("invitation", invitation.render()),
        ("overview", OverviewPage::new(frame(), form(), &overview, Some(texts.session_ended)).render()),
        ("devices", DevicesPage::new(frame(), form(), &devices, Some(texts.devices.removed)).render()),
        ("add", add_device(false, Some(texts.devices.full)).render()),
        ("add-linux", add_device(true, None).render()),
        ("added", AddedDevicePage { frame: frame(), configuration }.render()),
        ("desk", Ok(desk.replace("<details>", "<details open>"))),
        ("search", SearchPage::new(frame(), "an", &found).render()),
        ("user", Ok(user.replace("<details>", "<details open>"))),
        ("locked", UserPage::new(frame(), form(), &locked, false).render()),
        ("whois", WhoisPage::new(frame(), "10.86.1.2:443", &whois).render()),
        ("link", LinkPage { frame: frame(), name: "gus", link: &link }.render()),
    ];
    pages.into_iter().map(|(name, page)| (name, page.unwrap())).collect()
}

/// Writes all pages with a style to a directory, and what reports on them.
fn write(directory: &Path, style: &str, width: u32) -> Vec<String> {
    fs::write(directory.join("style.css"), style).unwrap();
    let mut files = Vec::new();
    for texts in [&ENGLISH, &GERMAN] {
        for (name, page) in gallery(texts) {
            let page = page
                .replace("href=\"/style.css\"", "href=\"style.css\"")
                .replace("<script src=\"/script.js\" defer></script>", "")
                .replace("</body>", REPORT);
            let file = format!("{name}-{}.html", texts.language);
            fs::write(directory.join(&file), page).unwrap();
            files.push(file);
        }
    }
    let pages: Vec<String> = files.iter().map(|file| format!("'{file}'")).collect();
    let driver = DRIVER.replace("PAGES", &pages.join(",")).replace("WIDTH", &width.to_string());
    fs::write(directory.join("driver.html"), driver).unwrap();
    files
}

/// What the pages with this style and of this width have reported, by Chromium.
fn reported(axe: &Path, style: &str, width: u32) -> (usize, String) {
    let directory = tempfile::tempdir().unwrap();
    let files = write(directory.path(), style, width);
    fs::copy(axe, directory.path().join("axe.min.js")).unwrap();
    let output = Command::new("timeout")
        .args([
            "120",
            "chromium",
            "--disable-dev-shm-usage",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--allow-file-access-from-files",
        ])
        .args(["--window-size=1400,900", "--virtual-time-budget=600000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", directory.path().join("profile").display()))
        .arg(format!("file://{}", directory.path().join("driver.html").display()))
        .output()
        .unwrap();
    (files.len(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// axe-core, where it and Chromium are, which CI has.
fn axe() -> Option<PathBuf> {
    let axe =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/axe/node_modules/axe-core/axe.min.js");
    let is_there = axe.exists() && Command::new("chromium").arg("--version").output().is_ok();
    if !is_there {
        assert!(std::env::var_os("CI").is_none(), "this test needs chromium and axe-core: ./x setup");
        eprintln!("SKIPPED: there is no chromium or no axe-core; run ./x setup");
    }
    is_there.then_some(axe)
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
fn whoever_has_logged_in_can_log_out_from_every_page() {
    // Before a login there is nothing to log out of; a client's question is answered by yes or no.
    const WITHOUT: [&str; 6] = ["login", "answer", "wait", "invitation", "connect", "by-code"];
    for (name, page) in gallery(&GERMAN) {
        assert_eq!(
            page.matches("action=\"/logout\"").count(),
            usize::from(!WITHOUT.contains(&name)),
            "{name}"
        );
    }
}

#[test]
fn every_page_is_accessible_light_and_dark_narrow_and_with_large_text() {
    let Some(axe) = axe() else { return };
    let dark = STYLE.replace("(prefers-color-scheme: dark)", "all");
    assert_ne!(dark, STYLE);
    let large = format!("{STYLE} html {{ font-size: 200%; }}");
    for (style, width) in [(STYLE, 320), (&dark, 320), (&large, 1_280)] {
        let (pages, report) = reported(&axe, style, width);
        assert!(report.contains("END") && !report.contains("BROKEN"), "{report}");
        assert_eq!(report.matches(" passed").count(), pages, "{report}");
    }
    // It notices what can't be read, and what is too wide.
    let (_, report) = reported(&axe, &STYLE.replace("--soft: #57606a", "--soft: #c0c6cc"), 320);
    assert!(report.contains("BROKEN color-contrast"), "{report}");
    let (_, report) = reported(&axe, &format!("{STYLE} dt {{ min-width: 30rem; }}"), 320);
    assert!(report.contains("pixels wide"), "{report}");
}
