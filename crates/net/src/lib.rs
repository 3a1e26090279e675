//! Devices that are reached over a network, behind the trait [`Device`](syncline_device::Device).

mod counters;
pub mod rbd;

pub use counters::{Latency, NetCounters};
