//! The filesystem under schedules: the same operations and judges as in the search with threads
//! (`crates/check/tests/threads/shared`). But here a seed determines a life, with each step of each
//! task, and the power fails at the moments of promises.

mod life;
mod own;
#[path = "../../../../crates/check/tests/threads/shared/mod.rs"]
#[allow(dead_code)]
mod shared;

use shared::setup::Setup;
use std::time::Duration;
use syncline_schedules::Search;
use syncline_sim::searches::{self, found_by};

#[test]
fn a_seed_is_one_life() {
    for seed in 1..12 {
        let course = || Search::one(seed).run_controlled(|control| life::live(control, |setup| setup));
        let ((one, first), (_, second)) = (course(), course());
        assert!(one.violations.is_empty(), "{:?}", one.violations);
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn what_the_filesystem_promises_survives_every_schedule() {
    let search = Search { time: Some(Duration::from_secs(4)), ..Search::from_seed(1) };
    search.run_and_tell(|control| life::live(control, |setup| setup));
}

/// Runs for `SYNCLINE_SCHEDULES_SECONDS`, starting with seed `SYNCLINE_SCHEDULES_SEED`, on as many
/// threads as there are CPUs.
#[test]
#[ignore = "a long run"]
fn files_for_a_long_time() {
    Search::from_environment().run_on_all_cpus(|control| life::live(control, |setup| setup));
}

/// Rules whose breach needs an operation at one exact moment.
#[test]
fn broken_rules_of_the_filesystem_are_found() {
    for canary in found_by(searches::Search::FileSchedules) {
        let search = Search { count: 5000, ..Search::from_seed(1) };
        let suited =
            move |canary| move |setup: Setup| Setup { canary, steps: 40, node_bytes: 16384, ..setup };
        let found = search.run(move |control| life::live(control, suited(Some(canary))));
        println!("{canary}: {found}");
        let violation = found.violations.first().unwrap_or_else(|| panic!("{canary} was not found"));
        println!("{violation:?}");
        // The canary must be the cause, not something that the seed shows anyway.
        let sound = Search::one(violation.seed).run(move |control| life::live(control, suited(None)));
        assert!(sound.violations.is_empty(), "without {canary} too: {:?}", sound.violations);
    }
}
