//! Small parts of the engine, on a device in memory: the cost of a transaction, a seal, a merge, a
//! lookup, a checksum and a receipt.
//!
//! `cargo bench -p syncline-bench` measures them at length, `syncline-lab bench micro` briefly.

mod files;
mod fsync;
mod store;
mod trees;

use crate::outcome::{MicroResult, Spread};
use crate::{BenchError, Interrupt};
use std::hint::black_box;
use std::time::{Duration, Instant};
use syncline_format::{BLOCK_BYTES, block_checksums, crc};

/// Samples of each part, and about how long one lasts.
const SAMPLES: usize = 11;
const SAMPLE: Duration = Duration::from_millis(20);

/// One operation. It owns everything it needs; a device in memory does not fail.
pub type Routine = Box<dyn FnMut()>;

/// A part to measure.
pub struct Micro {
    /// Its name.
    pub name: &'static str,
    /// A description of one operation.
    pub operation: &'static str,
    /// Bytes that it processes, if that matters.
    pub bytes: Option<u64>,
    /// Prepares the operation.
    pub routine: fn() -> Result<Routine, BenchError>,
}

/// All parts.
pub const ALL: [Micro; 15] = [
    Micro { name: "library", operation: "create", bytes: None, routine: files::create },
    Micro { name: "library", operation: "create and remove", bytes: None, routine: files::create_and_remove },
    Micro { name: "store", operation: "transaction of 3 items", bytes: None, routine: store::transaction },
    Micro { name: "store", operation: "transaction and sync", bytes: None, routine: store::synced },
    Micro { name: "store", operation: "lookup", bytes: None, routine: store::lookup },
    Micro { name: "log", operation: "seal of 1000 items", bytes: None, routine: store::seal },
    Micro { name: "tree", operation: "merge of 1000 items, near", bytes: None, routine: trees::merge_near },
    Micro { name: "tree", operation: "merge of 1000 items, far", bytes: None, routine: trees::merge_far },
    Micro { name: "tree", operation: "lookup", bytes: None, routine: trees::lookup },
    Micro { name: "checksum", operation: "64 KiB, each block", bytes: Some(64 << 10), routine: checksum },
    Micro { name: "receipt", operation: "kept", bytes: None, routine: fsync::receipt },
    Micro { name: "fsync", operation: "nothing to do", bytes: None, routine: fsync::elided },
    Micro {
        name: "fsync",
        operation: "nothing to do, no receipts",
        bytes: None,
        routine: fsync::elided_without,
    },
    Micro { name: "fsync", operation: "write of 4 KiB", bytes: None, routine: fsync::written },
    Micro {
        name: "fsync",
        operation: "write of 4 KiB, no receipts",
        bytes: None,
        routine: fsync::written_without,
    },
];

fn checksum() -> Result<Routine, BenchError> {
    let data: Vec<u8> = (0..16 * BLOCK_BYTES).map(|at| (at % 251) as u8).collect();
    Ok(Box::new(move || {
        for checksum in block_checksums(black_box(&data)) {
            black_box(checksum);
        }
    }))
}

/// Evenly spread numbers, always the same (SplitMix64).
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new() -> Self {
        Self(u64::from(crc(b"bench")))
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// Measures all parts briefly.
pub fn measure(interrupt: &Interrupt, mut begun: impl FnMut(&Micro)) -> Result<Vec<MicroResult>, BenchError> {
    let mut results = Vec::with_capacity(ALL.len());
    for micro in &ALL {
        interrupt.check()?;
        begun(micro);
        let mut routine = (micro.routine)()?;
        let ns = time(&mut *routine);
        results.push(MicroResult { name: micro.name, operation: micro.operation, ns, bytes: micro.bytes });
    }
    Ok(results)
}

/// Nanoseconds of one call, from samples of many calls each.
fn time(routine: &mut dyn FnMut()) -> Spread {
    let mut calls = 1u32;
    loop {
        let elapsed = repeat(routine, calls);
        if elapsed >= SAMPLE {
            break;
        }
        // Approach the length of a sample, but not in one step: the first calls are slow.
        let wanted = SAMPLE.as_secs_f64() / elapsed.as_secs_f64().max(1e-9);
        calls = (f64::from(calls) * wanted.clamp(1.2, 10.0)).ceil() as u32;
    }
    let samples = (0..SAMPLES).map(|_| repeat(routine, calls).as_nanos() as f64 / f64::from(calls));
    Spread::of(samples).unwrap_or_default()
}

fn repeat(routine: &mut dyn FnMut(), calls: u32) -> Duration {
    let started = Instant::now();
    for _ in 0..calls {
        routine();
    }
    started.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_runs_and_runs_again() {
        for micro in &ALL {
            let mut routine = (micro.routine)().unwrap();
            for _ in 0..3 {
                routine();
            }
        }
    }

    #[test]
    fn time_is_that_of_one_call() {
        let spread = time(&mut || std::thread::sleep(Duration::from_micros(500)));
        assert!((500_000.0..50_000_000.0).contains(&spread.median), "{spread:?}");
        assert!(spread.min <= spread.median && spread.median <= spread.max);
    }
}
