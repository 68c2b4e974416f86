//! The command line of `trafficspeed compare` and `trafficspeed report`.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command};

use super::{LabArgs, OutputArgs};
use crate::clock;
use crate::experiment::compare::ComparePlan;
use crate::experiment::compare::quiet::Limits;
use crate::experiment::outcome::{MOST_FOREIGN_PERCENT, MOST_STEAL_PERCENT};
use crate::experiment::traffic::TrafficPlan;
use crate::system::{Priority, Subject};

/// Arguments about showing results rather than measuring them.
const NOT_WORK: [&str; 9] = ["resume", "baseline", "out", "force", "json", "csv", "format", "wide", "quiet"];

/// Comparing systems.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("clients", |arg| arg.required(false).default_value("2,4,8,16")))]
pub struct CompareArgs {
    #[command(flatten)]
    pub lab: LabArgs,
    /// Compare the others with this system, too, by its name in --vpn or in the report.
    #[arg(long, value_name = "NAME")]
    pub baseline: Option<String>,
    /// Repeat a measurement during which the hypervisor took more than this share of the machine,
    /// in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = MOST_STEAL_PERCENT, value_parser = percent)]
    pub max_steal: f64,
    /// Repeat a measurement during which other processes used more than this share of the machine,
    /// in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = MOST_FOREIGN_PERCENT, value_parser = percent)]
    pub max_foreign: f64,
    /// Most attempts at one measurement; the quietest counts if none was quiet.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub attempts: u32,
    /// Go on with the comparison in this directory after an interruption; its settings are taken
    /// from there.
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    pub resume: Option<PathBuf>,
}

/// Showing results again.
#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// The directory of a measurement that was made with --out, or of a comparison. Several results
    /// of experiment 1, such as of other servers, stand side by side in one chart.
    #[arg(required = true, value_name = "DIR")]
    pub directories: Vec<PathBuf>,
    /// Also write every picture as a file.svg.
    #[arg(long)]
    pub svg: bool,
    /// Also write NNN.flent for each run, which flent draws over time.
    #[arg(long)]
    pub flent: bool,
    /// Compare the others with this system too, by its name in the report.
    #[arg(long, value_name = "NAME")]
    pub baseline: Option<String>,
    /// --out is the one directory itself by default.
    #[command(flatten)]
    pub output: OutputArgs,
}

impl CompareArgs {
    /// Whether the command line says what to measure, in `matches` of this command.
    pub fn has_work(matches: &ArgMatches) -> bool {
        let command = Self::augment_args(Command::new("compare"));
        let ids = command.get_arguments().map(|argument| argument.get_id().as_str());
        ids.filter(|id| !NOT_WORK.contains(id))
            .any(|id| matches.value_source(id) == Some(ValueSource::CommandLine))
    }

    /// Where the results go.
    pub fn directory(&self) -> PathBuf {
        let new = || PathBuf::from(format!("compare-{}", clock::wall_text().replace(':', "")));
        self.resume.clone().or_else(|| self.lab.output.out.clone()).unwrap_or_else(new)
    }

    /// The plan for a machine with `cpus` CPUs.
    ///
    /// # Errors
    /// In words, if the baseline is none of the systems, a client has no partner, or the
    /// user's own systems have names that do not fit.
    pub fn plan(&self, cpus: u32) -> Result<ComparePlan, String> {
        let systems = &self.lab.systems;
        let subjects = systems.subjects(&[Priority::Own, Priority::Same]);
        let mut traffic = self.lab.traffic(subjects, cpus)?;
        let baseline = self.baseline.as_ref().map(|name| label_of(name, &traffic)).transpose()?;
        let is_baseline = |subject: &Subject| baseline == Some(subject.label_with(&traffic.programs));
        traffic.subjects = systems.with_control(traffic.subjects.clone(), is_baseline);
        let limits = Limits {
            steal_percent: self.max_steal,
            foreign_percent: self.max_foreign,
            attempts: self.attempts,
        };
        Ok(ComparePlan { traffic: traffic.named(), limits, baseline })
    }
}

