//! Blocks that several extents lie on: copies that share, deduplication, reference counts.
//!
//! An extent of which others may use some blocks carries a mark, and blocks with more than one reference have a count, an
//! item of its own. Mark and count come in one transaction with the extent that takes the blocks over; from then on each file
//! goes its way, as nothing is ever written in place.

mod copy;
mod counts;
mod dedupe;
mod hold;
mod take_over;
mod usage;

pub(crate) use counts::TooMany;
pub use dedupe::{Deduplicated, LoggedBlock};
pub(crate) use hold::{Shares, hold};
pub use usage::Usage;
