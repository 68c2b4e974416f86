//! A page of HTML that stands alone: no script, no font, no picture from anywhere else; readable on
//! a phone, in dark mode and on paper.
//!
//! The caller adds sections, figures and tables in the order in which they are to be read.
//! Every text is escaped here, so callers pass plain text.

use std::fmt::Write as _;

use super::chart::escape;
use super::grid::Grid;

const STYLE: &str = include_str!("page.css");
const CHARTS: &str = include_str!("chart.css");

/// Longest cell of a table, in bytes, that stays in one line among texts.
const SHORT: usize = 12;

/// A picture with the words that belong to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// Its file name without the ending.
    pub name: String,
    pub title: String,
    pub caption: String,
    /// The picture, from [`super::chart`].
    pub svg: String,
}

impl Picture {
    pub fn new(name: impl Into<String>, title: &str, caption: &str, svg: String) -> Self {
        Self { name: name.into(), title: title.to_owned(), caption: caption.to_owned(), svg }
    }
}

/// A page that grows.
#[derive(Debug)]
pub struct Page {
    text: String,
}

impl Page {
    /// A page with a title and, if there is one, a sentence below that says what was done.
    pub fn new(title: &str, heading: &str, lead: &str) -> Self {
        let mut page = Self { text: String::new() };
        let (title, heading, lead) = (escape(title), escape(heading), escape(lead));
        page.put(format_args!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
             <style>\n{STYLE}{CHARTS}</style>\n</head>\n<body>\n<main>\n<h1>{heading}</h1>\n\
             <p class=\"lead\">{lead}</p>"
        ));
        page
    }

    pub fn finish(mut self) -> String {
        self.text.push_str("</main>\n</body>\n</html>\n");
        self.text
    }

    pub fn section(&mut self, title: &str) {
        self.put(format_args!("<h2>{}</h2>", escape(title)));
    }

    /// A paragraph of class `class`: `meta`, `note`, `warning` or nothing.
    pub fn paragraph(&mut self, class: &str, text: &str) {
        self.put(format_args!("<p class=\"{class}\">{}</p>", escape(text)));
    }

    /// Small print, a line each.
    pub fn notes<'a>(&mut self, lines: impl IntoIterator<Item = &'a str>) {
        let lines: Vec<String> = lines.into_iter().map(escape).collect();
        self.put(format_args!("<p class=\"note\">{}</p>", lines.join("<br>\n")));
    }

    /// A list of class `class`: `problems` or nothing.
    pub fn list(&mut self, class: &str, items: &[String]) {
        let items: Vec<String> = items.iter().map(|item| format!("<li>{}</li>", escape(item))).collect();
        self.put(format_args!("<ul class=\"{class}\">\n{}\n</ul>", items.join("\n")));
    }

    /// Adds items behind a line that says how many they are, which the reader unfolds.
    pub fn folded(&mut self, class: &str, summary: &str, items: &[String]) {
        self.put(format_args!("<details><summary>{}</summary>", escape(summary)));
        self.list(class, items);
        self.put(format_args!("</details>"));
    }

    /// A picture under its heading.
    pub fn figure(&mut self, picture: &Picture) {
        let (title, caption, svg) = (escape(&picture.title), escape(&picture.caption), &picture.svg);
        self.put(format_args!(
            "<section class=\"picture\">\n<h2>{title}</h2>\n<figure>\n{svg}<figcaption>{caption}</figcaption>\n\
             </figure>\n</section>"
        ));
    }

    /// A table of figures: the first column is text, the others are numbers.
    pub fn table(&mut self, grid: &Grid) {
        self.rows("wide", grid);
    }

    /// A table whose cells are text.
    pub fn texts(&mut self, grid: &Grid) {
        self.rows("wide prose", grid);
    }

    fn rows(&mut self, class: &str, grid: &Grid) {
        let mut text = format!("<div class=\"{class}\"><table><thead><tr>");
        for cell in &grid.head {
            write!(text, "<th scope=\"col\">{}</th>", escape(cell)).expect("writing to a string");
        }
        text.push_str("</tr></thead><tbody>\n");
        for row in &grid.rows {
            text.push_str("<tr>");
            for cell in row {
                // A number that is broken into two lines would be read as two.
                let class = if cell.len() <= SHORT && !cell.contains(' ') { " class=\"short\"" } else { "" };
                write!(text, "<td{class}>{}</td>", escape(cell)).expect("writing to a string");
            }
            text.push_str("</tr>\n");
        }
        self.put(format_args!("{text}</tbody></table></div>"));
    }

    /// A table of names and their values.
    pub fn facts(&mut self, rows: impl IntoIterator<Item = (String, String)>) {
        let mut text = String::from("<table class=\"facts\">\n");
        for (name, value) in rows {
            let (name, value) = (escape(&name), escape(&value));
            writeln!(text, "<tr><th scope=\"row\">{name}</th><td>{value}</td></tr>")
                .expect("writing to a string");
        }
        self.put(format_args!("{text}</table>"));
    }

    /// Command lines, one each.
    pub fn commands(&mut self, lines: &[String]) {
        let lines: Vec<String> = lines.iter().map(|line| escape(line)).collect();
        self.put(format_args!("<pre>{}</pre>", lines.join("\n")));
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{text}").expect("writing to a string");
    }
}

#[cfg(test)]
mod tests {
    use super::super::chart::markup::assert_well_formed;
    use super::*;

    #[test]
    fn whatever_is_put_on_a_page_is_escaped_and_well_formed() {
        let evil = "<script src=\"x\">'&";
        let mut page = Page::new(evil, evil, evil);
        page.section(evil);
        page.paragraph("note", evil);
        page.notes([evil, evil]);
        page.list("problems", &[evil.to_owned()]);
        page.folded("problems", evil, &[evil.to_owned()]);
        let mut grid = Grid::new(1, [evil]);
        grid.rows.push(vec![evil.to_owned()]);
        page.table(&grid);
        page.texts(&grid);
        page.facts([(evil.to_owned(), evil.to_owned())]);
        page.commands(&[evil.to_owned()]);
        page.figure(&Picture::new("", evil, evil, "<svg></svg>\n".into()));
        let text = page.finish();
        assert_well_formed(&text);
        assert!(!text.contains("<script"), "{text}");
    }
}
