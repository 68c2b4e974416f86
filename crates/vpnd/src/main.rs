//! The `vpnd` program: parses the command line, runs one command, turns its outcome into an exit code.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage or configuration (nothing was started).

use std::process::ExitCode;
use std::time::SystemTime;

use clap::{CommandFactory as _, Parser as _};
use vpnd::cli::{Cli, Command};
use vpnd::config::{ConfigError, ServerConfig, check};

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vpnd: {error:#}");
            ExitCode::from(if error.is::<ConfigError>() { 2 } else { 1 })
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Init(args) => {
            let path = vpnd::init::init(&args, SystemTime::now())?;
            println!(
                "made {0}\nnext: vpnd user add NAME --config {0} --profile-out NAME.toml",
                path.display()
            );
        }
        Command::Check(args) => {
            let config = ServerConfig::load(&args.config)?;
            let problems = config.check(&check::local_networks(), check::now_s());
            problems.map_err(ConfigError::Invalid)?;
            println!("{}: no problem found", args.config.display());
        }
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "vpnd", &mut std::io::stdout());
        }
        Command::Man { dir } => clap_mangen::generate_to(Cli::command(), dir)?,
        _ => anyhow::bail!("this command is not in this build"),
    }
    Ok(())
}
