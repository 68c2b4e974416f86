//! The kill switch of a client: while it is in force, nothing leaves this machine or enters it but
//! by the tunnel, as the tunnel's own datagrams, or as what a link needs for itself.
//!
//! INVARIANT: what passes is named, all else is dropped, whatever another table accepts. The
//! tunnel's own datagrams are known by the mark of their sockets and the user who has opened these,
//! the one as whom the client's parent runs (root): a program may have the capability that marks
//! need (CAP_NET_RAW), and not that user. No address that was looked up, and so no name server,
//! decides what passes.
//! INVARIANT: it is replaced as a whole in one transaction. Its chains drop what no rule accepts,
//! so while the kernel has the new ones and the old ones hooked in, more is dropped and not less.
//! INVARIANT: the one exception that opens meanwhile, for a browser's user at a captive portal, has
//! a time at which the kernel ends it, whatever has become of processes; who replaces the rules
//! ends it, too.
//!
//! It says nothing of what does not pass these hooks: frames of a bridge or of a macvlan device,
//! and packet sockets, which only privileged processes have (DHCP clients among them).

use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::guard::NAME_PORTS;
use super::{NftError, Script, Version, checked, remove_script, run, set};
use crate::change::Layer;
use crate::nft_listing::Listing;
use crate::tool::{NFT, ToolError};

/// Name of its table, one for each network namespace. No tunnel's table has it.
pub const KILL_SWITCH_TABLE: &str = "vpndkillswitch";

/// The users whose browser passes for a while.
const BROWSERS: &str = "captive_portal";

/// Multicast that stays on the link.
const LINK_MULTICAST_V4: &str = "{ 224.0.0.0/24, 239.255.255.250, 255.255.255.255 }";
const LINK_MULTICAST_V6: &str = "{ fe80::/10, ff02::/16 }";

/// The packets that pass a kill switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KillSwitchRules {
    /// Name of the TUN device.
    pub tunnel: String,
    /// TCP ports of this machine that others reach outside the tunnel.
    pub inbound: Vec<u16>,
    /// Networks whose hosts this machine reaches, and that reach it, outside the tunnel; but for
    /// their name servers.
    pub local: Vec<LocalNetwork>,
}

/// A network that passes a kill switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalNetwork {
    /// Name of the interface by which it passes: by another one its packets would be on their way
    /// to a router.
    pub interface: String,
    pub network: IpNet,
}

/// How answers to the tunnel's own datagrams are known.
#[derive(Clone, Copy, PartialEq)]
enum Answers {
    /// They arrive at a socket with its mark.
    BySocket,
    /// They belong to a connection; nothing but what passes begins one.
    ByConnection,
}

impl KillSwitchRules {
    /// Puts it in force, in place of an earlier one.
    ///
    /// # Errors
    /// [`NftError`]; nothing has changed then.
    pub async fn apply(&self) -> Result<(), NftError> {
        match run(&self.script(Answers::BySocket)?).await {
            // A kernel may be built without what finds a packet's socket.
            Err(NftError::Tool(ToolError::Refused { .. })) => run(&self.script(Answers::ByConnection)?).await,
            applied => applied,
        }
    }

    /// Ends whatever kill switch is in force in this network namespace; returns whether there was
    /// one.
    ///
    /// # Errors
    /// [`NftError`]; it is in force as before then.
    pub async fn remove() -> Result<bool, NftError> {
        // Where its state can't be read it is still removed.
        let was_there = !matches!(Self::in_force().await, Ok(None));
        run(&remove_script(KILL_SWITCH_TABLE)).await?;
        Ok(was_there)
    }

    /// Lets what this user's processes begin over TCP, and their questions for names, pass the kill
    /// switch that is in force; returns whether one is. The kernel ends it after this time.
    ///
    /// # Errors
    /// [`NftError`]; nothing has changed then.
    pub async fn open_for(user: u32, time: Duration) -> Result<bool, NftError> {
        let script = format!(
            "flush set inet {KILL_SWITCH_TABLE} {BROWSERS}\n\
             add element inet {KILL_SWITCH_TABLE} {BROWSERS} {{ {user} timeout {}s }}\n",
            time.as_secs()
        );
        if_there(run(&script).await)
    }

    /// Ends [`KillSwitchRules::open_for`], if that is not over.
    ///
    /// # Errors
    /// [`NftError`]; the kernel still ends it.
    pub async fn end_opening() -> Result<(), NftError> {
        if_there(run(&format!("flush set inet {KILL_SWITCH_TABLE} {BROWSERS}\n")).await).map(drop)
    }

