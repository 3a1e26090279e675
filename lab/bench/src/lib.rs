//! Measures Syncline beside the kernel's filesystems: workloads, contestants, counts, reports.
//!
//! A [`Workload`](workload::Workload) is a load on a directory, so that any filesystem can be
//! measured. A [`Plan`](measure::Plan) takes each [`Contestant`](contestant::Contestant) through
//! all workloads, in turns, on the same [`Ground`](ground::Ground), and produces a
//! [`Report`](outcome::Report).
#![forbid(unsafe_code)]

mod bootstrap;
pub mod command;
pub mod contestant;
pub mod counts;
mod error;
pub mod files;
pub mod fio;
pub mod ground;
mod interrupt;
mod jobs;
pub mod machine;
pub mod measure;
pub mod micro;
pub mod mount;
pub mod null;
pub mod outcome;
pub mod report;
pub mod slow_disk;
pub mod synced;
pub mod workload;
pub mod workloads;

pub use error::BenchError;
pub use interrupt::Interrupt;
