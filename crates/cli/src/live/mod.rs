//! Figures of a running mount: asked for at a moment, and what happened between two.

mod interval;
mod sample;

pub use interval::{Interval, Spread};
pub use sample::Sample;
