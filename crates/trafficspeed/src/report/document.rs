//! The contents of a report, in the order in which it is read: made once by each experiment, and
//! shown as text for a terminal and as a page.
//!
//! Contents that only a page can hold (pictures, tables of command lines, the set-up) are left
//! out of the text, with a heading that has nothing else below it.

use super::grid::{Grid, NARROW, wrapped};
use super::observed::Section;
use super::page::{Page, Picture};
use super::published::Figures;
use crate::experiment::environment::Environment;

/// The line of a report that the user ended.
const INTERRUPTED: &str = "Interrupted: the figures are of what was measured until then.";

enum Part {
    Section(String),
    /// Sentences, in a list of this class on a page.
    Lines(&'static str, Vec<String>),
    Table(Grid),
    /// A table of texts; each row is a sentence in a terminal.
    Texts(Grid),
    /// A table that only a page has.
    Beyond(Grid),
    /// Meanings of words, for readers who do not know them yet.
    Words(String),
    Picture(Picture),
}

/// A report.
pub struct Document<'a> {
    title: String,
    heading: &'static str,
    /// The measurement, in a sentence or two.
    pub lead: String,
    environment: Option<&'a Environment>,
    pub interrupted: bool,
    /// Faults.
    pub problems: Vec<String>,
    /// Parts of the set-up besides the machine, each with its name.
    pub set_up: Vec<(String, String)>,
    parts: Vec<Part>,
}

impl<'a> Document<'a> {
    /// A report about what was measured in `environment`, if anything was.
    pub fn new(
        title: &str,
        heading: &'static str,
        lead: String,
        environment: impl Into<Option<&'a Environment>>,
    ) -> Self {
        let environment = environment.into();
        let (problems, set_up, parts) = (Vec::new(), Vec::new(), Vec::new());
        Self { title: title.into(), heading, lead, environment, interrupted: false, problems, set_up, parts }
    }

    pub fn section(&mut self, name: &str) {
        self.parts.push(Part::Section(name.to_owned()));
    }

    pub fn lines(&mut self, lines: Vec<String>) {
        self.parts.push(Part::Lines("", lines));
    }

    /// Adds remarks that a reader should look at.
    pub fn remarks(&mut self, lines: Vec<String>) {
        self.parts.push(Part::Lines("problems", lines));
    }

    pub fn table(&mut self, grid: Grid) {
        self.parts.push(Part::Table(grid));
    }

    pub fn texts(&mut self, grid: Grid) {
        self.parts.push(Part::Texts(grid));
    }

    pub fn beyond(&mut self, grid: Grid) {
        self.parts.push(Part::Beyond(grid));
    }

    pub fn words(&mut self, words: &str) {
        self.parts.push(Part::Words(words.to_owned()));
    }

    pub fn pictures(&mut self, pictures: Vec<Picture>) {
        self.parts.extend(pictures.into_iter().map(Part::Picture));
    }

    /// Tables under their headings.
    pub fn sections(&mut self, sections: Vec<Section>) {
        for Section { name, caption, grid } in sections {
            self.section(&name);
            if !caption.is_empty() {
                self.lines(vec![caption]);
            }
            self.table(grid);
        }
    }

    /// Adds earlier publications: where, next to what was found here, and their tables.
    pub fn published(&mut self, source: &str, findings: Vec<[String; 3]>, figures: &[Figures]) {
        self.section("What was published before");
        self.lines(vec![format!("{source}. Text for comparison, not results of this run.")]);
        let mut grid = Grid::new(1, ["finding", "then", "here"]);
        grid.rows.extend(findings.into_iter().map(Vec::from));
        self.texts(grid);
        for figures in figures {
            self.lines(vec![figures.caption.to_owned()]);
            let mut grid = Grid::new(1, figures.head.iter().copied());
            let row = |row: &&[&str]| row.iter().map(|cell| (*cell).to_owned()).collect();
            grid.rows.extend(figures.rows.iter().map(row));
            self.table(grid);
        }
    }

    /// The pictures alone.
    pub fn into_pictures(self) -> Vec<Picture> {
        let picture = |part| if let Part::Picture(picture) = part { Some(picture) } else { None };
        self.parts.into_iter().filter_map(picture).collect()
    }

