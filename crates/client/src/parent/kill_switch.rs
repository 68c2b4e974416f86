//! The kill switch of a running client: in force before its first packet, put back while it runs,
//! ended by a person, or by an end in order.
//!
//! INVARIANT: nothing but an end that a person asks for, or, unless it is persistent, one in order
//! with nothing left to undo, opens the network again. A client that fails, is killed or is started
//! again leaves it closed: the kernel has the rules, [`vpnd_journal::kill_switch`] the record. What
//! the client itself sends passes by the mark of its sockets, and by nothing else of it.

mod ending;
mod inbound;
mod keeper;
mod own;
mod state;
mod wanted;

use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::console::{ABANDONED, BY_USER, Console};
use super::permission::HostNetworks;
use super::stop::{INTERRUPT, Stop, TERMINATE};
use ending::end_at;
pub(super) use ending::{clean_up, reopen};
use inbound::Inbound;
pub(super) use inbound::WouldCutOff;
pub(super) use keeper::keep;
pub(super) use own::OwnKillSwitch;
pub(super) use state::read as state;
use vpnd_config::profile::KillSwitchMode;
use vpnd_journal::JournalDirectory;
use vpnd_journal::kill_switch::{Found, KillSwitchHold, KillSwitchPlace, KillSwitchRecord};
use vpnd_sys::change::is_plausible_local;
use vpnd_sys::log_limit::LogLimit;
use vpnd_sys::logging::NEWS;
use vpnd_sys::netlink::{Netlink, NetlinkError};
use vpnd_sys::nft::{KILL_SWITCH_TABLE, KillSwitchRules, LocalNetwork, NftError, TableWatch};
use vpnd_sys::nft_listing::Listing;
use vpnd_sys::text::format_chain;
pub(super) use wanted::Wanted;

/// Interval of attempts that fail, and of looks where the kernel reports no changes.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest interval between two times that it is put back, in a fight with another program.
const PAUSE: Duration = Duration::from_millis(20);
/// Applications until two of them give the same.
const APPLICATIONS: usize = 4;
/// Interval between lines about the same.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// A kill switch that this client keeps.
pub(super) struct KillSwitch {
    hold: KillSwitchHold,
    record: KillSwitchRecord,
    /// For whom this client runs, who may not be the one who has switched it on.
    user: u32,
    /// The networks that pass now; the task ends with this.
    local: watch::Sender<Vec<LocalNetwork>>,
    task: JoinHandle<()>,
}

/// How a client ends, as far as the kill switch goes by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// A person has ended it.
    ByPerson,
    /// Something else has asked it to end, and nothing is left to undo.
    InOrder,
    /// The user's command that waited for it is gone, and nothing is left to undo.
    Abandoned,
    Failed,
}

impl End {
    /// The end that this outcome is: the signal that asked for it, or a failure.
    pub(super) fn of(outcome: &anyhow::Result<&'static str>, is_undone: bool) -> Self {
        match outcome {
            Ok(INTERRUPT | BY_USER) => Self::ByPerson,
            Ok(TERMINATE) if is_undone => Self::InOrder,
            Ok(ABANDONED) if is_undone => Self::Abandoned,
            // The client service is gone, too, and may have been killed; or another client goes on
            // with the kill switch.
            Ok(_) | Err(_) => Self::Failed,
        }
    }

    fn opens(self, record: &KillSwitchRecord, user: u32) -> bool {
        match self {
            Self::ByPerson => record.is_of(user),
            // Root, who ends the service, may end each.
            Self::InOrder => !record.is_persistent,
            Self::Abandoned => !record.is_persistent && record.is_of(user),
            Self::Failed => false,
        }
    }
}

