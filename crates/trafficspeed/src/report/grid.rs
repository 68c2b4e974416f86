//! Tables for terminals. A table that is too wide is split by columns into several, each with the
//! first columns again, so that no cell is ever broken and no line is longer than a terminal.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};

/// Columns of a terminal that every table fits, unless the user wants it whole.
pub const NARROW: usize = 120;
/// Most characters of a first column before its words are wrapped.
const KEY_MOST: usize = 34;
/// Lines that a head is broken into, at most.
const HEAD_LINES: usize = 3;
/// Blanks and a line beside each cell.
const BESIDE: usize = 3;

/// A table whose first columns are text and name the row; the others are figures.
pub struct Grid {
    /// The number of columns that name the row.
    pub keys: usize,
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Grid {
    pub fn new<T: Into<String>>(keys: usize, head: impl IntoIterator<Item = T>) -> Self {
        Self { keys, head: head.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// A table of `rows`.
    pub fn of<T: Into<String>>(
        keys: usize,
        head: impl IntoIterator<Item = T>,
        rows: Vec<Vec<String>>,
    ) -> Self {
        Self { rows, ..Self::new(keys, head) }
    }

    /// The grid without the columns of figures in which no row has one, but nothing or a dash.
    #[must_use]
    pub fn without_empty(&self) -> Self {
        let has_figure = |row: &Vec<String>, at: usize| {
            row.get(at).is_some_and(|cell| !["", "–"].contains(&cell.as_str()))
        };
        let stays = |at: usize| {
            at < self.keys || self.rows.is_empty() || self.rows.iter().any(|row| has_figure(row, at))
        };
        let kept: Vec<usize> = (0..self.head.len()).filter(|&at| stays(at)).collect();
        let pick = |row: &Vec<String>| -> Vec<String> {
            kept.iter().map(|&at| row.get(at).cloned().unwrap_or_default()).collect()
        };
        Self { keys: self.keys, head: pick(&self.head), rows: self.rows.iter().map(pick).collect() }
    }

    /// A sentence for each row, of the cells that hold something, each behind its head.
    pub fn sentences(&self) -> Vec<String> {
        let sentence = |row: &Vec<String>| {
            let cells =
                self.head.iter().zip(row).skip(1).filter(|(_, cell)| !["", "–"].contains(&cell.as_str()));
            let cells: Vec<String> = cells.map(|(head, cell)| format!("{head} {cell}")).collect();
            (!cells.is_empty()).then(|| format!("{}: {}", row[0], cells.join(", ")))
        };
        self.rows.iter().filter_map(sentence).collect()
    }

    /// Text of at most `width` columns, one table below the other if it takes several; `None`:
    /// one table, however wide.
    pub fn text(&self, width: Option<usize>) -> String {
        let tables = self.parts(width).into_iter().map(|columns| self.table(&columns, width).to_string());
        tables.collect::<Vec<_>>().join("\n")
    }

    /// The columns of each table.
    fn parts(&self, width: Option<usize>) -> Vec<Vec<usize>> {
        let keys: Vec<usize> = (0..self.keys.min(self.head.len())).collect();
        let figures = self.keys..self.head.len();
        let Some(width) = width else { return vec![keys.into_iter().chain(figures).collect()] };
        let first = 1 + keys.iter().map(|&at| self.width(at).min(KEY_MOST) + BESIDE).sum::<usize>();
        let (mut parts, mut used) = (vec![keys.clone()], first);
        for column in figures {
            let more = self.width(column) + BESIDE;
            if used + more > width && parts.last().is_some_and(|part| part.len() > keys.len()) {
                parts.push(keys.clone());
                used = first;
            }
            used += more;
            parts.last_mut().expect("there is one from the start").push(column);
        }
        parts
    }

    /// The characters that a column needs: its longest cell, or what its head needs.
    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        let cells = cells.flat_map(|cell| cell.lines()).map(|line| line.chars().count());
        cells.chain([head_width(&self.head[column])]).max().unwrap_or(0)
    }

    fn table(&self, columns: &[usize], width: Option<usize>) -> Table {
        let pick = |row: &[String]| -> Vec<String> {
            columns.iter().map(|&at| row.get(at).cloned().unwrap_or_default()).collect()
        };
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
        if let Some(width) = width {
            table.set_width(width as u16);
        }
        table.set_header(pick(&self.head));
        table.add_rows(self.rows.iter().map(|row| pick(row)));
        for (&at, column) in columns.iter().zip(table.column_iter_mut()) {
            let characters = self.width(at);
            if at >= self.keys {
                column.set_cell_alignment(CellAlignment::Right);
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(
                    (characters + BESIDE - 1) as u16,
                )));
            } else if width.is_some() {
                let most = characters.min(KEY_MOST) + BESIDE - 1;
                column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(most as u16)));
            }
        }
        table
    }
}

