//! Behaviour: floods of logins from many networks, slow browsers on many connections of one
//! network, and sources of users that accept connections and never answer. Others log in, on the
//! pages and to the tunnel, and the tunnel loses no packet. How long others waited is printed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::relays::{name, tls};
use super::{Browser, SOON, configure, portal_of, serves};
use crate::client::Client;
use crate::gateway::{Gateway, Login, must, strings};
use crate::identity::{add_further_source, add_source};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, UPLINK, eventually};
use crate::process;
use crate::traffic::{ping, ping_until};

const PINGS: usize = 100;
/// The longest that anybody else may wait for a login: the machine has other work, too.
const LONGEST: Duration = Duration::from_secs(25);
/// Time that one server is given for its answer.
const SILENCE: Duration = Duration::from_secs(6);
/// The portal is bounded; this is far more than it takes.
const MAX_MIB: u64 = 256;

/// The statuses of answers, and how often there was each. Without an answer it is 0.
type Answers = Arc<Mutex<BTreeMap<u16, usize>>>;

/// One attack over one connection, which is repeated when that is over.
type Attack = fn(Attacker) -> Pin<Box<dyn Future<Output = Option<()>>>>;

/// Attackers in a namespace, one for each of their addresses.
struct Crowd {
    answers: Answers,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// One of them.
#[derive(Clone)]
struct Attacker {
    address: Ipv4Addr,
    number: usize,
    tls: Arc<ClientConfig>,
    answers: Answers,
}

impl Crowd {
    /// Gives the last client the addresses of this number of providers' networks (/16) and of hosts
    /// in each, and has each host attack.
    fn start(lab: &Lab, gateway: &Gateway<'_>, (networks, hosts): (u8, u8), attack: Attack) -> Self {
        let number = lab.clients.len();
        let of_network = |network: u8| (1..=hosts).map(move |host| Ipv4Addr::new(100, 64 + network, 0, host));
        let addresses: Vec<Ipv4Addr> = (0..networks).flat_map(of_network).collect();
        let lines = addresses.iter().map(|address| format!("addr add {address}/32 dev {UPLINK}\n"));
        lab.clients[number - 1].ip_batch(&lines.collect::<String>());
        lab.net.ip_batch(&format!("route add 100.64.0.0/10 via 198.18.{number}.2\n"));
        let (handle, tls, answers) = (lab.clients[number - 1].handle(), tls(gateway), Answers::default());
        let (stop, stopped) = oneshot::channel();
        let noted = Arc::clone(&answers);
        let thread = thread::spawn(move || {
            handle.enter();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            LocalSet::new().block_on(&runtime, async move {
                for (number, address) in addresses.into_iter().enumerate() {
                    let attacker = Attacker { address, number, tls: tls.clone(), answers: noted.clone() };
                    spawn_local(async move {
                        loop {
                            if attack(attacker.clone()).await.is_none() {
                                attacker.note(0);
                            }
                            sleep(Duration::from_millis(100)).await;
                        }
                    });
                }
                let _ = stopped.await;
            });
        });
        Self { answers, stop: Some(stop), thread: Some(thread) }
    }

    /// Waits until there was this number of answers.
    fn is_at_work(&self, least: usize) {
        eventually("the crowd is at work", SOON, || {
            (self.answers.lock().unwrap().values().sum::<usize>() >= least).then_some(())
        });
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().unwrap().join();
    }
}

impl Attacker {
    fn note(&self, status: u16) {
        *self.answers.lock().unwrap().entry(status).or_default() += 1;
    }

    /// A connection from the own address.
    async fn connect(&self) -> Option<TcpStream> {
        let socket = TcpSocket::new_v4().ok()?;
        socket.bind((self.address, 0).into()).ok()?;
        timeout(Duration::from_secs(20), socket.connect((GATEWAY_V4, 443).into())).await.ok()?.ok()
    }

    async fn connect_tls(&self) -> Option<TlsStream<TcpStream>> {
        let tls = TlsConnector::from(self.tls.clone());
        timeout(Duration::from_secs(20), tls.connect(name(), self.connect().await?)).await.ok()?.ok()
    }

