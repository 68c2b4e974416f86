//! The costs of the stages of a running tunnel, fitted from streams through whole shards in pieces
//! of several sizes.
//!
//! Each stage is a sum of an amount for each call, packet or byte. What a stage costs is read from
//! runs without a cipher; the ciphers are what sealing and opening take beyond that in runs with
//! them.

use anyhow::ensure;
use serde::{Deserialize, Serialize};

use super::counts::{Counts, Unit};
use super::disturbance::{Disturbance, undisturbed};
use super::stages::{Live, LiveEnd, Raw};
use crate::stats::median;
use crate::system::Cipher;

/// Fewest sizes from which a stage is fitted.
const LEAST_SIZES: usize = 3;

/// Which end of the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// The client, which sends the data and receives the acknowledgements.
    Client,
    Gateway,
}

impl End {
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Gateway => "gateway",
        }
    }
}

/// The nature of a stage's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A system call and what the kernel does within it.
    Kernel,
    /// The shard's own work.
    Own,
    /// Sealing and opening.
    Cipher,
    /// Going to sleep, being woken, and calls that find nothing.
    Waiting,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Own => "own",
            Self::Cipher => "cipher",
            Self::Waiting => "waiting",
        }
    }
}

/// A stage and its fitted costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    pub stage: String,
    pub end: End,
    pub kind: Kind,
    /// The suite, for a cipher.
    pub suite: Option<String>,
    /// Nanoseconds for each of these.
    pub terms: Vec<(Unit, f64)>,
    /// The median distance between the fit and a run, as a share of the run.
    pub spread: f64,
    /// The largest.
    pub worst: f64,
    /// Sizes that were measured.
    pub sizes: usize,
    /// Runs from which it was fitted.
    pub runs: usize,
}

impl Cost {
    /// Nanoseconds for these counts.
    pub fn ns(&self, counts: &Counts) -> f64 {
        self.terms.iter().map(|(unit, ns)| ns * counts.of(*unit)).sum()
    }
}

/// A stage before it is fitted: where its time is found and what it depends on.
struct Plan {
    stage: &'static str,
    end: End,
    kind: Kind,
    units: &'static [Unit],
    time: fn(&LiveEnd) -> f64,
}

const fn plan(
    stage: &'static str,
    end: End,
    kind: Kind,
    units: &'static [Unit],
    time: fn(&LiveEnd) -> f64,
) -> Plan {
    Plan { stage, end, kind, units, time }
}

/// The time of waiting and waking up: the thread's, without all that is timed by itself.
fn rest(end: &LiveEnd) -> f64 {
    let calls = [&end.read, &end.send, &end.receive, &end.write];
    let working: f64 = calls.iter().map(|calls| calls.work.ns).sum();
    (end.cpu_ns - working - end.transmit_ns - end.deliver_ns).max(0.0)
}

/// The stages without a cipher, in the order of the data's way, then that of the acknowledgements.
const PLANS: [Plan; 14] = {
    use End::{Client, Gateway};
    use Kind::{Kernel, Own, Waiting};
    use Unit::{AckReads, AckRuns, AckWrites, Acks, Bytes, Datagrams, Reads, Runs, Writes};
    [
        plan("TUN read", Client, Kernel, &[Reads, Bytes], |end| end.read.work.ns),
        plan("slice and header", Client, Own, &[Reads, Datagrams, Bytes], |end| end.transmit_ns),
        plan("UDP send", Client, Kernel, &[Runs, Datagrams, Bytes], |end| end.send.work.ns),
        plan("UDP receive", Gateway, Kernel, &[Runs, Bytes], |end| end.receive.work.ns),
        plan("parse, replay, policy, rebuild", Gateway, Own, &[Runs, Datagrams, Bytes], |end| end.deliver_ns),
        plan("TUN write into the receiving TCP", Gateway, Kernel, &[Writes, Bytes], |end| end.write.work.ns),
        plan("TUN read of acknowledgements", Gateway, Kernel, &[AckReads], |end| end.read.work.ns),
        plan("header of acknowledgements", Gateway, Own, &[AckReads, Acks], |end| end.transmit_ns),
        plan("UDP send of acknowledgements", Gateway, Kernel, &[AckRuns, Acks], |end| end.send.work.ns),
        plan("UDP receive of acknowledgements", Client, Kernel, &[AckRuns, Acks], |end| end.receive.work.ns),
        plan("policy, rebuild of acknowledgements", Client, Own, &[AckRuns, Acks], |end| end.deliver_ns),
        plan(
            "TUN write of acknowledgements into the sending TCP",
            Client,
            Kernel,
            &[AckWrites, Bytes],
            |end| end.write.work.ns,
        ),
        plan("waiting and waking up", Client, Waiting, &[Unit::ClientWakes, Reads], rest),
        plan("waiting and waking up", Gateway, Waiting, &[Unit::GatewayWakes, Runs], rest),
    ]
};

