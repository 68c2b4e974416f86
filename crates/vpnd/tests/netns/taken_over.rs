//! Behaviour: an attacker has taken over a network worker and asks its privileged parent for
//! anything, over the worker's own channel. They get what any worker gets and no more of it, what
//! no worker asks for ends the daemon, and nothing that they do or leave undone keeps the parent
//! from its signals.
//!
//! The real worker is stopped (SIGSTOP), and the test has a copy of its descriptor of the channel.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod profiles;

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use minicbor::{Decoder, Encoder};
use rustix::net::AddressFamily;
use rustix::net::sockopt::{socket_domain, socket_peercred};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open};
use vpnd_client::messages::Measured;
use vpnd_ipc::gateway::{HostRoute, HostRouteChanges};
use vpnd_proto::control::Network;

use crate::client::{Client, TUN};
use crate::full;
use crate::gateway::{Gateway, edit_toml, strings};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::privileges::Seen;
use crate::process::Process;
use crate::traffic::ping_until;

/// Until an answer comes, or a daemon ends, beside whatever else the machine does.
const LIMIT: Duration = Duration::from_secs(60);
/// A part's channel to its parent comes in on standard input and is the first descriptor that the
/// part makes.
const CHANNEL: i32 = 3;

// The numbers of messages in `crates/ipc/src/gateway.rs` and `crates/client/src/messages.rs`.
const READ_CONFIGURATION: u32 = 3;
const ASK: u32 = 4;
const UPGRADE: u32 = 5;
const FOUND: u32 = 8;
const RELEASED: u32 = 8;
const HOSTS: u32 = 11;
const KEY_TAKEN: u32 = 9;
const REFUSED: u32 = 10;
const TO_CONFIGURATION: u32 = 1;
const TO_ANSWER: u32 = 3;
const TO_HAND_OVER: u32 = 5;
const TO_NOT_UPGRADED: u32 = 7;
const REPLY_FAILED: u32 = 1;

type Body = Encoder<Vec<u8>>;

/// A frame of the channel: lengths, then a message with this number and these fields.
fn frame(number: u32, fields: u64, content: impl FnOnce(&mut Body)) -> Vec<u8> {
    let mut body = Encoder::new(Vec::new());
    body.array(2).unwrap().u32(number).unwrap().array(fields).unwrap();
    content(&mut body);
    let body = body.into_writer();
    let mut frame = u32::try_from(body.len()).unwrap().to_le_bytes().to_vec();
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(&body);
    frame
}

fn bare(number: u32) -> Vec<u8> {
    frame(number, 0, |_| ())
}

/// A gateway's worker says that the session with this address is over.
fn released(address: &str) -> Vec<u8> {
    let address: std::net::IpAddr = address.parse().unwrap();
    frame(RELEASED, 1, |body| {
        body.encode(vec![address]).unwrap();
    })
}

/// A gateway's worker has a client's address announced.
fn announced(address: &str) -> Vec<u8> {
    let route = HostRoute { address: address.parse().unwrap(), metric: 1 };
    frame(HOSTS, 1, |body| {
        body.encode(HostRouteChanges { added: vec![route], removed: Vec::new() }).unwrap();
    })
}

/// A question of a client's worker.
fn ask(question: u64, kind: u32, content: &dyn Fn(&mut Body)) -> Vec<u8> {
    frame(ASK, 2, |body| {
        body.u64(question).unwrap().array(2).unwrap().u32(kind).unwrap();
        content(body);
    })
}

/// A message of the parent: its number, and the rest of it.
pub(crate) struct Sent {
    kind: u32,
    pub(crate) descriptors: u32,
    pub(crate) body: Vec<u8>,
}

impl Sent {
    /// The text in it, however deep.
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The number of the question that it answers.
    fn question(&self) -> u64 {
        let mut decoder = Decoder::new(&self.body);
        decoder.array().unwrap();
        assert_eq!(decoder.u32().unwrap(), TO_ANSWER);
        decoder.array().unwrap();
        decoder.u64().unwrap()
    }

