//! On a good network everything arrives, once.

use super::*;
use crate::runs::with_seeds;

#[test]
fn everything_arrives_once() {
    with_seeds(5, |seed| {
        let mut world = world(seed, 3, Path::CLEAN, true);
        talk(&mut world, ms(20), secs(10));
        world.flow(Place::Device(0), Place::Device(1), ms(20), secs(10));
        world.run(secs(12));
        let (sent, arrived) = world.oracle.tally(0);
        assert!(sent > 3000);
        assert_eq!(arrived, sent);
    });
}

#[test]
fn duplicates_and_reordering_do_not_show() {
    with_seeds(5, |seed| {
        let path = Path { duplication: 0.3, jitter: ms(80), ..Path::CLEAN };
        let mut world = world(seed, 2, path, true);
        talk(&mut world, ms(5), secs(10));
        world.flow(Place::Device(0), Place::Device(1), ms(5), secs(10));
        world.run(secs(12));
        let (sent, arrived) = world.oracle.tally(0);
        assert_eq!(arrived, sent);
    });
}
