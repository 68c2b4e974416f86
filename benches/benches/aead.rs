//! Sealing and opening one packet, for every suite over every backend at typical sizes.
//!
//! `cargo bench -p vpnd-benches --bench aead -- aes-256-gcm/1408` narrows it down.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use vpnd_crypto::{Backend, Direction, EpochSecret, LabPermit, OpenKey, SealKey, Suite};

/// A small packet, an unfavourable one, an ordinary full one, a jumbo one: plaintext bytes.
const PACKET_LENS: [usize; 4] = [64, 512, 1_408, 8_192];

const AAD: [u8; 16] = [0x80; 16];

fn seal(c: &mut Criterion) {
    each_implementation(c, "seal", |b, seal_key, _, len| {
        let mut buf = vec![0; seal_key.suite().sealed_len(len)];
        let mut counter = 0;
        b.iter(|| {
            // Measuring takes more packets than a key may seal.
            counter = (counter + 1) % seal_key.suite().limits().refuse_after;
            seal_key.seal_in_place(black_box(counter), &AAD, black_box(&mut buf), len)
        });
    });
}

fn open(c: &mut Criterion) {
    each_implementation(c, "open", |b, seal_key, open_key, len| {
        let mut sealed = vec![0; seal_key.suite().sealed_len(len)];
        seal_key.seal_in_place(1, &AAD, &mut sealed, len).expect("the buffer has room");
        // Opening consumes the packet, so each gets a copy, which is not measured.
        b.iter_batched_ref(
            || sealed.clone(),
            |packet| open_key.open_in_place(black_box(1), &AAD, black_box(packet)).map(|text| text.len()),
            BatchSize::SmallInput,
        );
    });
}

/// Runs `bench` with the keys of every suite, backend and packet length.
fn each_implementation(
    c: &mut Criterion,
    what: &str,
    bench: impl Fn(&mut criterion::Bencher<'_>, &SealKey, &OpenKey, usize),
) {
    let secret = EpochSecret::new([0x42; 32]);
    let permit = Some(LabPermit::insecure());
    for suite in Suite::ALL {
        for len in PACKET_LENS {
            let mut group = c.benchmark_group(format!("{what}/{suite}/{len}"));
            group.throughput(Throughput::Bytes(len as u64));
            for backend in Backend::ALL.into_iter().filter(|backend| backend.supports(suite)) {
                let lane_key = secret.lane_key(suite, Direction::ToGateway, 0);
                let seal_key =
                    SealKey::new(suite, backend, &lane_key, permit).expect("suite and backend fit");
                let open_key =
                    OpenKey::new(suite, backend, &lane_key, permit).expect("suite and backend fit");
                group.bench_function(BenchmarkId::from_parameter(backend), |b| {
                    bench(b, &seal_key, &open_key, len);
                });
            }
            group.finish();
        }
    }
}

fn short() -> Criterion {
    Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1))
}

criterion_group! { name = aead; config = short(); targets = seal, open }
criterion_main!(aead);
