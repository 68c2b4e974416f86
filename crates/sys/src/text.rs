//! Text of others for terminals and logs, and names that the kernel takes.

/// The error and its causes, without those that the sentence before quotes already, for a person's
/// terminal.
#[must_use]
pub fn format_chain(error: &anyhow::Error) -> String {
    let text =
        error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match text.as_str() {
            "" => cause,
            written if written.contains(&cause) => text,
            _ => format!("{text}: {cause}"),
        });
    plain(&text)
}

/// Text without what would play with a terminal: some of it comes from others, as a gateway's
/// reason does.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if is_deceptive(c) && !matches!(c, '\n' | '\t') { '?' } else { c }).collect()
}

/// Whether it is a control character, or one that changes the direction of text or hides in it.
pub fn is_deceptive(c: char) -> bool {
    c.is_control() || is_hidden(c)
}

fn is_hidden(c: char) -> bool {
    matches!(c, '\u{AD}' | '\u{61C}' | '\u{180E}' | '\u{FEFF}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}')
        || matches!(c, '\u{2060}'..='\u{206F}' | '\u{FFF0}'..='\u{FFFB}' | '\u{E0000}'..='\u{E0FFF}')
}

/// One line of a stranger's text, for a terminal and logs: without control characters, and without
/// those that change the direction of text or hide in it.
pub fn harmless(text: &str) -> String {
    let visible = text.chars().filter(|c| !is_hidden(*c));
    let line: String = visible.map(|c| if c.is_control() { ' ' } else { c }).collect();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether `name` can be the name of a network interface.
pub fn is_interface_name(name: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (1..=15).contains(&name.len()) && name.bytes().all(is_allowed) && name != "." && name != ".."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_contain_no_terminal_control_sequences() {
        let error = anyhow::anyhow!("\x1b[2J\rall is well\u{9b}m").context("the gateway refuses this client");
        assert_eq!(format_chain(&error), "the gateway refuses this client: ?[2J?all is well?m");
        assert_eq!(plain("line 3:\n\tä"), "line 3:\n\tä");
        assert_eq!(plain("ann\u{202e}gro\u{200b}.elpmaxe"), "ann?gro?.elpmaxe");
    }

    #[test]
    fn a_strangers_text_is_one_line_that_reads_as_it_is() {
        assert_eq!(harmless(" Code \x1b[31m(SMS)\r\npassword\u{9b}2J: "), "Code [31m(SMS) password 2J:");
        assert_eq!(harmless("abc\u{202e}def\u{200b}g\u{feff}\u{2069}\u{e0041}ä"), "abcdefgä");
        assert_eq!(harmless("\n\t"), "");
    }
}