/// Where the ciphers' time is: beyond the stage of the same end and time.
const CIPHERS: [Plan; 4] = {
    use End::{Client, Gateway};
    use Unit::{Acks, Bytes, Datagrams};
    [
        plan("seal", Client, Kind::Cipher, &[Datagrams, Bytes], |end| end.transmit_ns),
        plan("open", Gateway, Kind::Cipher, &[Datagrams, Bytes], |end| end.deliver_ns),
        plan("seal acknowledgements", Gateway, Kind::Cipher, &[Acks], |end| end.transmit_ns),
        plan("open acknowledgements", Client, Kind::Cipher, &[Acks], |end| end.deliver_ns),
    ]
};

/// All costs, those of each suite's cipher at the end, and by how much the clocks disturbed what
/// they timed.
///
/// # Errors
/// If there are too few sizes, or no runs without a cipher or without clocks.
pub fn fit_all(raw: &Raw) -> anyhow::Result<(Vec<Cost>, Disturbance)> {
    let null = Cipher::None.name();
    let (live, disturbance) = undisturbed(&raw.live)?;
    let of_suite = |suite: &str| live.iter().filter(|live| live.suite == suite).collect::<Vec<_>>();
    let plain = of_suite(null);
    ensure!(!plain.is_empty(), "there are no streams without a cipher to fit the stages from");
    let mut costs = Vec::new();
    for plan in &PLANS {
        costs.push(plan.fit(&plain, None, |_, _| 0.0)?);
    }
    for suite in raw.suites.iter().map(|suite| suite.name.as_str()).filter(|name| *name != null) {
        let runs = of_suite(suite);
        for (cipher, own) in CIPHERS.iter().zip(owners(&costs)) {
            let own = costs[own].clone();
            costs.push(cipher.fit(&runs, Some(suite), |counts, _| own.ns(counts))?);
        }
    }
    Ok((costs, disturbance))
}

/// The stages, by their places, within whose time the ciphers' is found.
fn owners(costs: &[Cost]) -> [usize; 4] {
    let owner = |end: End, data: bool| {
        let mut own = (0..costs.len()).filter(|at| costs[*at].kind == Kind::Own && costs[*at].end == end);
        // The data's way comes first.
        if data { own.next() } else { own.nth(1) }.unwrap_or_default()
    };
    [
        owner(End::Client, true),
        owner(End::Gateway, true),
        owner(End::Gateway, false),
        owner(End::Client, false),
    ]
}