    /// The error of a request that was refused.
    fn refusal(&self) -> Option<String> {
        let mut decoder = Decoder::new(&self.body);
        decoder.array().unwrap();
        assert_eq!(decoder.u32().unwrap(), TO_ANSWER);
        decoder.array().unwrap();
        decoder.u64().unwrap();
        let mut reply = Decoder::new(decoder.bytes().unwrap());
        reply.array().unwrap();
        let failed = reply.u32().unwrap() == REPLY_FAILED;
        failed.then(|| reply.str().unwrap().to_owned())
    }
}

/// Stops a process, and waits until all its threads stand still: until then one may read what is
/// for the test.
pub(crate) fn stop(process: Pid) {
    kill_process(process, Signal::STOP).unwrap();
    eventually("the process stands still", LIMIT, || is_stopped(process).then_some(()));
}

/// A copy of a process's end of its channel to the auth process. `gateway` is its parent, which has
/// made both channels and no other socket of its kind that it has.
pub(crate) fn channel_to_auth(process: Pid, gateway: u32) -> UnixStream {
    let descriptors = pidfd_open(process, PidfdFlags::empty()).unwrap();
    let link = |fd: i32| std::fs::read_link(format!("/proc/{process}/fd/{fd}")).unwrap_or_default();
    let to_parent = link(CHANNEL);
    let all = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let all = all.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse::<i32>().unwrap());
    let channel = all.filter(|fd| link(*fd) != to_parent).find_map(|fd| {
        let copy = pidfd_getfd(&descriptors, fd, PidfdGetfdFlags::empty()).ok()?;
        let is_it = socket_domain(&copy) == Ok(AddressFamily::UNIX)
            && socket_peercred(&copy).is_ok_and(|peer| peer.pid.as_raw_nonzero().get() as u32 == gateway);
        is_it.then(|| UnixStream::from(copy))
    });
    channel.expect("it has a channel to the auth process")
}

/// Whether all threads of a process are stopped (proc_pid_stat(5): the state follows the name in
/// parentheses).
fn is_stopped(process: Pid) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("stat"))).all(|stat| {
        // A thread may end meanwhile.
        stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
    })
}

/// A number that no worker's question has.
const OWN_QUESTION: u64 = 1 << 40;

/// A process, most often a worker, that does what the test wants.
pub(crate) struct TakenOver {
    worker: Pid,
    channel: UnixStream,
}

impl TakenOver {
    /// A process that is stopped, with a copy of its end of a channel.
    pub(crate) fn of(process: Pid, channel: UnixStream) -> Self {
        Self { worker: process, channel }
    }

    /// A part of this parent, with a copy of its end of the channel to that.
    pub(crate) fn new(parent: &Seen, part: &str) -> Self {
        let worker = parent.child(part).pid();
        stop(worker);
        let process = pidfd_open(worker, PidfdFlags::empty()).unwrap();
        let channel = pidfd_getfd(process, CHANNEL, PidfdGetfdFlags::empty()).unwrap();
        Self { worker, channel: channel.into() }
    }

    fn of_client(client: &mut Client<'_>) -> Self {
        Self::new(&Seen::of(client.process().id()), "client")
    }

    fn of_gateway(gateway: &Gateway<'_>) -> Self {
        Self::new(&Seen::parent(gateway), "worker")
    }