impl KillSwitch {
    /// Closes the network, if the user or the profile asks for it, or it is closed already.
    ///
    /// # Errors
    /// If it can't be closed, or the person who asks would be cut off.
    pub(super) async fn close(
        wanted: &Wanted,
        is_by_browser: bool,
        journals: &JournalDirectory,
        console: &Console,
    ) -> anyhow::Result<Option<Self>> {
        let (place, user) = (KillSwitchPlace::of_this_namespace(journals)?, wanted.user);
        let found = if state::is_ended() { Found::Nothing } else { place.find()? };
        let is_changeable = match &found {
            Found::Nothing => true,
            Found::Record(record) => wanted.may_change(record),
            Found::Unreadable(_) => user == 0,
        };
        // Neither a user without root nor the machine itself ends or loosens what another user has
        // switched on.
        let asked = wanted.asked().filter(|_| is_changeable);
        let holder = place.holder().context(
            "it can't be read whether another client keeps a kill switch; 'vpnd cleanup' removes the damaged file",
        )?;
        let (record, cut_off, is_new) = match (asked, found) {
            (None | Some(KillSwitchMode::Off), Found::Nothing) => return Ok(None),
            (None | Some(KillSwitchMode::Off), _) if holder.is_some() => {
                tracing::warn!(
                    "another client keeps a kill switch: only its tunnel carries this machine's packets"
                );
                return Ok(None);
            }
            (Some(KillSwitchMode::Off), _) => {
                end_at(&place).await?;
                tracing::info!(target: NEWS, "the kill switch that was on is off now");
                return Ok(None);
            }
            (None, Found::Unreadable(reason)) => {
                bail!(
                    "the record of the kill switch can't be read: {reason}; 'vpnd cleanup' ends it, or say --kill-switch"
                )
            }
            (None, Found::Record(record)) => {
                let rules = KillSwitchRules { tunnel: wanted.tunnel.clone(), ..record.rules };
                let record = place.taken_over(KillSwitchRecord { rules, ..record });
                tracing::info!(target: NEWS, "this client goes on with the {record}");
                console.say(&format!("this client goes on with the {record}"));
                (record, Vec::new(), false)
            }
            (Some(mode), found) => {
                let record = wanted.record(&place, mode);
                let before = if let Found::Record(before) = &found { Some(before) } else { None };
                let cut_off = wanted.check_cut_off(&record, before)?;
                (record, cut_off, found == Found::Nothing)
            }
        };
        let Some(hold) = place.hold()? else {
            bail!(
                "another client of this machine keeps a kill switch: end that one first, or say --kill-switch=off"
            )
        };
        let say = |place: &KillSwitchPlace, record: &KillSwitchRecord| {
            warn_of_cut_off(&cut_off);
            if is_new {
                announce(record, is_by_browser, place, console);
            }
        };
        Self::put_in_force(hold, record, user, say).await.map(Some)
    }

    /// Puts it in force. `say` is called when only the kernel can still refuse it, and before
    /// connections are cut off, over which a person may read it.
    async fn put_in_force(
        hold: KillSwitchHold,
        record: KillSwitchRecord,
        user: u32,
        say: impl FnOnce(&KillSwitchPlace, &KillSwitchRecord),
    ) -> anyhow::Result<Self> {
        let place = hold.place();
        let mut rules = record.rules.clone();
        rules.local = local_networks(&record, 0).await;
        // Before the rules are read: no change passes unseen.
        let table = watch_table();
        {
            let _turn = place.turn()?;
            place.write(&record).context("the kill switch is not on")?;
            say(place, &record);
            if let Err(error) = rules.apply().await {
                return Err(error).context("the kill switch is not on; 'vpnd cleanup' forgets it");
            }
        }
        state::publish(&record);
        let (local, networks) = watch::channel(rules.local.clone());
        let task = tokio::spawn(stay(rules, networks, table));
        Ok(Self { hold, record, user, local, task })
    }

    /// Follows the machine to other local networks.
    pub(super) async fn follow(&self, tunnel: u32) {
        if self.record.passes_local {
            let networks = local_networks(&self.record, tunnel).await;
            self.local.send_if_modified(|before| {
                let is_new = *before != networks;
                *before = networks;
                is_new
            });
        }
    }

    /// Opens the network, or leaves it closed, as this end demands.
    pub(super) async fn end(self, end: End, console: &Console) {
        let Self { hold, record, user, local, task } = self;
        drop(local);
        // It is not aborted: rules that it is about to set must not come after this.
        let _ = task.await;
        if !end.opens(&record, user) {
            let who = match (record.is_of(user), user) {
                (true, 0) => "'vpnd cleanup' ends it",
                (true, _) => "'vpnd down' ends it",
                (false, _) => "only who has switched it on or an administrator ends it ('vpnd cleanup')",
            };
            let line = format!(
                "the kill switch stays on, so this machine has no network but a new connection of vpnd: {who}"
            );
            tracing::warn!("{line}");
            return console.say(&line);
        }
        match end_at(hold.place()).await {
            Ok(_) => tracing::info!(target: NEWS, "the kill switch is off: this machine's network is open"),
            Err(error) => {
                tracing::error!(error = %format_chain(&error), "the kill switch; 'vpnd cleanup' tries again");
            }
        }
    }
}

