//! Inner addresses that users have for good.

use std::net::IpAddr;

use vpnd_proto::session::DeviceId;

/// An address that is leased to one user only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedAddress {
    pub address: IpAddr,
    /// The only device that gets it; without one, the first of the user's that logs in.
    pub device: Option<DeviceId>,
}

/// The fixed addresses of a user, or of one device of the user, in place of those before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressChange {
    pub device: Option<DeviceId>,
    pub addresses: Vec<IpAddr>,
}