impl Plan {
    /// Fits the time beyond `known`.
    fn fit(
        &self,
        runs: &[&Live],
        suite: Option<&str>,
        known: impl Fn(&Counts, &LiveEnd) -> f64,
    ) -> anyhow::Result<Cost> {
        let end = |live: &Live| match self.end {
            End::Client => live.client.clone(),
            End::Gateway => live.gateway.clone(),
        };
        let points: Vec<Point> = runs
            .iter()
            .map(|live| {
                let (counts, end) = (Counts::of_live(live), end(live));
                let scale = match self.end {
                    End::Client => live.client_payload(),
                    End::Gateway => live.gateway_payload(),
                };
                // Each end is counted by itself, so its time goes with what it carried itself.
                let bytes_each = counts.bytes / scale.max(1.0);
                let ns = (self.time)(&end) * bytes_each;
                // A busy shard hardly ever waits: a large share of that little is still little.
                let whole = if self.kind == Kind::Waiting { end.cpu_ns * bytes_each } else { ns };
                Point {
                    units: self.units.iter().map(|unit| counts.of(*unit)).collect(),
                    ns: (ns - known(&counts, &end)).max(0.0),
                    whole,
                }
            })
            .collect();
        let mut sizes: Vec<_> = runs.iter().map(|live| (live.packet, live.pieces)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        ensure!(
            sizes.len() >= LEAST_SIZES,
            "{} was measured at {} sizes, not at {LEAST_SIZES} or more",
            self.stage,
            sizes.len()
        );
        let coefficients = fit(&points);
        let off: Vec<f64> = points.iter().map(|point| point.off(&coefficients)).collect();
        Ok(Cost {
            stage: self.stage.into(),
            end: self.end,
            kind: self.kind,
            suite: suite.map(str::to_owned),
            terms: self.units.iter().copied().zip(coefficients).collect(),
            spread: median(&off).unwrap_or_default(),
            worst: off.iter().copied().fold(0.0, f64::max),
            sizes: sizes.len(),
            runs: points.len(),
        })
    }
}

/// One run as a stage sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// How often each unit of the stage came.
    pub units: Vec<f64>,
    /// The time to explain.
    pub ns: f64,
    /// The time that it is a part of; errors count as shares of this.
    pub whole: f64,
}

impl Point {
    fn off(&self, coefficients: &[f64]) -> f64 {
        let fitted: f64 = self.units.iter().zip(coefficients).map(|(count, ns)| count * ns).sum();
        if self.whole > 0.0 { (fitted - self.ns).abs() / self.whole } else { 0.0 }
    }
}

/// The costs, none of them negative, with the least sum of squared relative errors: of all choices
/// of units that cost something, the best one whose costs are positive. There are three units at
/// most, so all choices are tried.
pub fn fit(points: &[Point]) -> Vec<f64> {
    let units = points.first().map_or(0, |point| point.units.len());
    let mut best = (f64::INFINITY, vec![0.0; units]);
    for choice in 1_u32..1 << units {
        let chosen: Vec<usize> = (0..units).filter(|unit| choice & (1 << unit) != 0).collect();
        let Some(solved) = solve(points, &chosen) else { continue };
        if solved.iter().any(|ns| *ns < 0.0) {
            continue;
        }
        let mut all = vec![0.0; units];
        for (unit, ns) in chosen.iter().zip(solved) {
            all[*unit] = ns;
        }
        let error: f64 = points.iter().map(|point| point.off(&all).powi(2)).sum();
        // A unit that improves nothing worth mentioning is left out.
        if error < best.0 * (1.0 - 1e-6) {
            best = (error, all);
        }
    }
    best.1
}

