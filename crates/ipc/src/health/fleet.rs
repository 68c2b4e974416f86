//! Findings about the gateways of a fleet, by their last reports.

use std::net::IpAddr;

use super::Finding;
use crate::admin::status::FleetGateway;

/// All of them; `addresses` are those that clients are given, as far as they need no lookup.
pub fn findings(gateways: &[FleetGateway], addresses: &[IpAddr]) -> Vec<Finding> {
    let mut findings = vec![alive(gateways)];
    findings.extend(alone(gateways));
    findings.extend(versions(gateways));
    findings.extend(clashes(gateways));
    findings.extend(reach(gateways, addresses));
    findings
}

fn named<'g>(gateways: impl Iterator<Item = &'g FleetGateway>) -> Vec<&'g str> {
    gateways.map(|gateway| gateway.name.as_str()).collect()
}

fn alive(gateways: &[FleetGateway]) -> Finding {
    const CHECK: &str = "fleet.gateways";
    let silent = named(gateways.iter().filter(|gateway| !gateway.alive));
    if silent.is_empty() {
        return Finding::good(CHECK, format!("{} gateways, all of them report", gateways.len()));
    }
    let found =
        format!("{} of {} gateways don't report: {}", silent.len(), gateways.len(), silent.join(", "));
    let advice = "look at each: does it run, does it reach the database? One that is gone for good blocks \
                  addresses: docs/FLEET.md, 'Who has a session'";
    Finding::warning(CHECK, found, advice)
}

/// Whether no other gateway would take this one's clients.
fn alone(gateways: &[FleetGateway]) -> Option<Finding> {
    let could = |gateway: &&FleetGateway| !gateway.here && gateway.alive && !gateway.draining;
    let advice = "start another one, or end its drain: vpnd drain --cancel";
    gateways
        .iter()
        .all(|gateway| !could(&gateway))
        .then(|| Finding::warning("fleet.alone", "no other gateway could take this one's clients", advice))
}

fn versions(gateways: &[FleetGateway]) -> Option<Finding> {
    let ours = &gateways.iter().find(|gateway| gateway.here)?.version;
    let others: Vec<String> = gateways
        .iter()
        .filter(|gateway| gateway.alive && gateway.version != *ours)
        .map(|gateway| format!("{} has {}", gateway.name, gateway.version))
        .collect();
    (!others.is_empty()).then(|| {
        let found = format!("this gateway has version {ours}, {}", others.join(", "));
        Finding::warning("fleet.versions", found, "upgrade one after the other: docs/FLEET.md, 'Upgrade'")
    })
}

/// Addresses that several machines have at once.
fn clashes(gateways: &[FleetGateway]) -> Vec<Finding> {
    let alive: Vec<_> = gateways.iter().filter(|gateway| gateway.alive).collect();
    let mut addresses: Vec<IpAddr> = alive.iter().flat_map(|gateway| gateway.addresses.clone()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let holders =
        |address: IpAddr| named(alive.iter().copied().filter(|gateway| gateway.addresses.contains(&address)));
    let shared =
        addresses.into_iter().map(|address| (address, holders(address))).filter(|(_, who)| who.len() > 1);
    let finding = |(address, who): (IpAddr, Vec<&str>)| {
        let found = format!("{} have the address {address} at the same time", who.join(" and "));
        let advice =
            "take it off all but one; with VRRP, see whether they receive each other's advertisements";
        Finding::problem("fleet.addresses", found, advice)
    };
    shared.map(finding).collect()
}

/// Addresses that lead to no gateway, and gateways to which none leads; neither can be told where
/// all are behind a translation.
fn reach(gateways: &[FleetGateway], addresses: &[IpAddr]) -> Vec<Finding> {
    const CHECK: &str = "fleet.reach";
    if gateways.iter().all(|gateway| gateway.addresses.is_empty()) {
        return Vec::new();
    }
    let is_known = |address: &&IpAddr| gateways.iter().any(|gateway| gateway.addresses.contains(*address));
    let nowhere: Vec<String> =
        addresses.iter().filter(|address| !is_known(address)).map(ToString::to_string).collect();
    let advice =
        "correct 'addresses' in [server] at all gateways, unless a translation leads from there to one";
    let mut findings = Vec::new();
    if !nowhere.is_empty() {
        let found = format!("clients are given {}, which no gateway has", nowhere.join(", "));
        findings.push(Finding::warning(CHECK, found, advice));
    }
    let without = named(gateways.iter().filter(|gateway| gateway.alive && gateway.addresses.is_empty()));
    if !without.is_empty() {
        let found = format!("clients are given no address of {}", without.join(", "));
        findings.push(Finding::warning(CHECK, found, advice));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Verdict;

    fn gateway(number: u8) -> FleetGateway {
        FleetGateway {
            name: format!("gw{number}"),
            here: number == 1,
            alive: true,
            heard_s: Some(2),
            address: None,
            version: "1.0.0".to_owned(),
            sessions: 0,
            load_percent: 5,
            draining: false,
            addresses: vec![[192, 0, 2, number].into()],
        }
    }

    #[test]
    fn what_is_wrong_with_a_fleet_is_named() {
        let given: Vec<IpAddr> = [1, 2, 3].map(|last| [192, 0, 2, last].into()).into();
        let sound = [gateway(1), gateway(2), gateway(3)];
        let judged = |change: &dyn Fn(&mut [FleetGateway; 3])| {
            let mut gateways = sound.clone();
            change(&mut gateways);
            let findings = findings(&gateways, &given).into_iter();
            let bad = findings.filter(|finding| finding.verdict != Verdict::Good);
            bad.map(|finding| (finding.check, finding.found)).collect::<Vec<_>>()
        };
        assert!(judged(&|_| {}).is_empty(), "{:?}", judged(&|_| {}));
        let one = |change: &dyn Fn(&mut [FleetGateway; 3]), check: &str, part: &str| {
            let found = judged(change);
            assert!(found.len() == 1 && found[0].0 == check && found[0].1.contains(part), "{found:?}");
        };
        one(&|all| all[2].alive = false, "fleet.gateways", "1 of 3 gateways don't report: gw3");
        one(&|all| all[1].version = "1.1.0".to_owned(), "fleet.versions", "gw2 has 1.1.0");
        let taken = |all: &mut [FleetGateway; 3]| (all[1].draining, all[2].draining) = (true, true);
        one(&taken, "fleet.alone", "no other gateway");
        let clash = |all: &mut [FleetGateway; 3]| all[2].addresses.push([192, 0, 2, 1].into());
        one(&clash, "fleet.addresses", "gw1 and gw3 have the address 192.0.2.1");
        let lost = judged(&|all| all[2].addresses.clear());
        assert_eq!(lost.len(), 2, "{lost:?}");
        assert!(
            lost[0].1.contains("given 192.0.2.3, which no gateway has")
                && lost[1].1.contains("address of gw3")
        );
        let translated = |all: &mut [FleetGateway; 3]| all.iter_mut().for_each(|all| all.addresses.clear());
        assert!(judged(&translated).is_empty());
    }
}
