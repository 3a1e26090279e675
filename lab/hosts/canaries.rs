//! Programs in which a rule is broken on purpose: the same search must find each.

use super::machine::alone_with;
use super::search::{Kind, Length, search};
use std::time::{Duration, Instant};

/// Within this time each must be found.
const WITHIN: Duration = Duration::from_secs(600);

fn found(test: &str, kind: Kind, canary: &'static str) {
    alone_with(test, kind.missing(), WITHIN, &[("SYNCLINE_NETWORK_CANARY", canary)], || {
        let began = Instant::now();
        let pairs = if kind == Kind::Nbd { 6 } else { 2 };
        let report = search(kind, Length { until_found: true, ..Length::of(WITHIN, pairs) });
        let Some(first) = report.violations.first() else { panic!("{canary} is not found: {report}") };
        println!(
            "{canary}: found after {} takeovers, {:.0} s: {first}",
            report.takeovers,
            began.elapsed().as_secs_f64()
        );
    });
}

#[test]
#[ignore = "just hosts-canaries"]
fn a_lease_that_is_not_looked_at() {
    found("hosts::canaries::a_lease_that_is_not_looked_at", Kind::Nbd, "lease-unchecked");
}

#[test]
#[ignore = "just hosts-canaries"]
fn writes_without_a_look_at_the_lease() {
    found("hosts::canaries::writes_without_a_look_at_the_lease", Kind::Nbd, "lease-write-unchecked");
}

#[test]
#[ignore = "just hosts-canaries"]
fn a_reconnect_that_writes_nothing_again() {
    found("hosts::canaries::a_reconnect_that_writes_nothing_again", Kind::Nbd, "nbd-forget-kept");
}

#[test]
#[ignore = "just hosts-canaries"]
fn a_lock_that_is_not_taken() {
    found("hosts::canaries::a_lock_that_is_not_taken", Kind::Ceph, "rbd-automatic-lock");
}

#[test]
#[ignore = "just hosts-canaries"]
fn a_lock_that_is_broken_without_a_fence() {
    found("hosts::canaries::a_lock_that_is_broken_without_a_fence", Kind::Ceph, "rbd-unfenced");
}
