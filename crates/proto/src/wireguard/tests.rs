use std::collections::BTreeSet;
use std::thread;

use proptest::prelude::*;

use super::*;

const NOW: Time = Time::from_nanos(5_000_000_000);
const INDEX: Index = Index(0x0102_0304);

fn pair() -> (Sealer, Opener) {
    let key = Secret::new([3; 32]);
    let sealer = Sealer::new(NOW, Backend::Ring, &key, INDEX).expect("ring has the cipher");
    (sealer, Opener::new(NOW, Backend::Ring, &key).expect("ring has the cipher"))
}

fn seal(range: &mut Range<'_>, text: &[u8]) -> Result<Vec<u8>, SealRefused> {
    let mut message = vec![0xAA; Sealer::message_len(text.len())];
    message[TRANSPORT_HEADER_LEN..][..text.len()].copy_from_slice(text);
    assert_eq!(range.seal(&mut message, text.len())?, message.len());
    Ok(message)
}

fn open(opener: &mut Opener, now: Time, mut message: Vec<u8>) -> Result<(Vec<u8>, bool), OpenRefused> {
    let header = TransportHeader::parse(&message).expect("it was sealed");
    let opened = opener.open(now, header, &mut message)?;
    Ok((message[TRANSPORT_HEADER_LEN..][..opened.len].to_vec(), opened.newest))
}

#[test]
fn what_was_sealed_is_opened_once_and_no_changed_byte_is() {
    let (sealer, mut opener) = pair();
    let mut range = sealer.reserve(NOW, 2).expect("a new key");
    let message = seal(&mut range, b"twenty bytes of data").expect("a reserved counter");
    assert_eq!(message.len(), 16 + 32 + 16);
    for at in 0..message.len() {
        let mut changed = message.clone();
        changed[at] ^= 1;
        let Ok(header) = TransportHeader::parse(&changed) else { continue };
        // The receiver's index has led to this key; the cipher does not cover it.
        let refused = opener.open(NOW, header, &mut changed);
        assert!(refused.is_err() || (4..8).contains(&at), "byte {at}");
        if refused.is_ok() {
            (_, opener) = pair();
        }
    }
    let (text, newest) = open(&mut opener, NOW, message.clone()).expect("as it was sealed");
    assert_eq!((&text[..20], &text[20..], newest), (&b"twenty bytes of data"[..], &[0; 12][..], true));
    assert_eq!(open(&mut opener, NOW, message), Err(OpenRefused::Replayed));
    let keepalive = seal(&mut range, b"").expect("a reserved counter");
    assert_eq!(keepalive.len(), 32);
    assert_eq!(open(&mut opener, NOW, keepalive), Ok((vec![], true)));
}

#[test]
fn a_shard_seals_only_with_what_it_has_reserved() {
    let (sealer, _) = pair();
    let mut range = sealer.reserve(NOW, 1).expect("a new key");
    assert_eq!(range.seal(&mut [0; 47], 1), Err(SealRefused::NoRoom));
    assert_eq!(range.left(), 1, "nothing was used for it");
    assert!(seal(&mut range, b"").is_ok());
    assert_eq!(seal(&mut range, b""), Err(SealRefused::RangeUsed));
    assert_eq!(sealer.reserve(NOW, u16::MAX).expect("a new key").left(), u64::from(MAX_RANGE));
}

#[test]
fn shards_never_share_a_counter() {
    let (sealer, _) = pair();
    let counters = thread::scope(|scope| {
        let shard = |count: u16| {
            let sealer = &sealer;
            scope.spawn(move || {
                let mut counters = Vec::new();
                for _ in 0..2_000 {
                    let range = sealer.reserve(NOW, count).expect("far from the end");
                    counters.extend(range.next..range.end);
                }
                counters
            })
        };
        let shards: Vec<_> = [1, 7, 15, 16].into_iter().map(shard).collect();
        shards.into_iter().flat_map(|shard| shard.join().expect("it only counts")).collect::<Vec<_>>()
    });
    assert_eq!(counters.len(), 2_000 * (1 + 7 + 15 + 16));
    assert_eq!(counters.iter().collect::<BTreeSet<_>>().len(), counters.len());
}

