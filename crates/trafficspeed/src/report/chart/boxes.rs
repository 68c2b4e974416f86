//! Box plots over repeats: the box from the first to the third quartile with the median in it,
//! whiskers to the lowest and highest, and every value as a dot, since there are few. Of fewer
//! values than [`QUARTILES_LEAST`] there are no quartiles worth the name, and no box is drawn.

use super::axis::Axis;
use super::canvas::{BELOW, Canvas, Key, LEFT, PLOT_HEIGHT, RIGHT, WIDTH, legend_height, note_height};
use super::ceiling::{self, Drawn};
use super::{Measure, SAMPLES_MOST, STYLES};
use crate::stats::{quantile, range};

/// Values that it takes for quartiles.
const QUARTILES_LEAST: usize = 4;

/// All repeats of one system, by group.
#[derive(Clone, Debug, PartialEq)]
pub struct BoxSeries {
    /// Its name in the legend.
    pub label: String,
    pub style: usize,
    /// The values in each group of the chart; a group without values has no box.
    pub groups: Vec<Vec<f64>>,
}

/// Boxes side by side in groups.
#[derive(Clone, Debug, PartialEq)]
pub struct BoxChart {
    pub title: String,
    pub x_label: String,
    /// The vertical axis.
    pub measure: Measure,
    /// The names of the groups from left to right.
    pub groups: Vec<String>,
    pub series: Vec<BoxSeries>,
}

impl Drawn for BoxSeries {
    fn label(&self) -> &str {
        &self.label
    }

    fn values(&self) -> Vec<f64> {
        self.groups.concat()
    }
}

impl BoxChart {
    /// The picture, or nothing if there is no value.
    pub fn svg(&self) -> Option<String> {
        let (shown, beyond) = ceiling::split(&self.series)?;
        let highest = shown.iter().filter_map(|series| series.highest()).reduce(f64::max)?;
        let keys: Vec<Key<'_>> = shown
            .iter()
            .map(|series| Key { label: &series.label, style: series.style, line: false })
            .collect();
        let top = legend_height(&keys) + note_height(beyond.as_ref());
        let bottom = top + PLOT_HEIGHT;
        let vertical = Axis::from_zero(highest, bottom, top);
        let horizontal = Axis::groups(&self.groups, LEFT, WIDTH - RIGHT);
        let mut canvas = Canvas::new(&self.title, bottom + BELOW);
        canvas.legend(&keys);
        canvas.note(beyond.as_ref(), top);
        canvas.grid(&vertical, &self.measure.label(), top, WIDTH - RIGHT);
        canvas.ticks(&horizontal, &self.x_label, bottom);
        let slot = (WIDTH - RIGHT - LEFT) / self.groups.len() as f64 * 0.8 / shown.len() as f64;
        // A line between neighbouring groups.
        for group in 1..self.groups.len() as u32 {
            let x = horizontal.place(f64::from(group) - 0.5);
            canvas.put(format_args!(r#"<path class="grid" d="M{x:.1} {top:.1}V{bottom:.1}"/>"#));
        }
        for (series, number) in shown.iter().zip(0_u32..) {
            let aside = (f64::from(number) - (shown.len() as f64 - 1.0) / 2.0) * slot;
            for (values, group) in series.groups.iter().zip(0_u32..) {
                let x = horizontal.place(f64::from(group)) + aside;
                draw(&mut canvas, values, series.style % STYLES, x, slot, &vertical);
            }
        }
        Some(canvas.finish())
    }
}

fn draw(canvas: &mut Canvas, values: &[f64], style: usize, x: f64, slot: f64, vertical: &Axis) {
    let Some((low, high)) = range(values) else { return };
    let at = |share: f64| vertical.place(quantile(values, share).expect("there are values"));
    let (low, high) = (vertical.place(low), vertical.place(high));
    let has_box = values.len() >= QUARTILES_LEAST;
    let middle = at(0.5);
    let (first, third) = if has_box { (at(0.25), at(0.75)) } else { (middle, middle) };
    let width = (slot * 0.7).min(34.0);
    let (left, cap, half) = (x - width / 2.0, width / 4.0, width / 2.0);
    canvas.put(format_args!(
        r#"<path class="range s{style}" d="M{x:.1} {low:.1}V{first:.1}M{x:.1} {third:.1}V{high:.1}M{a:.1} {low:.1}h{half:.1}M{a:.1} {high:.1}h{half:.1}"/>"#,
        a = x - cap
    ));
    if has_box {
        // A box of no height would not be seen.
        let (top, height) = (third.min(first - 1.0), (first - third).max(1.0));
        canvas.put(format_args!(
            r#"<rect class="box s{style}" x="{left:.1}" y="{top:.1}" width="{width:.1}" height="{height:.1}"/>"#
        ));
    }
    canvas.put(format_args!(r#"<path class="median s{style}" d="M{left:.1} {middle:.1}h{width:.1}"/>"#));
    for value in values.iter().take(SAMPLES_MOST) {
        let y = vertical.place(*value);
        canvas.put(format_args!(r#"<circle class="dot" cx="{x:.1}" cy="{y:.1}" r="1.8"/>"#));
    }
    // On the median, so that it can be told without colour whose it is.
    canvas.marker(style, x, middle);
}

#[cfg(test)]
mod tests {
    use super::super::markup::assert_well_formed;
    use super::*;

    #[test]
    fn each_group_has_a_box_per_system_that_has_values() {
        let series = |label: &str, style, groups| BoxSeries { label: label.into(), style, groups };
        let chart = BoxChart {
            title: "t".into(),
            x_label: "clients".into(),
            measure: Measure::higher_is_better("Gbit/s"),
            groups: vec!["2".into(), "16".into()],
            series: vec![
                series("a", 0, vec![vec![1.0, 2.0, 4.0, 5.0], vec![3.0]]),
                series("b <x>", STYLES + 2, vec![vec![], vec![2.0, 2.0]]),
            ],
        };
        let svg = chart.svg().unwrap();
        assert_well_formed(&svg);
        assert_eq!(svg.matches("class=\"box s0").count(), 1 + 1, "of four values, and one in the legend");
        assert_eq!(svg.matches("class=\"box s2").count(), 1, "two values have no quartiles");
        assert_eq!(svg.matches("class=\"mark s2").count(), 1 + 1, "styles are used again after the last");
        assert_eq!(svg.matches("class=\"dot").count(), 7);
        assert!(
            svg.contains(">16</text>")
                && svg.contains(">Gbit/s (higher is better)</text>")
                && svg.contains("b &lt;x&gt;")
        );
        let empty = BoxChart { series: vec![series("a", 0, vec![vec![], vec![]])], ..chart };
        assert_eq!(empty.svg(), None);
    }
}
