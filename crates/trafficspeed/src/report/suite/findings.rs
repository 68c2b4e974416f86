//! The findings of the IPsec and the cipher experiment compared with ours: reproduced, the same
//! direction but smaller or larger, reversed, or no difference beyond A/A, each with the reason;
//! or not reproducible here.

use super::{Cell, Section, SectionRow};
use crate::experiment::suite::Quantity;
use crate::experiment::suite::aead::SECTION_NATIVE;
use crate::experiment::suite::ipsec::UDP_SECTION;
use crate::observation::ratio;
use crate::stats::{CLAIM_ROUNDS, Spread};
use crate::system::{Cipher, Kind, Subject};
use crate::unit::significant;

/// The ciphers of vpnd that stand for the original's systems; without IPsec it was plain IP, which
/// is plain routing here.
const AUTHENTICATION: Cipher = Cipher::AuthOnly;
const ENCRYPTION: Cipher = Cipher::Aes256Gcm;
const NOTHING: Cipher = Cipher::None;

/// A case's figure: the cipher, and a part of the case's name.
type Place = (Cipher, &'static str);

/// A ratio that the original found, and where it is found here.
struct Finding {
    about: &'static str,
    /// The system that the figures are of.
    system: Kind,
    section: &'static str,
    /// How the names of the cases begin.
    version: &'static str,
    quantity: Quantity,
    one: Place,
    /// The divisor; a percentage is divided by 100 instead.
    divisor: Option<Place>,
    /// The original's two figures.
    original: [f64; 2],
    /// Why it may be another today.
    reason: &'static str,
}

impl Finding {
    const STREAM: Self = Self {
        about: "",
        system: Kind::Vpnd,
        section: "TCP stream",
        version: "IPv4",
        quantity: Quantity::Throughput,
        one: (AUTHENTICATION, KERNEL_BUFFERS),
        divisor: Some((ENCRYPTION, KERNEL_BUFFERS)),
        original: [23.10, 10.87],
        reason: "then encryption (3DES) was by far the dearest; today AES-GCM encrypts and authenticates in one pass with the \
              processor's AES and carry-less multiplication, while authentication alone is a hash (HMAC-SHA-256) over every byte",
    };
    const DATAGRAM: Self = Self {
        section: UDP_SECTION,
        one: (AUTHENTICATION, LARGE),
        divisor: Some((ENCRYPTION, LARGE)),
        original: [30.73, 11.96],
        ..Self::STREAM
    };
    const TRANSACTION: Self = Self {
        section: "Request and response",
        quantity: Quantity::Transactions,
        one: (AUTHENTICATION, "TCP 1/1 bytes"),
        divisor: Some((ENCRYPTION, "TCP 1/1 bytes")),
        original: [1_404.26, 1_940.77],
        reason: "for a packet of one byte neither is much work today: a transaction costs system calls and wake-ups",
        ..Self::STREAM
    };
    const CIPHER: Self = Self {
        section: SECTION_NATIVE,
        version: "",
        one: (ENCRYPTION, SENDS),
        divisor: Some((Cipher::ChaCha20Poly1305, SENDS)),
        original: [377.0, 330.0],
        reason: "then a telephone and a Celeron on a wireless network, here both ends on one machine, whose ciphers take less of the time",
        ..Self::STREAM
    };
    const LOADED: Self = Self {
        section: "One TCP transfer over time",
        reason: "then the link was the limit without protection, and the processor with it; today the processor and its wake-ups are \
              the limit of all",
        ..Self::STREAM
    };
}

const SENDS: &str = "client sends";
const RECEIVES: &str = "client receives";
const KERNEL_BUFFERS: &str = "the kernel's buffers";
const LARGE: &str = "datagrams of 4096 bytes";
const IDLE: &str = "idle machine";
const HOGS: &str = "CPU hogs";
/// A finding that only OpenVPN allows.
const ALONE: &str = "Encryption alone / encryption with authentication, one TCP stream, OpenVPN";

const FINDINGS: [Finding; 15] = [
    Finding { about: "Authentication alone / encryption, one TCP stream", ..Finding::STREAM },
    Finding {
        about: "Authentication alone / encryption, one TCP stream over IPv6",
        version: "IPv6",
        original: [24.20, 10.88],
        ..Finding::STREAM
    },
    Finding {
        about: "Plain IP / encryption, one TCP stream",
        one: (NOTHING, KERNEL_BUFFERS),
        original: [60.86, 10.87],
        reason: "then the cipher filled the processor; today the kernel carries 64 KiB at once where nothing takes them apart",
        ..Finding::STREAM
    },
    Finding {
        about: ALONE,
        system: Kind::Openvpn,
        one: (Cipher::EncryptOnly, KERNEL_BUFFERS),
        divisor: Some((Cipher::Aes256CbcHmacSha256, KERNEL_BUFFERS)),
        original: [10.87, 7.74],
        reason: "then the cipher and the hash filled the processor; today a packet's system calls and copies cost OpenVPN more than either",
        ..Finding::STREAM
    },
    Finding {
        about: "Socket buffers of 57,344 / 32,768 bytes, one encrypted TCP stream",
        one: (ENCRYPTION, "57344"),
        divisor: Some((ENCRYPTION, "32768")),
        original: [10.87, 10.90],
        reason: "then the cipher was the limit; today the buffers are",
        ..Finding::STREAM
    },
    Finding { about: "Authentication alone / encryption, datagrams of 4,096 bytes", ..Finding::DATAGRAM },
    Finding {
        about: "Plain IP / encryption, datagrams of 4,096 bytes",
        one: (NOTHING, LARGE),
        original: [93.98, 11.96],
        reason: "then the cipher filled the processor; today system calls and wake-ups do",
        ..Finding::DATAGRAM
    },
    Finding {
        about: "Datagrams of 4,096 / 1,024 bytes, authenticated",
        divisor: Some((AUTHENTICATION, "datagrams of 1024 bytes")),
        original: [30.73, 23.83],
        reason: "then they were sent as fast as possible; here at the highest rate without loss, and one lost fragment loses the whole",
        ..Finding::DATAGRAM
    },
    Finding { about: "Authentication alone / encryption, TCP transactions", ..Finding::TRANSACTION },
    Finding {
        about: "Plain IP / encryption, TCP transactions",
        one: (NOTHING, "TCP 1/1 bytes"),
        original: [3_454.84, 1_940.77],
        reason: "for a packet of one byte a cipher is little work today: a transaction costs system calls and wake-ups",
        ..Finding::TRANSACTION
    },
    Finding {
        about: "With CPU hogs / on an idle machine, one TCP transfer, plain IP",
        one: (NOTHING, HOGS),
        divisor: Some((NOTHING, IDLE)),
        original: [66.12, 65.18],
        ..Finding::LOADED
    },
    Finding {
        about: "With CPU hogs / on an idle machine, one TCP transfer, authentication alone",
        one: (AUTHENTICATION, HOGS),
        divisor: Some((AUTHENTICATION, IDLE)),
        original: [13.67, 26.01],
        ..Finding::LOADED
    },
    Finding {
        about: "With CPU hogs / on an idle machine, one TCP transfer, encryption",
        one: (ENCRYPTION, HOGS),
        divisor: Some((ENCRYPTION, IDLE)),
        original: [5.70, 10.94],
        ..Finding::LOADED
    },
    Finding {
        about: "Mean delay of one TCP transfer, encryption / plain IP",
        quantity: Quantity::Delay,
        one: (ENCRYPTION, IDLE),
        divisor: Some((NOTHING, IDLE)),
        original: [0.003, 0.015],
        reason: "then the cipher took longer than the link, so less waited on the way",
        ..Finding::LOADED
    },
    Finding {
        about: "Live video, delivered with encryption",
        section: "Live video over UDP",
        version: "",
        quantity: Quantity::Delivered,
        one: (ENCRYPTION, IDLE),
        divisor: None,
        original: [70.0, 100.0],
        reason: "then the cipher filled the processor at 13 Mbit/s; today that rate is a small part of what it can",
        ..Finding::STREAM
    },
];

/// Those of the cipher experiment: its newest client, an iPhone 12 Pro.
const CIPHER_FINDINGS: [Finding; 6] = [
    Finding { about: "AES-256-GCM / ChaCha20-Poly1305, client sends", ..Finding::CIPHER },
    Finding {
        about: "AES-256-GCM / ChaCha20-Poly1305, client receives",
        one: (ENCRYPTION, RECEIVES),
        divisor: Some((Cipher::ChaCha20Poly1305, RECEIVES)),
        original: [292.0, 238.0],
        ..Finding::CIPHER
    },
    Finding {
        about: "AES-256-GCM / AES-256-CBC with a hash, client sends",
        divisor: Some((Cipher::Aes256CbcHmacSha256, SENDS)),
        original: [377.0, 227.0],
        ..Finding::CIPHER
    },
    Finding {
        about: "AES-256-GCM / AES-256-CBC with a hash, client receives",
        one: (ENCRYPTION, RECEIVES),
        divisor: Some((Cipher::Aes256CbcHmacSha256, RECEIVES)),
        original: [292.0, 202.0],
        ..Finding::CIPHER
    },
    Finding {
        about: "Plain IP / AES-256-GCM, client sends",
        one: (NOTHING, SENDS),
        divisor: Some((ENCRYPTION, SENDS)),
        original: [564.0, 377.0],
        ..Finding::CIPHER
    },
    Finding {
        about: "Plain IP / AES-256-GCM, client receives",
        one: (NOTHING, RECEIVES),
        divisor: Some((ENCRYPTION, RECEIVES)),
        original: [349.0, 292.0],
        ..Finding::CIPHER
    },
];

/// Findings that are missing unless OpenVPN is measured.
const ALONE_NOT_MEASURED: [&str; 3] = [
    ALONE,
    "1.40",
    "not measured: of the systems here OpenVPN alone encrypts without authenticating (--vpn openvpn --cipher \
     encrypt-only,aes-256-cbc-hmac-sha-256), since an attacker who can change packets unnoticed can also read them. Encryption \
     above is AES-256-GCM, which authenticates in the same pass; the original had 3DES without a hash",
];

/// Findings that cannot be measured here, and why.
const NOT_HERE: [&str; 3] = [
    "Live video, HMAC-SHA1 and keyed SHA1, 3DES and Blowfish",
    "20 % apart",
    "not reproducible: no system is measured with these, which are no longer in use",
];

/// Two figures of the original that differ by less than this share were the same.
const SAME_THEN: f64 = 0.05;
/// A difference, or a loss, is of the same size as the original's if neither is more than this many
/// times the other.
const SAME_SIZE: f64 = 1.5;

/// Each finding: what it is about, then, and here. Those that these measurements say nothing about
/// are left out.
pub fn compared(sections: &[Section]) -> Vec<[String; 3]> {
    let row = |finding: &Finding| {
        let (ratio, control, is_limited, is_disturbed) = finding.measured(sections)?;
        let original = finding.original[0] / finding.original[1];
        let judge = if finding.divisor.is_some() { judge_difference } else { judge_loss };
        let verdict = bounded(is_limited)
            .or_else(|| is_disturbed.then_some("not judged: the machine was disturbed"))
            .map_or_else(|| verdict(original, ratio, control, finding.reason, judge), str::to_owned);
        let measured = format!("{}: {verdict}", ratio.text(significant));
        Some([finding.about.to_owned(), significant(original), measured])
    };
    let mut rows: Vec<[String; 3]> = FINDINGS.iter().filter_map(row).collect();
    if rows.is_empty() {
        rows = CIPHER_FINDINGS.iter().filter_map(row).collect();
    } else {
        let is_open = rows.iter().all(|[about, ..]| about != ALONE);
        let others = is_open.then_some(ALONE_NOT_MEASURED).into_iter().chain([NOT_HERE]);
        rows.extend(others.map(|row| row.map(str::to_owned)));
    }
    rows
}

impl Finding {
    /// The ratio here, how far a system differs from itself in either case, whether the sender
    /// limited either figure, and whether the machine was disturbed.
    fn measured(&self, sections: &[Section]) -> Option<(Spread, Option<Spread>, [bool; 2], bool)> {
        let section = sections.iter().find(|section| section.name == self.section)?;
        let (row, dividend) = self.find(section, self.one)?;
        let Some(divisor) = self.divisor else {
            return Some((dividend.spread()?.scaled(100.0), row.control, [false; 2], row.is_disturbed));
        };
        let (other_row, divisor) = self.find(section, divisor)?;
        let controls = row.control.into_iter().zip(other_row.control);
        let control = controls.map(|(a, b)| if a.widest_ratio() > b.widest_ratio() { a } else { b }).next();
        let is_limited = [dividend, divisor].map(|cell| cell.is_limited_by_sender);
        let is_disturbed = row.is_disturbed || other_row.is_disturbed;
        Some((ratio(&dividend.values, &divisor.values)?, control, is_limited, is_disturbed))
    }

    /// The row of a place and the cell of its cipher.
    fn find<'a>(&self, section: &'a Section, (cipher, case): Place) -> Option<(&'a SectionRow, &'a Cell)> {
        let row = section.rows.iter().find(|row| {
            row.quantity == self.quantity && row.case.starts_with(self.version) && row.case.contains(case)
        })?;
        let is_nothing = cipher == NOTHING;
        let named = Subject::new(if is_nothing { Kind::None } else { self.system }, cipher).label();
        // Where vpnd alone is measured, its ciphers stand for it.
        let alone = (self.system == Kind::Vpnd && !is_nothing).then(|| cipher.name().to_owned());
        let is_it = |label: &String| *label == named || Some(label) == alone.as_ref();
        Some((row, &row.cells[section.columns.iter().position(is_it)?]))
    }
}

