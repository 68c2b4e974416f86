//! The templates of pages: what comes from outside is escaped, and there is nothing but HTML, one
//! stylesheet and one script.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

/// Name and text of each.
fn templates() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("templates");
    let all = fs::read_dir(folder).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert!(name.ends_with(".html"), "askama escapes by the ending: {name}");
        (name, fs::read_to_string(path).unwrap())
    });
    let all: Vec<_> = all.collect();
    assert!(all.len() > 15, "they are there");
    all
}

#[test]
fn values_are_escaped_where_they_are_written_but_for_our_own_drawings() {
    // The QR code that `qrcode` draws.
    let own = "{{ image|safe }}";
    let mut drawings = 0;
    for (name, text) in templates() {
        drawings += text.matches(own).count();
        let rest = text.replace(own, "");
        for way in ["|safe", "| safe", "|escape(", "autoescape", "{% raw", "{% filter"] {
            assert!(!rest.contains(way), "{name}: {way}");
        }
        // A value stands in text or in an attribute with quotation marks: there escaping is enough.
        for before in rest.rsplit("{{").skip(1) {
            let Some(tag) = before.rfind('<').map(|at| &before[at..]) else { continue };
            let is_bare = !tag.contains('>') && tag.matches('"').count() % 2 == 0;
            assert!(!is_bare, "{name}: a value without quotation marks behind {tag:?}");
        }
    }
    assert!(drawings > 0, "pages have drawings");
}

#[test]
fn pages_have_no_plug_in_no_inline_script_and_nothing_from_elsewhere() {
    for (name, text) in templates() {
        let small = text.to_ascii_lowercase();
        for tag in
            ["<object", "<embed", "<applet", "<iframe", "<frame", "<base", "<style", "<link rel=\"import"]
        {
            assert!(!small.contains(tag), "{name}: {tag}");
        }
        for start in [
            "javascript:",
            "data:",
            "src=\"http",
            "src=\"//",
            "href=\"http",
            "href=\"//",
            " style=",
            "srcdoc",
        ] {
            assert!(!small.contains(start), "{name}: {start}");
        }
        let scripts: Vec<&str> = small.split("<script").skip(1).collect();
        assert!(scripts.iter().all(|rest| rest.starts_with(" src=\"/script.js\"")), "{name}: {scripts:?}");
        // Handlers in attributes, such as `onclick`.
        let attributes = small
            .split(|c: char| c.is_whitespace())
            .filter_map(|word| word.split_once('='))
            .map(|(key, _)| key);
        let handlers: Vec<&str> = attributes.filter(|key| key.starts_with("on") && key.len() > 4).collect();
        assert!(handlers.is_empty(), "{name}: {handlers:?}");
    }
}
