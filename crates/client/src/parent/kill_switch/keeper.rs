//! `vpnd kill-switch`: keeps a kill switch in force while no client does, also after a restart of
//! the machine, before there is a network.
//!
//! INVARIANT: it changes nothing while a client keeps the switch, and puts in force only what a
//! record names. It waits for the kernel's reports, without a timer.

use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::time::{sleep, timeout};

use super::{LOG_INTERVAL, RETRY_INTERVAL, changed, local_networks, renew, state, watch_table};
use crate::args::KillSwitchArgs;
use crate::parent::NETWORK_CHANGE_DELAY;
use crate::parent::stop::Stop;
use vpnd_journal::JournalDirectory;
use vpnd_journal::kill_switch::{Found, KillSwitchPlace};
use vpnd_sys::log_limit::LogLimit;
use vpnd_sys::netlink::NetworkWatch;
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
    let (mut table, mut network, mut kept) = (watch_table(), None, Kept::default());
    let (mut is_ready, failures) = (false, LogLimit::new(1, LOG_INTERVAL));
    loop {
        let outcome = keep_once(&place, &mut kept).await;
        let follows = matches!(outcome, Ok(Look { follows_network: true, .. }));
        if follows && network.is_none() {
            network = watch_network();
            // The networks may have changed since they were read.
            if network.is_some() {
                continue;
            }
        }
        let lacks_reports = table.is_none() || (follows && network.is_none());
        let looks_again = lacks_reports || !matches!(outcome, Ok(Look { is_settled: true, .. }));
        if !follows {
            network = None;
        }
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
            () = moved(&mut network) => {}
            () = sleep(RETRY_INTERVAL), if looks_again => {}
        }
    }
}

/// The rules that this process has put in force.
#[derive(Default)]
struct Kept {
    /// `None` unless this process keeps the switch.
    rules: Option<KillSwitchRules>,
    /// The table that came of the rules.
    applied: Option<Listing>,
}

/// Result of a look.
struct Look {
    /// For people.
    state: &'static str,
    /// Whether it stays so until the kernel reports a change.
    is_settled: bool,
    /// Whether it depends on the networks that the machine is connected to.
    follows_network: bool,
}

/// A subscription to changes of the machine's network.
fn watch_network() -> Option<NetworkWatch> {
    let opened = NetworkWatch::open().inspect_err(|error| {
        tracing::info!(%error, "the kernel does not report changes of the network, so it is read each second");
    });
    opened.ok()
}

/// Waits for a change of the machine's network, and for the end of its burst.
async fn moved(network: &mut Option<NetworkWatch>) {
    let Some(watch) = network else { return std::future::pending().await };
    if watch.next().await.is_none() {
        *network = None;
        return;
    }
    sleep(NETWORK_CHANGE_DELAY).await;
    while let Ok(Some(_)) = timeout(Duration::ZERO, watch.next()).await {}
}

/// Puts it in force if that is for this process.
async fn keep_once(place: &KillSwitchPlace, kept: &mut Kept) -> anyhow::Result<Look> {
    // Where that can't be found out it is kept, perhaps by two processes.
    if matches!(place.holder(), Ok(Some(_))) {
        *kept = Kept::default();
        // A client that is killed before it has put the rules back leaves that to this process,
        // and nothing reports its end; nor when it is killed and the machine then moves.
        let is_settled = KillSwitchRules::in_force().await?.is_some();
        return Ok(Look { state: "a client keeps the kill switch", is_settled, follows_network: true });
    }
    // On a full disk there may be no lock, and it is still put back.
    let _turn = place.turn().inspect_err(|error| tracing::debug!(%error, "no lock")).ok();
    let found = if state::is_ended() { Found::Nothing } else { place.find()? };
    let (rules, follows_network) = match found {
        Found::Nothing => {
            *kept = Kept::default();
            return Ok(Look { state: "no kill switch is on", is_settled: true, follows_network: false });
        }
        Found::Record(record) => {
            if kept.rules.is_none() {
                // So that it counts as this boot's. It counts without that, too.
                let record = place.taken_over(record.clone());
                let _ = place.write(&record);
                state::publish(&record);
            }
            let local = local_networks(&record, 0).await;
            (KillSwitchRules { local, ..record.rules }, record.passes_local)
        }
        Found::Unreadable(reason) => {
            tracing::error!(
                reason,
                "the record of the kill switch can't be read: nothing passes but a new connection of vpnd"
            );
            let tunnel = DEFAULT_TUNNEL.to_owned();
            (KillSwitchRules { tunnel, inbound: Vec::new(), local: Vec::new() }, false)
        }
    };
    if kept.rules.as_ref() != Some(&rules) {
        *kept = Kept { rules: Some(rules.clone()), applied: None };
    }
    renew(&rules, &mut kept.applied).await.context("the rules can't be set")?;
    Ok(Look { state: "the kill switch is on", is_settled: true, follows_network })
}
