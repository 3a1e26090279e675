//! Forks: writable images that begin as a snapshot of another image, their base, and share its blocks.
//!
//! A fork has the snapshot in its own table of snapshots, and a record of its base (`format::fork`).
//! The base has a hold in its table: an entry that keeps the snapshot's blocks as long as the fork
//! exists. The caller places the hold, and [`make`] then makes the fork. [`open`] finds the base again and
//! checks that it has the hold. The engine runs on the device [`Forked`]. [`detach`] copies the blocks of
//! the base, so that the fork needs it no longer.
//!
//! A temporary fork has no hold: the claim of the snapshot keeps the blocks while the fork is open, and
//! it is of no use afterwards.
#![forbid(unsafe_code)]

mod detach;
mod device;
mod error;
mod make;
mod open;
mod record;

pub use detach::detach;
pub use device::Forked;
pub use error::ForkError;
pub use make::make;
pub use open::{Base, open};
pub use record::{record_of, replace_record};
pub use syncline_format::fork::ForkRecord;
