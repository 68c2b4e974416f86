//! The lists of mutations: reading them, and making one. Knows nothing of building or testing.

use std::path::Path;

/// The lists beside this file, by area.
const LISTS: [&str; 7] = ["cipher", "session", "access", "login", "sources", "processes", "kept"];

/// One check made wrong.
#[derive(Clone, Debug)]
pub(crate) struct Mutation {
    pub(crate) name: String,
    /// The file, from the root of the tree.
    pub(crate) file: String,
    /// Text that the file contains exactly once.
    text: String,
    by: String,
    /// The package whose tests must notice.
    pub(crate) package: String,
    /// `lib` for its unit tests, or the name of a test program.
    pub(crate) target: String,
    /// Parts of the names of tests, of which one must fail.
    pub(crate) tests: Vec<String>,
}

impl Mutation {
    /// `source` with the check made wrong, or why that can't be done.
    pub(crate) fn applied(&self, source: &str) -> Result<String, String> {
        let times = source.matches(&self.text).count();
        if times != 1 {
            return Err(format!("{}: its text stands {times} times in {}, not once", self.name, self.file));
        }
        if self.text == self.by {
            return Err(format!("{}: it changes nothing", self.name));
        }
        Ok(source.replace(&self.text, &self.by))
    }

    /// One of these texts, for tests of this program.
    pub(crate) fn example(text: &str, by: &str) -> Self {
        let word = || "example".to_owned();
        Self {
            name: word(),
            file: word(),
            text: text.to_owned(),
            by: by.to_owned(),
            package: word(),
            target: word(),
            tests: vec![word()],
        }
    }
}

/// All mutations of the tree at `root`, by package.
pub(crate) fn read(root: &Path) -> Vec<Mutation> {
    let mut all: Vec<Mutation> = LISTS.iter().flat_map(|list| read_one(root, list)).collect();
    let mut names: Vec<String> = all.iter().map(|mutation| mutation.name.clone()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), all.len(), "each mutation has a name of its own");
    // Those that are built and run alike stand together: less is compiled again.
    all.sort_by_key(|mutation| (mutation.package.clone(), mutation.target.clone()));
    all
}

fn read_one(root: &Path, list: &str) -> Vec<Mutation> {
    let path = root.join(format!("crates/vpnd/tests/mutations/{list}.toml"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let table: toml::Table = text.parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let entries = table["mutation"].as_array().expect("a list of mutations");
    let mutations = entries.iter().map(|entry| Mutation {
        name: string(&entry["name"]),
        file: string(&entry["file"]),
        text: string(&entry["text"]),
        by: string(&entry["by"]),
        package: string(&entry["package"]),
        target: string(&entry["target"]),
        tests: entry["tests"].as_array().expect("a list of tests").iter().map(string).collect(),
    });
    mutations
        .inspect(|mutation| assert!(!mutation.tests.is_empty(), "{} names no test", mutation.name))
        .collect()
}

fn string(value: &toml::Value) -> String {
    value.as_str().expect("a text").to_owned()
}
