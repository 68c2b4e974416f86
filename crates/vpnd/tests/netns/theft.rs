//! Behaviour: a stolen attach token, or a whole captured attach, is worth nothing without the
//! device's key, and trying it costs its owner nothing. And who reads nothing is given up.
//!
//! The thief implements the protocol itself (PROTOCOL §3 to §5), for no client of ours would do
//! what it does.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and helper functions of integration tests are not known as tests"
)]

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    Connection, ConnectionError, Endpoint, ReadError, RecvStream, SendStream, TransportConfig, VarInt,
};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use vpnd_crypto::{BINDING_LABEL, Binding, DeviceKey, Secret};
use vpnd_proto::attach::Token;
use vpnd_proto::control::{
    Attach, Code, Decoder, End, Established, List, Login, LoginStart, Message, Offer, SecretText, SuiteSpeed,
    Text, encode,
};
use vpnd_proto::device::DeviceProof;
use vpnd_proto::session::SessionId;

use crate::client::Client;
use crate::gateway::{Gateway, must, write_secret};
use crate::lab::{GATEWAY_V4, GATEWAY_V6, Lab};
use crate::privileges::Seen;
use crate::process;

const PORT: u16 = 4433;
const ANSWERS: Duration = Duration::from_secs(20);
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// A client of the protocol with its own key.
pub(crate) struct Speaker {
    endpoint: Endpoint,
    tls: Arc<QuicClientConfig>,
    transport: Arc<TransportConfig>,
    key: DeviceKey,
}

/// A connection on which nothing was said yet.
pub(crate) struct Line {
    connection: Connection,
    pub(crate) send: SendStream,
    receive: RecvStream,
}

impl Speaker {
    pub(crate) fn new(profile: &Path, seed: u8) -> Self {
        Self::certified(profile, seed, None)
    }

    /// One with a certificate and its key, as PEM.
    fn certified(profile: &Path, seed: u8, certified: Option<(&str, &str)>) -> Self {
        let profile: toml::Table = fs::read_to_string(profile).unwrap().parse().unwrap();
        let mut roots = RootCertStore::empty();
        let ca = profile["server"]["ca"].as_str().unwrap();
        roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots);
        let mut tls = match certified {
            None => tls.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
                tls.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap())
                    .unwrap()
            }
        };
        tls.alpn_protocols = vec![b"vpnd/1".to_vec()];
        let endpoint = Endpoint::client((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
        let tls = Arc::new(QuicClientConfig::try_from(tls).unwrap());
        let transport = Arc::new(TransportConfig::default());
        Self { endpoint, tls, transport, key: DeviceKey::from_seed(Secret::new([seed; 32])) }
    }

    /// Another that trusts the same, at its own address and with its own key.
    pub(crate) fn at(&self, address: IpAddr, seed: [u8; 32]) -> Self {
        let endpoint = Endpoint::client((address, 0).into()).unwrap();
        let (tls, transport) = (Arc::clone(&self.tls), Arc::clone(&self.transport));
        Self { endpoint, tls, transport, key: DeviceKey::from_seed(Secret::new(seed)) }
    }

    pub(crate) async fn dial(&self) -> Line {
        self.try_dial().await.unwrap()
    }

    /// Dials a gateway that may not let it in.
    pub(crate) async fn try_dial(&self) -> Result<Line, ConnectionError> {
        let gateway: IpAddr = match self.endpoint.local_addr().unwrap() {
            SocketAddr::V4(_) => GATEWAY_V4.into(),
            SocketAddr::V6(_) => GATEWAY_V6.into(),
        };
        let mut config = quinn::ClientConfig::new(Arc::clone(&self.tls) as _);
        config.transport_config(Arc::clone(&self.transport));
        let to = SocketAddr::new(gateway, PORT);
        let connection = self.endpoint.connect_with(config, to, &gateway.to_string()).unwrap().await?;
        let (send, receive) = connection.open_bi().await?;
        Ok(Line { connection, send, receive })
    }

    fn prove(&self, line: &Line) -> DeviceProof {
        let export = |out: &mut [u8; 32]| line.connection.export_keying_material(out, BINDING_LABEL, b"");
        let binding = Binding::try_export(export).unwrap();
        DeviceProof::new(self.key.public(), self.key.sign(&binding))
    }

    /// The message by which this client would log in on a connection.
    pub(crate) fn login(&self, line: &Line, user: &str) -> Message {
        self.login_with(line, user, &format!("{user}'s password"))
    }

    /// Logs in with a password of the caller's choice.
    pub(crate) fn login_with(&self, line: &Line, user: &str, password: &str) -> Message {
        Message::Login(Login {
            user: Text::new(user).unwrap(),
            password: SecretText::new(password.to_owned()).unwrap(),
            device: self.prove(line),
            offer: offer(),
            code: None,
            software: None,
            grant: None,
        })
    }

    async fn log_in(&self, user: &str) -> (Line, Established) {
        let mut line = self.dial().await;
        let login = self.login(&line, user);
        let answer = line.ask(&login).await;
        (line, established(answer))
    }

    /// The message by which this client would begin a login in a browser.
    fn start_in_browser(&self, line: &Line) -> Message {
        Message::LoginStart(Box::new(LoginStart {
            device: self.prove(line),
            port: 4_444,
            state: [1; 32].into(),
            challenge: [2; 32].into(),
            name: Text::new("box").unwrap(),
            software: None,
            short_code: false,
        }))
    }

    /// The message by which this client would attach on a connection with such a token.
    fn claim(&self, line: &Line, session: SessionId, token: &Token) -> Message {
        let (token, device) = (token.clone(), self.prove(line));
        Message::Attach(Attach { token, offer: offer(), session, software: None, device })
    }

    async fn attach(&self, session: SessionId, token: &Token) -> (Line, Result<Message, Code>) {
        let mut line = self.dial().await;
        let claim = self.claim(&line, session, token);
        let answer = line.ask(&claim).await;
        (line, answer)
    }
}

