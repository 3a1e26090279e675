//! The device lease: at most one host writes to an image on a device that several hosts reach
//! (promise P7), where the device has no lock of its own.
//!
//! [`Leased`] is a [`Device`](syncline_device::Device) around another one. [`Leased::acquire`] and
//! [`Leased::take_over`] take the lease; a thread of its own renews it; every write is refused, and
//! no flush is answered with success, when it has expired. docs/DURABILITY.md ("One writer on
//! several hosts") has the proof; the comments here name its cases.
//!
//! Two state machines do all that matters, and neither knows of threads or devices: [`lab::Claim`]
//! takes the lease and [`lab::Renewal`] keeps it. The model in `tests/model` runs the same two with
//! simulated hosts, clocks and delays.
#![forbid(unsafe_code)]

mod claim;
mod clock;
mod error;
mod gate;
mod identity;
pub mod lab;
mod leased;
mod options;
mod permit;
mod renewal;
mod status;
mod taking;
mod thread;
mod traffic;

pub use clock::{BootClock, Clock};
pub use error::{LeaseError, LeaseLost};
pub use identity::this_process;
pub use leased::Leased;
pub use options::{LeaseOptions, OptionsError};
pub use permit::Permit;
pub use status::LeaseStatus;
pub use syncline_format::lease::{LEASE_BLOCK, Lease, LeaseHolder, LeaseState};
pub use taking::{Progress, TakeOver, look};

/// Where the lease lies on the device, in bytes.
pub const LEASE_OFFSET: u64 = LEASE_BLOCK * syncline_device::BLOCK_BYTES as u64;
