//! Datagrams that one gateway seals for another (PROTOCOL §19.1).
//!
//! Each pair of gateways has a secret, X25519 of their keys, from which there is one key for each
//! direction. A datagram ends with a MAC besides, whose key follows from the receiver's public key
//! alone: as with WireGuard's first MAC, who does not know that key, which is never on the wire,
//! costs a receiver one short hash.
//!
//! INVARIANT: what [`Pair::open`] returns was sealed by the other gateway for this one.

use blake2::digest::{Digest as _, FixedOutput as _, Update as _};
use blake2::{Blake2s256, Blake2sMac};
use chacha20poly1305::aead::AeadInOut as _;
use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305};
use subtle::ConstantTimeEq as _;
use vpnd_crypto::Secret;
use vpnd_crypto::x25519::PrivateKey;

/// The first bytes of each datagram.
const TYPE: [u8; 4] = [5, 0, 0, 0];
const SENDER_LEN: usize = 8;
const NONCE_LEN: usize = 24;
/// The bytes before the sealed message, which are its associated data.
const HEADER_LEN: usize = TYPE.len() + SENDER_LEN + NONCE_LEN;
const TAG_LEN: usize = 16;
const MAC_LEN: usize = 16;
/// The longest datagram.
pub const MAX_DATAGRAM: usize = 512;
/// The longest message in one.
const MAX_MESSAGE: usize = MAX_DATAGRAM - HEADER_LEN - TAG_LEN - MAC_LEN;

type ShortMac = Blake2sMac<blake2::digest::consts::U16>;

/// The half of a gateway's key that the other gateways know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; 32]);

/// The key of a gateway.
#[derive(Debug)]
pub struct OwnKey {
    private: PrivateKey,
    public: PublicKey,
}

/// Names the sender of a datagram to receivers that know its public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SenderId([u8; SENDER_LEN]);

/// The key of the last MAC of datagrams to one receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterKey(pub [u8; 32]);

/// The keys of this gateway and another one.
pub struct Pair {
    to_them: XChaCha20Poly1305,
    from_them: XChaCha20Poly1305,
    own: SenderId,
    theirs: SenderId,
    filter: FilterKey,
}

impl OwnKey {
    /// The key with this private half, which any 32 random bytes are.
    #[must_use]
    pub fn new(private: Secret<32>) -> Self {
        let private = PrivateKey::new(&private);
        Self { public: PublicKey(private.public()), private }
    }

    /// The half for the other gateways.
    #[must_use]
    pub const fn public(&self) -> PublicKey {
        self.public
    }

    /// The keys of this gateway and `other`; `None` if that is no key of a gateway: a point of low
    /// order, whose secret with every key is zero, or the key of this gateway.
    #[must_use]
    pub fn pair(&self, other: PublicKey) -> Option<Pair> {
        let shared = self.private.agree(&other.0).filter(|_| other != self.public)?;
        let cipher = |from: PublicKey, to: PublicKey| {
            let key = hash(&[b"vpnd fleet seal 1", shared.expose(), &from.0, &to.0]);
            let key = Secret::new(key);
            XChaCha20Poly1305::new(&(*key.expose()).into())
        };
        Some(Pair {
            to_them: cipher(self.public, other),
            from_them: cipher(other, self.public),
            own: SenderId::of(self.public),
            theirs: SenderId::of(other),
            filter: FilterKey::of(other),
        })
    }
}

impl SenderId {
    fn of(sender: PublicKey) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = hash(&[b"vpnd fleet sender 1", &sender.0]);
        Self([a, b, c, d, e, f, g, h])
    }

    /// The sender that a datagram names.
    #[must_use]
    pub fn in_datagram(datagram: &[u8]) -> Option<Self> {
        let rest = datagram.strip_prefix(&TYPE)?;
        rest.first_chunk().copied().map(Self)
    }
}

impl FilterKey {
    /// The key of datagrams to this gateway; anyone who knows its public key can make it.
    #[must_use]
    pub fn of(receiver: PublicKey) -> Self {
        Self(hash(&[b"vpnd fleet filter 1", &receiver.0]))
    }

    /// Whether a datagram is worth being opened.
    #[must_use]
    pub fn admits(&self, datagram: &[u8]) -> bool {
        let Some((covered, mac)) = datagram.split_last_chunk::<MAC_LEN>() else { return false };
        datagram.len() <= MAX_DATAGRAM && bool::from(self.mac(covered).ct_eq(mac))
    }

    fn mac(&self, covered: &[u8]) -> [u8; MAC_LEN] {
        let state = ShortMac::new_with_salt_and_personal(Some(&self.0), &[], &[]);
        state.expect("BLAKE2s takes keys of 32 bytes").chain(covered).finalize_fixed().into()
    }
}

impl Pair {
    /// The name of the other gateway in its datagrams.
    #[must_use]
    pub const fn theirs(&self) -> SenderId {
        self.theirs
    }

    /// Seals a message for the other gateway; `nonce` is random. `None` if it is too long.
    #[must_use]
    pub fn seal(&self, nonce: [u8; NONCE_LEN], message: &[u8]) -> Option<Vec<u8>> {
        if message.len() > MAX_MESSAGE {
            return None;
        }
        let mut datagram = [&TYPE[..], &self.own.0, &nonce, message].concat();
        let (header, sealed) = datagram.split_at_mut(HEADER_LEN);
        let tag = self.to_them.encrypt_inout_detached(&nonce.into(), header, sealed.into());
        datagram.extend_from_slice(&tag.expect("a datagram is shorter than the cipher's limit"));
        let mac = self.filter.mac(&datagram);
        datagram.extend_from_slice(&mac);
        Some(datagram)
    }