    /// Sends bytes as far as there is room for them; whether there was. The other end may have
    /// gone.
    fn try_send(&mut self, bytes: &[u8]) -> bool {
        match self.channel.write(bytes) {
            Ok(len) => len == bytes.len(),
            Err(error) => {
                let gone = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
                assert!(error.kind() == ErrorKind::WouldBlock || gone.contains(&error.kind()), "{error}");
                false
            }
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        eventually("there is room in the channel", LIMIT, || self.try_send(bytes).then_some(()));
    }

    fn fill(&mut self, buffer: &mut [u8]) {
        let (mut have, deadline) = (0, Instant::now() + LIMIT);
        while have < buffer.len() {
            match self.channel.read(&mut buffer[have..]) {
                Ok(0) => panic!("the parent is gone"),
                Ok(len) => have += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    assert!(Instant::now() < deadline, "the parent answers nothing");
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("the channel broke: {error}"),
            }
        }
    }

    /// The next message.
    pub(crate) fn receive(&mut self) -> Sent {
        let mut header = [0; 8];
        self.fill(&mut header);
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let mut body = vec![0; word(0) as usize];
        self.fill(&mut body);
        let mut decoder = Decoder::new(&body);
        decoder.array().unwrap();
        Sent { kind: decoder.u32().unwrap(), descriptors: word(4), body }
    }

    /// The next message of this kind; others, such as news of the network, are passed over.
    pub(crate) fn expect(&mut self, kind: u32) -> Sent {
        loop {
            let sent = self.receive();
            if sent.kind == kind {
                return sent;
            }
        }
    }

    /// Asks one thing; why it was refused, if it was.
    fn ask(&mut self, kind: u32, content: &dyn Fn(&mut Body)) -> Option<String> {
        self.send(&ask(OWN_QUESTION, kind, content));
        loop {
            let answer = self.expect(TO_ANSWER);
            // The worker may have asked something before it was taken over.
            if answer.question() == OWN_QUESTION {
                return answer.refusal();
            }
        }
    }

    /// Gives the worker back.
    pub(crate) fn let_go(self) {
        // It may have been ended meanwhile.
        let _ = kill_process(self.worker, Signal::CONT);
    }
}

/// Ends with a status, and not by a signal of the test.
fn ends(process: &mut Process, hint: &str) {
    let status = process.wait(LIMIT);
    assert_eq!(status.code(), Some(1), "{}", process.output());
    assert!(process.output().contains(hint), "wanted {hint:?}:\n{}", process.output());
}

/// A number of a question, what is asked, how many there are at once, and how often one more.
type Kind = (u32, &'static dyn Fn(&mut Body), u32, Duration);

/// All that a client's worker may ask for.
const KINDS: [Kind; 13] = [
    (
        0,
        &|body| {
            body.array(1).unwrap().str("198.18.0.1:4433").unwrap();
        },
        512,
        Duration::from_millis(50),
    ),
    (
        1,
        &|body| {
            // An address that no host has: nothing of the machine is to change.
            let network = Network { ipv4: Some([127, 0, 0, 9].into()), ..Network::default() };
            body.array(1).unwrap().encode(network).unwrap();
        },
        64,
        Duration::from_millis(500),
    ),
    (
        2,
        &|body| {
            body.array(1).unwrap().u16(1_400).unwrap();
        },
        256,
        Duration::from_millis(100),
    ),
    (
        3,
        &|body| {
            // A question for a one-time code.
            body.array(1).unwrap().array(2).unwrap().u32(0).unwrap().array(0).unwrap();
        },
        16,
        Duration::from_secs(5),
    ),
    (
        4,
        &|body| {
            body.array(1).unwrap().bytes(&[7; 32]).unwrap();
        },
        256,
        Duration::from_millis(100),
    ),
    (
        5,
        &|body| {
            body.array(1).unwrap().u32(99).unwrap();
        },
        64,
        Duration::from_millis(500),
    ),
    (
        6,
        &|body| {
            body.array(1).unwrap().bool(true).unwrap();
        },
        64,
        Duration::from_millis(500),
    ),
    (
        7,
        &|body| {
            // Addresses of the gateway: none, which are not kept.
            body.array(1).unwrap().map(1).unwrap().u32(0).unwrap().array(0).unwrap();
        },
        16,
        Duration::from_secs(30),
    ),
    (
        8,
        &|body| {
            // A port that the profile does not have.
            body.array(1).unwrap().str("198.18.0.1:22").unwrap();
        },
        64,
        Duration::from_millis(500),
    ),
    (
        9,
        &|body| {
            body.array(1).unwrap().bool(false).unwrap();
        },
        64,
        Duration::from_millis(500),
    ),
    (
        12,
        &|body| {
            body.array(1).unwrap().encode(Measured::default()).unwrap();
        },
        64,
        Duration::from_millis(250),
    ),
    (
        14,
        &|body| {
            body.array(1).unwrap().u16(1).unwrap();
        },
        64,
        Duration::from_millis(500),
    ),
    (
        13,
        &|body| {
            body.array(1).unwrap().str("look at your phone").unwrap();
        },
        16,
        Duration::from_secs(5),
    ),
];

#[test]
fn all_requests_of_a_clients_worker_are_limited() {
    let Some(lab) = Lab::new(1) else { return };
    let rules = || lab.clients[0].ip(&["rule", "show"]);
    let before = rules();
    // A full tunnel, which no refusal ends.
    let (_providers, _gateway, ann) = full::ordinary(&lab);
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), LIMIT);
    let mut worker = TakenOver::of_client(&mut client);
    for (kind, content, burst, interval) in KINDS {
        let began = Instant::now();
        let mut granted = 0;
        for _ in 0..burst + burst / 2 {
            let refused = worker.ask(kind, content);
            granted += u32::from(!refused.is_some_and(|why| why.contains("than any client needs")));
        }
        let later = began.elapsed().as_nanos() / interval.as_nanos();
        let most = burst + u32::try_from(later).unwrap() + 1;
        assert!(granted <= most, "question {kind}: {granted} were granted, at most {most}");
        // The honest worker has had some before.
        assert!(granted > burst / 2, "question {kind}: {granted} were granted");
    }
    let log = client.process().output();
    assert_eq!(log.matches("refused: the network worker asks for more").count(), 1, "once:\n{log}");
    // The parent lives, and takes everything back.
    client.process().assert_running();
    client.process().signal(Signal::INT);
    assert!(client.process().wait(LIMIT).success());
    assert_eq!(rules(), before);
}

