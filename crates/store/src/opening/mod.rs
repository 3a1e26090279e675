//! Opening: reads superblock, space map and log, and puts the parts of a store together.

mod recovery;
mod replay;
mod view;

pub use recovery::{Recovered, SEGMENT_IN_USE};
pub use view::{claim_snapshot, kept_besides, read_snapshots, snapshot_usage};

pub(crate) use recovery::{assemble, load_space};
pub(crate) use replay::{Replayed, apply, unreadable_data};
