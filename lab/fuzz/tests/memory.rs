//! Damaged and hostile images do not make a program use more memory than a sound one of their size.
//!
//! The system refuses this process any memory beyond the limit, which ends it. So each test has a process to
//! itself.

use crate::alone::is_alone;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use syncline_fuzz::bases::IMAGES;
use syncline_fuzz::targets::{ALL, Target, describe};

/// Memory that any of them may use beside the base images, as docs/MEMORY.md says.
const ROOM_BYTES: u64 = 64 << 20;
/// Start of the random inputs of a test run.
const SEED: u64 = 19_700_101;

fn status_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).expect("Linux tells it");
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz-targets/corpus").join(target.name);
    let entries = std::fs::read_dir(place).expect("every target has a corpus");
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// An input of the corpus with some bytes changed, or random bytes.
fn input(rng: &mut ChaCha8Rng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = corpus[rng.random_range(0..corpus.len())].clone();
    if rng.random_range(0..3) == 0 || bytes.is_empty() {
        bytes.resize(rng.random_range(1..500), 0);
        rng.fill_bytes(&mut bytes);
    }
    for _ in 0..rng.random_range(0..8) {
        let at = rng.random_range(0..bytes.len());
        bytes[at] = rng.random();
    }
    bytes
}

/// Opens, uses and checks images for this long, under the limit.
fn try_images(first: u64, time: Duration) {
    LazyLock::force(&IMAGES);
    let limit = Some(status_bytes("VmData:") + ROOM_BYTES);
    setrlimit(Resource::Data, Rlimit { current: limit, maximum: limit }).expect("a lower limit may be set");
    let targets: Vec<_> =
        ALL.iter().filter(|target| target.image).map(|target| (target, corpus(target))).collect();
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status_bytes("VmHWM:");
    let (begun, mut tried) = (Instant::now(), 0);
    for seed in first.. {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        for (target, corpus) in &targets {
            let bytes = input(&mut rng, corpus);
            let caught = catch_unwind(AssertUnwindSafe(|| (target.run)(&bytes)));
            assert!(
                caught.is_ok(),
                "{}: seed {seed} fails; it means {}",
                target.name,
                describe(target, &bytes)
            );
            tried += 1;
        }
        if begun.elapsed() > time {
            break;
        }
    }
    let grown = status_bytes("VmHWM:").saturating_sub(before);
    println!(
        "{tried} images from seed {first} on: {} MiB at most, {} MiB stated",
        grown >> 20,
        ROOM_BYTES >> 20
    );
    assert!(grown <= ROOM_BYTES);
}

#[test]
fn hostile_images_are_kept_within_the_stated_memory() {
    if is_alone("memory::hostile_images_are_kept_within_the_stated_memory") {
        try_images(SEED, Duration::from_secs(5));
    }
}

/// Runs for `SYNCLINE_HOSTILE_SECONDS`, starting with a seed that it prints.
#[test]
#[ignore = "for a long time: just hostile"]
fn hostile_images_for_a_long_time() {
    if !is_alone("memory::hostile_images_for_a_long_time") {
        return;
    }
    let seconds = std::env::var("SYNCLINE_HOSTILE_SECONDS").map_or(600, |seconds| seconds.parse().unwrap());
    try_images(rand::random::<u32>().into(), Duration::from_secs(seconds));
}
