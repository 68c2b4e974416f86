//! Lists that an authority has made, and lists that must be refused.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa,
    KeyIdMethod, KeyPair, KeyUsagePurpose, RevocationReason, RevokedCertParams, SerialNumber,
    SigningKey as _,
};

use super::*;

/// An authority that publishes lists.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn leaf(&self, serial: u64) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.serial_number = Some(SerialNumber::from(serial));
        params.signed_by(&KeyPair::generate().unwrap(), &self.0).unwrap().der().clone()
    }

    /// A list of these numbers, made and to be replaced `made` and `ends` days from now.
    fn list(&self, serials: &[u64], made: i64, ends: i64) -> String {
        let day = |days: i64| now_s().saturating_add_signed(days * 86_400);
        let at = |days| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(day(days));
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: at(made),
            reason_code: Some(RevocationReason::KeyCompromise),
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: at(made),
            next_update: at(ends),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.0).unwrap().pem().unwrap()
    }
}

/// DER of this tag.
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let long = if content.len() > 0x7F { vec![0x81] } else { Vec::new() };
    [&[tag][..], &long, &[u8::try_from(content.len()).unwrap()], &content].concat()
}

impl Authority {
    /// An empty list of version 2 with this critical extension, or of version 1.
    fn bare_list(&self, extension: Option<(&[u8], &[u8])>) -> Vec<u8> {
        const ECDSA_SHA256: &[u8] = b"\x30\x0a\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x02";
        let time = |days: i64| {
            let at = i64::try_from(now_s()).unwrap() + days * 86_400;
            let text = x509_parser::time::ASN1Time::from_timestamp(at).unwrap().to_datetime();
            let (year, month, day) = (text.year() % 100, u8::from(text.month()), text.day());
            der(0x17, &[format!("{year:02}{month:02}{day:02}000000Z").as_bytes()])
        };
        let version = extension.map(|_| der(2, &[&[1]])).unwrap_or_default();
        let extensions = extension.map(|(id, value)| {
            let one = der(0x30, &[&der(6, &[id]), &der(1, &[&[0xFF]]), &der(4, &[value])]);
            der(0xA0, &[&der(0x30, &[&one])])
        });
        let certificate = self.0.der();
        let (_, parsed) = X509Certificate::from_der(certificate).unwrap();
        let parts = [
            &version,
            ECDSA_SHA256,
            parsed.subject().as_raw(),
            &time(-1),
            &time(30),
            &extensions.unwrap_or_default(),
        ];
        let list = der(0x30, &parts);
        let signature = self.0.key().sign(&list).unwrap();
        der(0x30, &[&list, ECDSA_SHA256, &der(3, &[&[0], &signature])])
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn checked(list: &str, authorities: &[&Authority]) -> Result<RevocationList, ListError> {
    let authorities: String = authorities.iter().map(|authority| authority.pem()).collect();
    RevocationList::checked(list.as_bytes(), authorities.as_bytes(), now_s())
}

#[test]
fn a_list_names_its_authoritys_certificates_and_no_others() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let list = checked(&ours.list(&[0x80, 7], -1, 30), &[&ours]).unwrap();
    let names =
        |authority: &Authority, serial| list.names(&CertificateNumber::of(&authority.leaf(serial)).unwrap());
    assert!(names(&ours, 7) && names(&ours, 0x80));
    assert!(!names(&ours, 8) && !names(&theirs, 7), "another number, another authority's");
    assert_eq!(list.len(), 2);
    let (ends, made) = list.life_s().unwrap();
    assert_eq!((ends - made) / 86_400, 31);
    assert!(CertificateNumber::of(b"no certificate").is_none());
    // A list that was checked is the same when it is read again, and as DER.
    let pem = ours.list(&[7], -1, 30);
    let der = CertificateRevocationListDer::from_pem_slice(pem.as_bytes()).unwrap();
    assert_eq!(RevocationList::trusted(&der).unwrap().len(), 1);
    assert!(RevocationList::trusted(b"").unwrap().is_empty());
}

#[test]
fn an_unverifiable_revocation_list_is_refused_as_a_whole() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let good = ours.list(&[7], -1, 30);
    assert!(matches!(checked(&theirs.list(&[7], -1, 30), &[&ours]), Err(ListError::Foreign(_))));
    let lists = format!("{good}{}", theirs.list(&[8], -1, 30));
    assert!(
        matches!(checked(&lists, &[&ours]), Err(ListError::Foreign(_))),
        "a good one beside it is no help"
    );
    assert_eq!(checked(&lists, &[&ours, &theirs]).unwrap().len(), 2);
    assert!(matches!(checked(&good, &[&ours, &theirs]), Err(ListError::Missing(_))));
    // One that has the name and another key.
    assert!(matches!(
        checked(&Authority::new("ours").list(&[7], -1, 30), &[&ours]),
        Err(ListError::Forged(_))
    ));
    assert!(matches!(checked(&ours.list(&[7], -30, -1), &[&ours]), Err(ListError::Expired(..))));
    assert!(matches!(checked(&ours.list(&[7], 1, 30), &[&ours]), Err(ListError::Early(..))));
    for nonsense in ["", "no list", "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", &ours.pem()] {
        assert!(matches!(checked(nonsense, &[&ours]), Err(ListError::Malformed(_))), "{nonsense}");
    }
    let der = CertificateRevocationListDer::from_pem_slice(good.as_bytes()).unwrap();
    for end in 0..der.len() {
        assert!(RevocationList::checked(&der[..end], ours.pem().as_bytes(), now_s()).is_err(), "{end}");
    }
    let more = [der.as_ref(), b"\0"].concat();
    assert!(RevocationList::checked(&more, ours.pem().as_bytes(), now_s()).is_err());
    let long = vec![b' '; MAX_LEN + 1];
    assert_eq!(RevocationList::checked(&long, ours.pem().as_bytes(), 0).unwrap_err(), ListError::TooLong);
}

#[test]
fn a_list_that_tls_would_not_take_is_refused_before() {
    let ours = Authority::new("ours");
    let checked =
        |list: &[u8]| RevocationList::checked(list, ours.pem().as_bytes(), now_s()).map(|list| list.len());
    let (number, delta): (&[u8], &[u8]) = (b"\x55\x1d\x14", b"\x55\x1d\x1b");
    let (one, unknown): (&[u8], &[u8]) = (b"\x02\x01\x01", b"\x2a\x03\x04");
    assert_eq!(checked(&ours.bare_list(Some((number, one)))), Ok(0), "the same of an ordinary kind");
    assert_eq!(checked(&ours.bare_list(None)), Err(ListError::Old("CN=ours".to_owned())));
    for part in [delta, unknown] {
        let refused = checked(&ours.bare_list(Some((part, one))));
        assert!(matches!(refused, Err(ListError::Unsupported(_))), "{refused:?}");
    }
}
