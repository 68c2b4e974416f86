//! Shares, order and the choice of what is dropped, against plain models.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;

const QUANTUM: u32 = 1_000;

fn queue() -> FairQueue<(u32, u32)> {
    FairQueue::new(QUANTUM, FEW as u32 * QUANTUM, 16)
}

/// A queue with this round and this number of flows and of entries in each, two in a quantum.
fn filled(round: u32, flows: u32, entries: u32) -> FairQueue<(u32, u32)> {
    let mut queue = FairQueue::new(QUANTUM, round, 16);
    for flow in 0..flows {
        fill(&mut queue, flow, entries);
    }
    queue
}

fn fill(queue: &mut FairQueue<(u32, u32)>, flow: u32, entries: u32) {
    for _ in 0..entries {
        queue.push(flow, (flow, QUANTUM / 2), of_cost(QUANTUM / 2));
    }
}

fn of_cost(cost: u32) -> Size {
    Size { cost, room: cost }
}

/// Entries are (flow, cost) here. Pops until `total` was served; returns each flow's part.
fn serve(queue: &mut FairQueue<(u32, u32)>, total: u32) -> BTreeMap<u32, u32> {
    let mut parts = BTreeMap::new();
    while parts.values().sum::<u32>() < total
        && let Some((flow, cost)) = queue.pop()
    {
        *parts.entry(flow).or_default() += cost;
    }
    parts
}

#[test]
fn a_flow_with_many_entries_gets_no_more_than_one_with_few() {
    let mut queue = queue();
    for _ in 0..1_000 {
        queue.push(0, (0, 300), of_cost(300));
    }
    for _ in 0..40 {
        for flow in 1..5 {
            queue.push(flow, (flow, 300), of_cost(300));
        }
    }
    let parts = serve(&mut queue, 30_000);
    assert_eq!(parts.len(), 5);
    let (least, most) = (parts.values().min().unwrap(), parts.values().max().unwrap());
    assert!(most - least <= QUANTUM + 2 * 300, "{parts:?}");
    // Once the others have nothing left, it has all.
    serve(&mut queue, u32::MAX - 300);
    assert!(queue.is_empty());
}

#[test]
fn a_new_flow_is_served_at_once() {
    let mut queue = queue();
    for flow in 0..100 {
        for _ in 0..10 {
            queue.push(flow, (flow, 900), of_cost(900));
        }
    }
    serve(&mut queue, 200_000);
    queue.push(200, (200, 100), of_cost(100));
    assert_eq!(queue.pop(), Some((200, 100)));
}

#[test]
fn a_small_new_flow_precedes_long_entries_of_other_new_flows() {
    let mut queue = queue();
    for flow in 0..10 {
        queue.push(flow, (flow, 5 * QUANTUM), of_cost(5 * QUANTUM));
    }
    queue.push(10, (10, QUANTUM), of_cost(QUANTUM));
    assert_eq!(queue.pop(), Some((10, QUANTUM)));
    // The long ones have lost nothing by that but their place before it.
    assert_eq!((0..10).map(|_| queue.pop().unwrap().0).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    // An entry behind a small one that does not fit with it into a quantum waits for its turn like
    // the rest.
    queue.push(20, (20, 4 * QUANTUM), of_cost(4 * QUANTUM));
    queue.push(21, (21, QUANTUM / 2), of_cost(QUANTUM / 2));
    queue.push(21, (21, QUANTUM), of_cost(QUANTUM));
    let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
    assert_eq!(order, [(21, QUANTUM / 2), (20, 4 * QUANTUM), (21, QUANTUM)]);
}

#[test]
fn a_flow_that_is_always_new_does_not_starve_others() {
    let mut queue = queue();
    for flow in 0..4 {
        for _ in 0..100 {
            queue.push(flow, (flow, 500), of_cost(500));
        }
    }
    // It sends its next entry as soon as another was served after its last one, so it never has a
    // backlog.
    let mut parts = BTreeMap::<u32, u32>::new();
    let mut waits = false;
    for _ in 0..200 {
        if !waits {
            queue.push(9, (9, 500), of_cost(500));
            waits = true;
        }
        for _ in 0..2 {
            let (flow, cost) = queue.pop().unwrap();
            *parts.entry(flow).or_default() += cost;
            waits &= flow != 9;
            if !waits && flow != 9 {
                break;
            }
        }
    }
    let least = (0..4).map(|flow| parts[&flow]).min().unwrap();
    assert!(parts[&9] <= least + 2 * QUANTUM, "{parts:?}");
}

#[test]
fn turns_are_longer_the_fewer_flows_share_a_round() {
    // Returns the number of entries in a row of the same flow, after the first round.
    let turn_of = |flows: u32| {
        let mut queue = filled(32 * QUANTUM, flows, 80);
        serve(&mut queue, flows * 8 * QUANTUM);
        let first = queue.pop().unwrap().0;
        1 + std::iter::from_fn(|| queue.pop()).take_while(|(flow, _)| *flow == first).count()
    };
    assert_eq!([2, 8, 16, 32, 64].map(turn_of), [8, 8, 4, 2, 2]);
}

#[test]
fn an_intermittent_flow_is_served_first_up_to_its_share() {
    let mut queue = filled(128 * QUANTUM, 7, 300);
    serve(&mut queue, 160 * QUANTUM);
    let comes = |queue: &mut FairQueue<_>| {
        queue.push(9, (9, 250), of_cost(250));
        queue.pop().unwrap().0 == 9 && queue.pop().unwrap().0 != 9
    };
    // Its turn is 16 quanta: an eighth of that before it is due, and as much when it is.
    assert_eq!((0..100).take_while(|_| comes(&mut queue)).count() as u32, 4 * QUANTUM / 250);
    // When the others have had a round it may be new again.
    serve(&mut queue, 144 * QUANTUM);
    assert!(comes(&mut queue));
}

#[test]
fn a_large_new_flow_gets_one_turn_between_small_and_old_ones() {
    let mut queue = filled(128 * QUANTUM, 6, 100);
    serve(&mut queue, 130 * QUANTUM);
    fill(&mut queue, 8, 100);
    serve(&mut queue, 3 * QUANTUM);
    queue.push(9, (9, 100), of_cost(100));
    assert_eq!(queue.pop(), Some((9, 100)));
    let rest = std::iter::from_fn(|| queue.pop()).take_while(|(flow, _)| *flow == 8).count() as u32;
    assert_eq!(rest, 13 * QUANTUM / (QUANTUM / 2));
}

#[test]
fn entries_dearer_than_a_quantum_are_paid_for_in_later_rounds() {
    let mut queue = queue();
    for _ in 0..100 {
        queue.push(0, (0, 7 * QUANTUM), of_cost(7 * QUANTUM));
        for _ in 0..14 {
            queue.push(1, (1, QUANTUM / 2), of_cost(QUANTUM / 2));
        }
    }
    let parts = serve(&mut queue, 400 * QUANTUM);
    assert!(parts[&0].abs_diff(parts[&1]) <= 15 * QUANTUM, "{parts:?}");
}

#[test]
fn the_next_entry_of_the_same_flow_is_taken_only_in_its_turn() {
    let mut queue = queue();
    for flow in [1, 2] {
        for _ in 0..5 {
            queue.push(flow, (flow, 400), of_cost(400));
        }
    }
    assert_eq!(queue.pop(), Some((1, 400)));
    assert_eq!(queue.pop_same(|_| false), None);
    assert_eq!(queue.pop_same(|_| true), Some((1, 400)));
    assert_eq!(queue.pop_same(|_| true), Some((1, 400)));
    assert_eq!(queue.pop_same(|_| true), None, "its quantum is used up");
    assert_eq!(queue.pop(), Some((2, 400)));
}

#[test]
fn room_is_made_at_the_expense_of_the_longest() {
    let mut queue = queue();
    for number in 0..10 {
        queue.push(0, (0, number), of_cost(100));
    }
    queue.push(1, (1, 0), of_cost(400));
    // The oldest first, as far as it has most.
    let dropped: Vec<_> = (0..6).map(|_| queue.drop_longest().unwrap()).collect();
    assert_eq!(dropped[..5], [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]);
    assert_eq!(FairQueue::<()>::new(1, 1, 0).drop_longest(), None);
}

#[derive(Clone, Debug)]
enum Step {
    Push { flow: u32, size: Size },
    Pop,
    PopSame,
    Drop,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..12_u32, 1..3_000_u32, 1..70_u32)
            .prop_map(|(flow, cost, room)| Step::Push { flow: flow * flow, size: Size { cost, room } }),
        2 => Just(Step::Pop),
        1 => Just(Step::PopSame),
        1 => Just(Step::Drop),
    ]
}

