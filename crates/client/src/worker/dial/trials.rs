//! The gateway's addresses and what has become of trying them, in words for a person.
//!
//! It decides nothing: ICMP errors, which anybody can forge, are reported here and end no attempt.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;

use vpnd_proto::time::Time;
use vpnd_sys::udp::icmp::{IcmpError, Unreachable};

/// Addresses that are named at most.
const MAX_NAMED: usize = 8;

/// Also what a network does, in the gateway's name, until a person has logged in to it.
const PORTAL: &str = "If this network has a login page (captive portal), open any web page and log in first; under a kill switch or a \
                      full tunnel by `vpnd captive-portal`";

#[derive(Clone, Debug, PartialEq, Eq)]
enum TrialOutcome {
    /// No answer yet.
    Silent,
    /// This machine has no way there.
    NoWay(String),
    /// A host answered, without a connection.
    Failed(String),
    /// A host answered that has not proved to be the gateway.
    Unproven(String),
}

#[derive(Clone, Debug)]
struct Trial {
    address: SocketAddr,
    fate: TrialOutcome,
    icmp: Option<IcmpError>,
}

/// The addresses that were tried since the gateway answered last.
#[derive(Debug, Default)]
pub(super) struct Trials {
    list: Vec<Trial>,
    /// Error of the last lookup.
    lookup: Option<String>,
    /// ICMP errors that the log has.
    logged: BTreeSet<(SocketAddr, Unreachable)>,
    /// Whether the log has all of it.
    reported: bool,
    /// Whether it has what to do about a login page.
    has_advised: bool,
    /// When the log had its last line about an outage whose end it has not.
    logged_at: Option<Time>,
    /// Whether an outage that the log had named has ended, and no address was tried since.
    has_ended: bool,
    /// Results over TCP.
    over_tcp: BTreeSet<String>,
}

impl Trials {
    fn trial(&mut self, address: SocketAddr) -> &mut Trial {
        let place = self.list.iter().position(|trial| trial.address == address).unwrap_or_else(|| {
            self.list.push(Trial { address, fate: TrialOutcome::Silent, icmp: None });
            self.list.len() - 1
        });
        &mut self.list[place]
    }

    /// An attempt begins. An ICMP error of the one before counts until there is another.
    pub(super) fn begin(&mut self, address: SocketAddr) {
        self.has_ended = false;
        self.trial(address).fate = TrialOutcome::Silent;
    }

    pub(super) fn no_way(&mut self, address: SocketAddr, why: String) {
        self.trial(address).fate = TrialOutcome::NoWay(why);
    }

    /// Whether this machine had no way to this address when it was tried last.
    pub(super) fn has_no_way_to(&self, address: SocketAddr) -> bool {
        let tried = self.list.iter().find(|trial| trial.address == address);
        tried.is_some_and(|trial| matches!(trial.fate, TrialOutcome::NoWay(_)))
    }

    pub(super) fn failed(&mut self, address: SocketAddr, why: String) {
        self.trial(address).fate = TrialOutcome::Failed(why);
    }

    pub(super) fn unproven(&mut self, address: SocketAddr, why: String) {
        self.trial(address).fate = TrialOutcome::Unproven(why);
    }

    pub(super) fn lookup_failed(&mut self, why: String) {
        self.lookup = Some(why);
    }

    /// There is no way over TCP.
    pub(super) fn no_tcp(&mut self, why: String) {
        if self.over_tcp.len() < MAX_NAMED {
            self.over_tcp.insert(why);
        }
    }

    pub(super) fn looked_up(&mut self) {
        self.lookup = None;
    }

    /// An ICMP error came. Returns a line for the log, if it is news.
    pub(super) fn icmp(&mut self, now: Time, address: SocketAddr, error: IcmpError) -> Option<String> {
        self.trial(address).icmp = Some(error);
        let news = self.logged.insert((address, error.reason));
        self.logged_at = if news { Some(now) } else { self.logged_at };
        news.then(|| format!("{address}: {}; trying on", Reported(error)))
    }

