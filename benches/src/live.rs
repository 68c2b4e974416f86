//! A TCP stream through two whole shards on real devices, each system call timed where it happens.
//!
//! ```text
//!   near: sender ── TUN ── client's shard ── UDP ── link ── UDP ── gateway's shard ── TUN ── receiver :far
//! ```
//!
//! A system call that is repeated alone runs with warm caches and with nothing behind the device.
//! Here behind every device is what a VPN has there: a TCP sender that the client's TUN write of an
//! acknowledgement makes send, a TCP receiver that runs inside the gateway's TUN write, another
//! shard that a send wakes. The time of a call is CPU time of its thread, so what else the machine
//! does is no part of it, but the work of soft interrupts is that the call raises.
//!
//! INVARIANT: only devices and sockets in the two named namespaces are made, and they end with the
//! run.

mod devices;
mod load;
mod process;

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::sync::mpsc;
use vpnd_crypto::{Backend, EpochSecret, LabPermit, Suite};
use vpnd_proto::plane::{Command, Endpoint, EpochSpec, Event, ReceiveSpec, Role, SessionSpec, Slot};
use vpnd_proto::policy::{Policy, Principal};
use vpnd_proto::time::Time;
use vpnd_proto::wire::Index;
use vpnd_shard::Progress;
use vpnd_shard::stepped::{Stepped, SteppedSpec};
use vpnd_sys::process::prefer_current_thread;
use vpnd_sys::tun::{CLIENT_TX_QUEUE_LEN, GATEWAY_TX_QUEUE_LEN, Tun, TunOffloads, TunQueue, TunSpec};
use vpnd_sys::udp::{ShardSocket, SocketOptions};

pub use devices::{Calls, Timed};
use devices::{Stopwatch, TimedSocket, TimedTun, thread_cpu};
use load::Load;
pub use process::serve;
use process::{EndSpec, Process};

use crate::devices::{Place, enter};

/// The inner addresses of both ends: not those of the devices that are measured alone, which are
/// still there.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 87, 0, 2);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 87, 0, 1);
/// How far the gateway's shards go before other work, as `priority` has it by default.
const PRIORITY: u8 = 10;
/// Until windows are open and queues are as full as they get.
const WARM_UP: Duration = Duration::from_millis(150);
/// How often the time of a run passes at most until something was carried.
const MOST_WINDOWS: usize = 50;
/// The longest that an end may take to answer when it is asked for its figures.
const TIMEOUT: Duration = Duration::from_secs(10);
const SLOT: Slot = Slot { index: 0, generation: 0 };

/// The load.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Traffic {
    /// Length of the longest inner packet, in bytes.
    pub packet: usize,
    /// The longest super-packet and the longest run of datagrams, in packets.
    pub pieces: usize,
    /// TCP connections.
    pub streams: usize,
}

/// The accounts of both ends.
#[derive(Clone, Debug, Serialize)]
pub struct Live {
    /// The load.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// The cipher suite.
    pub suite: &'static str,
    /// Each system call was timed. Otherwise only `cpu_ns` is a time, which the clock does not
    /// disturb then.
    pub clocked: bool,
    /// The sending end.
    pub client: End,
    /// The receiving end.
    pub gateway: End,
}

/// One shard's account of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct End {
    /// CPU time of its thread, in nanoseconds, without that of reading the clock.
    pub cpu_ns: f64,
    /// How often it slept and was woken.
    pub wake_ups: u64,
    /// Reading from the TUN device.
    pub read: Calls,
    /// Sending to the other end.
    pub send: Calls,
    /// Receiving from it.
    pub receive: Calls,
    /// Writing to the TUN device.
    pub write: Calls,
    /// The shard's own work between these calls on the way from the TUN device, in nanoseconds.
    pub transmit_ns: f64,
    /// And on the way to it.
    pub deliver_ns: f64,
}

impl End {
    fn since(&self, earlier: &Self) -> Self {
        Self {
            cpu_ns: (self.cpu_ns - earlier.cpu_ns).max(0.0),
            wake_ups: self.wake_ups - earlier.wake_ups,
            read: self.read.since(&earlier.read),
            send: self.send.since(&earlier.send),
            receive: self.receive.since(&earlier.receive),
            write: self.write.since(&earlier.write),
            transmit_ns: self.transmit_ns - earlier.transmit_ns,
            deliver_ns: self.deliver_ns - earlier.deliver_ns,
        }
    }
}

