//! Sealing and opening one packet, for every suite over every backend at typical sizes.
//!
//! `cargo bench -p vpnd-benches --bench aead -- aes-256-gcm/1408` narrows it down.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use vpnd_benches::aead;
use vpnd_benches::stage::Stage;
use vpnd_crypto::{Backend, Suite};

/// A small packet, an unfavourable one, an ordinary full one, a jumbo one: plaintext bytes.
const PACKET_LENS: [usize; 4] = [64, 512, 1_408, 8_192];

fn seal(c: &mut Criterion) {
    each_implementation(c, "seal", aead::seal);
}

fn open(c: &mut Criterion) {
    each_implementation(c, "open", aead::open);
}

/// Measures the stage of every suite, backend and packet length.
fn each_implementation(c: &mut Criterion, what: &str, stage: fn(Suite, Backend, usize) -> Stage) {
    for suite in Suite::ALL {
        for len in PACKET_LENS {
            let mut group = c.benchmark_group(format!("{what}/{suite}/{len}"));
            group.throughput(Throughput::Bytes(len as u64));
            for backend in Backend::ALL.into_iter().filter(|backend| backend.supports(suite)) {
                let mut stage = stage(suite, backend, len);
                group.bench_function(BenchmarkId::from_parameter(backend), |b| {
                    b.iter_custom(|calls| stage.run(calls));
                });
            }
            group.finish();
        }
    }
}

fn short() -> Criterion {
    Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1))
}

criterion_group! { name = aeads; config = short(); targets = seal, open }
criterion_main!(aeads);
