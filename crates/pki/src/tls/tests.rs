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
fn a_client_resumes_for_an_hour_and_then_wants_to_see_the_certificate() {
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
fn a_stolen_key_of_tickets_is_worth_an_hour() {
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
