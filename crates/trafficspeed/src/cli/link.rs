//! How the lab's links are made worse on purpose, as arguments of every command that makes a lab.

use std::time::Duration;

use clap::Args;

use super::{Switch, SystemArgs};
use crate::experiment::link_check::LinkCheckPlan;
use crate::lab::LinkSettings;
use crate::lab::emulator::Emulation;
use crate::lab::emulator::impairment::{Impairment, QueueLimit, Rate, Share, Span};
use crate::lab::topology::Topology;
use crate::load::congestion::CongestionControl;

/// The lab's links.
#[derive(Clone, Debug, Args)]
pub struct LabLinksArgs {
    /// Where the measuring hosts are: the client's machine and the gateway (or second client)
    /// themselves, or a host behind each of them, which makes these routers.
    #[arg(long, value_enum, default_value = "direct")]
    pub topology: Topology,
    /// Segmentation offload of the lab's links; off is closer to a wire.
    #[arg(long, value_enum, default_value = "on")]
    pub offload: Switch,
    /// MTU of the lab's links in bytes.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1280..=65_535))]
    pub mtu: u32,
}

impl LabLinksArgs {
    /// The links, not emulated.
    pub fn links(&self) -> LinkSettings {
        let (offload, mtu, topology) = (self.offload == Switch::On, self.mtu, self.topology);
        LinkSettings { offload, mtu, topology, ..LinkSettings::default() }
    }
}

/// Emulated links between every client and the gateway, below any VPN. Each setting holds for both
/// directions unless the one for the direction down, from the gateway to the client, is given too.
#[derive(Clone, Debug, Default, Args)]
pub struct LinkArgs {
    /// One-way delay, for example 16ms.
    #[arg(long, value_name = "TIME")]
    pub delay: Option<Span>,
    /// One-way delay of the direction down.
    #[arg(long, value_name = "TIME")]
    pub delay_down: Option<Span>,
    /// Largest deviation of a packet's delay; the order is kept.
    #[arg(long, value_name = "TIME")]
    pub jitter: Option<Span>,
    /// Jitter of the direction down.
    #[arg(long, value_name = "TIME")]
    pub jitter_down: Option<Span>,
    /// Share of packets that are lost, for example 1%.
    #[arg(long, value_name = "PERCENT")]
    pub loss: Option<Share>,
    /// Loss of the direction down.
    #[arg(long, value_name = "PERCENT")]
    pub loss_down: Option<Share>,
    /// Share of packets that come late and are overtaken.
    #[arg(long, value_name = "PERCENT")]
    pub reorder: Option<Share>,
    /// Reordering of the direction down.
    #[arg(long, value_name = "PERCENT")]
    pub reorder_down: Option<Share>,
    /// Time by which these arrive later.
    #[arg(long, value_name = "TIME", default_value = "1ms")]
    pub reorder_late: Span,
    /// Rate of the link, for example 100mbit.
    #[arg(long, value_name = "RATE")]
    pub rate: Option<Rate>,
    /// Rate of the direction down.
    #[arg(long, value_name = "RATE")]
    pub rate_down: Option<Rate>,
    /// Longest queue of a link of limited rate, for example 100ms (of the rate), 256kb or 1000p; 50
    /// ms of the rate by default.
    #[arg(long, value_name = "SIZE")]
    pub queue: Option<QueueLimit>,
    /// Queue of the direction down.
    #[arg(long, value_name = "SIZE")]
    pub queue_down: Option<QueueLimit>,
    /// Seed of everything that happens by chance on the links.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub link_seed: u64,
}

impl LinkArgs {
    /// The emulation asked for; none if nothing was.
    pub fn emulation(&self) -> Option<Emulation> {
        let down = Impairment {
            delay: self.delay_down.or(self.delay).unwrap_or_default(),
            jitter: self.jitter_down.or(self.jitter).unwrap_or_default(),
            loss: self.loss_down.or(self.loss).unwrap_or_default(),
            reorder: self.reorder_down.or(self.reorder).unwrap_or_default(),
            reorder_late: self.reorder_late,
            rate: self.rate_down.or(self.rate),
            queue: self.queue_down.or(self.queue),
        };
        let up = Impairment {
            delay: self.delay.unwrap_or_default(),
            jitter: self.jitter.unwrap_or_default(),
            loss: self.loss.unwrap_or_default(),
            reorder: self.reorder.unwrap_or_default(),
            rate: self.rate,
            queue: self.queue,
            ..down
        };
        let idle = Impairment { reorder_late: self.reorder_late, ..Impairment::default() };
        (up != idle || down != idle).then_some(Emulation { up, down, seed: self.link_seed })
    }
}

