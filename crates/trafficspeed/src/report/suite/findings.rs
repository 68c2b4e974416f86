//! The IPsec experiment's findings beside ours: the same order, turned round and why, or no difference beyond A/A.

use super::{Section, SectionRow};
use crate::experiment::suite::Quantity;
use crate::stats::Spread;
use crate::system::{Cipher, Kind, Subject};
use crate::unit::significant;

/// The ciphers of vpnd that stand for the original's systems.
const AUTHENTICATION: Cipher = Cipher::AuthOnly;
const ENCRYPTION: Cipher = Cipher::Aes256Gcm;
const NOTHING: Cipher = Cipher::None;

/// A ratio that the original found, and where it is found here.
struct Finding {
    about: &'static str,
    section: &'static str,
    /// How the case's name ends.
    case: &'static str,
    quantity: Quantity,
    /// Which cipher of vpnd is divided by which.
    systems: [Cipher; 2],
    /// The original's two figures.
    then: [f64; 2],
    /// Why today's order may be another.
    why: &'static str,
}

const FINDINGS: [Finding; 4] = [
    Finding {
        about: "Authentication alone by encryption, one TCP stream",
        section: "TCP stream",
        case: "the kernel's buffers",
        quantity: Quantity::Throughput,
        systems: [AUTHENTICATION, ENCRYPTION],
        then: [23.10, 10.87],
        why: "then encryption (3DES) was by far the dearest; today AES-GCM encrypts and authenticates in one pass with the \
              processor's AES and carry-less multiplication, while authentication alone is a hash (HMAC-SHA-256) over every byte",
    },
    Finding {
        about: "Nothing by encryption, one TCP stream",
        section: "TCP stream",
        case: "the kernel's buffers",
        quantity: Quantity::Throughput,
        systems: [NOTHING, ENCRYPTION],
        then: [60.86, 10.87],
        why: "then the cipher filled the processor; today the kernel's copies and wake-ups do",
    },
    Finding {
        about: "Authentication alone by encryption, TCP transactions",
        section: "Request and response",
        case: "TCP 1/1 bytes",
        quantity: Quantity::Transactions,
        systems: [AUTHENTICATION, ENCRYPTION],
        then: [1_404.26, 1_940.77],
        why: "for a packet of one byte neither is much work today: a transaction costs system calls and wake-ups",
    },
    Finding {
        about: "Nothing by encryption, TCP transactions",
        section: "Request and response",
        case: "TCP 1/1 bytes",
        quantity: Quantity::Transactions,
        systems: [NOTHING, ENCRYPTION],
        then: [3_454.84, 1_940.77],
        why: "for a packet of one byte a cipher is little work today: a transaction costs system calls and wake-ups",
    },
];

/// Each finding: what it is about, then, and here. Those that these measurements say nothing about are left out.
pub fn beside(sections: &[Section]) -> Vec<[String; 3]> {
    let row = |finding: &Finding| {
        let section = sections.iter().find(|section| section.name == finding.section)?;
        let row = section.rows.iter().find(|row| {
            row.quantity == finding.quantity
                && row.case.starts_with("IPv4")
                && row.case.ends_with(finding.case)
        })?;
        // Beside other VPNs vpnd is named, too.
        let column = |cipher: Cipher| {
            let names = [cipher.name().to_owned(), Subject::new(Kind::Vpnd, cipher).label()];
            section.columns.iter().position(|label| names.contains(label))
        };
        let [one, other] = finding.systems.map(column);
        let ratio = ratio(row, one?, other?)?;
        let then = finding.then[0] / finding.then[1];
        let verdict = verdict(then, ratio, row.control, finding.why);
        let here = format!("{}: {verdict}", ratio.text(significant));
        Some([finding.about.to_owned(), significant(then), here])
    };
    FINDINGS.iter().filter_map(row).collect()
}

/// Round by round, where every round gave both.
fn ratio(row: &SectionRow, one: usize, other: usize) -> Option<Spread> {
    let (these, those) = (row.values.get(one)?, row.values.get(other)?);
    let whole = these.len() == those.len() && those.iter().all(|value| *value > 0.0);
    let ratios: Vec<f64> = these.iter().zip(those).map(|(value, by)| value / by).collect();
    Spread::of(&ratios).filter(|_| whole)
}

fn verdict(then: f64, here: Spread, control: Option<Spread>, why: &str) -> String {
    let Some(same) = control else {
        return "not judged: how far a system differs from itself was not measured".into();
    };
    if !here.differs_beyond(same) {
        return format!("no difference beyond A/A; {why}");
    }
    if (then > 1.0) == (here.median > 1.0) { "the same order".into() } else { format!("turned round; {why}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(authentication: [f64; 3], encryption: [f64; 3], control: Option<[f64; 3]>) -> Section {
        let row = SectionRow {
            case: "IPv4, the kernel's buffers".into(),
            quantity: Quantity::Throughput,
            values: vec![authentication.to_vec(), encryption.to_vec()],
            control: control.and_then(|ratios| Spread::of(&ratios)),
            to_first: Vec::new(),
            steal: None,
            others: None,
        };
        let columns = vec!["auth-only".to_owned(), "vpnd, aes-256-gcm".to_owned()];
        Section { name: "TCP stream".into(), columns, control: None, rows: vec![row] }
    }

    fn here(authentication: [f64; 3], encryption: [f64; 3], control: Option<[f64; 3]>) -> String {
        let rows = beside(&[section(authentication, encryption, control)]);
        assert_eq!((rows.len(), rows[0][1].as_str()), (1, "2.13"), "what needs another system is left out");
        rows[0][2].clone()
    }

    #[test]
    fn the_order_is_the_same_turned_round_or_within_what_a_system_differs_from_itself() {
        let same = Some([0.9, 1.0, 1.1]);
        assert_eq!(here([20.0, 21.0, 22.0], [10.0; 3], same), "2.10 (2.00–2.20): the same order");
        let turned = here([5.0, 6.0, 5.0], [10.0; 3], same);
        assert!(
            turned.starts_with("0.500 (0.500–0.600): turned round; ") && turned.contains("in one pass"),
            "{turned}"
        );
        assert!(here([10.5; 3], [10.0; 3], same).contains("no difference beyond A/A"));
        assert!(here([20.0; 3], [10.0; 3], None).contains("not judged"));
        assert!(beside(&[]).is_empty());
    }
}
