//! Each page, as Chromium shows it, passes axe-core's rules for WCAG 2.1 AA, light and dark,
//! without our script and as that leaves it, and fits into 320 CSS pixels and into 1280 with text
//! of twice the size (WCAG 1.4.10, 1.4.4). `netns/portal/keyboard` has the rest, by real keys.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::gallery;
use crate::texts::{ENGLISH, GERMAN};

const STYLE: &str = include_str!("../../../assets/style.css");
const SCRIPT: &str = include_str!("../../../assets/script.js");
const OWN_SCRIPT: &str = "<script src=\"/script.js\" defer></script>";
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
/// The script by which each page reports.
const REPORT: &str = r#"<script src="axe.min.js"></script><script>
const tags = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice'];
const run = () => axe.run(document, { runOnly: { type: 'tag', values: tags } });
(globalThis.drawn ?? Promise.resolve()).then(run).then((found) => {
    const where = (node) => node.target.join(' ');
    const broken = found.violations.map((rule) => `${rule.id}: ${rule.nodes.map(where).join(', ')}`);
    const width = document.documentElement.scrollWidth;
    if (width > innerWidth) broken.push(`${width} pixels wide`);
    const isBare = document.querySelector('[data-with-script][hidden]');
    if (globalThis.scripted && isBare) broken.push('the script has done nothing');
    const name = location.pathname.split('/').pop();
    parent.postMessage(`${name} ${found.passes.length} passed${broken.map((line) => ' BROKEN ' + line).join('')}`, '*');
});
</script></body>"#;

/// Has our script work on the page first.
const BY_SCRIPT: &str = r#"<script>globalThis.scripted = true;</script><script src="script.js"></script>"#;
/// Has it add a device, whose configuration it then shows with a QR code.
const ADD: &str = r#"<script>
globalThis.fetch = async () => ({ redirected: false, text: async () => ADDED });
globalThis.drawn = new Promise((resolve) => {
    const look = () => document.querySelector('#qr svg') && resolve();
    new MutationObserver(look).observe(document.body, { childList: true, subtree: true });
});
const form = document.getElementById('add');
form.elements.name.value = 'phone';
form.requestSubmit();
</script>"#;

/// Writes all pages with a style to a directory, and what reports on them.
fn write(directory: &Path, style: &str, width: u32) -> Vec<String> {
    fs::write(directory.join("style.css"), style).unwrap();
    fs::write(directory.join("script.js"), SCRIPT).unwrap();
    let mut files = Vec::new();
    let mut keep = |file: &str, page: &str| {
        fs::write(directory.join(file), page).unwrap();
        files.push(file.to_owned());
    };
    for texts in [&ENGLISH, &GERMAN] {
        for (name, page) in gallery(texts) {
            let page = page.replace("href=\"/style.css\"", "href=\"style.css\"");
            let bare = page.replace(OWN_SCRIPT, "");
            keep(&format!("{name}-{}.html", texts.language), &bare.replace("</body>", REPORT));
            if bare == page || texts.language != "en" || name == "added" {
                continue;
            }
            keep(
                &format!("{name}-by-script.html"),
                &bare.replace("</body>", &format!("{BY_SCRIPT}{REPORT}")),
            );
            if name == "add" {
                keep(
                    "added-by-script.html",
                    &bare.replace("</body>", &format!("{BY_SCRIPT}{}{REPORT}", add())),
                );
            }
        }
    }
    let pages: Vec<String> = files.iter().map(|file| format!("'{file}'")).collect();
    let driver = DRIVER.replace("PAGES", &pages.join(",")).replace("WIDTH", &width.to_string());
    fs::write(directory.join("driver.html"), driver).unwrap();
    files
}

/// The reports of pages with this style and width, by Chromium.
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

/// [`ADD`] with the page that the gateway answers with.
fn add() -> String {
    let (_, added) = gallery(&ENGLISH).into_iter().find(|(name, _)| *name == "added").unwrap();
    ADD.replace("ADDED", &serde_json::to_string(&added).unwrap().replace("</", "<\\/"))
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
        println!("axe-core: {pages} pages at {width} pixels, no violation");
    }
    // It notices what can't be read, and what is too wide.
    let (_, report) = reported(&axe, &STYLE.replace("--soft: #57606a", "--soft: #c0c6cc"), 320);
    assert!(report.contains("BROKEN color-contrast"), "{report}");
    let (_, report) = reported(&axe, &format!("{STYLE} dt {{ min-width: 30rem; }}"), 320);
    assert!(report.contains("pixels wide"), "{report}");
}
