//! The end that a signal asks for. It is noticed at once, whatever the client is doing: a task of
//! its own waits for it, and long work looks in between its steps.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// The signal of a person, as Ctrl-C sends it: it ends a kill switch, too. SIGTERM, which a service
/// manager sends, does not end a persistent one.
pub(super) const INTERRUPT: &str = "SIGINT";
pub(super) const TERMINATE: &str = "SIGTERM";

/// Whether the client shall end.
#[derive(Clone, Debug)]
pub(super) struct Stop(watch::Receiver<Option<&'static str>>);

impl Stop {
    /// Takes SIGTERM, SIGINT and SIGHUP of this process from now on, and another end by its name.
    /// A terminal that is closed is no person who ends a kill switch.
    ///
    /// # Errors
    /// If the signals can't be handled.
    pub(super) fn on_signals(other: impl Future<Output = &'static str> + Send + 'static) -> io::Result<Self> {
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let mut hangup = if ignores_hangup() { None } else { Some(signal(SignalKind::hangup())?) };
        let (sender, stop) = watch::channel(None);
        tokio::spawn(async move {
            let name = tokio::select! {
                _ = terminate.recv() => TERMINATE,
                _ = interrupt.recv() => INTERRUPT,
                () = closed(&mut hangup) => TERMINATE,
                name = other => name,
            };
            sender.send_replace(Some(name));
        });
        Ok(Self(stop))
    }

    /// One that is asked for already, or never.
    #[cfg(test)]
    pub(super) fn fixed(name: Option<&'static str>) -> Self {
        Self(watch::channel(name).1)
    }

    pub(super) fn is_asked_for(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// Waits for it; the signal's name. Safe to cancel.
    pub(super) async fn asked_for(&mut self) -> &'static str {
        match self.0.wait_for(Option::is_some).await.map(|name| *name) {
            Ok(Some(name)) => name,
            _ => std::future::pending().await,
        }
    }
}

async fn closed(hangup: &mut Option<Signal>) {
    match hangup {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether this process was started to outlive the terminal, as nohup(1) does.
fn ignores_hangup() -> bool {
    const HANGUP: u64 = 1;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & HANGUP != 0)
}
