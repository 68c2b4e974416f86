use std::net::Ipv4Addr;

use super::*;
use crate::clock;
use crate::load::message::open_loop::OpenLoop;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn messages(protocol: Protocol, streams: u32, length: u32, rate: Option<u64>) -> Messages {
    Messages { run_id: 5, protocol, streams, length, bits_per_second: rate, ..Messages::default() }
}

fn exchange(protocol: Protocol, request: u32, response: u32) -> Exchange {
    Exchange { run_id: 6, protocol, streams: 2, request, response, ..Exchange::default() }
}

fn connect(task: &Task) -> [Ready; 2] {
    assert_eq!(task.problem(), None);
    let door = task.listen(HERE).unwrap();
    let ports = door.ports().unwrap();
    let other = task.clone();
    let meeting =
        std::thread::spawn(move || door.meet(other, Duration::from_secs(5), &mut || false).unwrap());
    let connected = task.clone().reach(HERE, &ports, Duration::from_secs(5), &mut || false).unwrap();
    [meeting.join().unwrap(), connected]
}

/// Waits for an event, however busy the machine is.
fn wait_until(expected: &str, mut event: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !event() {
        assert!(Instant::now() < deadline, "{expected}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a task for 300 ms after 100 ms of warm-up; the end that listened comes first.
fn run(task: &Task) -> [(Reading, Findings); 2] {
    let ends = connect(task);
    let start_ns = clock::now_ns() + 20_000_000;
    let begin_ns = start_ns + 100_000_000;
    let schedule = Schedule { start_ns, begin_ns, end_ns: begin_ns + 300_000_000, peer_ahead_ns: 0 };
    let running = ends.map(|end| end.begin(schedule).unwrap());
    clock::sleep_until(schedule.end_ns);
    end(task, running)
}

/// Ends a task whose time is over. No thread is cut short for being late: the end that sends or
/// asks comes to its end first, and then the other, which takes what is under way.
fn end(task: &Task, running: [Running; 2]) -> [(Reading, Findings); 2] {
    if let Task::Bulk(_) = task {
        wait_until("bytes", || running.iter().any(|end| end.read().received_bytes > 0));
        return std::thread::scope(|scope| {
            let end = |running: Running| (running.read(), running.finish(Duration::from_secs(5)));
            running.map(|running| scope.spawn(move || end(running))).map(|end| end.join().unwrap())
        });
    }
    let sender = usize::from(!matches!(task, Task::Messages(work) if work.backward));
    for end in [&running[sender], &running[1 - sender]] {
        wait_until("its end", || match &end.kind {
            Kind::WorkerPool(pool) => pool.has_ended(),
            Kind::Bulk { .. } => unreachable!("bulk data have no such pool"),
        });
        running[1 - sender].stop();
    }
    running.map(|end| (end.read(), end.finish(Duration::from_secs(5))))
}

/// The first window of a task that suits: in a whole one a busy machine may have done nothing, or
/// stood still in the middle.
fn run_until(task: &Task, suits: impl Fn(&[(Reading, Findings); 2]) -> bool) -> [(Reading, Findings); 2] {
    (0..10).map(|_| run(task)).find(suits).expect("one of ten windows")
}

#[test]
fn messages_over_both_protocols_arrive_once_in_order_and_only_counted_ones_are_accounted() {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for backward in [false, true] {
            let work = Messages { backward, ..messages(protocol, 2, 100, Some(800_000)) };
            let (task, begun) = (Task::Messages(work), Instant::now());
            let any = |ends: &[(Reading, Findings); 2]| ends.iter().any(|end| end.1.messages_sent > 0);
            let [listener, connector] = run_until(&task, any);
            let (sender, receiver) = if backward { (listener, connector) } else { (connector, listener) };
            let (sent, got) = (&sender.1, &receiver.1);
            assert_eq!(sent.messages_sent, got.messages_received, "{protocol:?} {sent:?} {got:?}");
            // 1,000 messages a second on each of two streams: 600 count, few if the machine pauses.
            assert!((1..=620).contains(&sent.messages_sent), "{protocol:?} {sent:?}");
            assert_eq!(sender.0.sent_messages, receiver.0.received_messages, "the warm-up's messages too");
            assert_eq!((got.duplicates, got.reordered, got.socket_drops), (0, 0, 0));
            assert_eq!(got.bytes_received, got.messages_received * 100);
            let delay = got.delay.as_ref().expect("delays");
            assert!(delay.count == got.messages_received && delay.p50_us > 0.0, "{delay:?}");
            assert!(delay.p50_us < begun.elapsed().as_secs_f64() * 1e6, "{delay:?}");
            assert!(got.jitter_us.is_some() && sent.delay.is_none() && got.faults.is_empty());
            assert_eq!(got.mss.is_some(), protocol == Protocol::Tcp);
        }
    }
}

#[test]
fn imix_datagrams_arrive_whole_with_the_expected_mean() {
    for rate in [None, Some(2_544_000)] {
        let work = messages(Protocol::Udp, 1, 100, rate).mixed().when_due();
        assert_eq!(work.open_loop.is_some(), rate.is_some());
        let task = Task::Messages(work);
        // Whole turns of the twelve, whichever was the first that counted.
        let whole = |ends: &[(Reading, Findings); 2]| ends[0].1.messages_received > 24;
        let [receiver, sender] = run_until(&task, whole);
        let (sent, got) = (&sender.1, &receiver.1);
        assert!(got.messages_received <= sent.messages_sent && got.faults.is_empty(), "{sent:?} {got:?}");
        let mean = got.bytes_received as f64 / got.messages_received as f64;
        assert!((mean / 318.0 - 1.0).abs() < 0.5, "{mean}");
        if rate.is_some() {
            assert!((1..=310).contains(&sent.messages_sent), "1,000 a second for 300 ms: {sent:?}");
        }
    }
}

#[test]
fn messages_without_a_rate_are_sent_faster_than_with_one() {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let task = Task::Messages(messages(protocol, 1, 1_000, None));
        // One stream with the rate above has 300 in this time.
        let many = |ends: &[(Reading, Findings); 2]| ends[0].1.messages_received > 1_000;
        let [receiver, sender] = run_until(&task, many);
        assert!(sender.1.messages_sent >= receiver.1.messages_received, "{protocol:?} {:?}", sender.1);
        assert!(receiver.1.faults.is_empty(), "{:?}", receiver.1.faults);
    }
}

#[test]
fn every_question_has_its_answer_and_its_round_trip() {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for (request, response) in [(1, 1), (516, 4), (1, 40_000)] {
            let task = Task::Exchange(exchange(protocol, request, response));
            let answered = |ends: &[(Reading, Findings); 2]| ends[1].1.round_trip.is_some();
            let [answers, asks] = run_until(&task, answered);
            let trips = asks.1.round_trip.expect("round trips");
            // On a busy machine an answer may come too late; over TCP its age counts for it.
            let late = if protocol == Protocol::Tcp { asks.1.timeouts } else { 0 };
            assert_eq!(trips.count, asks.1.messages_sent + late, "{protocol:?} {request}/{response}");
            assert!(trips.p50_us > 0.0, "{trips:?}");
            assert_eq!(asks.0.received_bytes, asks.0.received_messages * u64::from(response));
            assert!(answers.0.received_messages >= asks.0.received_messages);
            assert_eq!((asks.1.faults.len(), answers.1.faults.len()), (0, 0));
        }
    }
}