proptest! {
    #[test]
    fn each_flow_is_a_fifo_and_what_is_dropped_is_of_a_long_one(steps in prop::collection::vec(step(), 0..400)) {
        let mut queue = FairQueue::new(QUANTUM, 20 * QUANTUM, 4);
        let mut model = BTreeMap::<u32, VecDeque<(usize, Size)>>::new();
        for (number, step) in steps.into_iter().enumerate() {
            let room = |flow: &VecDeque<(usize, Size)>| flow.iter().map(|(_, size)| size.room).sum::<u32>();
            let most = model.values().map(room).max().unwrap_or(0);
            let empty = model.values().all(VecDeque::is_empty);
            prop_assert_eq!(queue.is_empty(), empty);
            let taken = match step {
                Step::Push { flow, size } => {
                    queue.push(flow, (flow, number), size);
                    model.entry(flow).or_default().push_back((number, size));
                    continue;
                }
                Step::Pop => {
                    let popped = queue.pop();
                    prop_assert_eq!(popped.is_none(), empty);
                    popped
                }
                Step::PopSame => queue.pop_same(|_| true),
                Step::Drop => {
                    let dropped = queue.drop_longest();
                    prop_assert_eq!(dropped.is_none(), empty);
                    if let Some((flow, _)) = dropped {
                        prop_assert!(2 * room(&model[&flow]) >= most);
                    }
                    dropped
                }
            };
            if let Some((flow, number)) = taken {
                let (expected, _) = model.get_mut(&flow).and_then(VecDeque::pop_front).unwrap();
                prop_assert_eq!(number, expected);
            }
        }
    }

    #[test]
    fn flows_with_a_backlog_get_equal_parts(
        costs in prop::collection::vec(prop::collection::vec(1..4_000_u32, 1..20), 2..8),
    ) {
        let mut queue = queue();
        let dearest = costs.iter().flatten().copied().max().unwrap();
        let total = 20 * (QUANTUM + dearest);
        for (flow, costs) in costs.iter().enumerate() {
            let mut pushed = 0;
            for cost in costs.iter().cycle() {
                queue.push(flow as u32, (flow as u32, *cost), of_cost(*cost));
                pushed += cost;
                if pushed > total {
                    break;
                }
            }
        }
        let parts = serve(&mut queue, total);
        let least = (0..costs.len() as u32).map(|flow| parts.get(&flow).copied().unwrap_or(0)).min().unwrap();
        let most = parts.values().max().unwrap();
        prop_assert!(most - least <= QUANTUM + 2 * dearest, "{:?}", parts);
    }
}
