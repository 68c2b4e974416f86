//! `docs/CONFIGURATION.md` is made of the parser's own words and of `config/server.toml`, and is
//! checked to be that.
//!
//! Which values a key takes is what the parser says about a wrong one, its meaning and its default
//! are the example's, which `examples.rs` holds against the parser. `VPND_WRITE_REFERENCE=1` writes
//! the file anew.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and helper functions of integration tests are not known as tests"
)]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use vpnd_config::ServerConfig;
use vpnd_config::in_force::waits;

const HEAD: &str = "# Configuration of the gateway\n\n\
Every key of `server.toml`.\n\
A test makes this page from the parser's messages and from [config/server.toml](../config/server.toml), a good file to begin with.\n\
`vpnd check FILE` reports every mistake with its line.\n\
`vpnd reload` applies a changed file as a whole or not at all, but for keys that take effect at a restart, which it names.\n\
Relative paths start at the directory of the file.\n";

/// A key of the example.
struct Setting {
    /// The number of its section or entry of a list.
    place: usize,
    /// Empty for the head of a section, which is the value then.
    key: String,
    /// As the example shows it.
    value: String,
    meaning: String,
    /// The line in the example in which all is switched on.
    line: usize,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn parse(text: &str) -> Result<ServerConfig, String> {
    // One public address has no blocks for a /16.
    let text = &text.replace("10.86.0.0/16", "10.86.0.0/27").replace("10.86.16.0/20", "10.86.0.16/28");
    ServerConfig::parse(text, "server.toml", Path::new("/etc/vpnd")).map_err(|invalid| invalid.to_string())
}

fn setting(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once(" = ")?;
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    (!key.is_empty() && key.chars().all(fine)).then_some((key, value))
}

/// The example with everything switched on, and its keys. An alternative to the value shown before
/// stays a comment.
fn read(example: &str) -> (Vec<String>, Vec<Setting>) {
    let (mut lines, mut settings): (Vec<String>, Vec<Setting>) = (Vec::new(), Vec::new());
    let (mut place, mut meaning, mut follows) = (0, String::new(), false);
    for text in example.lines() {
        let bare = text.strip_prefix("# ").unwrap_or(text);
        if bare.starts_with('[') && bare.ends_with(']') {
            place += 1;
            lines.push(bare.to_owned());
            // What stands above a list of tables is about the list.
            let about = if bare.starts_with("[[") { meaning.trim().to_owned() } else { String::new() };
            let (key, value, line) = (String::new(), bare.to_owned(), lines.len() - 1);
            settings.push(Setting { place, key, value, meaning: about, line });
            meaning.clear();
            follows = false;
        } else if let Some((key, value)) = setting(bare) {
            let known = settings.iter_mut().find(|known| known.place == place && known.key == key);
            let is_again = known.is_some();
            if let Some(known) = known.filter(|known| value == "\"auto\"" || known.value.is_empty()) {
                value.clone_into(&mut known.value);
            }
            lines.push(if is_again { text.to_owned() } else { bare.to_owned() });
            if !is_again {
                let (key, value, line) = (key.to_owned(), value.to_owned(), lines.len() - 1);
                settings.push(Setting { place, key, value, meaning: meaning.trim().to_owned(), line });
            }
            follows = true;
        } else {
            if follows {
                (meaning, follows) = (String::new(), false);
            }
            meaning = if text.is_empty() { String::new() } else { format!("{meaning} {bare}") };
            lines.push(text.to_owned());
        }
    }
    (lines, settings)
}

/// The parser's words about the values that a key takes.
fn takes(lines: &[String], setting: &Setting) -> String {
    let mut wrong = lines.to_vec();
    wrong[setting.line] = format!("{} = {{}}", setting.key);
    let problems = parse(&(wrong.join("\n") + "\n")).expect_err("a table is no value of a key");
    let start = format!("server.toml:{}: '{}' in ", setting.line + 1, setting.key);
    let said = problems.lines().find_map(|problem| {
        let (_, expects) = problem.strip_prefix(&start)?.split_once(" must be ")?;
        expects.rsplit_once(", not ").map(|(expects, _)| expects.to_owned())
    });
    said.unwrap_or_else(|| panic!("the parser does not say what '{}' takes: {problems}", setting.key))
}

/// Whether the parser demands the key where its section has these others alone.
fn is_needed(
    lines: &[String],
    setting: &Setting,
    others: &[&Setting],
    has: impl Fn(&Setting) -> bool,
) -> bool {
    let mut without = lines.to_vec();
    without[setting.line].clear();
    for other in others.iter().filter(|other| !has(other)) {
        without[other.line].clear();
    }
    let needs = format!("needs the key '{}'", setting.key);
    parse(&(without.join("\n") + "\n")).is_err_and(|problems| problems.contains(&needs))
}

/// Whether the parser demands the key always, or the keys with which it does.
fn need(lines: &[String], settings: &[Setting], setting: &Setting) -> Option<String> {
    let others: Vec<_> = settings
        .iter()
        .filter(|other| other.place == setting.place && other.line != setting.line && !other.key.is_empty())
        .collect();
    if !is_needed(lines, setting, &others, |_| true) {
        return None;
    }
    let least: Vec<_> = others
        .iter()
        .filter(|other| is_needed(lines, other, &[], |_| true))
        .map(|other| other.line)
        .collect();
    if is_needed(lines, setting, &others, |other| least.contains(&other.line)) {
        return Some("Needed".to_owned());
    }
    let with = others
        .iter()
        .filter(|with| {
            is_needed(lines, setting, &others, |other| least.contains(&other.line) || other.line == with.line)
        })
        .map(|with| format!("`{}`", with.key))
        .collect::<Vec<_>>();
    assert!(!with.is_empty(), "no single key demands '{}'", setting.key);
    Some(format!("Needed with {}", with.join(" or ")))
}

fn entry(lines: &[String], settings: &[Setting], setting: &Setting, section: &str) -> String {
    let Setting { key, value, meaning, .. } = setting;
    let effect = if waits(section, key) { " Takes effect at a restart." } else { "" };
    let shown = match (need(lines, settings, setting), is_default(lines, setting)) {
        (Some(needed), _) => format!("{needed}; for example `{value}`."),
        (None, true) => format!("Default: `{value}`."),
        (None, false) => format!("Optional; for example `{value}`."),
    };
    format!("- **`{key}`**: {}. {shown} {meaning}{effect}\n", takes(lines, setting))
}

/// Whether a configuration with the key as shown is the same as without.
fn is_default(lines: &[String], setting: &Setting) -> bool {
    let mut without = lines.to_vec();
    without[setting.line].clear();
    let read = |lines: &[String]| {
        let mut config = parse(&(lines.join("\n") + "\n")).ok()?;
        config.places = Default::default();
        Some(format!("{config:?}"))
    };
    read(lines).is_some_and(|with| read(&without) == Some(with))
}

#[test]
fn the_reference_is_what_the_parser_says() {
    let example = fs::read_to_string(root().join("config/server.toml")).unwrap();
    let (lines, settings) = read(&example);
    parse(&(lines.join("\n") + "\n")).expect("the example with everything switched on is good");
    let mut text = HEAD.to_owned();
    let (before, mut section) = (std::iter::once(None).chain(settings.iter().map(Some)), "");
    for (setting, before) in settings.iter().zip(before) {
        if setting.key.is_empty() {
            section = setting.value.trim_matches(['[', ']']);
            write!(text, "\n## `{}`\n\n", setting.value).unwrap();
            if !setting.meaning.trim().is_empty() {
                write!(text, "{}\n\n", setting.meaning.trim()).unwrap();
            }
        } else {
            // Repeated keys of a second [[source]] and of rules in profiles are explained where
            // they stand first.
            let is_as_above =
                before.is_some_and(|before| !before.key.is_empty() && before.meaning == setting.meaning);
            assert!(
                !setting.meaning.is_empty() && !is_as_above,
                "config/server.toml has no comment of its own above '{}'",
                setting.key
            );
            text.push_str(&entry(&lines, &settings, setting, section));
        }
    }
    let path = root().join("docs/CONFIGURATION.md");
    if std::env::var_os("VPND_WRITE_REFERENCE").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == text,
        "docs/CONFIGURATION.md is not what the parser says now; \
         VPND_WRITE_REFERENCE=1 cargo test -p vpnd --test reference writes it anew"
    );
}
