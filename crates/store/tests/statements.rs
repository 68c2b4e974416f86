//! Statements are constants: what is put into the text of one is a name of our own, never a value.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// All that may stand in the text of a statement, and what each is.
const PARTS: [(&str, &str); 24] = [
    ("COLUMNS", "a list of columns"),
    ("CONNECTIONS_LEFT", "a query"),
    ("COUNTS", "a condition"),
    ("KEPT", "an interval"),
    ("KEPT_MARKS", "an integer"),
    ("column", "a column"),
    ("columns", "a list of columns"),
    ("condition", "more of a condition, with numbers of parameters"),
    ("marks", "marks of parameters"),
    ("FORMAT", "an integer"),
    ("SETTINGS", "a statement"),
    ("free_since", "an expression"),
    ("gateway", "hexadecimal digits"),
    ("limit", "a setting of the server"),
    ("made_by", "the version of this program"),
    ("others", "a condition, with numbers of parameters"),
    ("parameter", "the number of a parameter"),
    ("session", "a column"),
    ("since", "more of a condition, with numbers of parameters"),
    ("table", "a table"),
    ("wanted", "a parameter, with a function around it"),
    ("changed", "a table and a condition, with marks of parameters"),
    ("which", "a condition, with marks of parameters"),
    ("LOCK_CLASS", "an integer"),
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        match path.is_dir() {
            true if name != "tests" && name != "testing" => sources(&path, found),
            false if name.ends_with(".rs") && !name.starts_with("test") => found.push(path),
            _ => {}
        }
    }
}

/// Texts in quotation marks of a program without its unit tests.
fn literals(program: &str) -> Vec<String> {
    let program = program.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = program.lines().filter(|line| !line.trim_start().starts_with("//"));
    let program = lines.collect::<Vec<_>>().join("\n").replace("\\\"", "").replace("'\"'", "");
    program.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

fn is_statement(text: &str) -> bool {
    let begins = |word: &str| text.trim_start().starts_with(word);
    [
        "SELECT ",
        "INSERT INTO ",
        "UPDATE ",
        "DELETE FROM ",
        "CREATE ",
        "ALTER ",
        "DROP ",
        "SET ",
        "WITH ",
        " AND ",
        "NOT EXISTS ",
    ]
    .iter()
    .any(|word| begins(word))
}

/// The texts in braces.
fn parts(text: &str) -> Vec<&str> {
    text.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(part, _)| part).collect()
}

#[test]
fn nothing_but_names_of_our_own_is_put_into_a_statement() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    let (mut statements, mut used) = (0, BTreeSet::new());
    for file in files {
        for text in
            literals(&fs::read_to_string(&file).unwrap()).into_iter().filter(|text| is_statement(text))
        {
            statements += 1;
            for part in parts(&text) {
                // There it is an integer, the schema, or the configured name of the gateway in
                // quotation marks.
                let is_of_tables = part.is_empty()
                    && (file.ends_with("postgres/holder.rs") || file.ends_with("postgres/format.rs"));
                let known = is_of_tables || PARTS.iter().any(|(name, _)| *name == part);
                assert!(
                    known,
                    "{}: {{{part}}} in {text:?}: is it a value? Make it a parameter",
                    file.display()
                );
                used.insert(part.to_owned());
            }
        }
    }
    assert!(statements > 100, "{statements} statements were found");
    assert!(used.len() > 6, "{used:?}");
}
