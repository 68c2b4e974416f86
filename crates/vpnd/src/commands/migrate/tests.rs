//! `vpnd migrate openvpn` with a server's configuration as they are on campuses.

use super::*;

const SERVER: &str = r#"# OpenVPN of the campus
local 192.0.2.1
port 1194
proto udp
dev tun0
topology subnet
server 10.8.0.0 255.255.252.0
server-ipv6 fd86:7670:6e64::/64
ifconfig-pool-persist /var/log/openvpn/ipp.txt

ca ca.crt
cert server.crt
key server.key  # keep it secret
dh none
<tls-crypt>
-----BEGIN OpenVPN Static key V1-----
push "route 172.16.0.0 255.240.0.0"
-----END OpenVPN Static key V1-----
</tls-crypt>
crl-verify crl.pem
plugin /usr/lib/openvpn/openvpn-plugin-auth-pam.so "login"
cipher AES-256-GCM
data-ciphers AES-256-GCM:CHACHA20-POLY1305

push "route 10.20.0.0 255.255.0.0"
push "route 10.30.1.7 255.255.255.255"
push "route-ipv6 2001:db8:20::/48"
push "dhcp-option DNS 10.20.0.53"
push "dhcp-option DOMAIN uni.example"
push "dhcp-option WINS 10.20.0.54"
client-config-dir ccd
client-to-client
keepalive 10 60
max-clients 250
tun-mtu 1400
reneg-sec 3600
inactive 7200
shaper 1250000
user nobody
group nogroup
persist-key
persist-tun
status /run/openvpn/status.log
verb 3
client-connect "/etc/openvpn/connect.sh it"
frobnicate yes
"#;

