//! Every picture of a campaign, by name: for the page, and as separate files.

use std::path::Path;

use super::chart::{
    BarChart, BoxChart, BoxSeries, Horizontal, LineChart, Measure, Point, Series, standalone,
};
use super::files::{self, FilesError};
use super::page::Picture;
use crate::experiment::outcome::observations::{
    COMMUNICATION, GATEWAY_COST, GOODPUT, ROUND_TRIP_50, ROUND_TRIP_99, VPN_COST, case,
};
use crate::experiment::outcome::{Campaign, Interval, rate};
use crate::observation::{Observations, Quantity};
use crate::stats::Spread;
use crate::system::{AGAIN, Cipher, Kind, Subject};

/// Writes every picture into `directory`, and returns the names of the files.
pub fn write(pictures: &[Picture], directory: &Path) -> Result<Vec<String>, FilesError> {
    let file = |picture: &Picture| {
        let name = format!("{}.svg", picture.name);
        files::write(directory, &name, standalone::svg(&picture.svg).as_bytes()).map(|()| name)
    };
    pictures.iter().map(file).collect()
}

/// The pictures of a campaign in the order of a paper; those without data are left out.
pub fn pictures(campaign: &Campaign) -> Vec<Picture> {
    let (table, mut order) = (campaign.observations(), campaign.labels());
    // Systems that could not be measured must not take a style from those that were.
    let found = table.summaries();
    order.retain(|label| !label.ends_with(AGAIN) && found.iter().any(|one| one.system == *label));
    let is_measured = |clients: &u32| found.iter().any(|one| one.case == case(*clients));
    let counts = campaign.counts().into_iter().filter(is_measured).collect();
    let view = View { campaign, table, order, counts };
    let mut first = [view.goodput(), view.ratio(), view.cost(), view.gateway_cost()];
    if campaign.is_gateway_limited() {
        first.rotate_right(1);
    }
    first
        .into_iter()
        .chain(view.round_trips())
        .chain([view.repeats(), view.over_time()])
        .chain(view.communication())
        .flatten()
        .collect()
}

struct View<'a> {
    campaign: &'a Campaign,
    table: Observations,
    order: Vec<String>,
    /// Numbers of clients of which there is something to draw.
    counts: Vec<u32>,
}

