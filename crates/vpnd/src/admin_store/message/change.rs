//! A change of a user, on its way to the process that makes it.

use std::net::IpAddr;

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};
use vpnd_proto::session::DeviceId;

use vpnd_ipc::messages::SecretBytes;
use vpnd_store::{AddressChange, TotpSecret, UserChange};

/// A value that is set, perhaps to none: two options in each other are one in CBOR.
#[derive(Clone, Debug, Encode, Decode)]
struct Set<T>(#[n(0)] Option<T>);

#[derive(Debug, Encode, Decode)]
pub(crate) struct ChangeToMake {
    #[n(0)]
    expires_s: Option<Set<u64>>,
    #[n(1)]
    sponsor: Option<Set<String>>,
    #[n(2)]
    note: Option<String>,
    #[n(3)]
    groups: Option<Vec<String>>,
    #[n(4)]
    totp: Option<Set<SecretBytes>>,
    #[n(5)]
    addresses: Option<Addresses>,
}

#[derive(Debug, Encode, Decode)]
struct Addresses {
    #[n(0)]
    device: Option<ByteArray<16>>,
    #[n(1)]
    addresses: Vec<IpAddr>,
}

impl From<&UserChange> for ChangeToMake {
    fn from(change: &UserChange) -> Self {
        Self {
            expires_s: change.expires_s.map(Set),
            sponsor: change.sponsor.clone().map(Set),
            note: change.note.clone(),
            groups: change.groups.clone(),
            totp: change
                .totp
                .as_ref()
                .map(|totp| Set(totp.as_ref().map(|secret| SecretBytes(secret.expose().to_vec().into())))),
            addresses: change.addresses.as_ref().map(|change| Addresses {
                device: change.device.map(|device| ByteArray::from(device.0)),
                addresses: change.addresses.clone(),
            }),
        }
    }
}

impl From<ChangeToMake> for UserChange {
    fn from(change: ChangeToMake) -> Self {
        Self {
            expires_s: change.expires_s.map(|set| set.0),
            sponsor: change.sponsor.map(|set| set.0),
            note: change.note,
            groups: change.groups,
            totp: change.totp.map(|set| set.0.map(|secret| TotpSecret::new(secret.0.to_vec()))),
            addresses: change.addresses.map(|Addresses { device, addresses }| AddressChange {
                device: device.map(|device| DeviceId(device.into())),
                addresses,
            }),
        }
    }
}
