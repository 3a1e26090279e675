//! Inodes in memory, and how often the kernel refers to each.
//!
//! An inode leaves the cache only while nobody holds an `Arc` of it, and whoever reads or makes one takes its slot first, so
//! that there is never more than one in memory and what an absent inode's items say is all there is to know about it.

use crate::inode::Inode;
use crate::types::Ino;
use event_listener::{Event, EventListener};
use foldhash::HashMap;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const SHARDS: usize = 64;
/// Inodes looked at for each one that is added while the cache is full.
const EVICTION_STEPS: usize = 4;

/// The inodes in memory.
pub(crate) struct InodeCache {
    shards: Vec<Mutex<Shard>>,
    shard_max: usize,
    len: AtomicUsize,
}

#[derive(Default)]
struct Shard {
    slots: HashMap<Ino, Slot>,
    /// Order in which inodes are looked at for eviction; each cached inode is in it once.
    clock: VecDeque<Ino>,
}

enum Slot {
    /// One task reads or makes the inode; the others wait for it.
    Loading(Arc<Event>),
    Ready(Arc<Inode>),
}

/// What to do about an inode that is wanted.
pub(crate) enum Claim<'a> {
    /// Here it is.
    Hit(Arc<Inode>),
    /// Somebody reads it: wait, then ask again.
    Wait(EventListener),
    /// It is up to the caller to read it.
    Load(Loading<'a>),
}

/// The duty to read or to make an inode. Dropping it lets the next one try.
pub(crate) struct Loading<'a> {
    cache: &'a InodeCache,
    ino: Ino,
    event: Arc<Event>,
    ended: bool,
}

impl InodeCache {
    pub(crate) fn new(inodes_max: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            shard_max: inodes_max.div_ceil(SHARDS).max(1),
            len: AtomicUsize::new(0),
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[ino as usize % SHARDS]
    }

    /// The inode, or how to get it.
    pub(crate) fn claim(&self, ino: Ino) -> Claim<'_> {
        let mut shard = self.shard(ino).lock();
        match shard.slots.entry(ino) {
            Entry::Occupied(slot) => match slot.get() {
                Slot::Ready(inode) => {
                    inode.referenced.store(true, Ordering::Relaxed);
                    Claim::Hit(inode.clone())
                }
                // The listener is made under the shard's lock, so the loader's notification can't be missed.
                Slot::Loading(event) => Claim::Wait(event.listen()),
            },
            Entry::Vacant(slot) => {
                let event = Arc::new(Event::new());
                slot.insert(Slot::Loading(event.clone()));
                Claim::Load(Loading { cache: self, ino, event, ended: false })
            }
        }
    }

    /// The inode if it is in memory.
    pub(crate) fn peek(&self, ino: Ino) -> Option<Arc<Inode>> {
        match self.shard(ino).lock().slots.get(&ino) {
            Some(Slot::Ready(inode)) => Some(inode.clone()),
            _ => None,
        }
    }

    /// Takes the slot of an inode before the transaction that makes it: its name can be found, and its item be read, as soon as
    /// that is committed. Whoever tried to read it when there was nothing yet tries again.
    pub(crate) fn make(&self, ino: Ino) -> Loading<'_> {
        let event = Arc::new(Event::new());
        self.shard(ino).lock().slots.insert(ino, Slot::Loading(event.clone()));
        Loading { cache: self, ino, event, ended: false }
    }

    /// Forgets a removed inode.
    pub(crate) fn remove(&self, ino: Ino) {
        let mut shard = self.shard(ino).lock();
        if let Some(Slot::Ready(_)) = shard.slots.get(&ino) {
            shard.slots.remove(&ino);
            self.len.fetch_sub(1, Ordering::Relaxed);
            // Its place in the clock is taken away when the hand comes by.
        }
    }

    /// Makes room: a few inodes are looked at, whatever the size of the cache.
    fn evict(&self, shard: &mut Shard) {
        for _ in 0..EVICTION_STEPS {
            let Some(ino) = shard.clock.pop_front() else { return };
            let Some(Slot::Ready(inode)) = shard.slots.get(&ino) else { continue };
            let recent = inode.referenced.swap(false, Ordering::Relaxed);
            // All new references come from the slot, whose shard is locked: a count of one stays one.
            if recent || Arc::strong_count(inode) > 1 || !inode.is_idle() {
                shard.clock.push_back(ino);
                continue;
            }
            shard.slots.remove(&ino);
            self.len.fetch_sub(1, Ordering::Relaxed);
            if shard.slots.len() <= self.shard_max {
                return;
            }
        }
    }

    /// Inodes in memory.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Those in memory that satisfy `wanted`.
    pub(crate) fn matching(&self, wanted: impl Fn(&Inode) -> bool) -> Vec<Arc<Inode>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            for slot in shard.lock().slots.values() {
                if let Slot::Ready(inode) = slot
                    && wanted(inode)
                {
                    found.push(inode.clone());
                }
            }
        }
        // The order of a hash map is another one in each process; that of what follows from it must not be.
        found.sort_unstable_by_key(|inode| inode.ino);
        found
    }
}

impl Loading<'_> {
    /// Puts the inode into the cache; false if it was made in the meantime, by somebody who has it in memory.
    pub(crate) fn finish(mut self, inode: &Arc<Inode>) -> bool {
        self.ended = true;
        let mut shard = self.cache.shard(self.ino).lock();
        let Some(slot) = self.slot(&mut shard) else { return false };
        *slot = Slot::Ready(inode.clone());
        shard.clock.push_back(self.ino);
        self.cache.len.fetch_add(1, Ordering::Relaxed);
        if shard.clock.len() > self.cache.shard_max {
            self.cache.evict(&mut shard);
        }
        true
    }

    /// The slot, while it is this task's to fill.
    fn slot<'s>(&self, shard: &'s mut Shard) -> Option<&'s mut Slot> {
        let mine = |slot: &&mut Slot| matches!(slot, Slot::Loading(event) if Arc::ptr_eq(event, &self.event));
        shard.slots.get_mut(&self.ino).filter(mine)
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let mut shard = self.cache.shard(self.ino).lock();
            if self.slot(&mut shard).is_some() {
                shard.slots.remove(&self.ino);
            }
        }
        self.event.notify(usize::MAX);
    }
}

/// How often the kernel refers to each inode: a number each, apart from the cache, so that a million known inodes cost
/// some tens of megabytes and not a million inodes in memory.
pub(crate) struct References {
    shards: Vec<Mutex<HashMap<Ino, u64>>>,
}

impl References {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, u64>> {
        &self.shards[ino as usize % SHARDS]
    }

    /// Counts one reference.
    pub(crate) fn add(&self, ino: Ino) {
        *self.shard(ino).lock().entry(ino).or_insert(0) += 1;
    }

    /// Takes `count` references back; true when none are left.
    pub(crate) fn forget(&self, ino: Ino, count: u64) -> bool {
        let mut shard = self.shard(ino).lock();
        let Entry::Occupied(mut entry) = shard.entry(ino) else { return true };
        *entry.get_mut() = entry.get().saturating_sub(count);
        if *entry.get() > 0 {
            return false;
        }
        entry.remove();
        // Gives memory back after a great wave of references.
        if shard.capacity() > 1024 && shard.len() < shard.capacity() / 8 {
            shard.shrink_to_fit();
        }
        true
    }

    /// True when the kernel refers to the inode.
    pub(crate) fn any(&self, ino: Ino) -> bool {
        self.shard(ino).lock().contains_key(&ino)
    }

    /// Inodes that are referred to.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}