impl Line {
    /// Sends a message and returns the reply, or the code of the close.
    pub(crate) async fn ask(&mut self, message: &Message) -> Result<Message, Code> {
        if self.send.write_all(&encode(message)).await.is_err() {
            return Err(self.closed().await);
        }
        let mut decoder = Decoder::new(End::Gateway);
        loop {
            let chunk = tokio::time::timeout(ANSWERS, self.receive.read_chunk(2_048, true)).await;
            match chunk.expect("an answer in time") {
                Ok(Some(chunk)) => decoder.push(&chunk.bytes),
                Ok(None) | Err(ReadError::ConnectionLost(_)) => return Err(self.closed().await),
                Err(error) => panic!("{error}"),
            }
            match decoder.next_message().unwrap() {
                Some(Message::Refused(refused)) => return Err(refused.code),
                Some(message) => return Ok(message),
                None => {}
            }
        }
    }

    /// Waits until the connection is no more, for whatever reason.
    pub(crate) async fn gone(&self) {
        let _ = self.connection.closed().await;
    }

    /// The code with which the gateway has closed the connection.
    pub(crate) async fn closed(&self) -> Code {
        match tokio::time::timeout(ANSWERS, self.connection.closed()).await.expect("it is closed in time") {
            ConnectionError::ApplicationClosed(close) => {
                Code::from(u16::try_from(u64::from(close.error_code)).unwrap())
            }
            error => panic!("{error}"),
        }
    }
}

fn offer() -> Offer {
    Offer {
        indexes: List::new(vec![0x0100]).unwrap(),
        suites: List::new((1..=3).map(|suite| SuiteSpeed { suite, mbps: 1_000 }).collect()).unwrap(),
        features: 0,
        lab: false,
    }
}

fn established(answer: Result<Message, Code>) -> Established {
    match answer {
        Ok(Message::Established(established)) => *established,
        other => panic!("no epoch: {other:?}"),
    }
}

/// Runs the thief's client in the first client's box.
pub(crate) fn in_her_box<T: Send>(lab: &Lab, work: impl AsyncFnOnce() -> T + Send) -> T {
    lab.clients[0].within(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work())
    })
}

