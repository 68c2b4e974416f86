//! Users as rows of a file, CSV or JSON: what `vpnd user import` reads and `vpnd user export`
//! writes.
//!
//! Invariants: both formats have the same fields, and what is exported with hashes can be imported;
//! an empty field of CSV and a missing one of JSON are the same. A wrong row is reported with its
//! place and reading goes on. This module must not know which users there are.

use std::collections::BTreeMap;
use std::io::Write;

use zeroize::Zeroizing;

use super::UserError;

/// The fields of a row, in their order.
pub(super) const FIELDS: [&str; 10] = [
    "name",
    "groups",
    "expires",
    "sponsor",
    "note",
    "enabled",
    "password",
    "password_hash",
    "totp_secret",
    "addresses",
];

/// One user of a file.
pub(super) struct Row {
    /// The position as displayed: `line 7`, or `entry 3`.
    pub(super) place: String,
    fields: BTreeMap<&'static str, Zeroizing<String>>,
}

impl Row {
    /// The field, unless it is empty or missing.
    pub(super) fn get(&self, field: &str) -> Option<&str> {
        self.fields.get(field).map(|text| text.as_str())
    }
}

/// A file's rows, and its mistakes.
pub(super) struct Table {
    pub(super) rows: Vec<Row>,
    pub(super) mistakes: Vec<String>,
}

/// Reads JSON if the text begins like that, else CSV.
pub(super) fn read(text: &str) -> Table {
    if text.trim_start().starts_with('[') { of_json(text) } else { of_csv(text) }
}

/// The separator with which the first line has most fields that there are: a comma, unless a
/// spreadsheet of another country has written it.
fn separator(text: &str) -> u8 {
    let first = text.lines().next().unwrap_or_default();
    let known = |separator: &u8| {
        let names = first.split(char::from(*separator));
        names.filter(|name| field(name.trim().trim_matches('"')).is_some()).count()
    };
    [b'\t', b';', b','].into_iter().max_by_key(known).unwrap_or(b',')
}

fn of_csv(text: &str) -> Table {
    let mut table = Table { rows: Vec::new(), mistakes: Vec::new() };
    let mut reader = csv::ReaderBuilder::new();
    let reader = reader.delimiter(separator(text)).trim(csv::Trim::Headers);
    let mut reader = reader.from_reader(text.as_bytes());
    let header: Vec<String> = match reader.headers() {
        Ok(header) => header.iter().map(str::to_owned).collect(),
        Err(error) => {
            table.mistakes.push(format!("line 1: {error}"));
            return table;
        }
    };
    let columns: Vec<Option<&'static str>> = header.iter().map(|name| field(name)).collect();
    if columns.iter().all(Option::is_none) {
        let known = FIELDS.join(", ");
        table.mistakes.push(format!("line 1: it must name the fields, separated by commas: {known}"));
        return table;
    }
    for (name, _) in header.iter().zip(&columns).filter(|(_, column)| column.is_none()) {
        table
            .mistakes
            .push(format!("line 1: there is no field {name:?}; the fields are {}", FIELDS.join(", ")));
    }
    for (at, name) in header.iter().enumerate().filter(|(at, name)| header[..*at].contains(name)) {
        table.mistakes.push(format!("line 1: the field {name:?} is there twice, again as number {}", at + 1));
    }
    if !table.mistakes.is_empty() {
        // Each line would be wrong because of the first.
        return table;
    }
    for record in reader.records() {
        match record {
            Ok(record) => {
                let line = record.position().map_or(0, csv::Position::line);
                let named = columns.iter().zip(&record).filter_map(|(name, text)| filled((*name)?, text));
                table.rows.push(Row { place: format!("line {line}"), fields: named.collect() });
            }
            Err(error) => {
                let line = error.position().map_or(0, csv::Position::line);
                table.mistakes.push(format!("line {line}: {error}"));
            }
        }
    }
    table
}

fn of_json(text: &str) -> Table {
    let mut table = Table { rows: Vec::new(), mistakes: Vec::new() };
    let entries: Vec<serde_json::Map<String, serde_json::Value>> = match serde_json::from_str(text) {
        Ok(entries) => entries,
        Err(error) => {
            table.mistakes.push(format!("line {}: {error}", error.line()));
            return table;
        }
    };
    for (number, entry) in (1..).zip(entries) {
        let mut row = Row { place: format!("entry {number}"), fields: BTreeMap::new() };
        for (key, value) in entry {
            match (field(&key), text_of(&value)) {
                (Some(name), Some(text)) => row.fields.extend(filled(name, &text)),
                (Some(name), None) => {
                    table
                        .mistakes
                        .push(format!("entry {number}: {name} is neither text nor a list of texts"));
                }
                (None, _) => {
                    let known = FIELDS.join(", ");
                    table
                        .mistakes
                        .push(format!("entry {number}: there is no field {key:?}; the fields are {known}"));
                }
            }
        }
        table.rows.push(row);
    }
    table
}

fn text_of(value: &serde_json::Value) -> Option<String> {
    match value {
        serde_json::Value::Null => Some(String::new()),
        serde_json::Value::Bool(flag) => Some(flag.to_string()),
        serde_json::Value::String(text) => Some(text.clone()),
        serde_json::Value::Array(items) => {
            let items: Option<Vec<&str>> = items.iter().map(serde_json::Value::as_str).collect();
            items.map(|items| items.join(" "))
        }
        _ => None,
    }
}

/// A field with what it holds, unless that is nothing. Spaces around it don't count, but in
/// secrets: there they are a part of it.
fn filled(name: &'static str, text: &str) -> Option<(&'static str, Zeroizing<String>)> {
    let text = if matches!(name, "password" | "password_hash") { text } else { text.trim() };
    (!text.is_empty()).then(|| (name, Zeroizing::new(text.to_owned())))
}

fn field(name: &str) -> Option<&'static str> {
    FIELDS.into_iter().find(|field| *field == name)
}

/// Writes users, each with its fields in order; an empty one is left out of JSON.
pub(super) fn write(
    rows: &[[Zeroizing<String>; FIELDS.len()]],
    json: bool,
    out: &mut dyn Write,
) -> Result<(), UserError> {
    // The password itself is unknown.
    let shown = |at: usize| FIELDS[at] != "password";
    if json {
        let entries = rows.iter().map(|row| {
            let given = (0..FIELDS.len()).filter(|at| shown(*at) && !row[*at].is_empty());
            serde_json::Value::from_iter(given.map(|at| (FIELDS[at], row[at].as_str())))
        });
        return Ok(writeln!(out, "{:#}", serde_json::Value::from_iter(entries))?);
    }
    let mut writer = csv::Writer::from_writer(out);
    let mut line = |fields: Vec<&str>| writer.write_record(fields).map_err(std::io::Error::from);
    line((0..FIELDS.len()).filter(|at| shown(*at)).map(|at| FIELDS[at]).collect())?;
    for row in rows {
        line((0..FIELDS.len()).filter(|at| shown(*at)).map(|at| row[at].as_str()).collect())?;
    }
    Ok(writer.flush()?)
}
