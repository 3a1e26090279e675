//! Inodes in memory, and the number of references that the kernel holds on each.
//!
//! An inode leaves the cache only while nobody holds an `Arc` of it. A task that reads or makes an
//! inode first takes on the duty to do so. So there is never more than one copy of an inode in
//! memory, and the items of an absent inode are all there is to know about it.

use crate::inode::Inode;
use crate::types::Ino;
use foldhash::HashMap;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use syncline_sync::atomic::{AtomicUsize, Ordering};
use syncline_sync::{Event, EventListener, Mutex};

const SHARDS: usize = 64;
/// Inodes examined for each inode that is added while the cache is full.
const EVICTION_STEPS: usize = 4;

/// The inodes in memory.
pub(crate) struct InodeCache {
    shards: Vec<Mutex<Shard>>,
    /// One event per shard, notified when one of its inodes has been read or made, or the attempt
    /// was given up. Few tasks wait at once; an event per inode would have to be allocated with
    /// each new inode.
    loaded: Vec<Event>,
    shard_max: usize,
    len: AtomicUsize,
}

#[derive(Default)]
struct Shard {
    inodes: HashMap<Ino, Arc<Inode>>,
    /// Inodes that a task is reading or making, each with the number of that duty; other tasks wait
    /// for it. Few at a time.
    loading: Vec<(Ino, u64)>,
    /// Number of duties given out so far.
    loads: u64,
    /// Order in which inodes are examined for eviction; each cached inode is in it once.
    clock: VecDeque<Ino>,
}

/// Answer to a request for an inode.
pub(crate) enum Claim<'a> {
    /// The inode is in memory.
    Hit(Arc<Inode>),
    /// Another task is reading or making the inode: wait, then ask again.
    Wait(EventListener),
    /// The caller must read the inode.
    Load(Loading<'a>),
}

/// The duty to read or make an inode. Dropping it lets the next task try.
pub(crate) struct Loading<'a> {
    cache: &'a InodeCache,
    ino: Ino,
    load: u64,
    ended: bool,
}

impl InodeCache {
    pub(crate) fn new(inodes_max: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            loaded: (0..SHARDS).map(|_| Event::new()).collect(),
            shard_max: inodes_max.div_ceil(SHARDS).max(1),
            len: AtomicUsize::new(0),
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[ino as usize % SHARDS]
    }

    fn loaded(&self, ino: Ino) -> &Event {
        &self.loaded[ino as usize % SHARDS]
    }

    /// The inode, or how to get it.
    pub(crate) fn claim(&self, ino: Ino) -> Claim<'_> {
        let mut shard = self.shard(ino).lock();
        if let Some(inode) = shard.inodes.get(&ino) {
            inode.referenced.store(true, Ordering::Relaxed);
            return Claim::Hit(inode.clone());
        }
        if shard.loading.iter().any(|&(loading, _)| loading == ino) {
            // The listener is made under the shard's lock, so the loader's notification can't be
            // missed.
            return Claim::Wait(self.loaded(ino).listen());
        }
        let load = shard.begin(ino);
        Claim::Load(Loading { cache: self, ino, load, ended: false })
    }

    /// The inode, if it is in memory.
    pub(crate) fn peek(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.shard(ino).lock().inodes.get(&ino).cloned()
    }

    /// Takes the duty to make an inode, before the transaction that makes it: as soon as that is
    /// committed, its name can be found and its item read. A task that began to read it when there
    /// was nothing yet loses its duty and tries again.
    pub(crate) fn make(&self, ino: Ino) -> Loading<'_> {
        let mut shard = self.shard(ino).lock();
        shard.loading.retain(|&(loading, _)| loading != ino);
        let load = shard.begin(ino);
        Loading { cache: self, ino, load, ended: false }
    }

    /// Forgets a removed inode.
    pub(crate) fn remove(&self, ino: Ino) {
        if self.shard(ino).lock().inodes.remove(&ino).is_some() {
            self.len.fetch_sub(1, Ordering::Relaxed);
            // The clock hand drops its place when it comes by.
        }
    }

    /// Evicts, examining a few inodes whatever the size of the cache.
    fn evict(&self, shard: &mut Shard) {
        for _ in 0..EVICTION_STEPS {
            if shard.clock.len() <= self.shard_max {
                return;
            }
            let Some(ino) = shard.clock.pop_front() else { return };
            let Some(inode) = shard.inodes.get(&ino) else { continue };
            if shard.inodes.len() <= self.shard_max {
                // The queue has inodes that are gone, and only these have to leave it.
                shard.clock.push_back(ino);
                continue;
            }
            let recent = inode.referenced.swap(false, Ordering::Relaxed);
            // All new references come from the shard, which is locked: a count of one stays one.
            if recent || Arc::strong_count(inode) > 1 || !inode.is_idle() {
                shard.clock.push_back(ino);
                continue;
            }
            shard.inodes.remove(&ino);
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Inodes in memory.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// The inodes in memory that satisfy `wanted`.
    pub(crate) fn matching(&self, wanted: impl Fn(&Inode) -> bool) -> Vec<Arc<Inode>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            found.extend(shard.lock().inodes.values().filter(|inode| wanted(inode)).cloned());
        }
        // The order of a hash map differs in each process; the order of the result must not.
        found.sort_unstable_by_key(|inode| inode.ino);
        found
    }
}

impl Shard {
    /// Gives out the duty to read or make an inode.
    fn begin(&mut self, ino: Ino) -> u64 {
        self.loads += 1;
        self.loading.push((ino, self.loads));
        self.loads
    }

