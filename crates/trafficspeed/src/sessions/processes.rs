//! The processes that hold the sessions, as their coordinator sees them.
//!
//! INVARIANT: they end with this value, and with this process however it ends.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::message::{Order, Report};
use crate::lab::namespace::Namespace;

#[derive(Debug)]
pub struct Processes {
    children: Vec<Holder>,
    reports: Receiver<Report>,
    speaker: Sender<Report>,
}

#[derive(Debug)]
struct Holder {
    child: Child,
    input: ChildStdin,
    /// It was killed from here, and its end is no news.
    condemned: Arc<AtomicBool>,
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
        let holder = self.hold(namespace, order)?;
        self.children.push(holder);
        Ok(())
    }

    /// Kills process `number` as `kill -9` does, and starts it again.
    ///
    /// # Errors
    /// If the system gives no process.
    pub fn replace(&mut self, number: usize, namespace: &Namespace, order: &Order) -> std::io::Result<()> {
        self.children[number].end();
        self.children[number] = self.hold(namespace, order)?;
        Ok(())
    }

    fn hold(&self, namespace: &Namespace, order: &Order) -> std::io::Result<Holder> {
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
        let (speaker, condemned) = (self.speaker.clone(), Arc::new(AtomicBool::new(false)));
        let expected = Arc::clone(&condemned);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let report = line.ok().and_then(|line| serde_json::from_str(&line).ok());
                let Some(report) = report else { break };
                if speaker.send(report).is_err() {
                    return;
                }
            }
            if !expected.load(Ordering::Relaxed) {
                // Nobody listens any more when the measurement is over.
                let _ = speaker.send(Report::Broken("a process that holds sessions has ended".into()));
            }
        });
        // One that cannot take its order has ended, and says so.
        let _ = give(&mut input, order);
        Ok(Holder { child, input, condemned })
    }

    /// Their numbers in the system.
    pub fn ids(&self) -> Vec<u32> {
        self.children.iter().map(|holder| holder.child.id()).collect()
    }

    /// Gives one of them an order.
    pub fn order_one(&mut self, number: usize, order: &Order) {
        let _ = give(&mut self.children[number].input, order);
    }

    /// Gives all of them an order. One that has ended says so by its last report.
    pub fn order(&mut self, order: impl Fn(usize) -> Order) {
        for (number, holder) in self.children.iter_mut().enumerate() {
            let _ = give(&mut holder.input, &order(number));
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

impl Holder {
    fn end(&mut self) {
        self.condemned.store(true, Ordering::Relaxed);
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