/// Why a ratio of figures that the sender limited says nothing of the paths.
fn bounded(is_limited: [bool; 2]) -> Option<&'static str> {
    match is_limited {
        [false, false] => None,
        [true, false] => {
            Some("not judged: at least that, since the sender was the limit of the first figure")
        }
        [false, true] => {
            Some("not judged: at most that, since the sender was the limit of the second figure")
        }
        [true, true] => Some("not judged: the sender was the limit of both figures"),
    }
}

/// The finding compared with what was measured; `judge` says whether two differences are the same.
fn verdict(
    original: f64,
    ours: Spread,
    control: Option<Spread>,
    reason: &str,
    judge: impl Fn(f64, f64) -> (String, bool),
) -> String {
    let Some(same) = control else {
        return "not judged: how far a system differs from itself was not measured".into();
    };
    let Some(differs) = ours.differs_beyond(same) else {
        return format!(
            "not judged: fewer than {CLAIM_ROUNDS} rounds show neither a difference nor its absence"
        );
    };
    let differed = (original - 1.0).abs() > SAME_THEN;
    match (differed, differs) {
        (false, false) => "reproduced: no difference beyond A/A".into(),
        (true, false) => format!("no difference beyond A/A; {reason}"),
        (false, true) => format!("a difference that was not there then; {reason}"),
        (true, true) => match judge(original, ours.median) {
            (words, true) => words,
            (words, false) => format!("{words}; {reason}"),
        },
    }
}