#[test]
fn a_stolen_token_attaches_from_no_other_device() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, ann) = Gateway::for_ann(&lab);
    in_her_box(&lab, async || {
        let (victim, thief) = (Speaker::new(&ann.profile, 1), Speaker::new(&ann.profile, 2));
        let (_line, first) = victim.log_in("ann").await;
        for _ in 0..3 {
            let (_, answer) = thief.attach(first.session, &first.token).await;
            assert_eq!(answer, Err(Code::Token), "with a proof of its own");
        }
        assert_eq!(gateway.sessions().len(), 1, "the session is undisturbed");
        let counted = |name: &str| gateway.status()["counters"]["logins"][name].as_u64();
        assert_eq!((counted("attaches"), counted("attaches_refused")), (Some(0), Some(3)));
        let (_line, answer) = victim.attach(first.session, &first.token).await;
        let second = established(answer);
        assert_eq!((second.session, second.epoch), (first.session, 2), "no try of the thief made an epoch");
        assert_eq!((counted("attaches"), counted("attaches_refused")), (Some(1), Some(3)));
    });
}

#[test]
fn a_captured_attach_is_worth_nothing_on_another_connection() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, ann) = Gateway::for_ann(&lab);
    in_her_box(&lab, async || {
        let (victim, thief) = (Speaker::new(&ann.profile, 1), Speaker::new(&ann.profile, 2));
        let (_line, first) = victim.log_in("ann").await;
        // The victim's attach, to the last byte, before the gateway has seen it.
        let mut channel = victim.dial().await;
        let captured = victim.claim(&channel, first.session, &first.token);
        let unproved = |gateway: &Gateway<'_>| gateway.status()["counters"]["logins"]["unproved"].clone();
        assert_eq!(unproved(&gateway), 0);
        let mut elsewhere = thief.dial().await;
        assert_eq!(elsewhere.ask(&captured).await, Err(Code::BadRequest));
        assert_eq!(unproved(&gateway), 1, "it is counted");
        // Where it belongs it is good.
        established(channel.ask(&captured).await);
        let mut again = thief.dial().await;
        assert_eq!(again.ask(&captured).await, Err(Code::BadRequest));
        assert_eq!(gateway.sessions().len(), 1);
    });
}

#[test]
fn a_token_outlives_the_gateway_and_stays_its_devices() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = Gateway::for_ann(&lab);
    let first = in_her_box(&lab, async || Speaker::new(&ann.profile, 1).log_in("ann").await.1);
    gateway.kill();
    gateway.start();
    in_her_box(&lab, async || {
        let (_, answer) = Speaker::new(&ann.profile, 2).attach(first.session, &first.token).await;
        assert_eq!(answer, Err(Code::Token));
        let (_, answer) = Speaker::new(&ann.profile, 1).attach(first.session, &first.token).await;
        established(answer);
    });
}

#[test]
fn the_same_user_on_another_device_leaves_the_first_alone() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, ann) = Gateway::for_ann(&lab);
    in_her_box(&lab, async || {
        let (_one, first) = Speaker::new(&ann.profile, 1).log_in("ann").await;
        let (_two, second) = Speaker::new(&ann.profile, 2).log_in("ann").await;
        assert_ne!((first.session, first.network.ipv4), (second.session, second.network.ipv4));
        assert_eq!(gateway.sessions().len(), 2, "a password alone does not take a device's place");
        let (_three, third) = Speaker::new(&ann.profile, 1).log_in("ann").await;
        assert_eq!(third.network.ipv4, first.network.ipv4, "the device is known by its key");
        assert_eq!(gateway.sessions().len(), 2);
    });
}

/// Adds a user with a client certificate: the profile, the certificate and its key.
fn certified_user(lab: &Lab, gateway: &Gateway<'_>, name: &str) -> (PathBuf, String, String) {
    let (credentials, profile) = (lab.path(format!("{name}.credentials")), lab.path(format!("{name}.toml")));
    write_secret(&credentials, &format!("{name}'s password\n"));
    let mut command = gateway.user(&["add", name, "--client-cert"]);
    command.arg("--password-file").arg(&credentials).arg("--profile-out").arg(&profile);
    must(process::run(command));
    let table: toml::Table = fs::read_to_string(&profile).unwrap().parse().unwrap();
    let pem = |what: &str| table["user"][what].as_str().unwrap().to_owned();
    let (certificate, key) = (pem("certificate"), pem("key"));
    (profile, certificate, key)
}

