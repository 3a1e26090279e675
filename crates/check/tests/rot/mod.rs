//! Rots every block of small images in turn, in every way: everything acknowledged must be there
//! with the right bytes, or the damage must be reported. There must be no silent loss and no wrong
//! bytes; and everything readable before a repair must be readable after it.
//!
//! `SYNCLINE_ROT=SEED/BLOCK/KIND` tries one block of one image, `SYNCLINE_ROT_SECONDS` bounds the
//! long search.

mod overwrite;
mod seen;
mod subject;
mod trial;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use subject::{SIZE_BYTES, Subject};
use syncline_check::Flaw;
use syncline_device::MemoryDevice;
use syncline_format::{BlockAddr, Metadata};
use syncline_sim::rot::{Rot, block_of, put_block};
use syncline_store::Canary;
use trial::{Outcome, try_out};

/// Lives in which each broken repair must be found.
const LIVES_MAX: u64 = 20;
const KINDS: [&str; 4] = ["zeroed", "flipped", "older", "neighbour"];

/// Statistics of the trials.
#[derive(Default, Debug)]
struct Figures {
    /// Images in which every block was rotted.
    whole: u64,
    blocks: u64,
    images: u64,
    regions: u64,
    rolled_back: u64,
    outcomes: BTreeMap<Outcome, u64>,
    violations: Vec<String>,
}

impl Figures {
    fn count(&mut self, what: String, tried: Result<Outcome, Vec<String>>) {
        self.images += 1;
        match tried {
            Ok(outcome) => *self.outcomes.entry(outcome).or_default() += 1,
            Err(wrong) => {
                println!("SYNCLINE_ROT={what}: {}", wrong[..wrong.len().min(5)].join("; "));
                self.violations.push(format!("{what}: {}", wrong.join("; ")));
            }
        }
    }
}

/// The rot of this name; which bit is flipped depends on the place.
fn rot_of(kind: &str, seed: u64, addr: BlockAddr) -> Rot {
    match kind {
        "zeroed" => Rot::Zeroed,
        "flipped" => Rot::Flipped(ChaCha8Rng::seed_from_u64(seed ^ addr << 20).random_range(0..4096 * 8)),
        "older" => Rot::Older,
        "neighbour" => Rot::Neighbour,
        other => panic!("no rot is called '{other}'"),
    }
}

fn try_block(subject: &Subject, addr: BlockAddr, kind: &str, figures: &mut Figures) {
    let rotten = subject.image.snapshot();
    if rot_of(kind, subject.seed, addr).befall(&rotten, &subject.versions, addr) {
        let changed = BTreeSet::from([addr]);
        let rolled_back = subject.is_rolled_back(&changed);
        let tried = try_out(subject, &rotten, rolled_back);
        figures.rolled_back += u64::from(rolled_back);
        figures.count(format!("{}/{addr}/{kind}", subject.seed), tried);
    }
}

/// Rolls a region back to an earlier moment: all writes to it since then are lost.
fn try_region(subject: &Subject, moment: usize, start: BlockAddr, blocks: u64, figures: &mut Figures) {
    let (rotten, earlier) = (subject.image.snapshot(), &subject.earlier[moment]);
    let changed = roll_back(&rotten, earlier, start..(start + blocks).min(SIZE_BYTES / 4096));
    if changed.is_empty() {
        return;
    }
    figures.regions += 1;
    let rolled_back = subject.is_rolled_back(&changed);
    figures.rolled_back += u64::from(rolled_back);
    let tried = try_out(subject, &rotten, rolled_back);
    figures.count(format!("{}/{start}+{blocks}/moment{moment}", subject.seed), tried);
}

fn roll_back(
    rotten: &Arc<MemoryDevice>,
    earlier: &MemoryDevice,
    blocks: std::ops::Range<BlockAddr>,
) -> BTreeSet<BlockAddr> {
    let mut changed = BTreeSet::new();
    for addr in blocks {
        let then = block_of(earlier, addr);
        if then != block_of(rotten, addr) {
            put_block(rotten, addr, &then);
            changed.insert(addr);
        }
    }
    changed
}

fn try_some_regions(subject: &Subject, count: usize, figures: &mut Figures) {
    let mut rng = ChaCha8Rng::seed_from_u64(subject.seed);
    for _ in 0..count {
        let blocks = [4, 16, 64, 256][rng.random_range(0..4)];
        let around = subject.in_use[rng.random_range(0..subject.in_use.len())];
        let start = around - around % blocks;
        try_region(subject, rng.random_range(0..subject.earlier.len()), start, blocks, figures);
    }
}

