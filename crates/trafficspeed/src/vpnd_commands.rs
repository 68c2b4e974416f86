//! The commands that measure vpnd alone, since they speak its protocol: `sessions`, `capacity`, `soak`.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use trafficspeed::cli::capacity::CapacityArgs;
use trafficspeed::cli::sessions::SessionsArgs;
use trafficspeed::cli::soak::SoakArgs;
use trafficspeed::experiment;
use trafficspeed::experiment::progress::Progress;
use trafficspeed::interrupt::Interrupt;
use trafficspeed::{output, report, terminal};

pub(crate) fn sessions(args: &SessionsArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan();
    experiment::sessions::check(&plan)?;
    if let Some(file) = &args.out {
        let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
        make_room(directory.unwrap_or(Path::new(".")), &[file], args.force)?;
    }
    let interrupt = Interrupt::install()?;
    let results = match experiment::sessions::run(&plan, &Progress::new(args.quiet), &interrupt) {
        Err(error) if interrupt.is_set() => {
            terminal::say(format_args!("trafficspeed: {error:#}; no session was measured yet"));
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

pub(crate) fn capacity(args: &CapacityArgs) -> anyhow::Result<ExitCode> {
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

pub(crate) fn soak(args: &SoakArgs) -> anyhow::Result<ExitCode> {
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

/// Finds out that results can't be written to `directory`, or that `files` are there already, before hours are spent on them.
fn make_room(directory: &Path, files: &[impl AsRef<Path>], force: bool) -> anyhow::Result<()> {
    output::make_writable(directory)?;
    files.iter().try_for_each(|file| Ok(report::files::vacate(file.as_ref(), force)?))
}

fn write(directory: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = directory.join(name);
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}