    /// The gateway has answered. That ends no outage of the log's yet: what was asked of it may
    /// still fail.
    pub(super) fn answered(&mut self) {
        *self = Self { logged_at: self.logged_at, ..Self::default() };
    }

    /// Whether a login page of the network may be in the way, and the log has not said yet what to
    /// do about it.
    pub(super) fn is_advice_due(&self) -> bool {
        !self.has_advised && self.describe(true).is_some() && self.may_be_login_page()
    }

    /// All of it, unless the log has it already or there is nothing. What to do about a login page
    /// is left out unless the tunnel `is_lost`: a person can't do it before.
    pub(super) fn report(&mut self, now: Time, is_lost: bool) -> Option<String> {
        let text = self.describe(is_lost)?;
        let advises = is_lost && self.is_advice_due();
        self.has_advised |= advises;
        let news = !std::mem::replace(&mut self.reported, true) || advises;
        self.logged_at = if news { Some(now) } else { self.logged_at };
        news.then_some(text)
    }

    /// An attempt has failed. Returns whether that is news: not if it began in an outage whose end
    /// the log has.
    pub(super) fn attempt_failed(&mut self, now: Time) -> bool {
        if self.has_ended {
            return false;
        }
        self.logged_at = Some(now);
        true
    }

    /// Whether the outage that the log has named is over: the gateway `is_heard_since` the last
    /// line about it. What comes next is another outage.
    pub(super) fn ends_outage(&mut self, is_heard_since: impl FnOnce(Time) -> bool) -> bool {
        let ends = self.logged_at.is_some_and(is_heard_since);
        if ends {
            *self = Self { has_ended: true, ..Self::default() };
        }
        ends
    }

    /// All of it, if there is anything.
    pub(super) fn describe(&self, is_lost: bool) -> Option<String> {
        let is_empty = self.list.is_empty() && self.lookup.is_none();
        (!is_empty).then(|| Report { trials: self, is_lost }.to_string())
    }

    fn have_no_way(&self) -> bool {
        self.list.iter().all(|trial| matches!(trial.fate, TrialOutcome::NoWay(_)))
    }

    fn is_unproven(&self) -> bool {
        self.list.iter().any(|trial| matches!(trial.fate, TrialOutcome::Unproven(_)))
    }

    fn is_failed(&self) -> bool {
        self.list.iter().any(|trial| matches!(trial.fate, TrialOutcome::Failed(_)))
    }

    fn has_icmp(&self, wanted: impl Fn(&Trial, &IcmpError) -> bool) -> bool {
        self.list.iter().any(|trial| trial.icmp.is_some_and(|error| wanted(trial, &error)))
    }

    /// Whether it looks as it does where a login page is in the way.
    fn may_be_login_page(&self) -> bool {
        let is_refused = self.has_icmp(|_, _| true);
        !self.have_no_way() && !self.is_unproven() && (is_refused || !self.is_failed())
    }

    /// The next thing for a person to do.
    fn advice(&self) -> String {
        let from_itself = |trial: &Trial, error: &IcmpError| {
            error.reason == Unreachable::Port && error.reporter == Some(trial.address.ip())
        };
        if self.have_no_way() {
            let is_ipv4_alone =
                !self.list.is_empty() && self.list.iter().all(|trial| trial.address.is_ipv4());
            let hint = if is_ipv4_alone {
                " If it has IPv6 alone, name the gateway in the profile by its name or its IPv6 address"
            } else {
                ""
            };
            return format!("is this machine connected to a network?{hint}");
        }
        if self.is_unproven() {
            return "the password is sent only to a gateway that has proved its identity".to_owned();
        }
        if self.has_icmp(from_itself) {
            return "the gateway's machine is there: does the gateway run, and at this port?".to_owned();
        }
        if self.has_icmp(|_, _| true) {
            return "this network, or a firewall on the way, refuses UDP to the gateway: try another network, or ask the people who \
                    run this one"
                .to_owned();
        }
        if self.is_failed() {
            return "is it a gateway that answers there?".to_owned();
        }
        let mut ports: Vec<_> = self.list.iter().map(|trial| trial.address.port().to_string()).collect();
        ports.dedup();
        format!(
            "the gateway is down, or this network lets no UDP to port {} through: try another network, or ask the gateway's \
             administrator",
            ports.join(", ")
        )
    }
}

