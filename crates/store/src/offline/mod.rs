//! Offline work: making, repairing, shrinking and inspecting an image. It uses the parts of a store
//! as anybody would.

mod audit;
mod fork;
mod format;
mod grow;
mod inspect;
mod rebuild;
mod salvage;
mod saved;
mod shrink;

pub use audit::Held;
pub use fork::{NewFork, end_fork, format_fork};
pub use format::{FormatOptions, format, require_size};
pub use inspect::Reachable;
pub use rebuild::Rebuild;
pub use salvage::{Salvaged, Unreadable};
pub use saved::{
    SavedSnapshots, first_kept_by_snapshots, kept_by_snapshots, require_rollback, roll_back,
    table_in_what_is_kept, table_of_snapshots,
};
pub use shrink::require_shrinkable;

pub(crate) use format::first_superblock;
