//! Records of accounting on their way to a server.
//!
//! INVARIANT: a record is delivered when a server has answered it with the shared secret, and not
//! before.

use std::time::Instant;

use zeroize::Zeroizing;

use super::packet::accounting::{AccountingRequest, check_response};
use super::{Client, RESEND};
use crate::servers::ServerError;
use vpnd_config::source::SourceServer;
use vpnd_ipc::gateway::idp::AccountingRecord;

impl Client {
    /// Sends the record, which the idp process has had since `since`, until this server has it; the
    /// caller limits the time.
    pub(crate) async fn account(
        &self,
        server: &SourceServer,
        record: &AccountingRecord,
        since: Instant,
    ) -> Result<(), ServerError> {
        // The packet that is sent again is the same. With another time it would be another one,
        // with its own number.
        let waited_s = u32::try_from(since.elapsed().as_secs()).unwrap_or(u32::MAX);
        let delay_s = record.delay_s.saturating_add(waited_s);
        let nas_identifier = &self.settings.nas_identifier;
        let secret = self.secret.as_bytes();
        let encode = |id| {
            let request = AccountingRequest { id, record, delay_s, nas_identifier };
            Zeroizing::new(request.encode(secret))
        };
        let check = |packet: &[u8], response: &[u8]| check_response(packet, response, secret);
        self.exchange(server, RESEND, encode, check).await
    }
}
