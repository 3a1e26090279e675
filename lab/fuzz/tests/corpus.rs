//! Runs every saved input, and a bounded random sample, through every target.

use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use syncline_check::{Condition, FindingKind, Repair, RepairOptions, repair};
use syncline_device::{Background, Device, MemoryDevice, Spawn, WorkerOptions, block_on};
use syncline_fuzz::hard::{examine, hold};
use syncline_fuzz::single::{Single, names_of_snapshots, without_own_page};
use syncline_fuzz::targets::{ALL, Target, describe};
use syncline_store::read_snapshots;

/// Start of the random inputs of a test run.
const SEED: u64 = 20_261_121;

fn kept(kind: &str, target: &Target) -> Vec<PathBuf> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz-targets").join(kind).join(target.name);
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

fn mend(device: &Arc<MemoryDevice>, accept_loss: bool) -> Repair {
    let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default()).unwrap());
    let options = RepairOptions { accept_loss, ..RepairOptions::default() };
    block_on(repair(device.clone(), spawn, &options, &mut |_| {})).unwrap()
}

/// Numbers that decoders once took, though a mount ended at them.
#[test]
fn fields_that_nobody_can_go_on_from_hold() {
    const LAST: u64 = i64::MAX as u64;
    let of_others = [
        Single::superblock(208, LAST),
        Single::superblock(112, LAST),
        Single::superblock(216, LAST),
        Single::snapshot(0, LAST),
        Single::snapshot(0, 1 << 40),
    ];
    let of_batches = [
        Single::last_batch(40, LAST),
        Single::last_batch(56, LAST),
        Single::last_batch(104, 31),
        Single::last_batch(104, 32),
    ];
    let bears =
        |device: &Arc<MemoryDevice>, what: &str| hold(device).unwrap_or_else(|why| panic!("{what}: {why}"));
    let clean = of_others.iter().filter(|single| bears(&single.device(), &format!("{single:?}"))).count();
    // Nothing is wrong where no number is left: nothing can be created any more.
    assert!(clean >= 1, "the least free number may be the last");
    for single in of_batches {
        let (device, what) = (single.device(), format!("{single:?}"));
        if !bears(&device, &what) {
            let done = mend(&device, true);
            assert_eq!(done.condition(), Condition::Repaired, "{what}: {:?}", done.refused);
            assert!(bears(&device, &what), "{what} is sound after a repair");
        }
    }
}

/// The others stay, and so does everything else.
#[test]
fn a_snapshot_that_nobody_can_keep_can_be_given_up() {
    let names = names_of_snapshots();
    for (entry, lost) in names.iter().enumerate() {
        let device = without_own_page(entry);
        let report = examine(&device).expect("it can be checked");
        assert!(report.of(FindingKind::SnapshotTable).next().is_some(), "{:?}", report.findings);
        let before = device.image();
        let refused = mend(&device, false);
        assert!(refused.refused_for_loss, "{:?}", refused.refused);
        assert!(refused.refused.is_some_and(|why| why.contains(lost.as_str())), "it names the snapshot");
        assert!(device.image() == before, "a refusal wrote");
        let done = mend(&device, true);
        assert_eq!(done.condition(), Condition::Repaired, "{:?}: {:?}", done.refused, done.changes);
        assert!(done.changes.iter().any(|change| change.text.contains(lost.as_str())), "{:?}", done.changes);
        let any: Arc<dyn Device> = device.clone();
        let (_, left) = block_on(read_snapshots(&any)).unwrap();
        let left: Vec<&String> = left.iter().map(|snapshot| &snapshot.name).collect();
        assert_eq!(left, names.iter().filter(|name| *name != lost).collect::<Vec<_>>());
        assert!(hold(&device).unwrap(), "it is sound");
    }
}

/// One field at a time, with checksums that are right, in images with a log and with snapshots.
#[test]
fn images_that_a_check_calls_clean_bear_hard_use() {
    let (mut tried, mut clean) = (0, 0);
    let started = Instant::now();
    for single in Single::all(&mut ChaCha8Rng::seed_from_u64(SEED)) {
        // Fewer on a slow machine, but always some: this test is one of many.
        let whole = std::env::var("SYNCLINE_FUZZ_WHOLE").is_ok();
        if tried > 100 && !whole && started.elapsed() > Duration::from_secs(10) {
            break;
        }
        tried += 1;
        clean += usize::from(hold(&single.device()).unwrap_or_else(|what| panic!("{single:?}: {what}")));
    }
    println!("{tried} images, {clean} of them clean");
    assert!(clean > tried / 20 && clean < tried, "{tried} images, {clean} of them clean");
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
