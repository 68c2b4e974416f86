//! The whole campaign as JSON. Where a field means what iperf3 means by it, it has iperf3's name and place:
//! `start.test_start.{protocol,num_streams,omit,duration}`, `intervals`, `end.{streams,sum_sent,sum_received,
//! cpu_utilization_percent}`, `bits_per_second`, `bytes`, `seconds`.

use serde_json::{Value, json};

use super::published;
use super::summary::summarise;
use crate::experiment::outcome::{Campaign, Interval, Pair, Run, StreamResult, rate};

/// The version of this report's layout.
const FORMAT: u32 = 1;

/// A campaign as one JSON value.
pub fn json(campaign: &Campaign) -> Value {
    let settings = &campaign.settings;
    json!({
        "format": FORMAT,
        "experiment": "traffic",
        "start": {
            "version": campaign.environment.host.program,
            "system_info": campaign.environment.host.system,
            "timestamp": { "time": campaign.environment.started },
            "test_start": {
                "protocol": "TCP",
                "num_streams": settings.streams,
                "omit": settings.warmup_seconds,
                "duration": settings.seconds,
                "blksize": settings.write_bytes,
                "bidir": 1,
            },
        },
        "definitions": {
            "communication_bits_per_second":
                "bits received plus bits sent by all measuring hosts, per second (TrafficSpeed, 2006)",
            "goodput_bits_per_second": "bits received by all measuring hosts, per second",
            "gbit_per_gateway_cpu_second":
                "Gbit of goodput that went through the tunnel, per CPU second of the gateway's VPN processes",
            "carried": "per client, what its tunnel device and the link below it counted beside the payload, \
                from before the first connection until the last was drained",
        },
        "settings": settings,
        "environment": campaign.environment,
        "interrupted": campaign.interrupted,
        "summary": summarise(campaign),
        "runs": campaign.runs.iter().map(run_json).collect::<Vec<_>>(),
        "published": { "source": published::SOURCE, "findings": published::FINDINGS },
    })
}

fn run_json(run: &Run) -> Value {
    let seconds = run.seconds();
    json!({
        "system": run.label,
        "subject": run.subject,
        "clients": run.clients,
        "repeat": run.repeat,
        "timestamp": { "time": run.started },
        "facts": run.facts,
        "whole": run.is_whole(),
        "problems": run.problems(),
        "communication_bits_per_second": run.communication(),
        "goodput_bits_per_second": run.goodput(),
        "jain_streams": run.stream_fairness(),
        "jain_pairs": run.pair_fairness(),
        "gbit_per_gateway_cpu_second": run.gbit_per_gateway_second(),
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
            },
        },
    })
}

fn interval_json((interval, number): (&Interval, u32)) -> Value {
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
        assert_eq!(value["summary"].as_array().unwrap().len(), 6);
        assert_eq!(value["runs"][18]["whole"], false);
    }

    #[test]
    fn the_value_survives_writing_and_reading() {
        let value = json(&samples::campaign());
        let text = serde_json::to_string(&value).unwrap();
        assert!(!text.contains("null,null"), "no field is a number that JSON cannot hold");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["format"], 1);
    }
}
