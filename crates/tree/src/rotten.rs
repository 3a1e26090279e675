//! Copies of nodes that were found damaged while the other copy was sound, and mending them.

use crate::TreeError;
use crate::frame::Place;
use crate::tree::{Caching, Tree, Unsound, offset_bytes};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use syncline_format::superblock::{Pointer, TreeRoot};
use syncline_format::{BlockAddr, FormatError, Key, crc};
use syncline_sync::Mutex;

/// Damaged copies remembered at a time. Others are found again by the next read.
const ROTTEN_MAX: usize = 64 << 10;

/// A damaged copy of a node whose other copy is sound.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rotten {
    /// Address of the damaged copy.
    pub addr: BlockAddr,
    /// Level of the node.
    pub level: u8,
    /// The error in the copy.
    pub why: String,
    pointer: Pointer,
    /// First key of the node; `None` for a root.
    first: Option<Key>,
}

/// The damaged copies found so far, by address.
#[derive(Default)]
pub(crate) struct RottenList(Mutex<Found>);

#[derive(Default)]
struct Found {
    /// Copies that wait to be mended.
    waiting: BTreeMap<BlockAddr, Rotten>,
    /// Copies that could not be mended, with the checksum of their node: another node may lie there later.
    /// Until a retry, reads do not report them again.
    failed: BTreeSet<(BlockAddr, u32)>,
}

impl Found {
    /// True if the copy is new and there is room to remember it.
    fn is_new(&self, addr: BlockAddr, pointer: Pointer) -> bool {
        self.waiting.len() < ROTTEN_MAX
            && !self.waiting.contains_key(&addr)
            && !self.failed.contains(&(addr, pointer.checksum))
    }
}

impl Tree {
    /// Remembers that the copy at `addr` is damaged.
    pub(crate) fn rotten(&self, place: Place, addr: BlockAddr, unsound: &Unsound) {
        self.counters.copies_rotten.fetch_add(1, Relaxed);
        let Place { pointer, level, first, .. } = place;
        let mut found = self.rotten.0.lock();
        if found.is_new(addr, pointer) {
            tracing::warn!(
                addr,
                level,
                "a copy of a tree node is damaged ({unsound}); the other one is sound"
            );
            found.waiting.insert(addr, Rotten { addr, level, why: unsound.to_string(), pointer, first });
        }
    }

    /// Remembers damaged copies that were found through another [`Tree`] of the same device.
    pub fn remember(&self, rotten: Vec<Rotten>) {
        let mut found = self.rotten.0.lock();
        for rotten in rotten {
            if found.is_new(rotten.addr, rotten.pointer) {
                found.waiting.insert(rotten.addr, rotten);
            }
        }
    }

    /// Takes the damaged copies that wait to be mended, in the order of their addresses.
    pub fn take_rotten(&self) -> Vec<Rotten> {
        std::mem::take(&mut self.rotten.0.lock().waiting).into_values().collect()
    }

    /// Notes that a damaged copy could not be mended, so that no read of the node reports it again.
    pub fn mending_failed(&self, rotten: &Rotten) {
        let mut found = self.rotten.0.lock();
        if found.failed.len() < ROTTEN_MAX {
            found.failed.insert((rotten.addr, rotten.pointer.checksum));
        }
    }

    /// From now on, reads also report the copies that could not be mended so far.
    pub fn retry_mending(&self) {
        self.rotten.0.lock().failed.clear();
    }

    /// True if the tree `root` has the node of the damaged copy.
    pub async fn leads_to(&self, root: TreeRoot, rotten: &Rotten) -> Result<bool, TreeError> {
        let mut place = Place::root(root);
        while place.pointer != rotten.pointer {
            if place.level <= rotten.level {
                return Ok(false);
            }
            let node = self.load(place, None, Caching::Peek).await?;
            let child = node.child_for(rotten.first.unwrap_or(Key::MIN));
            place = Place::child(&node, child, place.bound);
        }
        Ok(true)
    }

    /// Writes a damaged copy again from the other one. A tree must [lead to](Self::leads_to) the node, and
    /// nobody may free it meanwhile: the blocks could hold something else by then.
    pub async fn mend(&self, rotten: &Rotten) -> Result<(), TreeError> {
        let Pointer { addr, copy, checksum } = rotten.pointer;
        let sound = if rotten.addr == addr { copy } else { addr };
        let bytes = self.read_at(sound).await?.into_bytes();
        if crc(&bytes) != checksum {
            let detail = FormatError::Checksum { structure: "tree node" };
            return Err(TreeError::Corrupt { addr: sound, detail });
        }
        self.tracker.write(offset_bytes(rotten.addr), vec![bytes]).wait().await?;
        Ok(())
    }
}
