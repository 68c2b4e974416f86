//! The work of a database server: statements, bytes of its write-ahead log, bytes from and to its
//! clients. It must not know what the gateways do with it.

use std::fmt;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use vpnd_store::postgres::testing::Cluster;

use crate::gateway::must;
use crate::namespace::Namespace;
use crate::process;

/// Settings of a server whose work is measured; it waits for its disk, as other servers do.
pub(crate) const MEASURED: &str = "fsync = on\nshared_preload_libraries = 'pg_stat_statements'";

/// Work of a server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    pub(crate) statements: f64,
    pub(crate) log_bytes: f64,
    pub(crate) wire_bytes: f64,
}

impl Work {
    fn minus(self, other: Self) -> Self {
        self.plus(other.times(-1.0))
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            statements: self.statements + other.statements,
            log_bytes: self.log_bytes + other.log_bytes,
            wire_bytes: self.wire_bytes + other.wire_bytes,
        }
    }

    pub(crate) fn times(self, factor: f64) -> Self {
        Self {
            statements: self.statements * factor,
            log_bytes: self.log_bytes * factor,
            wire_bytes: self.wire_bytes * factor,
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [log, wire] = [self.log_bytes, self.wire_bytes].map(|bytes| bytes / 1_024.0);
        write!(f, "{:.1} statements, {log:.1} KiB of log, {wire:.1} KiB on the wire", self.statements)
    }
}

/// Measures the work of a server with [`MEASURED`] for one of its databases.
pub(crate) struct Meter<'m> {
    cluster: &'m Cluster,
    database: &'m str,
    place: &'m Namespace,
    last: (Instant, Work),
}

impl<'m> Meter<'m> {
    /// Begins with a server in this place.
    pub(crate) fn new(cluster: &'m Cluster, database: &'m str, place: &'m Namespace) -> Self {
        cluster.sql("postgres", "CREATE EXTENSION IF NOT EXISTS pg_stat_statements");
        let port = cluster.port;
        place.nft(&format!(
            "add table inet work\n\
             add counter inet work wire\n\
             add chain inet work in {{ type filter hook input priority 0; }}\n\
             add rule inet work in tcp dport {port} counter name wire\n\
             add chain inet work out {{ type filter hook output priority 0; }}\n\
             add rule inet work out tcp sport {port} counter name wire\n"
        ));
        let mut meter = Self { cluster, database, place, last: (Instant::now(), Work::default()) };
        meter.since_last();
        meter
    }

    /// The work since this was called last, and the time that has passed.
    pub(crate) fn since_last(&mut self) -> (Work, Duration) {
        let now = (Instant::now(), self.so_far());
        let (then, before) = std::mem::replace(&mut self.last, now);
        (now.1.minus(before), now.0 - then)
    }

    fn so_far(&self) -> Work {
        let sql = format!(
            "SELECT coalesce(sum(calls), 0), pg_current_wal_insert_lsn() - '0/0'::pg_lsn FROM pg_stat_statements s \
             JOIN pg_database d ON d.oid = s.dbid WHERE datname = '{}'",
            self.database
        );
        let row = self.cluster.sql("postgres", &sql);
        let (statements, log_bytes) = row.split_once('|').expect("two columns");
        let [statements, log_bytes] =
            [statements, log_bytes].map(|text| text.parse().expect("the server counts"));
        Work { statements, log_bytes, wire_bytes: self.wire_bytes() }
    }

    fn wire_bytes(&self) -> f64 {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.place.name()]);
        command.args(["nft", "-j", "list", "counter", "inet", "work", "wire"]);
        let listed: Json =
            serde_json::from_slice(&must(process::run(command)).stdout).expect("nft gives JSON");
        let entries = listed["nftables"].as_array().into_iter().flatten();
        let bytes = entries.filter_map(|entry| entry["counter"]["bytes"].as_f64()).next();
        bytes.expect("the counter is listed")
    }
}
