//! Replays a committed corpus with the body of its fuzz target. Shared by the tests of the crates
//! whose parsers are fuzzed.

use std::path::Path;

/// This many of the shortest beginnings of one file are tried, and as many that are spread over it.
const BEGINNINGS: usize = 200;
/// A corpus with fewer files has got lost.
const LEAST_FILES: usize = 4;

/// Runs `body` on every file of a target's corpus, and on beginnings of it.
///
/// # Panics
/// If the body does, or there is no corpus.
pub(crate) fn replay(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files = 0;
    for entry in folder.read_dir().expect("the corpus is committed") {
        let path = entry.expect("the folder can be read").path();
        let data = std::fs::read(&path).expect("the file can be read");
        // Shown only if the body panics.
        println!("{}", path.display());
        let spread = (BEGINNINGS..data.len()).step_by(1 + data.len() / BEGINNINGS);
        (0..data.len().min(BEGINNINGS)).chain(spread).for_each(|len| body(&data[..len]));
        body(&data);
        files += 1;
    }
    assert!(files >= LEAST_FILES, "{} has too few files", folder.display());
}
