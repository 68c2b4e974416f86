//! Attacks from inside: a sandboxed process tries what would give it more rights. Each case runs in
//! a separate process, this program again; what is tried is tried before, too, to see that it would
//! work.

use std::ffi::CStr;
use std::fs::File;
use std::io::{ErrorKind, IoSlice, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram, UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use libc::{c_int, c_long};
use rustix::net::{AddressFamily, SocketType};

use super::*;
use crate::aio::Writes;

/// Names the kind of process that a test's own process is.
const INSIDE: &str = "VPND_TEST_CONFINED";
const KINDS: [SystemCalls; 6] = [
    SystemCalls::Descriptors,
    SystemCalls::NoSockets,
    SystemCalls::ManyWrites,
    SystemCalls::Files,
    SystemCalls::Resolver,
    SystemCalls::Connections,
];

/// Whether a process of this kind has no call that opens a file.
fn opens_nothing(kind: SystemCalls) -> bool {
    matches!(kind, SystemCalls::Descriptors | SystemCalls::NoSockets | SystemCalls::ManyWrites)
}

/// Runs `inside` for each kind of process, in a separate process; there it does not return.
fn in_processes(test: &str, inside: fn(SystemCalls)) {
    if let Some(kind) = std::env::var_os(INSIDE) {
        let kind = KINDS.into_iter().find(|known| kind == *format!("{known:?}"));
        inside(kind.unwrap());
        // Destructors of libraries would run while the harness's other thread runs, which still
        // uses what they take down. SAFETY: ends this process at once; nothing of it is needed any
        // more.
        unsafe { libc::_exit(0) };
    }
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "this test needs root");
        let _ = writeln!(std::io::stderr(), "SKIPPED: only root has something to give up; run ./x test");
        return;
    }
    for kind in KINDS {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([&format!("sandbox::tests::{test}"), "--exact", "--nocapture"]);
        let output = command.env(INSIDE, format!("{kind:?}")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{kind:?}: {}: {said}", output.status);
        let ran = String::from_utf8_lossy(&output.stdout).contains("running 1 test");
        assert!(ran, "{kind:?}: there is no test of this name: {test}");
    }
}

/// Shuts this process in. It stays root where the case is about what even that would not help with.
fn shut_in(system_calls: SystemCalls, identity: Option<UnixUser>) -> Protections {
    let readable =
        if system_calls == SystemCalls::Resolver { vec!["/etc".into(), "/usr".into()] } else { vec![] };
    let protections = enter(&Confinement {
        mode: SandboxMode::On,
        identity,
        system_calls,
        readable,
        writable: Vec::new(),
        tcp_ports: Vec::new(),
    })
    .unwrap();
    assert!(protections.seccomp && protections.no_capabilities, "{protections:?}");
    protections
}

/// A system call as the kernel gets it: the error number, or 0.
fn call(number: c_long, arguments: [c_long; 4]) -> c_int {
    let [a, b, c, d] = arguments;
    // SAFETY: a caller here passes numbers, or pointers to what outlives the call.
    let status = unsafe { libc::syscall(number, a, b, c, d) };
    if status == -1 { std::io::Error::last_os_error().raw_os_error().unwrap() } else { 0 }
}

fn assert_refused(what: &str, error: c_int) {
    assert!(matches!(error, libc::ENOSYS | libc::EPERM | libc::EACCES), "{what}: {error}");
}

/// A new terminal, which controls this process from now on; with its other end.
fn controlling_terminal() -> (OwnedFd, File) {
    // SAFETY: each call gets numbers, a buffer with its length, or a name that ends with zero.
    unsafe {
        let master = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY);
        assert!(master >= 0 && libc::grantpt(master) == 0 && libc::unlockpt(master) == 0);
        let mut name = [0; 64];
        assert_eq!(libc::ptsname_r(master, name.as_mut_ptr(), name.len()), 0);
        assert!(libc::setsid() >= 0);
        let name = CStr::from_ptr(name.as_ptr()).to_str().unwrap();
        let slave = File::options().read(true).write(true).open(name).unwrap();
        assert_eq!(libc::ioctl(slave.as_raw_fd(), libc::TIOCSCTTY, 0), 0);
        (OwnedFd::from_raw_fd(master), slave)
    }
}

