//! The machine's part: kernel, clock, port, interfaces, forwarding, disks, memory.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::ops::RangeInclusive;
use std::path::Path;

use super::Finding;
use vpnd_config::check::local_networks;
use vpnd_config::{NatMode, ServerConfig};
use vpnd_ipc::admin::Status;
use vpnd_sys::kernel_clock as clock;
use vpnd_sys::tun::{CLIENT_TX_QUEUE_LEN, Tun, TunError, TunOffloads, TunSpec};
use vpnd_sys::udp::{DEFAULT_BUFFER_BYTES, ShardSocket, SocketOptions};

/// Headers of an outer datagram around an inner packet, bytes: IPv6, UDP, the data header, the tag.
const OVERHEAD: u32 = 40 + 8 + 16 + 16;
/// The gateway's memory for one session, bytes, as measured (docs/PERFORMANCE.md).
const SESSION_BYTES: u64 = 48 << 10;
/// A disk with less than this is full soon, bytes.
const SCARCE_BYTES: u64 = 256 << 20;
/// With less than this no change of the store is safe, bytes.
const FULL_BYTES: u64 = 16 << 20;

/// The kernel's devices and offloads.
pub(super) fn kernel() -> Vec<Finding> {
    let mut findings = vec![tun()];
    findings.extend(udp());
    let uname = rustix::system::uname();
    findings.push(batches(&uname.release().to_string_lossy()));
    findings
}

/// Whether the kernel is one that damages batches of datagrams: it writes wrong headers where the
/// last datagram of a batch is as long as the others, with some network devices.
fn batches(release: &str) -> Finding {
    const CHECK: &str = "kernel.batches";
    const DAMAGING: RangeInclusive<[u32; 3]> = [7, 0, 0]..=[7, 1, 4];
    let numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let mut numbers = numbers.map(|number| number.unwrap_or(0)).chain(std::iter::repeat(0));
    let version: [u32; 3] = std::array::from_fn(|_| numbers.next().unwrap_or(0));
    if !DAMAGING.contains(&version) {
        return Finding::good(CHECK, format!("Linux {release} is not known to damage batches of datagrams"));
    }
    Finding::warning(
        CHECK,
        format!(
            "Linux {release} is among the kernels (7.0.0 to 7.1.4) that damage batches of datagrams (UDP GSO) with some network \
             devices"
        ),
        "update to 7.1.5 or newer. Until then each client's path is tested, and batches are not used where they are lost",
    )
}

fn tun() -> Finding {
    const CHECK: &str = "kernel.tun";
    let spec = TunSpec {
        name: format!("vpnd-dr{}", std::process::id() % 100_000_000),
        mtu: 1420,
        queues: 2,
        tx_queue_len: CLIENT_TX_QUEUE_LEN,
        offloads: TunOffloads::ALL,
    };
    match Tun::open(&spec).map(|tun| tun.offloads()) {
        Ok(TunOffloads::ALL) => {
            Finding::good(CHECK, "TUN devices with several queues, checksum, TCP and UDP offload")
        }
        Ok(TunOffloads { checksum: true, tso4: true, tso6: true, .. }) => Finding::warning(
            CHECK,
            "TUN devices without offload of UDP",
            "Linux 6.2 and newer has it: upgrade the kernel where clients send much QUIC or video",
        ),
        Ok(_) => Finding::warning(
            CHECK,
            "TUN devices without offload of TCP: a gateway carries a fraction of what it could",
            "upgrade the kernel, or run the gateway where /dev/net/tun is that of the kernel",
        ),
        Err(error @ TunError::NoPermission) => Finding::unknown(CHECK, error.to_string(), "run this as root"),
        Err(error) => Finding::problem(CHECK, "no TUN device can be made", error.to_string()),
    }
}

