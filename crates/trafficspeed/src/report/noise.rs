//! How far figures go: what others took of the machine meanwhile, and measurements far from the
//! others of their kind.

use crate::stats::{median, outliers};

/// Stands below a table with these columns.
pub const TAKEN: &str = "\
Steal, others: the most of the machine that the hypervisor took and that processes without a part in the measurement \
used.";

/// Points at the measurements of `subject` that are far from the others; `None` without any.
pub fn far(subject: &str, values: &[f64], show: impl Fn(f64) -> String) -> Option<String> {
    far_beyond(subject, 1.0, values, show)
}

/// Points at the values that are more than `same` times the median, or less than its `same`th part.
/// Measurements of one system are as far apart as that.
pub fn far_beyond(subject: &str, same: f64, values: &[f64], show: impl Fn(f64) -> String) -> Option<String> {
    let middle = median(values)?;
    let is_beyond = |value: &f64| value.max(middle) > same * value.min(middle);
    let far: Vec<String> = outliers(values).into_iter().filter(is_beyond).map(&show).collect();
    let middle = show(middle);
    let far = (!far.is_empty()).then(|| far.join(", "))?;
    Some(format!("Look at {subject}: {far} is far from the median of {middle}"))
}

/// A share of the machine.
pub fn percent(value: Option<f64>) -> String {
    value.map_or("–".into(), |value| format!("{value:.1} %"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outliers_are_named_with_the_median() {
        let said = far("it", &[61.0, 15.0, 60.0, 62.0], |value| format!("{value:.0} x"));
        assert_eq!(said.as_deref(), Some("Look at it: 15 x is far from the median of 60 x"));
        assert_eq!(far("it", &[60.0, 61.0, 62.0], |value| value.to_string()), None);
        assert_eq!(far("it", &[], |value| value.to_string()), None);
    }

    #[test]
    fn outliers_within_a_a_are_not_named() {
        let said =
            |same, odd: f64| far_beyond("it", same, &[60.0, odd, 61.0, 62.0], |value| value.to_string());
        assert!(said(3.9, 15.0).is_some() && said(3.9, 250.0).is_some());
        assert!(said(4.5, 15.0).is_none() && said(4.5, 250.0).is_none());
    }
}
