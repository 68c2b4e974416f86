//! The result of experiment 1 in a few sentences, formed from the runs. Nothing is claimed that
//! lies within what a system differs from itself, and of a single round nothing at all.

use super::claims;
use crate::experiment::outcome::observations::{GATEWAY_COST, GOODPUT, ROUND_TRIP_99};
use crate::experiment::outcome::{Campaign, Run};
use crate::observation::{Comparison, Observations, Quantity};
use crate::stats::{CLAIM_ROUNDS, Spread};
use crate::system::{Kind, Subject};
use crate::unit::significant;

/// A claim about a system compared with the others.
#[derive(Clone, Copy)]
struct Claim {
    quantity: Quantity,
    is_higher_better: bool,
    /// The verb with its object, after the system's name.
    does: &'static str,
    /// Between the factor and the other system.
    than: &'static str,
    /// The other system, in words.
    best: &'static str,
}

const CLAIMS: [Claim; 3] = [
    Claim {
        quantity: GOODPUT,
        is_higher_better: true,
        does: "carries",
        than: "times as much as",
        best: "the best of the other VPNs",
    },
    Claim {
        quantity: GATEWAY_COST,
        is_higher_better: false,
        does: "takes at its gateway",
        than: "times as much CPU time per Gbit as",
        best: "the cheapest of the other VPNs there",
    },
    Claim {
        quantity: ROUND_TRIP_99,
        is_higher_better: false,
        does: "has round trips under load (99th percentile)",
        than: "times as long as",
        best: "the best of the other VPNs",
    },
];

/// A sentence for each number of clients and claim, about the system of interest and the best of
/// the others; then the same of that system with its other priority and with other shares of the
/// CPU, so that no claim rests on the best of several settings in silence; then how far all claims
/// go.
pub fn sentences(campaign: &Campaign) -> Vec<String> {
    let table = campaign.observations();
    let mut found = campaign.comparisons(&table).concat();
    found.extend(with_rivals(campaign, &table, &found));
    let judged = found.iter().filter(|one| one.ratio_to_first.is_some()).map(|one| one.differs_from_first);
    let mut all = verdicts(campaign, &table);
    all.extend(claims::lines([&table], judged));
    all
}

fn verdicts(campaign: &Campaign, table: &Observations) -> Vec<String> {
    let mut claims = CLAIMS;
    if campaign.is_gateway_limited() {
        // The gateway's cost is what the experiment's authors asked first.
        claims.swap(0, 1);
    }
    let all = all_of_interest(campaign);
    let pairs = claims.iter().flat_map(|claim| all.iter().map(move |own| (claim, own)));
    pairs.flat_map(|(claim, own)| of_one(campaign, table, claim, own)).collect()
}

/// The comparisons of which the sentences take the best rival, without those that are `known`: each
/// could have become a sentence.
fn with_rivals(campaign: &Campaign, table: &Observations, known: &[Comparison]) -> Vec<Comparison> {
    let cases = || campaign.cases().into_iter();
    let wanted: Vec<(String, Quantity)> =
        CLAIMS.iter().flat_map(|claim| cases().map(|case| (case, claim.quantity))).collect();
    let is_known = |one: &Comparison| {
        let is_same = |other: &Comparison| {
            let pair = (&other.system, &other.first);
            (other.quantity, &other.case) == (one.quantity, &one.case)
                && (pair == (&one.system, &one.first) || pair == (&one.first, &one.system))
        };
        known.iter().any(is_same)
    };
    let all = all_of_interest(campaign).into_iter().flat_map(|own| {
        let mut found = table.compared_with(&own, &wanted);
        let is_rival = |system: Subject| is_rival(campaign, &own, system);
        found.retain(|one| campaign.subject(&one.system).is_some_and(is_rival));
        found
    });
    all.filter(|one| !is_known(one)).collect()
}

/// The systems of which sentences are made.
fn all_of_interest(campaign: &Campaign) -> Vec<String> {
    let own = of_interest(campaign);
    own.map_or_else(Vec::new, |own| [vec![own.clone()], other_shares(campaign, &own)].concat())
}

