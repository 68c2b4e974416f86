//! `trafficspeed`: measures what a VPN carries as its clients grow, with one command.
//!
//! This file only leads each command to its module; `experiment` measures, `report` shows.

use std::fs;
use std::io::{BufReader, stdin, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::channel;

use anyhow::{Context, bail};
use clap::Parser;

use trafficspeed::cli::{Cli, Command, LabArgs, OutputArgs, RunArgs, ServeArgs};
use trafficspeed::coordinate::agent::Agent;
use trafficspeed::coordinate::line::{LineReader, LineWriter};
use trafficspeed::coordinate::message::HostFacts;
use trafficspeed::coordinate::serve;
use trafficspeed::coordinate::token::Token;
use trafficspeed::experiment::hosts::{self, HostsPlan};
use trafficspeed::experiment::outcome::Campaign;
use trafficspeed::experiment::progress::Progress;
use trafficspeed::experiment::traffic::{self, TrafficPlan};
use trafficspeed::interrupt::Interrupt;
use trafficspeed::lab::namespace::Namespace;
use trafficspeed::lab::{enter, record};
use trafficspeed::report;
use trafficspeed::system::Subject;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        None => lab(&cli.lab),
        Some(Command::Run(args)) => between_hosts(&args),
        Some(Command::Serve(args)) => serve_coordinator(&args),
        Some(Command::Token { file }) => make_token(&file),
        Some(Command::Cleanup) => cleanup(),
        Some(Command::Agent { parent, netns }) => agent(parent, netns.as_deref()),
        Some(Command::Inside { parent, private, namespace, words }) => {
            Err(enter::exec_inside(parent, &namespace, &private, &words).into())
        }
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("trafficspeed: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn lab(args: &LabArgs) -> anyhow::Result<ExitCode> {
    let cpus = HostFacts::read().cpus;
    let plan = TrafficPlan {
        subjects: Subject::all(&args.vpn, &args.ciphers()),
        clients: args.clients.clone(),
        settings: args.work.settings(args.threads(cpus)),
        links: args.links(),
        programs: args.programs(),
    };
    traffic::check(&plan)?;
    prepare_output(&args.output)?;
    let interrupt = Interrupt::install()?;
    let campaign = traffic::run(&plan, &Progress::new(args.output.quiet), &interrupt);
    show(&campaign, &args.output)
}

fn between_hosts(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let token = Token::read(&args.token_file)?;
    prepare_output(&args.output)?;
    let plan = HostsPlan {
        pairs: args.pairs.clone(),
        label: args.label.clone(),
        settings: args.work.settings(args.work.threads.unwrap_or(4)),
    };
    let interrupt = Interrupt::install()?;
    let campaign = hosts::run(&plan, &token, &Progress::new(args.output.quiet), &interrupt)?;
    show(&campaign, &args.output)
}

/// Results that cannot be written are found out before an hour is spent on them.
fn prepare_output(output: &OutputArgs) -> anyhow::Result<()> {
    if let Some(directory) = &output.out {
        fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
        tempfile::tempfile_in(directory).with_context(|| format!("writing to {}", directory.display()))?;
    }
    Ok(())
}

fn show(campaign: &Campaign, output: &OutputArgs) -> anyhow::Result<ExitCode> {
    let json = serde_json::to_string_pretty(&report::json::json(campaign))?;
    if output.json {
        println!("{json}");
    } else {
        print!("{}", report::table::table(campaign));
    }
    if let Some(directory) = &output.out {
        for (name, text) in [
            ("report.json", json),
            ("report.csv", report::csv::csv(campaign)),
            ("report.html", report::html::html(campaign)),
        ] {
            let path = directory.join(name);
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        if !output.quiet {
            eprintln!("Report: {}", directory.join("report.html").display());
        }
    }
    Ok(if campaign.interrupted {
        ExitCode::from(130)
    } else if campaign.runs.iter().all(|run| run.is_whole() && run.problems().is_empty()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn serve_coordinator(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let token = Token::read(&args.token_file)?;
    let interrupt = Interrupt::install()?;
    let tell = |text: String| eprintln!("trafficspeed: {text}");
    serve::serve(args.listen, token, &interrupt, tell)
        .with_context(|| format!("listening on {}", args.listen))?;
    Ok(ExitCode::SUCCESS)
}

fn make_token(file: &Path) -> anyhow::Result<ExitCode> {
    Token::create(file)?;
    println!("Made {}. Copy it to every host of the measurement by a safe way.", file.display());
    Ok(ExitCode::SUCCESS)
}

fn cleanup() -> anyhow::Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        bail!("removing namespaces needs root; run it again with `sudo`");
    }
    let outcome = record::cleanup(Path::new(record::RECORDS));
    for name in &outcome.removed {
        println!("removed namespace {name}");
    }
    for line in &outcome.kept {
        println!("left alone: {line}");
    }
    for problem in &outcome.problems {
        eprintln!("trafficspeed: {problem}");
    }
    if outcome.removed.is_empty() && outcome.kept.is_empty() && outcome.problems.is_empty() {
        println!("Nothing to clean up.");
    }
    Ok(if outcome.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn agent(parent: u32, netns: Option<&str>) -> anyhow::Result<ExitCode> {
    enter::end_with_parent(parent)?;
    if let Some(name) = netns {
        // Threads that are started from here on inherit the namespace.
        Namespace::unmade(name).enter()?;
    }
    let (commands, inbox) = channel();
    let (outbox, reports) = channel();
    std::thread::spawn(move || {
        serve::take_commands(LineReader::new(BufReader::new(stdin()), None), &commands);
    });
    let working = std::thread::spawn(move || Agent::new(inbox, outbox).run());
    serve::give_reports(&reports, &mut LineWriter::new(stdout(), None));
    if working.join().is_err() {
        bail!("the generator failed; see above");
    }
    Ok(ExitCode::SUCCESS)
}
