//! `vpnd drain`: empties a running gateway, shows how far it is, and stops it if that is wanted.
//!
//! INVARIANT: the process that is stopped is the one that has opened the control socket, by the
//! kernel's account: no message names it.

use std::io;
use std::time::Duration;

use rustix::process::{Signal, kill_process};

use super::{CommandError, record, socket, table, write_all};
use crate::admin_store::Stores;
use crate::cli::DrainArgs;
use vpnd_ipc::admin::client::Client;
use vpnd_sys::clock::wall_s;
use vpnd_sys::date::Expiry;

/// Interval at which the gateway is asked how far it is.
const INTERVAL: Duration = Duration::from_secs(1);

/// Begins or cancels a drain, and waits for its end. Interrupting it leaves the gateway draining.
///
/// # Errors
/// [`CommandError`]
pub fn drain(args: &DrainArgs, stores: &dyn Stores) -> Result<(), CommandError> {
    let mut client = Client::connect(&socket(&args.admin)?)?;
    let mut out = io::stdout();
    if args.cancel {
        client.cancel_drain()?;
        record(stores, &args.admin.config, &args.admin.socket, "drain-cancelled", "");
        return Ok(write_all(&mut out, "logins are accepted again\n")?);
    }
    let within_s = match (args.within, args.until.and_then(Expiry::seconds)) {
        (Some(within), _) => Some(within.as_secs()),
        (None, Some(at_s)) => Some(at_s.checked_sub(wall_s()).ok_or(CommandError::Past)?),
        (None, None) => None,
    };
    client.drain(within_s, args.fleet_safe)?;
    let detail = within_s.map_or(String::new(), |within_s| format!("within {within_s} s"));
    record(stores, &args.admin.config, &args.admin.socket, "drained", &detail);
    if args.no_wait {
        return Ok(write_all(&mut out, "logins are refused now; 'vpnd status' shows the progress\n")?);
    }
    wait(&mut client, &mut out)?;
    if args.stop {
        let stopped = client.peer().and_then(|gateway| Ok(kill_process(gateway, Signal::TERM)?));
        stopped.map_err(CommandError::NotStopped)?;
        write_all(&mut out, "the gateway stops\n")?;
    }
    Ok(())
}

/// Shows each change until no client is connected.
fn wait(client: &mut Client, out: &mut impl io::Write) -> Result<(), CommandError> {
    let mut shown = None;
    loop {
        let state = client.status()?.drain.ok_or(CommandError::Cancelled)?;
        if shown != Some((state.in_use, state.over)) {
            write_all(out, &format!("{}\n", table::drain(state)))?;
            shown = Some((state.in_use, state.over));
        }
        if state.over {
            return Ok(());
        }
        std::thread::sleep(INTERVAL);
    }
}
