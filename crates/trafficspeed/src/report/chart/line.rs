//! Lines over a common axis.

use std::fmt::Write as _;

use super::axis::Axis;
use super::canvas::{BELOW, Canvas, Key, LEFT, PLOT_HEIGHT, RIGHT, WIDTH, legend_height, note_height};
use super::{Measure, STYLES, Series, ceiling};

const MOST_MARKERS: usize = 24;

/// How the horizontal axis is laid out.
#[derive(Clone, Debug, PartialEq)]
pub enum Horizontal {
    /// Doubling steps at equal distances, with a tick at each of these values.
    Doubling(Vec<f64>),
    /// From zero to this value.
    Linear(f64),
}

/// A chart of lines over a common axis.
#[derive(Clone, Debug, PartialEq)]
pub struct LineChart {
    /// Read aloud by screen readers.
    pub title: String,
    /// The horizontal axis, with its unit.
    pub x_label: String,
    /// The vertical axis.
    pub measure: Measure,
    /// The horizontal axis' layout.
    pub horizontal: Horizontal,
    pub series: Vec<Series>,
}

impl LineChart {
    /// The picture, or nothing if there is no point to draw.
    pub fn svg(&self) -> Option<String> {
        let (series, beyond) = ceiling::split(&self.series)?;
        let highest = highest(series.iter().copied())?;
        let keys = keys(series.iter().copied());
        let top = legend_height(&keys) + note_height(beyond.as_ref());
        let bottom = top + PLOT_HEIGHT;
        let vertical = Axis::from_zero(highest, bottom, top);
        let horizontal = match &self.horizontal {
            Horizontal::Doubling(values) => Axis::doubling(values, LEFT + 40.0, WIDTH - RIGHT - 40.0),
            Horizontal::Linear(end) => Axis::linear(*end, LEFT, WIDTH - RIGHT),
        };
        let mut canvas = Canvas::new(&self.title, bottom + BELOW);
        canvas.legend(&keys);
        canvas.note(beyond.as_ref(), top);
        canvas.grid(&vertical, &self.measure.label(), top, WIDTH - RIGHT);
        canvas.ticks(&horizontal, &self.x_label, bottom);
        for series in series {
            draw(&mut canvas, series, &horizontal, &vertical);
        }
        Some(canvas.finish())
    }
}

/// The highest value of all series, ranges included; `None` if there is no point.
pub(super) fn highest<'a>(series: impl IntoIterator<Item = &'a Series>) -> Option<f64> {
    let points = series.into_iter().flat_map(|series| &series.points);
    points.map(|point| point.range.map_or(point.y, |(_, high)| high.max(point.y))).reduce(f64::max)
}

/// The legend of lines.
pub(super) fn keys<'a>(series: impl IntoIterator<Item = &'a Series>) -> Vec<Key<'a>> {
    series.into_iter().map(|series| Key { label: &series.label, style: series.style, line: true }).collect()
}

/// One line with its ranges and markers.
pub(super) fn draw(canvas: &mut Canvas, series: &Series, horizontal: &Axis, vertical: &Axis) {
    let style = series.style % STYLES;
    let mut path = String::new();
    for (point, letter) in series.points.iter().zip(std::iter::once('M').chain(std::iter::repeat('L'))) {
        write!(path, "{letter}{:.1} {:.1}", horizontal.place(point.x), vertical.place(point.y))
            .expect("writing to a string");
    }
    canvas.put(format_args!(r#"<path class="line s{style}" d="{path}"/>"#));
    // Many points are a line with a few markers to know it by.
    let stride = series.points.len().div_ceil(MOST_MARKERS);
    for (point, number) in series.points.iter().zip(0..) {
        let (x, y) = (horizontal.place(point.x), vertical.place(point.y));
        if let Some((low, high)) = point.range {
            let (low, high, left) = (vertical.place(low), vertical.place(high), x - 4.0);
            canvas.put(format_args!(
                r#"<path class="range s{style}" d="M{x:.1} {low:.1}V{high:.1}M{left:.1} {low:.1}h8M{left:.1} {high:.1}h8"/>"#
            ));
        }
        if number % stride == 0 {
            canvas.marker(style, x, y);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Point;
    use super::super::markup::assert_well_formed;
    use super::*;

    fn point(x: f64, y: f64) -> Point {
        Point { x, y, range: Some((y * 0.9, y * 1.1)) }
    }

    fn chart(points: Vec<Point>, horizontal: Horizontal) -> LineChart {
        let series = ["a <b>", "c & \"d\""]
            .into_iter()
            .enumerate()
            .map(|(style, label)| Series { label: label.into(), style, points: points.clone() })
            .collect();
        LineChart {
            title: "t<".into(),
            x_label: "clients".into(),
            measure: Measure::higher_is_better("Gbit/s"),
            horizontal,
            series,
        }
    }

    #[test]
    fn a_curve_is_well_formed_escaped_and_has_ticks_and_units() {
        let points = vec![point(2.0, 3.0), point(4.0, 5.0), point(16.0, 4.0)];
        let svg = chart(points, Horizontal::Doubling(vec![2.0, 4.0, 16.0])).svg().unwrap();
        assert_well_formed(&svg);
        for expected in [
            ">clients</text>",
            ">Gbit/s (higher is better)</text>",
            ">16</text>",
            "a &lt;b&gt;",
            "c &amp; &quot;d&quot;",
        ] {
            assert!(svg.contains(expected), "{expected} is missing");
        }
        assert_eq!(svg.matches("class=\"mark").count(), 2 * 3 + 2, "a marker per point and per legend entry");
    }

    #[test]
    fn extremes_are_drawn_without_bad_numbers_and_nothing_is_no_picture() {
        for points in [vec![point(0.0, 0.0)], vec![point(3.0, 1e-9)], vec![point(1.0, 4e12), point(2.0, 1.0)]]
        {
            assert_well_formed(&chart(points.clone(), Horizontal::Linear(3.0)).svg().unwrap());
            let xs = points.iter().map(|p| p.x.max(2.0)).collect();
            assert_well_formed(&chart(points, Horizontal::Doubling(xs)).svg().unwrap());
        }
        assert_eq!(chart(vec![], Horizontal::Linear(0.0)).svg(), None);
    }

    #[test]
    fn long_lines_have_few_markers_and_legends_wrap() {
        let points: Vec<Point> = (0..1000).map(|n| Point { x: f64::from(n), y: 1.0, range: None }).collect();
        let svg = chart(points, Horizontal::Linear(999.0)).svg().unwrap();
        assert!(svg.matches("class=\"mark").count() <= 2 * MOST_MARKERS + 2);
        let mut many = chart(vec![point(1.0, 1.0)], Horizontal::Linear(1.0));
        many.series = (0..STYLES)
            .map(|style| Series { label: "a rather long name".into(), style, ..many.series[0].clone() })
            .collect();
        let svg = many.svg().unwrap();
        assert_well_formed(&svg);
        let last = STYLES - 1;
        assert!(svg.contains(&format!("line s{last}")) && !svg.contains(&format!("line s{STYLES}")));
    }
}