    /// Whether [`KillSwitchRules::open_for`] is in force for this user.
    ///
    /// # Errors
    /// [`NftError`] if that can't be read.
    pub async fn is_open_for(user: u32) -> Result<bool, NftError> {
        let element = format!("{{ {user} }}");
        let words = ["get", "element", "inet", KILL_SWITCH_TABLE, BROWSERS, &element];
        if_there(NFT.run(&words.map(str::to_owned), "").await.map_err(NftError::from))
    }

    /// Reads what is in force.
    ///
    /// # Errors
    /// [`NftError`] if it can't be read.
    pub async fn in_force() -> Result<Option<Listing>, NftError> {
        Listing::read(KILL_SWITCH_TABLE).await
    }

    /// Checks that the rules are valid, so that they can be set.
    ///
    /// # Errors
    /// [`NftError::BadName`].
    pub fn check(&self) -> Result<(), NftError> {
        checked(&self.tunnel).map(drop)
    }

    fn script(&self, answers: Answers) -> Result<String, NftError> {
        let mut script = Script::of_table(KILL_SWITCH_TABLE);
        let tunnel = checked(&self.tunnel)?;
        let marks: Vec<String> = Layer::all().map(|layer| format!("{:#x}", layer.mark())).collect();
        let marks = set(marks).unwrap_or_default();
        script.line(&format!("set {BROWSERS} {{"));
        script.line("type uid");
        script.line("flags timeout");
        script.line("}");
        self.leaving(&mut script, tunnel, &marks);
        self.arriving(&mut script, tunnel, &marks, answers);
        script.line("chain passing {");
        script.line("type filter hook forward priority filter; policy drop;");
        script.line(&format!("oifname \"{tunnel}\" accept"));
        script.line(&format!("iifname \"{tunnel}\" ct state established,related accept"));
        script.line("}");
        script.line("}");
        Ok(remove_script(KILL_SWITCH_TABLE) + &script.text)
    }

    /// Rules for what this machine sends.
    fn leaving(&self, script: &mut Script, tunnel: &str, marks: &str) {
        script.line("chain leaving {");
        script.line("type filter hook output priority filter; policy drop;");
        script.line(&format!("oifname {{ \"lo\", \"{tunnel}\" }} accept"));
        // Raw sockets can't be ours, and some programs let any user choose their mark (ping).
        let user = rustix::process::geteuid().as_raw();
        script.line(&format!("meta l4proto {{ tcp, udp }} meta mark {marks} meta skuid {user} accept"));
        // Captive portals have pages at many ports.
        script.line(&format!("meta l4proto tcp meta skuid @{BROWSERS} accept"));
        script.line(&format!("udp dport 53 meta skuid @{BROWSERS} accept"));
        if let Some(ports) = set(self.inbound.clone()) {
            // Connections that others have begun. A connection that this machine has begun before
            // tracking began could look so, but not from one of these ports.
            script.line(&format!("tcp sport {ports} ct direction reply accept"));
        }
        // A lease is asked for at all servers of the link: one that is named could be anywhere.
        script.line("ip daddr 255.255.255.255 udp sport 68 udp dport 67 accept");
        script.line("ip6 saddr fe80::/10 ip6 daddr ff02::1:2 udp sport 546 udp dport 547 accept");
        script.line(
            "ip6 hoplimit 255 icmpv6 type { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert } accept",
        );
        script.line(
            "ip6 daddr ff02::/16 icmpv6 type { mld-listener-report, mld-listener-done, mld2-listener-report } accept",
        );
        self.local(script, "oifname", "daddr");
        script.line("}");
    }

    /// Rules for what arrives for this machine.
    fn arriving(&self, script: &mut Script, tunnel: &str, marks: &str, answers: Answers) {
        script.line("chain arriving {");
        script.line("type filter hook input priority filter; policy drop;");
        script.line(&format!("iifname {{ \"lo\", \"{tunnel}\" }} accept"));
        match answers {
            // nft itself knows the names of the first three; the fourth's is in /etc/protocols,
            // which small systems lack.
            Answers::BySocket => {
                script.line(&format!("meta l4proto {{ tcp, udp, icmp, 58 }} socket mark {marks} accept"))
            }
            Answers::ByConnection => script.line("ct state established,related accept"),
        }
        // Answers alone: the kernel finds the socket of a connection before it asks here.
        script.line(&format!("meta l4proto {{ tcp, udp }} meta skuid @{BROWSERS} accept"));
        if let Some(ports) = set(self.inbound.clone()) {
            script.line(&format!("tcp dport {ports} accept"));
        }
        script.line("udp sport 67 udp dport 68 accept");
        script.line("ip6 saddr fe80::/10 udp sport 547 udp dport 546 accept");
        // Redirects are none of these: a neighbour could send the tunnel's datagrams elsewhere.
        script.line(
            "ip6 hoplimit 255 icmpv6 type { nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert } accept",
        );
        script.line("ip6 saddr fe80::/10 icmpv6 type mld-listener-query accept");
        self.local(script, "iifname", "saddr");
        script.line("}");
    }