#[test]
fn a_clients_worker_sets_nothing_that_the_profile_or_the_machine_forbids() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    edit_toml(&ann.profile, |profile| {
        let tunnel = profile.entry("tunnel").or_insert_with(|| toml::Value::Table(toml::Table::new()));
        let tunnel = tunnel.as_table_mut().unwrap();
        tunnel.insert("routes".to_owned(), strings(&["10.200.0.0/24"]));
        tunnel.insert("dns".to_owned(), false.into());
    });
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), Duration::from_secs(10));
    let mut worker = TakenOver::of_client(&mut client);

    // All that a gateway could name, and more than the profile has.
    let own = client.v4();
    let std::net::IpAddr::V4(own) = own else { panic!("it is IPv4") };
    let greedy = Network {
        ipv4: Some(own),
        gateway_ipv4: Some([198, 51, 100, 1].into()),
        routes: vpnd_proto::control::List::new(
            ["0.0.0.0/0", "192.0.2.0/24"].map(|net| vpnd_proto::control::AsText(net.parse().unwrap())).into(),
        )
        .unwrap(),
        dns: vpnd_proto::control::List::new(
            ["9.9.9.9"].map(|server| vpnd_proto::control::AsText(server.parse().unwrap())).into(),
        )
        .unwrap(),
        ..Network::default()
    };
    let configure = |network: Network| {
        move |body: &mut Body| {
            body.array(1).unwrap().encode(&network).unwrap();
        }
    };
    let refused = worker.ask(1, &configure(greedy));
    assert_eq!(refused, None, "what is permitted of it is done");
    let routes = client.namespace().ip(&["-4", "route", "show", "table", "all"]);
    let into_tunnel: Vec<&str> =
        routes.lines().filter(|line| line.contains(TUN) && !line.contains("table local")).collect();
    assert!(into_tunnel.iter().all(|line| line.starts_with("10.200.0.0/24")), "{into_tunnel:?}");
    assert!(!into_tunnel.is_empty());

    for (size, within) in [(0, "1280"), (u16::MAX, "65400")] {
        let refused = worker.ask(2, &|body: &mut Body| {
            body.array(1).unwrap().u16(size).unwrap();
        });
        assert_eq!(refused, None);
        let link = client.namespace().ip(&["-d", "link", "show", TUN]);
        assert!(link.contains(&format!("mtu {within} ")), "{link}");
        // The kernel cuts whatever it forwards that is longer into single segments.
        assert!(link.contains("gso_max_size 65536"), "{link}");
    }
    let refused = worker.ask(5, &|body: &mut Body| {
        body.array(1).unwrap().u32(7).unwrap();
    });
    assert!(refused.is_some_and(|why| why.contains("no such gateway")), "names of the profile alone");
    let refused = worker.ask(8, &|body: &mut Body| {
        body.array(1).unwrap().str("198.18.0.2:22").unwrap();
    });
    assert!(refused.is_some_and(|why| why.contains("another TCP port")), "TCP where the profile has it");
    client.process().signal(Signal::INT);
    assert!(client.process().wait(LIMIT).success());

    for address in [[127, 0, 0, 9], [224, 0, 0, 9], [198, 18, 1, 1], [198, 51, 100, 7]] {
        let mut client = Client::connect(&lab, 1, &ann);
        let mut worker = TakenOver::of_client(&mut client);
        let network = Network { ipv4: Some(address.into()), ..Network::default() };
        worker.send(&ask(OWN_QUESTION, 1, &configure(network)));
        worker.let_go();
        ends(client.process(), "the gateway gives");
    }
}

