//! Behaviour: a full tunnel's names go into the tunnel whichever way the machine looks them up, and
//! go on to while other programs rewrite what the tunnel has set; at the end the machine has what
//! those wrote last.
//!
//! Real systemd-resolved, its module for the C library, dhclient and name servers; the provider's
//! logs what reaches it in clear.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::client::{Client, TUN};
use crate::gateway::{Gateway, Login, strings};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, UPLINK, eventually};
use crate::names::{self, PROVIDERS, PUSHED, asks, name_server};
use crate::process::{self, Process};
use crate::relay::PORT;
use crate::resolved::Resolved;
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(20);
const STUB: &str = "nameserver 127.0.0.53\n";

fn resolv_conf(lab: &Lab) -> PathBuf {
    process::etc(lab, &lab.clients[0]).join("resolv.conf")
}

fn providers_file() -> String {
    format!("# written by hand\nnameserver {PROVIDERS}\n")
}

/// The provider's name server, the pushed one, and a gateway for a tunnel of these routes.
fn tunnel<'l>(lab: &'l Lab, routes: &str) -> (Process, Process, Gateway<'l>, Login) {
    let providers = name_server(lab, &lab.net, PROVIDERS, &GATEWAY_V4.to_string());
    let pushed = name_server(lab, &lab.campus, PUSHED, "192.0.2.1");
    let (gateway, ann) = names::gateway_with(lab, routes, |gateway| {
        gateway.configure("push.dns", strings(&[PUSHED]));
        gateway.configure("push.search", strings(&["campus.example"]));
        gateway.configure("nat.mode", "nftables");
    });
    (providers, pushed, gateway, ann)
}

/// Connects client 1 and waits until all of its tunnel is set up, name servers last.
fn connect<'l>(lab: &'l Lab, ann: &Login) -> Client<'l> {
    let mut client = Client::connect(lab, 1, ann);
    eventually("the tunnel is set up", TIMEOUT, || {
        client.process().output().contains("the tunnel is set up").then_some(())
    });
    ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    client
}

/// Asks for a name as programs of the C library do.
fn ask_library(lab: &Lab, name: &str) {
    let mut command = process::command(lab, &lab.clients[0], "getent");
    command.args(["ahostsv4", name]);
    process::run(command);
}

/// Asks for a name as programs do that read `resolv.conf` themselves.
fn ask_by_file(lab: &Lab, name: &str) {
    let mut command = process::command(lab, &lab.clients[0], "cat");
    command.arg("/etc/resolv.conf");
    let text = process::text(&process::run(command));
    let servers = text.lines().filter_map(|line| line.strip_prefix("nameserver "));
    let servers: Vec<IpAddr> = servers.filter_map(|server| server.parse().ok()).collect();
    let question = question(name);
    lab.clients[0].within(|| {
        for server in servers {
            let socket = UdpSocket::bind("0.0.0.0:0").expect("a port is free");
            socket.set_read_timeout(Some(3 * SECOND)).expect("it is one");
            let _ = socket.send_to(&question, SocketAddr::new(server, 53));
            if socket.recv(&mut [0; 512]).is_ok() {
                return;
            }
        }
    });
}

/// A question for a name's IPv4 addresses.
fn question(name: &str) -> Vec<u8> {
    let mut question = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        question.push(u8::try_from(label.len()).expect("a short label"));
        question.extend(label.as_bytes());
    }
    question.extend([0, 0, 1, 0, 1]);
    question
}

/// Looks names up in both ways, and demands that they arrive in the tunnel, and in no other place.
fn names_are_in_the_tunnel(lab: &Lab, providers: &Process, pushed: &Process, what: &str) {
    let label = what.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    for (way, ask) in [("library", ask_library as fn(&Lab, &str)), ("file", ask_by_file)] {
        for domain in ["elsewhere.example", "campus.example"] {
            let name = format!("{way}-{label}.{domain}");
            eventually(&format!("{what}: {name} is asked in the tunnel"), TIMEOUT, || {
                ask(lab, &name);
                pushed.output().contains(&name).then_some(())
            });
            assert!(!providers.output().contains(&name), "{what}: {name} left in clear");
        }
    }
}

/// One way in which a machine looks up names.
struct SetUp {
    what: &'static str,
    /// A file's text, or where a link leads.
    resolv_conf: Result<String, &'static str>,
    hosts: &'static str,
    runs: bool,
}

