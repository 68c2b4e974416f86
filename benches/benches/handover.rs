//! Sealing inline against handing batches to crypto workers, at equal numbers of threads.

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use vpnd_benches::handover::{Arrangement, run};
use vpnd_crypto::backend::choose;
use vpnd_crypto::{Preference, Suite};

fn handover(c: &mut Criterion) {
    for suite in [Suite::Aes256Gcm, Suite::ChaCha20Poly1305] {
        let backend = choose(suite, Preference::Auto).expect("every suite has a backend").backend;
        for (flows, workers) in [(1, 0), (1, 1), (2, 0)] {
            let arrangement = Arrangement { flows, workers };
            let mut group = c.benchmark_group("handover");
            group.throughput(Throughput::Bytes(run(suite, backend, arrangement, 1).bytes));
            group.bench_function(format!("{suite}/{flows} flows, {workers} workers each"), |b| {
                b.iter_custom(|calls| run(suite, backend, arrangement, calls).wall);
            });
            group.finish();
        }
    }
}

fn short() -> Criterion {
    Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1))
}

criterion_group! { name = handovers; config = short(); targets = handover }
criterion_main!(handovers);
