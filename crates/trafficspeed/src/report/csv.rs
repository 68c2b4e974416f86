//! The columns that every CSV of figures ends with.

use crate::csv_table;
use crate::experiment::environment::Environment;

/// The last columns of every CSV: a line has to tell by itself where it was measured.
const PLACE: [&str; 2] = ["links", "machine"];

/// Lines of figures, each with the links and the machine on which they were measured.
pub fn with_place<'a, const N: usize>(
    head: [&str; N],
    rows: impl IntoIterator<Item = ([String; N], &'a Environment)>,
) -> String {
    let place =
        |environment: &Environment| [environment.links.clone().unwrap_or_default(), environment.machine()];
    csv_table::joined((head, PLACE), rows.into_iter().map(|(row, environment)| (row, place(environment))))
}
