//! Microbenchmarks of the engine's small parts, measured at length: `cargo bench -p
//! syncline-bench`.
#![allow(missing_docs, reason = "criterion's macros make public items")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use syncline_bench::micro;

fn parts(criterion: &mut Criterion) {
    for part in &micro::ALL {
        let mut group = criterion.benchmark_group(part.name);
        if let Some(bytes) = part.bytes {
            group.throughput(Throughput::Bytes(bytes));
        }
        let mut routine = (part.routine)().expect("it can be prepared in memory");
        group.bench_function(part.operation, |bencher| bencher.iter(&mut routine));
        group.finish();
    }
}

criterion_group!(benches, parts);
criterion_main!(benches);