/// Carries `traffic` for about `time` between the two namespaces of `place`, with a clock around
/// each system call if `clocked`.
///
/// # Errors
/// If something could not be made, or nothing was carried.
pub fn run(
    place: &Place,
    (suite, backend): (Suite, Backend),
    (traffic, clocked): (Traffic, bool),
    time: Duration,
) -> anyhow::Result<Live> {
    let Place { near: Some(near), far: Some(far), near_address: Some(from), far_address: Some(to) } = place
    else {
        return Err(anyhow!("a run on real devices needs two namespaces"));
    };
    let end = |is_gateway: bool, namespace: &String, outer: &Ipv4Addr| EndSpec {
        is_gateway,
        namespace: namespace.clone(),
        outer: *outer,
        packet: traffic.packet,
        pieces: traffic.pieces,
        suite: suite.name().into(),
        backend: backend.name().into(),
        clocked,
    };
    let mut client = Process::start(&end(false, near, from))?;
    let mut gateway = Process::start(&end(true, far, to))?;
    client.begin(gateway.address)?;
    gateway.begin(client.address)?;
    let load = Load::start((near, far), GATEWAY, traffic.streams)?;
    std::thread::sleep(WARM_UP);
    let before = [client.read()?, gateway.read()?];
    let mut after = before.clone();
    // On a busy machine a stream may stand still for as long as a lost segment takes.
    for _ in 0..MOST_WINDOWS {
        std::thread::sleep(time);
        after = [client.read()?, gateway.read()?];
        let has_read = after[0].read.bytes > before[0].read.bytes;
        if has_read && after[1].write.bytes > before[1].write.bytes {
            break;
        }
    }
    load.end()?;
    let [client, gateway] = [0, 1].map(|end: usize| after[end].since(&before[end]));
    ensure!(client.read.bytes > 0 && gateway.write.bytes > 0, "the stream through the tunnel stands still");
    Ok(Live { traffic, suite: suite.name(), clocked, client, gateway })
}

/// Devices of one end.
struct Parts {
    tun: TunQueue,
    socket: ShardSocket,
    pieces: usize,
    packet: usize,
    peer: Ipv4Addr,
    clocked: bool,
}

impl Parts {
    fn make(spec: &EndSpec) -> anyhow::Result<Self> {
        let EndSpec { packet, pieces, clocked, .. } = *spec;
        let (inner, peer) = if spec.is_gateway { (GATEWAY, CLIENT) } else { (CLIENT, GATEWAY) };
        let tx_queue_len = if spec.is_gateway { GATEWAY_TX_QUEUE_LEN } else { CLIENT_TX_QUEUE_LEN };
        enter(&spec.namespace)?;
        let socket = ShardSocket::bind((spec.outer, 0).into(), &SocketOptions::default())?;
        let spec = TunSpec {
            name: "live0".into(),
            mtu: packet as u16,
            queues: 1,
            tx_queue_len,
            offloads: TunOffloads::ALL,
        };
        let device = Tun::open(&spec)?;
        let most = (pieces * (packet - crate::traffic::HEADERS) + crate::traffic::HEADERS).min(65_535);
        ip(&format!("address add {inner}/24 dev live0"))?;
        ip(&format!("link set live0 gso_max_size {most}"))?;
        ip("link set live0 up")?;
        let tun = device.into_queues().pop().context("a device has a queue")?;
        Ok(Self { tun, socket, pieces, packet, peer, clocked })
    }
}

fn ip(words: &str) -> anyhow::Result<()> {
    let mut command = std::process::Command::new("ip");
    let done = command.args(words.split(' ')).output().context("running `ip`; is iproute2 installed?")?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "ip {words}: {}", said.trim());
    Ok(())
}

/// One end's keys.
#[derive(Clone, Copy)]
struct Keys {
    suite: Suite,
    backend: Backend,
    own: u32,
    peer: u32,
    remote: Option<SocketAddr>,
}

impl Keys {
    fn install(self) -> Command {
        Command::Install(Box::new(EpochSpec {
            slot: SLOT,
            epoch: 1,
            suite: self.suite,
            backend: self.backend,
            lab: Some(LabPermit::insecure()),
            secret: Arc::new(EpochSecret::new([7; 32])),
            features: 1,
            lane: 0,
            peer_index: Index(0x1_0000 * self.peer),
            peer_lane: 0,
            endpoint: self.remote.map(|remote| Endpoint { remote, local: None }),
            receive: vec![ReceiveSpec { index: Index(0x1_0000 * self.own), lanes: vec![0] }],
            reject_at: Time::from_nanos(u64::MAX),
        }))
    }
}

/// Asks a shard's thread for its figures.
type Ask = std_mpsc::Sender<End>;