/// The sentences about the system `own`.
fn of_one(campaign: &Campaign, table: &Observations, claim: &Claim, own: &str) -> Vec<String> {
    let congestion = campaign.settings.congestion.to_string();
    let labels = campaign.labels();
    let is_rival =
        |label: &&String| campaign.subject(label).is_some_and(|system| is_rival(campaign, own, system));
    let rivals: Vec<&String> = labels.iter().filter(is_rival).collect();
    let sentence = |case: String| {
        let median = |label: &&&String| Some(table.spread(label, &case, claim.quantity)?.median);
        let measured = rivals.iter().filter_map(|label| Some((label, median(&label)?)));
        let merit = |value: f64| if claim.is_higher_better { value } else { -value };
        let best = measured.max_by(|a, b| merit(a.1).total_cmp(&merit(b.1)))?.0.as_str();
        let ratio = table.ratio((own, best), &case, claim.quantity)?;
        let same = table.control(&congestion, own, &case, claim.quantity);
        let differs = table.judged((own, best), &case, claim.quantity, Some(ratio).zip(same));
        (!table.is_disturbed(&case)).then(|| compared(claim, (own, best), &case, (ratio, differs), same))
    };
    campaign.cases().into_iter().filter_map(sentence).collect()
}

fn compared(
    claim: &Claim,
    (own, other): (&str, &str),
    case: &str,
    (ratio, differs): (Spread, Option<bool>),
    same: Option<Spread>,
) -> String {
    let times = significant(ratio.median);
    let said = format!("With {case}, {own} {} {times} {} {other}, {}", claim.does, claim.than, claim.best);
    if ratio.n < CLAIM_ROUNDS {
        let n = ratio.n;
        return format!("{said} in {n} of the {CLAIM_ROUNDS} rounds that it takes to claim a difference.");
    }
    let rounds = format!("{} to {} in {} rounds", significant(ratio.low), significant(ratio.high), ratio.n);
    let Some(same) = same else {
        return format!("{said} ({rounds}); how far a system differs from itself was not measured.");
    };
    let itself = format!("{} to {} times itself", significant(same.low), significant(same.high));
    match differs {
        Some(true) => format!("{said} ({rounds}; a system against itself: {itself})."),
        _ => {
            format!("{said}: no difference beyond that of a system to itself is shown ({rounds}; {itself}).")
        }
    }
}

/// The baseline if it is a VPN, otherwise the first vpnd, or the first VPN.
fn of_interest(campaign: &Campaign) -> Option<String> {
    let labels = campaign.labels();
    let vpns: Vec<&String> =
        labels.iter().filter(|label| campaign.subject(label).is_some_and(is_vpn)).collect();
    let baseline = vpns.iter().find(|label| campaign.baseline.as_ref() == Some(label));
    let is_vpnd = |label: &str| campaign.subject(label).is_some_and(|system| system.kind == Kind::Vpnd);
    let own = vpns.iter().find(|label| is_vpnd(label));
    baseline.or(own).or(vpns.first()).map(|label| (*label).clone())
}

/// The labels of the same system with another priority or another share of the CPU.
fn other_shares(campaign: &Campaign, own: &str) -> Vec<String> {
    let Some(system) = campaign.subject(own) else { return Vec::new() };
    let is_it = |label: &String| {
        label != own && campaign.subject(label).is_some_and(|other| other.is_but_for_shares(system))
    };
    campaign.labels().into_iter().filter(is_it).collect()
}

/// Whether a system is a VPN and no control, which plain routing, a second measurement, and one
/// that does not both encrypt and authenticate are.
fn is_vpn(system: Subject) -> bool {
    system.kind != Kind::None && !system.again && system.cipher.protects()
}

/// Another VPN with the same share of the CPU; the same program with another cipher or priority is
/// none.
fn is_rival(campaign: &Campaign, own: &str, other: Subject) -> bool {
    let is_other =
        |own: Subject| own.gateway_cpu == other.gateway_cpu && own.kind.family() != other.kind.family();
    is_vpn(other) && campaign.subject(own).is_none_or(is_other)
}

