//! Whether a text is well-formed markup; for the tests of everything that writes some.

/// Elements of HTML that have no end.
const VOID: [&str; 2] = ["meta", "br"];

/// Fails unless every element is closed in order, quotes are balanced and no number is missing.
pub(crate) fn assert_well_formed(text: &str) {
    let mut open = Vec::new();
    let body = text.strip_prefix("<!DOCTYPE html>").unwrap_or(text);
    // Style sheets are text of another language.
    let body = match (body.find("<style>"), body.find("</style>")) {
        (Some(from), Some(to)) => format!("{}{}", &body[..from], &body[to + "</style>".len()..]),
        _ => body.to_owned(),
    };
    for part in body.split('<').skip(1) {
        let (tag, rest) = part.split_once('>').unwrap_or_else(|| panic!("`<{part}` has no end"));
        assert!(!rest.contains('>'), "a bare `>` after <{tag}>: {rest}");
        let name = tag.split_whitespace().next().expect("a name");
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(closed));
        } else if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name.to_owned());
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes are not balanced in <{tag}>");
    }
    assert!(open.is_empty(), "{open:?} stay open");
    assert!(
        !body.contains("NaN") && !body.contains("inf\"") && !body.contains("inf "),
        "a number is missing"
    );
}

#[test]
#[should_panic(expected = "stay open")]
fn what_is_not_closed_is_found() {
    assert_well_formed("<a><b/>");
}

#[test]
#[should_panic(expected = "quotes")]
fn what_is_not_quoted_is_found() {
    assert_well_formed("<a b=\"c/>");
}