#[test]
fn no_confined_process_types_into_a_terminal() {
    in_processes("no_confined_process_types_into_a_terminal", |kind| {
        // The terminal hangs up at the end.
        process::ignore_signals().unwrap();
        let (_master, terminal) = controlling_terminal();
        let fd = c_long::from(terminal.as_raw_fd());
        let types = || call(libc::SYS_ioctl, [fd, libc::TIOCSTI as c_long, c"x".as_ptr() as c_long, 0]);
        let own = || File::open("/dev/tty");
        assert_eq!(types(), 0, "root can");
        assert!(own().is_ok());
        let protections = shut_in(kind, None);
        assert_refused("TIOCSTI", types());
        // The kernel looks at 32 bits of the request: the others must not hide it from the filter.
        let hidden = libc::TIOCSTI as c_long | 1 << 32;
        assert_refused("TIOCSTI", call(libc::SYS_ioctl, [fd, hidden, c"x".as_ptr() as c_long, 0]));
        for request in [libc::TIOCLINUX, libc::TIOCSCTTY, libc::TIOCSPGRP, libc::TCSETS] {
            assert_refused("a terminal's ioctl", call(libc::SYS_ioctl, [fd, request as c_long, 0, 0]));
        }
        if opens_nothing(kind) || protections.landlock != Landlock::Missing {
            assert!(own().is_err(), "/dev/tty");
        }
    });
}