impl View<'_> {
    fn style(&self, label: &str) -> usize {
        self.order.iter().position(|known| known == label).unwrap_or(0)
    }

    fn is_plain(&self, label: &str) -> bool {
        is_plain(self.campaign, label)
    }

    fn goodput(&self) -> Option<Picture> {
        let measure = Measure::higher_is_better("goodput, Gbit/s");
        let value = |label: &str, case: &str| Some(gigabits(self.table.spread(label, case, GOODPUT)?));
        let svg = self.over_clients("Goodput over clients", measure, value)?;
        let caption = format!("Bytes received by all clients, each byte once, per second. {}", self.ranges());
        Some(Picture::new("goodput", "Goodput", &caption, svg))
    }

    /// The figures of the experiment's authors, in their quantity: with encryption, and without.
    fn communication(&self) -> [Option<Picture>; 2] {
        let words = format!(
            "As the experiment's authors count: bytes received plus bytes sent by all clients, per second, so about twice the \
             goodput. {}",
            self.ranges()
        );
        let is_bare = |label: &str| {
            let run = self.campaign.runs.iter().find(|run| run.label == label);
            let is_bare = |subject: Subject| subject.kind != Kind::None && subject.cipher == Cipher::None;
            run.and_then(|run| run.subject).is_some_and(is_bare)
        };
        let figure = |name: &str, title: &str, wanted: bool| {
            // Plain routing is in both.
            let is_shown = |label: &str| self.is_plain(label) || is_bare(label) == wanted;
            if !self.order.iter().any(|label| is_bare(label) == wanted && !self.is_plain(label)) {
                return None;
            }
            let svg = self.over_clients(
                &format!("{title} over clients"),
                Measure::higher_is_better("communication throughput, Gbit/s"),
                |label, case| {
                    let spread = self.table.spread(label, case, COMMUNICATION);
                    Some(gigabits(spread.filter(|_| is_shown(label))?))
                },
            )?;
            Some(Picture::new(name, title, &words, svg))
        };
        [
            figure("communication", "Communication throughput", false),
            figure("communication-bare", "Communication throughput without encryption", true),
        ]
    }

    fn ratio(&self) -> Option<Picture> {
        let plain = self.campaign.plain()?;
        let svg = self.over_clients(
            "Share of plain routing",
            Measure::higher_is_better("goodput, share of plain routing"),
            |label, case| self.table.ratio((label, plain), case, GOODPUT).filter(|_| !self.is_plain(label)),
        )?;
        let caption = format!(
            "Goodput divided by that of plain routing in the same round at the same number of clients. {}",
            self.ranges()
        );
        Some(Picture::new("ratio", "Share of plain routing", &caption, svg))
    }

    fn cost(&self) -> Option<Picture> {
        let svg = self.over_clients(
            "CPU time per Gbit of all VPN processes",
            Measure::lower_is_better("CPU seconds per Gbit"),
            |label, case| self.table.spread(label, case, VPN_COST),
        )?;
        let caption = format!(
            "CPU seconds (user and system) of the gateway's and all clients' VPN processes per Gbit of goodput that \
             went through the tunnel: lower is cheaper. Plain routing has no process to count. {}",
            self.ranges()
        );
        Some(Picture::new("cost", "Cost of a Gbit, all VPN processes", &caption, svg))
    }

    fn gateway_cost(&self) -> Option<Picture> {
        let svg = self.over_clients(
            "CPU time per Gbit of the gateway",
            Measure::lower_is_better("CPU seconds per Gbit"),
            |label, case| self.table.spread(label, case, GATEWAY_COST),
        )?;
        let caption = "The same of the gateway's processes alone.";
        Some(Picture::new("cost-gateway", "Cost of a Gbit at the gateway", caption, svg))
    }

    fn round_trips(&self) -> [Option<Picture>; 2] {
        let one = |name: &str, which: &str, quantity: Quantity| {
            let title = format!("Round trips under load, {which}");
            let svg = self.over_clients(
                &format!("{title}, over clients"),
                Measure::lower_is_better("round trip, ms"),
                |label, case| Some(self.table.spread(label, case, quantity)?.scaled(1e3)),
            )?;
            let caption =
                format!("Of small requests that the first pair sends while the load runs. {}", self.ranges());
            Some(Picture::new(name, &title, &caption, svg))
        };
        [one("round-trip", "median", ROUND_TRIP_50), one("round-trip-99", "99 %", ROUND_TRIP_99)]
    }

    fn ranges(&self) -> &'static str {
        if self.table.rounds_per_case() > 1 {
            "Medians of the rounds, with whiskers from their lowest to their highest."
        } else {
            "One run each, so no spread is shown."
        }
    }

    /// A curve over the client counts, or bars if there is but one.
    fn over_clients(
        &self,
        title: &str,
        measure: Measure,
        value: impl Fn(&str, &str) -> Option<Spread>,
    ) -> Option<String> {
        let point =
            |label: &str, clients: u32| Some(Point::of(f64::from(clients), value(label, &case(clients))?));
        if let [only] = self.counts[..] {
            let bar = |label: &String| Some((label.clone(), self.style(label), point(label, only)?));
            let bars = self.order.iter().filter_map(bar).collect();
            let measure = measure.under(&format!("at {only} clients"));
            return BarChart { title: title.into(), measure, bars }.svg();
        }
        let series = |label: &String| {
            let points = self.counts.iter().filter_map(|clients| point(label, *clients));
            Series { label: label.clone(), style: self.style(label), points: points.collect() }
        };
        LineChart {
            title: title.into(),
            x_label: "clients (two are a pair)".into(),
            measure,
            horizontal: Horizontal::Doubling(self.counts.iter().copied().map(f64::from).collect()),
            series: self.order.iter().map(series).collect(),
        }
        .svg()
    }

    fn repeats(&self) -> Option<Picture> {
        let counts = &self.counts;
        let values = |label: &str, clients: u32| -> Vec<f64> {
            let rates = self.table.values(label, &case(clients), GOODPUT);
            rates.into_iter().map(|rate| rate / 1e9).collect()
        };
        let series: Vec<BoxSeries> = self
            .order
            .iter()
            .map(|label| BoxSeries {
                label: label.clone(),
                style: self.style(label),
                groups: counts.iter().map(|clients| values(label, *clients)).collect(),
            })
            .filter(|series| series.groups.iter().any(|group| group.len() > 1))
            .collect();
        let svg = BoxChart {
            title: "Goodput of every repeat".into(),
            x_label: "clients (two are a pair)".into(),
            measure: Measure::higher_is_better("goodput, Gbit/s"),
            groups: counts.iter().map(u32::to_string).collect(),
            series,
        }
        .svg()?;
        let caption = "Each dot is one run. The marker and the line are the median, whiskers go from the lowest to the \
                       highest; of four runs or more a box goes from the first to the third quartile. Bytes received only.";
        Some(Picture::new("repeats", "Spread of the repeats", caption, svg))
    }

    fn over_time(&self) -> Option<Picture> {
        let whole = || self.campaign.runs.iter().filter(|run| run.is_whole());
        let most = whole().map(|run| run.clients).max()?;
        let settings = &self.campaign.settings;
        let first = |label: &String| {
            let run =
                whole().find(|run| run.label == *label && run.clients == most && run.intervals.len() > 2)?;
            Some(Series {
                label: label.clone(),
                style: self.style(label),
                points: by_second(run.whole_seconds(settings)),
            })
        };
        let series: Vec<Series> = self.order.iter().filter_map(first).collect();
        let end = series.iter().map(|series| series.points.len()).max().unwrap_or(0);
        let svg = LineChart {
            title: "Goodput over time".into(),
            x_label: format!("seconds since the end of the warm-up, {most} clients"),
            measure: Measure::higher_is_better("goodput, Gbit/s"),
            horizontal: Horizontal::Linear(end as f64),
            series,
        }
        .svg()?;
        let caption =
            "Goodput of every second, all clients together, first run at the largest number of clients.";
        Some(Picture::new("time", "Over time", caption, svg))
    }
}

