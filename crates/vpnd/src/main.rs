//! The `vpnd` program: parses the command line, runs one command, turns its outcome into an exit
//! code.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage or configuration (nothing was started; of `vpnd
//! server` only a file that can't be read or understood, not what it names), 3 refused for good: a
//! person must do something before trying again makes sense, 4 `vpnd connect --give-up`: no session
//! for that long.

use std::process::ExitCode;
use std::time::SystemTime;

use clap::{CommandFactory as _, Parser as _};
use vpnd::admin_store::Confined;
use vpnd::cli::{Cli, Command, MigrateCommand, PolicyCommand, RenewArgs, SourceCommand, StatusArgs};
use vpnd::commands::admin::{self, CommandError};
use vpnd::commands::devices::{self, DeviceError};
use vpnd::commands::init::{self, InitError};
use vpnd::commands::policy::{self, PolicyTestError};
use vpnd::commands::renew::{self, RenewError};
use vpnd::commands::tokens;
use vpnd::commands::users::{self, UserError, revoke};
use vpnd::commands::{audit, backup, check, doctor, migrate, netcheck, source, store};
use vpnd_client::args::KillSwitchArgs;
use vpnd_client::parent as client;
use vpnd_client_service::options::ServiceOptions;
use vpnd_client_service::user_commands::{self, Shown};
use vpnd_client_service::{captive_portal, service};
use vpnd_config::ConfigError;
use vpnd_gateway::parent as gateway;
use vpnd_ipc::admin::client::ClientError;
use vpnd_sys::clock::wall_s;
use vpnd_sys::logging::LogFormat;
use vpnd_sys::service_manager;
use vpnd_sys::text::format_chain;

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("vpnd: {}", format_chain(&error));
            ExitCode::from(status(&error))
        }
    }
}

fn status(error: &anyhow::Error) -> u8 {
    match error {
        _ if is_usage(error) => 2,
        _ if client::needs_user_action(error) => 3,
        _ if client::gave_up(error) => 4,
        _ => 1,
    }
}

/// Whether what the user wrote is wrong, rather than something failed.
fn is_usage(error: &anyhow::Error) -> bool {
    let user = error.downcast_ref::<UserError>();
    let init = error.downcast_ref::<InitError>();
    let admin = error.downcast_ref::<CommandError>();
    error.is::<ConfigError>()
        // 1 is an answer there.
        || error.is::<PolicyTestError>()
        || matches!(admin, Some(CommandError::Config(_)))
        || matches!(error.downcast_ref(), Some(RenewError::Config(_)))
        || matches!(user, Some(UserError::Config(_) | UserError::Name { .. }))
        || matches!(
            error.downcast_ref(),
            Some(DeviceError::User(UserError::Config(_)) | DeviceError::NotAKey(_) | DeviceError::NotAdded(_))
        )
        || matches!(init, Some(InitError::Invalid(_) | InitError::Certificate(_)))
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Init(args) => {
            let path = init::init(&args, &Confined, SystemTime::now())?;
            println!(
                "made {0}\nnext: vpnd user add NAME --config {0} --profile-out NAME.toml",
                path.display()
            );
        }
        Command::Check(args) => {
            check::report(&args.config, &Confined, args.insecure_lab, &mut std::io::stdout())?;
        }
        Command::Doctor(args) => doctor::doctor(&args, &Confined, &mut std::io::stdout())?,
        Command::Backup(args) => backup::backup(&args, &Confined, wall_s(), &mut std::io::stdout())?,
        Command::Restore(args) => backup::restore(&args, &Confined, wall_s(), &mut std::io::stdout())?,
        Command::Store(command) => store::run(&command, &Confined, &mut std::io::stdout())?,
        Command::Renew(args) => renew_certificate(&args)?,
        Command::User(command) => users::run(&command, &Confined, wall_s(), &mut std::io::stdout())?,
        Command::Token(command) => tokens::run(&command, &Confined, wall_s(), &mut std::io::stdout())?,
        Command::Device(command) => devices::run(&command, &Confined, wall_s(), &mut std::io::stdout())?,
        Command::Policy(PolicyCommand::Test(args)) => {
            let passes = policy::test(&args, &Confined, &mut std::io::stdout())?;
            return Ok(ExitCode::from(u8::from(!passes)));
        }
        Command::Source(SourceCommand::Test(args)) => {
            let is_good = source::test(&args, &Confined, &mut std::io::stdout())?;
            return Ok(ExitCode::from(u8::from(!is_good)));
        }
        Command::Source(SourceCommand::Confirm(args)) => admin::confirm_absences(&args, &Confined)?,
        Command::Migrate(MigrateCommand::Openvpn(args)) => migrate::openvpn(&args, &mut std::io::stdout())?,
        Command::Audit(command) => {
            let answered = audit::run(&command, &Confined, wall_s(), &mut std::io::stdout())?;
            return Ok(ExitCode::from(u8::from(!answered)));
        }
        Command::Revoke(args) => revoke::revoke(&args, &Confined, wall_s(), &mut std::io::stdout())?,
        Command::Status(args) => status_of_machine(&args)?,
        Command::Kick(args) => admin::kick(&args, &Confined)?,
        Command::Drain(args) => admin::drain::drain(&args, &Confined)?,
        Command::Reload(args) => admin::reload(&args, &Confined)?,
        Command::Server(args) if args.upgrade => admin::upgrade(&args, &Confined)?,
        Command::Server(args) if args.teardown => block_on(gateway::tear_down(args))?,
        Command::Server(args) => serve(gateway::run(args))?,
        Command::Child { role } => vpnd::run_child(role)?,
        Command::Connect(args) => {
            let (filter, format) = vpnd_sys::logging::for_person(args.log_format, args.verbose);
            vpnd_sys::logging::init(filter, format)?;
            serve(client::run(args))?;
        }
        Command::Up(args) => block_on(user_commands::up(&args))?,
        Command::Down(args) => block_on(user_commands::down(&args))?,
        Command::List(args) => block_on(user_commands::list(&args))?,
        Command::Import(args) => block_on(user_commands::import(&args))?,
        Command::Forget(args) => block_on(user_commands::forget(&args))?,
        Command::Password(args) => block_on(user_commands::password(&args))?,
        Command::Log(args) => block_on(user_commands::log(&args))?,
        Command::CaptivePortal(args) => block_on(user_commands::captive_portal(&args))?,
        Command::ClientService(args) => serve_users(&args.options.clone(), service::run(args))?,
        Command::CaptivePortalService(args) => {
            serve_users(&args.options.clone(), captive_portal::run(args))?;
        }
        Command::Netcheck(args) => netcheck::netcheck(&args, &mut std::io::stdout())?,
        Command::KillSwitch(args) => keep_kill_switch(&args)?,
        Command::Cleanup(args) => block_on(client::cleanup(&args))?,
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "vpnd", &mut std::io::stdout());
        }
        Command::Man { dir } => clap_mangen::generate_to(Cli::command(), dir)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a service for users of this machine.
