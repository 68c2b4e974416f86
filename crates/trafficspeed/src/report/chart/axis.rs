//! One axis: values to places, and where its ticks are.

/// A tick with its text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    pub(super) value: f64,
    pub(super) label: String,
}

/// Maps values to places on the page.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    doubling: bool,
    /// The value at each end.
    values: (f64, f64),
    /// The place of each end.
    places: (f64, f64),
    ticks: Vec<Tick>,
}

impl Axis {
    /// From zero to a round value at or above `highest`.
    pub(super) fn from_zero(highest: f64, from: f64, to: f64) -> Self {
        let step = round_step(highest, 6.0);
        let top = (highest / step).ceil().max(1.0) * step;
        Self { doubling: false, values: (0.0, top), places: (from, to), ticks: steps(top, step) }
    }

    /// From zero to exactly `end`.
    pub(super) fn linear(end: f64, from: f64, to: f64) -> Self {
        let end = if end > 0.0 { end } else { 1.0 };
        let step = round_step(end, 10.0);
        Self { doubling: false, values: (0.0, end), places: (from, to), ticks: steps(end, step) }
    }

    /// Equal distances for equal ratios, with a tick at each of `values` (all positive).
    pub(super) fn doubling(values: &[f64], from: f64, to: f64) -> Self {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let ticks = values.iter().map(|&value| Tick { value, label: format!("{value}") }).collect();
        Self { doubling: true, values: (low, high), places: (from, to), ticks }
    }

    /// Equal distances for equal ratios over whole steps of 1, 2 and 5 that hold `low` to `high`
    /// (both positive).
    pub(super) fn logarithmic(low: f64, high: f64, from: f64, to: f64) -> Self {
        let decades = |value: f64| value.log10().floor() as i32;
        let (first, last) = (decades(low), decades(high) + 1);
        // Wide ranges have a tick per decade only.
        let factors: &[f64] = if last - first > 3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let all =
            (first..=last).flat_map(|power| factors.iter().map(move |f| (f * 10_f64.powi(power), power)));
        let all: Vec<(f64, i32)> = all.collect();
        let begin = all.iter().rposition(|(value, _)| *value <= low * 1.000_001).unwrap_or(0);
        let end = all.iter().position(|(value, _)| *value >= high * 0.999_999).unwrap_or(all.len() - 1);
        let end = end.max(begin + 1).min(all.len() - 1);
        let tick = |(value, power): &(f64, i32)| {
            let digits = (-power).max(0) as usize;
            Tick { value: *value, label: format!("{value:.digits$}") }
        };
        let ticks: Vec<Tick> = all[begin..=end].iter().map(tick).collect();
        Self { doubling: true, values: (all[begin].0, all[end].0), places: (from, to), ticks }
    }

    /// One place for each of `names`, with room at both ends; the value of a place is its number
    /// from zero.
    pub(super) fn groups(names: &[String], from: f64, to: f64) -> Self {
        let numbers = (0_u32..).map(f64::from);
        let ticks = names.iter().zip(numbers).map(|(name, value)| Tick { value, label: name.clone() });
        let values = (-0.5, names.len() as f64 - 0.5);
        Self { doubling: false, values, places: (from, to), ticks: ticks.collect() }
    }

    /// Where `value` is.
    pub(super) fn place(&self, value: f64) -> f64 {
        let (low, high) = self.values;
        let along = |value: f64| if self.doubling { value.max(f64::MIN_POSITIVE).log2() } else { value };
        let span = along(high) - along(low);
        // An axis with a single value has it in the middle.
        let share = if span > 0.0 { (along(value) - along(low)) / span } else { 0.5 };
        self.places.0 + share.clamp(0.0, 1.0) * (self.places.1 - self.places.0)
    }

    /// Whether a value is on the axis, and not beyond its end.
    pub(super) fn holds(&self, value: f64) -> bool {
        value <= self.values.1
    }

    pub(super) fn middle(&self) -> f64 {
        f64::midpoint(self.places.0, self.places.1)
    }

    pub(super) fn ticks(&self) -> &[Tick] {
        &self.ticks
    }
}

/// A step of 1, 2 or 5 times a power of ten that divides `span` into at most about `parts`.
fn round_step(span: f64, parts: f64) -> f64 {
    let rough = (span / parts).max(1e-6);
    let power = 10_f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= rough * 0.999).unwrap_or(10.0);
    factor * power
}

fn steps(end: f64, step: f64) -> Vec<Tick> {
    let count = (end / step + 1e-9).floor() as u32;
    let digits = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
    (0..=count.min(100))
        .map(|number| {
            let value = f64::from(number) * step;
            Tick { value, label: format!("{value:.digits$}") }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks().iter().map(|tick| tick.label.as_str()).collect()
    }

    #[test]
    fn ticks_are_round_and_reach_above_the_highest_value() {
        assert_eq!(labels(&Axis::from_zero(13.0, 0.0, 1.0)), ["0", "5", "10", "15"]);
        assert_eq!(labels(&Axis::from_zero(0.7, 0.0, 1.0)), ["0.0", "0.2", "0.4", "0.6", "0.8"]);
        assert_eq!(labels(&Axis::linear(10.0, 0.0, 1.0)).len(), 11);
        assert_eq!(
            labels(&Axis::linear(0.4, 0.0, 1.0)),
            ["0.00", "0.05", "0.10", "0.15", "0.20", "0.25", "0.30", "0.35", "0.40"]
        );
    }

    #[test]
    fn a_logarithmic_axis_holds_its_values_between_round_ticks() {
        assert_eq!(labels(&Axis::logarithmic(0.3, 4.0, 0.0, 1.0)), ["0.2", "0.5", "1", "2", "5"]);
        assert_eq!(
            labels(&Axis::logarithmic(0.002, 900.0, 0.0, 1.0)),
            ["0.001", "0.01", "0.1", "1", "10", "100", "1000"]
        );
        assert_eq!(labels(&Axis::logarithmic(1.0, 1.0, 0.0, 1.0)), ["1", "2"]);
        let axis = Axis::logarithmic(1.0, 100.0, 0.0, 100.0);
        assert!((axis.place(10.0) - 50.0).abs() < 1e-9);
    }

    #[test]
    fn groups_have_equal_shares() {
        let axis = Axis::groups(&["2".into(), "4".into()], 0.0, 100.0);
        assert!((axis.place(0.0) - 25.0).abs() < 1e-9 && (axis.place(1.0) - 75.0).abs() < 1e-9);
        assert_eq!(labels(&axis), ["2", "4"]);
    }

    #[test]
    fn doublings_are_at_equal_distances() {
        let axis = Axis::doubling(&[2.0, 4.0, 16.0], 100.0, 400.0);
        assert!((axis.place(2.0) - 100.0).abs() < 1e-9);
        assert!((axis.place(4.0) - 200.0).abs() < 1e-9);
        assert!((axis.place(16.0) - 400.0).abs() < 1e-9);
        assert!((Axis::doubling(&[8.0], 0.0, 100.0).place(8.0) - 50.0).abs() < 1e-9);
    }
}