/// A process of the same user that ends with its input.
fn process_without_capabilities() -> Child {
    let mut command = Command::new("setpriv");
    let process = command.args(["--bounding-set", "-all", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    let status = format!("/proc/{}/status", process.id());
    while !std::fs::read_to_string(&status).unwrap().contains("CapPrm:\t0000000000000000") {
        std::thread::sleep(Duration::from_millis(1));
    }
    process
}

#[test]
fn no_confined_process_touches_another() {
    in_processes("no_confined_process_touches_another", |kind| {
        // Its parent, who runs as the same user.
        let parent = c_long::from(rustix::process::getppid().unwrap().as_raw_nonzero().get());
        let own = c_long::from(std::process::id());
        let pair = UnixStream::pair().unwrap();
        let owned =
            |whose| call(libc::SYS_fcntl, [pair.0.as_raw_fd().into(), libc::F_SETOWN.into(), whose, 0]);
        let set = 1u64;
        let pin = |whose| call(libc::SYS_sched_setaffinity, [whose, 8, (&raw const set) as c_long, 0]);
        let nice = |which: u32, whose| call(libc::SYS_setpriority, [which.into(), whose, 19, 0]);
        let mut attributes = [0_u32; size_of::<libc::sched_attr>() / size_of::<u32>()];
        let (scheduling, len) = (attributes.as_mut_ptr() as c_long, size_of_val(&attributes) as c_long);
        let reads = |whose| call(libc::SYS_sched_getattr, [whose, scheduling, len, 0]);
        let sets = |whose| call(libc::SYS_sched_setattr, [whose, scheduling, 0, 0]);
        assert_eq!(call(libc::SYS_kill, [parent, 0, 0, 0]), 0, "it may");
        // One that has no more rights than this one will have, or the kernel would refuse in any
        // case.
        let mut equal = process_without_capabilities();
        let peer = c_long::from(equal.id());
        assert_eq!((reads(peer), sets(peer)), (0, 0), "as they are, so nothing changes");
        assert_eq!((call(libc::SYS_tgkill, [parent, parent, 0, 0]), owned(parent)), (0, 0));
        shut_in(kind, None);
        assert_refused("kill", call(libc::SYS_kill, [parent, 0, 0, 0]));
        assert_refused("kill of all", call(libc::SYS_kill, [-1, 0, 0, 0]));
        assert_refused("tgkill", call(libc::SYS_tgkill, [parent, parent, 0, 0]));
        assert_refused("F_SETOWN", owned(parent));
        assert_refused("sched_setaffinity", pin(parent));
        assert_refused("sched_getattr", reads(peer));
        assert_refused("sched_setattr", sets(peer));
        assert_refused("sched_setaffinity of an equal", pin(peer));
        assert_refused("setpriority", nice(libc::PRIO_PROCESS, parent));
        assert_refused("setpriority of a user", nice(libc::PRIO_USER, 0));
        for option in [libc::PR_SET_PDEATHSIG, libc::PR_SET_DUMPABLE, libc::PR_SET_PTRACER] {
            assert_refused("prctl", call(libc::SYS_prctl, [option.into(), 1, 0, 0]));
        }
        assert_eq!(call(libc::SYS_tgkill, [own, own, 0, 0]), 0, "but itself, as when it panics");
        assert_eq!((reads(0), sets(0)), (0, 0));
        // It ends by that, though it can't be waited for.
        let _ = equal.wait();
        assert_eq!((pin(0), nice(libc::PRIO_PROCESS, 0)), (0, 0));
    });
}

#[test]
fn confined_processes_connect_to_name_servers_only() {
    in_processes("confined_processes_connect_to_name_servers_only", |kind| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let (udp, _unix) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UnixListener::bind(&path).unwrap());
        let log = UnixDatagram::bind(directory.path().join("log")).unwrap();
        log.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        // Files are no obstacle.
        for (place, mode) in [("", 0o755), ("socket", 0o777), ("log", 0o777)] {
            let open = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(directory.path().join(place), open).unwrap();
        }
        let name = format!("vpnd-test-{}", std::process::id());
        let hidden = UnixAddr::from_abstract_name(name.as_bytes());
        let hidden = hidden.unwrap();
        let _hidden_listener = UnixListener::bind_addr(&hidden).unwrap();
        let to_tcp = || std::net::TcpStream::connect(tcp.local_addr().unwrap()).map(drop);
        let to_udp = || UdpSocket::bind("127.0.0.1:0")?.connect(udp.local_addr()?);
        let to_path = || UnixStream::connect(&path).map(drop);
        let to_name = || UnixStream::connect_addr(&hidden).map(drop);
        // One end of a pair of datagram sockets can send to any other such socket of the machine.
        let to_log = || UnixDatagram::pair()?.0.send_to(b"x", directory.path().join("log")).map(drop);
        for connect in [&to_tcp as &dyn Fn() -> std::io::Result<()>, &to_udp, &to_path, &to_name, &to_log] {
            connect().unwrap();
        }
        log.recv(&mut [0; 1]).unwrap();
        let unconnected = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let protections = shut_in(kind, UnixUser::choose(None).unwrap());
        let fast = [unconnected.as_raw_fd().into(), 0, 0, libc::MSG_FASTOPEN.into()];
        assert_refused("a connection by what is sent", call(libc::SYS_sendto, fast));
        assert!(to_log().is_err() && log.recv(&mut [0; 1]).is_err(), "a datagram by way of a pair");
        if kind == SystemCalls::Connections {
            assert!(to_path().is_err() && to_name().is_err(), "a service of this machine");
        }
        if !kind.may_ask_name_servers() {
            assert!(to_tcp().is_err() && to_udp().is_err() && to_path().is_err() && to_name().is_err());
        } else if protections.landlock != Landlock::Missing && has_newest_landlock() {
            assert_eq!(to_tcp().unwrap_err().kind(), ErrorKind::PermissionDenied);
            let hidden = to_name().unwrap_err().kind();
            assert!(matches!(hidden, ErrorKind::PermissionDenied | ErrorKind::Unsupported), "{hidden}");
            let name_server = std::net::TcpStream::connect("127.0.0.1:53").map(drop);
            assert!(name_server.err().is_none_or(|error| error.kind() == ErrorKind::ConnectionRefused));
        }
        let raw = |kind: c_int, protocol: c_int| {
            call(libc::SYS_socket, [libc::AF_INET.into(), kind.into(), protocol.into(), 0])
        };
        assert_refused("a raw socket", raw(libc::SOCK_RAW, libc::IPPROTO_ICMP));
        if kind == SystemCalls::NoSockets {
            // It could send to any address without a bind or a connect.
            assert_refused("a UDP socket", raw(libc::SOCK_DGRAM, libc::IPPROTO_UDP));
        }
        if kind != SystemCalls::Resolver {
            assert_refused("a ping socket", raw(libc::SOCK_DGRAM, libc::IPPROTO_ICMP));
        }
        let packets = call(libc::SYS_socket, [libc::AF_PACKET.into(), libc::SOCK_RAW.into(), 0, 0]);
        assert_refused("a packet socket", packets);
    });
}

