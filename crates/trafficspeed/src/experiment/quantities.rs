//! Quantities of every load and of the machine beneath it, as rows of the one table.

use super::figures::Figures;
use super::outcome::CpuUse;
use crate::load::delays::DelaySummary;
use crate::observation::{Quantity, Rounds};
use crate::stats::quantile;

pub const RECEIVED: Quantity = Quantity::rate("received");
pub const SENT: Quantity = Quantity::rate("sent");
pub const PACKETS: Quantity = Quantity::new("packets received", "1/s").decimals(0);
pub const TRANSACTIONS: Quantity = Quantity::new("transactions", "1/s").decimals(0);
pub const MESSAGES: Quantity = Quantity::count("packets sent");
pub const LOST: Quantity = Quantity::new("lost", "%").decimals(3);
pub const MISSED: Quantity = Quantity::new("missed", "%").decimals(2);
pub const DELIVERED: Quantity = Quantity::new("delivered", "%").decimals(1);
pub const DUPLICATES: Quantity = Quantity::count("duplicates");
pub const OUT_OF_ORDER: Quantity = Quantity::count("out of order");
pub const UNANSWERED: Quantity = Quantity::count("unanswered");
pub const JITTER: Quantity = Quantity::time("jitter");
pub const DELAY_50: Quantity = Quantity::time("delay p50");
pub const DELAY_95: Quantity = Quantity::time("delay p95");
pub const DELAY_99: Quantity = Quantity::time("delay p99");
pub const DELAY_MOST: Quantity = Quantity::time("longest delay");
pub const VARIATION_50: Quantity = Quantity::time("variation p50");
pub const VARIATION_95: Quantity = Quantity::time("variation p95");
pub const VARIATION_99: Quantity = Quantity::time("variation p99");
pub const LEFT_LATE: Quantity = Quantity::time("left late p99");
pub const PAGES: Quantity = Quantity::count("pages");
pub const PAGE_50: Quantity = Quantity::time("page p50");
pub const PAGE_95: Quantity = Quantity::time("page p95");
pub const SEGMENT: Quantity = Quantity::new("TCP segment", "bytes");

pub const GATEWAY_CPU: Quantity = Quantity::new("gateway CPU", "%");
pub const CLIENT_CPU: Quantity = Quantity::new("client CPU", "%");
pub const GENERATOR_CPU: Quantity = Quantity::new("generator CPU", "%");
pub const BUSY: Quantity = Quantity::new("busy", "%").decimals(1);
pub const STEAL: Quantity = Quantity::new("steal", "%").decimals(1).together(Rounds::Most);
pub const OTHERS: Quantity = Quantity::new("others", "%").decimals(1).together(Rounds::Most);

/// Datagrams that kernels dropped at full sockets: the VPN's, and the generators'.
pub const VPN_DROPS: Quantity = Quantity::count("dropped at the VPN's sockets");
pub const GENERATOR_DROPS: Quantity = Quantity::count("dropped at generators");

/// The quantities of a load.
pub fn of_load(figures: &Figures) -> Vec<(Quantity, Option<f64>)> {
    let at = |delays: Option<&DelaySummary>, share: f64| delays.map(|delays| delays.at(share));
    let count = |count: Option<u64>| count.map(|count| count as f64);
    let page = |share: f64| quantile(&figures.pages_ms, share).map(|ms| ms * 1e3);
    let (delay, variation) = (figures.delay_of(), figures.variation.as_ref());
    let pages = figures.pages_ms.len() as f64;
    vec![
        (RECEIVED, Some(figures.received_bits_per_second)),
        (SENT, Some(figures.sent_bits_per_second)),
        (PACKETS, figures.received_per_second),
        (TRANSACTIONS, figures.transactions_per_second),
        (MESSAGES, count(figures.messages)),
        (LOST, figures.lost_percent),
        (MISSED, figures.missed_percent),
        (DELIVERED, figures.delivered_percent),
        (DUPLICATES, count(figures.duplicates)),
        (OUT_OF_ORDER, count(figures.reordered)),
        (UNANSWERED, count(figures.timeouts)),
        (JITTER, figures.jitter_us),
        (DELAY_50, delay.map(|delay| delay.p50_us)),
        (DELAY_95, at(delay, 0.95)),
        (DELAY_99, delay.map(|delay| delay.p99_us)),
        (DELAY_MOST, delay.map(|delay| delay.max_us)),
        (VARIATION_50, at(variation, 0.5)),
        (VARIATION_95, at(variation, 0.95)),
        (VARIATION_99, at(variation, 0.99)),
        (LEFT_LATE, at(figures.lateness.as_ref(), 0.99)),
        (PAGES, (pages > 0.0).then_some(pages)),
        (PAGE_50, page(0.5)),
        (PAGE_95, page(0.95)),
        (SEGMENT, figures.mss.map(f64::from)),
    ]
}

/// Expenses of the machine meanwhile: parts in percent of one core, and what others took in percent
/// of the machine.
pub fn of_cpu(cpu: Option<&CpuUse>) -> Vec<(Quantity, Option<f64>)> {
    let Some(cpu) = cpu else { return Vec::new() };
    let share = |seconds: f64| (cpu.seconds > 0.0).then(|| 100.0 * seconds / cpu.seconds);
    vec![
        (GATEWAY_CPU, share(cpu.gateway)),
        (CLIENT_CPU, share(cpu.clients)),
        (GENERATOR_CPU, share(cpu.generators)),
        (BUSY, cpu.busy_percent()),
        (STEAL, cpu.steal_percent()),
        (OTHERS, cpu.foreign_percent()),
    ]
}

/// Datagrams that were dropped at sockets, `generators` of them at those of the generators.
pub fn of_drops(all: u64, generators: u64) -> [(Quantity, Option<f64>); 2] {
    let vpn = all.saturating_sub(generators);
    [(VPN_DROPS, Some(vpn as f64)), (GENERATOR_DROPS, Some(generators as f64))]
}
