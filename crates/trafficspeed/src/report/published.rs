//! What the experiment's authors found, as text beside our own results. Nothing here is ever a result.

/// The publication.
pub const SOURCE: &str = "Sato, Nakai, Yamaguchi, Itano (University of Tsukuba), 2006: Performance measurement \
experiments for a development of a high-performance and flexible network resource allocable VPN system";

/// The set-up and findings, one sentence each.
pub const FINDINGS: [&str; 5] = [
    "One VPN server and 2 to N clients on a switch; 32 TCP connections per pair of clients, half each way, random \
     data, all pairs at once for 60 s; with and without encryption.",
    "PacketiX VPN 2.0, OpenVPN 2.0 (UDP) and MS-PPTP on a 64-bit Opteron 270 with 10 Gbit Ethernet and a 32-bit \
     Xeon 3.2 GHz, on Windows and Linux.",
    "Without encryption, throughput was 1 to 2 times that with encryption.",
    "Every curve peaked at 8 clients and then fell: the overhead of managing sessions grows with the clients.",
    "PacketiX was the fastest everywhere, OpenVPN the slowest.",
];