    /// For a terminal: no line is longer than that, unless it is wanted `wide`. With what each word
    /// means, if it is to be explained.
    pub fn text(&self, wide: bool, explains: bool) -> String {
        let width = (!wide).then_some(NARROW);
        let mut lines = vec![self.lead.clone()];
        let mut heading = None;
        for part in &self.parts {
            let shown = match part {
                Part::Section(name) => {
                    heading = Some(format!("\n{name}"));
                    continue;
                }
                Part::Lines(_, lines) => lines.clone(),
                Part::Table(grid) if grid.rows.is_empty() => continue,
                Part::Table(grid) => vec![grid.text(width)],
                Part::Texts(grid) => grid.sentences(),
                Part::Words(words) if explains => vec![words.clone()],
                Part::Words(_) | Part::Beyond(_) | Part::Picture(_) => continue,
            };
            if !shown.is_empty() {
                lines.extend(heading.take());
                lines.extend(shown);
            }
        }
        lines.extend(self.problems.iter().cloned());
        lines.extend(self.interrupted.then(|| INTERRUPTED.to_owned()));
        let method = self.environment.and_then(|environment| environment.topology?.method());
        lines.extend(method.map(|method| format!("Method, {method}.")));
        lines.extend(self.environment.map(Environment::machine));
        let text = lines.join("\n") + "\n";
        width.map_or(text.clone(), |width| wrapped(&text, width))
    }

    pub fn page(&self) -> String {
        let mut page = Page::new(&self.title, self.heading, &self.lead);
        if let Some(environment) = self.environment {
            page.paragraph("meta", &environment.started);
            page.paragraph("meta", &environment.machine());
        }
        if self.interrupted {
            page.paragraph("warning", INTERRUPTED);
        }
        if !self.problems.is_empty() {
            page.section("What went wrong");
            let count = self.problems.len();
            let summary = if count == 1 { "1 problem".to_owned() } else { format!("{count} problems") };
            page.folded("problems", &summary, &self.problems);
        }
        for part in &self.parts {
            match part {
                Part::Section(name) => page.section(name),
                Part::Lines(class, lines) if !lines.is_empty() => page.list(class, lines),
                Part::Table(grid) | Part::Beyond(grid) if !grid.rows.is_empty() => page.table(grid),
                Part::Texts(grid) if !grid.rows.is_empty() => page.texts(grid),
                Part::Words(words) => page.notes(words.lines()),
                Part::Picture(picture) => page.figure(picture),
                Part::Lines(..) | Part::Table(_) | Part::Beyond(_) | Part::Texts(_) => {}
            }
        }
        self.environment.iter().for_each(|environment| self.put_set_up(&mut page, environment));
        page.finish()
    }

    fn put_set_up(&self, page: &mut Page, e: &Environment) {
        page.section("Set-up");
        page.paragraph("note", "The command that made these measurements:");
        page.commands(std::slice::from_ref(&e.command_line));
        let rows = [
            ("Program", e.host.program.clone()),
            ("Kernel", e.host.system.clone()),
            ("CPU", format!("{} × {}", e.host.cpus, e.host.cpu)),
            ("CPU flags that matter here", e.cpu_flags.join(" ")),
            ("Memory", format!("{} MiB", e.memory_mib)),
            ("Links and offloads", e.links.clone().unwrap_or_else(|| "real network".into())),
        ];
        let rows = rows.into_iter().map(|(name, value)| (name.to_owned(), value));
        page.facts(rows.chain(self.set_up.iter().cloned()).chain(e.sysctls.iter().cloned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::chart::markup::assert_well_formed;

    #[test]
    fn a_page_has_all_and_a_terminal_what_it_can_show_with_problems_last() {
        let environment = Environment::default();
        let mut document = Document::new("title", "heading", "What was <done>.".into(), &environment);
        (document.interrupted, document.problems) = (true, vec!["it <broke>".into()]);
        document.section("Systems");
        let mut texts = Grid::new(1, ["system", "version", "MTU"]);
        texts.rows.push(["vpnd", "", "1420"].map(str::to_owned).into());
        document.texts(texts);
        document.section("Pictures");
        document.pictures(vec![Picture::new("one", "A picture", "", "<svg></svg>\n".into())]);
        document.words("Word: its meaning.");
        let page = document.page();
        assert_well_formed(&page);
        for expected in
            ["<svg>", "Pictures", "1420", "it &lt;broke&gt;", INTERRUPTED, "its meaning", "Memory"]
        {
            assert!(page.contains(expected), "{expected}: {page}");
        }
        let text = document.text(true, false);
        assert!(
            text.starts_with("What was <done>.\n\nSystems\nvpnd: MTU 1420\nit <broke>\nInterrupted"),
            "{text}"
        );
        assert!(!text.contains("Pictures") && !text.contains("meaning"), "{text}");
        assert!(document.text(true, true).contains("\nPictures\nWord: its meaning."));
        assert_eq!(document.into_pictures().len(), 1);
    }
}