/// The percentage by which the larger of two figures exceeds the smaller, from their ratio in
/// either order.
fn excess(ratio: f64) -> f64 {
    100.0 * (ratio.max(1.0 / ratio) - 1.0)
}

/// How a difference found here compares with that of the original, and whether it is reproduced.
fn judge_difference(original: f64, ours: f64) -> (String, bool) {
    if (original > 1.0) != (ours > 1.0) {
        return ("reversed".into(), false);
    }
    let (original, ours) = (excess(original), excess(ours));
    if is_same_size(original, ours) {
        return (
            format!("reproduced: the same direction, the difference within a factor of {SAME_SIZE}"),
            true,
        );
    }
    let word = if ours < original { "smaller" } else { "larger" };
    let (original, ours) = (significant(original), significant(ours));
    (format!("the same direction, {word}: one exceeds the other by {ours} %, then by {original} %"), false)
}

/// The finding for the share that was delivered, which is judged by what was lost: it cannot be on
/// the other side of 1.
fn judge_loss(original: f64, ours: f64) -> (String, bool) {
    let (original, ours) = (100.0 * (1.0 - original), 100.0 * (1.0 - ours));
    let text = format!("{} % lost, then {} %", significant(ours), significant(original));
    if is_same_size(original, ours) {
        return (format!("reproduced: {text}, within a factor of {SAME_SIZE}"), true);
    }
    if ours > original {
        return (format!("the same direction, larger: {text}"), false);
    }
    (format!("reversed: less than {} % lost ({text})", significant(original / SAME_SIZE)), false)
}

