//! Figures of a running mount: at one moment, and between two.

mod interval;
mod sample;

pub use interval::{Interval, Spread};
pub use sample::{Sample, stats};