fn set_ups() -> [SetUp; 7] {
    let (plain, module) = ("files dns", "files resolve [!UNAVAIL=return] dns");
    let by_hand = providers_file;
    let uplink = "/run/systemd/resolve/resolv.conf";
    [
        SetUp { what: "stub", resolv_conf: Ok(STUB.to_owned()), hosts: plain, runs: true },
        SetUp { what: "stub and module", resolv_conf: Ok(STUB.to_owned()), hosts: module, runs: true },
        SetUp { what: "by hand", resolv_conf: Ok(by_hand()), hosts: plain, runs: true },
        SetUp { what: "by hand and module", resolv_conf: Ok(by_hand()), hosts: module, runs: true },
        SetUp { what: "servers of resolved", resolv_conf: Err(uplink), hosts: plain, runs: true },
        SetUp { what: "by hand and stopped", resolv_conf: Ok(by_hand()), hosts: module, runs: false },
        SetUp { what: "stopped stub", resolv_conf: Ok(STUB.to_owned()), hosts: plain, runs: false },
    ]
}

#[test]
fn all_name_lookups_are_tunnelled() {
    let Some(lab) = Lab::new(1) else { return };
    let (providers, pushed, _gateway, ann) = tunnel(&lab, "all");
    let Some(mut resolved) = Resolved::start(&lab, &lab.clients[0], &[PROVIDERS]) else { return };
    let path = resolv_conf(&lab);
    // Where the machine can't look it up.
    let hosts = path.with_file_name("hosts");
    fs::write(hosts, format!("{GATEWAY_V4} {}\n", names::NAME)).expect("it is writable");
    for SetUp { what, resolv_conf, hosts, runs } in set_ups() {
        if !runs {
            resolved.stop();
        }
        fs::write(path.with_file_name("nsswitch.conf"), format!("hosts: {hosts}\n")).expect("it is writable");
        fs::remove_file(&path).expect("it is there");
        match &resolv_conf {
            Ok(text) => fs::write(&path, text).expect("it is writable"),
            Err(target) => symlink(target, &path).expect("the place is free"),
        }
        let mut client = connect(&lab, &ann);
        names_are_in_the_tunnel(&lab, &providers, &pushed, what);
        client.interrupt();
        let output = client.process().output();
        assert!(!output.contains("another program") && !output.contains("name servers"), "{what}: {output}");
        let now = fs::read_to_string(&path).ok();
        match resolv_conf {
            Ok(text) => assert_eq!(now, Some(text), "{what}: it is as before"),
            Err(target) => assert_eq!(fs::read_link(&path).expect("a link"), Path::new(target), "{what}"),
        }
    }
}

#[test]
fn systemd_resolved_is_stopped_started_and_changed_beneath_a_tunnel() {
    let Some(lab) = Lab::new(1) else { return };
    let (providers, pushed, _gateway, ann) = tunnel(&lab, "all");
    let Some(mut resolved) = Resolved::start(&lab, &lab.clients[0], &[PROVIDERS]) else { return };
    let mut client = connect(&lab, &ann);
    names_are_in_the_tunnel(&lab, &providers, &pushed, "at first");
    let is_back = |resolved: &Resolved<'_>, what: &str| {
        let since = Instant::now();
        eventually(&format!("{what}: the tunnel's name server is back"), TIMEOUT, || {
            resolved.servers(TUN).contains(PUSHED).then_some(())
        });
        println!("{what}: back after {:?}", since.elapsed());
        names_are_in_the_tunnel(&lab, &providers, &pushed, what);
    };
    resolved.set(&["dns", TUN, PROVIDERS]);
    is_back(&resolved, "another server");
    resolved.set(&["revert", TUN]);
    is_back(&resolved, "reverted");
    resolved.set(&["domain", TUN, "other.example"]);
    eventually("another domain: ours is back", TIMEOUT, || {
        resolved.domains(TUN).contains("campus.example").then_some(())
    });
    names_are_in_the_tunnel(&lab, &providers, &pushed, "another domain");

    resolved.stop();
    let since = Instant::now();
    eventually("the file has the tunnel's name server", TIMEOUT, || asks(&lab, PUSHED).then_some(()));
    println!("stopped: in the file after {:?}", since.elapsed());
    names_are_in_the_tunnel(&lab, &providers, &pushed, "stopped");
    resolved.run();
    is_back(&resolved, "started again");
    client.interrupt();
    assert_eq!(fs::read_to_string(resolv_conf(&lab)).expect("it is there"), STUB);
}

