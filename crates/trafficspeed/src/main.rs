//! `trafficspeed`: measures what a VPN carries as its clients grow, with one command.
//!
//! This file only leads each command to its module; `experiment` measures, `report` shows.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::{CommandFactory, FromArgMatches, Parser};

use trafficspeed::cli::block::BlockArgs;
use trafficspeed::cli::compare::{CompareArgs, ReportArgs};
use trafficspeed::cli::home::HomeArgs;
use trafficspeed::cli::hosts::ServeArgs;
use trafficspeed::cli::link::LinkCheckArgs;
use trafficspeed::cli::load::PathArgs;
use trafficspeed::cli::model::ModelArgs;
use trafficspeed::cli::suite::SuiteArgs;
use trafficspeed::cli::verify::VerifyArgs;
use trafficspeed::cli::{
    Cli, Command, DoctorArgs, EXAMPLES, LabArgs, OutputArgs, RunArgs, SystemArgs, naming_known,
};
use trafficspeed::coordinate::serve;
use trafficspeed::coordinate::token::Token;
use trafficspeed::doctor;
use trafficspeed::experiment::block;
use trafficspeed::experiment::compare::journal::{self, Header, Journal};
use trafficspeed::experiment::compare::same::Identity;
use trafficspeed::experiment::compare::{self, schedule};
use trafficspeed::experiment::environment::{self, Environment};
use trafficspeed::experiment::generate::{self, LoadPlan, MeasuredPath};
use trafficspeed::experiment::hosts::{self, HostsPlan};
use trafficspeed::experiment::link_check;
use trafficspeed::experiment::model;
use trafficspeed::experiment::outcome::Settings;
use trafficspeed::experiment::progress::Progress;
use trafficspeed::experiment::suite;
use trafficspeed::experiment::traffic;
use trafficspeed::experiment::verify;
use trafficspeed::interrupt::Interrupt;
use trafficspeed::lab::record;
use trafficspeed::load::block::place::Place;
use trafficspeed::observe::HostInfo;
use trafficspeed::output;
use trafficspeed::report::page::Picture;
use trafficspeed::report::results::Results;
use trafficspeed::report::{self, files, side_by_side};
use trafficspeed::terminal;

fn main() -> ExitCode {
    if std::env::args_os().len() == 1 {
        terminal::show(format_args!("{EXAMPLES}"));
        return ExitCode::from(2);
    }
    let matches = Cli::command().try_get_matches().unwrap_or_else(|error| naming_known(error).exit());
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let done = match cli.command {
        None => lab(&cli.lab),
        Some(Command::Lab(args)) => lab(&args),
        Some(Command::Run(args)) => between_hosts(&args),
        Some(Command::Serve(args)) => serve_coordinator(&args),
        Some(Command::Token { file }) => make_token(&file),
        Some(Command::Compare(args)) => {
            let has_work = matches.subcommand().is_some_and(|(_, inner)| CompareArgs::has_work(inner));
            compare(args, has_work)
        }
        Some(Command::Report(args)) => show_again(&args),
        Some(Command::Completions { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "trafficspeed", &mut script);
            terminal::print(&String::from_utf8_lossy(&script));
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Man { dir }) => manual(&dir),
        Some(Command::Stream(args)) => generate(args.plan(), &args.path),
        Some(Command::Home(args)) => home(&args),
        Some(Command::Rr(args)) => generate(args.plan(), &args.path),
        Some(Command::Udp(args)) => generate(args.plan(), &args.path),
        Some(Command::LinkCheck(args)) => check_link(&args),
        Some(Command::Block(args)) => write_blocks(&args),
        Some(Command::Verify(args)) => compare_generators(&args),
        Some(Command::Doctor(args)) => examine(&args),
        Some(Command::Suite(args)) => suite(&args),
        Some(Command::Model(args)) => model(&args),
        Some(Command::Cleanup) => cleanup(),
        Some(Command::Own(process)) => process.run(),
    };
    match done {
        Ok(_) if terminal::has_failed() => ExitCode::FAILURE,
        Ok(code) => code,
        Err(error) => {
            terminal::say(format_args!("trafficspeed: {}", with_causes(&error)));
            ExitCode::from(2)
        }
    }
}

