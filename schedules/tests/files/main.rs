//! The filesystem under schedules: what meets here is what meets in the search with threads (`crates/check/tests/threads/shared`), and so are
//! the judges. But a seed is one life, with each step of each task, and the power fails where something was promised.

mod life;
mod own;
#[path = "../../../crates/check/tests/threads/shared/mod.rs"]
#[allow(dead_code)]
mod shared;

use shared::setup::Setup;
use std::time::Duration;
use syncline_schedules::Search;
use syncline_store::Canary;

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

/// For `SYNCLINE_SCHEDULES_SECONDS`, from seed `SYNCLINE_SCHEDULES_SEED` on, on as many threads as there are CPUs.
#[test]
#[ignore = "a long run"]
fn files_for_a_long_time() {
    Search::from_environment().run_on_all_cpus(|control| life::live(control, |setup| setup));
}

/// The rules that the search with threads, and that with meetings, is shown to see the breach of.
#[test]
#[ignore = "a longer run"]
fn broken_rules_of_the_filesystem_are_found() {
    for canary in [
        Canary::SkipFlush,
        Canary::ShareWithoutCount,
        Canary::LinkedOrphanStays,
        Canary::OverlookUsage,
        Canary::OverlookWriteback,
        Canary::RenameWithoutData,
        Canary::SnapshotWithoutData,
    ] {
        let search = Search { time: Some(Duration::from_secs(300)), ..Search::from_seed(1) };
        let quotas = canary == Canary::OverlookUsage;
        let found = search.run(move |control| {
            life::live(control, |setup| Setup {
                canary: Some(canary),
                quotas: quotas || setup.quotas,
                node_bytes: 16384,
                ..setup
            });
        });
        println!("{canary}: {found}");
        assert!(!found.violations.is_empty(), "{canary} was not found");
    }
}
