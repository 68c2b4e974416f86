//! Behaviour: `vpnd doctor` finds a machine that is as it should be good, and each fault that was
//! planted, with what to do.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value as Json;

use crate::gateway::{Gateway, strings};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, UPLINK, eventually};
use crate::names::{NAME, PROVIDERS, PUSHED, name_server};
use crate::process;
use crate::traffic::ping_until;

/// The port of `vpnd init`.
const PORT: u16 = 4433;

/// One line of the report.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) check: String,
    pub(crate) verdict: String,
    pub(crate) found: String,
    pub(crate) advice: String,
}

/// `vpnd doctor --json`: whether it ended well, and its findings.
pub(crate) fn examine(gateway: &Gateway<'_>) -> (bool, Vec<Finding>) {
    let mut command = gateway.vpnd(&["doctor", "--json", "--config"]);
    command.arg(gateway.config());
    let output = process::run(command);
    let findings: Vec<Json> = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", process::text(&output)));
    let text = |finding: &Json, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let rows = findings.iter().map(|finding| Finding {
        check: text(finding, "check"),
        verdict: text(finding, "verdict"),
        found: text(finding, "found"),
        advice: text(finding, "advice"),
    });
    (output.status.success(), rows.collect())
}

/// A gateway with a name that its machine can look up, and a campus name server.
fn sound(lab: &Lab) -> (process::Process, process::Process, Gateway<'_>) {
    let providers = name_server(lab, &lab.net, PROVIDERS, &GATEWAY_V4.to_string());
    let pushed = name_server(lab, &lab.campus, PUSHED, "192.0.2.1");
    fs::write(process::etc(lab, &lab.gateway).join("resolv.conf"), format!("nameserver {PROVIDERS}\n"))
        .expect("it is ours");
    let gateway = Gateway::init_elsewhere(lab, "gateway", &lab.gateway, &[NAME]);
    gateway.configure("push.routes", strings(&["10.200.0.0/24", "fd20::/64"]));
    gateway.configure("push.dns", strings(&[PUSHED]));
    gateway.add_user("ann");
    (providers, pushed, gateway)
}

/// Findings that are not good, but for those about the machine that runs the test.
fn faults(findings: Vec<Finding>) -> Vec<Finding> {
    let of_this_machine =
        ["clock", "kernel.tun", "kernel.udp", "kernel.buffers", "kernel.batches", "disk", "memory"];
    let is_fault =
        |finding: &Finding| finding.verdict != "good" && !of_this_machine.contains(&finding.check.as_str());
    findings.into_iter().filter(is_fault).collect()
}

#[test]
fn nothing_is_wrong_with_a_gateway_that_runs_well() {
    let Some(lab) = Lab::new(0) else { return };
    let (_providers, _pushed, mut gateway) = sound(&lab);
    gateway.start();
    ping_until(&lab.gateway, CAMPUS_V4.into(), Duration::from_secs(5));
    let before = lab.gateway.ip(&["link", "show"]);
    let (good, findings) = examine(&gateway);
    assert!(good, "{findings:#?}");
    let checks = [
        "gateway",
        "gateway.protections",
        "gateway.receive_queue",
        "network.port",
        "network.mtu",
        "network.forwarding",
        "names",
        "push.dns",
        "firewall.own",
        "firewall",
        "kernel.connections",
    ];
    for check in checks {
        assert!(
            findings.iter().any(|finding| finding.check == check && finding.verdict == "good"),
            "{check}: {findings:#?}"
        );
    }
    let faults = faults(findings);
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(lab.gateway.ip(&["link", "show"]), before, "and looking has left nothing behind");
}

#[test]
fn switched_off_forwarding_is_reported() {
    let Some(lab) = Lab::new(0) else { return };
    let (_providers, _pushed, mut gateway) = sound(&lab);
    gateway.start();
    // It would switch it on again.
    gateway.process().signal(Signal::STOP);
    lab.gateway.sysctl("net/ipv4/ip_forward", "0");
    let (good, findings) = examine(&gateway);
    let faults = faults(findings);
    assert!(!good && faults.len() == 1, "{faults:#?}");
    assert_eq!((faults[0].check.as_str(), faults[0].verdict.as_str()), ("network.forwarding", "problem"));
}

