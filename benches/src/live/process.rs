//! One end of the tunnel as a separate process, as a VPN has it: the kernel changes address
//! spaces between the two, and caches and translations go with that.
//!
//! The process is this program again. It says the address of its socket, reads that of the other
//! end, and then answers each line with its figures until its input ends, so it never outlives who
//! started it.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use vpnd_proto::plane::Role;

use super::{End, Keys, Parts, Running};

/// The part that the process plays.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct EndSpec {
    pub(super) is_gateway: bool,
    pub(super) namespace: String,
    /// The address of its socket.
    pub(super) outer: Ipv4Addr,
    pub(super) packet: usize,
    pub(super) pieces: usize,
    pub(super) suite: String,
    pub(super) backend: String,
    /// Each system call is timed.
    pub(super) clocked: bool,
}

/// Is one end until the input ends. `spec` is what the program passes to itself.
///
/// # Errors
/// If something could not be made.
pub fn serve(spec: &str) -> anyhow::Result<()> {
    let spec: EndSpec = serde_json::from_str(spec).context("an end of a tunnel that nobody described")?;
    let parts = Parts::make(&spec)?;
    let mut lines = io::stdin().lock().lines();
    println!("{}", parts.socket.local_addr()?);
    let peer: SocketAddr = lines.next().context("nobody says where the other end is")??.parse()?;
    let (suite, backend) = (spec.suite.parse()?, spec.backend.parse()?);
    let running = if spec.is_gateway {
        Running::start(parts, Role::Gateway, Keys { suite, backend, own: 1, peer: 2, remote: None })?
    } else {
        Running::start(parts, Role::Client, Keys { suite, backend, own: 2, peer: 1, remote: Some(peer) })?
    };
    println!("ready");
    for line in lines {
        line?;
        serde_json::to_writer(io::stdout().lock(), &running.read()?)?;
        println!();
    }
    Ok(())
}

/// A process that is one end; its input ends when this is dropped, and it with that.
pub(super) struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    pub(super) address: SocketAddr,
}

impl Process {
    pub(super) fn start(spec: &EndSpec) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe().context("finding this program")?)
            .args(["--live-end", &serde_json::to_string(spec)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting one end of the tunnel")?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("a process without output")?);
        let mut process = Self { child, input, output, address: (Ipv4Addr::UNSPECIFIED, 0).into() };
        process.address = process.line()?.parse().context("one end of the tunnel did not come up")?;
        Ok(process)
    }

    /// Lets it begin.
    pub(super) fn begin(&mut self, peer: SocketAddr) -> anyhow::Result<()> {
        self.say(&peer.to_string())?;
        self.line().map(drop)
    }

    /// Its figures until now.
    pub(super) fn read(&mut self) -> anyhow::Result<End> {
        self.say("")?;
        serde_json::from_str(&self.line()?).context("one end of the tunnel has stopped")
    }

    fn say(&mut self, line: &str) -> anyhow::Result<()> {
        let input = self.input.as_mut().context("one end of the tunnel is over")?;
        writeln!(input, "{line}").context("one end of the tunnel has stopped")
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.input = None;
        // An error has been printed where it was.
        let _ = self.child.wait();
    }
}
