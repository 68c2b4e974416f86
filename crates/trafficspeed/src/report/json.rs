//! The whole campaign as JSON. Where a field means what iperf3 means by it, it has iperf3's name
//! and place: `start.test_start.{protocol,num_streams,omit,duration}`, `intervals`,
//! `end.{streams,sum_sent,sum_received, cpu_utilization_percent}`, `bits_per_second`, `bytes`,
//! `seconds`.

use serde_json::{Value, json};

use super::published;
use crate::experiment::environment::Environment;
use crate::experiment::outcome::{Campaign, Interval, Pair, Run, Settings, StreamResult, rate};

/// The version of this report's layout.
const FORMAT: u32 = 3;

/// A campaign as one JSON value.
pub fn json(campaign: &Campaign) -> Value {
    json!({
        "format": FORMAT,
        "experiment": "traffic",
        "start": start_json(&campaign.settings, &campaign.environment),
        "definitions": {
            "communication_bits_per_second":
                "bits received plus bits sent by all measuring hosts, per second (TrafficSpeed, 2006)",
            "goodput_bits_per_second": "bits received by all measuring hosts, per second",
            "gbit_per_gateway_cpu_second":
                "Gbit of goodput that went through the tunnel, per CPU second of the gateway's VPN processes",
            "vpn_cpu_seconds_per_gbit":
                "CPU seconds of all VPN processes, gateway's and clients', per Gbit of goodput through the tunnel",
            "ratio_to_first": "a quantity of a system divided by that of another in the same round and case: median, \
                lowest and highest of the rounds",
            "interrupted": "of a run: the user ended it before it was complete, so it is unfinished and has not failed",
            "host_foreign": "share of the machine's CPU time used by processes without a part in the measurement",
            "carried": "per client, what its tunnel device and the link below it counted beside the payload, \
                from before the first connection until the last was drained",
        },
        "settings": campaign.settings,
        "environment": campaign.environment,
        "interrupted": campaign.interrupted,
        "baseline": campaign.baseline,
        "observed": observed_json(campaign),
        "runs": campaign.runs.iter().map(run_json).collect::<Vec<_>>(),
        "published": { "source": published::SOURCE, "findings": published::FINDINGS },
    })
}

/// The measurement and the machine, as iperf3 begins.
pub(super) fn start_json(settings: &Settings, environment: &Environment) -> Value {
    json!({
        "version": environment.host.program,
        "system_info": environment.host.system,
        "timestamp": { "time": environment.started },
        "test_start": {
            "protocol": "TCP",
            "num_streams": settings.streams,
            "omit": settings.warmup_seconds,
            "duration": settings.seconds,
            "blksize": settings.write_bytes,
            "bidir": 1,
        },
    })
}

/// The medians, and what systems differ in.
pub(super) fn observed_json(campaign: &Campaign) -> Value {
    let table = campaign.observations();
    json!({ "summary": table.summaries(), "comparison": campaign.comparisons(&table).concat() })
}

pub(super) fn run_json(run: &Run) -> Value {
    let seconds = run.seconds();
    let (gateway_cost, cost) = run.seconds_per_gbit().unzip();
    json!({
        "system": run.label,
        "subject": run.subject,
        "clients": run.clients,
        "repeat": run.repeat,
        "attempt": run.attempt,
        "disturbance": run.disturbance,
        "timestamp": { "time": run.started },
        "facts": run.facts,
        "programs": run.programs,
        "whole": run.is_whole(),
        "interrupted": run.interrupted,
        "problems": run.problems(),
        "communication_bits_per_second": run.communication(),
        "goodput_bits_per_second": run.goodput(),
        "jain_streams": run.stream_fairness(),
        "jain_pairs": run.pair_fairness(),
        "gbit_per_gateway_cpu_second": run.gbit_per_gateway_second(),
        "gateway_cpu_seconds_per_gbit": gateway_cost,
        "vpn_cpu_seconds_per_gbit": cost,
        "cpu_seconds": run.cpu,
        "carried": run.carried,
        "intervals": run.intervals.iter().zip(0_u32..).map(interval_json).collect::<Vec<_>>(),
        "pairs": run.pairs.iter().map(pair_json).collect::<Vec<_>>(),
        "end": {
            "sum_sent": sum(run.sent(), seconds, true),
            "sum_received": sum(run.received(), seconds, false),
            "cpu_utilization_percent": {
                "host_total": run.busy_percent(),
                "host_steal": run.steal_percent(),
                "host_foreign": run.foreign_percent(),
            },
        },
    })
}

pub(super) fn interval_json((interval, number): (&Interval, u32)) -> Value {
    json!({
        "start": number,
        "end": number + 1,
        "hosts": interval.hosts,
        "sum_received": { "bytes": interval.received, "bits_per_second": rate(interval.received, 1.0) },
        "sum_sent": { "bytes": interval.sent, "bits_per_second": rate(interval.sent, 1.0) },
    })
}

fn pair_json(pair: &Pair) -> Value {
    json!({
        "listener": pair.ends[0],
        "connector": pair.ends[1],
        "error": pair.error,
        "faults": pair.faults(),
        "communication_bits_per_second": pair.communication(),
        "goodput_bits_per_second": pair.goodput(),
        "streams": pair.streams().iter().map(stream_json).collect::<Vec<_>>(),
    })
}

fn stream_json(stream: &StreamResult) -> Value {
    json!({
        "stream": stream.index,
        "from_connector": stream.forward,
        "sender": { "bytes": stream.sent },
        "receiver": { "bytes": stream.received, "bits_per_second": stream.bits_per_second },
    })
}

fn sum(bytes: u64, seconds: f64, sender: bool) -> Value {
    json!({
        "start": 0,
        "end": seconds,
        "seconds": seconds,
        "bytes": bytes,
        "bits_per_second": rate(bytes, seconds),
        "sender": sender,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::samples;

    #[test]
    fn fields_have_iperf3s_names_and_our_own_say_their_definition() {
        let value = json(&samples::campaign());
        assert_eq!(value["start"]["test_start"]["num_streams"], 2);
        let run = &value["runs"][0];
        let received = &run["end"]["sum_received"];
        assert_eq!(received["bytes"], 2_020_000_000_u64);
        assert!((received["bits_per_second"].as_f64().unwrap() - 8.08e9).abs() < 1.0);
        assert!((run["communication_bits_per_second"].as_f64().unwrap() - 16.16e9).abs() < 1.0);
        assert_eq!(run["pairs"][0]["streams"].as_array().unwrap().len(), 2);
        assert_eq!(run["subject"]["cipher"], "aes-256-gcm");
        assert_eq!(run["carried"][1]["client"], "c2");
        assert_eq!(run["carried"][1]["tunnel"]["sent"]["dropped"], 0);
        assert!(value["definitions"]["goodput_bits_per_second"].is_string());
        let summary = value["observed"]["summary"].as_array().unwrap();
        let goodputs = summary.iter().filter(|one| one["quantity"] == "goodput");
        assert_eq!(goodputs.count(), 6, "two systems with three numbers of clients");
        assert_eq!(value["runs"][18]["whole"], false);
        assert_eq!(value["runs"][18]["interrupted"], false, "it failed by itself");
        let mut broken_off = samples::campaign();
        broken_off.runs[18].interrupted = true;
        assert_eq!(json(&broken_off)["runs"][18]["interrupted"], true);
    }

    #[test]
    fn the_value_survives_writing_and_reading() {
        let value = json(&samples::campaign());
        let text = serde_json::to_string(&value).unwrap();
        assert!(!text.contains("null,null"), "no field is a number that JSON cannot hold");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["format"], 3);
    }
}