fn serve_users(
    options: &ServiceOptions,
    service: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    vpnd_sys::logging::init(if options.verbose { "info,vpnd=debug" } else { "info" }, options.log_format)?;
    serve(service)
}

fn renew_certificate(args: &RenewArgs) -> anyhow::Result<()> {
    let expires = renew::renew(args, SystemTime::now())?;
    println!(
        "renewed; the certificate is good until {expires}\na running gateway takes it over with: vpnd reload"
    );
    Ok(())
}

/// Shows the gateway; where none runs, or this user may not see it, the tunnels of this machine.
fn status_of_machine(args: &StatusArgs) -> anyhow::Result<()> {
    if args.fleet {
        return Ok(admin::status(args)?);
    }
    // A gateway is root's; who names one means that.
    let is_gateways = args.admin.socket.is_some() || rustix::process::geteuid().is_root();
    if !is_gateways && args.client_socket.exists() {
        return tunnels_of_machine(args);
    }
    let outcome = admin::status(args);
    if !matches!(outcome, Err(CommandError::Client(ClientError::NotRunning(_)))) {
        return Ok(outcome?);
    }
    if args.client_socket.exists() {
        return tunnels_of_machine(args);
    }
    let clients = if args.json { Vec::new() } else { client::states() };
    if clients.is_empty() {
        return Ok(outcome?);
    }
    println!("no gateway runs here; this machine is a client:");
    clients.iter().for_each(|state| println!("{state}"));
    Ok(())
}

fn keep_kill_switch(args: &KillSwitchArgs) -> anyhow::Result<()> {
    let (filter, format) = vpnd_sys::logging::for_person(LogFormat::Text, 0);
    vpnd_sys::logging::init(filter, format)?;
    serve(client::keep_kill_switch(args))
}

/// Shows the tunnels of the client service, and the kill switch.
fn tunnels_of_machine(args: &StatusArgs) -> anyhow::Result<()> {
    if let Some(state) = client::kill_switch_state()
        && !args.json
    {
        println!("{state}");
    }
    let shown = Shown { json: args.json, watch: args.watch };
    block_on(user_commands::status(&args.client_socket, shown))
}

/// Runs a daemon, and gives `systemctl status` the reason for which it has failed.
fn serve(daemon: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let outcome = block_on(daemon);
    if let Err(error) = &outcome {
        service_manager::status(&format_chain(error));
    }
    outcome
}

/// Control planes are no place of heavy work: two threads let one of them wait. Shards bring
/// separate threads.
fn block_on(task: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(task)
}