/// The error and its causes, without those that the text before quotes already.
fn with_causes(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match text.as_str() {
        "" => cause,
        written if written.contains(&cause) => text,
        _ => format!("{text}: {cause}"),
    })
}

/// Says which systems are not measured as the command line asks for, and what to do about it.
fn say_left_out(systems: &SystemArgs, output: &OutputArgs) {
    let progress = output::progress(output);
    systems.left_out().iter().for_each(|sentence| progress.note(sentence));
}

fn lab(args: &LabArgs) -> anyhow::Result<ExitCode> {
    let plan = args.traffic(args.systems.subjects_and_control(), HostInfo::read().cpus);
    let plan = plan.map_err(anyhow::Error::msg)?.named();
    traffic::check(&plan)?;
    output::prepare(&args.output)?;
    say_left_out(&args.systems, &args.output);
    let interrupt = Interrupt::install()?;
    let campaign = traffic::run(&plan, &output::progress(&args.output), &interrupt);
    output::finish(&Results::Traffic(Box::new(campaign)), &args.output)
}

fn write_blocks(args: &BlockArgs) -> anyhow::Result<ExitCode> {
    let (output, plans) = (&args.output, args.plans());
    let progress = output::progress(output);
    if let Some(hosts_plan) = args.host_pairs().map_err(anyhow::Error::msg)? {
        let token = Token::read(&hosts_plan.token_file)?;
        output::prepare(output)?;
        let interrupt = Interrupt::install()?;
        let found = hosts::block::run(&plans[0].writes, &hosts_plan, &token, &progress, &interrupt)?;
        return output::finish(&Results::Block(Box::new(found)), output);
    }
    plans.iter().try_for_each(block::check)?;
    output::prepare(output)?;
    let seconds: u64 = plans.iter().map(|plan| plan.estimate().as_secs()).sum();
    progress.note(&format!("This takes about {} minutes.", seconds.div_ceil(60)));
    let interrupt = Interrupt::install()?;
    let mut found = block::run_all(&plans, &progress, &interrupt)?;
    let only = if plans.len() == 1 { found.pop() } else { None };
    let results = only.map_or(Results::BlockSweep(found), |report| Results::Block(Box::new(report)));
    output::finish(&results, output)
}

fn check_link(args: &LinkCheckArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan();
    let checked = link_check::run(&plan)?;
    if args.json {
        terminal::print(&format!("{}\n", serde_json::to_string_pretty(&checked)?));
    } else {
        terminal::print(&report::link::table(&checked));
    }
    Ok(ExitCode::SUCCESS)
}

fn between_hosts(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let hosts_plan = args.hosts.host_pairs().context("no pair of hosts")?;
    let token = Token::read(&hosts_plan.token_file)?;
    output::prepare(&args.output)?;
    let plan = HostsPlan {
        hosts: hosts_plan,
        settings: Settings {
            // UDP may be blocked between hosts that TCP connects.
            probe_every_ms: args.work.probe.unwrap_or(0),
            ..args.work.settings(args.work.threads.unwrap_or(4))
        },
    };
    let interrupt = Interrupt::install()?;
    let campaign = hosts::run(&plan, &token, &output::progress(&args.output), &interrupt)?;
    output::finish(&Results::Traffic(Box::new(campaign)), &args.output)
}

fn generate(plan: Result<LoadPlan, String>, path: &PathArgs) -> anyhow::Result<ExitCode> {
    let plan = plan.map_err(anyhow::Error::msg)?;
    let output = &path.output;
    let progress = output::progress(output);
    let campaign = match &plan.path {
        MeasuredPath::Lab(lab) => {
            plan.check(lab)?;
            output::prepare(output)?;
            say_left_out(&path.systems, output);
            generate::run(&plan, lab, &progress, &Interrupt::install()?)
        }
        MeasuredPath::Hosts(hosts_plan) => {
            let token = Token::read(&hosts_plan.token_file)?;
            output::prepare(output)?;
            hosts::load::run(&plan, hosts_plan, &token, &progress, &Interrupt::install()?)?
        }
    };
    output::finish(&Results::Load(Box::new(campaign)), output)
}

