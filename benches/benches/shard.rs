//! One whole shard on made-up devices, in each of its three ways, for 64 KiB TCP super-packets and
//! for 64-byte packets; at the gateway also with rate limits.

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use vpnd_benches::shard::{Burst, limited_stage, stage};
use vpnd_benches::stage::{Side, Stage};
use vpnd_benches::traffic::MAX_SLICES;
use vpnd_crypto::backend::choose;
use vpnd_crypto::{Preference, Suite};

fn shard(c: &mut Criterion) {
    for suite in [Suite::Aes256Gcm, Suite::ChaCha20Poly1305, Suite::Null] {
        let backend = choose(suite, Preference::Auto).expect("every suite has a backend").backend;
        for side in [Side::Sender, Side::Receiver, Side::Hub] {
            for burst in [Burst::super_packet(MAX_SLICES), Burst::SMALL] {
                measure(c, stage(side, suite, backend, burst), burst);
                if side != Side::Sender {
                    measure(c, limited_stage(side, suite, backend, burst), burst);
                }
            }
        }
    }
}

fn measure(c: &mut Criterion, mut stage: Stage, burst: Burst) {
    let (id, load) = (stage.id(), stage.load);
    let mut group = c.benchmark_group("shard");
    group.throughput(if burst == Burst::SMALL {
        Throughput::Elements(load.packets as u64)
    } else {
        Throughput::Bytes(load.bytes as u64)
    });
    group.bench_function(id, |b| b.iter_custom(|calls| stage.run(calls)));
    group.finish();
}

fn short() -> Criterion {
    Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1))
}

criterion_group! { name = shards; config = short(); targets = shard }
criterion_main!(shards);
