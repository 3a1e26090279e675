//! What a write comes through, and which atomic write it is a part of.
//!
//! A write may wait, for room or for its turn. If it looked only then whether an atomic write is open,
//! it would miss that the one it belongs to was taken back meanwhile, and half of it would stay (P8).

use crate::FsError;
use crate::data::memory::atomic::Atomic;
use crate::inode::Inode;
use std::sync::Arc;
use syncline_sync::atomic::{AtomicBool, Ordering};

/// What a write comes through: a handle, a mapping, or neither; and the atomic write that it is a part
/// of.
#[derive(Clone, Debug)]
pub struct Through {
    /// 0 for none.
    handle: u64,
    /// True once that atomic write was taken back; `None` if there is none.
    taken_back: Option<Arc<AtomicBool>>,
}

impl Through {
    /// A call that has no handle, and so no atomic write.
    pub(in crate::data) const NOTHING: Self = Self { handle: 0, taken_back: None };

    /// A handle without an atomic write.
    pub fn handle_only(handle: u64) -> Self {
        Self { handle, taken_back: None }
    }

    /// A handle, with the atomic write that it has open.
    pub(super) fn handle_of(inode: &Inode, handle: u64) -> Self {
        Self { handle, taken_back: part_of(inode, |open| open.handle == handle) }
    }

    /// A mapping. What is stored there is a part of whatever atomic write is open.
    pub(in crate::data) fn mapping(inode: &Inode) -> Self {
        Self { handle: 0, taken_back: part_of(inode, |_| true) }
    }

    /// The handle that began this atomic write.
    pub(super) fn begun(open: &Atomic) -> Self {
        Self { handle: open.handle, taken_back: Some(open.taken_back.clone()) }
    }

    pub(in crate::data) fn handle(&self) -> u64 {
        self.handle
    }

    /// True if this is a part of an atomic write, whatever has become of that.
    pub fn is_part(&self) -> bool {
        self.taken_back.is_some()
    }

    /// True if this is a part of the atomic write that is open, and not of an earlier one of the same
    /// handle.
    pub(super) fn is_part_of(&self, open: &Atomic) -> bool {
        self.taken_back.as_ref().is_some_and(|mine| Arc::ptr_eq(mine, &open.taken_back))
    }

    /// True if both are parts of the same atomic write.
    pub fn is_beside(&self, other: &Self) -> bool {
        match (&self.taken_back, &other.taken_back) {
            (Some(mine), Some(its)) => Arc::ptr_eq(mine, its),
            _ => false,
        }
    }

    /// True if what this is a part of was taken back.
    pub fn was_taken_back(&self) -> bool {
        self.taken_back.as_ref().is_some_and(|taken_back| taken_back.load(Ordering::Acquire))
    }

    /// Fails if what this is a part of was taken back. The inode's lease is held.
    pub(in crate::data) fn require_not_taken_back(&self) -> Result<(), FsError> {
        if self.was_taken_back() { Err(FsError::AtomicWriteTakenBack) } else { Ok(()) }
    }
}

fn part_of(inode: &Inode, is_meant: impl FnOnce(&Atomic) -> bool) -> Option<Arc<AtomicBool>> {
    let state = inode.state.lock();
    let open = state.data.atomic.as_deref().filter(|open| is_meant(open))?;
    Some(open.taken_back.clone())
}
