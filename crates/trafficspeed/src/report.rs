//! How results are shown: a table for people, JSON and CSV for programs, one HTML page for papers.
//!
//! Reports are pure functions of an `experiment::outcome::Campaign`; they measure nothing and invent nothing.

pub mod block;
pub mod chart;
pub mod csv;
pub mod files;
pub mod findings;
pub mod html;
pub mod json;
pub mod link;
pub mod load;
pub mod load_page;
pub mod model;
pub mod page;
pub mod pictures;
pub mod problems;
pub mod published;
pub mod stats;
pub mod stream;
pub mod suite;
pub mod summary;
pub mod systems;
pub mod table;
pub mod unit;

/// Bits per second as Gbit/s with three significant digits.
pub fn gbit(bits_per_second: f64) -> String {
    significant(bits_per_second / 1e9)
}

/// A number with three significant digits, without an exponent.
pub fn significant(value: f64) -> String {
    let size = value.abs();
    let digits = if size >= 99.95 {
        0
    } else if size >= 9.995 {
        1
    } else if size >= 0.9995 {
        2
    } else {
        3
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_significant_digits() {
        for (value, text) in [
            (0.0, "0.000"),
            (0.12345, "0.123"),
            (1.2345, "1.23"),
            (9.996, "10.0"),
            (12.345, "12.3"),
            (99.96, "100"),
            (1234.5, "1234"),
        ] {
            assert_eq!(significant(value), text);
        }
        assert_eq!(gbit(8.25e9), "8.25");
    }
}