/// Has the provider name this domain as its own, and connects a full tunnel.
fn with_a_domain_of_the_provider<'l>(
    lab: &'l Lab,
    resolved: &Resolved<'l>,
    domain: &str,
    ann: &Login,
) -> Client<'l> {
    let path = resolv_conf(lab);
    fs::write(path.with_file_name("hosts"), format!("{GATEWAY_V4} {}\n", names::NAME))
        .expect("it is writable");
    fs::write(path.with_file_name("nsswitch.conf"), "hosts: files dns\n").expect("it is writable");
    resolved.set(&["domain", UPLINK, domain]);
    connect(lab, ann)
}

#[test]
fn a_domain_of_the_local_network_takes_no_name_out_of_a_full_tunnel() {
    let Some(lab) = Lab::new(1) else { return };
    let (providers, pushed, _gateway, ann) = tunnel(&lab, "all");
    let Some(resolved) = Resolved::start(&lab, &lab.clients[0], &[PROVIDERS]) else { return };
    let mut client = with_a_domain_of_the_provider(&lab, &resolved, "elsewhere.example", &ann);
    for turn in 0..3 {
        ask_library(&lab, &format!("one{turn}.elsewhere.example"));
        ask_library(&lab, &format!("two{turn}.third.example"));
    }
    eventually("other names are asked in the tunnel", TIMEOUT, || {
        pushed.output().contains("two2.third.example").then_some(())
    });
    let is_closed = |name: &str| {
        let refused = ask_beside(&lab, name).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
        refused.then_some(())
    };
    is_closed("three.elsewhere.example").expect("questions beside the tunnel are refused");
    // The rule is watched as all of the guard.
    client.namespace().nft("flush chain inet vpndguard_vpn0 departures\n");
    eventually("the rule is back", TIMEOUT, || client.firewall().contains("oifkind").then_some(()));
    is_closed("four.elsewhere.example").expect("it is closed again");
    client.interrupt();
    eventually("without the tunnel it is asked", TIMEOUT, || {
        ask_library(&lab, "five.elsewhere.example");
        providers.output().contains("five.elsewhere.example").then_some(())
    });
    ask_beside(&lab, "six.elsewhere.example").expect("nothing is closed any more");
    for label in ["one0", "one1", "one2", "three", "four"] {
        assert!(!providers.output().contains(&format!("{label}.elsewhere")), "{}", providers.output());
    }
}

#[test]
fn a_domain_of_a_split_tunnel_that_the_local_network_names_is_logged() {
    let Some(lab) = Lab::new(1) else { return };
    let (_providers, _pushed, _gateway, ann) = tunnel(&lab, "pushed");
    let Some(resolved) = Resolved::start(&lab, &lab.clients[0], &[PROVIDERS]) else { return };
    let mut client = with_a_domain_of_the_provider(&lab, &resolved, "www.campus.example", &ann);
    let (link, domain) = (format!("link={UPLINK}"), "domain=www.campus.example");
    eventually("it is logged", TIMEOUT, || {
        let output = client.process().output();
        output.lines().any(|line| line.contains(&link) && line.contains(domain)).then_some(())
    });
    client.interrupt();
}

/// Asks the provider's name server out of the uplink, whatever routes and rules say, as
/// systemd-resolved does.
fn ask_beside(lab: &Lab, name: &str) -> std::io::Result<usize> {
    lab.clients[0].within(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a port is free");
        socket2::SockRef::from(&socket).bind_device(Some(UPLINK.as_bytes())).expect("root may");
        socket.send_to(&question(name), (PROVIDERS, 53))
    })
}

/// Waits until the tunnel's name server is in the file again.
fn until_it_is_back(lab: &Lab, what: &str) -> Duration {
    let since = Instant::now();
    eventually(&format!("{what}: the tunnel's name server is back"), TIMEOUT, || {
        asks(lab, PUSHED).then_some(())
    });
    println!("{what}: back after {:?}", since.elapsed());
    since.elapsed()
}

fn put_in_place(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).expect("it is writable");
    fs::rename(new, path).expect("it is in the same directory");
}