    /// Rules for the local networks, which are at the end `side` of a packet, behind the interface
    /// that `link` says.
    fn local(&self, script: &mut Script, link: &str, side: &str) {
        if self.local.is_empty() {
            return;
        }
        if side == "daddr" {
            // A router passes questions on in clear. The tunnel's own have passed by their mark.
            script.line(&format!("meta l4proto {{ tcp, udp }} th dport {NAME_PORTS} drop"));
        }
        for LocalNetwork { interface, network } in &self.local {
            // The kernel permits names that mean something else here: behind those nothing passes.
            let Ok(interface) = checked(interface) else { continue };
            let version = if network.addr().is_ipv4() { Version::V4 } else { Version::V6 };
            let network = network.trunc();
            script.line(&format!("{link} \"{interface}\" {} {side} {network} accept", version.keyword()));
        }
        script.line(&format!("ip6 {side} {LINK_MULTICAST_V6} accept"));
        if side == "daddr" {
            script.line(&format!("ip daddr {LINK_MULTICAST_V4} accept"));
        }
    }
}

/// Whether the table is there that this was about.
fn if_there(outcome: Result<(), NftError>) -> Result<bool, NftError> {
    match outcome {
        Ok(()) => Ok(true),
        Err(NftError::Tool(ToolError::Refused { message, .. }))
            if message.contains("No such file or directory") =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{in_namespace_async, run as run_program};

    fn rules() -> KillSwitchRules {
        KillSwitchRules {
            tunnel: "vpn0".to_owned(),
            inbound: vec![22],
            local: vec![local("up0", "192.168.1.0/24"), local("up0", "fd77::/64")],
        }
    }

    fn local(interface: &str, network: &str) -> LocalNetwork {
        LocalNetwork { interface: interface.to_owned(), network: network.parse().unwrap() }
    }

    #[test]
    fn the_kernel_adds_replaces_and_removes_the_kill_switch() {
        in_namespace_async(async || {
            assert!(KillSwitchRules::in_force().await.unwrap().is_none());
            rules().apply().await.unwrap();
            let full = KillSwitchRules::in_force().await.unwrap().expect("it is in force");
            rules().apply().await.unwrap();
            assert!(KillSwitchRules::in_force().await.unwrap().as_ref() == Some(&full), "twice is once");
            let strict = KillSwitchRules { inbound: Vec::new(), local: Vec::new(), ..rules() };
            strict.apply().await.unwrap();
            assert!(KillSwitchRules::in_force().await.unwrap().as_ref() != Some(&full));
            run_program("nft", &["add rule inet vpndkillswitch leaving accept"]);
            strict.apply().await.unwrap();
            assert!(KillSwitchRules::remove().await.unwrap(), "there was one");
            assert!(!KillSwitchRules::remove().await.unwrap(), "there was none");
        });
    }

    #[test]
    fn a_kill_switch_works_without_packet_sockets() {
        in_namespace_async(async || {
            let script = rules().script(Answers::ByConnection).unwrap();
            assert!(!script.contains("socket mark"));
            run(&script).await.unwrap();
        });
    }

    #[test]
    fn every_chain_drops_what_no_rule_accepts_and_no_rule_accepts_all() {
        let script = rules().script(Answers::BySocket).unwrap();
        assert_eq!(script.matches("policy drop;").count(), 3);
        assert!(!script.contains("policy accept"));
        for line in script.lines().map(str::trim) {
            assert!(line != "accept" && !line.contains("redirect"), "{line}");
        }
    }

    #[test]
    fn names_are_asked_nowhere_but_in_the_tunnel() {
        let script = rules().script(Answers::BySocket).unwrap();
        let at = |text: &str| script.find(text).unwrap_or_else(|| panic!("{text}: {script}"));
        let closed = at("th dport { 53, 853 } drop");
        assert!(at("meta mark") < closed && closed < at("ip daddr 192.168.1.0/24 accept"), "{script}");
    }

    /// Whether a datagram with a tunnel's mark leaves, from a socket that this user has opened with
    /// all capabilities for the network.
    fn is_sent(user: u32) -> bool {
        // SAFETY: it changes nothing but the number that this thread's new files and sockets belong
        // to.
        let open = |user| unsafe { libc::setfsuid(user) };
        open(user);
        let socket = std::net::UdpSocket::bind("192.0.2.1:0").unwrap();
        open(0);
        socket2::SockRef::from(&socket).set_mark(Layer::OLDEST.mark()).unwrap();
        match socket.send_to(b"hello", "192.0.2.2:4433") {
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}");
                false
            }
            Ok(_) => true,
        }
    }

    #[test]
    fn the_tunnels_mark_is_of_no_use_to_another_user() {
        in_namespace_async(async || {
            run_program("ip", &["link", "add", "vp0", "type", "veth"]);
            run_program("ip", &["address", "add", "192.0.2.1/24", "dev", "vp0"]);
            run_program("ip", &["link", "set", "vp0", "up"]);
            assert!(is_sent(0) && is_sent(65_534), "without a kill switch");
            rules().apply().await.unwrap();
            assert!(is_sent(0), "the client's own");
            assert!(!is_sent(65_534));
        });
    }

    /// Whether a datagram of this user to this port of another machine leaves.
    fn leaves(user: u32, port: u16) -> bool {
        // SAFETY: it changes nothing but the number that this thread's new files and sockets belong
        // to.
        let open = |user| unsafe { libc::setfsuid(user) };
        open(user);
        let socket = std::net::UdpSocket::bind("192.0.2.1:0").unwrap();
        open(0);
        !socket
            .send_to(b"hello", ("192.0.2.2", port))
            .is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    }

    #[test]
    fn a_browsers_user_passes_for_a_while() {
        const BROWSER: u32 = 61_580;
        in_namespace_async(async || {
            run_program("ip", &["link", "add", "vp0", "type", "veth"]);
            run_program("ip", &["address", "add", "192.0.2.1/24", "dev", "vp0"]);
            run_program("ip", &["link", "set", "vp0", "up"]);
            let open = async |s| KillSwitchRules::open_for(BROWSER, Duration::from_secs(s)).await.unwrap();
            assert!(!open(60).await, "there is none to open");
            KillSwitchRules::end_opening().await.unwrap();
            rules().apply().await.unwrap();
            let before = KillSwitchRules::in_force().await.unwrap();
            assert!(!leaves(BROWSER, 53));
            assert!(open(60).await && KillSwitchRules::is_open_for(BROWSER).await.unwrap());
            assert!(
                leaves(BROWSER, 53) && !leaves(BROWSER, 443),
                "questions for names, and no other datagram"
            );
            assert!(!leaves(BROWSER + 1, 53) && !leaves(0, 53), "nobody else's");
            assert!(KillSwitchRules::in_force().await.unwrap() == before, "it is no change of the rules");
            KillSwitchRules::end_opening().await.unwrap();
            assert!(!KillSwitchRules::is_open_for(BROWSER).await.unwrap() && !leaves(BROWSER, 53));
            assert!(open(60).await);
            rules().apply().await.unwrap();
            assert!(!KillSwitchRules::is_open_for(BROWSER).await.unwrap(), "who puts it in force closes it");
            assert!(open(1).await);
            let late = std::time::Instant::now() + Duration::from_secs(30);
            while KillSwitchRules::is_open_for(BROWSER).await.unwrap() {
                assert!(std::time::Instant::now() < late, "the kernel ends it");
                std::thread::sleep(Duration::from_millis(50));
            }
            assert!(!leaves(BROWSER, 53));
        });
    }

    #[test]
    fn a_local_network_passes_by_its_own_interface_alone() {
        in_namespace_async(async || {
            run_program("ip", &["link", "add", "vp0", "type", "veth"]);
            run_program("ip", &["address", "add", "192.0.2.1/24", "dev", "vp0"]);
            run_program("ip", &["link", "set", "vp0", "up"]);
            for (interface, passes) in [("vp0", true), ("vp1", false), ("vp*", false), ("\" accept", false)] {
                let rules = KillSwitchRules { local: vec![local(interface, "192.0.2.0/24")], ..rules() };
                rules.apply().await.unwrap();
                assert_eq!(leaves(0, 7), passes, "{interface}");
            }
        });
    }

    #[test]
    fn names_that_mean_something_else_are_refused() {
        for name in ["", "vpn*", "a\" accept", "vpn0\naccept", "a234567890123456"] {
            let rules = KillSwitchRules { tunnel: name.to_owned(), ..rules() };
            assert!(matches!(rules.check(), Err(NftError::BadName(_))), "{name:?}");
            assert!(rules.script(Answers::BySocket).is_err(), "{name:?}");
        }
    }
}