/// Tries what `SYNCLINE_ROT` requests; returns false if it is not set.
fn asked_for() -> bool {
    let Ok(text) = std::env::var("SYNCLINE_ROT") else { return false };
    let parts: Vec<&str> = text.split('/').collect();
    let [seed, place, kind] = parts[..] else { panic!("SYNCLINE_ROT is SEED/BLOCK/KIND") };
    let subject = Subject::live(seed.parse().expect("a number"), None);
    let mut figures = Figures::default();
    match (place.split_once('+'), kind.strip_prefix("moment")) {
        (Some((start, blocks)), Some(moment)) => {
            let number = |text: &str| text.parse().expect("a number");
            try_region(&subject, number(moment) as usize, number(start), number(blocks), &mut figures);
        }
        _ => try_block(&subject, place.parse().expect("a number"), kind, &mut figures),
    }
    println!("{figures:?}");
    assert!(figures.violations.is_empty());
    true
}

#[test]
fn rot_is_told() {
    if asked_for() {
        return;
    }
    let mut figures = Figures::default();
    for seed in 0..2 {
        let subject = Subject::live(seed, None);
        for (index, addr) in subject.sample(40).into_iter().enumerate() {
            figures.blocks += 1;
            try_block(&subject, addr, KINDS[index % 4], &mut figures);
        }
        try_some_regions(&subject, 6, &mut figures);
    }
    println!("{figures:?}");
    assert!(figures.violations.is_empty(), "{:?}", figures.violations);
    assert!(figures.images > 60 && figures.outcomes.len() >= 3, "{figures:?}");
}

/// Any one block of metadata may rot where it has two copies: nothing is lost or refused.
#[test]
fn nothing_is_lost_where_metadata_has_two_copies() {
    let mut figures = Figures::default();
    for seed in [2, 3] {
        let subject = Subject::live(seed, None);
        assert_eq!(subject.metadata, Metadata::Dup);
        let blocks: Vec<_> = subject.copied.iter().copied().collect();
        // A sample of each image; the long search takes all.
        for (index, addr) in blocks.iter().step_by(blocks.len().div_ceil(40)).enumerate() {
            figures.blocks += 1;
            try_block(&subject, *addr, KINDS[index % 4], &mut figures);
        }
    }
    println!("{figures:?}");
    assert!(figures.violations.is_empty(), "{:?}", figures.violations);
    let harmed = |outcome: &Outcome| !matches!(outcome, Outcome::Unharmed | Outcome::Found);
    assert!(!figures.outcomes.keys().any(harmed) && figures.outcomes[&Outcome::Found] > 50, "{figures:?}");
}

/// A repair that leaves zeros in place of extents is detected.
#[test]
fn broken_repairs_are_found() {
    let flaw = Flaw::LostBecomesZeros;
    let mut figures = Figures::default();
    // A life from which detection is quick.
    let found = (15..LIVES_MAX).find(|seed| {
        let mut subject = Subject::with(Metadata::Single, *seed, None);
        subject.flaw = Some(flaw);
        subject.leaves.iter().any(|addr| {
            try_block(&subject, *addr, "zeroed", &mut figures);
            figures.violations.iter().any(|wrong| wrong.contains("reads as what it never held"))
        })
    });
    println!("{flaw:?}: life {found:?}, after {} images", figures.images);
    assert!(found.is_some(), "{flaw:?} is not found");
}

/// Reading without verifying checksums, and ending the log where one block of it is missing, are
/// detected.
#[test]
fn broken_rules_are_found() {
    for (canary, kind) in [(Canary::UncheckedReads, "flipped"), (Canary::LeadOnce, "zeroed")] {
        // A life whose log ends in a second segment.
        let subject = Subject::live(6, Some(canary));
        let places = match canary {
            Canary::LeadOnce => subject.log.iter().map(|batch| batch.addr).collect(),
            _ => subject.sample(100),
        };
        let mut figures = Figures::default();
        let found = places.into_iter().find(|addr| {
            try_block(&subject, *addr, kind, &mut figures);
            !figures.violations.is_empty()
        });
        println!("{canary:?}: block {found:?}, after {} images", figures.images);
        assert!(found.is_some(), "{canary:?} is not found");
    }
}

#[test]
#[ignore = "every block of image after image, for SYNCLINE_ROT_SECONDS"]
fn rot_of_every_block_is_told() {
    let seconds = std::env::var("SYNCLINE_ROT_SECONDS").map_or(600, |text| text.parse().expect("seconds"));
    let first = std::env::var("SYNCLINE_ROT_SEED").map_or(100, |text| text.parse().expect("a seed"));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut figures = Figures::default();
    'lives: for seed in first.. {
        let subject = Subject::live(seed, None);
        println!(
            "seed {seed}: {} blocks in use, {} batches in {} segments",
            subject.in_use.len(),
            subject.log.len(),
            subject.segments()
        );
        try_some_regions(&subject, 40, &mut figures);
        for addr in subject.sample(subject.in_use.len()) {
            figures.blocks += 1;
            for kind in KINDS {
                try_block(&subject, addr, kind, &mut figures);
                if Instant::now() > end {
                    break 'lives;
                }
            }
        }
        figures.whole += 1;
    }
    println!("{figures:?}");
    assert!(figures.violations.is_empty(), "{} violations", figures.violations.len());
}
