//! Runs every saved input, and a bounded random sample, through every target.

use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use syncline_fuzz::targets::{ALL, Target, describe};

/// Start of the random inputs of a test run.
const SEED: u64 = 20_261_121;

fn kept(kind: &str, target: &Target) -> Vec<PathBuf> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(kind).join(target.name);
    let Ok(entries) = std::fs::read_dir(place) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Runs one input; if it fails, says which input it was.
fn attempt(target: &Target, bytes: &[u8], what: &str) {
    let caught = catch_unwind(AssertUnwindSafe(|| (target.run)(bytes)));
    if caught.is_err() {
        panic!("{}: {what} fails; it means {}", target.name, describe(target, bytes));
    }
}

fn run_kept(kind: &str) -> usize {
    let mut count = 0;
    for target in &ALL {
        for path in kept(kind, target) {
            attempt(target, &std::fs::read(&path).unwrap(), &path.display().to_string());
            count += 1;
        }
    }
    count
}

#[test]
fn the_corpus_holds() {
    let count = run_kept("corpus");
    println!("{count} inputs");
    assert!(count >= ALL.len(), "every target has a corpus");
}

#[test]
fn what_once_failed_holds() {
    println!("{} inputs", run_kept("regressions"));
}

/// Random bytes, and inputs of the corpus with a few bytes changed.
#[test]
fn random_inputs_hold() {
    for target in &ALL {
        let corpus: Vec<_> = kept("corpus", target).iter().map(|path| std::fs::read(path).unwrap()).collect();
        let rounds = if target.image { 300 } else { 20_000 };
        let started = Instant::now();
        let mut ran = 0;
        for round in 0..rounds {
            // Fewer on a slow machine: this test is one of many.
            if started.elapsed() > Duration::from_secs(3) {
                break;
            }
            let mut rng = ChaCha8Rng::seed_from_u64(SEED + round);
            let mut bytes = match corpus.len() {
                0 => Vec::new(),
                count => corpus[rng.random_range(0..count)].clone(),
            };
            if round % 2 == 0 || bytes.is_empty() {
                bytes.resize(rng.random_range(1..400), 0);
                rng.fill_bytes(&mut bytes);
            }
            for _ in 0..rng.random_range(0..6) {
                let at = rng.random_range(0..bytes.len());
                bytes[at] = rng.random();
            }
            attempt(target, &bytes, &format!("seed {}", SEED + round));
            ran += 1;
        }
        println!("{}: {ran} random inputs", target.name);
        assert!(ran > 0);
    }
}
