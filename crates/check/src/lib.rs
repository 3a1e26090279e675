//! Verifies a whole image and reports each kind of damage by name.
//!
//! [`check`] opens the image read-only, replays its log in memory and then reads everything: each
//! copy of the superblocks, each page of the space map, each tree node, each item, each block of
//! file data. It compares the structures with each other: names with inodes, link counts with
//! names, extents with the space map, counters with what was counted. It writes nothing.
//!
//! [`repair`] mends what a check finds, or refuses. [`Scrub`]
//! verifies a filesystem that is in use.
//!
//! Memory: two bits for each block of the image, about 32 bytes for each inode, 32 for each name
//! and 24 for its parent pointer, and 32 for each extent that shares blocks. With snapshots, also
//! four bytes for each block of file data, at most 1 GiB.
#![forbid(unsafe_code)]

mod blocks;
mod checker;
mod compared;
mod damaged_run;
mod data;
mod error;
mod finding;
mod info;
mod items;
mod names;
mod object;
mod parents;
mod preallocation;
mod quotas;
mod readable;
mod references;
mod repair;
mod scrub;
mod snapshots;
mod space;
mod start;
mod superseded;
mod unplaced;
mod verified;
mod xattrs;

pub use checker::{Progress, Stage, check};
pub use error::CheckError;
pub use finding::{FINDINGS_MAX, Finding, FindingKind, Report};
pub use info::{Info, info};
pub use readable::{Readable, what_can_be_read};
pub use repair::{Condition, Flaw, Repair, RepairOptions, repair};
pub use scrub::{Scrub, ScrubCounters, ScrubReport};
