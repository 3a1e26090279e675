//! Rules that a test breaks on purpose, in programs built with the feature `canaries` only: the
//! two-host search (`lab/hosts`) must find each.
//!
//! `SYNCLINE_NETWORK_CANARY` names the rule, as in `nbd-forget-kept`. A name that is not known ends the program, so that no
//! search runs for nothing.

use syncline_lease::{LeaseOptions, lab};
use syncline_net::nbd::{NbdOptions, lab::Canary as NbdCanary};
use syncline_net::rbd::{Canary as RbdCanary, RbdOptions};

#[derive(Clone, Copy)]
enum Broken {
    Lease(lab::Canary),
    Nbd(NbdCanary),
    Rbd(RbdCanary),
}

fn broken() -> Option<Broken> {
    let name = std::env::var("SYNCLINE_NETWORK_CANARY").ok()?;
    let (part, rule) = name.split_once('-').unwrap_or((&name, ""));
    let found = match part {
        "lease" => rule.parse().map(Broken::Lease),
        "nbd" => rule.parse().map(Broken::Nbd),
        "rbd" => rule.parse().map(Broken::Rbd),
        _ => Err("it begins with lease-, nbd- or rbd-".to_owned()),
    };
    let exit = |error| {
        eprintln!("syncline: SYNCLINE_NETWORK_CANARY={name}: {error}");
        std::process::exit(2)
    };
    Some(found.unwrap_or_else(exit))
}

pub(crate) fn lease(options: LeaseOptions) -> LeaseOptions {
    match broken() {
        Some(Broken::Lease(canary)) => LeaseOptions { canary: Some(canary), ..options },
        _ => options,
    }
}

pub(crate) fn nbd(options: NbdOptions) -> NbdOptions {
    match broken() {
        Some(Broken::Nbd(canary)) => NbdOptions { canary: Some(canary), ..options },
        _ => options,
    }
}

pub(crate) fn rbd(options: RbdOptions) -> RbdOptions {
    match broken() {
        Some(Broken::Rbd(canary)) => RbdOptions { canary: Some(canary), ..options },
        _ => options,
    }
}
