//! Reports of the auth process, in the words of a status.

use super::{AccountingHealth, PoolUsage, PortalHealth, SourceHealth};
use crate::admin::status;

impl From<PoolUsage> for status::Pool {
    fn from(PoolUsage { pool, taken, total }: PoolUsage) -> Self {
        Self { pool: pool.to_string(), taken, total }
    }
}

impl From<PortalHealth> for status::Portal {
    fn from(PortalHealth { up, visits, certificate_left_s }: PortalHealth) -> Self {
        Self { up, visits, relays: 0, certificate_left_s }
    }
}

impl From<SourceHealth> for status::Source {
    fn from(health: SourceHealth) -> Self {
        Self {
            name: health.name.to_string(),
            up: health.up,
            last_answer_s: health.last_answer_s,
            silent_s: health.silent_s,
            accounting: health
                .accounting
                .map(|AccountingHealth { sent, lost, waiting }| status::Accounting { sent, lost, waiting }),
            missing: health.missing,
        }
    }
}
