//! The database is away for an hour of virtual time.

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn an_hour_without_the_database_ends_no_session_and_loses_no_token() {
    let mut fleet = Fleet::new(1);
    let devices = [1, 2, 3];
    for device in devices {
        fleet.log_in(device);
    }
    fleet.pass(POLL);
    let until = fleet.elapsed + 60 * MINUTE;
    for gateway in &mut fleet.gateways {
        gateway.cut_until = until;
        gateway.store.cut(true);
    }
    let members =
        |fleet: &Fleet| fleet.gateways.iter().map(|gateway| gateway.members.clone()).collect::<Vec<_>>();
    let before = members(&fleet);
    assert_eq!(before.iter().map(BTreeMap::len).sum::<usize>(), devices.len());
    for _ in 1..60 {
        fleet.pass(MINUTE);
        fleet.log_in(9);
        assert!(!fleet.clients.contains_key(&9), "there is no login");
        for device in devices {
            let epoch = fleet.clients[&device].epoch;
            fleet.rekey(device);
            assert!(fleet.clients[&device].epoch > epoch, "new keys need no database");
            fleet.attach(device);
        }
        assert_eq!((members(&fleet), fleet.moves), (before.clone(), 0), "all stay where they are");
        fleet.check();
    }
    fleet.pass(2 * MINUTE);
    for device in devices {
        assert!(!fleet.gateways[fleet.clients[&device].at].store.has_put_off(), "it has caught up");
        // From here on a token that another gateway does not know is a failure.
        fleet.clients.get_mut(&device).unwrap().is_behind = false;
    }
    for _ in 0..50 {
        devices.into_iter().for_each(|device| fleet.attach(device));
    }
    assert!(fleet.moves >= devices.len(), "{}", fleet.moves);
    fleet.check_quiet();
}