/// The least characters of a column whose head takes no more than [`HEAD_LINES`].
fn head_width(head: &str) -> usize {
    let words: Vec<usize> = head.split_whitespace().map(|word| word.chars().count()).collect();
    let lines = |width: usize| {
        let mut used = 0;
        words.iter().fold(0, |lines, word| {
            let fits = used > 0 && used + 1 + word <= width;
            used = if fits { used + 1 + word } else { *word };
            lines + usize::from(!fits)
        })
    };
    let longest = words.iter().copied().max().unwrap_or(0);
    (longest..).find(|&width| lines(width) <= HEAD_LINES).unwrap_or(longest)
}

/// Breaks lines of text at blanks so that none is longer than `width`; lines of tables stay as they
/// are.
pub fn wrapped(text: &str, width: usize) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let mut used = 0;
        // A line that is short enough keeps its blanks.
        let is_short = line.chars().count() <= width || line.starts_with(['│', '┌', '╞', '├', '└']);
        if is_short {
            out.push_str(line);
        } else {
            for word in line.split_whitespace() {
                let length = word.chars().count();
                if used > 0 && used + 1 + length > width {
                    out.push('\n');
                    used = 0;
                }
                if used > 0 {
                    out.push(' ');
                    used += 1;
                }
                out.push_str(word);
                used += length;
            }
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Fails if a line of `text` is longer than a terminal that is [`NARROW`].
    pub(crate) fn assert_narrow(text: &str) {
        for line in text.lines() {
            assert!(line.chars().count() <= NARROW, "{} columns: {line}", line.chars().count());
        }
    }

    fn grid(columns: usize) -> Grid {
        let mut grid = Grid::new(1, std::iter::once("system".to_owned()));
        grid.head.extend((0..columns).map(|at| format!("a quantity number{at}, Mbit/s")));
        let cells = (0..columns).map(|at| format!("{at}2345 (12345–12345)"));
        grid.rows = vec![
            std::iter::once("aes-256-gcm, without AES instructions, again".into()).chain(cells).collect(),
        ];
        grid
    }

    #[test]
    fn a_wide_table_is_split_without_losing_cells() {
        for columns in [1, 4, 5, 13] {
            let text = grid(columns).text(Some(NARROW));
            assert_narrow(&text);
            for at in 0..columns {
                assert!(text.contains(&format!(" {at}2345 (12345–12345) ")), "{at}: {text}");
            }
            let tables = text.lines().filter(|line| line.starts_with('┌')).count();
            assert_eq!(tables, columns.div_ceil(3), "{text}");
        }
    }

    #[test]
    fn a_long_head_makes_its_column_wider_rather_than_taller() {
        let head = "IPv4, datagrams of 4096 bytes at the highest rate without loss: throughput, Mbit/s";
        let mut grid = Grid::new(1, ["system", head, "n"]);
        grid.head.extend(["a", "b", "c"].map(|name| format!("{head} {name}")));
        grid.rows = vec![["vpnd", "1.23", "5", "1", "2", "3"].map(str::to_owned).to_vec()];
        let text = grid.text(Some(NARROW));
        let lines = text.lines().position(|line| line.starts_with('╞')).expect("a table");
        assert!(lines <= 1 + HEAD_LINES, "{text}");
        assert_narrow(&text);
        assert_eq!((head_width("a b c"), head_width("a b c d"), head_width("")), (1, 3, 0));
    }

    #[test]
    fn columns_without_a_figure_in_any_row_are_left_out() {
        let mut grid = Grid::new(1, ["system", "some", "dashes", "blank", "all"]);
        assert_eq!(grid.without_empty().head.len(), 5, "without rows nothing is known");
        let row = |cells: [&str; 5]| cells.map(str::to_owned).to_vec();
        grid.rows = vec![row(["–", "–", "–", "", "0"]), row(["", "12 (9–13)", "–", "–", "–1"])];
        let found = grid.without_empty();
        assert_eq!((found.keys, found.head), (1, ["system", "some", "all"].map(str::to_owned).to_vec()));
        assert_eq!(found.rows, [["–", "–", "0"], ["", "12 (9–13)", "–1"]]);
    }

    #[test]
    fn a_wide_report_has_one_table() {
        let text = grid(13).text(None);
        assert_eq!(text.lines().filter(|line| line.starts_with('┌')).count(), 1);
        assert!(text.lines().any(|line| line.chars().count() > NARROW));
    }

    #[test]
    fn long_lines_are_broken_at_blanks_and_tables_are_not() {
        let words = "word ".repeat(60);
        let table = format!("│{}│", "x".repeat(200));
        let text = wrapped(&format!("  short\n{words}\n{table}"), NARROW);
        assert!(text.starts_with("  short\nword word") && text.ends_with(&format!("{table}\n")));
        assert_narrow(text.lines().take(4).collect::<Vec<_>>().join("\n").as_str());
        assert_eq!(text.matches("word").count(), 60);
    }
}
