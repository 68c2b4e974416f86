//! Sequences of actions that a fuzzer chose, and random ones, against the reference model.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, RngExt, SeedableRng};

use crate::model;
use crate::runs::with_seeds;

#[test]
fn the_corpus_breaks_no_rule() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/model");
    let mut files = 0;
    for entry in folder.read_dir().expect("the corpus is committed") {
        let path = entry.expect("the folder can be read").path();
        // Shown only if a rule is broken.
        println!("{}", path.display());
        model::run(&std::fs::read(&path).expect("the file can be read"));
        files += 1;
    }
    assert!(files > 3, "the corpus has too few files");
}

/// `SIM_RUNS=1000000` is the long form.
#[test]
fn random_sequences_break_no_rule() {
    with_seeds(60, |seed| {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut bytes = vec![0; rng.random_range(0..400)];
        rng.fill_bytes(&mut bytes);
        model::run(&bytes);
    });
}