#[test]
fn an_impossible_message_of_a_clients_worker_ends_the_client() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, ann) = Gateway::for_ann(&lab);
    let rules = || lab.clients[0].ip(&["rule", "show"]);
    let before = rules();
    let too_long = [u32::MAX.to_le_bytes(), 0_u32.to_le_bytes()].concat();
    let announced = [1_u32.to_le_bytes(), 200_u32.to_le_bytes()].concat();
    let frames = [
        (bare(READ_CONFIGURATION), "makes no sense"),
        (bare(UPGRADE), "makes no sense"),
        (bare(KEY_TAKEN), "makes no sense"),
        (
            frame(FOUND, 1, |body| {
                body.array(0).unwrap();
            }),
            "makes no sense",
        ),
        (bare(1_000), "makes no sense"),
        (too_long, "too long"),
        (announced, "another number of descriptors"),
    ];
    for (frame, hint) in frames {
        let mut client = Client::connect(&lab, 1, &ann);
        let mut worker = TakenOver::of_client(&mut client);
        worker.send(&frame);
        worker.let_go();
        ends(client.process(), hint);
        assert_eq!(rules(), before, "{hint}");
        assert!(!lab.clients[0].ip(&["-brief", "link", "show"]).contains(TUN));
    }
    // It may say that it was refused; its words don't play with the terminal.
    let mut client = Client::connect(&lab, 1, &ann);
    let mut worker = TakenOver::of_client(&mut client);
    worker.send(&frame(REFUSED, 1, |body| {
        body.str("\x1b[2Jall is well").unwrap();
    }));
    assert_eq!(client.process().wait(LIMIT).code(), Some(3));
    let log = client.process().output();
    assert!(log.contains("vpnd: [2Jall is well") && !log.contains('\x1b'), "{log:?}");
    assert_eq!(rules(), before);
}

