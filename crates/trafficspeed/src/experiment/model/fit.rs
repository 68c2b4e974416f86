//! A straight line through a stage's costs over sizes: an amount for each call and an amount for
//! each byte.

use anyhow::ensure;
use serde::{Deserialize, Serialize};

use super::stages::{Raw, Sample};

/// Nanoseconds for `bytes` bytes: `each + bytes * per_byte`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Nanoseconds for each call.
    pub each: f64,
    /// Nanoseconds for each byte.
    pub per_byte: f64,
    /// The largest distance between the line and a point, as a share of the point.
    pub worst: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    pub name: String,
    /// `sender` or `receiver`.
    pub side: String,
    /// `packet` or `super-packet`.
    pub unit: String,
    /// The suite, where it matters.
    pub suite: Option<String>,
    pub line: Line,
}

impl Line {
    /// The best line by least squares of relative errors, so that small sizes count as much as
    /// large ones. Neither part is negative: what costs nothing measurable costs nothing.
    pub fn through(points: &[(f64, f64)]) -> Self {
        let [mut w, mut wx, mut wy, mut wxx, mut wxy] = [0.0; 5];
        for &(x, y) in points {
            let weight = 1.0 / (y * y).max(1e-12);
            w += weight;
            wx += weight * x;
            wy += weight * y;
            wxx += weight * x * x;
            wxy += weight * x * y;
        }
        let spread = w * wxx - wx * wx;
        let per_byte = if spread > 1e-9 * w * wxx { (w * wxy - wx * wy) / spread } else { 0.0 };
        let each = (wy - per_byte * wx) / w.max(f64::MIN_POSITIVE);
        let (each, per_byte) = if per_byte < 0.0 {
            (wy / w.max(f64::MIN_POSITIVE), 0.0)
        } else if each < 0.0 {
            (0.0, wxy / wxx.max(f64::MIN_POSITIVE))
        } else {
            (each, per_byte)
        };
        let line = Self { each, per_byte, worst: 0.0 };
        let off = |&(x, y): &(f64, f64)| if y > 0.0 { (line.ns(x) / y - 1.0).abs() } else { 0.0 };
        Self { worst: points.iter().map(off).fold(0.0, f64::max), ..line }
    }

    /// Nanoseconds for a call with this many bytes.
    pub fn ns(&self, bytes: f64) -> f64 {
        self.each + bytes * self.per_byte
    }
}

/// The stages that are parts of the way, in the order in which the program measured them.
///
/// # Errors
/// If a stage has fewer than two sizes: then there is no line.
pub fn fit_all(raw: &Raw) -> anyhow::Result<Vec<Stage>> {
    let mut stages: Vec<(Stage, Vec<(f64, f64)>)> = Vec::new();
    for sample in raw.stages.iter().filter(|sample| !sample.whole) {
        let point = (sample.bytes as f64, sample.ns);
        match stages.iter_mut().find(|(stage, _)| stage.is_of(sample)) {
            Some((_, points)) => points.push(point),
            None => stages.push((Stage::of(sample), vec![point])),
        }
    }
    for (stage, points) in &mut stages {
        ensure!(points.len() >= 2, "{} was measured at one size only", stage.name);
        stage.line = Line::through(points);
    }
    Ok(stages.into_iter().map(|(stage, _)| stage).collect())
}

impl Stage {
    fn of(sample: &Sample) -> Self {
        Self {
            name: sample.stage.clone(),
            side: sample.side.clone(),
            unit: sample.unit.clone(),
            suite: sample.suite.clone(),
            line: Line::default(),
        }
    }

    fn is_of(&self, sample: &Sample) -> bool {
        self.name == sample.stage && self.suite == sample.suite
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-6 * b.abs().max(1.0)
    }

    #[test]
    fn a_line_is_found_again() {
        let points: Vec<_> = [64.0, 1408.0, 65_140.0].map(|x| (x, 250.0 + 0.0875 * x)).to_vec();
        let line = Line::through(&points);
        assert!(near(line.each, 250.0) && near(line.per_byte, 0.0875) && line.worst < 1e-9, "{line:?}");
        assert!(near(line.ns(1000.0), 337.5));
    }

    #[test]
    fn small_sizes_count_as_much_as_large_ones() {
        // A plain fit would follow the last point, which is 20 % off, and miss the small ones by
        // far.
        let points = [(100.0, 110.0), (200.0, 120.0), (60_000.0, 1.2 * 6_100.0)];
        let line = Line::through(&points);
        assert!(line.worst < 0.21 && (line.ns(100.0) / 110.0 - 1.0).abs() < 0.05, "{line:?}");
    }

    #[test]
    fn no_part_is_negative() {
        let falling = Line::through(&[(64.0, 20.0), (1408.0, 10.0)]);
        assert!(near(falling.per_byte, 0.0) && falling.each > 10.0 && falling.each < 20.0, "{falling:?}");
        let steep = Line::through(&[(100.0, 50.0), (1000.0, 1000.0)]);
        assert!(near(steep.each, 0.0) && steep.per_byte > 0.0, "{steep:?}");
        assert!(Line::through(&[]).ns(5.0).abs() < 1e-9);
    }
}
