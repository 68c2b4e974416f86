//! Reports to the control plane that packets pass again, if it waits for that: so it need not look
//! while nothing passes.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Shared by all shards and the control plane.
#[derive(Debug, Default)]
pub(crate) struct Stir {
    is_armed: AtomicBool,
    notify: Notify,
}

impl Stir {
    /// From now on the next packets are reported.
    pub(crate) fn arm(&self) {
        self.is_armed.store(true, Ordering::Relaxed);
    }

    /// Packets pass. For each batch of them.
    #[inline]
    pub(crate) fn note(&self) {
        if self.is_armed.load(Ordering::Relaxed) && self.is_armed.swap(false, Ordering::Relaxed) {
            self.notify.notify_one();
        }
    }

    /// Waits until packets have passed since it was armed. Safe to cancel.
    pub(crate) async fn noted(&self) {
        self.notify.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_packet_is_signalled_once_and_only_to_a_waiter() {
        let stir = Stir::default();
        let comes = async || timeout(Duration::from_millis(20), stir.noted()).await.is_ok();
        stir.note();
        assert!(!comes().await, "nobody waited for them");
        stir.arm();
        assert!(!comes().await);
        stir.note();
        stir.note();
        assert!(comes().await);
        assert!(!comes().await);
    }
}