/// Whether the runs called `label` are of plain routing.
pub(super) fn is_plain(campaign: &Campaign, label: &str) -> bool {
    let run = campaign.runs.iter().find(|run| run.label == label);
    run.and_then(|run| run.subject).is_some_and(|subject| subject.kind == Kind::None)
}

fn by_second(seconds: &[Interval]) -> Vec<Point> {
    seconds
        .iter()
        .zip(1_u32..)
        .map(|(interval, second)| Point {
            x: f64::from(second),
            y: rate(interval.received, 1.0) / 1e9,
            range: None,
        })
        .collect()
}

fn gigabits(spread: Spread) -> Spread {
    spread.scaled(1e9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::samples;

    fn names(campaign: &Campaign) -> Vec<String> {
        pictures(campaign).into_iter().map(|picture| picture.name).collect()
    }

    #[test]
    fn every_picture_that_has_data_is_drawn() {
        let mut campaign = samples::campaign();
        let all = [
            "goodput",
            "ratio",
            "cost",
            "cost-gateway",
            "round-trip",
            "round-trip-99",
            "repeats",
            "communication",
        ];
        assert_eq!(names(&campaign), all, "two seconds make no time series");
        campaign.settings.seconds = 5.0;
        for run in &mut campaign.runs {
            run.intervals = vec![run.intervals[0]; 5];
        }
        assert_eq!(names(&campaign), [&all[..7], &["time"], &all[7..]].concat());
        let drawn: Vec<String> = pictures(&campaign).into_iter().map(|picture| picture.svg).collect();
        assert!(drawn[2].contains("lower is better") && drawn[0].contains("higher is better"));
        campaign.runs.retain(|run| run.label != "plain routing" && run.repeat == 1);
        assert_eq!(
            names(&campaign),
            ["goodput", "cost", "cost-gateway", "round-trip", "round-trip-99", "time", "communication"]
        );
        campaign.runs.clear();
        assert_eq!(names(&campaign), [""; 0]);
    }

    #[test]
    fn runs_without_encryption_have_their_own_communication_picture() {
        let mut campaign = samples::campaign();
        for clients in [2, 4, 8] {
            let mut run = samples::run(Kind::Vpnd, clients, 1, 1_500_000_000);
            run.subject = Some(Subject::new(Kind::Vpnd, Cipher::None));
            run.label = "vpnd, no encryption".into();
            campaign.runs.push(run);
        }
        let drawn = pictures(&campaign);
        let svg = |name: &str| &drawn.iter().find(|picture| picture.name == name).unwrap().svg;
        for (name, shown, hidden) in [
            ("communication", ">vpnd, aes-256-gcm<", ">vpnd, no encryption<"),
            ("communication-bare", ">vpnd, no encryption<", ">vpnd, aes-256-gcm<"),
        ] {
            assert!(svg(name).contains(shown) && !svg(name).contains(hidden), "{name}");
            assert!(svg(name).contains("plain routing"), "the ceiling of both");
        }
    }

    #[test]
    fn a_system_that_is_its_own_control_is_drawn_once() {
        let whole = samples::campaign();
        let mut more = whole.clone();
        for run in whole.runs.iter().filter(|run| run.label != "plain routing") {
            let mut again = run.clone();
            again.label.push_str(AGAIN);
            again.subject = again.subject.map(crate::system::Subject::again);
            more.runs.push(again);
        }
        for clients in [None, Some(8)] {
            let only = |campaign: &Campaign| {
                let mut campaign = campaign.clone();
                campaign.runs.retain(|run| clients.is_none_or(|clients| run.clients == clients));
                pictures(&campaign)
            };
            assert_eq!(only(&more), only(&whole));
        }
    }

    #[test]
    fn one_client_count_makes_bars() {
        let mut campaign = samples::campaign();
        campaign.runs.retain(|run| run.clients == 8);
        let first = &pictures(&campaign)[0];
        assert!(first.svg.contains("at 8 clients") && first.svg.contains("class=\"bar s1\""));
    }

    #[test]
    fn missing_systems_take_no_style() {
        let whole = samples::campaign();
        let mut more = whole.clone();
        let mut broken = more.runs[0].clone();
        (broken.label, broken.error) = ("absent".into(), Some("not installed".into()));
        more.runs.insert(0, broken);
        assert_eq!(pictures(&more)[0].svg, pictures(&whole)[0].svg);
    }

    #[test]
    fn pictures_are_written_as_files_that_need_no_page() {
        let directory = tempfile::tempdir().unwrap();
        let names = write(&pictures(&samples::campaign()), directory.path()).unwrap();
        assert_eq!(names.len(), 8);
        for name in names {
            let text = std::fs::read_to_string(directory.path().join(&name)).unwrap();
            assert!(name.ends_with(".svg") && text.contains("<style>"), "{name}");
        }
    }
}
