//! Reads a TOML document section by section and keeps every problem it meets, each with its line.
//!
//! Invariants: an unknown key is a problem; reading goes on after a problem, so that
//! one run lists them all; no text of a value that may hold a secret is repeated (see
//! [`Section::text`]). This module knows TOML and lines. It must not know what any section or key
//! means.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The largest document that is read, in bytes: far more than any real one, and a bound on the
/// work.
pub const MAX_DOCUMENT_BYTES: usize = 1 << 20;

/// One thing that is wrong in a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The line, counted from 1; `None` where a key or section is missing altogether.
    pub line: Option<usize>,
    /// The mistake, and how to correct it.
    pub message: String,
}

/// Every problem of one document. Displayed as `file:line: message`, one a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Invalid {
    /// The name of the document, as the user knows it.
    pub file: String,
    /// The problems, in the order of their lines.
    pub problems: Vec<Problem>,
}

impl Invalid {
    /// Wraps `problems`, sorted by line; those without a line come last.
    pub fn new(file: impl Into<String>, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|p| p.line.unwrap_or(usize::MAX));
        Self { file: file.into(), problems }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            match problem.line {
                Some(line) => write!(f, "{}:{line}: {}", self.file, problem.message)?,
                None => write!(f, "{}: {}", self.file, problem.message)?,
            }
        }
        Ok(())
    }
}

/// Lines of the keys that were read, by `section.key`, for problems found later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places(BTreeMap<String, usize>);

impl Places {
    /// The line of `section.key`, or of its section if only that is there.
    pub fn line(&self, path: &str) -> Option<usize> {
        let section = || path.rsplit_once('.').and_then(|(section, _)| self.0.get(section));
        self.0.get(path).or_else(section).copied()
    }
}

/// A document that is being read.
pub struct Document<'i> {
    root: Section<'i>,
    log: Log,
}

/// A table of the document, from which known keys are taken one by one.
pub struct Section<'i> {
    title: String,
    line: Option<usize>,
    entries: BTreeMap<String, Entry<'i>>,
    asked: Vec<&'static str>,
    /// Those of them that were there.
    found: Vec<&'static str>,
}

struct Entry<'i> {
    key_line: usize,
    value_line: usize,
    value: Spanned<DeValue<'i>>,
}

/// Collects the problems and the places; handed to every reading method.
pub struct Log {
    line_starts: Vec<usize>,
    problems: Vec<Problem>,
    places: BTreeMap<String, usize>,
}

impl<'i> Document<'i> {
    /// Parses `text`. Fails with the problems of its syntax, if any.
    pub fn parse(text: &'i str) -> Result<Self, Vec<Problem>> {
        if text.len() > MAX_DOCUMENT_BYTES {
            let message = format!(
                "the file has {} bytes, more than the {MAX_DOCUMENT_BYTES} that are read",
                text.len()
            );
            return Err(vec![Problem { line: None, message }]);
        }
        let mut log = Log::new(text);
        let (root, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            let line = error.span().map(|span| log.line_at(span.start));
            let message = match (error.message(), error.span().and_then(|span| text.get(span))) {
                // `vpnd init` writes most sections, so an example of the documents that is appended
                // has a section that is there.
                ("duplicate key", Some(key)) => {
                    format!("'{key}' is there already, further up: write its keys in one place")
                }
                (message, _) => message.to_owned(),
            };
            log.problems.push(Problem { line, message });
        }
        if !log.problems.is_empty() {
            return Err(log.problems);
        }
        let root = Section::new(String::new(), None, root.into_inner(), &log);
        Ok(Self { root, log })
    }

    /// Reads keys that stand outside of any section.
    pub fn top<T>(&mut self, read: impl FnOnce(&mut Section<'i>, &mut Log) -> T) -> T {
        read(&mut self.root, &mut self.log)
    }

    /// Reads the section `[name]`, an empty one if it is missing, and reports the keys that `read`
    /// did not ask for.
    pub fn section<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Section<'i>, &mut Log) -> T,
    ) -> T {
        let mut section = self.root.table(name, &mut self.log);
        let value = read(&mut section, &mut self.log);
        section.finish(&mut self.log);
        value
    }

    /// Whether a section that was not read yet has this flag set, which another one depends on.
    pub fn is_set(&self, section: &str, key: &str) -> bool {
        let Some(DeValue::Table(table)) = self.root.entries.get(section).map(|entry| entry.value.get_ref())
        else {
            return false;
        };
        let is_flag = |value: &Spanned<DeValue<'_>>| matches!(value.get_ref(), DeValue::Boolean(true));
        table.iter().any(|(name, value)| name.get_ref().as_ref() == key && is_flag(value))
    }

