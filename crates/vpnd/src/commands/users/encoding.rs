//! The text of a file that a spreadsheet has saved.
//!
//! INVARIANT: a text is read as what it certainly is, or not at all: a password that was read in a
//! wrong encoding would be another one.

use zeroize::Zeroizing;

const UTF8_MARK: &[u8] = &[0xEF, 0xBB, 0xBF];
const SAVE_ANEW: &str = "save it as UTF-8 ('CSV UTF-8' in Excel, 'Unicode (UTF-8)' in LibreOffice)";
/// Letters at the same place in the code pages of Windows and ISO for Western and Central Europe,
/// where Unicode has them, too: ÁÂÄÇÉËÍÎÓÔÖÚÜÝß and their small ones.
const COMMON: &[u8] = &[
    0xC1, 0xC2, 0xC4, 0xC7, 0xC9, 0xCB, 0xCD, 0xCE, 0xD3, 0xD4, 0xD6, 0xDA, 0xDC, 0xDD, 0xDF, 0xE1, 0xE2,
    0xE4, 0xE7, 0xE9, 0xEB, 0xED, 0xEE, 0xF3, 0xF4, 0xF6, 0xFA, 0xFC, 0xFD,
];

/// Reads UTF-8, UTF-16 with its mark, and the ANSI of Windows as far as its code page does not
/// matter.
///
/// # Errors
/// A sentence for the administrator.
pub(super) fn decode(bytes: &[u8]) -> Result<Zeroizing<String>, String> {
    let utf16 = |bytes: &[u8], number: fn([u8; 2]) -> u16| {
        let (units, rest) = bytes.as_chunks::<2>();
        let text = String::from_utf16(&units.iter().map(|unit| number(*unit)).collect::<Vec<_>>());
        match text {
            Ok(text) if rest.is_empty() => Ok(Zeroizing::new(text)),
            _ => Err(format!("it begins as UTF-16 and is not valid UTF-16: {SAVE_ANEW}")),
        }
    };
    match bytes {
        [0xFF, 0xFE, rest @ ..] => return utf16(rest, u16::from_le_bytes),
        [0xFE, 0xFF, rest @ ..] => return utf16(rest, u16::from_be_bytes),
        _ if bytes.contains(&0) => {
            return Err(format!("it is no text, or UTF-16 without a mark: {SAVE_ANEW}"));
        }
        _ => {}
    }
    let bytes = bytes.strip_prefix(UTF8_MARK).unwrap_or(bytes);
    if let Ok(text) = str::from_utf8(bytes) {
        return Ok(Zeroizing::new(text.to_owned()));
    }
    if bytes.iter().all(|byte| byte.is_ascii() || COMMON.contains(byte)) {
        return Ok(Zeroizing::new(bytes.iter().map(|byte| char::from(*byte)).collect()));
    }
    Err(format!("it is neither UTF-8 nor UTF-16, and its code page is unknown: {SAVE_ANEW}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(bytes: &[u8]) -> String {
        decode(bytes).unwrap().to_string()
    }

    #[test]
    fn one_text_is_read_in_each_encoding_that_is_certain() {
        let text = "name;password\nbea;größer als 8\n";
        let utf16 = |number: fn(u16) -> [u8; 2]| {
            let units = [0xFEFF].into_iter().chain(text.encode_utf16());
            units.flat_map(number).collect::<Vec<u8>>()
        };
        let ansi: Vec<u8> = text.chars().map(|c| c as u8).collect();
        assert_eq!(decoded(text.as_bytes()), text);
        assert_eq!(decoded(&[UTF8_MARK, text.as_bytes()].concat()), text);
        assert_eq!(decoded(&utf16(u16::to_le_bytes)), text);
        assert_eq!(decoded(&utf16(u16::to_be_bytes)), text);
        assert_eq!(decoded(&ansi), text);
    }

    #[test]
    fn what_is_not_certain_is_refused() {
        // A euro sign of Windows, u umlaut of DOS, and e grave, which is c caron elsewhere.
        for bytes in [&b"a\x80"[..], b"\x81", b"\xE8", b"\xFF\xFEa", b"\xFF\xFE\x00\xD8", b"a\0b\0"] {
            let error = decode(bytes).unwrap_err();
            assert!(error.contains("UTF-8") && !error.contains('\n'), "{error}");
        }
    }
}
