//! How an agent works on tasks ([`crate::load::task`]): several at once, with a sample of each at
//! every interval.

use std::net::IpAddr;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use super::{Agent, CONNECT_TIMEOUT, DRAIN_TIMEOUT, Gone, MAX_LEAD, failed};
use crate::clock;
use crate::coordinate::message::{MAX_DURATION_MS, MAX_SAMPLES, Measurement, Report, Sample, TaskEnd};
use crate::load::fragments;
use crate::load::task::{ListeningTask, MAX_TASKS, Ready, Running, Task};
use crate::load::udp::socket_drops;
use crate::load::worker_pool::{Reading, Schedule};
use crate::observe;

/// The times of a measurement as the coordinator tells them.
pub(super) struct Times {
    pub(super) at_ns: u64,
    pub(super) warmup_ms: u64,
    pub(super) duration_ms: u64,
    pub(super) interval_ms: u64,
    pub(super) peer_ahead_ns: i64,
}

impl Times {
    fn problem(&self) -> Option<String> {
        let Self { warmup_ms, duration_ms, interval_ms, .. } = *self;
        if clock::until(self.at_ns) > MAX_LEAD {
            return Some(format!("told to start more than {} s ahead", MAX_LEAD.as_secs()));
        }
        if duration_ms == 0 || duration_ms > MAX_DURATION_MS || warmup_ms > MAX_DURATION_MS {
            return Some(format!("told to measure for {duration_ms} ms after {warmup_ms} ms"));
        }
        if interval_ms == 0 || duration_ms / interval_ms > MAX_SAMPLES {
            return Some(format!("told to sample {duration_ms} ms every {interval_ms} ms"));
        }
        None
    }

    fn schedule(&self) -> Schedule {
        let begin_ns = self.at_ns + self.warmup_ms * 1_000_000;
        let end_ns = begin_ns + self.duration_ms * 1_000_000;
        Schedule { start_ns: self.at_ns, begin_ns, end_ns, peer_ahead_ns: self.peer_ahead_ns }
    }
}

fn problem(tasks: &[Task]) -> Option<String> {
    if tasks.is_empty() || tasks.len() > MAX_TASKS {
        return Some(format!("{} tasks asked for, 1 to {MAX_TASKS} are possible", tasks.len()));
    }
    tasks.iter().find_map(Task::problem)
}

impl Agent {
    /// Opens a door for each task, tells the ports and waits for the other host.
    pub(super) fn prepare(&mut self, tasks: Vec<Task>, bind: IpAddr, timeout: Duration) -> Result<(), Gone> {
        let opened = match problem(&tasks) {
            Some(reason) => Err(reason),
            None => open(&tasks, bind),
        };
        let (doors, ports) = match opened {
            Ok(opened) => opened,
            Err(reason) => return self.send(failed(reason)),
        };
        let mut stopped = || self.stopped();
        if let Err(error) = fragments::await_few(&mut stopped) {
            return self.send(failed(error.to_string()));
        }
        self.send(Report::Prepared { ports })?;
        let meet = |(door, task): (ListeningTask, Task)| door.meet(task, timeout, &mut stopped);
        let made: Result<Vec<Ready>, _> = doors.into_iter().zip(tasks).map(meet).collect();
        let report = self.keep_tasks(made.map_err(|error| error.to_string()));
        self.send(report)
    }

    /// Reaches the doors of the other host.
    pub(super) fn reach(&mut self, tasks: Vec<Task>, peer: IpAddr, ports: &[Vec<u16>]) -> Report {
        if let Some(reason) = problem(&tasks) {
            return failed(reason);
        }
        if ports.len() != tasks.len() {
            return failed(format!("told the ports of {} tasks for {}", ports.len(), tasks.len()));
        }
        let mut stopped = || self.stopped();
        if let Err(error) = fragments::await_few(&mut stopped) {
            return failed(error.to_string());
        }
        let reach = |(task, ports): (Task, &Vec<u16>)| task.reach(peer, ports, CONNECT_TIMEOUT, &mut stopped);
        let made: Result<Vec<Ready>, _> = tasks.into_iter().zip(ports).map(reach).collect();
        self.keep_tasks(made.map_err(|error| error.to_string()))
    }

    fn keep_tasks(&mut self, made: Result<Vec<Ready>, String>) -> Report {
        match made {
            Ok(tasks) => {
                self.tasks = tasks;
                Report::Connected
            }
            Err(reason) => failed(reason),
        }
    }

