//! One bar per row; for comparisons at a single number of clients.

use super::axis::Axis;
use super::canvas::{BELOW, Canvas, RIGHT, WIDTH};
use super::{Measure, Point, STYLES, ceiling};
use crate::unit::significant;

/// Height of a bar with its name above it.
const ROW: f64 = 46.0;
/// Where the bars begin.
const BEGIN: f64 = 20.0;

/// One bar per row.
#[derive(Clone, Debug, PartialEq)]
pub struct BarChart {
    pub title: String,
    /// The quantity that the bars show.
    pub measure: Measure,
    /// Name, style and value of each bar.
    pub bars: Vec<(String, usize, Point)>,
}

impl BarChart {
    /// The picture, or nothing if there is no bar.
    pub fn svg(&self) -> Option<String> {
        let top_of = |point: &Point| point.range.map_or(point.y, |(_, high)| high.max(point.y));
        let highest =
            ceiling::top(self.bars.iter().map(|(label, _, point)| (label.as_str(), top_of(point))))?;
        // Room to the right of the longest bar holds its figure.
        let axis = Axis::from_zero(highest, BEGIN, WIDTH - RIGHT - 60.0);
        let bottom = 10.0 + ROW * self.bars.len() as f64;
        let mut canvas = Canvas::new(&self.title, bottom + BELOW);
        for tick in axis.ticks() {
            let x = axis.place(tick.value);
            canvas.put(format_args!(r#"<path class="grid" d="M{x:.1} 6V{bottom:.1}"/>"#));
        }
        canvas.ticks(&axis, &self.measure.label(), bottom);
        for (bar, row) in self.bars.iter().zip(0_u32..) {
            draw(&mut canvas, bar, &axis, 10.0 + ROW * f64::from(row) + ROW - 16.0);
        }
        canvas.put(format_args!(r#"<path class="axis" d="M{BEGIN} 6V{bottom:.1}"/>"#));
        Some(canvas.finish())
    }
}

fn draw(canvas: &mut Canvas, (label, style, point): &(String, usize, Point), axis: &Axis, middle: f64) {
    let end = axis.place(point.y);
    let (width, top, style) = (end - BEGIN, middle - 11.0, style % STYLES);
    canvas.put(format_args!(
        r#"<rect class="bar s{style}" x="{BEGIN}" y="{top:.1}" width="{width:.1}" height="22"/>"#
    ));
    let mut figure_at = end;
    if let Some((low, high)) = point.range {
        let (low, high, above) = (axis.place(low), axis.place(high), middle - 5.0);
        canvas.put(format_args!(
            r#"<path class="range" d="M{low:.1} {middle:.1}H{high:.1}M{low:.1} {above:.1}v10M{high:.1} {above:.1}v10"/>"#
        ));
        figure_at = figure_at.max(high);
    }
    canvas.text_at("key", (BEGIN + 4.0, middle - 16.0), "start", label);
    // A bar that is longer than the axis ends there.
    let beyond = if axis.holds(point.y) { "" } else { " →" };
    let figure = format!("{}{beyond}", significant(point.y));
    canvas.text_at("figure", (figure_at + 8.0, middle + 4.0), "start", &figure);
}

#[cfg(test)]
mod tests {
    use super::super::markup::assert_well_formed;
    use super::*;

    #[test]
    fn plain_routing_ends_at_the_others_axis() {
        let bar = |label: &str, y| (label.to_owned(), 0, Point { x: 8.0, y, range: None });
        let bars = vec![bar("plain routing", 40.0), bar("vpnd", 4.0), bar("OpenVPN", 1.0)];
        let svg =
            BarChart { title: "t".into(), measure: Measure::higher_is_better("Gbit/s"), bars }.svg().unwrap();
        assert_well_formed(&svg);
        assert!(svg.contains(">40.0 →</text>") && svg.contains(">4.00</text>"), "{svg}");
        assert!(!svg.contains(">10</text>"), "the axis ends where the VPNs do: {svg}");
    }

    #[test]
    fn bars_show_their_figures_and_ranges() {
        let bar =
            |label: &str, y| (label.to_owned(), 0, Point { x: 8.0, y, range: Some((y * 0.9, y * 1.1)) });
        let bars = vec![bar("plain <routing>", 12.345), bar("vpn", 3.0)];
        let measure = Measure::higher_is_better("Gbit/s");
        let svg = BarChart { title: "t".into(), measure: measure.clone(), bars }.svg().unwrap();
        assert_well_formed(&svg);
        assert!(svg.contains("Gbit/s (higher is better)"), "{svg}");
        assert!(svg.contains(">12.3</text>") && svg.contains("plain &lt;routing&gt;"), "{svg}");
        assert_eq!(BarChart { title: "t".into(), measure, bars: vec![] }.svg(), None);
    }
}
