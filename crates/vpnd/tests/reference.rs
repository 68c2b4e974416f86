//! `docs/CONFIGURATION.md` is made of the parser's own words and of `config/server.toml`, and is
//! checked to be that.
//!
//! Which values a key takes is what the parser says about a wrong one, its meaning and its default
//! are the example's, which `examples.rs` holds against the parser. `VPND_WRITE_REFERENCE=1` writes
//! the file.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and helper functions of integration tests are not known as tests"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use vpnd_config::ServerConfig;
use vpnd_config::in_force::waits;

const HEAD: &str = "# Configuration of the gateway\n\n\
Every key of `server.toml`.\n\
A test makes this page from the parser's messages and from [config/server.toml](../config/server.toml), a good file to begin with.\n\
`vpnd check FILE` reports every mistake with its line.\n\
`vpnd reload` applies a changed file as a whole or not at all, but for what is marked \"restart\", which it names.\n\
Relative paths start at the directory of the file.\n";

/// The comment of a key that means what it means in the table of the same name above.
const AS_ABOVE: &str = "As above.";
/// The shortest description of values that is given once.
const LONG: usize = 60;

/// A key of the example.
struct Setting {
    /// The number of its section or entry of a list.
    place: usize,
    /// Empty for the head of a section, which is the value then.
    key: String,
    /// The value in the example.
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
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    (!key.is_empty() && key.chars().all(is_allowed)).then_some((key, value))
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
            let (key, value, line) = (String::new(), bare.to_owned(), lines.len() - 1);
            settings.push(Setting { place, key, value, meaning: meaning.trim().to_owned(), line });
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

/// The example as it is, and with what decides about other keys' defaults and needs changed: the
/// portal served, clients that reach each other, a profile that requires nothing. A key is the same
/// line in each.
fn variants(lines: &[String], settings: &[Setting]) -> Vec<Vec<String>> {
    let section = |head: &str| {
        let at = settings.iter().position(|setting| setting.key.is_empty() && setting.value == head);
        &settings[at.unwrap_or_else(|| panic!("the example has no {head}"))..]
    };
    let line = |head: &str, key: &str| {
        let found = section(head).iter().find(|setting| setting.key == key);
        found.unwrap_or_else(|| panic!("the example has no '{key}' in {head}")).line
    };
    let mut portal = lines.to_vec();
    portal[line("[portal]", "enabled")] = "enabled = true".to_owned();
    portal[section("[acme]")[0].line..].fill(String::new());
    let mut open = lines.to_vec();
    open[line("[policy]", "client_to_client")] = "client_to_client = true".to_owned();
    open[line("[wireguard]", "enabled")] = "enabled = true".to_owned();
    open[line("[[profile]]", "require")].clear();
    vec![lines.to_vec(), portal, open]
}

/// Those of the variants that have the setting as the example has it.
fn having<'v>(variants: &'v [Vec<String>], setting: &'v Setting) -> impl Iterator<Item = &'v Vec<String>> {
    variants.iter().filter(|lines| lines[setting.line] == variants[0][setting.line])
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

/// Whether a configuration with the key as shown is the same as without, in each variant that may
/// have it.
fn is_default(variants: &[Vec<String>], setting: &Setting) -> bool {
    let read = |lines: &[String]| {
        let mut config = parse(&(lines.join("\n") + "\n")).ok()?;
        config.places = Default::default();
        Some(format!("{config:?}"))
    };
    let is_same = |with: &Vec<String>| {
        let mut without = with.clone();
        without[setting.line].clear();
        read(with).is_none_or(|config| read(&without) == Some(config))
    };
    having(variants, setting).all(is_same)
}

/// Facts that the reader can't see from the value that is shown. A long description is given at the
/// first key that takes such values, and `given` has it then.
fn values(takes: String, key: &str, given: &mut BTreeMap<String, String>) -> String {
    if let Some(range) = takes.strip_prefix("a whole number from ") {
        return format!("{range}. ");
    }
    if ["a string", "true or false"].contains(&takes.as_str()) {
        return String::new();
    }
    if let Some(first) = given.get(&takes) {
        return format!("As `{first}`. ");
    }
    let (first, rest) = takes.split_at(1);
    let sentence = format!("{}{rest}. ", first.to_uppercase());
    if takes.len() >= LONG {
        given.insert(takes, key.to_owned());
    }
    sentence
}

/// A key's lines; `restart` is whether to say that it waits for a restart.
fn entry(
    variants: &[Vec<String>],
    settings: &[Setting],
    setting: &Setting,
    restart: bool,
    given: &mut BTreeMap<String, String>,
) -> String {
    let Setting { key, value, meaning, .. } = setting;
    let need = having(variants, setting).find_map(|lines| need(lines, settings, setting));
    let shown = match (need, is_default(variants, setting)) {
        (Some(needed), _) => format!("{needed}. Example: `{value}`."),
        (None, true) => format!("Default: `{value}`."),
        (None, false) => format!("Example: `{value}`."),
    };
    let takes = values(takes(&variants[0], setting), key, given);
    let mark = if restart { " (restart)" } else { "" };
    let text = by_sentence(&format!("{meaning} {takes}{shown}"), "  ");
    format!("- **`{key}`**{mark}: {text}\n")
}

/// The text with a line for each sentence; those after the first begin with `indent`.
fn by_sentence(text: &str, indent: &str) -> String {
    text.replace(". ", &format!(".\n{indent}"))
}

#[test]
fn the_reference_is_what_the_parser_says() {
    let example = fs::read_to_string(root().join("config/server.toml")).unwrap();
    let (lines, settings) = read(&example);
    parse(&(lines.join("\n") + "\n")).expect("the example with everything switched on is good");
    let variants = variants(&lines, &settings);
    let (mut text, mut given) = (HEAD.to_owned(), BTreeMap::new());
    for table in settings.chunk_by(|_, next| !next.key.is_empty()) {
        let (head, keys) = table.split_first().expect("a chunk is never empty");
        let section = head.value.trim_matches(['[', ']']);
        let all_wait = keys.iter().all(|setting| waits(section, &setting.key));
        write!(text, "\n## `{}`{}\n\n", head.value, if all_wait { " (restart)" } else { "" }).unwrap();
        if !head.meaning.is_empty() {
            write!(text, "{}\n\n", by_sentence(&head.meaning, "")).unwrap();
        }
        let (above, own): (Vec<_>, Vec<_>) = keys.iter().partition(|setting| setting.meaning == AS_ABOVE);
        for (number, setting) in own.iter().enumerate() {
            let has_own = number == 0 || own[number - 1].meaning != setting.meaning;
            assert!(
                !setting.meaning.is_empty() && has_own,
                "config/server.toml has no comment of its own above '{}'",
                setting.key
            );
            let restart = !all_wait && waits(section, &setting.key);
            text.push_str(&entry(&variants, &settings, setting, restart, &mut given));
        }
        if !above.is_empty() {
            let keys = above.iter().map(|setting| format!("`{}`", setting.key)).collect::<Vec<_>>();
            writeln!(text, "- As above: {}", keys.join(", ")).unwrap();
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
         VPND_WRITE_REFERENCE=1 cargo test -p vpnd --test reference writes it"
    );
}