#[test]
fn a_key_ends_by_its_counter_at_both_ends() {
    let (mut sealer, mut opener) = pair();
    *sealer.next.get_mut() = REJECT_AFTER_MESSAGES - 1;
    let mut last = sealer.reserve(NOW, 16).expect("one counter is left");
    let message = seal(&mut last, b"last").expect("that one");
    assert_eq!(seal(&mut last, b"more"), Err(SealRefused::Exhausted));
    assert_eq!(sealer.reserve(NOW, 1).err(), Some(SealRefused::Exhausted));
    assert!(sealer.reserved() > REJECT_AFTER_MESSAGES, "it does not wrap, however often it is asked");
    assert!((0..100_000).all(|_| sealer.reserve(NOW, 16).is_err()));

    let mut beyond = message.clone();
    assert_eq!(open(&mut opener, NOW, message), Ok((b"last\0\0\0\0\0\0\0\0\0\0\0\0".to_vec(), true)));
    let header = TransportHeader { receiver: INDEX, counter: REJECT_AFTER_MESSAGES };
    let key = NoiseKey::new(Backend::Ring, &Secret::new([3; 32])).expect("ring has the cipher");
    key.seal_in_place(header.counter, &[], &mut beyond[TRANSPORT_HEADER_LEN..], 16).expect("it has room");
    assert_eq!(opener.open(NOW, header, &mut beyond), Err(OpenRefused::Exhausted), "authentic, but too late");
}

#[test]
fn a_key_ends_by_its_time_at_both_ends() {
    let (sealer, mut opener) = pair();
    let (young, old) = (NOW + Duration::from_millis(179_999), NOW + Duration::from_secs(180));
    let mut range = sealer.reserve(young, 2).expect("a young key");
    let first = seal(&mut range, b"").expect("reserved");
    let second = seal(&mut range, b"").expect("reserved");
    assert!(open(&mut opener, young, first).is_ok());
    assert_eq!(open(&mut opener, old, second), Err(OpenRefused::Exhausted));
    assert_eq!(sealer.reserve(old, 1).err(), Some(SealRefused::Exhausted));
}

#[test]
fn counters_beyond_32_bits_are_opened() {
    let (mut sealer, mut opener) = pair();
    for next in [0, 1 << 32, 1 << 60] {
        *sealer.next.get_mut() = next;
        let message = sealer.reserve(NOW, 1).and_then(|mut range| seal(&mut range, b"")).expect("a counter");
        assert!(open(&mut opener, NOW, message.clone()).is_ok(), "{next}");
        assert_eq!(open(&mut opener, NOW, message), Err(OpenRefused::Replayed));
    }
}

proptest! {
    /// Whatever the order in which shards' messages arrive, each is opened once if it is not 8,192
    /// behind.
    #[test]
    fn reordered_messages_are_opened_once(order in proptest::collection::vec(0usize..64, 1..200)) {
        let (sealer, mut opener) = pair();
        let one = |number: u8| sealer.reserve(NOW, 1).and_then(|mut range| seal(&mut range, &[number]));
        let messages: Vec<_> = (0..64u8).map(|number| one(number).expect("a new key")).collect();
        let mut seen = BTreeSet::new();
        for at in order {
            let opened = open(&mut opener, NOW, messages[at].clone());
            let newest = seen.last().is_none_or(|highest| at > *highest);
            if seen.insert(at) {
                let (text, told) = opened.expect("it is new");
                prop_assert_eq!((text[0] as usize, told), (at, newest));
            } else {
                prop_assert_eq!(opened, Err(OpenRefused::Replayed));
            }
        }
    }

    #[test]
    fn any_bytes_are_refused(counter: u64, bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let (_, mut opener) = pair();
        let header = TransportHeader { receiver: INDEX, counter };
        let mut message = [&header.to_bytes(), &bytes[..]].concat();
        prop_assert!(opener.open(NOW, header, &mut message).is_err());
    }
}
