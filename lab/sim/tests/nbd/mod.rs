//! The filesystem on an export of an NBD server that forgets writes that no flush covered. The server ends
//! and comes back under a living client, connections break at any byte, the client's host dies, and server
//! and host lose power together. The recovered state is judged as in the laboratory.
//!
//! The seed decides all that the filesystem and the nemesis do. The client and the server have threads
//! of their own, so what the server has carried out at the moment of a cut differs from run to run:
//! `SYNCLINE_NBD_SEED=<seed>` may need several tries to repeat a failure.

mod canaries;
mod life;
mod nemesis;
mod search;

use life::Plan;
use search::assert_no_violation;
use syncline_sim::FsSubject;

#[test]
fn what_was_promised_survives_servers_that_forget() {
    assert_no_violation("files", &FsSubject::PLAIN, Plan::default(), 16);
}

#[test]
fn what_was_promised_survives_servers_that_forget_and_fail() {
    assert_no_violation("files, failing", &FsSubject::PLAIN, Plan { faults: true, ..Plan::default() }, 10);
}

#[test]
fn everything_at_once_survives_servers_that_forget() {
    assert_no_violation("everything", &FsSubject::EVERYTHING, Plan::default(), 8);
}

/// For `SYNCLINE_NBD_SECONDS`, by turns.
#[test]
#[ignore = "takes minutes; prints what it explored"]
fn for_a_long_time() {
    let faults = Plan { faults: true, ..Plan::default() };
    search::for_a_long_time(&[
        ("files", &FsSubject::PLAIN, Plan::default()),
        ("files, failing", &FsSubject::PLAIN, faults),
        ("everything", &FsSubject::EVERYTHING, Plan::default()),
        ("everything, failing", &FsSubject::EVERYTHING, faults),
        ("compressed", &FsSubject::COMPRESSED, Plan::default()),
    ]);
}
