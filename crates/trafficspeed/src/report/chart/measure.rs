//! The quantity of an axis, in words that say which way is better.

/// A quantity with its unit, and which way is better.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    words: String,
    better: Option<&'static str>,
}

impl Measure {
    /// Such as throughput.
    pub fn higher_is_better(words: impl Into<String>) -> Self {
        Self { words: words.into(), better: Some("higher is better") }
    }

    /// Such as delay.
    pub fn lower_is_better(words: impl Into<String>) -> Self {
        Self { words: words.into(), better: Some("lower is better") }
    }

    /// A circumstance rather than a result, such as the number of sessions.
    pub fn neither_is_better(words: impl Into<String>) -> Self {
        Self { words: words.into(), better: None }
    }

    /// This quantity under a condition that the axis names.
    pub fn under(self, condition: &str) -> Self {
        Self { words: format!("{}, {condition}", self.words), ..self }
    }

    /// The label of the axis.
    pub(super) fn label(&self) -> String {
        self.better.map_or_else(|| self.words.clone(), |better| format!("{} ({better})", self.words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_ends_with_the_direction_if_there_is_one() {
        let goodput = Measure::higher_is_better("goodput, Gbit/s").under("at 8 clients");
        assert_eq!(goodput.label(), "goodput, Gbit/s, at 8 clients (higher is better)");
        assert_eq!(Measure::lower_is_better("delay, ms").label(), "delay, ms (lower is better)");
        assert_eq!(Measure::neither_is_better("sessions").label(), "sessions");
    }
}
