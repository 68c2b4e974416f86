//! Values over time, with a second quantity such as latency on an axis of its own at the right.

use super::Series;
use super::axis::Axis;
use super::canvas::{BELOW, Canvas, LEFT, PLOT_HEIGHT, RIGHT, WIDTH, legend_height};
use super::line::{draw, highest, keys};

/// Room for the second axis.
const SECOND: f64 = 44.0;

/// Lines over time. A point's `x` is in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeChart {
    pub title: String,
    /// The origin of time, with its unit.
    pub x_label: String,
    /// The end of the time axis, in seconds.
    pub end: f64,
    /// The quantity of the left axis, with its unit.
    pub left_label: String,
    pub left: Vec<Series>,
    /// The quantity of the right axis, with its unit.
    pub right_label: String,
    /// Without any there is no right axis.
    pub right: Vec<Series>,
}

impl TimeChart {
    /// The picture, or nothing if there is no point on the left.
    pub fn svg(&self) -> Option<String> {
        let left_highest = highest(&self.left)?;
        let right_highest = highest(&self.right);
        let all = [keys(&self.left), keys(&self.right)].into_iter().flatten().collect::<Vec<_>>();
        let top = legend_height(&all);
        let bottom = top + PLOT_HEIGHT;
        let edge = WIDTH - RIGHT - if right_highest.is_some() { SECOND } else { 0.0 };
        let horizontal = Axis::linear(self.end, LEFT, edge);
        let vertical = Axis::from_zero(left_highest, bottom, top);
        let mut canvas = Canvas::new(&self.title, bottom + BELOW);
        canvas.legend(&all);
        canvas.grid(&vertical, &self.left_label, top, edge);
        canvas.ticks(&horizontal, &self.x_label, bottom);
        self.left.iter().for_each(|series| draw(&mut canvas, series, &horizontal, &vertical));
        if let Some(right_highest) = right_highest {
            let vertical = Axis::from_zero(right_highest, bottom, top);
            canvas.second_axis(&vertical, &self.right_label, top, edge);
            self.right.iter().for_each(|series| draw(&mut canvas, series, &horizontal, &vertical));
        }
        Some(canvas.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Point;
    use super::super::markup::assert_well_formed;
    use super::*;

    #[test]
    fn a_second_axis_is_there_only_for_a_second_quantity() {
        let series = |label: &str, style, y: f64| {
            let points = (1..=5).map(|x| Point { x: f64::from(x), y, range: None }).collect();
            Series { label: label.into(), style, points }
        };
        let chart = TimeChart {
            title: "t".into(),
            x_label: "seconds".into(),
            end: 5.0,
            left_label: "Gbit/s".into(),
            left: vec![series("throughput", 0, 4.0)],
            right_label: "latency, ms".into(),
            right: vec![series("latency", 1, 900.0)],
        };
        let svg = chart.svg().unwrap();
        assert_well_formed(&svg);
        assert!(svg.contains("latency, ms") && svg.contains(">800</text>"), "{svg}");
        let one = TimeChart { right: vec![], ..chart.clone() }.svg().unwrap();
        assert_well_formed(&one);
        assert!(!one.contains("latency, ms"));
        assert_eq!(TimeChart { left: vec![], ..chart }.svg(), None);
    }
}
