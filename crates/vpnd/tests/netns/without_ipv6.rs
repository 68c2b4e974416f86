//! Behaviour: a machine on which IPv6 is switched off goes on with IPv4 and logs that, at either
//! end.

use std::time::Duration;

use crate::client::{Client, TUN};
use crate::full::{in_clear, ordinary, speak, watch};
use crate::gateway::Gateway;
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::namespace::Namespace;
use crate::process;
use crate::renewal::remove_rules;
use crate::traffic::ping_until;

const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn switch_off(namespace: &Namespace) {
    for which in ["default", "all"] {
        namespace.sysctl(&format!("net/ipv6/conf/{which}/disable_ipv6"), "1");
    }
}

#[test]
fn a_gateway_works_without_ipv6() {
    let Some(lab) = Lab::new(1) else { return };
    switch_off(&lab.gateway);
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    let checked = gateway.check();
    let text = process::text(&checked);
    assert!(checked.status.success() && text.contains("warning: IPv6 is switched off"), "{text}");

    gateway.start();
    assert!(gateway.process().output().contains("uses IPv4 only"), "it says so");
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    assert!(one.addresses().iter().all(|address| address.is_ipv4()), "{:?}", one.addresses());
    // The configuration that was read again is the same.
    let reload = gateway.ask(&["reload"]);
    assert!(reload.status.success(), "{}", process::text(&reload));
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
}

#[test]
fn a_client_works_without_ipv6() {
    let Some(lab) = Lab::new(1) else { return };
    switch_off(&lab.clients[0]);
    let (_gateway, mut one) = Client::alone(&lab);
    assert!(one.addresses().iter().all(|address| address.is_ipv4()), "{:?}", one.addresses());
    assert!(one.process().output().contains("IPv6 is switched off"), "{}", one.process().output());
    one.interrupt();
}

/// People switch IPv6 off against leaks of it; IPv4 must not leak then.
#[test]
fn a_full_tunnel_heals_when_ipv6_was_switched_off_meanwhile() {
    let Some(lab) = Lab::new(1) else { return };
    let (_providers, _gateway, ann) = ordinary(&lab);
    let mut client = Client::connect(&lab, 1, &ann);
    let machine = client.namespace();
    ping_until(machine, CAMPUS_V4.into(), 10 * SECOND);
    switch_off(machine);
    for _ in 0..2 {
        remove_rules(machine, "-4");
        eventually("the rules are put back", 10 * SECOND, || {
            machine.ip(&["route", "get", "8.8.8.8"]).contains(&format!("dev {TUN} ")).then_some(())
        });
    }
    watch(&lab);
    speak(machine);
    ping_until(machine, CAMPUS_V4.into(), 10 * SECOND);
    assert_eq!(in_clear(&lab), 0);
    client.interrupt();
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(machine, CAMPUS_V4.into(), 10 * SECOND);
    speak(machine);
    assert_eq!(in_clear(&lab), 0, "one that begins so, too");
    client.interrupt();
    speak(machine);
    assert!(in_clear(&lab) > 0, "without the tunnel it is a leak");
}
