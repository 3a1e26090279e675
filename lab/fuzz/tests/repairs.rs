//! Everything that a mount could read before a repair it reads after it: a search over images with
//! one changed item.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use syncline_check::Flaw;
use syncline_format::Kind;
use syncline_fuzz::bases::{EVERYTHING, IMAGES};
use syncline_fuzz::repairs::{Figures, Planted, attempt};
use syncline_sim::searches::{Search, found_by};

/// Start of the seeds of a test run.
const SEED: u64 = 1;
/// Seeds in which each planted flaw must be found.
const SEEDS_MAX: u64 = 1500;

/// Tries a seed; an error says what is wrong, including a panic.
fn try_seed(seed: u64, planted: Option<Planted>) -> Result<Figures, String> {
    let caught = catch_unwind(AssertUnwindSafe(|| attempt(seed, planted)));
    caught.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("seed {seed} panics: {}", text.unwrap_or_default()))
    })
}

/// Searches for this long, starting with this seed.
fn search(first: u64, time: Duration) -> (Figures, Vec<String>) {
    let (mut figures, mut failures) = (Figures::default(), Vec::new());
    let started = Instant::now();
    for seed in first.. {
        if started.elapsed() > time {
            break;
        }
        match try_seed(seed, None) {
            Ok(done) => figures.add(done),
            Err(failure) => {
                eprintln!("{failure}\nagain: SYNCLINE_REPAIR_SEED={seed} just repair-fuzz 0\n");
                failures.push(failure);
            }
        }
    }
    (figures, failures)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn repairs_keep_what_can_be_read() {
    let (figures, failures) = search(SEED, Duration::from_secs(5));
    println!("{figures:?}");
    assert!(failures.is_empty(), "{} of {} seeds fail", failures.len(), figures.mutations);
    assert!(figures.mutations > 0);
}

/// Runs for `SYNCLINE_REPAIR_SECONDS`, starting with `SYNCLINE_REPAIR_SEED`; with zero seconds,
/// only that seed.
#[test]
#[ignore = "for a long time: just repair-fuzz"]
fn repairs_keep_what_can_be_read_for_a_long_time() {
    let seconds = number("SYNCLINE_REPAIR_SECONDS").unwrap_or(600);
    let seed = number("SYNCLINE_REPAIR_SEED").unwrap_or_else(|| rand::random::<u32>().into());
    println!("from seed {seed} on");
    let (figures, failures) = match seconds {
        0 => {
            let tried = try_seed(seed, None);
            (tried.clone().unwrap_or_default(), tried.err().into_iter().collect())
        }
        _ => search(seed, Duration::from_secs(seconds)),
    };
    println!("{figures:?}, {} violations", failures.len());
    assert!(failures.is_empty(), "{}", failures[0]);
}

/// The two repairs that once removed files, one that made images unmountable, and others, planted
/// again.
#[test]
fn planted_flaws_are_found() {
    // This one breaks no rule.
    let flaws = Flaw::ALL.into_iter().filter(|flaw| *flaw != Flaw::QuotasLater).map(Planted::Flaw);
    for planted in flaws.chain(found_by(Search::Repairs).map(Planted::Canary)) {
        let started = Instant::now();
        let found = (0..SEEDS_MAX).find(|seed| try_seed(*seed, Some(planted)).is_err());
        println!("{planted:?}: seed {found:?}, {:?}", started.elapsed());
        assert!(found.is_some(), "{planted:?} is not found");
    }
}

#[test]
fn the_image_has_everything() {
    let image = &IMAGES[EVERYTHING];
    assert_ne!(image.superblock.snapshots.addr, 0);
    let has = |kind: Kind| {
        let node = |place: usize| &image.nodes[place].what;
        image.items.iter().any(|(place, index)| node(*place).key(*index).kind == kind as u8)
    };
    for kind in [Kind::Extent, Kind::Xattr, Kind::Chunk, Kind::Shared, Kind::Preallocation, Kind::Quota] {
        assert!(has(kind), "{kind:?}");
    }
    assert!(!image.batches.is_empty());
}