fn udp() -> Vec<Finding> {
    let socket = ShardSocket::bind((Ipv4Addr::LOCALHOST, 0).into(), &SocketOptions::default());
    let offloads = match socket {
        Ok(socket) => socket.offloads(),
        Err(error) => {
            return vec![Finding::problem("kernel.udp", "no UDP socket can be made", error.to_string())];
        }
    };
    let missing: Vec<&str> = [
        (offloads.gso_segments == 1).then_some("batches in one send (UDP GSO, Linux 4.18)"),
        (!offloads.gro).then_some("batches in one receive (UDP GRO, Linux 5.0)"),
        offloads.may_fragment.then_some("a way to forbid fragmentation"),
    ]
    .into_iter()
    .flatten()
    .collect();
    let udp = if missing.is_empty() {
        Finding::good("kernel.udp", "UDP sends and receives in batches")
    } else {
        let found = format!("the kernel's UDP lacks {}", missing.join(", "));
        Finding::warning(
            "kernel.udp",
            found,
            "upgrade the kernel: without these, each datagram costs a system call",
        )
    };
    // The kernel doubles what it is asked for.
    let smallest = offloads.recv_buffer.min(offloads.send_buffer);
    let buffers = if smallest >= DEFAULT_BUFFER_BYTES {
        Finding::good("kernel.buffers", format!("UDP sockets may have {} KiB", smallest >> 10))
    } else {
        Finding::warning(
            "kernel.buffers",
            format!(
                "UDP sockets get buffers of {} KiB: bursts of many clients overflow them",
                smallest >> 10
            ),
            "copy config/60-vpnd.conf (net.core.rmem_max, wmem_max) to /etc/sysctl.d and run: sysctl --system",
        )
    };
    vec![udp, buffers]
}

/// Whether something keeps the clock right. Certificates, one-time codes and logs go by it.
pub(in crate::commands) fn clock() -> Finding {
    const CHECK: &str = "clock";
    match clock::is_synchronised() {
        Ok(true) => Finding::good(CHECK, "synchronised"),
        Ok(false) => Finding::warning(
            CHECK,
            "not synchronised: certificates and one-time codes fail where it is wrong",
            "install chrony, or run: timedatectl set-ntp true. In a container or virtual machine the host may do it unseen",
        ),
        Err(error) => Finding::unknown(CHECK, error.to_string(), "compare `date -u` with another machine's"),
    }
}