/// All of it as text.
struct Report<'t> {
    trials: &'t Trials,
    is_lost: bool,
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trials, is_lost } = *self;
        f.write_str("no connection to the gateway")?;
        for (number, trial) in trials.list.iter().take(MAX_NAMED).enumerate() {
            write!(f, "{} {}: ", if number == 0 { ":" } else { ";" }, trial.address)?;
            match (&trial.fate, trial.icmp) {
                (TrialOutcome::NoWay(why) | TrialOutcome::Failed(why) | TrialOutcome::Unproven(why), _) => {
                    f.write_str(why)?
                }
                (TrialOutcome::Silent, Some(error)) => Reported(error).fmt(f)?,
                (TrialOutcome::Silent, None) => f.write_str("no answer")?,
            }
        }
        if let Some(more) = trials.list.len().checked_sub(MAX_NAMED).filter(|more| *more > 0) {
            write!(f, "; and {more} more addresses")?;
        }
        for why in trials.over_tcp.iter().chain(&trials.lookup) {
            write!(f, "; {why}")?;
        }
        let advice = trials.advice();
        if is_lost && trials.may_be_login_page() {
            let stop = if advice.ends_with('?') { "" } else { "." };
            return write!(f, " ({advice}{stop} {PORTAL})");
        }
        write!(f, " ({advice})")
    }
}

/// An ICMP error in words.
struct Reported(IcmpError);

