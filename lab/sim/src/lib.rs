//! The crash laboratory: devices that fail and lose power, an executor in which a seed determines
//! the run, and workloads and models that tell whether the recovered state is what was promised.
//!
//! For tests only. A run consists of a [`Simulation`] (the order of tasks), a
//! [`SimDevice`] (when operations end), a [`RecordingDevice`] (the record) and a workload. From the
//! record [`CrashImages`] makes every image that the device assumption allows (docs/DURABILITY.md,
//! "The device").
#![forbid(unsafe_code)]

mod awaited;
mod case;
mod content;
mod device;
mod executor;
mod fault;
mod found;
mod fs;
pub mod lab;
pub mod model;
mod observe;
mod paths;
mod reduce;
pub mod rest;
pub mod rot;
mod script;
pub mod searches;
mod snapshots;
mod store;
mod through;
pub mod worlds;

pub use awaited::AwaitedDevice;
pub use case::{Case, CaseSubject};
pub use device::{Latency, SimDevice};
pub use executor::{Interrupted, Simulation, Stalled, Wakes};
pub use fault::{Effect, Fault, FaultDevice};
pub use found::unexplained;
pub use fs::{FsHistory, FsSubject};
pub use reduce::reduce;
pub use script::{Piece, Script};
pub use store::{StoreHistory, StoreSubject, verify_space};
pub use syncline_powercut::{CrashImages, Cut, Event, Fate, RecordingDevice, SECTOR_BYTES, block_of};
pub use through::ThroughDevice;
