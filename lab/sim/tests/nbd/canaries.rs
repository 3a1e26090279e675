//! Every rule of the NBD client that can be broken on purpose is found by the search that otherwise
//! finds nothing.

use crate::nbd::life::Plan;
use crate::nbd::search::{run_one, search};
use std::time::Instant;
use syncline_net::nbd::lab::Canary;
use syncline_sim::FsSubject;

const SEEDS: u64 = 300;

#[test]
fn each_is_found() {
    for canary in Canary::ALL {
        let started = Instant::now();
        let first = 1_000_000;
        let plan = Plan { canary: Some(canary), ..Plan::default() };
        let found = search(&FsSubject::PLAIN, first..first + SEEDS, plan, None);
        let (seed, what) =
            found.violation.unwrap_or_else(|| panic!("{canary:?} went unnoticed in {SEEDS} seeds"));
        let seconds = started.elapsed().as_secs_f64();
        println!("{canary:?} found after {} seeds, {seconds:.1} s, at {seed}: {what}", found.seeds);
        // The canary must be the cause, not something that the seed shows anyway.
        let sound = run_one(&FsSubject::PLAIN, seed, Plan { canary: None, ..plan });
        assert!(sound.is_ok(), "seed {seed} fails without {canary:?} too: {:?}", sound.err());
    }
}
