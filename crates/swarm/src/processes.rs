//! The processes that hold the sessions, as their coordinator sees them.
//!
//! INVARIANT: they end with this value, and with this process however it ends.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{self, Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::message::{Command, Report};

#[derive(Debug)]
pub struct Processes {
    children: Vec<Holder>,
    reports: Receiver<Report>,
    sender: Sender<Report>,
}

#[derive(Debug)]
struct Holder {
    child: Child,
    input: ChildStdin,
    /// Whether it was killed from here, so that its end needs no report.
    killed: Arc<AtomicBool>,
}

impl Default for Processes {
    fn default() -> Self {
        let (sender, reports) = channel();
        Self { children: Vec::new(), reports, sender }
    }
}

impl Processes {
    /// Starts `program`, which calls [`run`](crate::run), with its first command.
    ///
    /// # Errors
    /// If the system gives no process.
    pub fn start(&mut self, program: process::Command, first: &Command) -> std::io::Result<()> {
        let holder = self.spawn(program, first)?;
        self.children.push(holder);
        Ok(())
    }

    /// Kills process `number` as `kill -9` does, and starts it again.
    ///
    /// # Errors
    /// If the system gives no process.
    pub fn replace(
        &mut self,
        number: usize,
        program: process::Command,
        first: &Command,
    ) -> std::io::Result<()> {
        self.children[number].end();
        self.children[number] = self.spawn(program, first)?;
        Ok(())
    }

    fn spawn(&self, mut program: process::Command, first: &Command) -> std::io::Result<Holder> {
        program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A Ctrl-C at the terminal is for the coordinator alone; it ends the others in order.
            .process_group(0);
        let mut child = program.spawn()?;
        let mut input = child.stdin.take().expect("its standard input is piped");
        let output = child.stdout.take().expect("its standard output is piped");
        let (sender, killed) = (self.sender.clone(), Arc::new(AtomicBool::new(false)));
        let was_killed = Arc::clone(&killed);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let report = line.ok().and_then(|line| serde_json::from_str(&line).ok());
                let Some(report) = report else { break };
                if sender.send(report).is_err() {
                    return;
                }
            }
            if !was_killed.load(Ordering::Relaxed) {
                // There is no receiver when the measurement is over.
                let _ = sender.send(Report::Broken("a process that holds sessions has ended".into()));
            }
        });
        // Failure means that it has ended, which the thread above reports.
        let _ = send(&mut input, first);
        Ok(Holder { child, input, killed })
    }

    /// Their numbers in the system.
    pub fn ids(&self) -> Vec<u32> {
        self.children.iter().map(|holder| holder.child.id()).collect()
    }

    /// Sends one of them a command.
    pub fn send(&mut self, number: usize, command: &Command) {
        let _ = send(&mut self.children[number].input, command);
    }

    /// Sends each of them the command for its number. The end of one that has gone is reported
    /// anyway.
    pub fn send_each(&mut self, command: impl Fn(usize) -> Command) {
        for (number, holder) in self.children.iter_mut().enumerate() {
            let _ = send(&mut holder.input, &command(number));
        }
    }

    /// The next report; `None` if none comes in time.
    pub fn next(&self, timeout: Duration) -> Option<Report> {
        self.reports.recv_timeout(timeout).ok()
    }
}

fn send(input: &mut ChildStdin, command: &Command) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(command)?;
    line.push(b'\n');
    input.write_all(&line)
}

impl Holder {
    fn end(&mut self) {
        self.killed.store(true, Ordering::Relaxed);
        // Failure means that it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.children.iter_mut().for_each(Holder::end);
    }
}