    /// Works on the tasks and reports samples, then what each end found.
    pub(super) fn work(&mut self, times: &Times) -> Result<Report, Gone> {
        let tasks = std::mem::take(&mut self.tasks);
        if tasks.is_empty() {
            return Ok(failed("told to begin before the tasks were connected".into()));
        }
        if let Some(reason) = times.problem() {
            return Ok(failed(reason));
        }
        let schedule = times.schedule();
        let running: Result<Vec<Running>, _> = tasks.into_iter().map(|task| task.begin(schedule)).collect();
        match running {
            Ok(running) => self.watch_tasks(running, schedule, times.interval_ms * 1_000_000),
            Err(error) => Ok(failed(format!("cannot start the generator: {error}"))),
        }
    }

    fn watch_tasks(
        &self,
        running: Vec<Running>,
        schedule: Schedule,
        interval_ns: u64,
    ) -> Result<Report, Gone> {
        let drops = socket_drops();
        let mut stopped = self.wait_for(schedule.begin_ns, &running);
        let first = Instants::take(&running);
        let mut previous = first.clone();
        let mut number = 0;
        while !stopped && previous.at_ns < schedule.end_ns {
            let next = (schedule.begin_ns + (number + 1) * interval_ns).min(schedule.end_ns);
            stopped = self.wait_for(next, &running);
            let now = Instants::take(&running);
            let samples =
                now.readings.iter().zip(&previous.readings).map(|(now, then)| Sample::between(then, now));
            let seconds = (now.at_ns - previous.at_ns) as f64 / 1e9;
            self.send(Report::Sample { number, seconds, tasks: samples.collect() })?;
            previous = now;
            number += 1;
        }
        running.iter().for_each(Running::stop);
        let stream_bytes = previous.streams_since(&first);
        let window = previous.readings.iter().zip(&first.readings);
        let sums: Vec<Sample> = window.map(|(last, first)| Sample::between(first, last)).collect();
        // All of them drain at the same time, so together they need no more time than one.
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        let found = running.into_iter().map(|task| {
            task.finish(deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(50)))
        });
        let ends = sums.into_iter().zip(stream_bytes).zip(found);
        let end = |((window, stream_bytes), found)| TaskEnd { window, stream_bytes, found };
        let tasks = ends.map(end).collect();
        Ok(Report::Measured(Measurement {
            seconds: (previous.at_ns - first.at_ns) as f64 / 1e9,
            late_ms: first.at_ns.saturating_sub(schedule.begin_ns) as f64 / 1e6,
            sending_seconds: previous.at_ns.min(schedule.end_ns).saturating_sub(schedule.begin_ns) as f64
                / 1e9,
            stopped_early: stopped,
            cpu_seconds: previous.cpu_seconds - first.cpu_seconds,
            socket_drops: socket_drops() - drops,
            tasks,
        }))
    }

    /// Waits for an instant; true if the coordinator or broken tasks end the wait early.
    fn wait_for(&self, instant_ns: u64, running: &[Running]) -> bool {
        loop {
            let left = clock::until(instant_ns);
            if left.is_zero() {
                return false;
            }
            match self.commands.recv_timeout(left.min(Duration::from_millis(100))) {
                Err(RecvTimeoutError::Timeout) if running.iter().any(Running::broke_down) => return true,
                Err(RecvTimeoutError::Timeout) => {}
                Ok(_) | Err(RecvTimeoutError::Disconnected) => return true,
            }
        }
    }
}

fn open(tasks: &[Task], bind: IpAddr) -> Result<(Vec<ListeningTask>, Vec<Vec<u16>>), String> {
    let open = |task: &Task| {
        let door = task.listen(bind).map_err(|error| error.to_string())?;
        let ports = door.ports().map_err(|error| error.to_string())?;
        Ok((door, ports))
    };
    let opened: Result<Vec<_>, String> = tasks.iter().map(open).collect();
    Ok(opened?.into_iter().unzip())
}

/// All sums at one instant.
#[derive(Clone)]
struct Instants {
    at_ns: u64,
    readings: Vec<Reading>,
    /// Bytes of each connection, task by task; bulk data only.
    streams: Vec<Vec<u64>>,
    cpu_seconds: f64,
}

impl Instants {
    fn take(running: &[Running]) -> Self {
        let (readings, streams) = running.iter().map(Running::read_streams).unzip();
        Self { at_ns: clock::now_ns(), readings, streams, cpu_seconds: observe::own_cpu_seconds() }
    }

    /// Bytes of each connection since an earlier instant, task by task.
    fn streams_since(&self, earlier: &Self) -> Vec<Vec<u64>> {
        let since = |(now, then): (&Vec<u64>, &Vec<u64>)| -> Vec<u64> {
            now.iter().zip(then).map(|(now, then)| now - then).collect()
        };
        self.streams.iter().zip(&earlier.streams).map(since).collect()
    }
}