fn home(args: &HomeArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan().map_err(anyhow::Error::msg)?;
    generate::check(&plan.subjects, &plan.programs, plan.links)?;
    let output = &args.output;
    output::prepare(output)?;
    say_left_out(&args.systems, output);
    let progress = output::progress(output);
    progress.note(&format!("This takes about {}.", schedule::for_people(plan.estimate())));
    let campaign = trafficspeed::experiment::home::run(&plan, &progress, &Interrupt::install()?)?;
    output::finish(&Results::Home(Box::new(campaign)), output)
}

fn suite(args: &SuiteArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan().map_err(anyhow::Error::msg)?;
    let output = args.output();
    let progress = output::progress(output);
    let campaign = if let Some((options, hosts_plan)) = args.between_hosts() {
        let token = Token::read(&hosts_plan.token_file)?;
        output::prepare(output)?;
        hosts::suite::run(&options, &hosts_plan, &token, &progress, &Interrupt::install()?)?
    } else {
        let subjects: Vec<_> = plan.stages.iter().map(|stage| stage.subject).collect();
        generate::check(&subjects, &plan.programs, plan.stages[0].links)?;
        output::prepare(output)?;
        let seconds = plan.estimate().as_secs_f64();
        progress.note(&format!("{} measurements, about {seconds:.0} s", plan.count()));
        suite::run(&plan, &progress, &Interrupt::install()?)
    };
    output::finish(&Results::Suite(Box::new(campaign)), output)
}

fn model(args: &ModelArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan().map_err(anyhow::Error::msg)?;
    let output = &args.output;
    model::check(&plan)?;
    output::prepare(output)?;
    let interrupt = Interrupt::install()?;
    let progress = output::progress(output);
    let found = match model::run(&plan, &progress, &interrupt) {
        Err(error) if interrupt.is_set() => {
            terminal::say(format_args!("trafficspeed: {error:#}; no stage was measured yet"));
            return Ok(ExitCode::from(130));
        }
        found => found?,
    };
    output::finish(&Results::Model(Box::new(found)), output)
}

/// Compares systems, from the start or from where an earlier session was interrupted.
fn compare(args: CompareArgs, has_work: bool) -> anyhow::Result<ExitCode> {
    let directory = args.directory();
    let resumes = args.resume.is_some();
    let mut args = if resumes && !has_work { saved_args(&directory, &args)? } else { args };
    args.lab.output.out = Some(directory.clone());
    let output = &args.lab.output;
    let plan = args.plan(HostInfo::read().cpus).map_err(|reason| anyhow!(reason))?;
    traffic::check(&plan.traffic)?;
    let environment = Environment::read(Some(plan.traffic.links));
    let identity = Identity::of(&plan, &environment);
    let (mut journal, environment, earlier) = if resumes {
        let (journal, contents) = Journal::open(&directory)?;
        contents.header.identity.check(&identity)?;
        (journal, contents.header.environment, contents.runs)
    } else {
        output::prepare(output)?;
        let (words, settings) = (environment::words(), plan.traffic.settings.clone());
        let header = Header::new(words, identity, settings, environment.clone(), plan.baseline.clone());
        (Journal::create(&directory, &header)?, environment, Vec::new())
    };
    let interrupt = Interrupt::install()?;
    say_left_out(&args.lab.systems, output);
    if !output.quiet {
        terminal::say(format_args!("{}", schedule::announcement(&plan, &earlier, &directory)));
    }
    let done = compare::run(&plan, &mut journal, environment, earlier, &output::progress(output), &interrupt);
    let is_over = !done.campaign.interrupted && done.error.is_none();
    let shown = output::show(&Results::Traffic(Box::new(done.campaign)), output);
    if !is_over {
        terminal::say(format_args!("To go on: trafficspeed compare --resume {}", directory.display()));
    }
    done.error.map_or(shown, |error| Err(error.into()))
}

