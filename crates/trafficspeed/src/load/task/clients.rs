//! Tasks of several clients at once: the parts of all of them together are one task, with the
//! streams of all.
//!
//! INVARIANT: only counts are summed. Delays are summaries by the time they get here, and
//! percentiles do not add up, so several clients together have none.

use super::{Findings, Task};

impl Task {
    /// The task that `clients` clients work on together, if each of them does this.
    #[must_use]
    pub fn of_clients(&self, clients: u32) -> Self {
        let mut task = self.clone();
        let (streams, _) = task.streams_and_seed();
        *streams = streams.saturating_mul(clients);
        task
    }

    /// The part of client `number`, from 0, in a task of `clients` clients: as many streams as each
    /// other has, with its own payload.
    #[must_use]
    pub fn of_one(&self, clients: u32, number: u32) -> Self {
        let mut task = self.clone();
        let (streams, seed) = task.streams_and_seed();
        *streams /= clients;
        *seed = seed.wrapping_add(u64::from(number));
        task
    }

    pub fn streams(&self) -> u32 {
        match self {
            Self::Bulk(job) => job.streams,
            Self::Messages(work) => work.streams,
            Self::Exchange(work) => work.streams,
            Self::Pages(work) => work.streams,
        }
    }

    fn streams_and_seed(&mut self) -> (&mut u32, &mut u64) {
        match self {
            Self::Bulk(job) => (&mut job.streams, &mut job.seed),
            Self::Messages(work) => (&mut work.streams, &mut work.seed),
            Self::Exchange(work) => (&mut work.streams, &mut work.seed),
            Self::Pages(work) => (&mut work.streams, &mut work.seed),
        }
    }
}

impl Findings {
    /// The findings of the same end of several clients, as those of one. Faults are not among them:
    /// each is its own client's.
    pub fn of_clients(clients: &[&Self]) -> Self {
        let sum = |value: fn(&Self) -> u64| -> u64 { clients.iter().copied().map(value).sum() };
        // Every client has as many streams, so the mean of the means is that of all streams.
        let jitters: Vec<f64> = clients.iter().filter_map(|found| found.jitter_us).collect();
        let mean = jitters.iter().sum::<f64>() / jitters.len().max(1) as f64;
        Self {
            messages_sent: sum(|found| found.messages_sent),
            messages_received: sum(|found| found.messages_received),
            bytes_sent: sum(|found| found.bytes_sent),
            bytes_received: sum(|found| found.bytes_received),
            duplicates: sum(|found| found.duplicates),
            reordered: sum(|found| found.reordered),
            late: sum(|found| found.late),
            timeouts: sum(|found| found.timeouts),
            socket_drops: sum(|found| found.socket_drops),
            jitter_us: (!jitters.is_empty()).then_some(mean),
            mss: clients.iter().find_map(|found| found.mss),
            pages_ms: clients.iter().flat_map(|found| found.pages_ms.iter().copied()).collect(),
            streams: clients.iter().flat_map(|found| found.streams.iter().cloned()).collect(),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::delays::DelaySummary;
    use crate::load::tcp::{Job, StreamTotal};

    fn bulk(streams: u32) -> Task {
        Task::Bulk(Job {
            run_id: 7,
            seed: u64::MAX,
            streams,
            write_bytes: 1_000,
            congestion: "reno".parse().unwrap(),
            ..Job::default()
        })
    }

    #[test]
    fn the_streams_of_all_clients_are_split_equally_and_each_client_has_its_own_payload() {
        let all = bulk(3).of_clients(4);
        assert_eq!(all.connections().map(|job| job.streams), Some(12));
        let job = |number| all.of_one(4, number).connections().unwrap();
        assert_eq!((job(0), job(3).streams), (bulk(3).connections().unwrap(), 3));
        assert_eq!((job(0).seed, job(1).seed, job(2).seed), (u64::MAX, 0, 1));
        assert_eq!(bulk(3).of_clients(1), bulk(3), "one client alone is as it was");
    }

    #[test]
    fn counts_are_sums_jitter_is_a_mean_and_delays_are_no_ones() {
        let client = |times: u64| Findings {
            messages_sent: 10 * times,
            messages_received: 9 * times,
            bytes_sent: 8 * times,
            bytes_received: 7 * times,
            duplicates: 6 * times,
            reordered: 5 * times,
            late: 4 * times,
            timeouts: 3 * times,
            socket_drops: 2 * times,
            jitter_us: Some(times as f64),
            pages_ms: vec![times as f64],
            delay: Some(DelaySummary::default()),
            variation: Some(DelaySummary::default()),
            lateness: Some(DelaySummary::default()),
            round_trip: Some(DelaySummary::default()),
            mss: Some(1_400),
            faults: vec!["stream 0: gone".into()],
            streams: vec![StreamTotal { bytes: times, ..StreamTotal::default() }],
        };
        let merged = Findings::of_clients(&[&client(1), &client(3)]);
        let expected = Findings {
            jitter_us: Some(2.0),
            pages_ms: vec![1.0, 3.0],
            delay: None,
            variation: None,
            lateness: None,
            round_trip: None,
            faults: Vec::new(),
            streams: [1, 3].map(|bytes| StreamTotal { bytes, ..StreamTotal::default() }).to_vec(),
            ..client(4)
        };
        assert_eq!(merged, expected);
        assert_eq!(Findings::of_clients(&[&Findings::default()]).jitter_us, None);
    }
}
