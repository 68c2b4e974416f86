//! Other people's load generators: what each is called, how its two ends are started, and what it
//! says it measured.
//!
//! They check this program's own figures, and are needed for nothing else.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::daemon::Daemon;
use super::program::{Program, Source};
use super::{Programs, SystemError};
use crate::interrupt::Interrupt;
use crate::lab::LabError;
use crate::lab::namespace::Namespace;
use crate::load::congestion::CongestionControl;

/// Time that a server may take until it listens.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that a client may take in addition to the time that it was given.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// Bulk TCP data from the client to the server.
#[derive(Clone, Copy, Debug)]
pub struct BulkLoad {
    pub address: IpAddr,
    pub streams: u32,
    pub seconds: u32,
    /// Bytes of each send call.
    pub write_bytes: u32,
    /// Bytes of the socket buffers; the kernel's choice if absent.
    pub window: Option<u32>,
    pub congestion: CongestionControl,
}

/// A client's report of what the server received.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Received {
    pub bytes: u64,
    pub bits_per_second: f64,
}

#[derive(Debug)]
pub struct Generator {
    pub program: Program,
    /// Whether it can be told a congestion control; otherwise it has that of its namespace.
    pub sets_congestion: bool,
    port: u16,
    server: fn(IpAddr) -> Vec<String>,
    client: fn(&BulkLoad) -> Vec<String>,
    received: fn(&str) -> Option<Received>,
}

pub static IPERF3: Generator = Generator {
    program: Program {
        name: "iperf3",
        version: &["--version"],
        places: &[],
        source: Source::Debian { packages: &["iperf3"] },
    },
    sets_congestion: true,
    port: 5201,
    server: |address| words(&["-s", "-B", &address.to_string()]),
    client: |load| {
        let BulkLoad { address, streams, seconds, write_bytes, congestion, .. } = load;
        let mut all = words(&["-J", "-c", &address.to_string(), "-C", congestion.name()]);
        all.extend([format!("-P{streams}"), format!("-t{seconds}"), format!("-l{write_bytes}")]);
        all.extend(load.window.map(|window| format!("-w{window}")));
        all
    },
    received: iperf3_received,
};

pub static NUTTCP: Generator = Generator {
    program: Program {
        name: "nuttcp",
        version: &["-V"],
        places: &[],
        source: Source::Debian { packages: &["nuttcp"] },
    },
    sets_congestion: false,
    port: 5000,
    server: |address| words(&["-S", "--nofork", if address.is_ipv4() { "-4" } else { "-6" }]),
    client: |load| {
        let BulkLoad { address, streams, seconds, write_bytes, .. } = load;
        let mut all = words(&["-fparse", if address.is_ipv4() { "-4" } else { "-6" }]);
        all.extend([format!("-T{seconds}"), format!("-l{write_bytes}")]);
        if *streams > 1 {
            all.push(format!("-N{streams}"));
        }
        if let Some(window) = load.window {
            // In KB, at its own end and at the server's.
            all.extend([format!("-w{}", window >> 10), format!("-ws{}", window >> 10)]);
        }
        all.push(address.to_string());
        all
    },
    received: nuttcp_received,
};

/// All of them, in the order of reports.
pub static ALL: [&Generator; 2] = [&IPERF3, &NUTTCP];

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn iperf3_received(said: &str) -> Option<Received> {
    let json: Value = serde_json::from_str(said.get(said.find('{')?..)?).ok()?;
    let sum = &json["end"]["sum_received"];
    Some(Received { bytes: sum["bytes"].as_u64()?, bits_per_second: sum["bits_per_second"].as_f64()? })
}

fn nuttcp_received(said: &str) -> Option<Received> {
    let value = |name: &str| -> Option<f64> {
        let mut fields = said.split_whitespace().filter_map(|field| field.split_once('='));
        fields.find(|(known, _)| *known == name)?.1.parse().ok()
    };
    let bytes = value("megabytes")? * f64::from(1 << 20);
    let seconds = value("real_seconds").filter(|seconds| *seconds > 0.0)?;
    Some(Received { bytes: bytes as u64, bits_per_second: bytes * 8.0 / seconds })
}