/// The arguments with which the comparison in `directory` began, with what `now` says about
/// showing.
fn saved_args(directory: &Path, now: &CompareArgs) -> anyhow::Result<CompareArgs> {
    let words = journal::read(directory)?.header.words;
    let cli = Cli::try_parse_from(std::iter::once("trafficspeed".to_owned()).chain(words));
    let Ok(Cli { command: Some(Command::Compare(saved)), .. }) = cli else {
        bail!(
            "this version of trafficspeed does not understand the command line that is saved in {}; start another \
               comparison",
            directory.display()
        );
    };
    let baseline = now.baseline.clone().or(saved.baseline.clone());
    let lab = LabArgs { output: now.lab.output.clone(), ..saved.lab };
    Ok(CompareArgs { lab, baseline, resume: now.resume.clone(), ..saved })
}

/// Makes the reports of a directory again.
fn show_again(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let [measured] = &args.directories[..] else { return show_side_by_side(args) };
    let mut output = args.output.clone();
    let directory = output.out.get_or_insert_with(|| measured.clone()).clone();
    if directory == *measured {
        output::make_writable(&directory)?;
    } else {
        output::prepare(&output)?;
    }
    let mut results = files::read(measured)?;
    match (&mut results, &args.baseline) {
        (Results::Traffic(campaign), Some(name)) => {
            let known = campaign.labels();
            if !known.contains(name) {
                bail!("--baseline {name}: name one of the systems that were measured: {}", known.join("; "));
            }
            campaign.baseline = Some(name.clone());
        }
        (Results::Traffic(_), None) => {}
        (_, Some(_)) => bail!("--baseline: only the systems of experiment 1 are compared with one of them"),
        (_, None) => output::save(&results, &output)?,
    }
    let code = output::show(&results, &output)?;
    export(&results.document(None).into_pictures(), &directory, args)?;
    if args.flent {
        export_to_flent(&results, &directory, args.output.quiet)?;
    }
    Ok(code)
}

/// Shows several results in one chart.
fn show_side_by_side(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let output = &args.output;
    let other = output.json || output.csv || args.flent || args.baseline.is_some();
    let Some(out) = output.out.as_ref().filter(|_| !other) else {
        bail!(
            "several results make a page and pictures: give --out DIR, and neither -J, --csv, --flent nor --baseline"
        );
    };
    let (mut all, mut machines, mut is_whole) = (Vec::new(), Vec::new(), true);
    let lasts: BTreeSet<_> = args.directories.iter().map(|directory| directory.file_name()).collect();
    let is_named_twice = lasts.len() < args.directories.len();
    for directory in &args.directories {
        let last = directory.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = last.filter(|_| !is_named_twice).unwrap_or_else(|| directory.display().to_string());
        if all.iter().any(|(known, _)| *known == name) {
            bail!("{name}: give each result once");
        }
        let results = files::read(directory)?;
        is_whole &= results.is_whole();
        let Results::Traffic(campaign) = results else {
            bail!("{}: only results of experiment 1 stand side by side", directory.display());
        };
        machines.push(format!("{name}: {}", campaign.environment.machine()));
        all.push((name, *campaign));
    }
    let merged = side_by_side::together(all).context("no result")?;
    output::prepare(output)?;
    let shown = side_by_side::document(&merged, machines, output.chosen_unit().unwrap_or_default());
    terminal::print(&shown.text(output.wide, !output.quiet));
    files::write(out, "report.html", shown.page().as_bytes())?;
    export(&shown.into_pictures(), out, args)?;
    Ok(output::exit_code(merged.interrupted, is_whole))
}

