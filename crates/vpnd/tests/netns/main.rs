//! The real binaries in network namespaces: one file for each behaviour, on the laboratory of
//! [`lab`].
//!
//! ```text
//!   client 1 ──198.18.1.0/24──┐
//!   client 2 ──198.18.2.0/24──┤ net ──198.18.0.0/24── gateway ──10.200.0.0/24── campus
//!   client n ──198.18.n.0/24──┘
//! ```
//!
//! Each box is a network namespace and has IPv6 as well (`fd18:n::/64`, `fd20::/64`). `net` is the
//! Internet between clients and gateway: a router that can lose, delay, repeat and record what goes
//! through it ([`relay`]).
//!
//! Invariants: tests share nothing, so they run at once; nothing outlives its test, not even one
//! that was killed; no test needs anything outside of its namespaces and its temporary directory.
//! This program knows the binaries only by what a person sees of them: arguments, files, exit
//! codes, output, packets.

mod access_profiles;
mod accounts;
mod acme;
mod audit;
mod backup;
mod batches;
mod battery;
mod blocked;
mod border;
mod busy_poll;
mod captive_portal;
mod certificates;
mod chromium;
mod cleanup;
mod client;
mod client_service;
mod congestion;
mod conntrack;
mod continuity;
mod crash;
mod database;
mod database_work;
mod distrusted;
mod doctor;
mod drain;
mod factors;
mod families;
mod firewall;
mod fleet;
mod flood;
mod foreign;
mod forged_journal;
mod forger;
mod forgery;
mod fragments;
mod freeradius;
mod full;
mod gateway;
mod healing;
mod held_store;
mod hostile_networks;
mod identity;
mod kept;
mod kill_switch;
mod kill_switch_ends;
mod kill_switch_required;
mod kill_switch_restart;
mod lab;
mod laboratory;
mod lanes;
mod limits;
mod local_network;
mod login;
mod logs;
mod machine;
mod managers;
mod memory;
mod middleboxes;
mod moved;
mod mutate;
mod names;
mod namespace;
mod narrow;
mod nat64;
mod netcheck;
mod openid;
mod order;
mod ordinary;
mod other_firewalls;
mod outages;
mod over_tcp;
mod own_profiles;
mod permission;
mod persistent;
mod port_blocks;
mod portal;
mod privileges;
mod process;
mod protocol;
mod readme;
mod refusal;
mod relay;
mod reload;
mod renewal;
mod resolved;
mod resolver;
mod revocation_list;
mod routing;
mod saved_password;
mod sessions;
mod shortage;
mod shrink;
mod slapd;
mod spoken;
mod state_directory;
mod steering;
mod taken_over;
mod theft;
mod traffic;
mod transfer;
mod tunnels;
mod unit;
mod upgrade;
mod wireguard;
mod without_ipv6;
mod wrong_clock;