impl Generator {
    /// Sends from one namespace to another, which has the load's address.
    pub fn run(
        &self,
        programs: &Programs,
        (client, server): (&Namespace, &Namespace),
        directory: &Path,
        load: &BulkLoad,
        interrupt: &Interrupt,
    ) -> Result<Received, SystemError> {
        let (path, name) = (programs.find(&self.program)?, self.program.name);
        let log = |end: &str| directory.join(format!("{name}-{end}-{}.log", rand::random::<u32>()));
        let title = format!("{name} (server)");
        let arguments = (self.server)(load.address);
        let mut listening = Daemon::start(&title, server, &path, arguments, &log("server"))?;
        listening.wait_until("does not listen", START_TIMEOUT, interrupt, |_| {
            Ok(is_listening(server, self.port)?.then_some(()))
        })?;
        let (title, log) = (format!("{name} (client)"), log("client"));
        let mut sending = Daemon::start(&title, client, &path, (self.client)(load), &log)?;
        let timeout = Duration::from_secs(load.seconds.into()) + END_TIMEOUT;
        sending.wait_for_success(timeout, interrupt)?;
        (self.received)(&sending.output()).ok_or_else(|| sending.failed("says nothing of what arrived"))
    }
}

/// Whether a program in the namespace listens on a TCP port. A connection would be taken for a
/// client.
fn is_listening(namespace: &Namespace, port: u16) -> Result<bool, LabError> {
    namespace.within(|| {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        let tables = ["tcp", "tcp6"].map(|name| read(name).unwrap_or_default());
        Ok(tables.iter().any(|table| has_listener(table, port)))
    })
}

/// Whether the kernel's table of sockets has one that listens on `port`.
fn has_listener(table: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let local = format!(":{port:04X}");
    table.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().take(4).collect();
        fields.len() == 4 && fields[1].ends_with(&local) && fields[3] == LISTEN
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(window: Option<u32>) -> BulkLoad {
        let (address, congestion) = (IpAddr::from([10, 0, 0, 1]), CongestionControl::default());
        BulkLoad { address, streams: 4, seconds: 5, write_bytes: 131_072, window, congestion }
    }

    #[test]
    fn streams_buffers_and_congestion_control_are_told_as_each_takes_them() {
        let line = |generator: &Generator, window| (generator.client)(&load(window)).join(" ");
        assert_eq!(line(&IPERF3, None), "-J -c 10.0.0.1 -C cubic -P4 -t5 -l131072");
        assert!(line(&IPERF3, Some(65_536)).ends_with(" -w65536"));
        assert_eq!(line(&NUTTCP, Some(65_536)), "-fparse -4 -T5 -l131072 -N4 -w64 -ws64 10.0.0.1");
    }

    #[test]
    fn what_arrived_is_read_from_their_own_words_and_nothing_else() {
        let said = "warning: x\n{\"end\":{\"sum_sent\":{\"bytes\":9},\"sum_received\":{\"bytes\":8,\"bits_per_second\":64.0}}}";
        assert_eq!(iperf3_received(said), Some(Received { bytes: 8, bits_per_second: 64.0 }));
        let said =
            "megabytes=2.0000 real_seconds=0.50 rate_Mbps=33.5 tx_cpu=1 rx_cpu=2 retrans=0 rtt_ms=0.1\n";
        assert_eq!(nuttcp_received(said), Some(Received { bytes: 2 << 20, bits_per_second: 33_554_432.0 }));
        for nothing in ["", "{}", "nuttcp-t: Error", "megabytes=1 real_seconds=0"] {
            assert_eq!((iperf3_received(nothing), nuttcp_received(nothing)), (None, None), "{nothing}");
        }
    }

    #[test]
    fn a_listener_a_connection_and_another_port_are_distinguished() {
        let line =
            |port: &str, state: &str| format!("   0: 0100007F:{port} 00000000:0000 {state} 00000000:0");
        assert!(has_listener(&line("1451", "0A"), 5201));
        assert!(!has_listener(&line("1451", "01"), 5201) && !has_listener(&line("1388", "0A"), 5201));
    }
}