fn warn_of_cut_off(connections: &[Inbound]) {
    for Inbound { peer, port, .. } in connections.iter().take(8) {
        tracing::warn!(
            "the kill switch cuts off {peer}, which is connected to TCP port {port} of this machine; --kill-switch-inbound {port} \
             would let it pass"
        );
    }
}

/// Says what is about to be closed, before it is.
fn announce(record: &KillSwitchRecord, is_by_browser: bool, place: &KillSwitchPlace, console: &Console) {
    let tunnel = &record.rules.tunnel;
    let how = if record.user == 0 { "Ctrl-C or 'vpnd cleanup'" } else { "'vpnd down'" };
    let line = format!(
        "the kill switch closes this machine's network: only {tunnel} carries its packets, until {how}; a login page of the network \
         opens by `vpnd captive-portal` alone"
    );
    tracing::info!(target: NEWS, "{line}");
    console.say(&line);
    let browser = is_by_browser.then_some(
        "the login is in a browser, whose packets the kill switch drops as all others: it can reach the gateway's pages only \
         through another tunnel, so log in with a password, by a short code on another device, or without the kill switch",
    );
    let restart = match (record.is_persistent, place.is_machines(), place.has_keeper().unwrap_or_default()) {
        (true, false, _) => Some(
            "this network namespace is not known to be the machine's own, so the kill switch does not come back after a restart \
             of the machine",
        ),
        (true, true, false) => Some(
            "the unit vpnd-kill-switch does not run: without it the kill switch does not come back after a restart of the machine, \
             and nothing puts it back while no client runs; 'systemctl enable --now vpnd-kill-switch'",
        ),
        _ => None,
    };
    for warning in browser.into_iter().chain(restart) {
        tracing::warn!("{warning}");
        console.say(warning);
    }
}

/// The networks that the machine is directly connected to, if they pass and are plausible.
async fn local_networks(record: &KillSwitchRecord, tunnel: u32) -> Vec<LocalNetwork> {
    if !record.passes_local {
        return Vec::new();
    }
    let read = async {
        let netlink = Netlink::open()?;
        let machine = HostNetworks::read(&netlink, &record.rules.tunnel, tunnel, Vec::new()).await?;
        let names = netlink.interface_names().await?;
        let links = machine.local_links().iter().filter(|(network, _)| is_plausible_local(*network));
        let named = links.filter_map(|&(network, interface)| {
            Some(LocalNetwork { interface: names.get(&interface)?.clone(), network })
        });
        Ok::<Vec<_>, NetlinkError>(named.collect())
    };
    read.await.unwrap_or_else(|error| {
        tracing::warn!(%error, "the local networks can't be read, so the kill switch holds back what goes there");
        Vec::new()
    })
}

/// A subscription to changes of the table; `None` where the kernel reports none.
fn watch_table() -> Option<TableWatch> {
    let opened = TableWatch::open(KILL_SWITCH_TABLE).inspect_err(|error| {
        tracing::info!(%error, "the kernel does not report changes of firewall tables, so the kill switch's is read each second");
    });
    opened.ok()
}

/// Keeps the rules in force until the sender of local networks is gone. It writes no file: a full
/// disk is no reason to leave the network open.
async fn stay(
    mut rules: KillSwitchRules,
    mut local: watch::Receiver<Vec<LocalNetwork>>,
    mut table: Option<TableWatch>,
) {
    let (mut applied, failures) = (None, LogLimit::new(1, LOG_INTERVAL));
    loop {
        let outcome = renew(&rules, &mut applied).await;
        let is_failed = outcome.is_err();
        if let Err(error) = outcome
            && failures.admits()
        {
            tracing::error!(error = %format_chain(&error.into()), "the kill switch can't be put back yet");
        }
        tokio::select! {
            changed = local.changed() => match changed {
                Ok(()) => {
                    rules.local.clone_from(&local.borrow_and_update());
                    applied = None;
                }
                Err(_) => return,
            },
            () = changed(&mut table) => {}
            () = sleep(RETRY_INTERVAL), if is_failed || table.is_none() => {}
        }
    }
}