#[test]
fn what_other_programs_write_stays_for_the_end() {
    let Some(lab) = Lab::new(1) else { return };
    let (providers, pushed, _gateway, ann) = tunnel(&lab, "all");
    let path = resolv_conf(&lab);
    let mut client = connect(&lab, &ann);
    assert!(asks(&lab, PUSHED));

    put_in_place(&path, &providers_file());
    until_it_is_back(&lab, "renamed");
    let target = path.with_file_name("manager-resolv.conf");
    fs::write(&target, providers_file()).expect("it is writable");
    fs::remove_file(&path).expect("it is there");
    symlink("manager-resolv.conf", &path).expect("the place is free");
    until_it_is_back(&lab, "a link");
    assert_eq!(
        fs::read_to_string(&target).expect("it is there"),
        providers_file(),
        "behind it nothing changed"
    );
    fs::remove_file(&path).expect("it is there");
    until_it_is_back(&lab, "removed");
    // Slowly, in place.
    let mut file = fs::File::create(&path).expect("it is writable");
    for part in ["# slow\nnameser", "ver 192.0.2.9\nnameserver ", PROVIDERS, "\n"] {
        file.write_all(part.as_bytes()).expect("it is writable");
        std::thread::sleep(SECOND / 50);
    }
    drop(file);
    until_it_is_back(&lab, "written in place");
    names_are_in_the_tunnel(&lab, &providers, &pushed, "after all that");
    client.interrupt();
    let left = fs::read_to_string(&path).expect("it is there");
    assert_eq!(left, format!("# slow\nnameserver 192.0.2.9\nnameserver {PROVIDERS}\n"), "the last of them");
}

#[test]
fn a_program_that_keeps_rewriting_resolv_conf_is_named() {
    let Some(lab) = Lab::new(1) else { return };
    let (_providers, _pushed, _gateway, ann) = tunnel(&lab, "all");
    let path = resolv_conf(&lab);
    let mut client = connect(&lab, &ann);
    for turn in 0..50 {
        put_in_place(&path, &format!("# made by rewriterd\nnameserver 192.0.2.{turn}\n"));
        // The line may come a moment later than the file that it is about.
        let mut is_named = || client.process().output().contains("again and again");
        eventually("the tunnel's name server is back, or the program is named", TIMEOUT, || {
            (asks(&lab, PUSHED) || is_named()).then_some(())
        });
        std::thread::sleep(SECOND / 5);
        if is_named() {
            break;
        }
    }
    let output = client.process().output();
    let warnings = output.lines().filter(|line| line.contains("again and again")).collect::<Vec<_>>();
    assert!(warnings.len() == 1 && warnings[0].contains("made by rewriterd"), "{warnings:?}");
    put_in_place(&path, "nameserver 192.0.2.7\n");
    std::thread::sleep(3 * SECOND);
    assert!(!asks(&lab, PUSHED), "it is left alone for a while");
    client.interrupt();
    assert!(asks(&lab, "192.0.2.7"), "what it wrote last");

    fs::write(&path, providers_file()).expect("it is writable");
    let mut client = connect(&lab, &ann);
    let other = "# Name servers of the vpnd tunnel vpn7\nnameserver 192.0.2.8\n";
    put_in_place(&path, other);
    eventually("it says whose the file is", TIMEOUT, || {
        client.process().output().contains("belongs to the tunnel vpn7").then_some(())
    });
    std::thread::sleep(2 * SECOND);
    client.interrupt();
    assert_eq!(fs::read_to_string(&path).expect("it is there"), other);
}

/// A DHCP server on client 1's network that names this server, and has leases renewed each 15 s.
fn dhcp_server(lab: &Lab, name_server: &str) -> Process {
    let mut command = process::command(lab, &lab.net, "dnsmasq");
    command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--pid-file="]);
    command.args(["--user=root", "--bind-interfaces", "--log-facility=-", "--leasefile-ro"]);
    command.arg(format!("--interface={}", Lab::port(1)));
    command.arg("--dhcp-range=198.18.1.100,198.18.1.120,255.255.255.0,2m");
    command.args(["--dhcp-authoritative", "--dhcp-option=option:T1,15"]);
    command.arg(format!("--dhcp-option=option:dns-server,{name_server}"));
    let mut server = Process::start(lab, "dhcp", command);
    eventually("the DHCP server listens", 5 * SECOND, || {
        server.assert_running();
        server.output().contains("started").then_some(())
    });
    server
}

