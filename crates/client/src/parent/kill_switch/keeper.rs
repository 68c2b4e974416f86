//! `vpnd kill-switch`: keeps a kill switch in force while no client does, also after a restart of
//! the machine, before there is a network.
//!
//! INVARIANT: it changes nothing while a client keeps the switch, and puts in force only what a
//! record names. It waits for the kernel's reports, without a timer.

use anyhow::{Context as _, bail};
use tokio::time::sleep;

use super::{LOG_INTERVAL, RETRY_INTERVAL, changed, renew, state, watch_table};
use crate::args::KillSwitchArgs;
use crate::parent::stop::Stop;
use vpnd_journal::JournalDirectory;
use vpnd_journal::kill_switch::{Found, KillSwitchPlace};
use vpnd_sys::log_limit::LogLimit;
use vpnd_sys::nft::KillSwitchRules;
use vpnd_sys::nft_listing::Listing;
use vpnd_sys::process::{self, Capability};
use vpnd_sys::service_manager;
use vpnd_sys::text::format_chain;

/// The tunnel of a record that can't be read: the one that clients have by default.
const DEFAULT_TUNNEL: &str = "vpn0";

/// Runs it until a signal ends it, which leaves the switch as it is.
///
/// # Errors
/// If the place of records can't be opened.
pub(in super::super) async fn keep(args: &KillSwitchArgs) -> anyhow::Result<()> {
    process::require(Capability::NetAdmin)?;
    let directory = JournalDirectory::create(&args.journal_dir)?;
    let place = KillSwitchPlace::of_this_namespace(&directory)?;
    let Some(_kept) = place.keep()? else {
        bail!("another 'vpnd kill-switch' runs in this network namespace")
    };
    let mut stop = Stop::on_signals(std::future::pending())?;
    let (mut table, mut applied) = (watch_table(), None);
    let (mut is_ready, failures) = (false, LogLimit::new(1, LOG_INTERVAL));
    loop {
        let outcome = keep_once(&place, &mut applied).await;
        let looks_again = !matches!(outcome, Ok(Look { is_settled: true, .. }));
        match outcome {
            Ok(Look { state, .. }) if !is_ready => {
                is_ready = true;
                service_manager::ready(state);
            }
            Ok(Look { state, .. }) => service_manager::status(state),
            Err(error) if failures.admits() => {
                tracing::error!(error = %format_chain(&error), "the kill switch can't be put back yet");
            }
            Err(_) => {}
        }
        tokio::select! {
            _ = stop.asked_for() => return Ok(()),
            () = changed(&mut table) => {}
            () = sleep(RETRY_INTERVAL), if looks_again || table.is_none() => {}
        }
    }
}

/// Result of a look.
struct Look {
    /// For people.
    state: &'static str,
    /// Whether it stays so until the kernel reports a change of the table.
    is_settled: bool,
}

/// Puts it in force if that is for this process.
async fn keep_once(place: &KillSwitchPlace, applied: &mut Option<Listing>) -> anyhow::Result<Look> {
    if place.holder()?.is_some() {
        *applied = None;
        // A client that is killed before it has put the rules back leaves that to this process,
        // and nothing reports its end.
        let is_settled = KillSwitchRules::in_force().await?.is_some();
        return Ok(Look { state: "a client keeps the kill switch", is_settled });
    }
    // On a full disk there may be no lock, and it is put back all the same.
    let _turn = place.turn().inspect_err(|error| tracing::debug!(%error, "no lock")).ok();
    let found = if state::is_ended() { Found::Nothing } else { place.find()? };
    let rules = match found {
        Found::Nothing => {
            *applied = None;
            return Ok(Look { state: "no kill switch is on", is_settled: true });
        }
        Found::Record(record) => {
            if applied.is_none() {
                // So that it counts as this boot's. It counts without that, too.
                let record = place.taken_over(record.clone());
                let _ = place.write(&record);
                state::publish(&record);
            }
            record.rules
        }
        Found::Unreadable(reason) => {
            tracing::error!(
                reason,
                "the record of the kill switch can't be read: nothing passes but a new connection of vpnd"
            );
            KillSwitchRules { tunnel: DEFAULT_TUNNEL.to_owned(), inbound: Vec::new(), local: Vec::new() }
        }
    };
    renew(&rules, applied).await.context("the rules can't be set")?;
    Ok(Look { state: "the kill switch is on", is_settled: true })
}
