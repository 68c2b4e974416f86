//! The data path, as the worker sees it: its shards, what they report, and when they are looked at.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use vpnd_proto::plane::{Activity, Command, Endpoint, Event};
use vpnd_proto::time::Time;
use vpnd_shard::{EVENT_QUEUE, PollCounts, ShardSpec, Shards};

use super::looks::Looks;
use super::path::mapped;
use vpnd_sys::clock::now;

pub(super) struct DataPath {
    shards: Shards,
    events: mpsc::Receiver<Event>,
    looks: Looks,
    /// All that went through the tunnel.
    carried: Activity,
    /// Cost and yield of polling, as the shards last reported them.
    polled: PollCounts,
    /// Whether the sockets are for both protocol versions.
    dual_stack: bool,
}

pub(super) enum DataPathEvent {
    Shard(Event),
    /// [`DataPath::look`] is to be called.
    LookDue,
}

impl DataPath {
    /// Needs a runtime.
    pub(super) fn start(specs: Vec<ShardSpec>) -> io::Result<Self> {
        let (sender, events) = mpsc::channel(EVENT_QUEUE);
        let dual_stack =
            specs.iter().all(|spec| spec.socket.local_addr().is_ok_and(|address| address.is_ipv6()));
        Ok(Self {
            shards: Shards::start(specs, &sender)?,
            events,
            looks: Looks::new(),
            carried: Activity::default(),
            polled: PollCounts::default(),
            dual_stack,
        })
    }

    /// Notified when a shard has stopped by itself.
    pub(super) fn failure(&self) -> Arc<Notify> {
        self.shards.failure()
    }

    /// Safe to cancel.
    pub(super) async fn next(&mut self) -> DataPathEvent {
        let Self { shards, events, looks, .. } = self;
        tokio::select! {
            Some(event) = events.recv() => DataPathEvent::Shard(event),
            () = looks.due(shards) => DataPathEvent::LookDue,
        }
    }

    pub(super) async fn command(&self, shard: usize, command: Command) {
        self.shards.command(shard, command).await;
    }

    /// Sets the tunnel's MTU, to which new TCP connections are held in both directions, also where
    /// it is too small for the device.
    pub(super) async fn set_mtu(&self, mtu: u16) {
        self.shards.set_mtu(mtu).await;
    }

    /// Looks at the shards: what has passed at each since the look before.
    pub(super) async fn look(&mut self) -> Vec<Activity> {
        // First, so that no packet passes unreported after the figures are taken.
        self.shards.await_packets();
        self.polled = PollCounts::default();
        let mut all = Vec::new();
        for report in self.shards.report().await {
            self.polled = self.polled + report.poll;
            let seen = report.activities.into_iter().map(|(_, activity)| activity);
            let seen = seen.fold(Activity::default(), Activity::merge);
            self.carried = self.carried.merge(seen);
            all.push(seen);
        }
        all
    }

    /// The look has shown whether there was nothing. Returns whether something has passed, and
    /// nothing does any more.
    pub(super) fn note_look(&mut self, is_quiet: bool) -> bool {
        self.looks.note(now(), is_quiet)
    }

    /// Nothing but looks is to be done before `due`.
    pub(super) fn expect(&mut self, due: Option<Time>) {
        self.looks.expect(now(), due);
    }

    /// The time until `now` for which nothing has run here, if that is more than load explains.
    pub(super) fn slept(&mut self, now: Time) -> Option<Duration> {
        self.looks.slept(now)
    }

    /// The gateway at this address, as the sockets name it: those for both protocol versions name
    /// an IPv4 gateway by its mapped address.
    pub(super) fn endpoint(&self, gateway: SocketAddr) -> Endpoint {
        Endpoint { remote: if self.dual_stack { mapped(gateway) } else { gateway }, local: None }
    }

    pub(super) fn carried(&self) -> Activity {
        self.carried
    }

    pub(super) fn polled(&self) -> PollCounts {
        self.polled
    }
}
