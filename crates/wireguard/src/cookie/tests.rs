use proptest::prelude::*;

use super::*;
use crate::message::Initiation;

const OWN: PublicKey = PublicKey([9; 32]);

const fn s(seconds: u64) -> Time {
    Time::from_nanos(seconds * 1_000_000_000)
}

fn random() -> Random {
    let mut state = 1u64;
    Box::new(move |bytes| {
        for byte in bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
    })
}

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn message() -> Initiation {
    Initiation::new([1; 32], [2; 48], [3; 28]).from(Index(7))
}

/// A message after the answer to one from `from`, shown at `later`.
fn with_cookie(maker: &mut CookieMaker, now: Time, from: SocketAddr, later: Time) -> Initiation {
    let (mut jar, key, mut random) = (CookieJar::default(), Mac1Key::new(OWN), random());
    let mut first = message();
    jar.stamp(now, &key, &mut first);
    let reply = maker.reply(now, from, first.sender(), &first, &mut random);
    assert_eq!(reply.receiver(), first.sender());
    assert!(jar.keep(now, OWN, &reply));
    let mut second = message();
    jar.stamp(later, &key, &mut second);
    second
}

#[test]
fn a_cookie_proves_one_address_and_port() {
    let mut random = random();
    let mut maker = CookieMaker::new(s(0), OWN, &mut random);
    let from = at("192.0.2.1:1000");
    let second = with_cookie(&mut maker, s(0), from, s(1));
    assert!(maker.is_proof(s(1), from, &second, &mut random));
    assert!(maker.is_proof(s(1), at("[::ffff:192.0.2.1]:1000"), &second, &mut random), "the same address");
    for other in ["192.0.2.1:1001", "192.0.2.2:1000", "[2001:db8::1]:1000"] {
        assert!(!maker.is_proof(s(1), at(other), &second, &mut random), "{other}");
    }
    assert!(!maker.is_proof(s(1), from, &message(), &mut random));
}

#[test]
fn a_cookie_is_accepted_for_a_limited_time_after_its_issue() {
    let mut random = random();
    let mut maker = CookieMaker::new(s(0), OWN, &mut random);
    let from = at("192.0.2.1:1000");
    let late = with_cookie(&mut maker, s(119), from, s(119 + 114));
    assert!(maker.is_proof(s(119 + 114), from, &late, &mut random), "its secret is the one before");
    assert!(!maker.is_proof(s(119 + 241), from, &late, &mut random));
    let forgotten = with_cookie(&mut maker, s(500), from, s(500 + 115));
    assert_eq!(forgotten.mac2, [0; MAC_LEN], "a sender shows no old cookie");
}

#[test]
fn secrets_of_a_quiet_hour_are_all_forgotten() {
    let mut random = random();
    let mut maker = CookieMaker::new(s(0), OWN, &mut random);
    let from = at("192.0.2.1:1000");
    let message = with_cookie(&mut maker, s(0), from, s(1));
    assert!(!maker.is_proof(s(3600), from, &message, &mut random));
}

#[test]
fn a_reply_that_answers_nothing_is_not_kept() {
    let (mut jar, key, mut random) = (CookieJar::default(), Mac1Key::new(OWN), random());
    let mut maker = CookieMaker::new(s(0), OWN, &mut random);
    let mut first = message();
    first.stamp(&key, None);
    let reply = maker.reply(s(0), at("192.0.2.1:1"), Index(7), &first, &mut random);
    assert!(!jar.keep(s(0), OWN, &reply), "nothing was sent");
    jar.stamp(s(0), &key, &mut first);
    assert!(!jar.keep(s(0), PublicKey([8; 32]), &reply), "from another peer");
    let mut forged = reply;
    forged.sealed_cookie[0] ^= 1;
    assert!(!jar.keep(s(0), OWN, &forged));
    assert!(jar.keep(s(0), OWN, &reply));
    assert!(!jar.keep(s(0), OWN, &reply), "one message, one cookie");
}

/// draft-irtf-cfrg-xchacha-03, appendix A.3.1, with the library as it is used here.
#[test]
fn xchacha20_poly1305_is_the_published_one() {
    let text =
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, \
                 sunscreen would be it.";
    let key: [u8; 32] = std::array::from_fn(|at| 0x80 + at as u8);
    let nonce: [u8; 24] = std::array::from_fn(|at| 0x40 + at as u8);
    let aad = [0x50, 0x51, 0x52, 0x53, 0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7];
    let mut sealed = text.to_vec();
    let tag = XChaCha20Poly1305::new(&key.into())
        .encrypt_inout_detached(&nonce.into(), &aad, (&mut sealed[..]).into())
        .expect("it is short");
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(&tag), "c0875924c1c7987947deafd8780acf49");
    assert!(hex(&sealed).starts_with("bd6d179d3e83d43b9576579493c0e939572a1700252bfaccbed2902c21396cbb"));
    assert!(hex(&sealed).ends_with("21f9664c97637da9768812f615c68b13b52e"));
}

proptest! {
    #[test]
    fn any_reply_is_refused(bytes: [u8; 60]) {
        let mut datagram = vec![3, 0, 0, 0];
        datagram.extend(bytes);
        let Ok(crate::message::Message::CookieReply(reply)) = crate::message::Message::parse(&datagram) else {
            panic!("64 bytes of type 3");
        };
        let mut jar = CookieJar::default();
        jar.stamp(s(0), &Mac1Key::new(OWN), &mut message());
        prop_assert!(!jar.keep(s(0), OWN, reply));
    }
}
