//! Addresses, routes and rules of the tunnel: from the routing that is wanted to changes of the
//! machine, and what is in force of them.

use vpnd_proto::control::Network;

use super::presence::Present;
use super::routing::{Overlap, Routing, everything, own_address};
use super::{NetworkError, TunnelLink, host_addresses, table};
use crate::parent::plan::{self, Plan, Step};
use crate::parent::stop::Stop;
use vpnd_journal::{ChangeId, JournalError};
use vpnd_sys::change::{Change, LAST_RESORT_METRIC, Layer, Undone};
use vpnd_sys::netlink::{
    AddressSpec, Family, MAIN_TABLE, NO_TABLE, RouteSpec, RouteTarget, RuleMatch, RuleSpec,
};

/// Outcome of putting back what other programs have removed.
pub(super) struct Renewed {
    /// The changes that were made again.
    pub(super) removed: Vec<String>,
    /// Whether the tunnel's tables are used by vpnd alone; in others' tables nothing is put back.
    pub(super) is_alone: bool,
    /// Why the first of the changes that could not be made again was refused.
    pub(super) failure: Option<NetworkError>,
}

/// The routes in force.
pub(super) struct TunnelRoutes {
    stop: Stop,
    active: Vec<(ChangeId, Change)>,
    /// The routing tables of the tunnel: the one that leads into it, and the one that holds back
    /// what passes that.
    tables: Option<[u32; 2]>,
    /// Local networks as last logged, so that a change alone is logged again.
    overlaps: Vec<Overlap>,
    /// In force while names are looked up.
    lookup_rules: Vec<(ChangeId, Change)>,
}

impl TunnelRoutes {
    /// Nothing yet; what is long ends when `stop` is asked for.
    pub(super) fn new(stop: Stop) -> Self {
        Self { stop, active: Vec::new(), tables: None, overlaps: Vec::new(), lookup_rules: Vec::new() }
    }

    /// Puts back what other programs have removed: one change that is refused, such as an address
    /// of IPv6 where that was switched off, keeps none of the others from it.
    ///
    /// # Errors
    /// If the machine can't be read.
    pub(super) async fn renew(&self, link: &TunnelLink) -> Result<Renewed, NetworkError> {
        let present = Present::read(&link.netlink, &link.interface, link.index).await?;
        let mut renewed = Renewed { removed: Vec::new(), is_alone: true, failure: None };
        if !self.tables.iter().flatten().all(|table| present.leaves_free(*table)) {
            renewed.is_alone = false;
            return Ok(renewed);
        }
        // In the order in which they were made: rules come last.
        for (id, change) in self.active.iter().chain(&self.lookup_rules).filter(|(_, it)| !present.has(it)) {
            match link.journal.renew(&link.netlink, *id).await {
                Ok(()) => renewed.removed.push(change.to_string()),
                Err(error) => {
                    renewed.failure.get_or_insert(error.into());
                }
            }
        }
        Ok(renewed)
    }

    /// Makes the changes that are missing, and returns those to take back. Logs new overlaps with
    /// local networks.
    pub(super) async fn make(
        &mut self,
        link: &mut TunnelLink,
        network: &Network,
        routing: &Routing,
    ) -> Result<Vec<ChangeId>, NetworkError> {
        for overlap in routing.overlaps.iter().filter(|overlap| !self.overlaps.contains(overlap)) {
            overlap.log();
        }
        self.overlaps.clone_from(&routing.overlaps);
        let tables = table::choose(&link.netlink, link.index, self.tables).await?;
        self.tables = Some(tables);
        let Plan { first, obsolete } = plan::plan(&self.active, changes(link, network, routing, tables));
        for step in first {
            self.take(link, step).await?;
        }
        Ok(obsolete)
    }

    /// Takes changes back.
    ///
    /// # Errors
    /// If one could not be taken back, or that not be written down; those after it stay.
    pub(super) async fn take_back(
        &mut self,
        link: &mut TunnelLink,
        obsolete: Vec<ChangeId>,
    ) -> Result<(), NetworkError> {
        for id in obsolete {
            let undone = link.journal.undo(&link.netlink, id).await;
            if is_gone(&undone) {
                self.active.retain(|(active, _)| *active != id);
            }
            undone?;
        }
        Ok(())
    }

    async fn take(&mut self, link: &mut TunnelLink, step: Step<ChangeId>) -> Result<(), NetworkError> {
        // There may be thousands.
        if self.stop.is_asked_for() {
            return Err(NetworkError::Ending);
        }
        let TunnelLink { journal, netlink, .. } = link;
        match step {
            Step::Keep(id) => journal.renew(netlink, id).await?,
            Step::Make(change) => {
                let id = journal.apply(netlink, change.clone()).await?;
                self.active.push((id, change));
            }
            Step::Replace(id, change) => {
                let new = journal.supersede(netlink, id, change.clone()).await?;
                self.active.retain(|(active, _)| *active != id);
                self.active.push((new, change));
            }
        }
        Ok(())
    }

