//! The machine's own tunnel, by a profile with `machine`: up from the start of the service, while
//! no user has one.
//!
//! INVARIANT: no user's client changes the machine before the machine's has ended, which leaves a
//! kill switch to it, and none ends it before its user has answered what is asked without the
//! gateway; the machine's comes back once no user's is left, and a login does not keep it down for
//! long. One that ends by itself is started again, later and later: its gateway may let it in
//! again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::Service;
use super::profiles::{Found, Profiles};
use super::running::{self, Handle, Plan};
use vpnd_client::user_messages::Login;
use vpnd_sys::clock::wall_s;

/// Pauses before another start of a client that has ended by itself.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The pauses of one machine.
struct Pauses(Duration);

impl Pauses {
    /// The pause after a client that has lasted as long as this.
    fn after(&mut self, lasted: Duration) -> Duration {
        if lasted > LONGEST_PAUSE {
            self.0 = FIRST_PAUSE;
        }
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST_PAUSE);
        pause
    }
}

/// Wakes the task that keeps the machine's tunnel up.
#[derive(Default)]
pub(super) struct Turn {
    /// It may begin, where nothing else keeps it down.
    may_begin: Notify,
    /// The cause of its failure may be over.
    change: Notify,
}

impl Turn {
    /// It may begin, if it is not in the pause after a failure: what users do without a tunnel is
    /// no reason to ask the gateway again.
    pub(super) fn may_have_come(&self) {
        self.may_begin.notify_one();
    }

    /// It may begin, also in the pause after a failure. A pause that comes later is not cut short.
    pub(super) fn has_come(&self) {
        self.change.notify_waiters();
        self.may_begin.notify_one();
    }

    /// Waits for the end of a pause.
    async fn after(&self, pause: Duration) {
        tokio::select! {
            () = sleep(pause) => {}
            () = self.change.notified() => {}
        }
    }
}

/// Keeps the machine's tunnel down while a user's command does what its client would be in the way
/// of.
pub(super) struct Break(Arc<Service>);

impl Break {
    /// Begins one, and waits for the client's end, which leaves a kill switch on.
    pub(super) async fn begin(service: &Arc<Service>) -> Self {
        service.tunnels().begin_pause();
        let begun = Self(Arc::clone(service));
        give_way(service).await;
        begun
    }
}

impl Drop for Break {
    fn drop(&mut self) {
        self.0.tunnels().end_pause();
        self.0.machines_turn.may_have_come();
    }
}

/// Keeps the machine's tunnel up while it may be. Never returns; to be cancelled at the service's
/// end.
pub(super) async fn keep(service: Arc<Service>) {
    let mut pauses = Pauses(FIRST_PAUSE);
    loop {
        let Some(mut client) = start(&service) else {
            service.machines_turn.may_begin.notified().await;
            continue;
        };
        let since = Instant::now();
        client.over().await;
        if client.is_asked_to_end() {
            pauses = Pauses(FIRST_PAUSE);
            continue;
        }
        service.machines_turn.after(pauses.after(since.elapsed())).await;
    }
}

/// Starts the machine's client, if there is a profile for it and no user has a tunnel.
fn start(service: &Arc<Service>) -> Option<Handle> {
    let profile = match Profiles::new(&service.args.profiles, None).of_this_machine() {
        Ok(profile) => profile?,
        Err(error) => {
            tracing::error!(%error, "whether this machine has a profile of its own is not known");
            return None;
        }
    };
    let (handle, ends) = running::handle(&profile.name);
    let begun = service.tunnels().begin_machines(&profile.name, wall_s(), handle.clone());
    let id = begun?;
    tracing::info!(profile = profile.name, "the machine connects");
    let Found { path, .. } = profile;
    let plan = Plan {
        id,
        uid: 0,
        is_machines: true,
        // A client that root starts has its keys there, too.
        place: service.args.state_dir.clone(),
        profile: path,
        login: Login::default(),
    };
    if let Err(error) = running::start(service, plan, ends, None) {
        tracing::error!(%error, "the machine's client can't be started");
        service.tunnels().end(id, "the client can't be started", wall_s());
    }
    Some(handle)
}

/// The profile of the machine's own tunnel, unless root keeps that down.
pub(super) fn wanted(service: &Service) -> Option<Found> {
    let profile = Profiles::new(&service.args.profiles, None).of_this_machine();
    profile.ok().flatten().filter(|_| !service.tunnels().is_machines_held())
}

/// Has the machine's tunnel give way to a user's, whose turn it is already.
pub(super) async fn give_way(service: &Service) {
    let client = service.tunnels().machines().cloned();
    if let Some(mut client) = client {
        client.give_way();
        client.over().await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn a_client_that_ends_by_itself_is_started_later_and_later() {
        let mut pauses = Pauses(FIRST_PAUSE);
        let seconds: Vec<u64> = (0..8).map(|_| pauses.after(Duration::from_secs(1)).as_secs()).collect();
        assert_eq!(seconds, [5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(pauses.after(Duration::from_secs(301)), FIRST_PAUSE, "it was up for a while");
    }

    #[tokio::test]
    async fn only_a_change_during_a_pause_ends_it() {
        let (turn, soon) = (Turn::default(), Duration::from_millis(20));
        let is_over = async |turn: &Turn| timeout(soon, turn.after(LONGEST_PAUSE)).await.is_ok();
        turn.has_come();
        assert!(!is_over(&turn).await, "that was before the pause");
        let (refused, _) = tokio::join!(is_over(&turn), async { turn.may_have_come() });
        assert!(!refused, "a login that failed is no change");
        let (ended, ()) = tokio::join!(is_over(&turn), async { turn.has_come() });
        assert!(ended);
        assert!(timeout(soon, turn.may_begin.notified()).await.is_ok(), "one that waits for its turn looks");
    }
}
