//! Any bytes as datagrams between gateways: only what another gateway has sealed for this one is
//! opened.

use std::sync::{Mutex, OnceLock, PoisonError};

use vpnd_crypto::Secret;
use vpnd_fleet::orders::Orders;
use vpnd_fleet::seal::{FilterKey, OwnKey, Pair};

/// The keys of two gateways, a datagram of the other one, and the orders of this one.
struct Fleet {
    theirs: Pair,
    filter: FilterKey,
    genuine: Vec<u8>,
    orders: Mutex<Orders>,
}

fn fleet() -> &'static Fleet {
    static FLEET: OnceLock<Fleet> = OnceLock::new();
    FLEET.get_or_init(|| {
        let [own, other] = [1, 2].map(|number| OwnKey::new(Secret::new([number; 32])));
        let (theirs, to_own) = (own.pair(other.public()), other.pair(own.public()));
        let genuine = to_own.expect("they differ").seal([3; 24], b"no message").expect("it is short");
        let filter = FilterKey::of(own.public());
        let mut orders = Orders::new(own, Box::new(|bytes| bytes.fill(4)));
        orders.learn("gw2", other.public(), ([192, 0, 2, 2], 4_433).into());
        Fleet { theirs: theirs.expect("they differ"), filter, genuine, orders: Mutex::new(orders) }
    })
}

/// Checks one input: as it is, behind the beginning of a genuine datagram, and as changes of one:
/// pairs of a place and a mask.
pub(crate) fn run(data: &[u8]) {
    let Fleet { theirs, filter, genuine, orders } = fleet();
    let mut changed = genuine.clone();
    for pair in data.chunks_exact(2) {
        let place = usize::from(pair[0]) % changed.len();
        changed[place] ^= pair[1];
    }
    for datagram in [data.to_vec(), [&genuine[..36], data].concat(), changed] {
        let is_genuine = datagram == *genuine;
        assert_eq!(filter.admits(&datagram), is_genuine);
        // The last MAC is the filter's.
        let has_its_seal = datagram.len() == genuine.len()
            && datagram[..genuine.len() - 16] == genuine[..genuine.len() - 16];
        assert_eq!(theirs.open(&datagram).is_some(), has_its_seal);
        let mut orders = orders.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(orders.receive(&datagram), None);
    }
}