    /// The message that the other gateway has sealed in a datagram, if it has. The last MAC is the
    /// filter's.
    #[must_use]
    pub fn open(&self, datagram: &[u8]) -> Option<Vec<u8>> {
        if SenderId::in_datagram(datagram) != Some(self.theirs) {
            return None;
        }
        let (covered, _) = datagram.split_last_chunk::<MAC_LEN>()?;
        let (rest, tag) = covered.split_last_chunk::<TAG_LEN>()?;
        let (header, sealed) = rest.split_at_checked(HEADER_LEN)?;
        let nonce = *header.last_chunk::<NONCE_LEN>()?;
        let mut message = sealed.to_vec();
        let opened = message.as_mut_slice().into();
        self.from_them.decrypt_inout_detached(&nonce.into(), header, opened, &(*tag).into()).ok()?;
        Some(message)
    }
}

fn hash(parts: &[&[u8]]) -> [u8; 32] {
    let mut state = Blake2s256::new();
    for part in parts {
        blake2::digest::Update::update(&mut state, part);
    }
    state.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> OwnKey {
        OwnKey::new(Secret::new([number; 32]))
    }

    fn pair(from: u8, to: u8) -> Pair {
        key(from).pair(key(to).public()).unwrap()
    }

    #[test]
    fn a_message_opens_at_the_gateway_that_it_is_for_and_nowhere_else() {
        let datagram = pair(1, 2).seal([7; NONCE_LEN], b"end ann").unwrap();
        assert_eq!(pair(2, 1).open(&datagram).as_deref(), Some(&b"end ann"[..]));
        assert!(pair(3, 1).open(&datagram).is_none(), "it is for another one");
        assert!(pair(2, 3).open(&datagram).is_none(), "another one has sent it");
        assert!(pair(1, 2).open(&datagram).is_none(), "it does not go back to its sender");
        assert!(!datagram.windows(3).any(|part| part == b"ann"), "names are not in clear");
        assert!(FilterKey::of(key(2).public()).admits(&datagram));
        assert!(!FilterKey::of(key(3).public()).admits(&datagram));
    }

    #[test]
    fn each_byte_of_a_datagram_counts() {
        let datagram = pair(1, 2).seal([7; NONCE_LEN], b"end ann").unwrap();
        let (filter, receiver) = (FilterKey::of(key(2).public()), pair(2, 1));
        for at in 0..datagram.len() {
            let mut other = datagram.clone();
            other[at] ^= 1;
            assert!(!filter.admits(&other), "byte {at}");
            assert_eq!(receiver.open(&other).is_some(), at >= datagram.len() - MAC_LEN, "byte {at}");
            assert!(
                !filter.admits(&datagram[..at]) && receiver.open(&datagram[..at]).is_none(),
                "{at} bytes"
            );
        }
    }

    /// A worker that was taken over knows the filter's key.
    #[test]
    fn the_filters_key_makes_no_message() {
        let filter = FilterKey::of(key(2).public());
        let mut forged = pair(3, 2).seal([7; NONCE_LEN], b"end ann").unwrap();
        forged[TYPE.len()..][..SENDER_LEN].copy_from_slice(&SenderId::of(key(1).public()).0);
        let covered = forged.len() - MAC_LEN;
        let mac = filter.mac(&forged[..covered]);
        forged[covered..].copy_from_slice(&mac);
        assert!(filter.admits(&forged));
        assert!(pair(2, 1).open(&forged).is_none());
    }

    /// A datagram that says that it comes from its receiver's peer, with a message of the receiver.
    #[test]
    fn both_directions_have_keys() {
        let mut back = pair(1, 2).seal([7; NONCE_LEN], b"end ann").unwrap();
        back[TYPE.len()..][..SENDER_LEN].copy_from_slice(&SenderId::of(key(2).public()).0);
        let nonce = [7; NONCE_LEN];
        let sealed = back.len() - MAC_LEN - TAG_LEN;
        let header: Vec<u8> = back[..HEADER_LEN].to_vec();
        let mut message = *b"end ann";
        let tag =
            pair(1, 2).to_them.encrypt_inout_detached(&nonce.into(), &header, message.as_mut_slice().into());
        back[HEADER_LEN..sealed].copy_from_slice(&message);
        back[sealed..sealed + TAG_LEN].copy_from_slice(&tag.unwrap());
        assert!(pair(1, 2).open(&back).is_none());
    }

    #[test]
    fn what_is_no_other_gateways_key_makes_no_pair() {
        let mut one = [0; 32];
        one[0] = 1;
        assert!(key(1).pair(PublicKey([0; 32])).is_none() && key(1).pair(PublicKey(one)).is_none());
        assert!(key(1).pair(key(1).public()).is_none());
    }

    #[test]
    fn messages_have_a_largest_length() {
        let pair = pair(1, 2);
        assert_eq!(pair.seal([0; NONCE_LEN], &[0; MAX_MESSAGE]).unwrap().len(), MAX_DATAGRAM);
        assert!(pair.seal([0; NONCE_LEN], &[0; MAX_MESSAGE + 1]).is_none());
    }
}
