//! The commands, one file each.

pub mod bench;
pub mod bench_null;
pub mod check;
pub mod clone;
pub mod completions;
pub mod compress;
pub mod crashlab;
pub mod dedupe;
pub mod defragment;
pub mod demo;
pub mod du;
pub mod explain;
pub mod figures;
mod files;
pub mod identity;
pub mod image;
pub mod info;
pub mod inspect;
mod interrupt;
pub mod manual;
pub mod metrics;
pub mod mkfs;
pub mod mount;
mod mount_options;
pub mod path;
pub mod quota;
pub mod resize;
pub mod scrub;
mod signals;
pub mod snapshot;
pub mod stats;
pub mod sync;
pub mod top;
pub mod trim;
pub mod umount;

use files::{files_below, missing, not_walked};