/// A shard on its thread; ends when it is dropped.
struct Running {
    asks: Option<mpsc::UnboundedSender<Ask>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(parts: Parts, role: Role, keys: Keys) -> anyhow::Result<Self> {
        let (asks, inbox) = mpsc::unbounded_channel();
        let thread = std::thread::Builder::new().name(format!("live-{role:?}")).spawn(move || {
            if role == Role::Gateway
                && let Err(error) = prefer_current_thread(PRIORITY)
            {
                eprintln!("the gateway's shard runs without priority: {error}");
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
            if let Err(error) = runtime.and_then(|runtime| runtime.block_on(turns(parts, role, keys, inbox)))
            {
                eprintln!("a shard stopped: {error}");
            }
        })?;
        Ok(Self { asks: Some(asks), thread: Some(thread) })
    }

    fn read(&self) -> anyhow::Result<End> {
        let (answer, figures) = std_mpsc::channel();
        let gone = || anyhow!("a shard has stopped");
        self.asks.as_ref().ok_or_else(gone)?.send(answer).map_err(|_| gone())?;
        figures.recv_timeout(TIMEOUT).map_err(|_| gone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.asks = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been printed where it was.
            let _ = thread.join();
        }
    }
}

/// The loop of a shard's thread, as the daemon has it, with a clock around each turn.
async fn turns(
    parts: Parts,
    role: Role,
    keys: Keys,
    mut asks: mpsc::UnboundedReceiver<Ask>,
) -> std::io::Result<()> {
    let account = Rc::new(RefCell::new(End::default()));
    let watch = Stopwatch::new(parts.clocked);
    let (tun, socket) = (Rc::new(parts.tun.into_async()?), Rc::new(parts.socket.into_async()?));
    let (policy, mtu) = (Arc::new(Policy::without_rules(true)), parts.packet as u16);
    let spec = SteppedSpec { role, policy, tun_offloads: TunOffloads::ALL, mtu };
    let timed_tun = TimedTun { device: Rc::clone(&tun), account: Rc::clone(&account), watch };
    let timed_socket =
        TimedSocket { device: Rc::clone(&socket), account: Rc::clone(&account), watch, pieces: parts.pieces };
    let mut shard = Stepped::new(spec, timed_tun, timed_socket);
    let inner = if role == Role::Gateway { parts.peer } else { CLIENT };
    let addresses = vec![std::net::IpAddr::from(inner).into()];
    shard.command(Command::Open(SessionSpec {
        slot: SLOT,
        addresses,
        principal: Principal::default(),
        limits: None,
        flows: Arc::default(),
        path: Arc::default(),
    }));
    shard.command(keys.install());
    loop {
        tokio::select! {
            ask = asks.recv() => match ask {
                None => return Ok(()),
                // The caller may have given up waiting.
                Some(answer) => drop(answer.send(figures(&account, watch))),
            },
            ready = socket.readable() => {
                let mut ready = ready?;
                let turn = Turn::begin(&account, watch);
                let progress = shard.receive();
                account.borrow_mut().deliver_ns += turn.own(&account, watch);
                if progress == Progress::Drained {
                    ready.clear_ready();
                }
            }
            ready = tun.ready(Interest::READABLE | Interest::ERROR) => {
                let mut ready = ready?;
                let turn = Turn::begin(&account, watch);
                let progress = shard.transmit()?;
                account.borrow_mut().transmit_ns += turn.own(&account, watch);
                if progress == Progress::Drained {
                    ready.clear_ready();
                }
            }
        }
        while let Some(event) = shard.poll_event() {
            // Follows the control plane: a lane is answered where it came from.
            if let Event::Heard { slot, epoch, lane, endpoint } = event {
                shard.command(Command::Reach { slot, epoch, lane, endpoint });
            }
        }
    }
}

/// A turn of the loop while it lasts.
struct Turn {
    began: f64,
    /// Time in system calls until then, and how many there were.
    timed: (f64, u64),
}

impl Turn {
    fn begin(account: &RefCell<End>, watch: Stopwatch) -> Self {
        Self { timed: timed(&account.borrow()), began: watch.start() }
    }

    /// Nanoseconds of the turn that were in no system call.
    fn own(&self, account: &RefCell<End>, watch: Stopwatch) -> f64 {
        let whole = watch.since(self.began);
        let (ns, calls) = timed(&account.borrow());
        // Each of them read the clock twice.
        (whole - (ns - self.timed.0) - watch.readings(2 * (calls - self.timed.1))).max(0.0)
    }
}

fn timed(end: &End) -> (f64, u64) {
    let all = [&end.read, &end.send, &end.receive, &end.write];
    let ns = all.iter().map(|calls| calls.work.ns + calls.empty.ns).sum();
    (ns, all.iter().map(|calls| calls.work.calls + calls.empty.calls).sum())
}

fn figures(account: &RefCell<End>, watch: Stopwatch) -> End {
    let mut end = account.borrow().clone();
    let calls = timed(&end).1;
    // Each timed call reads the clock twice.
    end.cpu_ns = thread_cpu() - watch.readings(2 * calls);
    end.wake_ups = devices::wake_ups();
    end
}