#[test]
fn questions_that_are_due_all_leave_and_all_count() {
    let work = Exchange { every_us: Some(20_000), ..exchange(Protocol::Udp, 64, 64) };
    // One every 20 ms for 300 ms on each of two streams, however busy the machine is.
    let [answers, asks] = run(&Task::Exchange(work));
    let found = &asks.1;
    assert_eq!(found.messages_sent, 30, "{found:?}");
    let trips = found.round_trip.as_ref().map_or(0, |trips| trips.count);
    assert_eq!(trips + found.timeouts, 30, "{found:?}");
    assert_eq!(found.lateness.as_ref().map(|late| late.count), Some(30));
    assert!(found.faults.is_empty() && answers.1.faults.is_empty(), "{found:?} {answers:?}");
}

#[test]
fn bulk_data_follow_the_set_direction_and_segment_size() {
    for way in [Way::Forward, Way::Backward] {
        let job = tcp::Job {
            streams: 2,
            write_bytes: 65_536,
            verify: true,
            shape: Shape { way, window: Some(65_536), mss: Some(1_000) },
            ..tcp::Job::default()
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
    let schedule = Schedule { start_ns: now, begin_ns: now, end_ns: now + 90_000_000_000, peer_ahead_ns: 0 };
    let running = asks.begin(schedule).unwrap();
    wait_until("the broken connection is noticed", || running.broke_down());
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

#[test]
fn late_messages_of_a_call_are_counted() {
    let call = |burst, late_after_us| {
        let open_loop = Some(OpenLoop { burst, late_after_us });
        Messages { open_loop, ..messages(Protocol::Udp, 1, 100, Some(800_000)) }
    };
    // A thousand messages a second for 300 ms, however busy the machine is.
    for burst in [1, 10] {
        let [receiver, sender] =
            all_received(300, || run(&Task::Messages(call(burst, 10_000_000))).map(|end| end.1));
        let (sent, got) = (&sender, &receiver);
        assert_eq!((got.late, got.reordered, got.duplicates), (0, 0, 0), "{got:?}");
        let lateness = sent.lateness.as_ref().expect("lateness");
        let delay = got.delay.as_ref().expect("delays");
        // Each delay counts from when the message was due, so it holds what the sender was late.
        assert!(
            delay.count == 300 && delay.min_us > 0.0 && delay.max_us * 1.01 >= lateness.min_us,
            "{got:?}"
        );
        assert!(sent.faults.is_empty() && got.faults.is_empty());
    }
    let [receiver, _] = all_received(300, || run(&Task::Messages(call(1, 0))).map(|end| end.1));
    assert_eq!(receiver.late, 300, "none comes in no time");
}

/// The findings of receiver and sender in one of ten windows in which all messages came. Each
/// window must have sent them all, but a machine that stands still longer than a receiver waits may
/// receive none.
fn all_received(count: u64, mut window: impl FnMut() -> [Findings; 2]) -> [Findings; 2] {
    let mut windows = (0..10).map(|_| window()).inspect(|[_, sender]| {
        assert_eq!(sender.messages_sent, count, "{sender:?}");
    });
    windows
        .find(|[receiver, _]| receiver.messages_received == count)
        .expect("all messages in one of ten windows")
}

#[test]
fn a_delayed_sender_catches_up_and_its_delay_is_counted() {
    let open_loop = Some(OpenLoop { burst: 1, late_after_us: 150_000 });
    let task = Task::Messages(Messages { open_loop, ..messages(Protocol::Udp, 1, 100, Some(80_000)) });
    let window = || {
        let ends = connect(&task);
        // The work begins half a second after its first message was due.
        let start_ns = clock::now_ns() - 500_000_000;
        let schedule =
            Schedule { start_ns, begin_ns: start_ns, end_ns: start_ns + 600_000_000, peer_ahead_ns: 0 };
        let running = ends.map(|end| end.begin(schedule).unwrap());
        clock::sleep_until(schedule.end_ns);
        end(&task, running).map(|end| end.1)
    };
    let [receiver, sender] = all_received(60, window);
    assert!(receiver.late >= 35, "those of the first 350 ms at least: {receiver:?}");
    assert!(receiver.delay.as_ref().is_some_and(|delay| delay.max_us >= 499_000.0), "{receiver:?}");
    assert!(sender.lateness.as_ref().is_some_and(|late| late.max_us >= 499_000.0), "{sender:?}");
}

fn pages(every_ms: u32) -> Pages {
    let sockets = Sockets::default();
    Pages {
        run_id: 8,
        seed: 1,
        streams: 3,
        requests: 7,
        request: 50,
        smallest: 100,
        largest: 90_000,
        every_ms,
        sockets,
    }
}

#[test]
fn pages_are_complete_each_with_its_time() {
    // One every 20 ms for 300 ms, after 100 ms of warm-up.
    let [answers, asks] = run(&Task::Pages(pages(20)));
    assert_eq!(asks.0.received_messages, 20, "{asks:?}");
    assert_eq!((asks.1.messages_sent, asks.1.pages_ms.len(), asks.1.timeouts), (15, 15, 0), "{asks:?}");
    assert!(asks.1.pages_ms.iter().all(|ms| *ms > 0.0));
    assert_eq!(asks.1.round_trip.as_ref().map(|trips| trips.count), Some(15));
    let bytes: u64 = pages(20).lengths().into_iter().map(u64::from).sum();
    assert_eq!((asks.0.received_bytes, answers.0.received_messages), (20 * bytes, 20 * 7), "{asks:?}");
    assert!(asks.1.faults.is_empty() && answers.1.faults.is_empty(), "{asks:?} {answers:?}");
}

#[test]
fn pages_that_wait_for_others_count_from_when_they_were_due() {
    let task = Task::Pages(pages(10));
    let ends = connect(&task);
    // Thirty pages were due before the work began.
    let start_ns = clock::now_ns() - 300_000_000;
    let schedule =
        Schedule { start_ns, begin_ns: start_ns, end_ns: start_ns + 300_000_000, peer_ahead_ns: 0 };
    let running = ends.map(|end| end.begin(schedule).unwrap());
    let [_, (_, asks)] = end(&task, running);
    assert_eq!((asks.pages_ms.len(), asks.timeouts), (30, 0), "{asks:?}");
    assert!(asks.pages_ms.iter().copied().fold(0.0, f64::max) >= 299.0, "{asks:?}");
}

#[test]
fn unfinished_pages_count_with_the_time_until_given_up() {
    let [listener, connector] = connect(&Task::Pages(pages(100)));
    let start_ns = clock::now_ns();
    let schedule =
        Schedule { start_ns, begin_ns: start_ns, end_ns: start_ns + 300_000_000, peer_ahead_ns: 0 };
    let asking = connector.begin(schedule).unwrap();
    clock::sleep_until(schedule.end_ns);
    // The other end never answers.
    let found = asking.finish(Duration::from_millis(200));
    drop(listener);
    assert_eq!((found.messages_sent, found.timeouts, found.pages_ms.len()), (3, 3, 3), "{found:?}");
    assert!(found.pages_ms.iter().all(|ms| *ms >= 200.0), "{found:?}");
}

#[test]
fn each_flow_has_a_connection_of_its_own() {
    let flows = vec![1, 10_000, 300_000];
    let task = Task::Exchange(Exchange { flows, ..exchange(Protocol::Tcp, 64, 1) });
    let completed = |ends: &[(Reading, Findings); 2]| ends[1].1.messages_sent > 0;
    let [answers, asks] = run_until(&task, completed);
    let trips = asks.1.round_trip.as_ref().expect("completion times");
    assert!(trips.count >= asks.1.messages_sent && trips.p50_us > 0.0, "{trips:?}");
    assert!(asks.1.faults.is_empty() && answers.1.faults.is_empty(), "{asks:?} {answers:?}");
    // Each of the two streams has whole rounds of the sizes, and at most a part of another.
    let (flows, bytes) = (asks.0.received_messages, asks.0.received_bytes);
    assert!(flows <= answers.0.received_messages && bytes >= (flows / 6) * 310_001, "{asks:?}");
    assert!(bytes <= (flows + 6) / 3 * 310_001, "{asks:?}");
}
