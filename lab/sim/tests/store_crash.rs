//! The store through power cuts at all kinds of moments.
//!
//! A failure names its seed; `SYNCLINE_CRASH_SEED=<seed> cargo test -p syncline-sim --test
//! laboratory store_crash::` repeats it.

use crate::support::{assert_no_violation, explore, repeat_is_identical};
use syncline_sim::StoreSubject;
use syncline_sim::lab::Plan;

#[test]
fn what_was_promised_survives() {
    assert_no_violation(&StoreSubject, Plan::default(), 150);
}

#[test]
fn what_was_promised_survives_a_failing_device() {
    assert_no_violation(&StoreSubject, Plan { faults: true, ..Plan::default() }, 150);
}

#[test]
fn one_seed_is_one_run() {
    repeat_is_identical(&StoreSubject);
}

#[test]
#[ignore = "takes minutes; prints what it explored"]
fn ten_thousand() {
    explore(&StoreSubject, Plan::default(), 10_000);
}

#[test]
#[ignore = "takes minutes; prints what it explored"]
fn fault_ten_thousand() {
    explore(&StoreSubject, Plan { faults: true, ..Plan::default() }, 10_000);
}
