//! Shards without threads, devices and traffic, for tests of what commands them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Notify, mpsc};
use vpnd_proto::plane::Counters;

use super::{MESSAGE_QUEUE, PollCounts, Queued, Report, ShardMessage, Shards, TunWrites, UdpOffloads};

/// Shards that answer at once, and how many of their figures were wanted. Needs a runtime.
#[must_use]
pub fn answering(count: usize) -> (Shards, Arc<AtomicUsize>) {
    let reports = Arc::new(AtomicUsize::new(0));
    let start = |_| {
        let (queue, inbox) = mpsc::channel(MESSAGE_QUEUE);
        tokio::spawn(answer(inbox, Arc::clone(&reports)));
        queue
    };
    let queues = (0..count).map(start).collect();
    (Shards { queues, threads: Vec::new(), failure: Arc::new(Notify::new()), stir: Arc::default() }, reports)
}

async fn answer(mut inbox: mpsc::Receiver<Queued>, reports: Arc<AtomicUsize>) {
    while let Some(Queued::Message(message)) = inbox.recv().await {
        // The caller that waits for an answer may be gone.
        match message {
            ShardMessage::Report(reply) => {
                reports.fetch_add(1, Ordering::Relaxed);
                let _ = reply.send(report());
            }
            ShardMessage::Barrier(done) => {
                let _ = done.send(());
            }
            ShardMessage::Plane(_) | ShardMessage::Mtu(_) => {}
        }
    }
}

fn report() -> Report {
    let udp = UdpOffloads {
        gso_segments: 1,
        gso_gave_up: false,
        gro: false,
        recv_buffer: 0,
        send_buffer: 0,
        may_fragment: false,
    };
    let (tun, poll) = (TunWrites::default(), PollCounts::default());
    Report { counters: Counters::default(), activities: Vec::new(), udp, tun, poll }
}
