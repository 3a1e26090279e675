//! The device lease: at most one host writes to an image on a device that several hosts reach
//! (promise P7), where the device has no lock of its own.
//!
//! [`Leased`] is a [`Device`](syncline_device::Device) around another one. [`Leased::acquire`] and
//! [`Leased::take_over`] take the lease; a thread of its own renews it; every write is refused, and
//! no flush is answered with success, when it has expired. PROOF.md has the proof; the comments here
//! name its cases.
//!
//! ```no_run
//! # use std::{ops::ControlFlow, sync::Arc};
//! # use syncline_lease::{LeaseError, LeaseOptions, Leased, Progress, TakeOver};
//! # fn open(device: Arc<dyn syncline_device::Device>, takes_over: bool) -> Result<(), LeaseError> {
//! let options = LeaseOptions::default();
//! let mut say = |progress: Progress<'_>| {
//!     if let Progress::Holder { lease, left } = progress {
//!         eprintln!("waiting {} s for {}", left.as_secs(), lease.holder.host_text());
//!     }
//!     ControlFlow::Continue(())
//! };
//! let leased = match takes_over {
//!     true => Leased::take_over(device, &options, TakeOver::WhenExpired, &mut say)?,
//!     false => Leased::acquire(device, &options, &mut say)?,
//! };
//! leased.on_lost(|why| eprintln!("{why}"));
//! // Open the image now: data that was read before is void.
//! # Ok(()) }
//! ```
//!
//! The lease has a thread, which no fork takes along: a daemon forks first.
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