    /// Has what this user asks leave as without the tunnel, and nothing else of a full one's.
    ///
    /// # Errors
    /// If a change was refused.
    pub(super) async fn begin_lookups(
        &mut self,
        link: &mut TunnelLink,
        user: u32,
        is_full: bool,
    ) -> Result<(), NetworkError> {
        if !self.lookup_rules.is_empty() {
            return Ok(());
        }
        for family in [Family::V4, Family::V6] {
            let leads_in = |change: &Change| matches!(change, Change::Rule(rule) if rule.family == family);
            if self.active.iter().any(|(_, change)| leads_in(change)) {
                // A full tunnel would otherwise carry these: a query would only time out while it
                // is dead.
                let refusal = is_full.then_some((Layer::REFUSAL_RULE, NO_TABLE));
                for (rule, table) in [(Layer::LOOKUP_RULE, MAIN_TABLE)].into_iter().chain(refusal) {
                    let (priority, matches) = (link.layer.priority(rule), RuleMatch::User(user));
                    let rule = Change::Rule(RuleSpec { family, priority, matches, table });
                    let id = link.journal.apply(&link.netlink, rule.clone()).await?;
                    self.lookup_rules.push((id, rule));
                }
            }
        }
        Ok(())
    }

    /// Whether rules for look-ups are left to take back.
    pub(super) fn has_lookup_rules(&self) -> bool {
        !self.lookup_rules.is_empty()
    }

    /// Takes them back.
    ///
    /// # Errors
    /// If one could not be taken back, or that not be written down; all others were.
    pub(super) async fn end_lookups(&mut self, link: &mut TunnelLink) -> Result<(), NetworkError> {
        let mut outcome = Ok(());
        for (id, rule) in std::mem::take(&mut self.lookup_rules).into_iter().rev() {
            let undone = link.journal.undo(&link.netlink, id).await;
            if !is_gone(&undone) {
                self.lookup_rules.insert(0, (id, rule));
            }
            if let Err(error) = undone {
                outcome = Err(error.into());
            }
        }
        outcome
    }
}

/// Whether the change is not in force any more, though a full disk may keep that from being written
/// down: it would be put back otherwise, as if another program had removed it.
fn is_gone(undone: &Result<Undone, JournalError>) -> bool {
    !matches!(undone, Err(JournalError::Change { .. }))
}

/// All changes that are wanted. Each comes after those without which it would take more than it is
/// meant for.
fn changes(link: &TunnelLink, network: &Network, routing: &Routing, tables: [u32; 2]) -> Vec<Change> {
    let (interface, index) = (&link.interface, Some(link.index));
    let address = |address| Change::Address(AddressSpec { interface: interface.clone(), index, address });
    let mut wanted: Vec<Change> = host_addresses(network).into_iter().map(address).collect();
    wanted.push(Change::LinkUp { interface: interface.clone() });
    wanted.extend(routes(link, network, routing, tables));
    wanted
}

/// Routes and rules.
fn routes(
    link: &TunnelLink,
    network: &Network,
    routing: &Routing,
    [table, closing]: [u32; 2],
) -> Vec<Change> {
    let (mut changes, mut last) = (Vec::new(), Vec::new());
    let (mark, mask) = link.layer.passed_over();
    let rule = |family, place, table| {
        let (priority, matches) = (link.layer.priority(place), RuleMatch::NotMarked { mark, mask });
        Change::Rule(RuleSpec { family, priority, matches, table })
    };
    let special = |destination, target, table| {
        let metric = Some(LAST_RESORT_METRIC);
        Change::Route(RouteSpec { destination, target, source: None, table, metric })
    };
    last.extend(routing.families().map(|family| rule(family, Layer::TUNNEL_RULE, table)));
    if routing.is_full {
        changes.extend(routing.outside().map(|local| special(local, RouteTarget::Throw, closing)));
        let families = || routing.families();
        changes.extend(families().map(|family| special(everything(family), RouteTarget::Closed, closing)));
        last.extend(families().map(|family| rule(family, Layer::CLOSING_RULE, closing)));
    }
    let aside = |destination, target| special(destination, target, table);
    changes.extend(routing.outside().map(|local| aside(local, RouteTarget::Throw)));
    changes.extend(routing.destinations.iter().map(|&destination| {
        let target = RouteTarget::Interface(link.interface.clone());
        let source = own_address(network, destination.addr());
        Change::Route(RouteSpec { destination, target, source, table, metric: None })
    }));
    // Refused at once, where a silent loss would have every program wait.
    let refused = routing.refused.iter().map(|family| everything(*family));
    changes.extend(refused.map(|rest| aside(rest, RouteTarget::Unreachable)));
    changes.extend(last);
    changes
}