/// The label of the subject that the user calls `name`.
fn label_of(name: &str, traffic: &TrafficPlan) -> Result<String, String> {
    use clap::ValueEnum as _;
    let kind =
        |subject: &&Subject| subject.kind.to_possible_value().is_some_and(|value| value.get_name() == name);
    let exact = traffic.subjects.iter().find(|subject| subject.label_with(&traffic.programs) == name);
    let mut of_kind: Vec<&Subject> = traffic.subjects.iter().filter(kind).collect();
    if of_kind.iter().any(|subject| subject.priority == Priority::Own) {
        of_kind.retain(|subject| subject.priority == Priority::Own);
    }
    if let Some(first) = of_kind.first().map(|subject| subject.gateway_cpu) {
        of_kind.retain(|subject| subject.gateway_cpu == first);
    }
    match (exact, &of_kind[..]) {
        (Some(subject), _) => Ok(subject.label_with(&traffic.programs)),
        (None, [subject]) => Ok(subject.label_with(&traffic.programs)),
        _ => {
            let labels: Vec<String> =
                traffic.subjects.iter().map(|s| format!("`{}`", s.label_with(&traffic.programs))).collect();
            Err(format!(
                "--baseline {name}: name one of the systems that are measured: {}",
                labels.join(", ")
            ))
        }
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=100.0).contains(&value) => Ok(value),
        _ => Err("give a number between 0 and 100".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches};

    use super::super::{Cli, Command};
    use super::*;

    fn read(line: &str) -> Result<(CompareArgs, bool), String> {
        let words = line.split_whitespace();
        let matches = Cli::command().try_get_matches_from(words).map_err(|error| error.to_string())?;
        let cli = Cli::from_arg_matches(&matches).map_err(|error| error.to_string())?;
        let (_, inner) = matches.subcommand().expect("a subcommand");
        match cli.command {
            Some(Command::Compare(args)) => Ok((args, CompareArgs::has_work(inner))),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_defaults_are_five_rounds_at_four_numbers_of_clients() {
        let (args, has_work) = read("trafficspeed compare").unwrap();
        assert!(!has_work);
        let plan = args.plan(2).unwrap();
        assert_eq!(plan.traffic.clients, [2, 4, 8, 16]);
        assert_eq!(plan.traffic.settings.repeats, 5);
        assert_eq!(
            plan.traffic.slots().len(),
            4 * 4 * 5,
            "vpnd with its own priority, with that of all others and as its own control, and plain routing"
        );
        assert_eq!(plan.limits, Limits { steal_percent: 5.0, foreign_percent: 10.0, attempts: 3 });
        let labels = |plan: &ComparePlan| -> Vec<String> {
            plan.traffic.subjects.iter().map(|subject| subject.label()).collect()
        };
        assert_eq!(labels(&plan), ["vpnd", "vpnd, no priority", "plain routing", "vpnd (again)"]);
        let (alone, _) = read("trafficspeed compare --no-control").unwrap();
        assert_eq!(labels(&alone.plan(2).unwrap()), ["vpnd", "vpnd, no priority", "plain routing"]);
        assert!(args.directory().to_string_lossy().starts_with("compare-20"));
    }

    #[test]
    fn several_shares_of_the_cpu_are_measured_side_by_side_each_with_its_control() {
        let line = "trafficspeed compare --vpn openvpn,none --gateway-cpu 0.25,0.5 --priority same";
        let plan = read(line).unwrap().0.plan(2).unwrap();
        assert_eq!(plan.traffic.links.gateway_cpu, None);
        assert_eq!(
            plan.traffic.settings.systems,
            [
                "OpenVPN, gateway 0.25 of a core",
                "plain routing",
                "OpenVPN, gateway 0.5 of a core",
                "OpenVPN, gateway 0.25 of a core (again)",
                "OpenVPN, gateway 0.5 of a core (again)",
            ]
        );
        let compared = read(&format!("{line} --baseline openvpn")).unwrap().0.plan(2).unwrap();
        assert_eq!(
            compared.baseline.as_deref(),
            Some("OpenVPN, gateway 0.25 of a core"),
            "others have their own"
        );
        let one = read("trafficspeed compare --vpn openvpn --gateway-cpu 0.25").unwrap().0.plan(2).unwrap();
        assert_eq!(one.traffic.links.gateway_cpu, "0.25".parse().ok());
        assert_eq!(one.traffic.settings.systems, ["OpenVPN", "OpenVPN (again)"]);
    }

    #[test]
    fn resuming_with_and_without_settings_are_distinguished() {
        for (line, has_work) in [
            ("trafficspeed compare --resume d -J -q --baseline vpnd", false),
            ("trafficspeed compare --resume d --clients 2,4,8,16", true),
            ("trafficspeed compare --resume d -t 5", true),
            ("trafficspeed compare --resume d --mtu 1400", true),
            ("trafficspeed compare --resume d --attempts 3", true),
        ] {
            let (args, said) = read(line).unwrap();
            assert_eq!(said, has_work, "{line}");
            assert_eq!(args.directory(), PathBuf::from("d"));
        }
    }

    #[test]
    fn a_baseline_is_one_of_the_systems_by_either_name() {
        let line = "trafficspeed compare --vpn vpnd,none --cipher aes-256-gcm --baseline";
        let baseline = |name: &str| {
            let (mut args, _) = read(&format!("{line} x")).unwrap();
            args.baseline = Some(name.into());
            args.plan(2).map(|plan| plan.baseline)
        };
        assert_eq!(baseline("vpnd"), Ok(Some("vpnd, aes-256-gcm".into())));
        assert_eq!(baseline("vpnd, aes-256-gcm"), Ok(Some("vpnd, aes-256-gcm".into())));
        assert_eq!(baseline("none"), Ok(Some("plain routing".into())));
        let refusal = baseline("pptp").unwrap_err();
        assert!(
            refusal.contains("`vpnd, aes-256-gcm`, `vpnd, aes-256-gcm, no priority`, `plain routing`"),
            "{refusal}"
        );
        let (ambiguous, _) =
            read("trafficspeed compare --cipher aes-256-gcm --no-encryption --baseline vpnd").unwrap();
        assert!(ambiguous.plan(2).is_err(), "two systems have this name");
    }

    #[test]
    fn user_defined_systems_are_listed_by_their_names() {
        let line = "trafficspeed compare --vpn command,none --command-up a=./a.sh --command-up b=./b.sh --baseline b";
        let plan = read(line).unwrap().0.plan(2).unwrap();
        let labels: Vec<_> =
            plan.traffic.subjects.iter().map(|s| s.label_with(&plan.traffic.programs)).collect();
        assert_eq!(
            (labels, plan.baseline),
            (["a", "b", "plain routing", "b (again)"].map(String::from).to_vec(), Some("b".into()))
        );
        let twice =
            read("trafficspeed compare --vpn command --command-up a --command-up b").unwrap().0.plan(2);
        assert!(twice.unwrap_err().contains("`command`"));
    }

    #[test]
    fn bad_input_is_refused_with_what_would_be_right() {
        let odd = |line: &str| read(line).unwrap().0.plan(2).map(drop);
        assert!(odd("trafficspeed compare --clients 3").unwrap_err().contains("even number"));
        assert_eq!(odd("trafficspeed compare --clients 1,3 --to gateway"), Ok(()));
        for (line, expected) in [
            ("trafficspeed compare --vpn ciscovpn", "possible values: vpnd, "),
            ("trafficspeed compare --max-steal 101", "between 0 and 100"),
            ("trafficspeed compare --attempts 0", "1..=100"),
            ("trafficspeed compare --resume a --out b", "cannot be used with"),
            ("trafficspeed compare -f x", "K, M, G or T"),
            ("trafficspeed compare -J --csv", "cannot be used with"),
        ] {
            let error = read(line).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
