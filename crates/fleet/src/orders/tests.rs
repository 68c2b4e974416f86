use std::collections::BTreeMap;

use proptest::prelude::*;
use vpnd_crypto::Secret;

use super::*;

const NOW: Time = Time::from_nanos(1_000_000_000);
/// The time at which datagrams are sent, seconds since 1970.
const SENT_S: u64 = 1_000;

fn counting() -> Random {
    let mut number = 0_u8;
    Box::new(move |bytes| {
        number = number.wrapping_add(1);
        bytes.fill(number);
    })
}

fn address(number: u8) -> SocketAddr {
    ([192, 0, 2, number], 4_433).into()
}

fn name(number: u8) -> String {
    format!("gw{number}")
}

/// The gateways 1 to `count`, which know one another.
fn fleet(count: u8) -> Vec<Orders> {
    let own = |number| Orders::new(OwnKey::new(Secret::new([number; 32])), counting());
    let mut fleet: Vec<Orders> = (1..=count).map(own).collect();
    let keys: Vec<PublicKey> = fleet.iter().map(Orders::public_key).collect();
    for gateway in &mut fleet {
        for (number, key) in (1..).zip(&keys) {
            gateway.learn(&name(number), *key, address(number));
        }
    }
    fleet
}

fn order(id: u8) -> Order {
    Order {
        id: [id; 16].into(),
        user: UserName::new("ann").unwrap(),
        device: None,
        cause: RevocationCause::Kicked,
        at_s: 1_000,
        is_stored: false,
        sent_s: SENT_S,
    }
}

/// The only datagram that is due.
fn due(gateway: &mut Orders, now: Time) -> Vec<u8> {
    let mut outgoing = gateway.poll(now, SENT_S);
    assert_eq!(outgoing.len(), 1, "{outgoing:?}");
    outgoing.remove(0).datagram
}

fn confirmed(gateway: &Orders, id: u8) -> Vec<Option<u64>> {
    gateway.confirmations(&[id; 16]).into_iter().map(|confirmation| confirmation.sessions).collect()
}

#[test]
fn an_order_is_sent_to_all_others_until_they_confirm_it() {
    let mut fleet = fleet(3);
    assert!(fleet[0].give(NOW, order(1)));
    let sent = fleet[0].poll(NOW, SENT_S);
    assert_eq!(sent.iter().map(|outgoing| outgoing.to).collect::<Vec<_>>(), [address(2), address(3)]);
    assert!(fleet[0].poll(NOW, SENT_S).is_empty(), "not twice at once");
    assert_eq!(fleet[1].receive(&sent[0].datagram), Some(order(1)));
    assert!(fleet[1].poll(NOW, SENT_S).is_empty(), "not before it is carried out");
    fleet[1].carried_out([1; 16].into(), Some(2));
    let confirmation = due(&mut fleet[1], NOW);
    assert_eq!(fleet[0].receive(&confirmation), None);
    assert_eq!(confirmed(&fleet[0], 1), [Some(2), None]);

    let again = fleet[0].poll(NOW + FAST, SENT_S + 1);
    assert_eq!(again.iter().map(|outgoing| outgoing.to).collect::<Vec<_>>(), [address(3)]);
    let received = fleet[2].receive(&again[0].datagram);
    assert_eq!(received, Some(Order { sent_s: SENT_S + 1, ..order(1) }), "it says when it was sent");
    let later = NOW + FAST_FOR;
    assert_eq!(fleet[0].poll(later, SENT_S).len(), 1);
    assert!(fleet[0].poll(later + FAST, SENT_S).is_empty(), "by now there is time");
    assert_eq!(fleet[0].poll(later + SLOW, SENT_S).len(), 1);
    fleet[0].keep_given(&BTreeSet::new());
    assert!(fleet[0].poll(later + 2 * SLOW, SENT_S).is_empty());
}

#[test]
fn a_replayed_order_is_confirmed_again_and_not_carried_out_again() {
    let mut fleet = fleet(2);
    fleet[0].give(NOW, order(1));
    let sent = due(&mut fleet[0], NOW);
    assert_eq!(fleet[1].receive(&sent), Some(order(1)));
    assert_eq!(fleet[1].receive(&sent), None, "it is under way");
    assert!(fleet[1].poll(NOW, SENT_S).is_empty());
    fleet[1].carried_out([1; 16].into(), Some(1));
    fleet[1].poll(NOW, SENT_S);
    let repeated = due(&mut fleet[0], NOW + FAST);
    for datagram in [&sent, &repeated] {
        assert_eq!(fleet[1].receive(datagram), None);
        let confirmation = due(&mut fleet[1], NOW);
        fleet[0].receive(&confirmation);
    }
    assert_eq!(confirmed(&fleet[0], 1), [Some(1)]);
}

#[test]
fn an_order_that_was_put_off_is_carried_out_when_it_is_repeated() {
    let mut fleet = fleet(2);
    fleet[0].give(NOW, order(1));
    let sent = due(&mut fleet[0], NOW);
    assert!(fleet[1].receive(&sent).is_some());
    fleet[1].put_off([1; 16].into());
    assert!(fleet[1].poll(NOW, SENT_S).is_empty());
    assert_eq!(fleet[1].receive(&sent), Some(order(1)));
}

