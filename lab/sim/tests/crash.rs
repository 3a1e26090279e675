//! The filesystem through power cuts at all kinds of moments: some seeds of each kind of life here, thousands every night.
//!
//! A failure names its seed; `SYNCLINE_CRASH_SEED=<seed> cargo test -p syncline-sim --test
//! laboratory crash::` repeats it.

use crate::support::{assert_no_violation, explore, one_at_a_time, repeat_is_identical};
use syncline_sim::FsSubject;
use syncline_sim::lab::Plan;

#[test]
fn what_was_promised_survives() {
    assert_no_violation(&FsSubject::PLAIN, Plan::default(), 100);
}

#[test]
fn what_was_promised_survives_a_failing_device() {
    assert_no_violation(&FsSubject::PLAIN, Plan { faults: true, ..Plan::default() }, 100);
}

#[test]
fn what_was_promised_survives_without_parent_pointers() {
    assert_no_violation(&FsSubject::WITHOUT_PARENT_POINTERS, Plan::default(), 25);
}

#[test]
fn what_was_promised_survives_where_files_are_compressed() {
    assert_no_violation(&FsSubject::COMPRESSED, Plan::default(), 50);
}

#[test]
fn what_was_promised_survives_a_failing_device_where_files_are_compressed() {
    assert_no_violation(&FsSubject::COMPRESSED, Plan { faults: true, ..Plan::default() }, 25);
}

#[test]
fn no_page_is_ever_torn() {
    assert_no_violation(&FsSubject::PAGES, Plan::default(), 40);
    assert_no_violation(&FsSubject::COMPRESSED_PAGES, Plan::default(), 20);
}

#[test]
fn no_page_is_ever_torn_by_a_failing_device() {
    let plan = Plan { faults: true, ..Plan::default() };
    assert_no_violation(&FsSubject::PAGES, plan, 40);
    assert_no_violation(&FsSubject::COMPRESSED_PAGES, plan, 15);
}

#[test]
fn usage_of_quotas_survives() {
    assert_no_violation(&FsSubject::WITH_QUOTAS, Plan::default(), 30);
}

#[test]
fn usage_of_quotas_survives_a_failing_device() {
    assert_no_violation(&FsSubject::WITH_QUOTAS, Plan { faults: true, ..Plan::default() }, 20);
}

#[test]
fn everything_at_once_survives() {
    assert_no_violation(&FsSubject::EVERYTHING, Plan::default(), 40);
}

#[test]
fn everything_at_once_survives_a_failing_device() {
    assert_no_violation(&FsSubject::EVERYTHING, Plan { faults: true, ..Plan::default() }, 25);
}

#[test]
fn a_fork_keeps_the_promises_of_any_image() {
    assert_no_violation(&FsSubject::FORK, Plan::default(), 30);
}

#[test]
fn a_fork_keeps_the_promises_of_any_image_on_a_failing_device() {
    assert_no_violation(&FsSubject::FORK, Plan { faults: true, ..Plan::default() }, 20);
}

#[test]
fn an_encrypted_fork_keeps_the_promises_of_any_image() {
    assert_no_violation(&FsSubject::ENCRYPTED_FORK, Plan::default(), 20);
    assert_no_violation(&FsSubject::ENCRYPTED_FORK, Plan { faults: true, ..Plan::default() }, 10);
}

#[test]
fn a_filesystem_that_grows_in_use_keeps_its_promises() {
    one_at_a_time(|| assert_no_violation(&FsSubject::GROWING, Plan::default(), 6));
}

#[test]
fn a_filesystem_that_grows_in_use_keeps_its_promises_on_a_failing_device() {
    one_at_a_time(|| assert_no_violation(&FsSubject::GROWING, Plan { faults: true, ..Plan::default() }, 4));
}

#[test]
fn one_seed_is_one_run() {
    repeat_is_identical(&FsSubject::PLAIN);
    repeat_is_identical(&FsSubject::EVERYTHING);
    repeat_is_identical(&FsSubject::COMPRESSED);
}

#[test]
#[ignore = "takes minutes; prints what it explored"]
fn ten_thousand() {
    explore(&FsSubject::PLAIN, Plan::default(), 10_000);
}

#[test]
#[ignore = "takes minutes; prints what it explored"]
fn other_formats_ten_thousand() {
    explore(&FsSubject::COMPRESSED, Plan::default(), 4_000);
    explore(&FsSubject::COMPRESSED, Plan { faults: true, ..Plan::default() }, 4_000);
    explore(&FsSubject::WITHOUT_PARENT_POINTERS, Plan::default(), 2_000);
}

#[test]
#[ignore = "takes minutes; prints what it explored"]
fn pages_ten_thousand() {
    explore(&FsSubject::PAGES, Plan::default(), 4_000);
    explore(&FsSubject::PAGES, Plan { faults: true, ..Plan::default() }, 2_000);
    explore(&FsSubject::COMPRESSED_PAGES, Plan::default(), 2_000);
    explore(&FsSubject::COMPRESSED_PAGES, Plan { faults: true, ..Plan::default() }, 2_000);
}

#[test]
#[ignore = "takes minutes; prints what it explored"]
fn quotas_ten_thousand() {
    explore(&FsSubject::WITH_QUOTAS, Plan::default(), 6_000);
    explore(&FsSubject::WITH_QUOTAS, Plan { faults: true, ..Plan::default() }, 4_000);
}

#[test]
#[ignore = "takes minutes; prints what it explored"]
fn everything_ten_thousand() {
    explore(&FsSubject::EVERYTHING, Plan::default(), 10_000);
}

#[test]
#[ignore = "takes minutes; prints what it explored"]
fn everything_fault_ten_thousand() {
    explore(&FsSubject::EVERYTHING, Plan { faults: true, ..Plan::default() }, 10_000);
}

#[test]
#[ignore = "takes minutes; prints what it explored"]
fn growing_ten_thousand() {
    explore(&FsSubject::GROWING, Plan::default(), 6_000);
    explore(&FsSubject::GROWING, Plan { faults: true, ..Plan::default() }, 4_000);
}

#[test]
#[ignore = "takes minutes; prints what it explored"]
fn fault_ten_thousand() {
    explore(&FsSubject::PLAIN, Plan { faults: true, ..Plan::default() }, 10_000);
}