#[test]
fn renewals_of_a_lease_leave_the_tunnels_name_servers() {
    let Some(lab) = Lab::new(1) else { return };
    let (providers, pushed, _gateway, ann) = tunnel(&lab, "pushed");
    // A full tunnel would carry the renewals, too: the laboratory's networks are public ones.
    let dhcp = dhcp_server(&lab, PROVIDERS);
    // Its script looks there for file systems in the network.
    fs::write(resolv_conf(&lab).with_file_name("fstab"), "").expect("it is writable");
    let mut command = process::command(&lab, &lab.clients[0], "dhclient");
    command.args(["-4", "-d", "-v", "-lf"]).arg(lab.path("leases")).arg("-pf").arg(lab.path("dhclient.pid"));
    command.arg(UPLINK);
    let mut dhclient = Process::start(&lab, "dhclient", command);
    eventually("there is a lease", TIMEOUT, || {
        dhclient.assert_running();
        (dhclient.output().contains("bound to") && asks(&lab, PROVIDERS)).then_some(())
    });
    let mut client = connect(&lab, &ann);
    assert!(asks(&lab, PUSHED));
    // For a moment DHCP's servers are in the file.
    let put_back =
        |client: &mut Client<'_>| client.process().output().matches("name servers are back").count();
    for turn in 1..=3 {
        eventually("a renewal was undone", 2 * TIMEOUT, || (put_back(&mut client) >= turn).then_some(()));
        until_it_is_back(&lab, "renewed");
        names_are_in_the_tunnel(&lab, &providers, &pushed, &format!("renewal {turn}"));
    }
    // The next one names another server.
    drop(dhcp);
    let before = put_back(&mut client);
    let dhcp = dhcp_server(&lab, "192.0.2.77");
    eventually("a renewal with another server was undone", 2 * TIMEOUT, || {
        (dhcp.output().contains("DHCPACK") && put_back(&mut client) > before).then_some(())
    });
    until_it_is_back(&lab, "renewed otherwise");
    client.interrupt();
    assert!(asks(&lab, "192.0.2.77"), "DHCP's newest");
}

/// Takes the attribute away again, so that the laboratory's directory can be removed.
struct Immutable(PathBuf);

impl Immutable {
    fn new(path: PathBuf) -> Self {
        assert!(Self::chattr("+i", &path), "the file system of the temporary directory has no attributes");
        Self(path)
    }

    fn chattr(mode: &str, path: &Path) -> bool {
        Command::new("chattr").arg(mode).arg(path).status().is_ok_and(|status| status.success())
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        Self::chattr("-i", &self.0);
    }
}

#[test]
fn an_immutable_file_stays_and_the_way_around_it_is_named() {
    let Some(lab) = Lab::new(1) else { return };
    let (_providers, _pushed, _gateway, ann) = tunnel(&lab, "all");
    let path = resolv_conf(&lab);
    let before = fs::read_to_string(&path).expect("it is there");
    let _immutable = Immutable::new(path.clone());
    let (_, output) = Client::refused(&lab, 1, &ann, &[]);
    assert!(output.contains("/etc/resolv.conf") && output.contains("--no-dns"), "{output}");
    assert_eq!(fs::read_to_string(&path).expect("it is there"), before);
    let mut client = Client::connect_with(&lab, 1, &ann, &["--no-dns"]);
    ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    client.interrupt();
}

/// The machine's own name servers can't be set for it.
#[test]
fn a_look_up_that_can_t_begin_leaves_the_tunnels_name_servers() {
    let Some(lab) = Lab::new(1) else { return };
    let (providers, pushed, _gateway, ann) = tunnel(&lab, "all");
    let path = resolv_conf(&lab);
    fs::write(&path, providers_file()).expect("it is writable");
    let mut client = connect(&lab, &ann);
    assert!(asks(&lab, PUSHED));
    let immutable = Immutable::new(path);
    lab.net.nft(&format!(
        "add table inet hole\n\
         add chain inet hole forward {{ type filter hook forward priority 0; }}\n\
         add rule inet hole forward udp dport {PORT} drop\n\
         add rule inet hole forward udp sport {PORT} drop\n",
    ));
    let machine = client.namespace();
    eventually("look-ups fail", 2 * TIMEOUT, || {
        ping(machine, CAMPUS_V4.into(), 56, SECOND / 5);
        client.process().output().contains("not permitted").then_some(())
    });
    lab.net.nft("delete table inet hole\n");
    ping_until(machine, CAMPUS_V4.into(), 2 * TIMEOUT);
    drop(immutable);
    // A client that believes in the look-up would now put the machine's own back, and leave them.
    std::thread::sleep(3 * SECOND);
    eventually("the tunnel's name server is in force", TIMEOUT, || asks(&lab, PUSHED).then_some(()));
    names_are_in_the_tunnel(&lab, &providers, &pushed, "after the outage");
    client.interrupt();
}

#[test]
fn a_client_reports_unanswered_name_lookups() {
    let Some(lab) = Lab::new(1) else { return };
    let (_providers, pushed, _gateway, ann) = tunnel(&lab, "all");
    drop(pushed);
    let mut client = connect(&lab, &ann);
    eventually("it says so", 2 * TIMEOUT, || {
        client.process().output().contains("names can't be looked up").then_some(())
    });
    client.interrupt();
}