    /// Logs in again and again with wrong passwords of users whose names end with this.
    async fn guess(self, realm: &'static str) -> Option<()> {
        let mut stream = self.connect_tls().await?;
        let page = ask(&mut stream, "GET /login HTTP/1.1\r\nHost: vpn\r\n\r\n").await?.1;
        let between = |before: &str, after: &str| {
            page.split(before).nth(1).and_then(|rest| rest.split(after).next()).map(str::to_owned)
        };
        let (cookie, form) = (between("__Host-vpnd=", ";")?, between("name=\"form\" value=\"", "\"")?);
        for turn in 0.. {
            let body = format!("form={form}&user=u{}x{turn}{realm}&password=wrong", self.number);
            let head =
                "POST /login HTTP/1.1\r\nHost: vpn\r\nContent-Type: application/x-www-form-urlencoded\r\n";
            let length = body.len();
            let request =
                format!("{head}Cookie: __Host-vpnd={cookie}\r\nContent-Length: {length}\r\n\r\n{body}");
            self.note(ask(&mut stream, &request).await?.0);
        }
        Some(())
    }
}

/// The status of the answer to a request, and all of it.
async fn ask(stream: &mut TlsStream<TcpStream>, request: &str) -> Option<(u16, String)> {
    let asked = async {
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8_lossy(&answer).to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
        let mut body = vec![0; length.map_or(Some(0), |length| length.parse().ok())?];
        stream.read_exact(&mut body).await.ok()?;
        answer.extend(body);
        Some((head.split(' ').nth(1)?.parse().ok()?, String::from_utf8_lossy(&answer).into_owned()))
    };
    timeout(SOON, asked).await.ok()?
}

/// A gateway with web pages and `ann`, with her tunnel and a browser at another client's place,
/// where she has logged in before.
fn with_ann<'l>(lab: &'l Lab, more: impl FnOnce(&Gateway<'l>)) -> (Gateway<'l>, Login, Client<'l>) {
    let mut gateway = Gateway::init(lab);
    let ann = gateway.add_user("ann");
    configure(&gateway);
    more(&gateway);
    gateway.start();
    let client = Client::connect(lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), SOON);
    let browser = Browser::new(lab, &lab.clients[1], &gateway);
    serves(&browser);
    browser.logged_in("ann");
    (gateway, ann, client)
}

/// Others have their logins while the crowd is there, and the tunnel all of its packets; how long
/// each login took.
fn others_go_on(
    what: &str,
    lab: &Lab,
    gateway: &Gateway<'_>,
    client: &Client<'_>,
    crowd: &Crowd,
) -> Vec<Duration> {
    let answers =
        (0..PINGS).filter(|_| ping(client.namespace(), CAMPUS_V4.into(), 56, Duration::from_secs(10)));
    assert_eq!(answers.count(), PINGS, "{what}: the tunnel loses nothing");
    let waited: Vec<Duration> = (0..3)
        .map(|_| {
            let (browser, since) = (Browser::new(lab, &lab.clients[1], gateway), Instant::now());
            let page = browser.logged_in("ann");
            assert!(page.body.contains(&client.v4().to_string()), "{page:?}");
            since.elapsed()
        })
        .collect();
    let mib = portal_of(gateway).memory_kib() / 1_024;
    let statuses = crowd.answers.lock().unwrap().clone();
    println!(
        "{what}: {PINGS} of {PINGS} pings, logins of another took {waited:.1?}, the portal has {mib} MiB; answers to \
         the crowd by status: {statuses:?}"
    );
    assert!(waited.iter().all(|waited| *waited < LONGEST), "{what}: {waited:?}");
    assert!(mib < MAX_MIB, "{what}: {mib} MiB");
    waited
}

#[test]
fn logins_from_many_networks_do_not_block_known_users() {
    let Some(lab) = Lab::new(4) else { return };
    let (gateway, ann, client) = with_ann(&lab, |_| {});
    let crowd = Crowd::start(&lab, &gateway, (16, 4), |attacker| Box::pin(attacker.guess("")));
    crowd.is_at_work(100);
    others_go_on("wrong logins from 64 hosts of 16 networks", &lab, &gateway, &client, &crowd);
    // The tunnel's own logins have nothing to do with those.
    let since = Instant::now();
    let other = Client::connect(&lab, 3, &ann);
    ping_until(other.namespace(), CAMPUS_V4.into(), SOON);
    println!("a login to the tunnel meanwhile: {:.1?}", since.elapsed());
}

/// A server on the gateway's machine that accepts connections and is silent; its port.
fn silent(lab: &Lab) -> u16 {
    let listener = lab.gateway.within(|| TcpListener::bind(("127.0.0.1", 0)).unwrap());
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept() {
            held.push(stream);
        }
    });
    port
}

