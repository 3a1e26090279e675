//! The map of blocks.

mod hostile;
mod kept;
mod large;
mod model;
mod replayed;
mod scarce;