/// The server above with these files of users.
fn migrated(server: &str, users: &[(&str, &str)]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("server.conf");
    fs::write(&file, server).unwrap();
    fs::create_dir(directory.path().join("ccd")).unwrap();
    for (name, text) in users {
        fs::write(directory.path().join("ccd").join(name), text).unwrap();
    }
    let mut out = Vec::new();
    openvpn(&MigrateOpenvpnArgs { file, ccd: None }, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn a_campus_servers_configuration_becomes_one_that_is_good() {
    let out = migrated(
        SERVER,
        &[
            ("ann", "ifconfig-push 10.8.0.50 255.255.252.0\nifconfig-ipv6-push fd86:7670:6e64::50/64\n"),
            ("bob", "push \"route 10.40.0.0 255.255.0.0\"\niroute 192.168.7.0 255.255.255.0\ndisable\n"),
            ("carl", "ifconfig-push 10.9.0.2 255.255.255.0\n"),
            ("DEFAULT", "push \"route 10.50.0.0 255.255.0.0\"\n"),
            ("o'neill; reboot", "ifconfig-push 10.8.0.51 255.255.252.0\ndisable\n"),
        ],
    );
    let config = ServerConfig::parse(&out, "server.toml", Path::new("/")).unwrap();
    assert_eq!(config.server.listen, "192.0.2.1:1194".parse().unwrap());
    assert_eq!(config.tunnel.name, "tun0");
    let tls = [&config.tls.client_ca, &config.tls.client_ca_key].map(|path| path.as_deref());
    assert_eq!(tls, ["/ca.pem", "/ca-key.pem"].map(|path| Some(Path::new(path))), "as 'vpnd init' has them");
    assert_eq!(
        config.tunnel.pools().map(|net| net.to_string()).collect::<Vec<_>>(),
        ["10.8.0.0/22", "fd86:7670:6e64::/64"]
    );
    let routes: Vec<_> = config.push.routes.iter().map(ToString::to_string).collect();
    assert_eq!(
        routes,
        ["10.20.0.0/16", "10.30.1.7/32", "2001:db8:20::/48"],
        "what stands inline is no directive"
    );
    assert_eq!(config.push.dns, ["10.20.0.53".parse::<std::net::IpAddr>().unwrap()]);
    assert!(config.policy.client_to_client);
    assert_eq!((config.limits.max_sessions, config.limits.max_sessions_per_user), (250, 1));
    assert_eq!((config.timeouts.keepalive.as_secs(), config.timeouts.dead_peer_timeout.as_secs()), (10, 60));
    assert_eq!(config.timeouts.idle_timeout.map(|idle| idle.as_secs()), Some(7_200));
    assert_eq!((config.tunnel.mtu, config.limits.rates.session.down), (1_400, 1_250_000));
    for line in [
        "line 21: plugin /usr/lib/openvpn/openvpn-plugin-auth-pam.so login: no plugins",
        "line 30: push dhcp-option WINS 10.20.0.54: clients are given name servers and domains alone",
        "line 45: client-connect /etc/openvpn/connect.sh it: no scripts",
        "line 46: frobnicate yes: not known here",
        "bob, line 1: push route 10.40.0.0 255.255.0.0: a [[profile]] with users = [\"bob\"]",
        "bob, line 2: iroute 192.168.7.0 255.255.255.0: a client is a host",
        "bob, line 3: disable: vpnd user disable bob",
        "DEFAULT, line 1: push route",
        "vpnd user modify ann --address 10.8.0.50\n",
        "vpnd user modify 'o'\\''neill; reboot' --address 10.8.0.51\n",
        "o'neill; reboot, line 2: disable: vpnd user disable 'o'\\''neill; reboot'",
        "vpnd user modify ann --address fd86:7670:6e64::50\n",
        "vpnd user modify carl --address 10.9.0.2   # refused: it is not one that clients get out of 10.8.0.0/22",
    ] {
        assert!(out.contains(&format!("#   {line}")), "{line}\n{out}");
    }
    for unneeded in ["persist-key", "cipher", "tls-crypt", "verb", "topology"] {
        assert!(!out.contains(&format!(": {unneeded}")), "{unneeded} is no loss:\n{out}");
    }
}

#[test]
fn what_can_not_become_a_configuration_is_named() {
    let out = migrated(
        "proto tcp-server\ndev tap0\nserver 10.8.0.0 255.0.255.0\nport 99999\npush \"redirect-gateway def1\"\n",
        &[],
    );
    for part in [
        "line 1: proto tcp-server: the port is UDP's; for networks that block it: TCP 443 by relays in [portal]",
        "line 2: dev tap0: Ethernet",
        "255.0.255.0 is no netmask",
        "no port",
    ] {
        assert!(out.contains(part), "{part}\n{out}");
    }
    assert!(out.contains("routes = [\"0.0.0.0/0\"]") && out.contains("'vpnd check' will find:"), "{out}");
}

#[test]
fn what_other_servers_have_is_translated_or_named() {
    let out = migrated(
        "\u{feff}port 443\r\nproto udp6\r\nserver 10.9.0.0 255.255.255.0 nopool # a comment\r\n\
         ifconfig-ipv6-pool fd00::100/64\r\nport-share 127.0.0.1 8443\r\npush 'route 10.1.0.0 255.255.0.0 vpn_gateway 10'\r\n\
         push \"route 192.0.2.7 255.255.255.255 net_gateway\"\r\npush \"dns server 0 address 10.1.0.53 fd20::53\"\r\n\
         push \"dns search-domains uni.example\"\r\nauth-gen-token 43200\r\nping 15\r\nping-restart 90\r\nserver-bridge\r\n\
         setenv opt x\r\nclient-config-dir elsewhere\r\nconfig more.conf\r\n<ca>\r\nnever closed\r\nport 1\r\n",
        &[],
    );
    let config = ServerConfig::parse(&out, "server.toml", Path::new("/")).unwrap();
    assert_eq!(config.server.listen.port(), 443, "{out}");
    let texts = |nets: &[ipnet::IpNet]| nets.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(texts(&config.push.routes), ["10.1.0.0/16"], "what goes past the tunnel is not sent into it");
    assert_eq!((config.push.dns.len(), config.push.search.len()), (2, 1));
    assert_eq!(config.timeouts.session_lifetime.map(|life| life.as_secs()), Some(43_200));
    assert_eq!((config.timeouts.keepalive.as_secs(), config.timeouts.dead_peer_timeout.as_secs()), (15, 90));
    for line in [
        "line 4: ifconfig-ipv6-pool fd00::100/64: [tunnel] pool_v6 is a whole network",
        "line 5: port-share 127.0.0.1 8443: vpnd has its UDP port for itself",
        "line 7: push route 192.0.2.7 255.255.255.255 net_gateway: a route past the tunnel",
        "line 13: server-bridge: Ethernet is not carried",
        "line 16: config more.conf: that file is not read",
        "line 17: <ca>: its end is missing: nothing below this line was read",
        "client-config-dir: can't read ",
    ] {
        assert!(out.contains(&format!("#   {line}")), "{line}\n{out}");
    }
    assert!(!out.contains("setenv"), "{out}");
    let client = migrated("client\nremote vpn.example.org 1194\n", &[]);
    assert!(
        client.contains("line 1: client: this is a client's configuration, and not the server's"),
        "{client}"
    );
}

#[test]
fn words_have_quotes_escapes_and_comments() {
    for (text, expected) in [
        ("push \"route 10.0.0.0\" # all", vec!["push", "route 10.0.0.0"]),
        ("plugin '/a b/c' \"d \\\" e\"", vec!["plugin", "/a b/c", "d \" e"]),
        ("; nothing", vec![]),
        ("a#b \"\"", vec!["a#b", ""]),
        ("open \"never closed", vec!["open", "never closed"]),
        ("end\\", vec!["end"]),
    ] {
        assert_eq!(openvpn::words(text), expected, "{text}");
    }
}

#[test]
fn nothing_in_a_file_begins_a_line_of_its_own() {
    let out =
        migrated("push \"dhcp-option DOMAIN a\\\"]\\nroutes = [\"\nclient-connect \u{1b}[2J\u{85}\n", &[]);
    assert!(!out.contains('\u{1b}') && !out.contains('\u{85}'), "{out:?}");
    assert!(out.lines().filter(|line| line.starts_with("routes")).count() == 1, "{out}");
}
