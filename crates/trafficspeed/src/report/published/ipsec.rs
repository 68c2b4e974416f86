//! The publications on experiment 2, as text to compare our own results with; never a result.

use super::Figures;

pub const SOURCE: &str = "KAME IPsec on FreeBSD, 1999: Pentium II 450 MHz, 100 Mbit/s Ethernet, transport mode, \
manual keys. AH is HMAC-SHA1 (authentication only), ESP is 3DES-CBC (encryption only)";

pub const FIGURES: [Figures; 5] = [
    Figures {
        caption: "TCP stream (netperf, messages of 4096 bytes, socket buffers of 57344 / 32768 bytes, 60 s), Mbit/s",
        head: &["", "none", "AH", "ESP", "AH+ESP"],
        rows: &[
            &["IPv4", "60.86 / 60.57", "23.10 / 23.01", "10.87 / 10.90", "7.74 / 7.75"],
            &["IPv6", "58.21 / 58.21", "24.20 / 24.43", "10.88 / 10.90", "7.65 / 7.68"],
        ],
    },
    Figures {
        caption: "UDP stream (netperf, messages of 4096 / 1024 bytes), Mbit/s",
        head: &["", "none", "AH", "ESP", "AH+ESP"],
        rows: &[
            &["IPv4", "93.98 / 93.74", "30.73 / 23.83", "11.96 / 11.32", "8.98 / 8.09"],
            &["IPv6", "93.16 / 92.37", "34.03 / 25.83", "11.94 / 11.32", "9.01 / 8.12"],
        ],
    },
    Figures {
        caption: "Request and response, transactions per second",
        head: &["", "none", "AH", "ESP", "AH+ESP"],
        rows: &[
            &["IPv4, TCP 1/1", "3454.84", "1404.26", "1940.77", "1164.21"],
            &["IPv6, TCP 1/1", "3586.17", "1550.57", "2048.07", "1144.48"],
            &["IPv4, UDP 1/1", "3929.57", "1650.64", "2498.62", "1358.40"],
            &["IPv6, UDP 1/1", "3955.94", "1657.83", "2446.02", "1339.44"],
            &["IPv4, UDP 516/4", "2559.89", "988.27", "839.26", "575.49"],
            &["IPv6, UDP 516/4", "2551.06", "1047.74", "832.67", "576.00"],
        ],
    },
    Figures {
        caption: "One TCP transfer (DBS, socket buffers of 32768 bytes, 8192 messages of 8192 bytes)",
        head: &["", "none", "AH", "ESP"],
        rows: &[
            &["Mbit/s, idle machine", "65.18", "26.01", "10.94"],
            &["Mbit/s, with a CPU hog (load average 1.00)", "66.12", "13.67", "5.70"],
            &["mean delay, s", "0.015", "0.007", "0.003"],
        ],
    },
    Figures {
        caption: "Digital video over UDP/IPv6 between two campuses",
        head: &["", ""],
        rows: &[
            &["load", "about 13 Mbit/s, about 3000 packets/s of 500 bytes"],
            &["lost with ESP", "about 30 %"],
            &["HMAC-SHA1 and keyed SHA1, 3DES and Blowfish", "20 % apart"],
        ],
    },
];