/// Whether the gateway has its UDP port, or could have it.
pub(super) fn port(config: &ServerConfig, running: Option<&Status>) -> Finding {
    const CHECK: &str = "network.port";
    let listen = config.server.listen;
    if let Some(status) = running {
        return if status.listen == listen {
            Finding::good(CHECK, format!("the gateway listens on UDP {listen}"))
        } else {
            let found = format!("the gateway listens on UDP {}, configured is {listen}", status.listen);
            Finding::warning(CHECK, found, "restart it: systemctl restart vpnd-server")
        };
    }
    match UdpSocket::bind(listen) {
        Ok(_) => Finding::good(CHECK, format!("UDP {listen} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Finding::problem(
            CHECK,
            format!("UDP {listen} is taken by another program"),
            format!(
                "'ss -ulnp sport = :{}' names it; stop it, or choose another port in 'listen'",
                listen.port()
            ),
        ),
        Err(error) => Finding::problem(
            CHECK,
            format!("UDP {listen} can't be used: {error}"),
            "listen on an address that 'ip addr' shows, or on [::]",
        ),
    }
}

/// One datagram dropped in this many seconds is nothing to act on.
const TOLERATED_DROP_EVERY_S: u64 = 10;

/// Datagrams that the kernel has dropped because a socket of the gateway's port was full
/// (`SO_RXQ_OVFL` counts the same).
pub(super) fn overflows(config: &ServerConfig, running: Option<&Status>) -> Option<Finding> {
    const CHECK: &str = "gateway.receive_queue";
    let uptime_s = running?.uptime_s;
    let port = config.server.listen.port();
    let sockets =
        ["/proc/net/udp", "/proc/net/udp6"].map(|file| fs::read_to_string(file).unwrap_or_default());
    let dropped: u64 = sockets.iter().map(|table| dropped_at(table, port)).sum();
    // A burst of a second, once, is no reason for advice on every later day.
    if dropped <= uptime_s / TOLERATED_DROP_EVERY_S {
        let found = format!("{dropped} datagrams were dropped because a socket was full");
        return Some(Finding::good(CHECK, found));
    }
    Some(Finding::warning(
        CHECK,
        format!("{dropped} datagrams were dropped because a socket of the gateway was full"),
        "if the number grows, raise net.core.rmem_max as config/60-vpnd.conf does, give the gateway more processors \
         (`shards`), or see what else takes its time: `top`",
    ))
}

/// The drops in a table of the kernel's UDP sockets, of those at `port`.
fn dropped_at(table: &str, port: u16) -> u64 {
    let at_port = format!(":{port:04X}");
    let rows = table.lines().skip(1).map(|row| row.split_ascii_whitespace().collect::<Vec<_>>());
    let ours = rows.filter(|row| row.get(1).is_some_and(|local| local.ends_with(&at_port)));
    ours.filter_map(|row| row.last()?.parse::<u64>().ok()).sum()
}

/// Interfaces by which clients and campus are reached, and whether a full packet of the tunnel fits
/// through them.
pub(super) fn mtu(config: &ServerConfig) -> Vec<Finding> {
    const CHECK: &str = "network.mtu";
    let networks = local_networks();
    let listen = config.server.listen.ip();
    let is_outer = |interface: &str| interface != config.tunnel.name && interface != "lo";
    let by_default = networks.iter().filter(|net| net.network.prefix_len() == 0);
    // Clients come by the way that leads to them, or by the network of the one address that is
    // listened on.
    let by_address = networks.iter().filter(|net| {
        !listen.is_unspecified() && net.network.prefix_len() > 0 && net.network.contains(&listen)
    });
    let interfaces: BTreeSet<&str> = by_default
        .chain(by_address)
        .map(|net| net.interface.as_str())
        .filter(|interface| is_outer(interface))
        .collect();
    if interfaces.is_empty() {
        let advice = "give this machine a default route ('ip route show'), or clients outside its networks get no answer";
        return vec![Finding::warning(
            "network.route",
            "there is no route to clients: no default route",
            advice,
        )];
    }
    let inner = u32::from(config.tunnel.mtu);
    let looked_at = interfaces.into_iter().map(|interface| match mtu_of(interface) {
        None => Finding::unknown(CHECK, format!("{interface} shows no MTU"), "look at: ip link"),
        Some(outer) if outer >= inner + OVERHEAD => {
            Finding::good(CHECK, format!("{interface} carries {outer} bytes, a packet of the tunnel needs {}", inner + OVERHEAD))
        }
        Some(outer) => Finding::warning(
            CHECK,
            format!("{interface} carries {outer} bytes, a full packet of the tunnel needs {}", inner + OVERHEAD),
            format!("set 'mtu' in [tunnel] to {}, or raise that of {interface}: else full packets are cut or sent twice", outer.saturating_sub(OVERHEAD).max(1280)),
        ),
    });
    looked_at.collect()
}

fn mtu_of(interface: &str) -> Option<u32> {
    fs::read_to_string(Path::new("/sys/class/net").join(interface).join("mtu")).ok()?.trim().parse().ok()
}

/// Whether the kernel forwards between tunnel and campus.
pub(super) fn forwarding(config: &ServerConfig, is_running: bool) -> Vec<Finding> {
    const CHECK: &str = "network.forwarding";
    let versions = [
        ("IPv4", config.tunnel.pool_v4.is_some(), "net/ipv4/ip_forward"),
        ("IPv6", config.tunnel.pool_v6.is_some(), "net/ipv6/conf/all/forwarding"),
    ];
    let mut findings = Vec::new();
    for (version, wanted, key) in versions {
        if !wanted {
            continue;
        }
        let value = fs::read_to_string(Path::new("/proc/sys").join(key));
        let name = key.replace('/', ".");
        findings.push(match (value.as_deref().map(str::trim), config.nat.mode) {
            (Ok("1" | "2"), _) => Finding::good(CHECK, format!("{version} is forwarded")),
            (Ok(_), NatMode::None) => Finding::warning(
                CHECK,
                format!("{version} is not forwarded, and with mode = \"none\" in [nat] the gateway leaves that to you"),
                format!("sysctl -w {name}=1, and in /etc/sysctl.d; or choose another mode"),
            ),
            (Ok(_), _) if is_running => Finding::problem(
                CHECK,
                format!("{version} is not forwarded any more: something has switched {name} off since the gateway began"),
                "find out what (a sysctl.d file, a firewall's reload), then restart the gateway",
            ),
            (Ok(_), _) => Finding::good(CHECK, format!("{version}: the gateway switches forwarding on when it starts")),
            (Err(error), _) => Finding::unknown(CHECK, format!("{name}: {error}"), "is /proc/sys mounted?"),
        });
    }
    findings
}

/// The disks of state and journal.
pub(super) fn disks(config: &ServerConfig) -> Vec<Finding> {
    let directories = [&config.server.state_dir, &config.server.journal_dir];
    let mut findings: Vec<Finding> = directories.map(|directory| disk(directory)).into();
    findings.dedup_by(|a, b| a.verdict == b.verdict && a.found == b.found);
    findings
}

fn disk(directory: &Path) -> Finding {
    const CHECK: &str = "disk";
    // One that is made at the first start lies where its nearest parent does.
    let parent = directory.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
    let free = match rustix::fs::statvfs(parent) {
        Ok(disk) if disk.f_files > 0 && disk.f_favail == 0 => 0,
        Ok(disk) => disk.f_bavail.saturating_mul(disk.f_frsize),
        Err(error) => {
            return Finding::unknown(CHECK, format!("{}: {error}", parent.display()), "run this as root");
        }
    };
    let found = format!("{} MiB are free for {}", free >> 20, directory.display());
    let advice = "make room: logins and revocations are refused while the disk is full";
    match free {
        0..FULL_BYTES => Finding::problem(CHECK, found, advice),
        FULL_BYTES..SCARCE_BYTES => Finding::warning(CHECK, found, advice),
        _ => Finding::good(CHECK, found),
    }
}

/// Whether the sessions that are permitted fit into memory.
pub(super) fn memory(config: &ServerConfig) -> Finding {
    const CHECK: &str = "memory";
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let Some(available) = available.map(|kib| kib << 10) else {
        return Finding::unknown(CHECK, "/proc/meminfo does not say", "look at: free -m");
    };
    let sessions = config.limits.max_sessions as u64;
    let needed = sessions.saturating_mul(SESSION_BYTES);
    if needed < available {
        return Finding::good(CHECK, format!("{} MiB are available", available >> 20));
    }
    Finding::warning(
        CHECK,
        format!("{sessions} sessions may take {} MiB, {} MiB are available", needed >> 20, available >> 20),
        "lower 'max_sessions' in [limits], or give this machine more memory",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Verdict;

    #[test]
    fn kernels_that_damage_batches_are_named() {
        for (release, damages) in [
            ("6.17.0-41-generic", false),
            ("7.0.0", true),
            ("7.0.2-6-pve", true),
            ("7.1.4+deb14-amd64", true),
            ("7.1.5", false),
            ("7.1-rc3", true),
            ("7.2", false),
            ("10.0.1", false),
            ("nonsense", false),
            ("", false),
        ] {
            assert_eq!(batches(release).verdict == Verdict::Warning, damages, "{release}");
        }
    }

    #[test]
    fn drops_are_those_of_the_port() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
             51: 00000000:1151 00000000:0000 07 00000000:00000000 00:00000000 00000000   990        0 1 2 0 7\n\
             52: 00000000:1151 00000000:0000 07 00000000:00000000 00:00000000 00000000   990        0 1 2 0 5\n\
             53: 00000000:0035 00000000:1151 07 00000000:00000000 00:00000000 00000000     0        0 1 2 0 90\n";
        assert_eq!((dropped_at(table, 4_433), dropped_at(table, 53), dropped_at("", 4_433)), (12, 90, 0));
    }
}
