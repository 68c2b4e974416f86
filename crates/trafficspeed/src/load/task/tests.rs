use std::net::Ipv4Addr;

use super::*;
use crate::clock;
use crate::load::congestion::CongestionControl;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn messages(protocol: Protocol, streams: u32, length: u32, rate: Option<u64>) -> Messages {
    Messages {
        run_id: 5,
        seed: 1,
        protocol,
        streams,
        backward: false,
        length,
        bits_per_second: rate,
        sockets: Sockets::default(),
    }
}

fn exchange(protocol: Protocol, request: u32, response: u32) -> Exchange {
    Exchange {
        run_id: 6,
        seed: 1,
        protocol,
        streams: 2,
        request,
        response,
        pause_us: 0,
        sockets: Sockets::default(),
    }
}

fn connect(task: &Task) -> [Ready; 2] {
    assert_eq!(task.problem(), None);
    let door = task.listen(HERE).unwrap();
    let ports = door.ports().unwrap();
    let other = task.clone();
    let meeting =
        std::thread::spawn(move || door.meet(other, Duration::from_secs(5), &mut || false).unwrap());
    let here = task.clone().reach(HERE, &ports, Duration::from_secs(5), &mut || false).unwrap();
    [meeting.join().unwrap(), here]
}

/// Runs a task for 300 ms after 100 ms of warm-up; the end that listened comes first.
fn run(task: &Task) -> [(Reading, Findings); 2] {
    let ends = connect(task);
    let start_ns = clock::now_ns() + 20_000_000;
    let begin_ns = start_ns + 100_000_000;
    let schedule = Schedule { start_ns, begin_ns, end_ns: begin_ns + 300_000_000, peer_ahead_ns: 0 };
    let running = ends.map(|end| end.begin(schedule).unwrap());
    clock::sleep_until(schedule.end_ns);
    running.iter().for_each(Running::stop);
    // Whatever is under way arrives before the sums are read.
    std::thread::sleep(Duration::from_millis(100));
    std::thread::scope(|scope| {
        let end = |running: Running| (running.read(), running.finish(Duration::from_secs(5)));
        running.map(|running| scope.spawn(move || end(running))).map(|end| end.join().unwrap())
    })
}

#[test]
fn messages_over_both_protocols_arrive_once_in_order_and_only_counted_ones_are_accounted() {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for backward in [false, true] {
            let work = Messages { backward, ..messages(protocol, 2, 100, Some(800_000)) };
            let [listener, connector] = run(&Task::Messages(work));
            let (sender, receiver) = if backward { (listener, connector) } else { (connector, listener) };
            let (sent, got) = (&sender.1, &receiver.1);
            assert_eq!(sent.messages_sent, got.messages_received, "{protocol:?} {sent:?} {got:?}");
            // 1,000 messages a second on each of two streams: 600 count, few if the machine pauses.
            assert!((1..=620).contains(&sent.messages_sent), "{protocol:?} {sent:?}");
            assert_eq!(sender.0.sent_messages, receiver.0.received_messages, "the warm-up's messages too");
            assert_eq!((got.duplicates, got.reordered), (0, 0));
            assert_eq!(got.bytes_received, got.messages_received * 100);
            let delay = got.delay.as_ref().expect("delays");
            assert!(delay.count == got.messages_received && delay.p50_us > 0.0 && delay.p50_us < 500_000.0);
            assert!(got.jitter_us.is_some() && sent.delay.is_none() && got.faults.is_empty());
            assert_eq!(got.mss.is_some(), protocol == Protocol::Tcp);
        }
    }
}

#[test]
fn messages_without_a_rate_go_faster_than_with_one() {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let [receiver, sender] = run(&Task::Messages(messages(protocol, 1, 1_000, None)));
        assert!(sender.1.messages_sent > 1_000, "{protocol:?} {:?}", sender.1);
        assert!(receiver.1.messages_received > 1_000, "{protocol:?} {:?}", receiver.1);
        assert!(receiver.1.faults.is_empty(), "{:?}", receiver.1.faults);
    }
}

