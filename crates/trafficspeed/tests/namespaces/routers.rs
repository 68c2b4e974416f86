//! Hosts behind the ends of the tunnel, which are routers then.
//!
//! ```text
//!   h1 ── client 1 ══ gateway ── h0            or   h1 ── client 1 ══ gateway ══ client 2 ── h2
//! ```

use rustix::process::Signal;
use serde_json::Value;

use super::vpn::real_vpnd;
use super::{agents_of, can_run, measured, namespaces_of, number, run, signal, start, wait_until};

/// The namespace of a process, as one can compare it.
fn namespace_of(path: &str) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).ok().map(|meta| meta.ino())
}

#[test]
fn hosts_behind_routers_measure_vpnd_and_plain_routing_over_both_ip_versions() {
    if !can_run() {
        return;
    }
    let Some(program) = real_vpnd() else { return };
    let report = measured(&format!(
        "suite ipsec --quick --repeat 1 --no-control -t 1 -O 0.1 --part stream,transaction --no-sweep \
         --cipher aes-256-gcm --hogs 1 --topology routers --vpnd {} -J",
        program.display()
    ));
    assert_eq!(report["problems"].as_array().map(Vec::len), Some(0), "{report:#}");
    assert_eq!(report["environment"]["topology"], "routers");
    let rows = report["rows"].as_array().expect("rows");
    for (label, ip) in [("plain routing", 4), ("plain routing", 6), ("aes-256-gcm", 4), ("aes-256-gcm", 6)] {
        let selected: Vec<&Value> =
            rows.iter().filter(|row| row["label"] == label && row["case"]["ip"] == ip).collect();
        assert!(selected.len() > 3, "{label} over IPv{ip}: {report:#}");
        for row in selected {
            assert!(number(&row["figures"]["received_bits_per_second"]) > 0.0, "{row:#}");
        }
    }
    // Each place has its own CPU time, the VPN's at both routers and the generators' at both
    // hosts. One stream may take less than the kernel counts.
    let streams = |label: &str| {
        let selected =
            rows.iter().filter(|row| row["label"] == label && row["case"]["section"] == "TCP stream");
        selected
            .map(|row| {
                let cpu = &row["cpu"];
                let ends = &cpu["generator_ends"];
                [&cpu["clients"], &cpu["gateway"], &ends[0], &ends[1]].map(number)
            })
            .fold([0.0; 4], |sum, row| std::array::from_fn(|at| sum[at] + row[at]))
    };
    let places = streams("aes-256-gcm");
    assert!(places.iter().all(|seconds| *seconds > 0.0), "{places:?}");
    let plain = streams("plain routing");
    assert_eq!(plain[..2], [0.0, 0.0], "kernels forward");
    assert!(plain[2] > 0.0 && plain[3] > 0.0, "{plain:?}");
}

#[test]
fn each_end_has_a_namespace_of_its_own_also_behind_a_second_client() {
    if !can_run() {
        return;
    }
    for (to, hosts) in [("gateway", ["h1", "h0"]), ("client", ["h1", "h2"])] {
        let line = format!("stream --vpn none --no-control --topology routers --to {to} --repeat 1 -t 60 -J");
        let child = start(&line);
        let pid = child.id();
        wait_until("the agents are there", || agents_of(pid).len() == 2);
        let expected = hosts.map(|host| namespace_of(&format!("/run/netns/ts{pid}{host}")));
        wait_until("they are on the hosts", || {
            let mut places: Vec<_> =
                agents_of(pid).iter().map(|agent| namespace_of(&format!("/proc/{agent}/ns/net"))).collect();
            let mut expected = expected.to_vec();
            places.sort();
            expected.sort();
            places == expected && places.iter().all(Option::is_some)
        });
        signal(&child, Signal::INT);
        child.wait_with_output().expect("it ends");
        assert_eq!(namespaces_of(pid), [""; 0], "and nothing is left");
    }
    let report =
        measured("stream --vpn none --no-control --topology routers --to client --repeat 1 -t 0.5 -O 0 -J");
    assert!(number(&report["runs"][0]["figures"][0]["received_bits_per_second"]) > 1e6, "{report:#}");
}

#[test]
fn a_comparison_that_began_without_routers_is_not_continued_with_them() {
    if !can_run() {
        return;
    }
    let out = tempfile::tempdir().expect("a directory");
    let line = "compare --clients 2 --vpn none --no-control --repeat 1 -P 2 -t 0.3 -O 0 --max-steal 100 --max-foreign 100";
    let first = run(&format!("{line} --out {}", out.path().display()));
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let other = run(&format!("{line} --topology routers --resume {}", out.path().display()));
    let said = String::from_utf8_lossy(&other.stderr);
    assert!(!other.status.success() && said.contains("links is not what it was"), "{said}");
}

#[test]
fn each_client_measures_with_a_partner_in_the_segment_behind_the_gateway() {
    if !can_run() {
        return;
    }
    let Some(program) = real_vpnd() else { return };
    let report = measured(&format!(
        "--clients 4 --to gateway --topology routers --vpn vpnd,none -P 2 -t 0.5 -O 0 --vpnd {} -J",
        program.display()
    ));
    assert_eq!((&report["settings"]["far"], &report["whole"]), (&"gateway".into(), &true.into()));
    for run in report["runs"].as_array().expect("runs") {
        let pairs = run["pairs"].as_array().expect("pairs");
        let ends: Vec<_> =
            pairs.iter().map(|pair| (&pair["ends"][0]["name"], &pair["ends"][1]["name"])).collect();
        let names = [1, 2, 3, 4].map(|number| (format!("g{number}"), format!("c{number}")));
        assert!(
            ends.iter().zip(&names).all(|((far, near), name)| **far == name.0 && **near == name.1),
            "{ends:?}"
        );
        assert_eq!(ends.len(), names.len());
        // Each client's own tunnel has carried both ways; a run past it would be no result.
        for client in run["carried"].as_array().expect("an account of each client") {
            assert!(
                number(&client["payload_sent"]) > 0.0 && number(&client["payload_received"]) > 0.0,
                "{client:#}"
            );
        }
    }
}
