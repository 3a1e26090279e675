//! The free space of an image: allocation, frees that wait until reuse is safe, and the map on the
//! device.
//!
//! Memory holds two bitmaps. *Named* is the persistent truth: a bit is set if a committed
//! transaction or a checkpoint's own structure names the block. *Live* are the blocks that must not
//! be handed out now: the named ones, those allocated but not named yet, the log, and those freed
//! but not reusable yet. A block freed in generation g becomes reusable when a superblock of at
//! least g is durable and every pin taken before that has ended (rule R2).
//!
//! Blocks named by the space map of a snapshot are *kept*: they stay live, even when the filesystem
//! frees them, until the snapshot is deleted.
//!
//! A checkpoint takes a [`FrozenMap`], applies its own node runs to it, persists it, and ends with
//! [`Space::superblock_durable`] or [`Space::checkpoint_failed`].
#![forbid(unsafe_code)]

mod bits;
mod books;
mod bounds;
mod discard;
mod error;
mod frames;
mod frozen;
mod grow;
mod kept;
mod live;
mod load;
mod named;
mod pages;
mod pending;
mod persist;
mod pins;
mod policy;
mod quarantine;
mod reader;
mod shrink;
mod space;
mod walk;

#[doc(hidden)]
pub use books::Books;
pub use error::SpaceError;
pub use frozen::FrozenMap;
pub use kept::KeptMap;
pub use persist::{Persisted, WrittenRun};
pub use pins::Pin;
pub use policy::Class;
pub use reader::{PageReader, RottenPage};
pub use space::{Free, Space, SpaceCounters};
pub use syncline_format::space::MAX_BLOCKS;
