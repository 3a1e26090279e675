//! The store under schedules.

use std::time::Duration;
use syncline_schedules::{Search, store};
use syncline_sim::searches::{self, found_by};
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

/// Runs for `SYNCLINE_SCHEDULES_SECONDS`, starting with seed `SYNCLINE_SCHEDULES_SEED`, on as many
/// threads as there are CPUs.
#[test]
#[ignore = "a long run"]
fn store_for_a_long_time() {
    store::prepare();
    Search::from_environment().run_on_all_cpus(|control| store::live(control, None));
}

/// Rules of the store whose breach a schedule reveals, mostly within a few dozen lives.
#[test]
fn broken_rules_of_the_store_are_found() {
    store::prepare();
    for canary in found_by(searches::Search::StoreSchedules) {
        look_for(canary, Search { count: 5000, ..Search::from_seed(1) });
    }
}

/// Rules whose breach takes longer to find, for at most `SYNCLINE_SCHEDULES_SECONDS` each.
#[test]
#[ignore = "a long run"]
fn broken_rules_that_hide_well() {
    store::prepare();
    for canary in [Canary::DropSnapshotEarly, Canary::LateRetry] {
        look_for(canary, Search::from_environment());
    }
}

fn look_for(canary: Canary, search: Search) {
    let found = search.run(move |control| store::live_as(control, suited_to(canary, Some(canary))));
    println!("{canary}: {found}");
    let violation = found.violations.first().unwrap_or_else(|| panic!("{canary} was not found"));
    println!("{violation:?}");
    // The canary must be the cause, not something that the seed shows anyway.
    let sound =
        Search::one(violation.seed).run(move |control| store::live_as(control, suited_to(canary, None)));
    assert!(sound.violations.is_empty(), "without {canary} too: {:?}", sound.violations);
}

/// A setup in which a breach of `rule` shows soon: with a failing device where the breach needs
/// one.
fn suited_to(rule: Canary, canary: Option<Canary>) -> impl FnOnce(store::Setup) -> store::Setup {
    move |setup| {
        let setup = store::Setup { canary, ..setup };
        match rule {
            Canary::LateRetry => store::Setup { narrow: true, faulty: true, steps: 8, ..setup },
            Canary::SealAfterSuperblock => {
                store::Setup { narrow: false, cramped: true, faulty: true, patient: false, ..setup }
            }
            _ => setup,
        }
    }
}