/// Whether the kernel is 6.12 or newer.
fn has_newest_landlock() -> bool {
    let system = rustix::system::uname();
    let mut numbers = system.release().to_str().unwrap().split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok()).unwrap_or(0);
    (next(), next()) >= (6, 12)
}

#[test]
fn no_confined_process_reads_the_account_files() {
    in_processes("no_confined_process_reads_the_account_files", |kind| {
        std::fs::read("/etc/shadow").unwrap();
        let protections = shut_in(kind, UnixUser::choose(None).unwrap());
        assert!(std::fs::read("/etc/shadow").is_err());
        if opens_nothing(kind) || kind == SystemCalls::Files && protections.landlock != Landlock::Missing {
            assert!(std::fs::read("/etc/passwd").is_err());
        }
    });
}

/// A process that was given a socket to one place sends nothing anywhere else, whatever it does
/// with it.
#[test]
fn a_connected_socket_leads_to_its_peer_alone() {
    in_processes("a_connected_socket_leads_to_its_peer_alone", |kind| {
        let [peer, other] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        other.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket2::SockRef::from(&socket).bind_device(Some(b"lo")).unwrap();
        socket.connect(peer.local_addr().unwrap()).unwrap();
        let elsewhere = other.local_addr().unwrap();
        let named = || socket.send_to(b"x", elsewhere);
        let message = || {
            let bytes = [IoSlice::new(b"x")];
            let mut none = rustix::net::SendAncillaryBuffer::default();
            let flags = rustix::net::SendFlags::empty();
            rustix::net::sendmsg_addr(&socket, &elsewhere, &bytes, &mut none, flags)
        };
        assert!(named().is_ok() && message().is_ok(), "an address that is named comes first");
        (0..2).for_each(|_| assert!(other.recv(&mut [0]).is_ok()));
        shut_in(kind, UnixUser::choose(None).unwrap());
        if kind != SystemCalls::NoSockets {
            return;
        }
        assert!(named().is_err() && message().is_err());
        assert!(socket.connect(elsewhere).is_err());
        let device = |name| socket2::SockRef::from(&socket).bind_device(name);
        assert!(device(None).is_err() && device(Some(b"eth0")).is_err());
        assert!(other.recv(&mut [0]).is_err(), "nothing comes there");
        assert!(socket.send(b"x").is_ok() && peer.recv(&mut [0]).is_ok());
    });
}

/// A mark decides through which tunnels a datagram goes: only the privileged process gives one.
#[test]
fn no_confined_process_sets_a_packet_mark() {
    in_processes("no_confined_process_sets_a_packet_mark", |kind| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let marked = |mark| socket2::SockRef::from(&socket).set_mark(mark);
        marked(0x7670_FFFF).unwrap();
        shut_in(kind, None);
        for mark in [0, 0x7670_FFFE, 0x7670_8000] {
            assert!(marked(mark).is_err(), "{mark:#x}");
        }
    });
}

/// A process that takes a port could answer in the place of a program of this machine, or be
/// reached from elsewhere: one that makes connections has those sockets to receive on that it was
/// given.
#[test]
fn no_confined_process_binds_a_port() {
    in_processes("no_confined_process_binds_a_port", |kind| {
        let address = "127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap();
        let socket = |of| rustix::net::socket(AddressFamily::INET, of, None).unwrap();
        let made = [SocketType::DGRAM, SocketType::STREAM].map(|of| [socket(of), socket(of)]);
        for [before, _] in &made {
            rustix::net::bind(before, &address).unwrap();
        }
        shut_in(kind, None);
        if kind == SystemCalls::Resolver {
            return;
        }
        for [_, after] in &made {
            assert_eq!(rustix::net::bind(after, &address), Err(rustix::io::Errno::NOSYS));
        }
        assert_refused("listening", call(libc::SYS_listen, [made[1][0].as_raw_fd().into(), 1, 0, 0]));
    });
}

