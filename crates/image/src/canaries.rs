//! Rules that a test breaks on purpose, in programs built with the feature `canaries` only: the
//! two-host search (`lab/hosts`) must find each.
//!
//! `SYNCLINE_NETWORK_CANARY` names the rule. A name that is not known ends the program, so that no
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
    Some(match name.as_str() {
        "lease-unchecked" => Broken::Lease(lab::Canary::Unchecked),
        "lease-answer-unchecked" => Broken::Lease(lab::Canary::AnswerUnchecked),
        "lease-write-unchecked" => Broken::Lease(lab::Canary::WriteUnchecked),
        "nbd-no-replay" => Broken::Nbd(NbdCanary::ForgetKept),
        "rbd-automatic-lock" => Broken::Rbd(RbdCanary::AutomaticLock),
        "rbd-unfenced" => Broken::Rbd(RbdCanary::Unfenced),
        name => {
            eprintln!("syncline: SYNCLINE_NETWORK_CANARY={name}: no such canary");
            std::process::exit(2)
        }
    })
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
