//! Blocks on which several extents lie: copies that share, reference counts.
//!
//! An extent whose blocks others may use carries a mark, and blocks with more than one reference
//! have a count, in an item of its own. Mark and count are committed in one transaction with the
//! extent that takes the blocks over; from then on each file changes by itself, as nothing is ever
//! written in place.

mod copy;
pub(in crate::data) mod take_over;
mod usage;
pub(in crate::data) mod whole;

pub use usage::Usage;
