//! Devices that are not on this host: storage that is reached over a network, behind the trait
//! [`syncline_device::Device`].
//!
//! [`Location`] is what a user writes for an image. [`NbdDevice`](nbd::NbdDevice) is an export of an
//! NBD server, [`RbdDevice`](rbd::RbdDevice) an image in a Ceph cluster.
#![deny(unsafe_code)]

mod counters;
mod location;
pub mod nbd;
#[allow(unsafe_code)]
pub mod rbd;

pub use counters::{NetCounters, NetGauges, OUTAGES_MAX, Outage};
pub use location::{Location, LocationError, NbdAddress, NbdLocation, RbdLocation, TlsFiles, Wait};
pub use nbd::{Fence, NbdDevice, NbdOptions, ReadBlock};