/// Measuring the emulated links alone.
#[derive(Debug, Args)]
pub struct LinkCheckArgs {
    #[command(flatten, next_help_heading = "Emulated links")]
    pub link: LinkArgs,
    /// Segmentation offload of the link's ends.
    #[arg(long, value_enum, default_value = "on")]
    pub offload: super::Switch,
    /// MTU in bytes.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1280..=65_535))]
    pub mtu: u32,
    /// Seconds of probes, and then of load.
    #[arg(short = 't', long, default_value_t = 5.0, value_parser = super::seconds)]
    pub seconds: f64,
    /// Probes per second, each way.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub probes: u32,
    /// Print JSON instead of the table.
    #[arg(short = 'J', long)]
    pub json: bool,
}

impl LinkCheckArgs {
    /// The plan. Without arguments about the link, that of a delay of nothing.
    pub fn plan(&self) -> LinkCheckPlan {
        let emulation = self.link.emulation().unwrap_or_else(|| Emulation::delay(Span { ns: 0 }));
        let offload = self.offload == super::Switch::On;
        LinkCheckPlan {
            links: LinkSettings {
                offload,
                mtu: self.mtu,
                emulation: Some(emulation),
                ..LinkSettings::default()
            },
            emulation,
            duration: Duration::from_secs_f64(self.seconds),
            probes_per_second: self.probes,
        }
    }
}

impl SystemArgs {
    /// The links of the lab, with the share of the CPU if there is but one.
    pub fn links(&self, congestion: CongestionControl) -> LinkSettings {
        let gateway_cpu = match self.gateway_cpu[..] {
            [only] => Some(only),
            _ => None,
        };
        let emulation = self.link.emulation();
        LinkSettings { emulation, congestion, gateway_cpu, ..self.lab.links() }
    }

    /// The link where only one share of the CPU is measured.
    ///
    /// # Errors
    /// In words, for several.
    pub fn links_of_one(&self, congestion: CongestionControl) -> Result<LinkSettings, String> {
        if self.gateway_cpu.len() > 1 {
            return Err("--gateway-cpu: give one; --clients and `compare` measure several".into());
        }
        Ok(self.links(congestion))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        link: LinkArgs,
    }

    fn read(line: &str) -> Option<Emulation> {
        let words = std::iter::once("x").chain(line.split_whitespace());
        Program::try_parse_from(words).unwrap().link.emulation()
    }

    #[test]
    fn nothing_is_emulated_by_default() {
        assert_eq!(read(""), None);
        assert_eq!(read("--link-seed 5 --reorder-late 2ms"), None);
    }

    #[test]
    fn an_option_holds_both_ways_and_its_down_form_one_way() {
        let emulation = read("--delay 16ms --loss 1% --delay-down 30ms --rate-down 20mbit").unwrap();
        assert_eq!((emulation.up.delay.ns, emulation.down.delay.ns), (16_000_000, 30_000_000));
        assert_eq!((emulation.up.loss.ppm, emulation.down.loss.ppm), (10_000, 10_000));
        assert_eq!((emulation.up.rate.is_some(), emulation.down.rate.is_some()), (false, true));
        let only_down = read("--delay-down 1ms").unwrap();
        assert_eq!((only_down.up.delay.ns, only_down.down.delay.ns), (0, 1_000_000));
    }

    #[test]
    fn a_wrong_unit_is_answered_with_a_right_one() {
        for (line, expected) in
            [("--delay 16", "16ms"), ("--loss 2", "1%"), ("--rate 100mb", "100mbit"), ("--queue 5", "1000p")]
        {
            let words = std::iter::once("x").chain(line.split_whitespace());
            let error = Program::try_parse_from(words).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
