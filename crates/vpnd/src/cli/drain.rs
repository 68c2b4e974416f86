//! Arguments of `vpnd drain`.

use std::time::Duration;

use clap::Args;

use super::AdminArgs;
use vpnd_sys::date::Expiry;

/// Arguments of `vpnd drain`.
#[derive(Args, Debug)]
pub struct DrainArgs {
    /// Close the connections that are left after this time, such as 90s, 30m or 2h; their sessions
    /// go on when the gateway is back, but for those of WireGuard devices. Without this or --until
    /// they may stay
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with_all = ["until", "cancel"])]
    pub within: Option<Duration>,
    /// Close the connections that are left at this time, such as 2027-01-31T23:00:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "cancel")]
    pub until: Option<Expiry>,
    /// Stop the gateway once it is drained. This command has to keep running until then
    #[arg(long, conflicts_with_all = ["cancel", "no_wait"])]
    pub stop: bool,
    /// Don't wait until it is drained
    #[arg(long, conflicts_with = "cancel")]
    pub no_wait: bool,
    /// Refuse if no other gateway of the fleet can take the clients
    #[arg(long, conflicts_with = "cancel")]
    pub fleet_safe: bool,
    /// Accept logins again
    #[arg(long)]
    pub cancel: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub admin: AdminArgs,
}

/// A number with its unit.
fn duration(text: &str) -> Result<Duration, String> {
    let hint = || "write a number of seconds, minutes or hours, such as 90s, 30m or 2h".to_owned();
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(hint)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        _ => return Err(hint()),
    };
    if !number.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(hint());
    }
    let number: u32 = number.parse().map_err(|_| hint())?;
    Ok(Duration::from_secs(u64::from(number) * seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_unit() {
        let read = |text| duration(text).ok().map(|duration| duration.as_secs());
        assert_eq!(["90s", "30m", "2h", "0s"].map(read), [Some(90), Some(1_800), Some(7_200), Some(0)]);
        for bad in ["", "s", "90", "-1s", "+1s", "1d", "1.5h", "99999999999s", "1é"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