/// The normal equations of the chosen units, by elimination; `None` if two units can't be told
/// apart.
fn solve(points: &[Point], chosen: &[usize]) -> Option<Vec<f64>> {
    let n = chosen.len();
    // Each unit in its own scale, or calls and bytes would differ by a million.
    let scale: Vec<f64> = chosen
        .iter()
        .map(|&unit| points.iter().map(|point| point.units[unit]).fold(0.0, f64::max).max(f64::MIN_POSITIVE))
        .collect();
    let mut rows = vec![vec![0.0; n + 1]; n];
    for point in points {
        let weight = 1.0 / point.whole.max(1e-9).powi(2);
        let x: Vec<f64> = chosen.iter().zip(&scale).map(|(&unit, scale)| point.units[unit] / scale).collect();
        for (row, xi) in rows.iter_mut().zip(&x) {
            for (cell, xj) in row.iter_mut().zip(&x) {
                *cell += weight * xi * xj;
            }
            row[n] += weight * xi * point.ns;
        }
    }
    let sizes: Vec<f64> = (0..n).map(|i| rows[i][i]).collect();
    for i in 0..n {
        if rows[i][i] <= 1e-9 * sizes[i] || rows[i][i] <= 0.0 {
            return None;
        }
        let pivot = rows[i].clone();
        for (j, row) in rows.iter_mut().enumerate() {
            if j != i {
                let factor = row[i] / pivot[i];
                row.iter_mut().zip(&pivot).for_each(|(cell, pivot)| *cell -= factor * pivot);
            }
        }
    }
    Some((0..n).map(|i| rows[i][n] / rows[i][i] / scale[i]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(units: &[f64], costs: &[f64]) -> Point {
        let ns = units.iter().zip(costs).map(|(count, ns)| count * ns).sum();
        Point { units: units.to_vec(), ns, whole: ns }
    }

    fn near(found: &[f64], expected: &[f64]) {
        for (a, b) in found.iter().zip(expected) {
            assert!((a - b).abs() <= 1e-6 * b.abs().max(1e-3), "{found:?} {expected:?}");
        }
    }

    #[test]
    fn costs_for_calls_packets_and_bytes_are_found_again() {
        let costs = [1500.0, 40.0, 0.05];
        let sizes = [[1.0, 48.0, 65_000.0], [1.0, 64.0, 40_000.0], [1.0, 6.0, 8000.0], [1.0, 2.0, 2700.0]];
        let points: Vec<Point> = sizes.iter().map(|units| point(units, &costs)).collect();
        near(&fit(&points), &costs);
    }

    #[test]
    fn no_cost_is_negative_and_what_cannot_be_told_apart_is_not_split() {
        // More bytes, less time: the bytes cost nothing.
        let falling = [(1.0, 100.0, 20.0), (1.0, 1000.0, 10.0), (1.0, 2000.0, 10.0)];
        let falling: Vec<Point> =
            falling.iter().map(|&(c, b, ns)| Point { units: vec![c, b], ns, whole: ns }).collect();
        let found = fit(&falling);
        assert!(found[0] > 9.0 && found[0] < 21.0 && found[1] == 0.0, "{found:?}");
        // Packets and bytes in one proportion.
        let same: Vec<Point> =
            [10.0, 20.0, 40.0].iter().map(|&n| point(&[n, 100.0 * n], &[50.0, 0.0])).collect();
        let found = fit(&same);
        assert!((found[0] * 10.0 + found[1] * 1000.0 - 500.0).abs() < 1e-3, "{found:?}");
        assert!(found.iter().filter(|ns| **ns > 0.0).count() == 1, "{found:?}");
        assert!(fit(&[]).is_empty());
    }

    #[test]
    fn what_a_cipher_costs_is_beyond_the_same_stage_without_one() {
        let raw = crate::experiment::model::made_up::raw();
        let (costs, _) = fit_all(&raw).unwrap();
        let seal = costs.iter().find(|cost| cost.stage == "seal").unwrap();
        near(&seal.terms.iter().map(|(_, ns)| *ns).collect::<Vec<_>>(), &[100.0, 0.2]);
        let read = costs.iter().find(|cost| cost.stage == "TUN read").unwrap();
        near(&read.terms.iter().map(|(_, ns)| *ns).collect::<Vec<_>>(), &[1000.0, 0.1]);
        assert!(read.spread < 1e-6 && read.worst < 1e-6 && read.sizes >= LEAST_SIZES, "{read:?}");
    }

    #[test]
    fn two_sizes_are_too_few_and_so_are_runs_with_ciphers_alone() {
        let mut raw = crate::experiment::model::made_up::raw();
        let whole = raw.clone();
        raw.live.retain(|live| live.packet == 1408 && live.pieces >= 16);
        assert!(fit_all(&raw).map(|_| ()).unwrap_err().to_string().contains("sizes"));
        raw = whole;
        raw.live.retain(|live| live.suite != "none");
        assert!(fit_all(&raw).map(|_| ()).unwrap_err().to_string().contains("without a cipher"));
    }
}
