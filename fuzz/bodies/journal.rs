//! Any bytes as a client's undo journal, and as its records: a reader never fails, a damaged line
//! costs itself only, and what is read can be written and is then read as the same.
//!
//! Input: lines. They are read as they are, and once more behind the right checksum of each, which
//! mutations never hit.

use vpnd_journal::record::{Contents, checksum, parse};

/// Checks one input.
pub fn run(data: &[u8]) {
    let lines = data.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
    check(&parse(data), lines);
    let mut summed = Vec::with_capacity(2 * data.len());
    for line in data.split(|byte| *byte == b'\n') {
        summed.extend_from_slice(checksum(line).as_bytes());
        summed.push(b' ');
        summed.extend_from_slice(line);
        summed.push(b'\n');
    }
    let contents = parse(&summed);
    check(&contents, summed.iter().filter(|byte| **byte == b'\n').count());
    // Lines after a torn one are not lost.
    let torn = [&summed[..summed.len() / 2], b"\n", &summed].concat();
    assert!(parse(&torn).changes.len() >= contents.changes.len());
}

fn check(contents: &Contents, lines: usize) {
    assert!(contents.changes.len() + contents.damaged_lines + usize::from(contents.owner.is_some()) <= lines);
    for change in &contents.changes {
        let written = serde_json::to_vec(change).expect("a change can always be written");
        assert_eq!(
            &serde_json::from_slice::<vpnd_sys::change::Change>(&written).expect("it was written"),
            change
        );
        let _ = format!("{change:?}");
    }
}