    /// Ends the reading: all problems, and where each key stands.
    pub fn finish(mut self) -> (Vec<Problem>, Places) {
        self.root.finish(&mut self.log);
        (self.log.problems, Places(self.log.places))
    }
}

impl Log {
    fn new(text: &str) -> Self {
        let line_starts = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i + 1).collect();
        Self { line_starts, problems: Vec::new(), places: BTreeMap::new() }
    }

    /// Whether nothing is wrong so far.
    pub fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    fn line_at(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset) + 1
    }

    fn push(&mut self, line: Option<usize>, message: String) {
        self.problems.push(Problem { line, message });
    }
}

impl<'i> Section<'i> {
    fn new(title: String, line: Option<usize>, table: DeTable<'i>, log: &Log) -> Self {
        let entries = table
            .into_iter()
            .map(|(key, value)| {
                let (key_line, value_line) = (log.line_at(key.span().start), log.line_at(value.span().start));
                (key.into_inner().into_owned(), Entry { key_line, value_line, value })
            })
            .collect();
        Self { title, line, entries, asked: Vec::new(), found: Vec::new() }
    }

    /// `true` or `false`; `default` if the key is missing or wrong.
    pub fn flag(&mut self, log: &mut Log, key: &'static str, default: bool) -> bool {
        match self.take(log, key) {
            None => default,
            Some((_, DeValue::Boolean(value))) => value,
            Some((line, other)) => {
                self.wrong(log, line, key, "true or false", &other);
                default
            }
        }
    }

