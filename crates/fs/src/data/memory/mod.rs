//! The state of a file's data in memory. Nothing here looks an extent up or starts a write.
//!
//! Read `state` first: the parts of a file's state. Its parts are the contents (`blocks`, with the table
//! of a block's life, `block` and `cached`), what was logged about the file (`logged`, with `unplaced`, the
//! blocks whose contents are in the log), where its blocks lie (`layout`), the blocks that are
//! preallocated (`preallocated`), what a quota has reserved for them (`charge`) and the failures to report
//! (`failures`). `submission` says what waits to be submitted and what a submission takes, `progress` how
//! far it has come, and `page` where it may be cut. `ranges` and `numbers` are the sets that the others
//! use.

pub(in crate::data) mod block;
pub(in crate::data) mod blocks;
pub(in crate::data) mod cached;
pub(in crate::data) mod charge;
pub(in crate::data) mod failures;
pub(in crate::data) mod layout;
pub(in crate::data) mod logged;
pub(in crate::data) mod numbers;
pub(in crate::data) mod page;
pub(in crate::data) mod preallocated;
pub(in crate::data) mod progress;
pub(in crate::data) mod ranges;
pub(in crate::data) mod state;
pub(in crate::data) mod submission;
pub(in crate::data) mod unplaced;

pub(in crate::data) use page::{page_end, page_start};
pub(crate) use state::DataState;
pub(in crate::data) use state::MemoryBlock;
use syncline_format::BLOCK_BYTES;

/// Size of a block as a file offset.
pub(in crate::data) const BLOCK: u64 = BLOCK_BYTES as u64;
/// 512-byte units of a block, for `st_blocks`.
pub(in crate::data) const UNITS: u64 = BLOCK / 512;
