//! `vpnd-endurance`: measures vpnd's gateway alone, since its load speaks vpnd's protocol.
//!
//! This file only leads each command to its module.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser as _;

use trafficspeed::experiment::progress::Progress;
use trafficspeed::interrupt::Interrupt;
use trafficspeed::lab::enter;
use trafficspeed::lab::namespace::Namespace;
use trafficspeed::report::files;
use trafficspeed::{output, terminal};
use vpnd_endurance::cli::capacity::CapacityArgs;
use vpnd_endurance::cli::sessions::{SessionsArgs, SwarmArgs};
use vpnd_endurance::cli::soak::SoakArgs;
use vpnd_endurance::cli::wireguard::WireGuardArgs;
use vpnd_endurance::cli::{Cli, Command};
use vpnd_endurance::{experiment, report};

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Sessions(args) => sessions(&args),
        Command::Capacity(args) => capacity(&args),
        Command::Soak(args) => soak(&args),
        Command::Wireguard(args) => wireguard(&args),
        Command::Swarm(args) => swarm(&args),
        Command::Own(process) => process.run(),
    };
    done.unwrap_or_else(|error| {
        terminal::say(format_args!("vpnd-endurance: {error:#}"));
        ExitCode::from(2)
    })
}

fn sessions(args: &SessionsArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan();
    experiment::sessions::check(&plan)?;
    vacate(args.out.as_deref(), args.force)?;
    let interrupt = Interrupt::install()?;
    let results = match experiment::sessions::run(&plan, &Progress::new(args.quiet), &interrupt) {
        Err(error) if interrupt.is_set() => {
            terminal::say(format_args!("vpnd-endurance: {error:#}; no session was measured yet"));
            return Ok(ExitCode::from(130));
        }
        results => results?,
    };
    let json = serde_json::to_string_pretty(&results)?;
    if args.json {
        terminal::print(&format!("{json}\n"));
    } else {
        terminal::print(&report::sessions::table(&results));
    }
    if let Some(file) = &args.out {
        fs::write(file, json).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(output::exit_code(results.interrupted, results.is_whole()))
}

fn capacity(args: &CapacityArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan().map_err(anyhow::Error::msg)?;
    experiment::capacity::check(&plan)?;
    if let Some(directory) = &args.out {
        make_room(directory, &[directory.join("capacity.json"), directory.join("capacity.svg")], args.force)?;
    }
    let interrupt = Interrupt::install()?;
    let results = experiment::capacity::run(&plan, &Progress::new(args.quiet), &interrupt)?;
    let json = serde_json::to_string_pretty(&results)?;
    if args.json {
        terminal::print(&format!("{json}\n"));
    } else {
        terminal::print(&report::capacity::table(&results));
    }
    if let Some(directory) = &args.out {
        write(directory, "capacity.json", &json)?;
        if let Some(picture) = report::capacity::picture(&results) {
            write(directory, "capacity.svg", &picture)?;
        }
    }
    Ok(output::exit_code(results.interrupted, results.is_whole()))
}

fn wireguard(args: &WireGuardArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan().map_err(anyhow::Error::msg)?;
    experiment::wireguard::check(&plan)?;
    vacate(args.out.as_deref(), args.force)?;
    let interrupt = Interrupt::install()?;
    let results = experiment::wireguard::run(&plan, &Progress::new(args.quiet), &interrupt);
    let json = serde_json::to_string_pretty(&results)?;
    if args.json {
        terminal::print(&format!("{json}\n"));
    } else {
        terminal::print(&report::wireguard::table(&results));
    }
    if let Some(file) = &args.out {
        fs::write(file, json).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(output::exit_code(results.interrupted, results.is_whole()))
}

fn soak(args: &SoakArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan();
    experiment::soak::check(&plan)?;
    let names = ["soak.csv", "soak.json"].into_iter().chain(report::soak::PICTURES);
    let files: Vec<_> = names.map(|name| plan.out.join(name)).collect();
    make_room(&plan.out, &files, args.force)?;
    let interrupt = Interrupt::install()?;
    let results = experiment::soak::run(&plan, &Progress::new(args.quiet), &interrupt)?;
    terminal::print(&report::soak::text(&results));
    write(&plan.out, "soak.json", &serde_json::to_string_pretty(&results)?)?;
    for (name, picture) in report::soak::pictures(&results) {
        write(&plan.out, name, &picture)?;
    }
    Ok(output::exit_code(results.interrupted, results.is_whole()))
}

/// Does as [`make_room`] for one file, if there is to be one.
fn vacate(file: Option<&Path>, force: bool) -> anyhow::Result<()> {
    let Some(file) = file else { return Ok(()) };
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    make_room(directory.unwrap_or(Path::new(".")), &[file], force)
}

/// Finds out that results can't be written to `directory`, or that `files` are there already,
/// before hours are spent on them.
fn make_room(directory: &Path, files: &[impl AsRef<Path>], force: bool) -> anyhow::Result<()> {
    output::make_writable(directory)?;
    files.iter().try_for_each(|file| Ok(files::vacate(file.as_ref(), force)?))
}

fn write(directory: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = directory.join(name);
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}

/// One process of many sessions, in the namespace that its coordinator names.
fn swarm(args: &SwarmArgs) -> anyhow::Result<ExitCode> {
    enter::end_with_parent(args.parent)?;
    // Threads that are started from here on inherit the namespace.
    Namespace::unmade(&args.netns).enter()?;
    vpnd_swarm::run()?;
    Ok(ExitCode::SUCCESS)
}
