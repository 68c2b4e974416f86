//! Behaviour: past a kill switch, and past a full tunnel that is dead, a user opens the network's
//! login page in a separate browser, and no other user gets out meanwhile or afterwards. So it is
//! for a client that comes from a good network into one with such a page; its session goes on then.
//!
//! The name server and the page are at one address of `net`, and the machine's own resolver does
//! not reach them: the kill switch holds it back.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::client::{self, Client, cleanup};
use crate::full::{self, speak};
use crate::gateway::{VPND, copy_program, must};
use crate::kill_switch::{self, Talk, closed, in_clear, rules};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::names::name_server_of;
use crate::process::{self, Process};
use crate::traffic::ping_until;

const TIMEOUT: Duration = Duration::from_secs(30);
const GROUP: u32 = 61_570;
const ANN: u32 = 61_571;
const EVE: u32 = 61_572;
/// Each test has another: all its processes are killed.
const BROWSER: u32 = 61_573;
const OTHER_BROWSER: u32 = 61_574;
/// The only file of [`LOADS`]' list, with the name servers.
const STUB: &str = "systemd/resolve/stub-resolv.conf";
/// Where the network's name server and page are.
const CAFE: &str = "198.18.1.77";

/// A browser that loads the page again and again, and shows who it is, its namespace's init, and
/// which files it finds where services of the machine listen. It leaves a process behind.
const LOADS: &str = r#"#!/bin/sh
setsid sh -c 'trap "" HUP INT TERM; while :; do sleep 1; done' &
touch "$HOME/written" && home=own
while :; do
    curl -s -m 2 "$1?$(id -u)-$(id -G)-$(cat /proc/1/comm)-$(tail -c 5 "$XAUTHORITY")$DISPLAY-$home-$(grep -c 'CapEff:.0000000000000000' /proc/self/status)-$(cd /run && echo $(find dbus systemd user -type f))"
    sleep 0.05
done
"#;

/// The network's page, and who has asked for it.
struct Cafe {
    asked: Arc<Mutex<Vec<String>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Cafe {
    fn open(lab: &Lab) -> Self {
        lab.net.ip_batch(&format!("addr add {CAFE}/24 dev {}\n", Lab::port(1)));
        let listener = lab.net.within(|| TcpListener::bind((CAFE, 80))).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (asked, is_over) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<AtomicBool>::default());
        let (list, over) = (Arc::clone(&asked), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let Ok((mut stream, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                };
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                let mut request = [0; 1_024];
                let len = stream.read(&mut request).unwrap_or_default();
                list.lock().unwrap().push(String::from_utf8_lossy(&request[..len]).into_owned());
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
            }
        });
        Self { asked, is_over, thread: Some(thread) }
    }

    /// Waits until the page is asked for.
    fn is_asked(&self) -> String {
        self.asked.lock().unwrap().clear();
        eventually("the browser has got through", TIMEOUT, || self.asked.lock().unwrap().first().cloned())
    }

    fn is_left_alone(&self) {
        // Packets that have left before arrive.
        std::thread::sleep(Duration::from_millis(100));
        self.asked.lock().unwrap().clear();
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(*self.asked.lock().unwrap(), Vec::<String>::new());
    }
}

impl Drop for Cafe {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// Client 1's machine, on which the service for captive portals may run.
struct Machine<'l> {
    lab: &'l Lab,
    program: PathBuf,
    /// The browser's user.
    browser: u32,
}

