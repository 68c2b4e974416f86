//! The parts that all charts share: the frame, grids, ticks, legends, markers.

use std::fmt::Write as _;

use super::axis::Axis;
use super::{STYLES, escape};

/// Width of every picture, in its own units: on a telephone its text is still ten pixels high.
pub(super) const WIDTH: f64 = 500.0;
/// Where the plot begins.
pub(super) const LEFT: f64 = 64.0;
/// Free space at the right edge.
pub(super) const RIGHT: f64 = 24.0;
pub(super) const PLOT_HEIGHT: f64 = 280.0;
/// Room for ticks and label below the plot.
pub(super) const BELOW: f64 = 52.0;

const LEGEND_LINE: f64 = 22.0;
const NOTE_HEIGHT: f64 = 20.0;
/// Width of a character, about.
pub(super) const CHARACTER: f64 = 7.4;

/// A picture being drawn.
pub(super) struct Canvas {
    text: String,
}

/// One entry of a legend.
pub(super) struct Key<'a> {
    pub(super) label: &'a str,
    pub(super) style: usize,
    /// Whether the series is drawn as a line, or as boxes.
    pub(super) line: bool,
}

impl Canvas {
    /// An empty picture of `height`.
    pub(super) fn new(title: &str, height: f64) -> Self {
        let title = escape(title);
        let text = format!(
            "<svg class=\"chart\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" \
             aria-label=\"{title}\">\n<title>{title}</title>\n"
        );
        Self { text }
    }

    pub(super) fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }

    pub(super) fn put(&mut self, element: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{element}").expect("writing to a string");
    }

    /// Horizontal lines at the ticks of `vertical`, their values and the axis' label at the left.
    pub(super) fn grid(&mut self, vertical: &Axis, label: &str, top: f64, right: f64) {
        for tick in vertical.ticks() {
            let y = vertical.place(tick.value);
            let class = if tick.value == 0.0 { "axis" } else { "grid" };
            self.put(format_args!(r#"<path class="{class}" d="M{LEFT} {y:.1}H{right}"/>"#));
            self.text_at("tick", (LEFT - 8.0, y + 4.0), "end", &tick.label);
        }
        self.upright(16.0, top + PLOT_HEIGHT / 2.0, label);
    }

    /// Ticks and label of the horizontal axis.
    pub(super) fn ticks(&mut self, horizontal: &Axis, label: &str, bottom: f64) {
        let mut free = f64::NEG_INFINITY;
        for tick in horizontal.ticks() {
            let (x, half) =
                (horizontal.place(tick.value), CHARACTER * tick.label.chars().count() as f64 / 2.0);
            self.put(format_args!(r#"<path class="axis" d="M{x:.1} {bottom:.1}v5"/>"#));
            // A value that would run into the one before has its mark alone.
            if x - half >= free {
                self.text_at("tick", (x, bottom + 19.0), "middle", &tick.label);
                free = x + half;
            }
        }
        self.text_at("label", (horizontal.middle(), bottom + 42.0), "middle", label);
    }

    /// Text; `anchor` is SVG's.
    pub(super) fn text_at(&mut self, class: &str, (x, y): (f64, f64), anchor: &str, text: &str) {
        let text = escape(text);
        self.put(format_args!(
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#
        ));
    }

    fn upright(&mut self, x: f64, y: f64, label: &str) {
        let label = escape(label);
        self.put(format_args!(
            r#"<text class="label" transform="translate({x} {y:.1}) rotate(-90)" text-anchor="middle">{label}</text>"#
        ));
    }

    /// The legend, in as many lines as it needs.
    pub(super) fn legend(&mut self, keys: &[Key<'_>]) {
        for (key, x, y) in places(keys) {
            let style = key.style % STYLES;
            if key.line {
                self.put(format_args!(r#"<path class="line s{style}" d="M{x:.1} {y:.1}h26"/>"#));
                self.marker(style, x + 13.0, y);
            } else {
                let top = y - 6.0;
                self.put(format_args!(
                    r#"<rect class="box s{style}" x="{x:.1}" y="{top:.1}" width="26" height="12"/>"#
                ));
                self.marker(style, x + 13.0, y);
            }
            self.text_at("key", (x + 32.0, y + 4.0), "start", key.label);
        }
    }

    /// A note on what is not drawn, above the plot that begins at `top`.
    pub(super) fn note(&mut self, note: Option<&String>, top: f64) {
        let place = (LEFT, top - NOTE_HEIGHT + 2.0);
        note.into_iter().for_each(|note| self.text_at("key", place, "start", note));
    }

    /// A shape per style, so that lines can be told apart without colour.
    pub(super) fn marker(&mut self, style: usize, x: f64, y: f64) {
        let d = match style % STYLES {
            0 => format!("M{x:.1} {y:.1}m-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z"),
            1 => format!("M{:.1} {:.1}h8v8h-8z", x - 4.0, y - 4.0),
            2 => format!("M{x:.1} {:.1}l5 9h-10z", y - 5.5),
            3 => format!("M{x:.1} {:.1}l5.5 5.5l-5.5 5.5l-5.5 -5.5z", y - 5.5),
            4 => format!("M{x:.1} {:.1}l-5 -9h10z", y + 5.5),
            5 => format!("M{:.1} {:.1}h3v3h3v3h-3v3h-3v-3h-3v-3h3z", x - 1.5, y - 4.5),
            6 => format!("M{:.1} {:.1}l9 5l-9 5z", x - 4.0, y - 5.0),
            7 => format!("M{:.1} {:.1}l-9 5l9 5z", x + 4.0, y - 5.0),
            8 => format!("M{:.1} {:.1}h6v10h-6z", x - 3.0, y - 5.0),
            9 => format!("M{:.1} {:.1}h10v6h-10z", x - 5.0, y - 3.0),
            10 => format!("M{:.1} {:.1}v9l9 -9v9z", x - 4.5, y - 4.5),
            11 => format!("M{x:.1} {:.1}l5 4v6h-10v-6z", y - 5.5),
            12 => format!(
                "M{x:.1} {:.1}l2.5 -2.5l2 2l-2.5 2.5l2.5 2.5l-2 2l-2.5 -2.5l-2.5 2.5l-2 -2l2.5 -2.5l-2.5 -2.5l2 -2z",
                y - 2.0
            ),
            _ => format!("M{:.1} {:.1}a5 5 0 0 1 10 0z", x - 5.0, y + 2.5),
        };
        self.put(format_args!(r#"<path class="mark s{}" d="{d}"/>"#, style % STYLES));
    }
}

/// Each entry with its place, wrapped at the right edge.
fn places<'a>(keys: &'a [Key<'a>]) -> Vec<(&'a Key<'a>, f64, f64)> {
    let (mut x, mut y) = (LEFT, 14.0);
    keys.iter()
        .map(|key| {
            let width = 52.0 + CHARACTER * key.label.chars().count() as f64;
            if x > LEFT && x + width > WIDTH - RIGHT {
                (x, y) = (LEFT, y + LEGEND_LINE);
            }
            let place = (key, x, y);
            x += width;
            place
        })
        .collect()
}

/// The room for a note on what is not drawn.
pub(super) fn note_height(note: Option<&String>) -> f64 {
    note.map_or(0.0, |_| NOTE_HEIGHT)
}

/// Room that the legend takes at the top.
pub(super) fn legend_height(keys: &[Key<'_>]) -> f64 {
    places(keys).last().map_or(0.0, |(_, _, y)| y + 12.0) + 14.0
}
