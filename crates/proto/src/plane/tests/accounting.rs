//! Each packet that enters a plane leaves it, waits in it, or is counted as dropped, once: whatever
//! comes, in whatever order.

use proptest::prelude::*;

use super::*;
use crate::control::FEATURE_HALVES;
use crate::policy::{Names, Protocol, RuleSpec, Selector};

const FROM: [&str; 2] = ["198.51.100.1:1000", "198.51.100.2:2000"];

/// Something that happens to a gateway with two clients.
#[derive(Clone, Debug)]
enum Step {
    /// A client sends a packet between these hosts with `hops` left, perhaps with a congestion mark
    /// on the way.
    Packet {
        client: u32,
        from: u8,
        to: u8,
        hops: u8,
        congested: bool,
        partial: bool,
    },
    /// A client sends this plaintext, whatever it is.
    Plaintext {
        client: u32,
        bytes: Vec<u8>,
    },
    /// A client sends a packet in halves, of which these arrive.
    Halves {
        client: u32,
        from: u8,
        to: u8,
        hops: u8,
        arrive: [bool; 2],
    },
    /// A datagram of before comes again, perhaps with a changed byte.
    Again {
        which: prop::sample::Index,
        changed: Option<prop::sample::Index>,
    },
    /// The campus sends a packet to this host.
    Campus {
        to: u8,
    },
    /// The control plane has a datagram sent.
    Probe {
        client: u32,
        size: u16,
    },
    /// Another epoch begins, of which the client is heard or not yet.
    Rekey {
        client: u32,
        heard: bool,
    },
    Retire {
        client: u32,
        epoch: u32,
    },
    Close {
        client: u32,
    },
    ClosedCampus {
        closed: bool,
    },
    Wait {
        seconds: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (client, host, hops) = (|| 0..2_u32, || prop_oneof![10..13_u8, 199..202_u8], || 0..4_u8);
    prop_oneof![
        8 => (client(), host(), host(), hops(), any::<bool>(), any::<bool>()).prop_map(
            |(client, from, to, hops, congested, partial)| Step::Packet { client, from, to, hops, congested, partial }
        ),
        3 => (client(), prop::collection::vec(any::<u8>(), 0..40), prop::option::of(0x10..0x14_u8)).prop_map(
            |(client, mut bytes, kind)| {
                if let (Some(first), Some(kind)) = (bytes.first_mut(), kind) {
                    *first = kind;
                }
                Step::Plaintext { client, bytes }
            }
        ),
        4 => (client(), host(), host(), hops(), any::<[bool; 2]>())
            .prop_map(|(client, from, to, hops, arrive)| Step::Halves { client, from, to, hops, arrive }),
        4 => (any::<prop::sample::Index>(), any::<Option<prop::sample::Index>>())
            .prop_map(|(which, changed)| Step::Again { which, changed }),
        6 => host().prop_map(|to| Step::Campus { to }),
        2 => (client(), 0..2_000_u16).prop_map(|(client, size)| Step::Probe { client, size }),
        2 => (client(), any::<bool>()).prop_map(|(client, heard)| Step::Rekey { client, heard }),
        1 => (client(), 1..4_u32).prop_map(|(client, epoch)| Step::Retire { client, epoch }),
        1 => client().prop_map(|client| Step::Close { client }),
        1 => any::<bool>().prop_map(|closed| Step::ClosedCampus { closed }),
        1 => (0..100_u64).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

/// The gateway's packets, as an observer counts them.
struct Ledger {
    net: Net,
    epochs: [u32; 2],
    /// Datagrams that clients have sent.
    sent: Vec<(usize, Vec<u8>)>,
    entered: u64,
    left: u64,
    /// Halves that became one packet with another.
    joined: u64,
}

impl Ledger {
    fn new() -> Self {
        let mut net = Net::new(true);
        net.meet();
        Self { net, epochs: [1; 2], sent: Vec::new(), entered: 2, left: 2, joined: 0 }
    }

    /// Packets and halves inside the gateway's plane.
    fn inside(&self) -> u64 {
        let sessions = self.net.gateway.sessions.iter().flatten();
        sessions.map(|session| (session.waiting() + session.halves.len()) as u64).sum()
    }

    fn halves_kept(&self) -> usize {
        self.net.gateway.sessions.iter().flatten().map(|session| session.halves.len()).sum()
    }

    fn deliver(&mut self, client: usize, mut datagram: Vec<u8>, congested: bool) {
        let Ok(header) = Header::parse(&datagram) else { return };
        let origin = Origin {
            from: endpoint(FROM[client]),
            mark: if congested { Ecn::Ce } else { Ecn::NotEct },
            congested: false,
        };
        let (now, kept) = (self.net.now, self.halves_kept());
        self.entered += 1;
        let opened = self.net.gateway.open(now, header, &mut datagram, origin);
        self.joined += u64::from(self.halves_kept() < kept);
        match opened {
            Ok(Opened::Tun(_) | Opened::Probe { .. } | Opened::Joined { to: None, .. }) => self.left += 1,
            Ok(Opened::Forward { to, len }) => self.seal(to, &datagram[HEADER_LEN..HEADER_LEN + len]),
            Ok(Opened::Joined { to: Some(to), packet }) => {
                let packet = self.net.gateway.joined()[packet.range()].to_vec();
                self.seal(to, &packet);
            }
            // A half that waits, or a message that the plane keeps: told apart by what is inside.
            Ok(Opened::Consumed) if is_half(&datagram) => {}
            Ok(Opened::Consumed | Opened::BatchProbe { .. } | Opened::BatchesLost(_)) => self.left += 1,
            Ok(Opened::Expired { .. } | Opened::Redirect { .. } | Opened::Refused { .. }) | Err(_) => {}
        }
    }

    fn seal(&mut self, to: Slot, packet: &[u8]) {
        let mut datagram = vec![0; HEADER_LEN + packet.len() + 48];
        datagram[HEADER_LEN..HEADER_LEN + packet.len()].copy_from_slice(packet);
        match self.net.gateway.sender(self.net.now, to) {
            Ok(mut sender) => {
                self.left += u64::from(sender.seal_packet(&mut datagram, packet.len()).is_ok());
            }
            Err(no_sender) => no_sender.queue(packet),
        }
    }

    fn release(&mut self, client: u32) {
        while let Some(packet) = self.net.gateway.poll_waiting(self.net.now, slot(client)) {
            self.seal(slot(client), &packet);
        }
    }

    fn send(&mut self, client: u32, plaintext: &[u8], congested: bool) {
        let plane = &mut self.net.clients[client as usize];
        let Ok(datagram) = super::seal(plane, self.net.now, slot(0), plaintext) else { return };
        self.sent.push((client as usize, datagram.clone()));
        self.deliver(client as usize, datagram, congested);
    }

    fn send_halves(&mut self, client: u32, packet: &[u8], arrive: [bool; 2]) {
        for (second, arrives) in [(false, arrive[0]), (true, arrive[1])] {
            let Ok(mut sender) = self.net.clients[client as usize].sender(self.net.now, slot(0)) else {
                return;
            };
            let mut datagram = vec![0; 200];
            let sealed = sender.seal_half(&mut datagram, packet, second).expect("there is room");
            datagram.truncate(sealed.len);
            self.sent.push((client as usize, datagram.clone()));
            if arrives {
                self.deliver(client as usize, datagram, false);
            }
        }
    }

    fn campus_sends(&mut self, bytes: &[u8]) {
        let packet = Packet::parse(bytes).expect("a good packet");
        let mut datagram = vec![0; HEADER_LEN + bytes.len() + 48];
        datagram[HEADER_LEN..HEADER_LEN + bytes.len()].copy_from_slice(bytes);
        self.entered += 1;
        match self.net.gateway.route(self.net.now, &packet) {
            Ok(mut sender) => self.left += u64::from(sender.seal(&mut datagram, bytes.len()).is_ok()),
            Err(no_sender) => no_sender.queue(bytes),
        }
    }

    fn rekey(&mut self, client: u32, heard: bool) {
        let epoch = &mut self.epochs[client as usize];
        *epoch += 1;
        if *epoch < 15 {
            self.net.install(client, *epoch, FEATURE_HALVES);
        }
        if heard {
            self.send(client, &[], false);
        }
        self.release(client);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Packet { client, from, to, hops, congested, partial } => {
                let mut bytes = with_hops(packet(from, to), hops);
                bytes[0] |= if partial { PARTIAL_CHECKSUM } else { 0 };
                self.send(client, &bytes, congested);
            }
            Step::Plaintext { client, bytes } => self.send(client, &bytes, false),
            Step::Halves { client, from, to, hops, arrive } => {
                self.send_halves(client, &with_hops(packet(from, to), hops), arrive);
            }
            Step::Again { which, changed } if !self.sent.is_empty() => {
                let (client, mut datagram) = which.get(&self.sent).clone();
                if let Some(at) = changed {
                    *at.get_mut(&mut datagram) ^= 1;
                }
                self.deliver(client, datagram, false);
            }
            Step::Again { .. } => {}
            Step::Campus { to } => self.campus_sends(&packet(200, to)),
            Step::Probe { client, size } => {
                self.entered += 1;
                let probe = Outgoing::Probe { slot: slot(client), id: 1, size };
                let sealed = self.net.gateway.originate(self.net.now, probe, &mut [0; 1_000]);
                self.left += u64::from(sealed.is_ok());
            }
            Step::Rekey { client, heard } => self.rekey(client, heard),
            Step::Retire { client, epoch } => {
                self.net.gateway.apply(Command::Retire { slot: slot(client), epoch });
            }
            Step::Close { client } => {
                self.net.gateway.apply(Command::Close(slot(client)));
            }
            Step::ClosedCampus { closed } => {
                let rule = RuleSpec {
                    action: Verdict::Deny,
                    from: vec![Selector::Any],
                    to: vec![Selector::Any],
                    protocol: Protocol::Any,
                    ports: Vec::new(),
                };
                let rules = if closed { vec![rule] } else { Vec::new() };
                let policy = Policy::compile(&rules, true, &mut Names::default()).expect("good rules");
                self.net.gateway.apply(access(policy, []));
            }
            Step::Wait { seconds } => self.net.now = self.net.now + Duration::from_secs(seconds),
        }
        // Events are no packets; one that is taken makes room for others.
        self.net.events();
    }
}

/// Whether an opened datagram had a good half in it, which is not counted as gone: it waits, or was
/// counted when it was joined.
fn is_half(datagram: &[u8]) -> bool {
    // Without a plaintext the tag stands there.
    datagram.len() > HEADER_LEN + 16 && datagram[HEADER_LEN] == 0x13
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn each_packet_leaves_waits_or_is_counted_once(steps in prop::collection::vec(step(), 1..60)) {
        let mut ledger = Ledger::new();
        for step in steps {
            let shown = format!("{step:?}");
            ledger.step(step);
            let counted = ledger.net.gateway.counters().total();
            let accounted = ledger.left + ledger.inside() + ledger.joined + counted;
            prop_assert_eq!(ledger.entered, accounted, "after {}: {:?}", shown, ledger.net.gateway.counters());
        }
    }
}