    /// A whole number within `range`; `default` if the key is missing or wrong.
    pub fn number(
        &mut self,
        log: &mut Log,
        key: &'static str,
        range: RangeInclusive<u64>,
        default: u64,
    ) -> u64 {
        let Some((line, value)) = self.take(log, key) else { return default };
        let expects = format!("a whole number from {} to {}", range.start(), range.end());
        let DeValue::Integer(integer) = &value else {
            self.wrong(log, line, key, &expects, &value);
            return default;
        };
        match u64::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(number) if range.contains(&number) => number,
            _ => {
                log.push(Some(line), format!("'{key}' in {} must be {expects}, not {integer}", self.name()));
                default
            }
        }
    }

    /// A string, taken as it is. Its text never shows in a problem, so it may hold a secret.
    pub fn text(&mut self, log: &mut Log, key: &'static str) -> Option<String> {
        match self.take(log, key)? {
            (_, DeValue::String(text)) => Some(text.into_owned()),
            (line, other) => {
                self.wrong(log, line, key, "a string", &other);
                None
            }
        }
    }

    /// A string that parses as `T`; `expects` says what that is, as in `an IPv4 network such as
    /// "10.0.0.0/8"`.
    pub fn parsed<T: FromStr>(&mut self, log: &mut Log, key: &'static str, expects: &str) -> Option<T> {
        match self.take(log, key)? {
            (line, DeValue::String(text)) => self.parse_text(log, line, key, expects, &text),
            (line, other) => {
                self.wrong(log, line, key, expects, &other);
                None
            }
        }
    }

    /// A list of strings, or one string, each of which parses as `T`. `None` if the key is missing;
    /// entries that are wrong are reported and left out.
    pub fn list<T: FromStr>(&mut self, log: &mut Log, key: &'static str, expects: &str) -> Option<Vec<T>> {
        let mut parsed = Vec::new();
        match self.take(log, key)? {
            (line, DeValue::String(text)) => {
                parsed.extend(self.parse_text(log, line, key, expects, &text));
            }
            (_, DeValue::Array(array)) => {
                for item in array {
                    let line = log.line_at(item.span().start);
                    match item.into_inner() {
                        DeValue::String(text) => {
                            parsed.extend(self.parse_text(log, line, key, expects, &text))
                        }
                        other => self.wrong(log, line, key, &format!("a list; each entry {expects}"), &other),
                    }
                }
            }
            (line, other) => self.wrong(log, line, key, &format!("a list; each entry {expects}"), &other),
        }
        Some(parsed)
    }

    /// One word out of `choices`; `None` if the key is missing or wrong.
    pub fn choice<T: Copy>(
        &mut self,
        log: &mut Log,
        key: &'static str,
        choices: &[(&'static str, T)],
    ) -> Option<T> {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        let expects = format!("one of {}", quoted(&words));
        let (line, value) = self.take(log, key)?;
        let DeValue::String(text) = &value else {
            self.wrong(log, line, key, &expects, &value);
            return None;
        };
        let found = choices.iter().find(|(word, _)| word == text).map(|(_, value)| *value);
        if found.is_none() {
            let hint = nearest(text, &words).map(|w| format!("; did you mean '{w}'?")).unwrap_or_default();
            let message = format!("'{key}' in {} must be {expects}, not {text:?}{hint}", self.name());
            log.push(Some(line), message);
        }
        found
    }

    /// A list of tables (`[[section.key]]`), each read by `read`; its unknown keys are reported.
    pub fn tables<T>(
        &mut self,
        log: &mut Log,
        key: &'static str,
        mut read: impl FnMut(&mut Section<'i>, &mut Log) -> Option<T>,
    ) -> Vec<T> {
        let mut values = Vec::new();
        let items = match self.take(log, key) {
            None => return values,
            Some((_, DeValue::Array(items))) => items,
            Some((line, other)) => {
                self.wrong(log, line, key, "a list of tables", &other);
                return values;
            }
        };
        for item in items {
            let line = log.line_at(item.span().start);
            match item.into_inner() {
                DeValue::Table(table) => {
                    let mut section = Section::new(self.path(key), Some(line), table, log);
                    values.extend(read(&mut section, log));
                    section.finish(log);
                }
                other => self.wrong(log, line, key, "a list of tables", &other),
            }
        }
        values
    }

    /// The line where the section begins.
    pub fn line(&self) -> Option<usize> {
        self.line
    }

    /// Reports that `key` is missing; `hint` is an example.
    pub fn missing(&self, log: &mut Log, key: &str, hint: &str) {
        log.push(self.line, format!("{} needs the key '{key}': {hint}", self.name()));
    }

    /// Reports a problem with the value of `key`.
    pub fn problem(&self, log: &mut Log, key: &str, message: String) {
        let line = log.places.get(&self.path(key)).copied().or(self.line);
        log.push(line, message);
    }

    /// Whether this section has `key` (before or after it was taken); another of the same name may
    /// have it or not.
    pub fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key) || self.found.contains(&key)
    }

    fn table(&mut self, key: &'static str, log: &mut Log) -> Section<'i> {
        let title = self.path(key);
        match self.take(log, key) {
            Some((line, DeValue::Table(table))) => Section::new(title, Some(line), table, log),
            other => {
                if let Some((line, value)) = other {
                    self.wrong(log, line, key, "a section", &value);
                }
                Section { title, line: None, entries: BTreeMap::new(), asked: Vec::new(), found: Vec::new() }
            }
        }
    }

    fn take(&mut self, log: &mut Log, key: &'static str) -> Option<(usize, DeValue<'i>)> {
        self.asked.push(key);
        let entry = self.entries.remove(key)?;
        self.found.push(key);
        log.places.insert(self.path(key), entry.key_line);
        Some((entry.value_line, entry.value.into_inner()))
    }

    fn parse_text<T: FromStr>(
        &self,
        log: &mut Log,
        line: usize,
        key: &str,
        expects: &str,
        text: &str,
    ) -> Option<T> {
        let parsed = text.parse().ok();
        if parsed.is_none() {
            log.push(Some(line), format!("'{key}' in {} must be {expects}, not {text:?}", self.name()));
        }
        parsed
    }

    fn wrong(&self, log: &mut Log, line: usize, key: &str, expects: &str, found: &DeValue<'_>) {
        let message = format!("'{key}' in {} must be {expects}, not {}", self.name(), describe(found));
        log.push(Some(line), message);
    }

    /// Leaves the section as it is and reports no unknown keys: which ones there are depends on one
    /// that is wrong.
    pub fn leave<T>(&mut self) -> Option<T> {
        self.entries.clear();
        None
    }

    fn finish(&mut self, log: &mut Log) {
        for (key, entry) in std::mem::take(&mut self.entries) {
            let hint = match nearest(&key, &self.asked) {
                Some(near) => format!("; did you mean '{near}'?"),
                None => format!("; it knows {}", quoted(&self.asked)),
            };
            let kind =
                if self.title.is_empty() && entry.is_table() { "unknown section" } else { "unknown key" };
            log.push(Some(entry.key_line), format!("{kind} '{key}' in {}{hint}", self.name()));
        }
    }

    fn name(&self) -> String {
        if self.title.is_empty() { "the top of the file".to_owned() } else { format!("[{}]", self.title) }
    }

    fn path(&self, key: &str) -> String {
        if self.title.is_empty() { key.to_owned() } else { format!("{}.{key}", self.title) }
    }
}

impl Entry<'_> {
    fn is_table(&self) -> bool {
        matches!(self.value.get_ref(), DeValue::Table(_))
    }
}

/// The known word that `word` was most likely meant to be.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    // A mistyped word is long at most by a few letters: this bounds the work on hostile input.
    if word.len() > 64 {
        return None;
    }
    let scored = known.iter().map(|candidate| (strsim::jaro_winkler(word, candidate), *candidate));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 >= 0.8).then_some(best.1)
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(", ")
}

fn describe(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
