//! Tests of a client's trust in the gateway, and of resumption without the gateway's key.

use std::cell::Cell;
use std::time::{Duration, SystemTime};

use rustls::{ClientConnection, HandshakeKind, ServerConnection};
use rustls_pki_types::ServerName;
use vpnd_proto::time::Time;

use super::resumption::RESUMPTION_LIFETIME;
use super::*;
use crate::authority::Authority;

thread_local! {
    static NOW: Cell<Time> = const { Cell::new(Time::ZERO) };
}

fn now() -> Time {
    NOW.get()
}

fn sleep(duration: Duration) {
    NOW.set(now() + duration);
}

fn gateway(authority: &Authority) -> ServerConfig {
    let identity = authority.server(&["localhost".to_owned()], SystemTime::now()).unwrap();
    let identity = Identity::from_pem(identity.certificate_pem.as_bytes(), identity.key_pem.as_bytes());
    let presented = Presented::new(identity.unwrap().certified().unwrap());
    server_config(presented, &ClientCertificates::Ignored).unwrap()
}

fn client_of(authority: &Authority) -> Client {
    Client::new(client_config(&Trust::Pinned(authority.certificate_pem().as_bytes()), None).unwrap(), now)
}

/// One connection, with the tickets that come at its beginning: how it came about.
fn connect(client: &Client, gateway: &ServerConfig) -> Result<HandshakeKind, rustls::Error> {
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(client.for_next_connection(), name).unwrap();
    let mut server = ServerConnection::new(Arc::new(gateway.clone())).unwrap();
    for _ in 0..4 {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        let mut unread = &bytes[..];
        while !unread.is_empty() {
            server.read_tls(&mut unread).unwrap();
            server.process_new_packets()?;
        }
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        let mut unread = &bytes[..];
        while !unread.is_empty() {
            client.read_tls(&mut unread).unwrap();
            client.process_new_packets()?;
        }
    }
    assert!(!client.is_handshaking());
    Ok(client.handshake_kind().unwrap())
}

fn is_resumed(kind: Result<HandshakeKind, rustls::Error>) -> bool {
    matches!(kind, Ok(HandshakeKind::Resumed))
}

#[test]
fn a_ticket_resumes_for_an_hour_and_then_a_certificate_is_needed() {
    let authority = Authority::new("tests", SystemTime::now()).unwrap();
    let (client, gateway) = (client_of(&authority), gateway(&authority));
    for _ in 0..3 {
        assert!(matches!(connect(&client, &gateway), Ok(HandshakeKind::Full)));
        for _ in 0..29 {
            sleep(RESUMPTION_LIFETIME / 30);
            assert!(is_resumed(connect(&client, &gateway)));
        }
        sleep(RESUMPTION_LIFETIME / 30);
    }
}

#[test]
fn a_stolen_ticket_key_is_valid_for_an_hour() {
    let [authority, stranger] = [(); 2].map(|()| Authority::new("tests", SystemTime::now()).unwrap());
    let (client, genuine) = (client_of(&authority), gateway(&authority));
    let mut thief = gateway(&stranger);
    assert!(connect(&client, &thief).is_err(), "a stranger with a certificate of its own");
    assert!(matches!(connect(&client, &genuine), Ok(HandshakeKind::Full)));
    thief.ticketer = Arc::clone(&genuine.ticketer);
    // From here on the client is in the thief's hands, who gives it new tickets.
    for _ in 0..59 {
        sleep(RESUMPTION_LIFETIME / 60);
        assert!(is_resumed(connect(&client, &thief)));
    }
    sleep(RESUMPTION_LIFETIME / 60);
    assert!(connect(&client, &thief).is_err(), "a thief who can't sign is not the gateway");
    assert!(connect(&client, &genuine).is_ok());
}

#[test]
fn a_new_certificate_is_presented_without_new_settings() {
    let [old, new] = [(); 2].map(|()| Authority::new("tests", SystemTime::now()).unwrap());
    let certified = |authority: &Authority| {
        let made = authority.server(&["localhost".to_owned()], SystemTime::now()).unwrap();
        let identity = Identity::from_pem(made.certificate_pem.as_bytes(), made.key_pem.as_bytes());
        identity.unwrap().certified().unwrap()
    };
    let presented = Presented::new(certified(&old));
    let gateway = server_config(Arc::clone(&presented), &ClientCertificates::Ignored).unwrap();
    assert!(connect(&client_of(&old), &gateway).is_ok() && connect(&client_of(&new), &gateway).is_err());
    presented.replace(certified(&new));
    assert!(connect(&client_of(&old), &gateway).is_err() && connect(&client_of(&new), &gateway).is_ok());
}

/// A gateway with a certificate of `usual` for everybody, and one of `pinned` for clients that name
/// it.
fn gateway_of_two(usual: &Authority, pinned: &Authority) -> ServerConfig {
    let key = rcgen::KeyPair::generate().unwrap();
    let chain = |authority: &Authority| {
        let public_key = rcgen::PublicKeyData::subject_public_key_info(&key);
        authority.server_for(&["localhost".to_owned()], &public_key, 30, SystemTime::now()).unwrap()
    };
    let signing = signing_key(key.serialize_pem().as_bytes()).unwrap();
    let chains = Chains::signed_by(chain(usual).as_bytes(), signing).unwrap();
    let chains = chains.with_pinned(chain(pinned).as_bytes(), pinned.certificate_pem().as_bytes()).unwrap();
    server_config(Presented::new(chains), &ClientCertificates::Ignored).unwrap()
}