#[test]
fn every_question_has_its_answer_and_its_round_trip() {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for (request, response) in [(1, 1), (516, 4), (1, 40_000)] {
            let task = Task::Exchange(exchange(protocol, request, response));
            // A busy machine may stand still for a whole window; then nothing was asked in it.
            let mut windows = (0..10).map(|_| run(&task));
            let asked = |ends: &[(Reading, Findings); 2]| ends[1].1.messages_sent > 5;
            let [answers, asks] = windows.find(asked).expect("questions in one of ten windows");
            let trips = asks.1.round_trip.expect("round trips");
            assert_eq!(trips.count, asks.1.messages_sent, "{protocol:?} {request}/{response}");
            assert!(trips.p50_us > 0.0, "{trips:?}");
            assert_eq!(asks.0.received_bytes, asks.0.received_messages * u64::from(response));
            assert!(answers.0.received_messages >= asks.0.received_messages);
            assert_eq!((asks.1.timeouts, asks.1.faults.len(), answers.1.faults.len()), (0, 0, 0));
        }
    }
}

#[test]
fn a_pause_bounds_the_questions() {
    let work = Exchange { pause_us: 20_000, streams: 1, ..exchange(Protocol::Udp, 64, 64) };
    let [_, asks] = run(&Task::Exchange(work));
    assert!((1..=16).contains(&asks.1.messages_sent), "{}", asks.1.messages_sent);
}

#[test]
fn bulk_data_go_the_way_they_are_told_with_the_segments_they_are_told() {
    for way in [Way::Forward, Way::Backward] {
        let job = tcp::Job {
            run_id: 1,
            seed: 1,
            streams: 2,
            threads: 1,
            write_bytes: 65_536,
            verify: true,
            congestion: CongestionControl::default(),
            shape: Shape { way, window: Some(65_536), mss: Some(1_000) },
        };
        let [listener, connector] = run(&Task::Bulk(job));
        let (sender, receiver) =
            if way == Way::Forward { (connector, listener) } else { (listener, connector) };
        assert!(receiver.0.received_bytes > 0 && receiver.0.sent_bytes == 0, "{way:?}");
        assert_eq!(sender.1.bytes_sent, receiver.1.bytes_received, "{way:?}");
        // Time stamps take 12 of the 1,000 bytes.
        assert_eq!((sender.1.mss, receiver.1.mss), (Some(988), Some(988)));
    }
}

#[test]
fn a_lost_peer_is_a_timeout_over_udp_and_a_fault_over_tcp() {
    let task = Task::Exchange(Exchange { streams: 1, ..exchange(Protocol::Tcp, 1, 1) });
    let [answers, asks] = connect(&task);
    drop(answers);
    let now = clock::now_ns();
    let schedule = Schedule { start_ns: now, begin_ns: now, end_ns: now + 5_000_000_000, peer_ahead_ns: 0 };
    let running = asks.begin(schedule).unwrap();
    let deadline = Instant::now() + Duration::from_secs(4);
    while !running.broke_down() {
        assert!(Instant::now() < deadline, "the broken connection is noticed");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(running.finish(Duration::from_secs(1)).faults.len(), 1);

    let task = Task::Exchange(Exchange { streams: 1, ..exchange(Protocol::Udp, 1, 1) });
    let [answers, asks] = connect(&task);
    drop(answers);
    let now = clock::now_ns();
    let schedule = Schedule { start_ns: now, begin_ns: now, end_ns: now + 3_000_000_000, peer_ahead_ns: 0 };
    let running = asks.begin(schedule).unwrap();
    clock::sleep_until(schedule.end_ns);
    let found = running.finish(Duration::from_secs(3));
    assert!(found.timeouts >= 1 && found.messages_sent == 0, "{found:?}");
}

#[test]
fn what_cannot_be_done_is_refused_in_words() {
    let refused = |task: Task| task.problem().expect("a problem");
    assert!(
        refused(Task::Messages(messages(Protocol::Udp, 1, 23, None))).contains("24 to 65000 are possible")
    );
    assert!(refused(Task::Messages(messages(Protocol::Udp, 0, 100, None))).contains("0 streams"));
    assert!(refused(Task::Messages(messages(Protocol::Tcp, 1, 100, Some(0)))).contains("rate of zero"));
    assert!(refused(Task::Exchange(exchange(Protocol::Tcp, 0, 1))).contains("1 to 60000"));
    let wide = Sockets { window: Some(u32::MAX), ..Sockets::default() };
    let work = Messages { sockets: wide, ..messages(Protocol::Tcp, 1, 100, None) };
    assert!(refused(Task::Messages(work)).contains("socket buffers"));
}