#[test]
fn an_order_whose_end_was_not_stored_is_not_confirmed_on_its_repetition() {
    let mut fleet = fleet(2);
    fleet[0].give(NOW, order(1));
    let sent = due(&mut fleet[0], NOW);
    assert!(fleet[1].receive(&sent).is_some());
    fleet[1].carried_out([1; 16].into(), None);
    assert_eq!(fleet[1].receive(&sent), None, "there is no session left that it could end");
    assert!(fleet[1].poll(NOW, SENT_S).is_empty());
}

#[test]
fn orders_of_strangers_and_of_gateways_that_have_left_change_nothing() {
    let mut fleet = fleet(3);
    fleet[2].give(NOW, order(1));
    let sent = fleet[2].poll(NOW, SENT_S).remove(1).datagram;
    let mut stranger = Orders::new(OwnKey::new(Secret::new([9; 32])), counting());
    stranger.learn("gw2", fleet[1].public_key(), address(2));
    stranger.give(NOW, order(2));
    assert_eq!(fleet[1].receive(&due(&mut stranger, NOW)), None, "its key is none of the fleet's");
    fleet[1].keep_only(&BTreeSet::from(["gw1", "gw2"]));
    assert_eq!(fleet[1].receive(&sent), None, "it is of the fleet no more");
}

#[test]
fn a_confirmation_counts_for_its_sender_alone() {
    let mut fleet = fleet(3);
    fleet[0].give(NOW, order(1));
    fleet[0].poll(NOW, SENT_S);
    fleet[2].give(NOW, order(1));
    fleet[2].poll(NOW, SENT_S);
    // The second has the order of the third with the same name.
    let sent = fleet[2].poll(NOW + FAST, SENT_S).remove(1).datagram;
    assert!(fleet[1].receive(&sent).is_some());
    fleet[1].carried_out([1; 16].into(), Some(7));
    let confirmation = fleet[1].poll(NOW, SENT_S).remove(0);
    assert_eq!(confirmation.to, address(3));
    fleet[0].receive(&confirmation.datagram);
    assert_eq!(confirmed(&fleet[0], 1), [None, None], "it is for another gateway");
}

#[test]
fn a_new_gateway_or_key_gets_the_pending_orders() {
    let mut fleet = fleet(2);
    fleet[0].give(NOW, order(1));
    let sent = due(&mut fleet[0], NOW);
    fleet[1].receive(&sent);
    fleet[1].carried_out([1; 16].into(), Some(0));
    let confirmation = due(&mut fleet[1], NOW);
    fleet[0].receive(&confirmation);
    assert!(fleet[0].poll(NOW + SLOW, SENT_S).is_empty());
    fleet[0].learn("gw2", OwnKey::new(Secret::new([8; 32])).public(), address(8));
    fleet[0].learn("gw7", OwnKey::new(Secret::new([7; 32])).public(), address(7));
    let sent = fleet[0].poll(NOW + SLOW, SENT_S);
    assert_eq!(sent.iter().map(|outgoing| outgoing.to).collect::<Vec<_>>(), [address(8), address(7)]);
}

fn numbered(number: usize) -> Order {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&number.to_be_bytes());
    Order { id: id.into(), ..order(0) }
}

fn pass_on(gateway: &mut Orders, now: Time, numbers: std::ops::Range<usize>) -> usize {
    gateway.pass_on(now, &numbers.map(numbered).collect::<Vec<_>>(), BTreeSet::from([name(2), name(3)]))
}

#[test]
fn an_order_that_is_passed_on_is_for_some_gateways_and_for_some_time() {
    let mut fleet = fleet(4);
    pass_on(&mut fleet[0], NOW, 0..1);
    assert!(fleet[0].give(NOW, order(9)));
    let to = |sent: Vec<Outgoing>| sent.into_iter().map(|outgoing| outgoing.to).collect::<Vec<_>>();
    let sent = fleet[0].poll(NOW, SENT_S);
    assert_eq!(to(sent.clone()), [2, 3, 4, 2, 3].map(address), "those that are for all come first");
    for number in [1, 2] {
        assert!(fleet[number].receive(&sent[2 + number].datagram).is_some());
        fleet[number].carried_out([0; 16].into(), Some(0));
        let confirmation = due(&mut fleet[number], NOW);
        fleet[0].receive(&confirmation);
    }
    assert_eq!(fleet[0].poll(NOW + FAST, SENT_S).len(), 3);
    assert_eq!(fleet[0].given.len(), 1, "it is confirmed");
    pass_on(&mut fleet[0], NOW, 1..2);
    assert_eq!(fleet[0].poll(NOW + PASSED_ON_FOR, SENT_S).len(), 5);
    assert_eq!(fleet[0].poll(NOW + PASSED_ON_FOR + SLOW, SENT_S).len(), 3, "it is too old");
    fleet[0].keep_given(&BTreeSet::new());
    assert!(fleet[0].given.is_empty());
}

