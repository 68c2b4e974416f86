//! Charts as inline SVG, drawn by their data alone. They know nothing of VPNs or experiments, but
//! that plain routing is a ceiling and no rival ([`ceiling`]).
//!
//! The caller picks the chart that shows its results and fills in the fields; `svg` gives the
//! picture, or nothing if there is nothing to draw:
//!
//! - [`LineChart`]: a value over a number of clients, a payload size, an MTU, time; whiskers show
//!   the spread of repeats
//! - [`BarChart`]: the same at one place only
//! - [`BoxChart`]: every repeat, in groups
//! - [`CdfChart`]: how values are distributed, from samples or from a histogram
//!
//! Colours come from the page's style (`.s0` to `.s13`), so that one picture is right on screen, in
//! dark mode and in print; [`standalone`] makes a file of it that needs no page. Every series also
//! has its own marker shape and dash pattern, so that it needs no colour. Text from outside
//! is escaped. Every value's axis says which way is better ([`Measure`]), since a picture is also
//! seen without its page.

mod axis;
mod bar;
mod boxes;
mod canvas;
pub mod cdf;
mod ceiling;
mod line;
#[cfg(test)]
pub(crate) mod markup;
mod measure;
pub mod standalone;

pub use bar::BarChart;
pub use boxes::{BoxChart, BoxSeries};
pub use cdf::CdfChart;
pub use line::{Horizontal, LineChart};
pub use measure::Measure;

use crate::stats::Spread;

/// Series that can be told apart by colour, marker and dashes together; after the last the first is
/// used again.
pub const STYLES: usize = 14;
/// Single values that are drawn of one sample.
const SAMPLES_MOST: usize = 100;

/// A line with a marker per point.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub label: String,
    /// Which style, so that one system looks the same in all pictures.
    pub style: usize,
    /// Its points from left to right.
    pub points: Vec<Point>,
}

/// One value, with the range of its repeats if there were any.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Where on the horizontal axis.
    pub x: f64,
    pub y: f64,
    /// Lowest and highest of the repeats.
    pub range: Option<(f64, f64)>,
}

impl Point {
    /// The median of several values with their range, or a single value.
    pub fn of(x: f64, spread: Spread) -> Self {
        Self { x, y: spread.median, range: (spread.n > 1).then_some((spread.low, spread.high)) }
    }
}

/// Text that is safe in HTML and XML, also within quotes.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}
