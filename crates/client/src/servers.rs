//! The gateway's addresses while a client runs.
//!
//! INVARIANT: parent and worker name an address by its place in a list that both make by this rule,
//! from the same beginning.

use vpnd_config::profile::{ServerAddress, joined};

/// Addresses at most, whatever a gateway says of itself.
const MAX: usize = 64;

/// `servers`, and behind them those of `new` that are others: places stay as they are while the
/// client runs. From its next start on new addresses are in front of the profile's.
pub(crate) fn with_new(servers: &[ServerAddress], new: &[ServerAddress]) -> Vec<ServerAddress> {
    let mut all = joined(servers, new);
    all.truncate(MAX.max(servers.len()));
    all
}