/// Writes pictures as files if the user wants them.
fn export(pictures: &[Picture], directory: &Path, args: &ReportArgs) -> anyhow::Result<()> {
    let shown = if args.svg { pictures } else { &[] };
    for name in report::pictures::write(shown, directory)? {
        if !args.output.quiet {
            terminal::say(format_args!("Picture: {}", directory.join(name).display()));
        }
    }
    Ok(())
}

/// Writes the runs for flent.
fn export_to_flent(results: &Results, directory: &Path, is_quiet: bool) -> anyhow::Result<()> {
    let runs = report::flent::files(results);
    if runs.is_empty() {
        bail!(
            "--flent: these results have no course over time; --clients, compare, stream, udp, rr and home have one"
        );
    }
    for (name, text) in &runs {
        files::write(directory, name, text.as_bytes())?;
    }
    if !is_quiet {
        terminal::say(format_args!("For flent: {} files in {}", runs.len(), directory.display()));
    }
    Ok(())
}

fn manual(directory: &Path) -> anyhow::Result<ExitCode> {
    clap_mangen::generate_to(Cli::command(), directory)
        .with_context(|| format!("writing to {}", directory.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn serve_coordinator(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let token = Token::read(&args.token_file)?;
    let interrupt = Interrupt::install()?;
    let log = |text: String| terminal::say(format_args!("trafficspeed: {text}"));
    let place = args.block_place().map(|(wish, bytes)| Place::prepare(&wish, bytes)).transpose()?;
    if let Some(place) = &place {
        log(format!("a coordinator may write {} bytes into {}", place.bytes(), place.describe()));
    }
    serve::serve(args.listen, token, place, &interrupt, log)
        .with_context(|| format!("listening on {}", args.listen))?;
    Ok(ExitCode::SUCCESS)
}

fn make_token(file: &Path) -> anyhow::Result<ExitCode> {
    Token::create(file)?;
    terminal::print(&format!(
        "Made {}. Copy it to every host of the measurement by a safe way.\n",
        file.display()
    ));
    Ok(ExitCode::SUCCESS)
}

fn compare_generators(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan();
    verify::check(&plan)?;
    let found = verify::run(&plan, &Progress::new(args.quiet), &Interrupt::install()?)?;
    terminal::print(&if args.json {
        serde_json::to_string_pretty(&report::verify::json(&found))? + "\n"
    } else {
        report::verify::table(&found)
    });
    Ok(output::exit_code(found.interrupted, found.agrees()))
}

fn examine(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let programs = args.programs();
    let findings = match args.install {
        Some(kind) => {
            match doctor::install(kind, &programs, |line| {
                terminal::say(format_args!("trafficspeed: running: {line}"))
            }) {
                Ok(finding) => vec![finding],
                Err(error) => {
                    terminal::say(format_args!("trafficspeed: {error}"));
                    return Ok(ExitCode::FAILURE);
                }
            }
        }
        None => doctor::examine(&programs),
    };
    let generators = match args.install {
        Some(_) => Vec::new(),
        None => doctor::examine_generators(&programs),
    };
    terminal::print(&if args.json {
        serde_json::to_string_pretty(&doctor::json(&findings, &generators))? + "\n"
    } else {
        doctor::table(&findings) + &doctor::generator_lines(&generators)
    });
    Ok(if findings.iter().all(|finding| finding.ready) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn cleanup() -> anyhow::Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        bail!("removing namespaces needs root; run it again with `sudo`");
    }
    let outcome = record::cleanup(Path::new(record::RECORDS));
    for name in &outcome.removed {
        terminal::print(&format!("removed namespace {name}\n"));
    }
    for line in &outcome.kept {
        terminal::print(&format!("left alone: {line}\n"));
    }
    for problem in &outcome.problems {
        terminal::say(format_args!("trafficspeed: {problem}"));
    }
    if outcome.removed.is_empty() && outcome.kept.is_empty() && outcome.problems.is_empty() {
        terminal::print("Nothing to clean up.\n");
    }
    Ok(if outcome.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
