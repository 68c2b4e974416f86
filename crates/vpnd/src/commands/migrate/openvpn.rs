//! The text of an OpenVPN configuration as directives: words with quotes, comments, and files that
//! stand inline.

/// A line: a name and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Directive {
    pub(super) line: usize,
    pub(super) words: Vec<String>,
}

impl Directive {
    pub(super) fn name(&self) -> &str {
        self.words.first().map_or("", |name| name.trim_start_matches("--"))
    }

    pub(super) fn argument(&self, at: usize) -> Option<&str> {
        self.words.get(at + 1).map(String::as_str)
    }
}

/// The directives of a text. What stands inline (`<ca>`) is one with the name alone, and if it has
/// no end, another one with the brackets.
pub(super) fn directives(text: &str) -> Vec<Directive> {
    let mut found = Vec::new();
    let mut inline: Option<(usize, String)> = None;
    // Editors of Windows begin a file with a byte order mark.
    for (line, text) in (1..).zip(text.trim_start_matches('\u{feff}').lines()) {
        let trimmed = text.trim();
        if let Some((_, end)) = &inline {
            if trimmed == end {
                inline = None;
            }
            continue;
        }
        if let Some(name) = trimmed.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')) {
            inline = Some((line, format!("</{name}>")));
            found.push(Directive { line, words: vec![name.to_owned()] });
            continue;
        }
        let words = words(trimmed);
        if !words.is_empty() {
            found.push(Directive { line, words });
        }
    }
    if let Some((line, end)) = inline {
        found.push(Directive { line, words: vec![end.replacen('/', "", 1)] });
    }
    found
}

/// The words of a line: with quotes of both kinds, a backslash before a character, and a comment
/// where a word would begin.
pub(super) fn words(text: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let (mut quote, mut chars) = (None, text.chars());
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\\', None | Some('"')) => word.get_or_insert_default().extend(chars.next()),
            (c, Some(open)) if c == open => quote = None,
            (c, Some(_)) => word.get_or_insert_default().push(c),
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            ('#' | ';', None) if word.is_none() => break,
            (c, None) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}