#[test]
fn a_thousand_orders_are_passed_on_though_one_gateway_is_silent() {
    let mut fleet = fleet(3);
    let (mut now, mut carried_out) = (NOW, BTreeSet::new());
    for part in 0..8 {
        assert_eq!(pass_on(&mut fleet[0], NOW, part * 125..(part + 1) * 125), 0);
    }
    for turn in 0..20 {
        // It confirms nothing before it has all of them.
        for outgoing in fleet[0].poll(now, SENT_S).into_iter().filter(|outgoing| outgoing.to == address(3)) {
            carried_out.extend(fleet[2].receive(&outgoing.datagram).map(|order| order.id));
        }
        if turn == 2 {
            assert!(fleet[0].give(now, order(255)));
            assert_eq!(fleet[0].poll(now, SENT_S)[0].to, address(2), "a kick waits for none of them");
        }
        now = now + Duration::from_millis(100);
    }
    assert!((0..1_000).all(|number| carried_out.contains(&numbered(number).id)));
}

#[test]
fn orders_that_were_sent_make_room_for_those_that_are_passed_on() {
    let mut fleet = fleet(3);
    assert_eq!(pass_on(&mut fleet[0], NOW, 0..MAX_PASSED_ON), 0);
    assert_eq!(pass_on(&mut fleet[0], NOW, MAX_PASSED_ON..MAX_PASSED_ON + 1), 1, "none was sent");
    assert_eq!(fleet[0].poll(NOW, SENT_S).len(), MAX_AT_ONCE);
    assert_eq!(pass_on(&mut fleet[0], NOW + FAST, 5_000..5_000 + MAX_AT_ONCE), MAX_AT_ONCE / 2);
    assert_eq!(fleet[0].given.len(), MAX_PASSED_ON);
    assert!(!fleet[0].is_given(&numbered(0).id) && fleet[0].is_given(&numbered(5_000).id));
    assert!(fleet[0].give(NOW + FAST, order(255)), "there is room for others");
}

#[test]
fn numbers_have_limits() {
    let mut fleet = fleet(2);
    let numbered = |number: usize| {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        let (user, device) = (UserName::new("n".repeat(128)).unwrap(), Some([number as u8; 16].into()));
        Order { id: id.into(), user, device, at_s: u64::MAX, ..order(0) }
    };
    assert!((0..MAX_GIVEN).all(|number| fleet[0].give(NOW, numbered(number))));
    assert!(!fleet[0].give(NOW, numbered(MAX_GIVEN)));
    assert_eq!(fleet[0].poll(NOW, SENT_S).len(), MAX_AT_ONCE);
    assert_eq!(fleet[0].poll(NOW, SENT_S).len(), MAX_GIVEN - MAX_AT_ONCE, "the others have their turn");
    for number in 0..2 * MAX_TAKEN {
        let order = numbered(number);
        assert_eq!(fleet[1].take("gw1".to_owned(), order.clone()), Some(order));
    }
    assert_eq!(fleet[1].taken.len(), MAX_TAKEN);
    for number in 0..=MAX_GATEWAYS {
        let key = OwnKey::new(Secret::new([number as u8; 32])).public();
        fleet[1].learn(&format!("other{number}"), key, address(1));
    }
    assert_eq!(fleet[1].gateways.len(), MAX_GATEWAYS);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_bytes_are_taken_or_ignored(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let mut fleet = fleet(2);
        prop_assert_eq!(fleet[1].receive(&bytes), None);
    }

    /// Whatever is lost, doubled or late: each order is carried out once, and all are confirmed in
    /// the end.
    #[test]
    fn orders_arrive_once_on_a_bad_network(fates in proptest::collection::vec(0..4_u8, 1..60)) {
        let mut fleet = fleet(3);
        let mut fates = fates.into_iter();
        let (mut now, mut late, mut carried_out) = (NOW, Vec::new(), BTreeMap::new());
        fleet[0].give(now, order(1));
        fleet[1].give(now, order(2));
        for _ in 0..200 {
            let mut on_their_way: Vec<Outgoing> = std::mem::take(&mut late);
            on_their_way.extend(fleet.iter_mut().flat_map(|gateway| gateway.poll(now, SENT_S)));
            for outgoing in on_their_way {
                let to = (1..=3).find(|number| address(*number) == outgoing.to).unwrap();
                let copies = match fates.next() {
                    Some(0) => 0,
                    Some(1) => 2,
                    Some(2) => {
                        late.push(outgoing);
                        continue;
                    }
                    _ => 1,
                };
                for _ in 0..copies {
                    let receiver = &mut fleet[usize::from(to) - 1];
                    if let Some(order) = receiver.receive(&outgoing.datagram) {
                        *carried_out.entry((to, order.id)).or_insert(0) += 1;
                        receiver.carried_out(order.id, Some(1));
                    }
                }
            }
            now = now + FAST;
        }
        prop_assert_eq!(carried_out.into_values().collect::<Vec<_>>(), vec![1; 4]);
        prop_assert_eq!(confirmed(&fleet[0], 1), vec![Some(1); 2]);
        prop_assert_eq!(confirmed(&fleet[1], 2), vec![Some(1); 2]);
    }
}
