//! Text about a measurement of several clients at once: how many they are, and what each of
//! them had.

use crate::experiment::figures::Figures;
use crate::experiment::generate::{LoadCampaign, LoadRun};
use crate::lab::topology::Topology;
use crate::stats::{Spread, jain};
use crate::unit::{rate, significant};

/// Stands below the table of several clients.
pub const DEFINITIONS: &str = "\
Of several clients: throughput, messages and transactions are sums over all of them, lost and delivered are of these sums, jitter \
is the mean.
Delays are each client's own, since percentiles do not add up; those of each client are in the JSON report (`by_client`).
An offered rate is that of all clients together, split equally.";

/// Names the clients, if there are several.
pub fn title(campaign: &LoadCampaign) -> Option<String> {
    let clients = campaign.settings.clients;
    let place = match campaign.environment.topology {
        Some(Topology::Routers) => "on the host behind the gateway",
        Some(Topology::Direct) | None => "at the gateway",
    };
    (clients > 1).then(|| format!("{clients} clients at once, each with its own partner {place}"))
}

/// For each load what the clients of a run had, in words; nothing of one client.
pub fn shares(campaign: &LoadCampaign, run: &LoadRun) -> Vec<String> {
    let line = |at: usize| -> Option<String> {
        let figures: Vec<&Figures> = run.by_client.iter().filter_map(|own| own.get(at)).collect();
        let name = &campaign.settings.tasks.get(at)?.name;
        Some(format!("{name}: {}", share(&figures)?))
    };
    (0..run.figures.len()).filter_map(line).collect()
}

fn share(clients: &[&Figures]) -> Option<String> {
    let answered: Option<Vec<f64>> = clients.iter().map(|figures| figures.transactions_per_second).collect();
    let (values, show): (Vec<f64>, fn(f64) -> String) = match answered {
        Some(answered) => (answered, |count| format!("{count:.0} transactions/s")),
        None => {
            let received = clients.iter().map(|figures| figures.received_bits_per_second);
            (received.collect(), |bits| rate(None, bits))
        }
    };
    let spread = Spread::of(&values)?;
    let idle = values.iter().filter(|value| **value == 0.0).count();
    let idle =
        if idle > 0 && spread.high > 0.0 { format!("; {idle} of them nothing") } else { String::new() };
    let fairness = jain(&values).map_or_else(String::new, |index| format!(" (Jain's index {index:.3})"));
    let late: Vec<f64> = clients.iter().filter_map(|figures| Some(figures.delay_of()?.p99_us)).collect();
    let delays = Spread::of(&late).map_or_else(String::new, |late| {
        format!(
            "; 99 % of its delays were at most {} to {} µs",
            significant(late.low),
            significant(late.high)
        )
    });
    Some(format!("each client had {} to {}{idle}{fairness}{delays}", show(spread.low), show(spread.high)))
}

#[cfg(test)]
mod tests {
    use super::super::{document, samples};
    use super::*;
    use crate::load::delays::DelaySummary;

    /// Three runs of two systems with two clients, of which the second has three times as much as
    /// the first.
    fn campaign() -> LoadCampaign {
        let mut campaign = samples::campaign(4e9);
        campaign.settings.clients = 2;
        for run in &mut campaign.runs {
            let client = |bits: f64, p99_us: f64| Figures {
                received_bits_per_second: bits,
                delay: Some(DelaySummary { p99_us, ..DelaySummary::default() }),
                ..Figures::default()
            };
            run.by_client = vec![vec![client(1e9, 250.0)], vec![client(3e9, 900.0)]];
            (run.figures[0].delay, run.figures[0].variation) = (None, None);
        }
        campaign
    }

    #[test]
    fn several_clients_are_named_and_what_each_had_is_said() {
        let mut campaign = campaign();
        let text = document(&campaign, None).text(true, true);
        assert!(
            text.contains("IPv4. 2 clients at once, each with its own partner at the gateway.\n"),
            "{text}"
        );
        let share = "UDP from the client: each client had 1.00 Gbit/s to 3.00 Gbit/s (Jain's index 0.800); 99 % of its delays were \
                     at most 250 to 900 µs";
        assert_eq!(text.matches(share).count(), campaign.runs.len(), "{text}");
        assert!(text.contains(DEFINITIONS) && !text.contains("p99"), "{text}");
        let page = document(&campaign, None).page();
        assert!(
            page.contains("trafficspeed udp, 2 clients") && page.contains("percentiles do not add up"),
            "{page}"
        );
        assert!(page.contains("each client had 1.00 Gbit/s"), "{page}");
        campaign.runs[0].by_client[0][0].received_bits_per_second = 0.0;
        let said = shares(&campaign, &campaign.runs[0]).remove(0);
        assert!(said.contains("; 1 of them nothing (Jain's index 0.500)"), "{said}");
        campaign.environment.topology = Some(Topology::Routers);
        assert!(title(&campaign).unwrap().ends_with("on the host behind the gateway"));
        for run in &mut campaign.runs {
            let clients = run.by_client.iter_mut().flatten();
            clients.for_each(|figures| figures.transactions_per_second = Some(90.0));
        }
        assert!(
            shares(&campaign, &campaign.runs[0])[0].contains("had 90 transactions/s to 90 transactions/s")
        );
    }

    #[test]
    fn one_client_is_reported_without_a_table_of_clients() {
        let campaign = samples::campaign(4e9);
        assert_eq!((title(&campaign), shares(&campaign, &campaign.runs[0])), (None, Vec::new()));
        let text = document(&campaign, None).text(true, true);
        assert!(!text.contains("clients at once") && !text.contains("Of several clients"), "{text}");
        assert!(!document(&campaign, None).page().contains("Of several clients"));
    }
}
