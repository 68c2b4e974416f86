//! The processes that hold the sessions, as their coordinator sees them.
//!
//! INVARIANT: they end with this value, and with this process however it ends.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::message::{Order, Report};
use crate::lab::namespace::Namespace;

/// All processes.
#[derive(Debug)]
pub struct Processes {
    children: Vec<(Child, ChildStdin)>,
    reports: Receiver<Report>,
    speaker: Sender<Report>,
}

impl Default for Processes {
    fn default() -> Self {
        let (speaker, reports) = channel();
        Self { children: Vec::new(), reports, speaker }
    }
}

impl Processes {
    /// Starts one in `namespace` with its first order.
    ///
    /// # Errors
    /// If the system gives no process.
    pub fn start(&mut self, namespace: &Namespace, order: &Order) -> std::io::Result<()> {
        let mut command = Command::new(std::env::current_exe()?);
        let parent = std::process::id().to_string();
        command
            .args(["swarm", "--parent", &parent, "--netns", namespace.name()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A Ctrl-C at the terminal is for the coordinator alone; it ends the others in order.
            .process_group(0);
        let mut child = command.spawn()?;
        let mut input = child.stdin.take().expect("its standard input is piped");
        let output = child.stdout.take().expect("its standard output is piped");
        let speaker = self.speaker.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let report = line.ok().and_then(|line| serde_json::from_str(&line).ok());
                let Some(report) = report else { break };
                if speaker.send(report).is_err() {
                    return;
                }
            }
            // Nobody listens any more when the measurement is over.
            let _ = speaker.send(Report::Broken("a process that holds sessions has ended".into()));
        });
        let sent = give(&mut input, order);
        self.children.push((child, input));
        sent
    }

    /// Gives all of them an order. One that has ended says so by its last report.
    pub fn order(&mut self, order: impl Fn(usize) -> Order) {
        for (number, (_, input)) in self.children.iter_mut().enumerate() {
            let _ = give(input, &order(number));
        }
    }

    /// The next report; `None` if none comes in time.
    pub fn next(&self, patience: Duration) -> Option<Report> {
        self.reports.recv_timeout(patience).ok()
    }
}

fn give(input: &mut ChildStdin, order: &Order) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(order)?;
    line.push(b'\n');
    input.write_all(&line)
}

impl Drop for Processes {
    fn drop(&mut self) {
        for (child, _) in &mut self.children {
            // Failure means that it has ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
