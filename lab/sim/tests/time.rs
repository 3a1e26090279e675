//! The store and the filesystem through hours of virtual time: devices whose flushes take up to a
//! minute, operations that stall, threads that run late, and an hour without requests after each
//! life; with power cuts as usual.
//!
//! A failure names its seed; `SYNCLINE_CRASH_SEED=<seed> cargo test -p syncline-sim --test
//! laboratory time::` repeats it. `just idle` runs a long search.

use crate::support::{assert_no_violation, explore};
use syncline_sim::lab::{Load, Plan, Subject, run_seed};
use syncline_sim::{FsSubject, StoreSubject};

fn slow(faults: bool) -> Plan {
    let plan = Plan { slow: true, faults, cycles: 1, images: 3, ..Plan::default() };
    Plan { load: Load { actions: (5, 40), ..plan.load }, ..plan }
}

#[test]
fn a_store_at_rest_has_an_owner_for_every_block() {
    assert_no_violation(&StoreSubject, slow(false), 10);
}

#[test]
fn a_store_at_rest_on_a_failing_device_has_an_owner_for_every_block() {
    // Seed 29 shows a table of snapshots that nothing owns after an uncertain superblock.
    assert_no_violation(&StoreSubject, slow(true), 30);
}

#[test]
fn a_filesystem_keeps_its_promises_and_limits_on_a_slow_device() {
    assert_no_violation(&FsSubject::PLAIN, slow(false), 10);
}

#[test]
fn everything_at_once_keeps_its_promises_and_limits_on_a_slow_device() {
    assert_no_violation(&FsSubject::EVERYTHING, slow(false), 6);
}

#[test]
fn everything_at_once_on_a_slow_device_that_fails() {
    assert_no_violation(&FsSubject::EVERYTHING, slow(true), 6);
}

/// A file was removed while its data was being written to a slow device.
#[test]
fn what_was_removed_counts_until_the_device_has_it() {
    for faults in [false, true] {
        assert_eq!(run_seed(&FsSubject::EVERYTHING, 50, slow(faults)).map(drop), Ok(()));
    }
}

#[test]
fn one_seed_is_one_run() {
    fn runs<S: Subject>(subject: &S, plan: Plan) {
        for seed in 2_000_000..2_000_002 {
            assert_eq!(run_seed(subject, seed, plan), run_seed(subject, seed, plan), "seed {seed}");
        }
    }
    runs(&StoreSubject, slow(true));
    runs(&FsSubject::PLAIN, slow(false));
}

#[test]
#[ignore = "takes minutes; prints what it explored"]
fn store_for_long() {
    explore(&StoreSubject, slow(false), 10_000);
}

#[test]
#[ignore = "takes minutes; prints what it explored"]
fn failing_store_for_long() {
    explore(&StoreSubject, slow(true), 10_000);
}

#[test]
#[ignore = "takes minutes; prints what it explored"]
fn everything_for_long() {
    explore(&FsSubject::EVERYTHING, slow(false), 10_000);
}

#[test]
#[ignore = "takes minutes; prints what it explored"]
fn failing_everything_for_long() {
    explore(&FsSubject::EVERYTHING, slow(true), 10_000);
}
