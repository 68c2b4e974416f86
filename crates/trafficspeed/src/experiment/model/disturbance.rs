//! Clocks around system calls slow down what they time: by how much, and the stages without that.
//!
//! Each stream is carried with the clocks and without them. Without them only the CPU time of a
//! whole end is known, which is what the stages of that end must sum to, so their times are scaled
//! to it.

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::stages::{Live, LiveEnd};
use crate::stats::median;

/// CPU time for each byte with the clocks by that without, the median over all streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Disturbance {
    pub client: f64,
    pub gateway: f64,
}

/// The streams with clocks, their times as they would have been without, and the disturbance.
///
/// # Errors
/// If a stream was not carried without clocks.
pub fn undisturbed(live: &[Live]) -> anyhow::Result<(Vec<Live>, Disturbance)> {
    let mut factors: [Vec<f64>; 2] = Default::default();
    let mut scaled = Vec::new();
    for run in live.iter().filter(|run| run.clocked) {
        let alike = |clocked: bool| {
            let load = |run: &Live| (run.suite.clone(), run.packet, run.pieces, run.streams);
            live.iter().filter(move |other| other.clocked == clocked && load(other) == load(run))
        };
        let mean_of = |cost: fn(&Live) -> f64| {
            let of_all = |clocked| median(&alike(clocked).map(cost).collect::<Vec<_>>());
            let with = of_all(true).filter(|ns| *ns > 0.0)?;
            Some(of_all(false)? / with)
        };
        let without = || format!("a stream of {}-byte packets was not carried without clocks", run.packet);
        let client =
            mean_of(|run| run.client.cpu_ns / run.client_payload().max(1.0)).with_context(without)?;
        let gateway =
            mean_of(|run| run.gateway.cpu_ns / run.gateway_payload().max(1.0)).with_context(without)?;
        factors[0].push(client.recip());
        factors[1].push(gateway.recip());
        let (client, gateway) = (scale(&run.client, client), scale(&run.gateway, gateway));
        scaled.push(Live { client, gateway, ..run.clone() });
    }
    let [client, gateway] = factors.map(|all| median(&all).unwrap_or(1.0));
    Ok((scaled, Disturbance { client, gateway }))
}

fn scale(end: &LiveEnd, factor: f64) -> LiveEnd {
    let mut end = end.clone();
    end.cpu_ns *= factor;
    end.transmit_ns *= factor;
    end.deliver_ns *= factor;
    for calls in [&mut end.read, &mut end.send, &mut end.receive, &mut end.write] {
        calls.work.ns *= factor;
        calls.empty.ns *= factor;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::model::made_up;

    #[test]
    fn stages_sum_to_what_an_end_takes_without_clocks() {
        let mut live = made_up::raw().live;
        // With clocks a client takes a quarter more, a gateway as much as without.
        for run in live.iter_mut().filter(|run| run.clocked) {
            run.client = scale(&run.client, 1.25);
        }
        let (scaled, found) = undisturbed(&live).unwrap();
        assert!((found.client - 1.25).abs() < 1e-9 && (found.gateway - 1.0).abs() < 1e-9, "{found:?}");
        let plain: Vec<&Live> = live.iter().filter(|run| !run.clocked).collect();
        assert_eq!(scaled.len(), plain.len());
        for (scaled, plain) in scaled.iter().zip(plain) {
            assert!((scaled.client.cpu_ns / plain.client.cpu_ns - 1.0).abs() < 1e-9);
            assert!((scaled.client.read.work.ns / plain.client.read.work.ns - 1.0).abs() < 1e-9);
            assert!((scaled.gateway.deliver_ns / plain.gateway.deliver_ns - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn without_a_run_without_clocks_nothing_is_known() {
        let mut live = made_up::raw().live;
        live.retain(|run| run.clocked);
        assert!(undisturbed(&live).unwrap_err().to_string().contains("without clocks"));
    }
}
