//! Whether a rate is what the path carries, or what the sender could send: then the path carries at
//! least that.

use super::{Quantity, Row};
use crate::experiment::generate::search::LEAST_SENT;
use crate::load::task::{Protocol, Task};

/// A path that lost more than this was full itself, in percent.
const MOST_LOST: f64 = 0.1;
/// Threads that used at least this share of their CPUs could not send more.
const SATURATED: f64 = 0.95;

impl Row {
    /// Whether a figure is a rate that the sender could not raise: a lower bound of what the path
    /// carries.
    pub fn is_limited_by_sender(&self, quantity: Quantity) -> bool {
        if !quantity.is_rate() {
            return false;
        }
        if let Some(search) = &self.search {
            let asked = search.asked_bits_per_second;
            return search.limited_by_sender || asked.is_some_and(|asked| self.falls_short(Some(asked)));
        }
        match &self.case.task {
            Task::Messages(work) if work.protocol == Protocol::Udp => {
                self.falls_short(work.bits_per_second.map(|rate| rate as f64 * f64::from(work.streams)))
            }
            Task::Messages(work) => self.is_saturated(work.backward, work.streams),
            Task::Bulk(job) => self.is_saturated(!job.connector_sends(0), job.threads.min(job.streams)),
            // A task that waits for an answer is slowed down by the path alone.
            Task::Exchange(_) | Task::Pages(_) => false,
        }
    }

    /// Whether less left than was asked for, in bits a second of all streams, though the path took
    /// it all.
    fn falls_short(&self, asked: Option<f64>) -> bool {
        let Some(figures) = &self.figures else { return false };
        figures.lost_percent.is_some_and(|lost| lost <= MOST_LOST)
            && asked.is_none_or(|asked| figures.sent_bits_per_second < LEAST_SENT * asked)
    }

    /// Whether the sender's threads used all of their CPUs. A path that is full makes a sender over
    /// TCP sleep.
    fn is_saturated(&self, far_sends: bool, threads: u32) -> bool {
        self.cpu.is_some_and(|cpu| {
            let used = cpu.generator_ends[usize::from(far_sends)];
            cpu.seconds > 0.0 && used >= SATURATED * f64::from(threads.max(1)) * cpu.seconds
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::figures::Figures;
    use crate::experiment::generate::SearchOutcome;
    use crate::experiment::outcome::CpuUse;
    use crate::load::message::Messages;
    use crate::load::tcp::{Job, Shape, Way};

    fn row(task: Task) -> Row {
        let case = super::super::options::sample(false).case("", String::new(), task, 4, &[]);
        Row::new("vpnd".into(), &case, 1)
    }

    fn datagrams(bits_per_second: Option<u64>) -> Task {
        Task::Messages(Messages { streams: 2, length: 100, bits_per_second, ..Messages::default() })
    }

    fn bulk(way: Way) -> Task {
        Task::Bulk(Job { write_bytes: 1, shape: Shape { way, ..Shape::default() }, ..Job::default() })
    }

    #[test]
    fn a_search_says_whether_its_sender_was_the_limit_and_only_rates_are_bounds() {
        for limited_by_sender in [true, false] {
            let search = Some(SearchOutcome { limited_by_sender, ..SearchOutcome::default() });
            let row = Row { search, ..row(datagrams(None)) };
            assert_eq!(row.is_limited_by_sender(Quantity::Throughput), limited_by_sender);
            assert_eq!(row.is_limited_by_sender(Quantity::Packets), limited_by_sender);
            assert!(!row.is_limited_by_sender(Quantity::Loss) && !row.is_limited_by_sender(Quantity::Jitter));
        }
    }

    #[test]
    fn a_sender_below_its_rate_is_the_limit_unless_packets_were_lost() {
        let is_limited = |rate, sent_bits_per_second, lost| {
            let figures = Figures { sent_bits_per_second, lost_percent: Some(lost), ..Figures::default() };
            let row = Row { figures: Some(figures), ..row(datagrams(rate)) };
            row.is_limited_by_sender(Quantity::Throughput)
        };
        // Two streams of 1 Mbit/s each.
        assert!(is_limited(Some(1_000_000), 1.9e6, 0.1) && is_limited(None, 1.9e6, 0.0));
        assert!(!is_limited(Some(1_000_000), 1.95e6, 0.0), "about what was asked for");
        assert!(!is_limited(Some(1_000_000), 1.9e6, 0.2), "the path was full");
    }

    #[test]
    fn a_stream_whose_sender_has_no_cpu_left_is_limited_by_it() {
        let is_limited = |way, generator_ends| {
            let cpu = Some(CpuUse { generator_ends, seconds: 2.0, ..CpuUse::default() });
            Row { cpu, ..row(bulk(way)) }.is_limited_by_sender(Quantity::Throughput)
        };
        assert!(is_limited(Way::Forward, [1.9, 0.1]) && is_limited(Way::Backward, [0.1, 1.9]));
        assert!(!is_limited(Way::Forward, [1.8, 2.0]) && !is_limited(Way::Backward, [2.0, 1.8]));
        assert!(!row(bulk(Way::Forward)).is_limited_by_sender(Quantity::Throughput), "no CPU time is known");
    }
}