    /// Ends a duty; false if another task has taken the duty to make it since.
    fn end(&mut self, ino: Ino, load: u64) -> bool {
        let mine = self.loading.iter().position(|&duty| duty == (ino, load));
        mine.map(|index| self.loading.swap_remove(index)).is_some()
    }
}

impl Loading<'_> {
    /// Puts the inode into the cache; false if another task has taken the duty to make it in
    /// the meantime.
    pub(crate) fn finish(mut self, inode: &Arc<Inode>) -> bool {
        self.ended = true;
        let mut shard = self.cache.shard(self.ino).lock();
        if !shard.end(self.ino, self.load) {
            return false;
        }
        shard.inodes.insert(self.ino, inode.clone());
        shard.clock.push_back(self.ino);
        self.cache.len.fetch_add(1, Ordering::Relaxed);
        if shard.clock.len() > self.cache.shard_max {
            self.cache.evict(&mut shard);
        }
        true
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.cache.shard(self.ino).lock().end(self.ino, self.load);
        }
        self.cache.loaded(self.ino).notify(usize::MAX);
    }
}

/// The number of references that the kernel holds on each inode. Kept apart from the cache as a
/// number each, so that a million known inodes cost some tens of megabytes and not a million inodes
/// in memory.
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
        // Gives memory back after a burst of references.
        if shard.capacity() > 1024 && shard.len() < shard.capacity() / 8 {
            shard.shrink_to_fit();
        }
        true
    }

    /// True when the kernel refers to the inode.
    pub(crate) fn any(&self, ino: Ino) -> bool {
        self.shard(ino).lock().contains_key(&ino)
    }

    /// The inodes that the kernel refers to, in ascending order.
    pub(crate) fn all(&self) -> Vec<Ino> {
        let mut all: Vec<Ino> =
            self.shards.iter().flat_map(|shard| shard.lock().keys().copied().collect::<Vec<_>>()).collect();
        all.sort_unstable();
        all
    }

    /// Number of inodes that the kernel refers to.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::{InodeState, Meta};
    use crate::types::{Attributes, FileType, Timestamp};
    use syncline_device::block_on;

    fn inode(ino: Ino) -> Arc<Inode> {
        let now = Timestamp { seconds: 0, nanoseconds: 0 };
        let attr = Attributes {
            ino,
            file_type: FileType::Regular,
            permissions: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        };
        Inode::new(InodeState::new(attr, Meta::default()))
    }

    fn to_load(cache: &InodeCache, ino: Ino) -> Loading<'_> {
        match cache.claim(ino) {
            Claim::Load(loading) => loading,
            _ => panic!("somebody has it or loads it"),
        }
    }

    fn to_wait_for(cache: &InodeCache, ino: Ino) -> EventListener {
        match cache.claim(ino) {
            Claim::Wait(listener) => listener,
            _ => panic!("nobody loads it"),
        }
    }

    #[test]
    fn one_task_loads_an_inode_and_the_others_wait() {
        let cache = InodeCache::new(1000);
        let given_up = to_load(&cache, 5);
        let waiting = to_wait_for(&cache, 5);
        // Another inode of the same shard is independent.
        let other = to_load(&cache, 5 + SHARDS as Ino);
        drop(given_up);
        block_on(waiting);
        let loading = to_load(&cache, 5);
        let waiting = to_wait_for(&cache, 5);
        let loaded = inode(5);
        assert!(loading.finish(&loaded) && other.finish(&inode(5 + SHARDS as Ino)));
        block_on(waiting);
        assert!(matches!(cache.claim(5), Claim::Hit(found) if Arc::ptr_eq(&found, &loaded)));
        assert_eq!(cache.len(), 2);
    }

    #[test]
    fn who_read_nothing_gives_way_to_who_makes_it() {
        let cache = InodeCache::new(1000);
        let early = to_load(&cache, 5);
        let making = cache.make(5);
        assert!(!early.finish(&inode(5)));
        let waiting = to_wait_for(&cache, 5);
        let made = inode(5);
        assert!(making.finish(&made));
        block_on(waiting);
        assert!(matches!(cache.claim(5), Claim::Hit(found) if Arc::ptr_eq(&found, &made)));
        // Giving up late does not take the duty from the maker either.
        let early = to_load(&cache, 6);
        let making = cache.make(6);
        drop(early);
        drop(to_wait_for(&cache, 6));
        drop(making);
        drop(to_load(&cache, 6));
        assert_eq!(cache.len(), 1);
    }
    #[test]
    fn files_that_come_and_go_push_none_out_of_a_cache_with_room() {
        const KEPT: usize = 8;
        let cache = InodeCache::new(16 * SHARDS);
        let numbers = |number: usize| (number * SHARDS) as Ino;
        (0..KEPT).for_each(|number| assert!(cache.make(numbers(number)).finish(&inode(numbers(number)))));
        for number in KEPT..1000 {
            assert!(cache.make(numbers(number)).finish(&inode(numbers(number))));
            cache.remove(numbers(number));
        }
        assert!((0..KEPT).all(|number| cache.peek(numbers(number)).is_some()));
        assert!(cache.shard(0).lock().clock.len() <= 64, "places of those that are gone are dropped");
        // Without removals it keeps its size, and who was met again stays longer.
        for number in 1000..1100 {
            drop(cache.claim(numbers(1)));
            assert!(cache.make(numbers(number)).finish(&inode(numbers(number))));
        }
        assert!(cache.len() <= 17 && cache.peek(numbers(1)).is_some() && cache.peek(numbers(2)).is_none());
    }
}
