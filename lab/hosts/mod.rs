//! Two hosts, a nemesis and a checker (promise P7), through the binary.
//!
//! Each pair of hosts is two network namespaces that reach one image: an export of an NBD server that
//! forgets the writes that no flush covered when it is killed, or an RBD image of a real Ceph cluster. A
//! daemon on one host has the image, writers there write records and sync them. The nemesis cuts, stops and
//! kills hosts and storage, and the other host takes the image. The checker (`checker.rs`) knows when each
//! record was asked for and acknowledged, and which records each host found when it came:
//!
//! - the next host, and all that come after it, find each acknowledged record;
//! - nothing is acknowledged by a host that was asked after the next one had the image;
//! - the records that the next host found of the former one do not change any more;
//! - `syncline check` finds nothing.
//!
//! Everything is in namespaces of the test's own and in memory; nothing of it remains. All chance
//! comes from a seed that is printed: `SYNCLINE_HOSTS_SEED=7` repeats the nemesis' choices, though not
//! the machine's.
//!
//! `SYNCLINE_HOSTS_SECONDS=600 SYNCLINE_HOSTS_PAIRS=8 cargo test -p syncline-cli --test program hosts:: -- --ignored
//! --nocapture` searches for longer.

#[cfg(feature = "canaries")]
mod canaries;
mod checker;
mod daemon;
mod journal;
mod machine;
mod nemesis;
mod pair;
mod report;
mod search;
mod view;
mod writers;

use search::{Kind, Length, search};
use std::time::Duration;

/// The slice of every test run. For so long rounds begin: one of each pair on NBD, where a takeover takes
/// 15 s, and several on Ceph.
const SLICE: Duration = Duration::from_secs(12);

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

fn asked_for() -> Duration {
    Duration::from_secs(number("SYNCLINE_HOSTS_SECONDS", 600))
}

#[test]
fn two_hosts_on_an_nbd_server() {
    machine::alone("hosts::two_hosts_on_an_nbd_server", Kind::Nbd.missing(), SLICE, || {
        search(Kind::Nbd, Length::of(SLICE, 8)).expect_none();
    });
}

#[test]
fn two_hosts_on_ceph() {
    machine::alone("hosts::two_hosts_on_ceph", Kind::Ceph.missing(), SLICE, || {
        search(Kind::Ceph, Length::of(SLICE, 3)).expect_none();
    });
}

#[test]
#[ignore = "just hosts-nemesis"]
fn two_hosts_on_an_nbd_server_for_a_long_time() {
    machine::alone(
        "hosts::two_hosts_on_an_nbd_server_for_a_long_time",
        Kind::Nbd.missing(),
        asked_for(),
        || {
            search(Kind::Nbd, Length::of(asked_for(), 8)).expect_none();
        },
    );
}

#[test]
#[ignore = "just hosts-nemesis"]
fn two_hosts_on_ceph_for_a_long_time() {
    machine::alone("hosts::two_hosts_on_ceph_for_a_long_time", Kind::Ceph.missing(), asked_for(), || {
        search(Kind::Ceph, Length::of(asked_for(), 4)).expect_none();
    });
}
