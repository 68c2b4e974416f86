//! Lanes whose ports are of no use any more, at exact times.

use super::super::lane_ports::LanePorts;
use super::*;

/// Probes of lane 1 between two times while packets come on lane 0 alone, and when lane 1 is opened
/// at another port, or UDP given up.
fn while_others_receive(
    client: &mut Client,
    times: core::ops::RangeInclusive<u64>,
) -> Vec<(u64, &'static str)> {
    let mut done = Vec::new();
    for at in times.step_by(250) {
        client.handle_timeout(millis(at));
        let seen = Activity {
            rx_packets: 1,
            last_rx: millis(at),
            last_rx_packet: millis(at),
            ..Activity::default()
        };
        client.handle_activity(millis(at), 0, seen);
        done.extend(actions(client).into_iter().filter_map(|action| match action {
            Action::Command { shard: 1, command: Command::Probe { id, .. } } if id & PATH_PROBE == 0 => {
                Some((at, "probe"))
            }
            Action::Reopen(lanes) => {
                assert_eq!(lanes, 0b10);
                Some((at, "reopen"))
            }
            Action::LanesBlocked => Some((at, "blocked")),
            _ => None,
        }));
    }
    done
}

#[test]
fn a_silent_lane_is_probed_and_reopened_with_backoff() {
    let (mut client, _) = up();
    // Nothing has come on lane 1, ever.
    let done = while_others_receive(&mut client, 250..=24_000);
    let probes: Vec<_> = done.iter().filter(|(_, what)| *what == "probe").map(|(at, _)| *at).collect();
    assert_eq!(
        probes,
        [250, 2_250, 2_750, 3_750, 6_250, 6_750, 7_750, 14_250, 14_750, 15_750, 22_250, 22_750, 23_750]
    );
    let others: Vec<_> = done.into_iter().filter(|(_, what)| *what != "probe").collect();
    let wanted = [(3_750, "reopen"), (7_750, "reopen"), (15_750, "reopen"), (15_750, "blocked")];
    assert_eq!(others[..4], wanted);
    // After a packet it is asked as soon as at first.
    assert_eq!(receive(&mut client, 24_250, 1), []);
    assert_eq!(while_others_receive(&mut client, 24_500..=25_250), [(25_250, "probe")]);
}

#[test]
fn a_lane_that_answers_keeps_its_port() {
    let (mut client, _) = up();
    for at in (250..60_000).step_by(250) {
        client.handle_timeout(millis(at));
        let seen = Activity {
            rx_packets: 1,
            last_rx: millis(at),
            last_rx_packet: millis(at),
            ..Activity::default()
        };
        client.handle_activity(millis(at), 0, seen);
        for action in actions(&mut client) {
            match action {
                // Its answer.
                Action::Command { shard: 1, command: Command::Probe { .. } } => {
                    let seen = Activity { last_rx: millis(at), ..Activity::default() };
                    client.handle_activity(millis(at), 1, seen);
                }
                Action::Reopen(_) | Action::LanesBlocked => panic!("at {at}: {action:?}"),
                _ => {}
            }
        }
    }
}

/// The times at which lanes are opened again, up to `until`; and whether UDP is given up at its
/// end.
fn reopened(client: &mut Client, until: u64) -> (Vec<(u64, u16)>, bool) {
    let (mut opened, mut blocked) = (Vec::new(), false);
    while let Some((at, _)) = client.poll_timeout().filter(|(at, _)| *at <= millis(until)) {
        client.handle_timeout(at);
        for action in actions(client) {
            match action {
                Action::Reopen(lanes) => opened.push(((at - START).as_millis() as u64, lanes)),
                Action::LanesBlocked => blocked = true,
                _ => {}
            }
        }
    }
    (opened, blocked)
}