impl fmt::Display for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(IcmpError { reason, reporter }) = *self;
        f.write_str(match reason {
            Unreachable::Port => "nothing listens there",
            Unreachable::Host => "the host is not reached",
            Unreachable::Network => "no route on the way",
            Unreachable::Prohibited => "a firewall on the way forbids it",
        })?;
        write!(f, ", by ICMP \"{reason}\"")?;
        reporter.map_or(Ok(()), |reporter| write!(f, " from {reporter}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::ZERO;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn text(trials: &Trials) -> String {
        trials.describe(true).unwrap()
    }

    fn error(reason: Unreachable, reporter: &str) -> IcmpError {
        IcmpError { reason, reporter: Some(reporter.parse().unwrap()) }
    }

    #[test]
    fn silence_names_the_addresses_and_the_port() {
        let mut trials = Trials::default();
        trials.begin(address("192.0.2.1:4433"));
        trials.begin(address("[2001:db8::1]:4433"));
        trials.no_way(address("[2001:db8::1]:4433"), "Network is unreachable".to_owned());
        let report = trials.report(NOW, true).unwrap();
        let wanted = "no connection to the gateway: 192.0.2.1:4433: no answer; [2001:db8::1]:4433: Network is unreachable (the gateway is \
                      down, or this network lets no UDP to port 4433 through: ";
        assert!(report.starts_with(wanted), "{report}");
        assert_eq!(trials.report(NOW, true), None, "the log has it");
        trials.answered();
        assert_eq!(trials.report(NOW, true), None, "all is well");
        trials.begin(address("192.0.2.1:4433"));
        assert!(trials.report(NOW, true).is_some(), "it was not well for long");
    }

    #[test]
    fn the_end_of_an_outage_is_logged_once() {
        let gateway = address("192.0.2.1:4433");
        for is_answered_first in [false, true] {
            let mut trials = Trials::default();
            assert!(!trials.ends_outage(|_| true), "there was none");
            trials.begin(gateway);
            assert!(trials.report(NOW, true).is_some());
            // The attempt that is under way, or the next one, may reach the gateway before data
            // does.
            if is_answered_first {
                trials.answered();
            }
            assert!(!trials.ends_outage(|at| at < NOW), "nothing was heard since");
            assert!(trials.ends_outage(|at| at == NOW));
            assert!(!trials.ends_outage(|_| true), "once is enough");
        }
    }

    #[test]
    fn an_attempt_begun_in_an_outage_logs_nothing_after_its_end() {
        let mut trials = Trials::default();
        let gateway = address("192.0.2.1:4433");
        trials.begin(gateway);
        assert!(trials.report(NOW, true).is_some() && trials.attempt_failed(NOW));
        assert!(trials.ends_outage(|_| true));
        assert_eq!(trials.report(NOW, true), None);
        assert!(!trials.attempt_failed(NOW), "it began before the end");
        trials.begin(gateway);
        // The gateway answers the handshake, and not the request.
        trials.answered();
        assert!(trials.attempt_failed(NOW), "another outage");
        assert!(trials.ends_outage(|at| at == NOW), "whose end the log needs, too");
    }

    #[test]
    fn an_icmp_refusal_is_logged_once_with_its_sender() {
        let mut trials = Trials::default();
        let gateway = address("192.0.2.1:4433");
        trials.begin(gateway);
        let line = trials.icmp(NOW, gateway, error(Unreachable::Prohibited, "198.51.100.1")).unwrap();
        assert_eq!(
            line,
            "192.0.2.1:4433: a firewall on the way forbids it, by ICMP \"administratively prohibited\" from 198.51.100.1; trying on"
        );
        assert_eq!(trials.icmp(NOW, gateway, error(Unreachable::Prohibited, "198.51.100.1")), None);
        assert!(text(&trials).contains("refuses UDP to the gateway"));
        trials.begin(gateway);
        assert!(text(&trials).contains("198.51.100.1"), "{}", text(&trials));

        assert!(trials.icmp(NOW, gateway, error(Unreachable::Port, "192.0.2.1")).is_some());
        assert!(text(&trials).contains("does the gateway run"), "{}", text(&trials));
        // Reported by a router on the way: a firewall's way to refuse.
        trials.icmp(NOW, gateway, error(Unreachable::Port, "198.51.100.1"));
        assert!(text(&trials).contains("refuses UDP"), "{}", text(&trials));
    }

    #[test]
    fn without_any_way_the_machine_is_at_fault() {
        let mut trials = Trials::default();
        trials.no_way(address("192.0.2.1:4433"), "Network is unreachable".to_owned());
        trials.lookup_failed("the name x can't be resolved".to_owned());
        let report = text(&trials);
        assert!(report.contains("can't be resolved (is this machine connected"), "{report}");
        assert!(report.contains("by its name or its IPv6 address"), "{report}");
        trials.no_way(address("[2001:db8::1]:4433"), "Network is unreachable".to_owned());
        assert!(!text(&trials).contains("IPv6 address"), "{}", text(&trials));
    }

    #[test]
    fn a_captive_portal_is_suspected_once_the_tunnel_is_lost() {
        let mut trials = Trials::default();
        assert!(!trials.is_advice_due(), "nothing was tried");
        trials.begin(address("192.0.2.1:4433"));
        assert!(trials.is_advice_due());
        let early = trials.report(NOW, false).unwrap();
        assert!(early.ends_with("administrator)") && trials.is_advice_due(), "{early}");
        assert_eq!(trials.report(NOW, false), None);
        let late = trials.report(NOW, true).unwrap();
        assert!(late.contains("administrator. If this network has a login page"), "{late}");
        assert!(!trials.is_advice_due() && trials.report(NOW, true).is_none(), "once is enough");
        trials.failed(address("192.0.2.1:4433"), "closed".to_owned());
        assert!(!text(&trials).contains("login page"), "something else answers");
        trials.icmp(NOW, address("192.0.2.1:4433"), error(Unreachable::Port, "192.0.2.1"));
        assert!(
            text(&trials).contains("at this port? If this network has a login page"),
            "{}",
            text(&trials)
        );
    }
}