#[test]
fn a_removed_or_changed_firewall_is_a_problem() {
    let Some(lab) = Lab::new(0) else { return };
    let (_providers, _pushed, mut gateway) = sound(&lab);
    gateway.start();
    eventually("the worker knows the firewall", Duration::from_secs(60), || {
        gateway.status()["firewall"]["rules"].is_string().then_some(())
    });
    // It would put the table back.
    gateway.process().signal(Signal::STOP);
    for (script, found) in [
        ("insert rule inet vpnd_vpnd0 forward accept\n", "is not as the gateway has applied it"),
        ("flush ruleset\n", "is missing"),
    ] {
        lab.gateway.nft(script);
        let (good, findings) = examine(&gateway);
        let faults = faults(findings);
        assert!(!good && faults.len() == 1, "{faults:#?}");
        assert_eq!((faults[0].check.as_str(), faults[0].verdict.as_str()), ("firewall.own", "problem"));
        assert!(faults[0].found.contains(found), "{faults:#?}");
    }
    gateway.process().signal(Signal::CONT);
    eventually("it is put back, which stays a warning", Duration::from_secs(60), || {
        let faults = faults(examine(&gateway).1);
        let verdicts: Vec<_> =
            faults.iter().map(|fault| (fault.check.as_str(), fault.verdict.as_str())).collect();
        (verdicts == [("firewall.own", "warning")]).then_some(())
    });
}

#[test]
fn ten_faults_are_found_each_with_its_next_step() {
    let Some(lab) = Lab::new(0) else { return };
    let (_providers, _pushed, gateway) = sound(&lab);
    // 1 to 3: another firewall in both places, and another program on the port.
    lab.gateway.nft(
        "table ip docker {\n\
         chain FORWARD {\n type filter hook forward priority 0; policy drop;\n }\n\
         chain INPUT {\n type filter hook input priority 0; policy drop;\n udp sport 53 accept\n tcp dport 22 accept\n }\n\
         }\n",
    );
    let _taken = lab.gateway.within(|| UdpSocket::bind(("0.0.0.0", PORT))).unwrap();
    // 4 to 9: configuration.
    gateway.configure("nat.outgoing_interface", "eth7");
    gateway.configure("tunnel.pool_v4", "10.86.0.0/28");
    gateway.configure("push.dns", strings(&["10.200.0.9"]));
    // 12: a name server of one profile alone.
    crate::gateway::edit_toml(&gateway.config(), |table| {
        let profile = "name = 'lab'\ngroups = 'lab'\ndns = '10.200.0.8'".parse::<toml::Table>().unwrap();
        let all = "name = 'all'".parse::<toml::Table>().unwrap();
        table.insert("profile".to_owned(), toml::Value::Array(vec![profile.into(), all.into()]));
    });
    let key = gateway.file("server-key.pem");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    crate::gateway::edit_toml(&gateway.config(), |table| {
        let rule = "action = 'allow'\nfrom = 'group:admns'\nto = 'clients'".parse::<toml::Table>().unwrap();
        let policy = table.entry("policy").or_insert_with(|| toml::Table::new().into());
        policy.as_table_mut().unwrap().insert("rules".to_owned(), toml::Value::Array(vec![rule.into()]));
    });
    // 10: the name of the gateway means another machine; and 11: a narrow interface.
    fs::write(process::etc(&lab, &lab.gateway).join("hosts"), format!("198.18.0.77 {NAME}\n")).unwrap();
    lab.gateway.ip(&["link", "set", UPLINK, "mtu", "1400"]);
    let (good, findings) = examine(&gateway);
    assert!(!good);
    let faults = faults(findings);
    let planted = [
        ("firewall", "problem", "by the chain ip docker FORWARD"),
        ("firewall", "problem", "by the chain ip docker INPUT"),
        ("network.port", "problem", "taken"),
        ("configuration", "warning", "no interface eth7"),
        ("pools", "warning", "13 addresses"),
        ("push.dns", "problem", "10.200.0.9"),
        ("push.dns", "problem", "10.200.0.8"),
        ("configuration", "problem", "others can use"),
        ("configuration", "warning", "no user is in the group 'admns'"),
        ("names", "warning", "198.18.0.77"),
        ("network.mtu", "warning", "carries 1400 bytes"),
        ("gateway", "warning", "no gateway runs"),
    ];
    for (check, verdict, text) in planted {
        let is_it = |finding: &&Finding| {
            finding.check == check && finding.verdict == verdict && finding.found.contains(text)
        };
        let found = faults.iter().find(is_it).unwrap_or_else(|| panic!("{check} {text}: {faults:#?}"));
        assert!(!found.advice.is_empty(), "{found:?}");
    }
    assert_eq!(faults.len(), planted.len(), "and nothing else: {faults:#?}");
}
