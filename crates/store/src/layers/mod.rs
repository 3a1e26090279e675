//! The layers: the memtables over the tree, and how items and data are read.

mod memtable;
mod newest;
mod reads;
mod scrub;

pub use reads::Chunk;

pub(crate) use memtable::{ITEM_OVERHEAD_BYTES, Layers, Memtable};
pub(crate) use newest::{Newest, take_live};