fn is_same_size(original: f64, ours: f64) -> bool {
    original.max(ours) <= SAME_SIZE * original.min(ours)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::Taken;
    use crate::stats::five;

    fn row(case: &str, quantity: Quantity, values: &[[f64; 3]], control: Option<[f64; 3]>) -> SectionRow {
        let cell = |values: &[f64; 3]| Cell { values: (1..).zip(five(*values)).collect(), ..Cell::default() };
        SectionRow {
            case: case.into(),
            quantity,
            cells: values.iter().map(cell).collect(),
            control: control.and_then(|ratios| Spread::of(&five(ratios))),
            taken: Taken::default(),
            is_disturbed: false,
        }
    }

    fn section(authentication: [f64; 3], encryption: [f64; 3], control: Option<[f64; 3]>) -> Section {
        let (case, values) = ("IPv4, the kernel's buffers", [authentication, encryption]);
        let row = row(case, Quantity::Throughput, &values, control);
        let columns = vec!["auth-only".to_owned(), "vpnd, aes-256-gcm".to_owned()];
        Section { name: "TCP stream".into(), columns, control: None, rows: vec![row] }
    }

    fn said(authentication: [f64; 3], encryption: [f64; 3], control: Option<[f64; 3]>) -> String {
        let rows = compared(&[section(authentication, encryption, control)]);
        assert_eq!((rows.len(), rows[0][1].as_str()), (3, "2.13"), "and two that were not measured");
        assert!(rows[1][2].starts_with("not measured: ") && rows[2][2].starts_with("not reproducible: "));
        rows[0][2].clone()
    }

    #[test]
    fn a_finding_is_reproduced_reversed_or_within_a_a() {
        let same = Some([0.9, 1.0, 1.1]);
        assert_eq!(
            said([20.0, 21.0, 22.0], [10.0; 3], same),
            "2.10 (2.00–2.20): reproduced: the same direction, the difference within a factor of 1.5"
        );
        let turned = said([5.0, 6.0, 5.0], [10.0; 3], same);
        assert!(
            turned.starts_with("0.500 (0.500–0.600): reversed; ") && turned.contains("in one pass"),
            "{turned}"
        );
        assert!(said([10.5; 3], [10.0; 3], same).contains("no difference beyond A/A"));
        assert!(said([20.0; 3], [10.0; 3], None).contains("not judged"));
        assert!(compared(&[]).is_empty());
    }

    #[test]
    fn a_ratio_of_what_the_sender_limited_is_a_bound_and_not_judged() {
        let said = |is_limited: [bool; 2]| {
            let mut section = section([20.0, 21.0, 22.0], [10.0; 3], Some([0.9, 1.0, 1.1]));
            for (cell, is_limited) in section.rows[0].cells.iter_mut().zip(is_limited) {
                cell.is_limited_by_sender = is_limited;
            }
            compared(&[section])[0][2].clone()
        };
        assert!(said([false, false]).contains("reproduced"));
        assert!(said([true, false]).starts_with("2.10 (2.00–2.20): not judged: at least that, "));
        assert!(said([false, true]).contains(": not judged: at most that, "));
        assert!(said([true, true]).contains(": not judged: the sender was the limit of both"));
    }

    #[test]
    fn without_ipsec_it_is_plain_routing_and_no_tunnel_without_a_cipher() {
        let about = "Plain IP / encryption, one TCP stream";
        assert!(found(plain("plain routing"), about).contains("reproduced"));
        assert!(compared(&[plain("none")]).is_empty());
    }

    fn plain(label: &str) -> Section {
        let mut section = section([56.0, 57.0, 58.0], [10.0; 3], Some([0.9, 1.0, 1.1]));
        section.columns = [label, "aes-256-gcm"].map(String::from).into();
        section
    }

    #[test]
    fn encryption_alone_is_measured_with_openvpn() {
        let mut section = section([13.0, 14.0, 15.0], [10.0; 3], Some([0.9, 1.0, 1.1]));
        section.columns =
            ["OpenVPN, encrypt-only", "OpenVPN, aes-256-cbc-hmac-sha-256"].map(String::from).into();
        let rows = compared(&[section]);
        assert_eq!((rows.len(), rows[0][0].as_str(), rows[0][1].as_str()), (2, ALONE, "1.40"));
        assert!(rows[0][2].starts_with("1.40 (1.30–1.50): reproduced"), "{}", rows[0][2]);
    }

    /// Two cases of encryption alone, each in three rounds.
    fn cases(name: &str, quantity: Quantity, cases: [(&str, [f64; 3]); 2]) -> Section {
        let control = Some([0.9, 1.0, 1.1]);
        let rows = cases.map(|(case, values)| row(case, quantity, &[values], control)).into();
        Section { name: name.into(), columns: vec!["aes-256-gcm".into()], control: None, rows }
    }

    fn found(section: Section, about: &str) -> String {
        let rows = compared(&[section]);
        rows.into_iter().find(|row| row[0] == about).map(|[_, _, measured]| measured).expect("it is found")
    }

    #[test]
    fn a_case_is_compared_with_another_and_a_share_with_the_whole() {
        let with_hogs = |values| {
            let idle = ("IPv4, x, idle machine", [100.0; 3]);
            let cases = cases(
                "One TCP transfer over time",
                Quantity::Throughput,
                [idle, ("IPv4, x, with CPU hogs", values)],
            );
            found(cases, "With CPU hogs / on an idle machine, one TCP transfer, encryption")
        };
        assert_eq!(
            with_hogs([50.0, 52.0, 51.0]),
            "0.510 (0.500–0.520): reproduced: the same direction, the difference within a factor of 1.5"
        );
        assert!(with_hogs([99.0, 101.0, 100.0]).contains("no difference beyond A/A; then the link"));
        let video = |values| {
            let cases = [("IPv6, video, idle machine", values), ("IPv6, video, with CPU hogs", [1.0; 3])];
            found(cases_of_video(cases), "Live video, delivered with encryption")
        };
        assert!(
            video([75.0, 76.0, 74.0])
                .ends_with("reproduced: 25.0 % lost, then 30.0 %, within a factor of 1.5")
        );
        assert!(video([99.9, 100.0, 99.8]).starts_with("0.999 (0.998–1.00): no difference beyond A/A; "));
    }

    #[test]
    fn a_difference_of_another_size_is_not_reproduced() {
        // Then 2.13, so one exceeded the other by 113 %.
        let near = Some([0.99, 1.0, 1.01]);
        let small = said([10.5, 10.5, 10.6], [10.0; 3], near);
        assert!(
            small.contains(
                ": the same direction, smaller: one exceeds the other by 5.00 %, then by 113 %; then "
            ) && !small.contains("reproduced: "),
            "{small}"
        );
        assert!(said([50.0; 3], [10.0; 3], near).contains(": the same direction, larger: "));
        assert!(said([18.0; 3], [10.0; 3], near).contains(": reproduced: "), "80 % and 113 %");
        assert!(said([17.0; 3], [10.0; 3], near).contains(" smaller: "), "70 % and 113 %");
        assert_eq!(judge_difference(0.5, 0.51).1, judge_difference(2.0, 1.0 / 0.51).1);
        assert!(
            judge_difference(0.5, 0.51).1 && !judge_difference(0.5, 0.9).1 && !judge_difference(0.5, 2.0).1
        );
    }

    #[test]
    fn a_delivered_share_is_judged_by_what_was_lost() {
        assert_eq!(
            judge_loss(0.7, 0.995),
            ("reversed: less than 20.0 % lost (0.500 % lost, then 30.0 %)".into(), false)
        );
        assert_eq!(
            judge_loss(0.7, 0.4),
            ("the same direction, larger: 60.0 % lost, then 30.0 %".into(), false)
        );
        assert!(judge_loss(0.7, 0.79).1 && judge_loss(0.7, 0.56).1 && !judge_loss(0.7, 0.81).1);
    }

    #[test]
    fn a_ratio_is_of_one_round_and_few_rounds_are_not_judged() {
        // The first of six rounds lost its encrypted measurement, and the machine was twice as fast
        // from round to round.
        let mut section = section([20.0, 40.0, 80.0], [0.0; 3], Some([0.9, 1.0, 1.1]));
        let cells = &mut section.rows[0].cells;
        cells[0].values = (1..=6).map(|round| (round, 20.0 * f64::from(1 << round))).collect();
        cells[1].values = (2..=6).map(|round| (round, 10.0 * f64::from(1 << round))).collect();
        let rows = |section: Section| compared(&[section])[0][2].clone();
        assert!(rows(section).starts_with("2.00 (2.00–2.00): reproduced: "));
        let mut once = self::section([20.0; 3], [10.0; 3], Some([0.9, 1.0, 1.1]));
        once.rows[0].cells[1].values.retain(|round, _| *round < 5);
        assert!(rows(once).starts_with("2.00 (2.00–2.00): not judged: fewer than 5 rounds"));
    }

    #[test]
    fn aead_findings_are_compared_with_the_cipher_experiment() {
        let mut section = section([12.0; 3], [10.0; 3], Some([0.99, 1.0, 1.01]));
        section.name = SECTION_NATIVE.into();
        section.rows[0].case = SENDS.into();
        section.columns = ["aes-256-gcm", "chacha20-poly1305"].map(String::from).into();
        let rows = compared(&[section]);
        assert_eq!(rows.len(), 1, "{rows:?}");
        assert_eq!((rows[0][0].as_str(), rows[0][1].as_str()), (CIPHER_FINDINGS[0].about, "1.14"));
        assert!(rows[0][2].starts_with("1.20 (1.20–1.20): reproduced"), "{}", rows[0][2]);
    }

    fn cases_of_video(values: [(&str, [f64; 3]); 2]) -> Section {
        cases("Live video over UDP", Quantity::Delivered, values)
    }

    #[test]
    fn equal_published_figures_are_reproduced_or_a_new_difference() {
        let buffers = |large| {
            let cases =
                [("IPv4, buffers of 57344 bytes", large), ("IPv4, buffers of 32768 bytes", [10.0; 3])];
            let section = super::tests::cases("TCP stream", Quantity::Throughput, cases);
            found(section, "Socket buffers of 57,344 / 32,768 bytes, one encrypted TCP stream")
        };
        assert!(buffers([10.1, 10.0, 9.9]).ends_with("reproduced: no difference beyond A/A"));
        assert!(buffers([20.0; 3]).contains("a difference that was not there then; "));
    }
}