#[test]
fn each_client_gets_the_certificate_of_the_authority_that_it_trusts() {
    let [usual, own, stranger] =
        ["public", "own", "stranger"].map(|name| Authority::new(name, SystemTime::now()).unwrap());
    let gateway = gateway_of_two(&usual, &own);
    assert!(connect(&client_of(&own), &gateway).is_ok(), "it names its authority");
    assert!(connect(&client_of(&usual), &gateway).is_ok(), "its authority is not the gateway's own");
    assert!(connect(&client_of(&stranger), &gateway).is_err());
    // Another client may name none.
    let verifier = verifier(&Trust::Pinned(usual.certificate_pem().as_bytes())).unwrap();
    assert!(verifier.root_hint_subjects().is_none());
    let config = client_builder().unwrap().dangerous().with_custom_certificate_verifier(verifier);
    let client = Client::new(finish(config.with_no_client_auth()), now);
    assert!(connect(&client, &gateway).is_ok());
    // An authority of the same name has another key.
    let namesake = Authority::new("own", SystemTime::now()).unwrap();
    assert!(connect(&client_of(&namesake), &gateway).is_err());
}

/// A verifier that names more authorities than a client does.
#[derive(Debug)]
struct Naming(Arc<dyn ServerCertVerifier>, Vec<rustls::DistinguishedName>);

impl ServerCertVerifier for Naming {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: rustls_pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        self.0.verify_server_cert(leaf, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.supported_verify_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[rustls::DistinguishedName]> {
        Some(&self.1)
    }
}

#[test]
fn a_hello_that_names_a_thousand_authorities_is_answered() {
    let [usual, own] = ["public", "own"].map(|name| Authority::new(name, SystemTime::now()).unwrap());
    let gateway = gateway_of_two(&usual, &own);
    // Names of authorities differ, and those that are none are names, too.
    let strange = |n: u32| rustls::DistinguishedName::in_sequence(&n.to_be_bytes());
    let subject = roots(own.certificate_pem().as_bytes()).unwrap().subjects();
    for (last, trusted) in [(subject, &own), (vec![strange(1_000)], &usual)] {
        let names: Vec<_> = (1..1_000).map(strange).chain(last).collect();
        let verifier = verifier(&Trust::Pinned(trusted.certificate_pem().as_bytes())).unwrap();
        let naming = Arc::new(Naming(verifier, names));
        let config = client_builder().unwrap().dangerous().with_custom_certificate_verifier(naming);
        let client = Client::new(finish(config.with_no_client_auth()), now);
        assert!(matches!(connect(&client, &gateway), Ok(HandshakeKind::Full)));
    }
}

#[test]
fn a_client_that_pins_many_authorities_names_none() {
    let own = Authority::new("own", SystemTime::now()).unwrap();
    let named = |count: usize| {
        let ca = own.certificate_pem().repeat(count);
        let verifier = PinningVerifier::new(ca.as_bytes()).unwrap();
        verifier.root_hint_subjects().map(<[_]>::len)
    };
    assert_eq!((named(1), named(4), named(100)), (Some(1), Some(4), None));
}

#[test]
fn a_certificate_that_is_revoked_is_refused_and_a_ticket_of_before_too() {
    use rcgen::{
        CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
    };

    let authority = Authority::new("tests", SystemTime::now()).unwrap();
    let made = authority.client("ann", SystemTime::now()).unwrap();
    let identity = Identity::from_pem(made.certificate_pem.as_bytes(), made.key_pem.as_bytes()).unwrap();
    let trust = Trust::Pinned(authority.certificate_pem().as_bytes());
    let client = Client::new(client_config(&trust, Some(identity)).unwrap(), now);
    let issuer = Issuer::from_ca_cert_pem(
        authority.certificate_pem(),
        KeyPair::from_pem(authority.key_pem()).unwrap(),
    );
    let issuer = issuer.unwrap();
    let list = |serial: Vec<u8>| {
        let since = SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let at = rcgen::date_time_ymd(1970, 1, 1) + since - Duration::from_secs(3_600);
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: at,
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: at,
            next_update: at + Duration::from_secs(86_400),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let pem = params.signed_by(&issuer).unwrap().pem().unwrap();
        RevocationList::trusted(pem.as_bytes()).unwrap()
    };
    let gateway = |revoked: &RevocationList| {
        let identity = authority.server(&["localhost".to_owned()], SystemTime::now()).unwrap();
        let identity = Identity::from_pem(identity.certificate_pem.as_bytes(), identity.key_pem.as_bytes());
        let presented = Presented::new(identity.unwrap().certified().unwrap());
        let ca = authority.certificate_pem().as_bytes();
        server_config(presented, &ClientCertificates::Optional(super::ClientCa { ca, revoked })).unwrap()
    };
    let (_, parsed) = x509_parser::parse_x509_certificate(&made.certificate_der).unwrap();
    let (others, its_own) = (gateway(&list(vec![7])), gateway(&list(parsed.raw_serial().to_vec())));
    assert!(matches!(connect(&client, &others), Ok(HandshakeKind::Full)));
    assert!(is_resumed(connect(&client, &others)), "it has a ticket");
    let refused = connect(&client, &its_own);
    assert!(refused.is_err(), "{refused:?}");
}
