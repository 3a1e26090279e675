//! Rots every block of the log in turn, in every way: either everything acknowledged is there, or
//! the store refuses to open.
//!
//! `SYNCLINE_SEEDS=from..to` selects other lives.

use syncline_sim::rot::{LogLife, LogSearch};

fn seeds(default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("SYNCLINE_SEEDS") else { return default };
    let (from, to) = text.split_once("..").expect("SYNCLINE_SEEDS is from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}

fn search(seeds: std::ops::Range<u64>) -> LogSearch {
    let mut all = LogSearch::default();
    for seed in seeds {
        let life = LogLife::live(seed, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let searched = life.search();
        let searched = searched.unwrap_or_else(|what| {
            panic!(
                "{what}; again: SYNCLINE_SEEDS={seed}..{} cargo test -p syncline-sim --test laboratory rot::",
                seed + 1
            )
        });
        all.add(searched);
    }
    println!("{all:?}");
    all
}

#[test]
fn no_block_of_the_log_rots_unnoticed() {
    let found = search(seeds(0..4));
    assert!(found.segments >= 8 && found.refused > 300 && found.whole > 300, "{found:?}");
}

#[test]
#[ignore = "a thousand lives"]
fn no_block_of_a_thousand_logs_rots_unnoticed() {
    search(seeds(1000..2000));
}
