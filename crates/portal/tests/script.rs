//! The pages' script, run by Node: public keys of WireGuard, and QR codes that
//! another program reads.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

use rqrr::PreparedImage;

/// Runs `program` behind the script. `None` where there is no Node, which CI has.
fn run(program: &str) -> Option<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/script.js");
    let program = format!("{}\n{program}", std::fs::read_to_string(script).unwrap());
    match Command::new("node").args(["-e", &program]).output() {
        Ok(output) if output.status.success() => Some(String::from_utf8(output.stdout).unwrap()),
        Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "the pages' script needs node: ./x setup ({error})");
            eprintln!("SKIPPED: the pages' script needs node: ./x setup");
            None
        }
    }
}

#[test]
fn a_public_key_is_that_of_the_specification() {
    // RFC 7748, section 6.1.
    for (secret, public) in [
        (
            "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
            "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
        ),
        (
            "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
            "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
        ),
    ] {
        let program = format!(
            "const secret = Buffer.from('{secret}', 'hex'); secret[0] &= 248; secret[31] = (secret[31] & 127) | 64;
             console.log(Buffer.from(publicKey(secret)).toString('hex'));"
        );
        let Some(output) = run(&program) else { return };
        assert_eq!(output.trim(), public);
    }
}

#[test]
fn qr_codes_of_every_length_are_read_by_another_program() {
    // Versions that configurations have, with each form of the length, and the longest text.
    let lengths = [1, 17, 100, 229, 230, 300, 500, 800, 1_200, 2_000, 2_953];
    let program = "
        for (const length of [LENGTHS]) {
            const text = Array.from({ length }, (_, i) => String.fromCharCode(33 + (i * 7 + length) % 90)).join('');
            console.log(qrCode(text).map((row) => row.map((on) => (on ? 1 : 0)).join('')).join('/'));
        }
        console.log(qrCode('x'.repeat(2954)));";
    let listed = lengths.map(|length| length.to_string()).join(",");
    let Some(output) = run(&program.replace("LENGTHS", &listed)) else { return };
    let mut lines = output.lines();
    for length in lengths {
        let rows: Vec<&[u8]> = lines.next().unwrap().split('/').map(str::as_bytes).collect();
        // Each square four pixels wide, within a margin of four squares.
        let pixels = 4 * (rows.len() + 8);
        let is_dark = |x: usize, y: usize| {
            let square = |at: usize| (at / 4).checked_sub(4);
            let row = square(y).and_then(|y| rows.get(y));
            row.zip(square(x)).and_then(|(row, x)| row.get(x)) == Some(&b'1')
        };
        let shade = |x, y| if is_dark(x, y) { 0 } else { 255 };
        let mut image = PreparedImage::prepare_from_greyscale(pixels, pixels, shade);
        let codes = image.detect_grids();
        assert_eq!(codes.len(), 1, "{length} bytes");
        let text: String = (0..length).map(|i| char::from(33 + ((i * 7 + length) % 90) as u8)).collect();
        assert_eq!(codes[0].decode().unwrap().1, text, "{length} bytes");
    }
    assert_eq!(lines.next(), Some("null"), "too long for any");
}

#[test]
fn the_script_writes_text_as_text_keeps_nothing_and_asks_this_host_alone() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/script.js");
    let script = std::fs::read_to_string(path).unwrap();
    let has = |word: &str| script.contains(word);
    assert!(has("textContent") && has("fetch(") && has("DOMParser"), "it does what is looked at here");
    for (word, why) in [
        ("innerHTML", "writes text as HTML"),
        ("outerHTML", "writes text as HTML"),
        ("insertAdjacentHTML", "writes text as HTML"),
        ("document.write", "writes text as HTML"),
        ("createContextualFragment", "writes text as HTML"),
        ("setHTML", "writes text as HTML"),
        ("eval(", "runs text"),
        ("Function(", "runs text"),
        ("import(", "runs text"),
        ("setTimeout(\"", "runs text"),
        ("localStorage", "keeps data in the browser"),
        ("sessionStorage", "keeps data in the browser"),
        ("indexedDB", "keeps data in the browser"),
        ("caches.", "keeps data in the browser"),
        ("document.cookie", "reads or sets cookies"),
        ("serviceWorker", "goes on behind the page"),
        ("postMessage", "speaks with other windows"),
        ("\"message\"", "speaks with other windows"),
        ("window.opener", "speaks with other windows"),
        ("__proto__", "changes what objects are"),
        ("prototype", "changes what objects are"),
        ("Object.assign", "makes an object of input"),
        ("JSON.parse", "makes an object of input"),
        ("XMLHttpRequest", "asks by another way"),
        ("WebSocket", "asks by another way"),
        ("sendBeacon", "asks by another way"),
        ("http:", "names another host"),
        ("https:", "names another host"),
    ] {
        // The namespace of drawings is a name and no address.
        let found = script.replace("http://www.w3.org/2000/svg", "").contains(word);
        assert!(!found, "{word}: the script {why}");
    }
    let asked: Vec<&str> =
        script.split("fetch(").skip(1).map(|rest| rest.split([',', ')']).next().unwrap()).collect();
    assert!(asked.iter().all(|place| *place == "form.action" || place.starts_with("\"/")), "{asked:?}");
}
