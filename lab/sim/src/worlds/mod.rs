//! Exhaustive small worlds: every workload of one and of two operations on a few names, with every
//! choice of persistence point after each, through every power cut that the device assumption
//! allows, and through a second one during recovery. This is bounded black-box crash testing: crash
//! bugs show in small workloads.
//!
//! `run` makes the log by calls (`call`), `cuts` the images, `recover` opens them, and `judge`
//! compares them with a model that is exact because a workload is a single sequence of calls.

mod accounts;
mod base;
mod call;
mod cuts;
mod data;
mod disk;
mod enumerate;
mod explore;
mod feature;
mod judge;
mod kept;
mod many;
mod recover;
mod run;
mod state;
mod step;

pub use base::Base;
pub use cuts::Thoroughness;
pub use enumerate::{Enumeration, three_operations};
pub use explore::{Figures, Plan, RecoveryCuts, Seen, Violation, explore};
pub use feature::Feature;
pub use many::{Search, Summary};
pub use step::{Op, Path, Persist, Step, Workload};
