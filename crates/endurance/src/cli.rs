//! The command line of `vpnd-endurance`.

pub mod capacity;
pub mod sessions;
pub mod soak;
pub mod wireguard;

use clap::{Parser, Subcommand};

use trafficspeed::own_processes::OwnProcess;

/// Measures vpnd's gateway alone, in a laboratory of network namespaces on this machine (needs
/// root).
///
/// The sessions are real, but few processes hold thousands of them. To compare vpnd with other
/// VPNs: trafficspeed.
#[derive(Debug, Parser)]
#[command(name = "vpnd-endurance", version = trafficspeed::VERSION)]
pub struct Cli {
    /// The measurement.
    #[command(subcommand)]
    pub command: Command,
}

/// The measurements.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Open many sessions from few processes, and see what they cost the gateway.
    Sessions(sessions::SessionsArgs),
    /// Measure what active sessions cost the gateway as they grow, by a load that takes little of
    /// the machine.
    Capacity(capacity::CapacityArgs),
    /// Let many sessions come, go, move and be killed for hours, and watch the gateway.
    Soak(soak::SoakArgs),
    /// Measure what WireGuard servers carry and what it costs them, by clients that take little of
    /// the machine: vpnd's gateway compared with others.
    Wireguard(wireguard::WireGuardArgs),
    /// Many sessions in one process (used by the program itself).
    #[command(hide = true)]
    Swarm(sessions::SwarmArgs),
    /// A process of the laboratory.
    #[command(flatten)]
    Own(OwnProcess),
}
