//! Lines of the log about logins: sessions that begin, refusals by this process, and peers that
//! break the protocol. A login that the auth process has refused is in the log already: that
//! process knows the reason.
//!
//! INVARIANT: one login is one line; the number of lines about those who have not logged in is
//! bounded, and those left out are counted.

use std::net::SocketAddr;
use std::time::Duration;

use vpnd_crypto::Suite;
use vpnd_proto::control::{Code, Message, UserName};
use vpnd_proto::session::DeviceId;

use vpnd_ipc::admin::status::canonical;
use vpnd_ipc::gateway::auth::{ProfileName, SourceName};
use vpnd_sys::log_limit::LogLimit;

/// Lines about refusals at once, and after that one for each interval; as many about closed
/// connections.
const REFUSALS: u32 = 100;
const REFUSAL_INTERVAL: Duration = Duration::from_millis(200);

/// The client of a login whose credentials proved good.
pub(super) struct LoggedIn {
    pub(super) user: UserName,
    pub(super) device: DeviceId,
    /// Where its user is known.
    pub(super) source: SourceName,
    /// The access profile that the auth process has decided.
    pub(super) profile: Option<ProfileName>,
}

pub(crate) struct LoginLog {
    refusals: LogLimit,
    closed: LogLimit,
}

impl Default for LoginLog {
    fn default() -> Self {
        let limit = || LogLimit::new(REFUSALS, REFUSAL_INTERVAL);
        Self { refusals: limit(), closed: limit() }
    }
}

impl LoginLog {
    /// The control plane has answered a login.
    pub(super) fn answered(&self, outer: SocketAddr, who: &LoggedIn, answer: &Message) {
        match answer {
            Message::Established(established) => {
                let outer = canonical(outer);
                let (network, suite) = (&established.network, Suite::from_id(established.suite));
                tracing::info!(
                    user = &*who.user,
                    source = &*who.source,
                    profile = who.profile.as_deref(),
                    %outer,
                    ipv4 = network.ipv4.map(tracing::field::display),
                    ipv6 = network.ipv6.map(tracing::field::display),
                    device = %who.device,
                    session = %established.session,
                    suite = suite.map(tracing::field::display),
                    "session began"
                );
            }
            Message::Refused(refused) => {
                self.refused(outer, &who.user, Some(&who.source), who.device, refused.code);
            }
            _ => {}
        }
    }

    /// This process has refused a login, of whichever user it names.
    pub(super) fn refused(
        &self,
        outer: SocketAddr,
        user: &UserName,
        source: Option<&SourceName>,
        device: DeviceId,
        code: Code,
    ) {
        if self.refusals.admits() {
            let (source, outer) = (source.map(|source| &**source), canonical(outer));
            let reason = code.name();
            tracing::info!(user = &**user, source, %outer, %device, reason, "login refused");
        }
    }

    /// A connection was closed because its peer broke the protocol. It has proved its address, so
    /// the line can name it.
    pub(super) fn closed(&self, outer: SocketAddr, reason: &dyn std::fmt::Display) {
        if self.closed.admits() {
            tracing::info!(outer = %canonical(outer), %reason, "control connection closed");
        }
    }

    /// Logs the number of lines left out since the last call.
    pub(super) fn report(&self) {
        self.refusals.report("login refused");
        self.closed.report("control connection closed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes that end sessions or refuse an attach, those for which auth writes the line, by a name
    /// of its own, and the one that waits.
    const NO_REASONS: [Code; 11] = [
        Code::Bye,
        Code::Credentials,
        Code::Token,
        Code::Disabled,
        Code::Kicked,
        Code::Idle,
        Code::Superseded,
        Code::Shutdown,
        Code::Lifetime,
        Code::Factor,
        Code::Pending,
    ];

    /// Codes of sessions that are over.
    const ENDS: [Code; 11] = [
        Code::Bye,
        Code::Kicked,
        Code::Disabled,
        Code::Certificate,
        Code::Idle,
        Code::Lifetime,
        Code::Superseded,
        Code::Token,
        Code::NoProfile,
        Code::Drain,
        Code::Internal,
    ];

    /// The table of OPERATIONS.md with this first column.
    fn table(column: &str) -> &'static str {
        let operations = include_str!("../../../../../docs/OPERATIONS.md");
        let (_, table) = operations.split_once(&format!("| {column} |")).unwrap();
        table.split_once("\n\n").unwrap().0
    }

    #[test]
    fn each_reason_of_a_sessions_end_is_documented() {
        let table = table("reason of a session's end");
        for code in ENDS {
            assert!(table.contains(&format!("`{}`", code.name())), "{}", code.name());
        }
    }

    #[test]
    fn each_reason_of_this_process_is_documented() {
        let table = table("reason of a refusal");
        for code in Code::KNOWN {
            let documented = table.contains(&format!("`{}`", code.name()));
            let may_be_one = !NO_REASONS.contains(code);
            assert!(documented || !may_be_one, "not in the table of OPERATIONS.md: {}", code.name());
        }
    }
}
