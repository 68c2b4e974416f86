//! The result of experiment 1 in a few sentences, formed from the runs. Nothing is claimed that
//! lies within what a system differs from itself, and of a single round nothing at all.

use super::claims;
use super::summary::{Summary, labels, summarise};
use crate::experiment::outcome::observations::{GOODPUT, case};
use crate::experiment::outcome::{Campaign, Run};
use crate::stats::{CLAIM_ROUNDS, Spread};
use crate::system::{Kind, Subject};
use crate::unit::significant;

/// One sentence for each number of clients, about the system of interest and the best of the
/// others; then the same of that system with its other priority, so that no claim rests on the
/// better of two settings in silence; then how far all claims go.
pub fn sentences(campaign: &Campaign) -> Vec<String> {
    let mut all = verdicts(campaign);
    all.extend(claims::lines(
        [&campaign.observations()],
        summarise(campaign).iter().flat_map(Summary::judged),
    ));
    all
}

fn verdicts(campaign: &Campaign) -> Vec<String> {
    let own = of_interest(campaign);
    let other = own.as_ref().and_then(|own| other_priority(campaign, own));
    [own, other].into_iter().flatten().flat_map(|own| of_one(campaign, &own)).collect()
}

/// The sentences about the system `own`.
fn of_one(campaign: &Campaign, own: &str) -> Vec<String> {
    let (summaries, table) = (summarise(campaign), campaign.observations());
    let mine = summaries.iter().filter(|s| s.label == own && !s.is_disturbed);
    let sentence = |s: &Summary| {
        let others = summaries.iter().filter(|other| {
            other.clients == s.clients
                && subject(campaign, &other.label).is_some_and(|of| is_rival(campaign, own, of))
        });
        let best = others.max_by(|a, b| a.goodput.median.total_cmp(&b.goodput.median))?;
        let ratio = table.ratio((own, &best.label), &case(s.clients), GOODPUT)?;
        Some(compared(own, &best.label, s.clients, ratio, s.control))
    };
    mine.filter_map(sentence).collect()
}

fn compared(own: &str, other: &str, clients: u32, ratio: Spread, same: Option<Spread>) -> String {
    let begin = format!("With {clients} clients, {own} carries");
    let best = format!("{other}, the best of the other VPNs");
    if ratio.n < CLAIM_ROUNDS {
        return format!(
            "{begin} {} times as much as {best} in {} of the {CLAIM_ROUNDS} rounds that it takes to claim a difference.",
            significant(ratio.median),
            ratio.n
        );
    }
    let rounds = format!("{} to {} in {} rounds", significant(ratio.low), significant(ratio.high), ratio.n);
    let Some(same) = same else {
        return format!(
            "{begin} {} times as much as {best} ({rounds}); how far a system differs from itself was not measured.",
            significant(ratio.median)
        );
    };
    let itself = format!("{} to {} times itself", significant(same.low), significant(same.high));
    let times = significant(ratio.median);
    if ratio.differs_beyond(same) == Some(true) {
        format!("{begin} {times} times as much as {best} ({rounds}; a system against itself: {itself}).")
    } else {
        format!(
            "{begin} {times} times as much as {best}: no difference beyond that of a system to itself is shown ({rounds}; {itself})."
        )
    }
}

/// The baseline if it is a VPN, otherwise the first vpnd, or the first VPN.
fn of_interest(campaign: &Campaign) -> Option<String> {
    let labels = labels(campaign);
    let vpns: Vec<&String> =
        labels.iter().filter(|label| subject(campaign, label).is_some_and(is_vpn)).collect();
    let baseline = vpns.iter().find(|label| campaign.baseline.as_ref() == Some(label));
    let own = vpns.iter().find(|label| subject(campaign, label).is_some_and(|of| of.kind == Kind::Vpnd));
    baseline.or(own).or(vpns.first()).map(|label| (*label).clone())
}

/// The label of the same system with another priority, if it was measured.
fn other_priority(campaign: &Campaign, own: &str) -> Option<String> {
    let mine = subject(campaign, own)?;
    let is_it =
        |of: Subject| of.priority != mine.priority && Subject { priority: mine.priority, ..of } == mine;
    labels(campaign).into_iter().find(|label| subject(campaign, label).is_some_and(is_it))
}

fn subject(campaign: &Campaign, label: &str) -> Option<Subject> {
    campaign.runs.iter().find(|run| run.label == label)?.subject
}

/// Whether a system is a VPN and no control, which plain routing, a second measurement, and one
/// that does not both encrypt and authenticate are.
fn is_vpn(of: Subject) -> bool {
    of.kind != Kind::None && !of.again && of.cipher.protects()
}

/// Another VPN; the same program with another cipher or priority is none.
fn is_rival(campaign: &Campaign, own: &str, other: Subject) -> bool {
    let own = subject(campaign, own).map(|own| own.kind.family());
    is_vpn(other) && own != Some(other.kind.family())
}

/// Systems without a result, each with the reason.
pub fn missing(campaign: &Campaign) -> Vec<String> {
    let summaries = summarise(campaign);
    let mut lines = Vec::new();
    for label in labels(campaign) {
        if summaries.iter().any(|s| s.label == label) {
            continue;
        }
        let runs: Vec<&Run> = campaign.runs.iter().filter(|run| run.label == label).collect();
        if runs.iter().all(|run| run.interrupted) {
            lines.push(format!("{label} is unfinished: it was interrupted"));
            continue;
        }
        let why = runs.iter().flat_map(|run| run.problems()).next();
        lines.push(format!("{label} is missing: {}", why.unwrap_or_else(|| "it was not measured".into())));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::samples;
    use crate::system::{Cipher, Priority};

    /// Rounds with 8 clients, five of three: vpnd, itself again, and OpenVPN, in multiples of the same.
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
    fn a_difference_is_claimed_with_its_rounds_and_only_beyond_that_of_a_system_to_itself() {
        let clear = sentences(&campaign(&[[40, 42, 10], [42, 40, 10], [39, 39, 10]]));
        assert_eq!(
            clear[..1],
            [
                "With 8 clients, vpnd carries 4.00 times as much as OpenVPN, the best of the other VPNs (3.90 to 4.20 in 5 rounds; a \
              system against itself: 0.952 to 1.05 times itself)."
            ]
        );
        let within = sentences(&campaign(&[[40, 30, 36], [42, 40, 37], [39, 39, 36]]));
        assert!(within[0].contains("no difference beyond that of a system to itself is shown"), "{within:?}");
        let once = sentences(&campaign(&[[40, 40, 10]]));
        assert!(once[0].ends_with("in 1 of the 5 rounds that it takes to claim a difference."), "{once:?}");
        assert!(once[1].starts_with("Figures without verdicts: "), "{once:?}");
        let mut alone = campaign(&[[40, 40, 10]; 3]);
        alone.runs.retain(|run| run.label != "vpnd (again)");
        assert!(sentences(&alone)[0].contains("was not measured"));
        alone.runs.retain(|run| run.label != "OpenVPN");
        assert_eq!(verdicts(&alone), [""; 0], "another cipher of the same program is no rival");
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
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(said[0].starts_with("With 8 clients, vpnd carries 4.00 times"), "{said:?}");
        assert!(said[1].starts_with("With 8 clients, vpnd, no priority carries 2.00 times"), "{said:?}");
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