#[test]
fn silent_sources_delay_no_local_user() {
    let Some(lab) = Lab::new(4) else { return };
    let (directory, provider) = (silent(&lab), silent(&lab));
    let (gateway, ann, client) = with_ann(&lab, |gateway| {
        let ca = gateway.file("portal.pem");
        let source = format!(
            "name = 'staff'\nkind = 'ldap'\nrealm = 'uni.example'\nservers = ['ldaps://127.0.0.1:{directory}']\n\
             ca = {ca:?}\nuser_dn = 'uid={{user}}'\ntimeout_ms = {}\n",
            SILENCE.as_millis()
        );
        add_source(gateway, &source);
        crate::gateway::write_secret(&gateway.file("oidc.secret"), "a secret that is long enough for it");
        gateway.configure("portal.url", format!("https://{GATEWAY_V4}"));
        let source = format!(
            "name = 'uni'\nkind = 'oidc'\nrealm = 'sso.example'\nissuer = 'https://127.0.0.1:{provider}'\n\
             client_id = 'vpn'\nclient_secret_file = 'oidc.secret'\nca = {ca:?}\n"
        );
        add_further_source(gateway, &source);
        must(process::run(gateway.user(&["modify", "ann", "--group", "admins"])));
        gateway.configure("portal.administrator_groups", "admins");
        gateway.configure("portal.admin_networks", strings(&["198.18.0.0/16"]));
    });
    let crowd = Crowd::start(&lab, &gateway, (16, 8), |attacker| {
        Box::pin(async move {
            if !attacker.number.is_multiple_of(4) {
                return attacker.guess("%40uni.example").await;
            }
            let mut stream = attacker.connect_tls().await?;
            loop {
                let start = "GET /oidc/start/uni HTTP/1.1\r\nHost: vpn\r\n\r\n";
                attacker.note(ask(&mut stream, start).await?.0);
            }
        })
    });
    crowd.is_at_work(60);
    let waited =
        others_go_on("a silent directory and a silent provider, 128 hosts", &lab, &gateway, &client, &crowd);
    // At the desk, too, which says who is silent.
    let (desk, since) = (Browser::new(&lab, &lab.clients[1], &gateway), Instant::now());
    desk.logged_in("ann");
    eventually("the desk says who is silent", SOON, || {
        let page = desk.get("/desk");
        assert_eq!(page.status, 200, "{page:?}");
        page.body.contains("<dt>staff</dt><dd>does not answer").then_some(())
    });
    assert_eq!(desk.get("/desk/user?name=ann").status, 200);
    println!("a login, and pages of the desk: {:.1?}", since.elapsed());
    // Each of theirs takes the source's time.
    assert!(waited.iter().min().unwrap() < &SILENCE, "{waited:?}");
    let since = Instant::now();
    let other = Client::connect(&lab, 3, &ann);
    ping_until(other.namespace(), CAMPUS_V4.into(), SOON);
    println!("a login to the tunnel meanwhile: {:.1?}", since.elapsed());
    assert!(crowd.answers.lock().unwrap().contains_key(&503), "they were asked");
}

#[test]
fn slow_browsers_of_one_network_block_no_other() {
    let Some(lab) = Lab::new(3) else { return };
    let (gateway, _, client) = with_ann(&lab, |_| {});
    let crowd = Crowd::start(&lab, &gateway, (1, 240), |attacker| {
        Box::pin(async move {
            const POST: &str = "POST /login HTTP/1.1\r\nHost: vpn\r\nContent-Length: 4000\r\n\
                                Content-Type: application/x-www-form-urlencoded\r\n\r\n";
            let second = Duration::from_secs(1);
            attacker.note(1);
            if attacker.number.is_multiple_of(5) {
                // Says nothing.
                let mut stream = attacker.connect().await?;
                let _ = stream.read_u8().await;
                return Some(());
            }
            let mut stream = attacker.connect_tls().await?;
            match attacker.number % 5 {
                1 => {
                    let _ = stream.read_u8().await;
                }
                // A head and a body, a byte at a time.
                2 => {
                    while stream.write_all(b"G").await.is_ok() && stream.flush().await.is_ok() {
                        sleep(second).await;
                    }
                }
                3 => {
                    stream.write_all(POST.as_bytes()).await.ok()?;
                    while stream.write_all(b"x").await.is_ok() && stream.flush().await.is_ok() {
                        sleep(second).await;
                    }
                }
                // Asks for the largest page again and again, and reads nothing.
                _ => {
                    let request = "GET /script.js HTTP/1.1\r\nHost: vpn\r\n\r\n".repeat(100);
                    while stream.write_all(request.as_bytes()).await.is_ok() {}
                }
            }
            Some(())
        })
    });
    crowd.is_at_work(240);
    others_go_on("slow browsers at 240 hosts of one network", &lab, &gateway, &client, &crowd);
}
