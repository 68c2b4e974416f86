//! The cost of each inner packet beside encryption: header, checks, replay window, routes, policy,
//! slicing and rebuilding.

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use vpnd_benches::stage::Stage;
use vpnd_benches::traffic::{MAX_SLICES, MTU};
use vpnd_benches::{offload, packet};

fn measure(c: &mut Criterion, group: &str, id: &str, stage: &mut Stage) {
    let mut group = c.benchmark_group(group);
    group.throughput(Throughput::Bytes(stage.load.bytes as u64));
    group.bench_function(id, |b| b.iter_custom(|calls| stage.run(calls)));
    group.finish();
}

fn packets(c: &mut Criterion) {
    for mut stage in packet::stages(MTU).into_iter().chain(packet::flow_stages(MTU)) {
        measure(c, "packet", stage.name.stage, &mut stage);
    }
}

fn offloads(c: &mut Criterion) {
    for (name, peer) in offload::PEERS {
        measure(c, "offload", &format!("slice 64 KiB, {name}"), &mut offload::slice(MAX_SLICES, peer));
        measure(c, "offload", &format!("rebuild 64 KiB, {name}"), &mut offload::rebuild(MAX_SLICES, peer));
    }
}

fn short() -> Criterion {
    Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1))
}

criterion_group! { name = benches; config = short(); targets = packets, offloads }
criterion_main!(benches);