#[test]
fn a_gateways_worker_gets_few_reloads_and_upgrades() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = Gateway::for_ann(&lab);
    let mut worker = TakenOver::of_gateway(&gateway);
    let mut count = |message: &[u8], kind: u32, refusal: &str, times: u32| {
        let began = Instant::now();
        let granted = (0..times).filter(|_| {
            worker.send(message);
            !worker.expect(kind).text().contains(refusal)
        });
        (u32::try_from(granted.count()).unwrap(), began.elapsed())
    };
    let (granted, took) = count(&bare(READ_CONFIGURATION), TO_CONFIGURATION, "was read too often", 100);
    let most = 32 + u32::try_from(took.as_secs()).unwrap() + 1;
    assert!((16..=most).contains(&granted), "{granted} reloads, at most {most}");
    // One that fails before it has started anything.
    gateway.configure("tunnel.mtu", 1_400);
    let (granted, took) = count(&bare(UPGRADE), TO_NOT_UPGRADED, "too many upgrades", 50);
    let most = 16 + u32::try_from(took.as_secs() / 10).unwrap() + 1;
    assert!((8..=most).contains(&granted), "{granted} upgrades, at most {most}");
    assert!(gateway.process().output().contains("that takes a restart"), "they were tried");
    worker.let_go();
    // All goes on, for the worker has lost nothing that it was sent.
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), LIMIT);
    assert_eq!(gateway.sessions().len(), 1);
}

#[test]
fn an_impossible_message_of_a_gateways_worker_ends_the_gateway() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let too_long = [u32::MAX.to_le_bytes(), 0_u32.to_le_bytes()].concat();
    let mtu = ask(1, 2, &|body: &mut Body| {
        body.array(1).unwrap().u16(1_400).unwrap();
    });
    let frames = [
        (mtu, "makes no sense"),
        // It was not asked to hand over.
        (bare(6), "an unexpected message"),
        (bare(1_000), "makes no sense"),
        (too_long, "too long"),
        // No session has had a host's address, or the gateway's own.
        (released("10.200.0.2"), "an unexpected message"),
        (released("10.86.0.1"), "an unexpected message"),
        // This gateway is of no fleet.
        (announced("10.86.0.2"), "an unexpected message"),
    ];
    for (frame, hint) in frames {
        gateway.start();
        let mut worker = TakenOver::of_gateway(&gateway);
        worker.send(&frame);
        worker.let_go();
        ends(gateway.process(), hint);
        let tables = crate::process::run({
            let mut command = crate::process::command(&lab, &lab.gateway, "nft");
            command.args(["list", "tables"]);
            command
        });
        assert!(crate::process::text(&tables).contains("vpnd"), "the firewall stays");
    }
    gateway.start();
}

#[test]
fn a_worker_that_reads_nothing_does_not_block_signals_of_its_parent() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = Gateway::for_ann(&lab);
    let rules = || lab.clients[0].ip(&["rule", "show"]);
    let before = rules();
    let mut client = Client::connect(&lab, 1, &ann);
    let mut worker = TakenOver::of_client(&mut client);
    let proof = ask(1, 4, &|body: &mut Body| {
        body.array(1).unwrap().bytes(&[7; 32]).unwrap();
    });
    fill_up(&mut worker, &proof);
    ends(client.process(), "does not read what it is sent");
    assert_eq!(rules(), before, "and all is taken back");

    let mut worker = TakenOver::of_gateway(&gateway);
    fill_up(&mut worker, &bare(READ_CONFIGURATION));
    ends(gateway.process(), "does not read what it is sent");
    gateway.start();
}

/// Asks without reading an answer, until the parent reads no more either.
fn fill_up(worker: &mut TakenOver, question: &[u8]) {
    let mut full_since: Option<Instant> = None;
    let deadline = Instant::now() + LIMIT;
    while full_since.is_none_or(|since| since.elapsed() < Duration::from_secs(1)) {
        assert!(Instant::now() < deadline, "the parent goes on reading");
        if worker.try_send(question) {
            full_since = None;
        } else {
            full_since.get_or_insert_with(Instant::now);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_worker_that_never_hands_over_ends_the_gateway_and_not_its_signals() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, _) = Gateway::for_ann(&lab);
    let mut worker = TakenOver::of_gateway(&gateway);
    worker.send(&bare(UPGRADE));
    let sent = worker.expect(TO_HAND_OVER);
    assert_eq!(sent.descriptors, 1, "the channel to its successor");
    ends(gateway.process(), "not ready in time");
    gateway.start();
}