/// Waits for a change of the table. Safe to cancel.
async fn changed(table: &mut Option<TableWatch>) {
    let reported = match table {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    };
    if let Err(error) = reported {
        tracing::warn!(%error, "the kernel does not report changes of firewall tables any more");
        *table = None;
    }
}

/// Puts the rules in force, unless the table is as it was when they were applied last.
///
/// The result counts only once two applications have given the same: another program may come
/// in between. They are put back at once; the pause is behind that.
async fn renew(rules: &KillSwitchRules, applied: &mut Option<Listing>) -> Result<(), NftError> {
    static RENEWALS: LogLimit = LogLimit::new(3, LOG_INTERVAL);
    let found = KillSwitchRules::in_force().await?;
    if found.is_some() && found == *applied {
        return Ok(());
    }
    if applied.is_some() && RENEWALS.admits() {
        tracing::warn!(
            "another program has removed or changed the rules of the kill switch: they are put back"
        );
    }
    let mut last = applied.take();
    for n in 0..APPLICATIONS {
        if n > 0 {
            sleep(PAUSE).await;
        }
        rules.apply().await?;
        let found = KillSwitchRules::in_force().await?;
        if found.is_some() && found == last {
            *applied = found;
            return Ok(());
        }
        last = found;
    }
    Ok(())
}

/// Waits for the end that a signal asks for while `start` runs; the start's result otherwise.
pub(super) async fn unless_stopped<T>(
    start: impl Future<Output = anyhow::Result<T>>,
    stop: &mut Stop,
) -> Result<T, anyhow::Result<&'static str>> {
    tokio::select! {
        started = start => started.map_err(Err),
        signal = stop.asked_for() => Err(Ok(signal)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(user: u32, is_persistent: bool) -> KillSwitchRecord {
        let files = tempfile::tempdir().unwrap();
        let journals = JournalDirectory::create(files.path()).unwrap();
        let rules = KillSwitchRules { tunnel: "vpn0".to_owned(), inbound: Vec::new(), local: Vec::new() };
        KillSwitchPlace::of_this_namespace(&journals).unwrap().record(user, is_persistent, false, rules)
    }

    #[test]
    fn a_user_cannot_end_a_kill_switch_of_others() {
        for (switched_on_by, user, opens) in
            [(7, 7, true), (7, 0, true), (7, 8, false), (0, 7, false), (0, 0, true)]
        {
            for is_persistent in [false, true] {
                let record = record(switched_on_by, is_persistent);
                assert_eq!(End::ByPerson.opens(&record, user), opens, "{switched_on_by} {user}");
            }
        }
    }

    #[test]
    fn only_a_user_ends_a_persistent_kill_switch() {
        let orderly = |signal, is_undone| End::of(&Ok(signal), is_undone);
        assert_eq!(orderly("SIGINT", true), End::ByPerson);
        assert_eq!(orderly("SIGINT", false), End::ByPerson);
        assert_eq!(orderly(BY_USER, true), End::ByPerson);
        assert_eq!(orderly("the end of the client service", true), End::Failed);
        assert_eq!(orderly("another tunnel in its place", true), End::Failed);
        assert_eq!(orderly(ABANDONED, true), End::Abandoned);
        assert_eq!(orderly(ABANDONED, false), End::Failed);
        assert_eq!(orderly("SIGTERM", true), End::InOrder);
        assert_eq!(orderly("SIGTERM", false), End::Failed);
        assert_eq!(End::of(&Err(anyhow::anyhow!("refused")), true), End::Failed);
        let opens = [
            (End::ByPerson, true, true),
            (End::InOrder, true, false),
            (End::Abandoned, true, false),
            (End::Failed, false, false),
        ];
        for (end, on, persistent) in opens {
            let opens = |is_persistent| end.opens(&record(0, is_persistent), 0);
            assert_eq!((opens(false), opens(true)), (on, persistent), "{end:?}");
        }
    }

    #[test]
    fn an_aborted_connect_opens_no_kill_switch_of_others() {
        for (switched_on_by, opens) in [(7, true), (8, false), (0, false)] {
            assert_eq!(End::Abandoned.opens(&record(switched_on_by, false), 7), opens, "{switched_on_by}");
            assert!(End::InOrder.opens(&record(switched_on_by, false), 7), "root ends the service");
        }
    }
}