/// Another certificate that the gateway's authority has signed.
fn another_certificate(gateway: &Gateway<'_>, name: &str, key: &KeyPair) -> String {
    let read = |file: &str| fs::read_to_string(gateway.file(file)).unwrap();
    let authority = KeyPair::from_pem(&read("ca-key.pem")).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&read("ca.pem"), authority).unwrap();
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.signed_by(key, &issuer).unwrap().pem()
}

#[test]
fn a_session_is_its_certificates() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("tls.require_client_certificate", true);
    let (profile, certificate, key) = certified_user(&lab, &gateway, "ann");
    let (_, of_bob, key_of_bob) = certified_user(&lab, &gateway, "bob");
    gateway.start();
    let renewed = another_certificate(&gateway, "ann", &KeyPair::from_pem(&key).unwrap());
    assert_ne!(renewed, certificate);
    let other_key = KeyPair::generate().unwrap();
    let of_another_key = another_certificate(&gateway, "ann", &other_key);
    let other_key = other_key.serialize_pem();
    in_her_box(&lab, async || {
        // The thief has the device's key too: only the certificate is missing.
        let speak = |certificate: &str, key: &str| Speaker::certified(&profile, 1, Some((certificate, key)));
        let (_line, first) = speak(&certificate, &key).log_in("ann").await;
        for (certificate, key, whose) in
            [(&of_bob, &key_of_bob, "another user's"), (&of_another_key, &other_key, "of another key")]
        {
            let (_line, answer) = speak(certificate, key).attach(first.session, &first.token).await;
            assert_eq!(answer, Err(Code::Token), "with a certificate {whose}");
        }
        let (_line, answer) = speak(&renewed, &key).attach(first.session, &first.token).await;
        let second = established(answer);
        assert_eq!((second.session, second.epoch), (first.session, 2), "a renewed certificate is as good");
    });
}

#[test]
fn the_worker_of_a_client_never_has_the_devices_key() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, ann) = Gateway::for_ann(&lab);
    let mut client = Client::connect(&lab, 1, &ann);
    let mut files = fs::read_dir(lab.path("state1")).unwrap().map(|file| file.unwrap().path());
    let file = files.find(|file| file.file_name().unwrap().to_str().unwrap().starts_with("device-")).unwrap();
    let der = fs::read(file).unwrap();
    let seed = &der[der.len() - 32..];
    let public = DeviceKey::from_pkcs8(&der).expect("the file holds a key").public();
    let parent = Seen::of(client.process().id());
    let worker = parent.child("client");
    assert!(parent.remembers(seed), "the client's first process signs with it, so this search finds keys");
    assert!(worker.remembers(&public), "the worker knows the public key");
    assert!(!worker.remembers(seed), "the worker holds the device's key");
}

/// A login, a refused one, a refused attach, and the start of a login in a browser: the answer to
/// each never gets on its way, since the client grants no credit.
#[test]
fn a_client_that_reads_nothing_is_given_up() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, ann) = Gateway::for_ann(&lab);
    in_her_box(&lab, async || {
        let mut transport = TransportConfig::default();
        transport.stream_receive_window(VarInt::from_u32(0)).keep_alive_interval(Some(KEEP_ALIVE));
        let mut speaker = Speaker::new(&ann.profile, 1);
        speaker.transport = Arc::new(transport);
        let firsts: [&dyn Fn(&Line) -> Message; 4] = [
            &|line| speaker.login(line, "ann"),
            &|line| speaker.login_with(line, "ann", "a guess"),
            &|line| speaker.claim(line, SessionId([1; 16]), &Token::from_bytes([2; 32])),
            &|line| speaker.start_in_browser(line),
        ];
        for (given_up, first) in (1..).zip(firsts) {
            let mut line = speaker.dial().await;
            let first = first(&line);
            line.send.write_all(&encode(&first)).await.unwrap();
            assert_eq!(line.closed().await, Code::BadRequest, "{given_up}");
            assert_eq!(gateway.status()["counters"]["logins"]["unread"], given_up, "it is counted");
        }
    });
}
