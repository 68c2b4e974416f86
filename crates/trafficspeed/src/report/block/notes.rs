//! How the figures of the block experiment came about, in words.

use crate::experiment::block::{BlockReport, sealing_as};
use crate::experiment::hosts::host_pairs::HostEnd;
use crate::system::{Cipher, SystemInfo};
use crate::unit::significant;

/// One sentence or two for each circumstance.
pub(super) fn notes(report: &BlockReport) -> Vec<String> {
    let meaning = if report.synced {
        "an answer means that the block is on disk (fdatasync before each answer; blocks that come meanwhile share one)"
    } else {
        "an answer only means that the kernel has the block (--no-sync)"
    };
    let (tunnel, windows) = if report.hosts.is_empty() {
        let SystemInfo { version, cipher, .. } = &report.facts;
        let windows = significant(f64::from(report.window_bytes) / f64::from(1 << 20));
        (
            format!("{} {version}, cipher {cipher}", report.system),
            format!(
                "TCP buffers of up to {windows} MiB, a quarter of that from the first round trip on, no slow start after a pause \
                 (the original: windows of 8 MB)"
            ),
        )
    } else {
        (report.system.clone(), "TCP windows as the hosts have them".into())
    };
    let mut notes = vec![
        format!("Target: {}; {meaning}.", report.target),
        format!("Tunnel: {tunnel}. {}", sealed(report)),
        format!("Congestion control of both ends: {}. {}; medians.", report.congestion, times(report)),
        format!(
            "{windows}; {} s for each case after the window had opened; after each case every place of the target was \
             compared with what had been acknowledged.",
            report.seconds
        ),
    ];
    notes.push(
        if report.ready_first {
            "The target asks for each block before its data are sent (R2T), as the original's iSCSI did: two round trips for a block."
        } else {
            "The data of a block go with its command: one round trip for a block, where the original's iSCSI takes two (--r2t)."
        }
        .into(),
    );
    notes.extend(report.limits.iter().map(|limit| format!("Limited: {limit}.")));
    notes.extend(report.hosts.iter().map(HostEnd::words));
    notes.extend(report.links.iter().cloned());
    notes
}

/// The cipher of OP-n, and whether that is the tunnel's: if not, the figures compare
/// two ciphers as well.
fn sealed(report: &BlockReport) -> String {
    let reason = match report.tunnel_asked {
        Some(asked) if sealing_as(asked) == Some(report.sealing) => "the tunnel's cipher".to_owned(),
        Some(Cipher::Auto) => "the tunnel chose its cipher itself".to_owned(),
        Some(asked) => format!("not the tunnel's {}: blocks are sealed with AEADs alone", asked.name()),
        None => "the tunnel's cipher is not known".to_owned(),
    };
    format!("OP-n: {} ({reason}) in records of 32 KiB above TCP, without a VPN.", report.sealing.name())
}

/// How often each case was measured, as found rather than as asked for: a run may have been
/// interrupted, or cases failed.
fn times(report: &BlockReport) -> String {
    let asked = report.repeats;
    match report.found() {
        (least, most) if least == most && most == asked as usize => {
            format!("Each case was measured {asked} times")
        }
        (least, most) if least == most => format!("Each case was measured {most} of {asked} times"),
        (least, most) => format!("Each case was measured {least} to {most} of {asked} times"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::block::Case;
    use crate::experiment::block::tests::sample;
    use crate::load::block::seal::Sealing;

    #[test]
    fn the_cipher_above_tcp_is_named_and_whether_it_is_the_tunnels() {
        let mut report = sample();
        for (sealing, asked, expected) in [
            (Sealing::Aes256Gcm, Some(Cipher::Aes256Gcm), "aes-256-gcm (the tunnel's cipher)"),
            (
                Sealing::ChaCha20Poly1305,
                Some(Cipher::ChaCha20Poly1305),
                "chacha20-poly1305 (the tunnel's cipher)",
            ),
            (Sealing::Aes256Gcm, Some(Cipher::Auto), "aes-256-gcm (the tunnel chose its cipher itself)"),
            (Sealing::Aes256Gcm, Some(Cipher::AuthOnly), "aes-256-gcm (not the tunnel's auth-only"),
            (Sealing::Aes256Gcm, None, "aes-256-gcm (the tunnel's cipher is not known)"),
        ] {
            (report.sealing, report.tunnel_asked) = (sealing, asked);
            let said = notes(&report).join("\n");
            assert!(said.contains(&format!("OP-n: {expected}")), "{expected}: {said}");
        }
    }

    #[test]
    fn the_repeats_that_were_found_are_said() {
        let mut report = sample();
        let says = |report: &BlockReport, expected: &str| {
            let said = notes(report).join("\n");
            assert!(
                said.contains(&format!("Each case was measured {expected}; medians")),
                "{expected}: {said}"
            );
        };
        says(&report, "1 times");
        report.repeats = 3;
        says(&report, "1 of 3 times");
        let again = Case { repeat: 2, ..report.cases[0].clone() };
        report.cases.push(again);
        says(&report, "1 to 2 of 3 times");
        report.cases[1].problem = Some("broken".into());
        says(&report, "0 to 2 of 3 times");
        report.cases.clear();
        says(&report, "0 of 3 times");
    }
}