/// Systems without a result, each with the reason.
pub fn missing(campaign: &Campaign) -> Vec<String> {
    let found = campaign.observations().summaries();
    let mut lines = Vec::new();
    for label in campaign.labels() {
        if found.iter().any(|one| one.system == label) {
            continue;
        }
        let runs: Vec<&Run> = campaign.runs.iter().filter(|run| run.label == label).collect();
        if runs.iter().all(|run| run.interrupted) {
            lines.push(format!("{label} is unfinished: it was interrupted"));
            continue;
        }
        let problem = runs.iter().flat_map(|run| run.problems()).next();
        lines
            .push(format!("{label} is missing: {}", problem.unwrap_or_else(|| "it was not measured".into())));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::samples;
    use crate::system::{Cipher, Priority};

    /// Rounds with 8 clients, five of three: vpnd, itself again, and OpenVPN, in multiples of the
    /// same.
    fn campaign(rounds: &[[u64; 3]]) -> Campaign {
        let mut campaign = samples::campaign();
        campaign.runs.clear();
        for (values, repeat) in
            rounds.iter().cycle().take(if rounds.len() == 3 { 5 } else { rounds.len() }).zip(1..)
        {
            let mut run = |subject: Subject, bytes: u64| {
                let run = samples::run(subject.kind, 8, repeat, bytes * 1_000_000);
                campaign.runs.push(Run { subject: Some(subject), label: subject.label(), ..run });
            };
            let vpnd = Subject::new(Kind::Vpnd, Cipher::Auto);
            run(vpnd, values[0]);
            run(Subject::new(Kind::Openvpn, Cipher::Auto), values[2]);
            run(Subject::new(Kind::Vpnd, Cipher::ChaCha20Poly1305), values[0]);
            run(Subject::new(Kind::None, Cipher::None), 9 * values[0]);
            run(vpnd.again(), values[1]);
        }
        campaign
    }

    #[test]
    fn a_difference_is_claimed_only_beyond_a_a() {
        let clear = sentences(&campaign(&[[40, 42, 10], [42, 40, 10], [39, 39, 10]]));
        assert_eq!(
            clear[..1],
            [
                "With 8 clients, vpnd carries 4.00 times as much as OpenVPN, the best of the other VPNs (3.90 to 4.20 in 5 rounds; a \
              system against itself: 0.952 to 1.05 times itself)."
            ]
        );
        // Three systems and plain routing in four quantities, and the three sentences.
        assert!(clear[3].starts_with("Comparisons: 15, of which 8 differ"), "{clear:?}");
        let within = sentences(&campaign(&[[40, 30, 36], [42, 40, 37], [39, 39, 36]]));
        assert!(within[0].contains("no difference beyond that of a system to itself is shown"), "{within:?}");
        let once = sentences(&campaign(&[[40, 40, 10]]));
        assert!(once[0].ends_with("in 1 of the 5 rounds that it takes to claim a difference."), "{once:?}");
        assert!(once[3].starts_with("Figures without verdicts: "), "{once:?}");
        let mut alone = campaign(&[[40, 40, 10]; 3]);
        alone.runs.retain(|run| run.label != "vpnd (again)");
        assert!(sentences(&alone)[0].contains("was not measured"));
        alone.runs.retain(|run| run.label != "OpenVPN");
        assert_eq!(
            verdicts(&alone, &alone.observations()),
            [""; 0],
            "another cipher of the same program is no rival"
        );
    }

    #[test]
    fn nothing_is_claimed_of_measurements_that_were_disturbed() {
        let mut campaign = campaign(&[[40, 42, 10], [42, 40, 10], [39, 39, 10]]);
        campaign.runs[1].disturbance = Some("other processes used 30 % of the machine".into());
        let said = sentences(&campaign);
        assert!(said.len() == 1 && said[0].starts_with("1 of 25 measurements were disturbed"), "{said:?}");
        campaign.runs[1].superseded = true;
        assert!(sentences(&campaign)[0].starts_with("With 8 clients"), "a quiet attempt stands for it");
    }

    #[test]
    fn nothing_is_claimed_in_an_emulated_machine() {
        let mut campaign = campaign(&[[40, 42, 10], [42, 40, 10], [39, 39, 10]]);
        campaign.environment.host.cpu = "QEMU TCG CPU version 2.5+".into();
        let said = sentences(&campaign);
        assert!(said.len() == 1 && said[0].starts_with("This processor is emulated"), "{said:?}");
    }

    #[test]
    fn no_control_is_ever_named_the_best_of_the_vpns_or_compared_as_one() {
        let rounds = [[40, 42, 10], [42, 40, 10], [39, 39, 10]];
        let verdicts = |campaign: &Campaign| super::verdicts(campaign, &campaign.observations());
        let expected = verdicts(&campaign(&rounds));
        let openvpn = |cipher| Subject::new(Kind::Openvpn, cipher);
        for control in [
            openvpn(Cipher::None),
            openvpn(Cipher::AuthOnly),
            openvpn(Cipher::EncryptOnly),
            openvpn(Cipher::Auto).again(),
        ] {
            let mut with = campaign(&rounds);
            for repeat in 1..=5 {
                let run = samples::run(control.kind, 8, repeat, 90_000_000);
                with.runs.push(Run { subject: Some(control), label: control.label(), ..run });
            }
            assert_eq!(verdicts(&with), expected, "{}", control.label());
            with.baseline = Some(control.label());
            assert_eq!(verdicts(&with), expected, "{} as the baseline", control.label());
        }
    }

    #[test]
    fn a_system_with_two_priorities_has_a_sentence_for_each() {
        let mut campaign = campaign(&[[40, 42, 10], [42, 40, 10], [39, 39, 10]]);
        for repeat in 1..=5 {
            let vpnd = Subject { priority: Priority::Same, ..Subject::new(Kind::Vpnd, Cipher::Auto) };
            let run = samples::run(vpnd.kind, 8, repeat, 20_000_000);
            campaign.runs.push(Run { subject: Some(vpnd), label: vpnd.label(), ..run });
        }
        let said = sentences(&campaign);
        assert_eq!(said.len(), 7, "{said:?}");
        assert!(said[0].starts_with("With 8 clients, vpnd carries 4.00 times"), "{said:?}");
        let cost = "With 8 clients, vpnd takes at its gateway 0.250 times as much CPU time per Gbit as OpenVPN, the cheapest";
        assert!(said[2].starts_with(cost), "{said:?}");
        assert!(said[1].starts_with("With 8 clients, vpnd, no priority carries 2.00 times"), "{said:?}");
    }

    #[test]
    fn each_share_of_the_cpu_is_compared_with_the_same_share_of_the_others() {
        let mut campaign = campaign(&[[40, 42, 10], [42, 40, 10], [39, 39, 10]]);
        campaign.runs.retain(|run| run.subject.is_some_and(|subject| subject.cipher == Cipher::Auto));
        let shares = ["0.25", "0.5"].map(|share| share.parse().ok());
        let whole = std::mem::take(&mut campaign.runs);
        for (share, times) in shares.into_iter().zip([1, 2]) {
            for run in &whole {
                let subject = Subject { gateway_cpu: share, ..run.subject.unwrap() };
                let bytes = run.received() / 2 * times;
                let run = samples::run(subject.kind, 8, run.repeat, bytes);
                campaign.runs.push(Run { subject: Some(subject), label: subject.label(), ..run });
            }
        }
        let said = verdicts(&campaign, &campaign.observations());
        let begin = |share: &str| {
            format!(
                "With 8 clients, vpnd, gateway {share} of a core carries 4.00 times as much as OpenVPN, gateway {share}"
            )
        };
        assert!(said[2].starts_with(&begin("0.25")) && said[3].starts_with(&begin("0.5")), "{said:?}");
        assert!(
            said[0].contains(" takes at its gateway 0.250 times as much CPU time"),
            "cost first: {said:?}"
        );
        assert_eq!(said.len(), 6, "round trips are the last: {said:?}");
        let table = campaign.observations();
        let found = campaign.comparisons(&table).concat();
        let share = |label: &str| label.split(", gateway ").nth(1).unwrap().to_owned();
        assert!(
            found.len() == 8 && found.iter().all(|one| share(&one.system) == share(&one.first)),
            "{found:?}"
        );
        let differ = |one: &&Comparison| one.differs_from_first == Some(true);
        assert_eq!(found.iter().filter(differ).count(), 4, "their round trips are alike: {found:?}");
    }

    #[test]
    fn a_system_without_a_result_is_named_with_the_reason() {
        let mut campaign = campaign(&[[40, 40, 10]]);
        campaign.runs[1].error = Some("openvpn is not installed".into());
        assert_eq!(missing(&campaign), ["OpenVPN is missing: openvpn is not installed"]);
        (campaign.runs[1].error, campaign.runs[1].interrupted) = (Some("interrupted".into()), true);
        assert_eq!(missing(&campaign), ["OpenVPN is unfinished: it was interrupted"]);
    }
}
