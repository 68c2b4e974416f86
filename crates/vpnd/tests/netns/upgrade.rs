//! Behaviour: a gateway that carries traffic is replaced by a new version of itself. Sessions,
//! addresses and streams go on, no user logs in; a version that can't take over changes nothing.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use crate::client::Client;
use crate::gateway::{Gateway, must, strings};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, Lab, eventually};
use crate::namespace::Namespace;
use crate::process;
use crate::traffic::{ping_until, trickle};

const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(60);
/// Between an answer and the next datagram of a flow.
const PACE: Duration = Duration::from_millis(1);
/// Limit for an answer.
const ANSWERS: Duration = Duration::from_millis(5);
/// By when clients have noticed that their control channel is gone, which they look after every 25
/// seconds.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn the_gateway_is_upgraded_under_traffic() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    gateway.start();
    let mut one = Client::connect(&lab, 1, &ann);
    let mut two = Client::connect(&lab, 2, &bob);
    for client in [&one, &two] {
        ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    }
    let (inner, sessions) = ([one.v4(), one.v6(), two.v4(), two.v6()], identities(&gateway));
    let workers = gateway.process().children();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| trickle(one.namespace(), &lab.campus, CAMPUS_V6.into(), 5 * SECOND, LIMIT));
        let flow = scope.spawn(|| flow(two.namespace(), &lab.campus, CAMPUS_V4.into(), &over));
        thread::sleep(SECOND);
        // The second one goes on with what the first has taken over.
        for _ in 0..2 {
            let output = must(gateway.upgrade());
            println!("{}", process::text(&output).trim_end());
            assert_eq!(identities(&gateway), sessions, "every session goes on, in its epoch or a later one");
            thread::sleep(SECOND);
        }
        over.store(true, Ordering::Relaxed);
        let Flow { sent, answered, gap } = flow.join().expect("the flow has an end");
        println!("a flow of {sent} datagrams: {answered} answers, the longest gap {gap:?}");
        assert!(gap < 5 * SECOND && answered * 2 > sent, "{answered} of {sent} answered, a gap of {gap:?}");
    });
    assert_eq!([one.v4(), one.v6(), two.v4(), two.v6()], inner, "everyone has kept their addresses");
    let now = gateway.process().children();
    assert!(
        now.len() == workers.len() && now.iter().all(|pid| !workers.contains(pid)),
        "{workers:?} {now:?}"
    );
    eventually("all clients have a control channel again", RECOVERY_TIMEOUT, || {
        gateway.sessions().iter().all(|session| session["connected"] == true).then_some(())
    });
    assert_eq!(identities(&gateway), sessions);
    assert_eq!(gateway.status()["counters"]["logins"]["accepted"], 2, "nobody had to log in again");

    must(gateway.ask(&["kick", "ann"]));
    one.process().wait(10 * SECOND);
    // A revocation while one gateway ends and the next begins is not passed over by both.
    must(process::run(gateway.user(&["disable", "bob"])));
    must(gateway.upgrade());
    eventually("the session of who was disabled has ended", 5 * SECOND, || {
        gateway.sessions().is_empty().then_some(())
    });
    two.process().wait(RECOVERY_TIMEOUT);
    assert_eq!(gateway.status()["counters"]["ended"]["sessions"], 2);
    // The third process knows what the first two have counted, and the last line sums it up.
    gateway.terminate();
    let said = gateway.process().output();
    let last = said.lines().find(|line| line.contains("the gateway stops")).expect(&said);
    for part in ["reason=\"SIGTERM\"", "logins=2", "sessions_kept=0", "sessions_ended=2"] {
        assert!(last.contains(part), "{part}: {last}");
    }
    let links = lab.gateway.ip(&["-j", "link", "show"]);
    assert!(!links.contains("vpnd0"), "the machine is as it was: {links}");
}