#[test]
fn lanes_are_opened_again_when_the_gateway_grants_an_epoch_and_answers_on_none() {
    let mut client = silent();
    client.handle_timeout(millis(1_600));
    let (connection, _) = connect(&mut client).unwrap();
    grant(&mut client, millis(1_700), connection, &answer(2));
    assert_eq!(reopened(&mut client, 2_449), (vec![], false), "probes are on their way");
    assert_eq!(reopened(&mut client, 2_450), (vec![(2_450, 0b11)], false));
    // Answers come at the new ports.
    hear(&mut client, millis(2_500), 2);
    assert!(client.is_up());
    assert_eq!(client.output.ports.open(millis(2_500), 0b11), (0, false), "not again at once");
}

#[test]
fn lanes_that_new_ports_do_not_help_make_the_session_change_path() {
    let mut client = silent();
    client.handle_timeout(millis(1_600));
    let (connection, _) = connect(&mut client).unwrap();
    grant(&mut client, millis(1_700), connection, &answer(2));
    let (opened, blocked) = reopened(&mut client, 5_450);
    assert_eq!((opened, blocked), (vec![(2_450, 0b11), (4_450, 0b11)], true));
    client.change_way(millis(5_450));
    assert!(connect(&mut client).is_some(), "at once");
}

#[test]
fn the_end_of_traffic_is_asked_about_once() {
    let (mut client, _) = up();
    client.check_way(millis(1_000));
    let asked = probes(&mut client);
    assert_eq!(asked.len(), 2, "each lane");
    client.check_way(millis(1_000));
    assert_eq!(probes(&mut client), []);
    let slot = client.session.as_ref().unwrap().terms.slot;
    for (_, id) in asked {
        client.handle_event(millis(1_010), Event::ProbeReply { slot, lane: 0, id, size: 4 });
    }
    client.handle_timeout(millis(2_000));
    assert_eq!(actions(&mut client).len(), 0, "it was answered");
    client.check_way(millis(3_000));
    client.handle_timeout(millis(3_999));
    assert_eq!(connect(&mut client), None, "a path through space takes long");
    client.handle_timeout(millis(4_000));
    assert!(connect(&mut client).is_some(), "it was not");
}

#[test]
fn an_outage_reopens_no_lanes() {
    let mut client = silent();
    client.handle_timeout(millis(1_600));
    for at in (1_600..120_000).step_by(250) {
        client.handle_timeout(millis(at));
        client.handle_activity(millis(at), 0, Activity::default());
        for action in actions(&mut client) {
            match action {
                Action::Connect { connection, .. } => client.connect_failed(millis(at), connection),
                Action::Reopen(_) | Action::LanesBlocked => panic!("at {at}: {action:?}"),
                _ => {}
            }
        }
    }
}

#[test]
fn a_slow_confirmation_reopens_no_receiving_lane() {
    let (mut client, connection) = up();
    client.handle_message(millis(10_000), connection, Message::Wake);
    let (connection, _) = connect(&mut client).unwrap();
    grant(&mut client, millis(10_000), connection, &answer(2));
    for at in (10_000..13_500).step_by(250) {
        client.handle_timeout(millis(at));
        for lane in 0..2 {
            client.handle_activity(millis(at), lane, Activity { last_rx: millis(at), ..Activity::default() });
        }
        let moved = actions(&mut client).into_iter().find(|action| matches!(action, Action::Reopen(_)));
        assert!(moved.is_none(), "at {at}: {moved:?}");
    }
}

#[test]
fn flows_that_never_last_are_noticed_and_the_waits_grow() {
    let mut ports = LanePorts::new(1);
    let opened: Vec<u64> = (0..300).filter(|at| ports.open(millis(at * 1_000), 1).0 != 0).collect();
    assert_eq!(opened[..8], [0, 2, 6, 14, 30, 62, 94, 126]);
    let mut ports = LanePorts::new(1);
    // A firewall that ends flows after minutes is lived with.
    assert!((0..20).all(|count| ports.open(millis(count * 61_000), 1) == (1, false)));
}