impl<'l> Machine<'l> {
    fn new(lab: &'l Lab, browser: u32) -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let machine = &lab.clients[0];
        fs::set_permissions(lab.path(""), fs::Permissions::from_mode(0o711)).unwrap();
        let program = lab.path("vpnd-of-all");
        fs::hard_link(VPND, &program).unwrap_or_else(|_| copy_program(&program));
        let run = process::share_run(lab, machine, Path::new("/"));
        let etc = process::etc(lab, machine);
        let append = |name: &str, text: String| {
            let mut file = fs::OpenOptions::new().append(true).open(etc.join(name)).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        for (name, uid) in [("ann", ANN), ("eve", EVE), ("vpnd-browser", browser)] {
            append("passwd", format!("{name}:x:{uid}:{uid}::/:/bin/sh\n"));
        }
        append("group", format!("vpnd-users:x:{GROUP}:ann\n"));
        // The address of systemd-resolved, which does not run here.
        fs::create_dir_all(run.join("systemd/resolve")).unwrap();
        fs::write(run.join("systemd/resolve/stub-resolv.conf"), "nameserver 127.0.0.53\n").unwrap();
        fs::remove_file(etc.join("resolv.conf")).unwrap();
        std::os::unix::fs::symlink("/run/systemd/resolve/stub-resolv.conf", etc.join("resolv.conf")).unwrap();
        for name in ["dbus/system_bus_socket", "user/1/bus"] {
            fs::create_dir_all(run.join(name).parent().unwrap()).unwrap();
            fs::write(run.join(name), "").unwrap();
        }
        fs::write(run.join("systemd/resolve/resolv.conf"), format!("nameserver {CAFE}\n")).unwrap();
        fs::write(lab.path("browser"), LOADS).unwrap();
        fs::set_permissions(lab.path("browser"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(lab.path("xauthority"), [screen("7", "words"), screen("8", "other")].concat()).unwrap();
        Self { lab, program, browser }
    }

    /// The network names its login page's API, as systemd-networkd writes it down.
    fn is_told_of_a_login_page(&self) {
        let links = process::run_of(self.lab, &self.lab.clients[0]).join("systemd/netif/links");
        fs::create_dir_all(&links).unwrap();
        fs::write(links.join("2"), "CAPTIVE_PORTAL=https://portal.cafe.example/api\n").unwrap();
    }

    /// Starts the service, whose windows are open for this time at most.
    fn service(&self, longest_s: &str) -> Process {
        let mut command = process::command(self.lab, &self.lab.clients[0], &self.program);
        command.arg("captive-portal-service").arg("--socket").arg(self.socket());
        command.arg("--journal-dir").arg(client::journal(self.lab, 1)).args(["--longest", longest_s]);
        command.arg("--browser").arg(self.lab.path("browser")).args(["--page", "http://any.example/"]);
        let mut service = Process::start(self.lab, "portals", command);
        eventually("users may connect", TIMEOUT, || {
            service.assert_running();
            service.output().contains("users may connect").then_some(())
        });
        service
    }

    fn socket(&self) -> PathBuf {
        self.lab.path("portals/socket")
    }

    fn as_user(&self, uid: u32, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = process::command(self.lab, &self.lab.clients[0], "setpriv");
        let groups = if uid == ANN { GROUP } else { uid }.to_string();
        command.args(["--reuid", &uid.to_string(), "--regid", &uid.to_string(), "--groups", &groups]);
        command.arg(program).env("DISPLAY", ":7").env("XAUTHORITY", self.lab.path("xauthority"));
        command
    }

    /// `vpnd captive-portal` as this user.
    fn command(&self, uid: u32) -> Command {
        let mut command = self.as_user(uid, &self.program);
        command.arg("captive-portal").arg("--socket").arg(self.socket());
        command
    }

    fn open(&self) -> Process {
        Process::start(self.lab, "page", self.command(ANN))
    }

    /// The command that has opened it, which must not be refused.
    fn opened(&self) -> Process {
        let mut page = self.open();
        eventually("the service has replied", TIMEOUT, || {
            page.assert_running();
            page.output().contains("opens in a separate browser").then_some(())
        });
        page
    }

    fn refused(&self, uid: u32, words: &str) {
        let output = process::run(self.command(uid));
        let text = process::text(&output);
        assert!(!output.status.success() && text.contains(words), "{text}");
    }

    /// A process of the browser's user that is left over, and shows the words for the screen as
    /// soon as it can read them.
    fn spy(&self) -> Process {
        let place = self.lab.path("portals/xauthority");
        let script = "while [ -z \"$words\" ]; do read -r words <\"$0\"; done 2>/dev/null; echo \"$words\"";
        let mut command = self.as_user(self.browser, "sh");
        command.args(["-c", script]).arg(place);
        Process::start(self.lab, "spy", command)
    }

    /// Whether another user gets the page, by its address.
    fn reaches(&self, uid: u32) -> bool {
        let mut command = self.as_user(uid, "curl");
        command.args(["-s", "-m", "0.4", &format!("http://{CAFE}/other")]);
        process::run(command).status.success()
    }

    fn list(&self, words: &[&str]) -> String {
        let mut command = process::command(self.lab, &self.lab.clients[0], words[0]);
        command.args(&words[1..]);
        process::text(&process::run(command))
    }

    /// Whether the kill switch passes the browser's user.
    fn is_passed(&self) -> bool {
        self.list(&["nft", "list", "set", "inet", "vpndkillswitch", "captive_portal"]).contains("elements")
    }

    /// Nothing of a window is left.
    fn is_closed(&self) {
        eventually("the window is closed", TIMEOUT, || {
            let has_rule = self.list(&["ip", "rule", "show"]).contains(&format!("uidrange {}", self.browser));
            (!self.is_passed() && !has_rule).then_some(())
        });
        self.runs_nothing();
    }

    /// No process of a browser is left.
    fn runs_nothing(&self) {
        // Killed ones may still be listed until their parent notices.
        let running = self.list(&["pgrep", "--runstates", "D,R,S,T", "-u", &self.browser.to_string()]);
        assert_eq!(running, "", "processes of the browser");
    }
}

/// An entry of `~/.Xauthority`: the secret of this screen.
fn screen(number: &str, secret: &str) -> Vec<u8> {
    let mut entry = vec![0xff; 2];
    for field in ["", number, "MIT-MAGIC-COOKIE-1", secret] {
        entry.extend(u16::try_from(field.len()).unwrap().to_be_bytes());
        entry.extend(field.as_bytes());
    }
    entry
}

/// Counts what arrives of client 1 that is neither a client's own nor for the page and its name.
fn capture(lab: &Lab) {
    kill_switch::capture(lab);
    let rule = format!("insert rule inet capture arriving ip daddr {CAFE}");
    lab.net.nft(&format!("{rule} tcp dport 80 accept\n{rule} udp dport 53 accept\n"));
}

#[test]
fn only_the_portal_browser_passes_a_kill_switch_for_a_while() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = kill_switch::gateway(&lab);
    let machine = Machine::new(&lab, BROWSER);
    let cafe = Cafe::open(&lab);
    let _names = name_server_of(&lab, &lab.net, &[CAFE], "any.example", &[CAFE]);
    capture(&lab);
    let mut service = machine.service("60");
    machine.refused(ANN, "neither a kill switch nor a tunnel");
    let mut trying = Process::start(&lab, "client1", client::command(&lab, 1, &ann, &["--kill-switch"]));
    eventually("the kill switch is on", TIMEOUT, || rules(&lab));
    let _talk = Talk::start(&lab.clients[0]);
    in_clear(&lab);

    let spy = machine.spy();
    let page = machine.open();
    let request = cafe.is_asked();
    assert!(!spy.output().contains("words"), "the screen's, to a process of before: {}", spy.output());
    let wanted = format!("GET /?{BROWSER}-{BROWSER}-browser-words:7-own-1-{STUB} ");
    assert!(
        request.starts_with(&wanted),
        "who it is, its init, its screen, its home, no capability, no service of the machine: {request}"
    );
    assert!(!machine.reaches(ANN) && !machine.reaches(0));
    machine.refused(ANN, "open already");
    machine.refused(EVE, "not in the group");
    trying.kill();
    cafe.is_asked();
    assert!(!machine.reaches(0));
    closed(&lab, "while the browser is open, with a client and without");
    page.signal(Signal::INT);
    machine.is_closed();
    cafe.is_left_alone();

    // A tunnel ends it.
    let mut page = machine.open();
    cafe.is_asked();
    gateway.start();
    let mut client = Client::connect(&lab, 1, &ann);
    page.wait(TIMEOUT);
    assert!(page.output().contains("connected"), "{}", page.output());
    machine.is_closed();
    machine.refused(ANN, "no login page is in the way");

    // A dead full tunnel is not in the way; a service that is killed leaves no browser, and what it
    // has opened to the next.
    client.kill();
    let mut page = machine.open();
    cafe.is_asked();
    service.kill();
    page.wait(TIMEOUT);
    cafe.is_left_alone();
    machine.runs_nothing();
    let _service = machine.service("1");
    machine.is_closed();
    let mut page = machine.open();
    page.wait(TIMEOUT);
    assert!(page.output().contains("the time is over"), "{}", page.output());
    machine.is_closed();
    closed(&lab, "afterwards");
    let output = must(cleanup(&lab, 1));
    let said = process::text(&output);
    assert!(said.contains("the kill switch is off"), "{said}");
    machine.refused(ANN, "neither a kill switch nor a tunnel");
}

/// The client is on a network that is good, and then on one with a login page, which that one may
/// name itself; what is shown, what leaves in clear, and how it goes on.
fn roams_to_a_login_page(arguments: &[&str], is_named: bool) {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = kill_switch::gateway(&lab);
    let machine = Machine::new(&lab, OTHER_BROWSER);
    let cafe = Cafe::open(&lab);
    let _names = name_server_of(&lab, &lab.net, &[CAFE], "any.example", &[CAFE]);
    gateway.start();
    let _service = machine.service("60");
    let mut client = Client::connect_with(&lab, 1, &ann, arguments);
    let place = client.namespace();
    ping_until(place, CAMPUS_V4.into(), TIMEOUT);
    full::watch(&lab);
    let rule = format!("insert rule inet watch in ip daddr {CAFE}");
    lab.net.nft(&format!("{rule} tcp dport 80 accept\n{rule} udp dport 53 accept\n"));
    machine.refused(ANN, "no login page is in the way");

    lab.net
        .nft("table inet walled { chain forward { type filter hook forward priority 0; policy drop; }; }\n");
    if is_named {
        machine.is_told_of_a_login_page();
    }
    client.change_address(2, 88);
    let named = if is_named { "(captive portal, portal.cafe.example)" } else { "(captive portal)" };
    let began = Instant::now();
    eventually("the client says what a person can do", TIMEOUT, || {
        speak(place);
        client.process().assert_running();
        let said = client.process().output();
        (said.contains(named) && said.contains("`vpnd captive-portal`")).then_some(())
    });
    println!("{arguments:?}: what to do is said after {:?}", began.elapsed());
    let mut page = machine.opened();
    let request = cafe.is_asked();
    assert!(!machine.reaches(ANN) && !machine.reaches(0));
    assert_eq!(full::in_clear(&lab), 0, "before the browser is open, and then");
    assert!(request.starts_with(&format!("GET /?{OTHER_BROWSER}-")), "{request}");
    speak(place);
    assert_eq!(full::in_clear(&lab), 0, "while the browser is open");

    // A person has logged in there.
    lab.net.nft("delete table inet walled\n");
    let began = Instant::now();
    ping_until(place, CAMPUS_V4.into(), TIMEOUT);
    println!("{arguments:?}: the tunnel is back {:?} after the login", began.elapsed());
    page.wait(TIMEOUT);
    assert!(page.output().contains("connected"), "{}", page.output());
    machine.is_closed();
    speak(place);
    assert_eq!(full::in_clear(&lab), 0, "after the login");
    let said = client.process().output();
    assert!(said.rfind("connected") > said.rfind("no connection to the gateway"), "{said}");
    assert_eq!(gateway.status()["counters"]["logins"]["accepted"], 1, "it was one session");
    client.interrupt();
    speak(place);
    assert!(full::in_clear(&lab) > 0, "without the tunnel it is a leak");
}

#[test]
fn a_client_resumes_after_a_captive_portal_login() {
    for (arguments, is_named) in [(&[][..], true), (&["--kill-switch"], false)] {
        roams_to_a_login_page(arguments, is_named);
    }
}