#[test]
fn an_upgrade_that_fails_changes_nothing() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let program = gateway.install();
    // Then shards forward QUIC's datagrams, in the next process too.
    gateway.configure("offload.steering", false);
    let ann = gateway.add_user("ann");
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let (workers, sessions) = (gateway.process().children(), identities(&gateway));
    let good = fs::read_to_string(gateway.config()).expect("it is there");
    let refused = |gateway: &mut Gateway, reason: &str| {
        let output = gateway.upgrade();
        let text = process::text(&output);
        assert!(!output.status.success() && text.contains(reason), "wanted {reason:?}: {text}");
        assert!(text.contains("continues unchanged"), "{text}");
        assert_eq!(gateway.process().children(), workers, "the old processes and no others");
        assert_eq!(identities(gateway), sessions);
        ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    };
    for (setting, value, reason) in [
        ("tunnel.mtu", 1300.into(), "'mtu' in [tunnel] has changed"),
        ("server.more_ports", strings(&["443"]), "'more_ports' in [server] has changed"),
        ("wireguard.enabled", true.into(), "'enabled' in [wireguard] has changed"),
        ("tls.certificate", "missing.pem".into(), "missing.pem"),
    ] {
        gateway.configure(setting, value);
        refused(&mut gateway, reason);
        fs::write(gateway.config(), &good).expect("it is writable");
    }
    put(&program, "#!/bin/sh\nexit 3\n", 0o755);
    // The shell gets no descriptor of the gateway's, so it can't even read the script.
    refused(&mut gateway, "has ended by itself (exit status: ");
    put(&program, "#!/bin/sh\nexit 3\n", 0o777);
    refused(&mut gateway, "only root can change");
    fs::remove_file(&program).expect("it is there");
    refused(&mut gateway, "can't find");
    crate::gateway::copy_program(&program);
    must(gateway.upgrade());
    assert_eq!(identities(&gateway), sessions);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    eventually("the client has a control channel again", RECOVERY_TIMEOUT, || {
        (gateway.sessions()[0]["connected"] == true).then_some(())
    });
}

/// Puts another program in the place of one that runs.
pub(crate) fn put(program: &Path, text: &str, mode: u32) {
    let new = program.with_extension("new");
    fs::write(&new, text).expect("the laboratory's directory is writable");
    fs::set_permissions(&new, fs::Permissions::from_mode(mode)).expect("it is our file");
    fs::rename(&new, program).expect("they are in one directory");
}

/// The identifying fields of each session.
fn identities(gateway: &Gateway) -> Vec<[Json; 5]> {
    let identity =
        |session: &Json| ["id", "user", "device", "inner_v4", "inner_v6"].map(|key| session[key].clone());
    let mut all: Vec<_> = gateway.sessions().iter().map(identity).collect();
    all.sort_by_key(|identity| identity[0].to_string());
    all
}

/// Losses of a flow of datagrams.
struct Flow {
    sent: u64,
    answered: u64,
    /// The longest time between two answers.
    gap: Duration,
}

/// Numbered datagrams at a brisk pace, each of which the server sends back, until it is `over`.
fn flow(from: &Namespace, server: &Namespace, to: IpAddr, over: &AtomicBool) -> Flow {
    let bind = |address: IpAddr| move || UdpSocket::bind(SocketAddr::new(address, 0));
    let echo = server.within(bind(to)).expect("the address is the server's");
    let socket = from.within(bind(IpAddr::from([0, 0, 0, 0]))).expect("a port is free");
    for one in [&echo, &socket] {
        one.set_read_timeout(Some(ANSWERS)).expect("it is no zero");
    }
    let to = echo.local_addr().expect("it is bound");
    let mut flow = Flow { sent: 0, answered: 0, gap: Duration::ZERO };
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut datagram = [0; 64];
            while !over.load(Ordering::Relaxed) {
                if let Ok((len, back)) = echo.recv_from(&mut datagram) {
                    // A full queue is as good as a loss.
                    let _ = echo.send_to(&datagram[..len], back);
                }
            }
        });
        let (mut last, mut next) = (Instant::now(), 0);
        while !over.load(Ordering::Relaxed) {
            let _ = socket.send_to(&flow.sent.to_le_bytes(), to);
            flow.sent += 1;
            let mut answer = [0; 64];
            match socket.recv(&mut answer) {
                Ok(len) => {
                    let number = answer[..len].try_into().map(u64::from_le_bytes).expect("eight bytes");
                    assert!(number >= next, "{number} came again or late, after {next}");
                    next = number + 1;
                    flow.answered += 1;
                    flow.gap = flow.gap.max(last.elapsed());
                    last = Instant::now();
                    thread::sleep(PACE);
                }
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}")
                }
            }
        }
        flow.gap = flow.gap.max(last.elapsed());
    });
    flow
}