/// A process that makes connections reaches only the TCP ports that it was given.
#[test]
fn confined_processes_connect_to_granted_ports_only() {
    in_processes("confined_processes_connect_to_granted_ports_only", |kind| {
        if kind != SystemCalls::Connections {
            return;
        }
        let [given, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let connect = |listener: &TcpListener| std::net::TcpStream::connect(("127.0.0.1", port(listener)));
        connect(&other).unwrap();
        let identity = UnixUser::choose(None).unwrap();
        let protections = enter(&Confinement {
            mode: SandboxMode::On,
            identity,
            system_calls: kind,
            readable: Vec::new(),
            writable: Vec::new(),
            tcp_ports: vec![port(&given)],
        })
        .unwrap();
        connect(&given).unwrap();
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
        rustix::net::connect(&socket, &"127.0.0.1:1812".parse::<std::net::SocketAddr>().unwrap()).unwrap();
        assert_refused("listening", call(libc::SYS_listen, [0, 1, 0, 0]));
        assert!(std::fs::read("/etc/hosts").is_err() || protections.landlock == Landlock::Missing);
        if protections.landlock != Landlock::Missing && has_newest_landlock() {
            assert_eq!(connect(&other).unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
    });
}

/// Only a client's process has several writes carried out by one call, and they do no more than a
/// write does.
#[test]
fn only_a_client_writes_many_at_once() {
    in_processes("only_a_client_writes_many_at_once", |kind| {
        let (to, from) = UnixDatagram::pair().unwrap();
        let parts = [IoSlice::new(b"one"), IoSlice::new(b"two")];
        let write = |writes: &Writes, to: BorrowedFd<'_>| {
            let mut failed = Vec::new();
            let taken = writes.write(to, &[&parts, &parts], |place, _| failed.push(place));
            (taken, failed)
        };
        let before = Writes::new().unwrap();
        assert_eq!(write(&before, to.as_fd()), (2, vec![]));
        // Open for reading only.
        let file = File::open("/etc/passwd").unwrap();
        shut_in(kind, UnixUser::choose(None).unwrap());
        if kind == SystemCalls::ManyWrites {
            assert_eq!(write(&Writes::new().unwrap(), to.as_fd()), (2, vec![]));
            assert_eq!(write(&before, file.as_fd()), (0, vec![]));
        } else {
            assert_eq!(Writes::new().map(drop).unwrap_err().raw_os_error(), Some(libc::ENOSYS));
            assert_eq!(write(&before, to.as_fd()), (0, vec![]));
        }
        let mut buffer = [0; 16];
        let written = if kind == SystemCalls::ManyWrites { 4 } else { 2 };
        from.set_nonblocking(true).unwrap();
        for _ in 0..written {
            assert_eq!(from.recv(&mut buffer).unwrap(), 6);
        }
        assert!(from.recv(&mut buffer).is_err());
    });
}

#[test]
fn reading_the_time_is_no_system_call() {
    const CLOCK: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let clock = std::fs::read_to_string(CLOCK).unwrap();
    if !matches!(clock.trim(), "tsc" | "kvm-clock" | "arch_sys_counter") {
        let _ = writeln!(std::io::stderr(), "SKIPPED: programs can't read this machine's clock, {clock}");
        return;
    }
    in_processes("reading_the_time_is_no_system_call", |kind| {
        // No filter can be added in confinement.
        let reads = std::collections::BTreeMap::from([(libc::SYS_clock_gettime, Vec::new())]);
        let architecture = std::env::consts::ARCH.try_into().unwrap();
        let (allow, kill) = (seccompiler::SeccompAction::Allow, seccompiler::SeccompAction::KillProcess);
        let filter = seccompiler::SeccompFilter::new(reads, allow, kill, architecture).unwrap();
        let filter: seccompiler::BpfProgram = filter.try_into().unwrap();
        seccompiler::apply_filter(&filter).unwrap();
        shut_in(kind, None);
        assert!(!process::boottime().is_zero());
    });
}
