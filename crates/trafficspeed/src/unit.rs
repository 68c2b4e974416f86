//! Numbers in texts for people: three significant digits, and the unit of throughput, chosen with
//! iperf3's letters.

/// A unit of throughput.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    Kbit,
    Mbit,
    #[default]
    Gbit,
    Tbit,
    KiB,
    MiB,
    GiB,
    TiB,
}

impl Unit {
    /// The unit of iperf3's `-f` letter: small letters are bits in steps of 1000, capitals bytes in
    /// steps of 1024.
    ///
    /// # Errors
    /// The known letters, in words.
    pub fn of_letter(letter: &str) -> Result<Self, String> {
        Ok(match letter {
            "k" => Self::Kbit,
            "m" => Self::Mbit,
            "g" => Self::Gbit,
            "t" => Self::Tbit,
            "K" => Self::KiB,
            "M" => Self::MiB,
            "G" => Self::GiB,
            "T" => Self::TiB,
            _ => return Err("give k, m, g or t for bits, K, M, G or T for bytes".into()),
        })
    }

    /// The unit in which a throughput has few digits.
    pub fn suitable(bits_per_second: f64) -> Self {
        match bits_per_second.abs() {
            rate if rate >= 1e9 => Self::Gbit,
            rate if rate >= 1e6 => Self::Mbit,
            _ => Self::Kbit,
        }
    }

    /// Its name with the time.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kbit => "kbit/s",
            Self::Mbit => "Mbit/s",
            Self::Gbit => "Gbit/s",
            Self::Tbit => "Tbit/s",
            Self::KiB => "KiB/s",
            Self::MiB => "MiB/s",
            Self::GiB => "GiB/s",
            Self::TiB => "TiB/s",
        }
    }

    /// A throughput in this unit with three significant digits.
    pub fn figure(self, bits_per_second: f64) -> String {
        let bits = match self {
            Self::Kbit => 1e3,
            Self::Mbit => 1e6,
            Self::Gbit => 1e9,
            Self::Tbit => 1e12,
            Self::KiB => 8.0 * 1024.0,
            Self::MiB => 8.0 * 1024.0 * 1024.0,
            Self::GiB => 8.0 * 1024.0 * 1024.0 * 1024.0,
            Self::TiB => 8.0 * 1024.0 * 1024.0 * 1024.0 * 1024.0,
        };
        significant(bits_per_second / bits)
    }
}

/// `bits_per_second` in `unit`, or else in the one that suits it.
pub fn rate(unit: Option<Unit>, bits_per_second: f64) -> String {
    let unit = unit.unwrap_or_else(|| Unit::suitable(bits_per_second));
    format!("{} {}", unit.figure(bits_per_second), unit.name())
}

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
    fn letters_mean_what_they_mean_to_iperf3() {
        for (letter, name, figure) in [
            ("k", "kbit/s", "8388608"),
            ("m", "Mbit/s", "8389"),
            ("g", "Gbit/s", "8.39"),
            ("t", "Tbit/s", "0.008"),
            ("K", "KiB/s", "1024000"),
            ("M", "MiB/s", "1000"),
            ("G", "GiB/s", "0.977"),
            ("T", "TiB/s", "0.001"),
        ] {
            let unit = Unit::of_letter(letter).unwrap();
            assert_eq!((unit.name(), unit.figure(8_388_608_000.0).as_str()), (name, figure));
        }
        assert!(Unit::of_letter("x").is_err_and(|reason| reason.contains("K, M, G or T")));
        assert_eq!(Unit::default().name(), "Gbit/s");
    }

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
