//! Impairments by the kernel's netem, where it has it: the words for `tc`, and whether
//! they will work.
//!
//! netem differs in two ways that a report must not hide: jitter may change the order of packets,
//! and a packet that is "reordered" is one that skips the delay. It has no queue limit of this
//! kind, so one is refused.

use std::process::Command;

use super::impairment::Impairment;
use crate::lab::{LabError, find_program, run_tool};

/// Packets that netem may hold; its own default of 1,000 is too few for a long fast link.
const LIMIT: &str = "200000";

/// Why netem cannot do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetemError {
    /// netem counts packets under way into its limit.
    #[error("netem has no limit for the queue alone; leave out --queue or use `--emulator user`")]
    Queue,
    /// netem reorders by letting packets skip the delay.
    #[error("netem reorders by skipping the delay, so it needs one; give --delay or use `--emulator user`")]
    ReorderWithoutDelay,
}

/// Finds out whether netem is there and can do this, in a namespace that lives as long as the
/// question.
///
/// # Errors
/// [`LabError::Missing`], with what to do instead.
pub fn check(link: &Impairment) -> Result<(), LabError> {
    let missing = |why: String| LabError::Missing(why);
    let words = words("lo", link).map_err(|error| missing(error.to_string()))?;
    if find_program("tc").is_none() || find_program("unshare").is_none() {
        return Err(missing(
            "`--emulator netem` needs tc and unshare; run `apt-get install iproute2`".into(),
        ));
    }
    let mut command = Command::new("unshare");
    run_tool(command.args(["--net", "tc"]).args(words)).map(drop).map_err(|error| {
        missing(format!(
            "this kernel has no netem ({error}); leave out `--emulator netem` to emulate in user space"
        ))
    })
}

/// The words after `tc`, for a device that sends in this direction.
pub fn words(device: &str, link: &Impairment) -> Result<Vec<String>, NetemError> {
    if link.queue.is_some() {
        return Err(NetemError::Queue);
    }
    if link.reorder.ppm > 0 && link.delay.ns == 0 {
        return Err(NetemError::ReorderWithoutDelay);
    }
    let percent = |share: f64| format!("{:.4}%", share * 100.0);
    let micros = |ns: u64| format!("{}us", ns as f64 / 1e3);
    let mut words: Vec<String> =
        ["qdisc", "add", "dev", device, "root", "netem", "limit", LIMIT].map(str::to_owned).into();
    let mut say = |more: &[String]| words.extend_from_slice(more);
    say(&["delay".into(), micros(link.delay.ns)]);
    if link.jitter.ns > 0 {
        say(&[micros(link.jitter.ns)]);
    }
    if link.loss_burst > 0 {
        let (loss, ends) = (link.loss.fraction(), 1.0 / f64::from(link.loss_burst));
        say(&["loss".into(), "gemodel".into(), percent(ends * loss / (1.0 - loss)), percent(ends)]);
    } else if link.loss.ppm > 0 {
        say(&["loss".into(), percent(link.loss.fraction())]);
    }
    if link.duplicate.ppm > 0 {
        say(&["duplicate".into(), percent(link.duplicate.fraction())]);
    }
    if link.reorder.ppm > 0 {
        say(&["reorder".into(), percent(link.reorder.fraction())]);
    }
    if let Some(rate) = link.rate {
        say(&["rate".into(), format!("{}bit", rate.bits_per_second)]);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::super::impairment::{QueueLimit, Rate, Share, Span};
    use super::*;

    #[test]
    fn every_setting_becomes_a_word_of_tc() {
        let link = Impairment {
            delay: Span { ns: 16_000_000 },
            jitter: Span { ns: 2_500_000 },
            loss: Share { ppm: 10_000 },
            duplicate: Share { ppm: 1_000 },
            reorder: Share { ppm: 5_000 },
            rate: Some(Rate { bits_per_second: 100_000_000 }),
            ..Impairment::default()
        };
        assert_eq!(
            words("eth0", &link).unwrap().join(" "),
            "qdisc add dev eth0 root netem limit 200000 delay 16000us 2500us loss 1.0000% duplicate 0.1000% \
             reorder 0.5000% rate 100000000bit"
        );
        let bursts = Impairment { loss_burst: 4, loss: Share { ppm: 200_000 }, ..Impairment::default() };
        let text = words("c1", &bursts).unwrap().join(" ");
        assert!(text.ends_with("delay 0us loss gemodel 6.2500% 25.0000%"), "{text}");
    }

    #[test]
    fn what_netem_cannot_do_is_refused() {
        let queue = Impairment { queue: Some(QueueLimit::Packets(5)), ..Impairment::default() };
        assert_eq!(words("eth0", &queue), Err(NetemError::Queue));
        let reorder = Impairment { reorder: Share { ppm: 1 }, ..Impairment::default() };
        assert_eq!(words("eth0", &reorder), Err(NetemError::ReorderWithoutDelay));
    }
}
