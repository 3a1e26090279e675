//! The store under schedules.

use std::time::Duration;
use syncline_schedules::{Search, store};
use syncline_store::Canary;

#[test]
fn a_seed_is_one_life() {
    store::prepare();
    for seed in 1..20 {
        let course = || Search::one(seed).run_controlled(|control| store::live(control, None));
        let ((one, first), (_, second)) = (course(), course());
        assert!(one.violations.is_empty(), "{:?}", one.violations);
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn what_the_store_promises_survives_every_schedule() {
    store::prepare();
    let search = Search { time: Some(Duration::from_secs(4)), ..Search::from_seed(1) };
    search.run_and_tell(|control| store::live(control, None));
}

/// For `SYNCLINE_SCHEDULES_SECONDS`, from seed `SYNCLINE_SCHEDULES_SEED` on, on as many threads as there are CPUs.
#[test]
#[ignore = "a long run"]
fn store_for_a_long_time() {
    store::prepare();
    Search::from_environment().run_on_all_cpus(|control| store::live(control, None));
}

/// Rules of the store whose breach a schedule brings to light, most of them within a few dozen.
#[test]
fn broken_rules_of_the_store_are_found() {
    store::prepare();
    for canary in [
        Canary::SkipFlush,
        Canary::FlushEarly,
        Canary::ThroughEarly,
        Canary::ReuseEarly,
        Canary::SplitTransaction,
        Canary::LogStartsLate,
        Canary::SuperblockEarly,
        Canary::LateJoiner,
        Canary::RedeemFailedFlush,
        Canary::IgnoreFailedWrite,
        Canary::ReleaseAfterFailure,
        Canary::ForgetSnapshot,
    ] {
        let search = Search { count: 5000, ..Search::from_seed(1) };
        let found = search.run(move |control| store::live(control, Some(canary)));
        println!("{canary}: {found}");
        assert!(!found.violations.is_empty(), "{canary} was not found");
    }
}

/// Those that take longer, for `SYNCLINE_SCHEDULES_SECONDS` each at most; tells of all what it took.
#[test]
#[ignore = "a long run"]
fn broken_rules_that_hide_well() {
    store::prepare();
    let canaries =
        [Canary::LateRetry, Canary::SealAfterSuperblock, Canary::DropSnapshotEarly, Canary::DiscardEarly];
    for canary in canaries {
        let narrow = canary == Canary::LateRetry;
        let found = Search::from_environment().run(move |control| {
            store::live_as(control, |setup| store::Setup {
                canary: Some(canary),
                narrow: narrow || setup.narrow,
                faulty: narrow || setup.faulty,
                ..setup
            });
        });
        println!("{canary}: {found}");
        println!("{:?}", found.violations);
    }
}
