//! The memory that connections in WAL mode share: the index of the log, and its eight locks.
//!
//! Elsewhere this is a mapped file. All connections are in this process, so it is plain memory.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Locks of a write-ahead log (SQLITE_SHM_NLOCK).
pub(crate) const LOCKS: usize = 8;

/// One region of the index. SQLite reads and writes it with barriers of its own, so the memory has
/// to be such that threads may share it.
pub(crate) type Region = Arc<[AtomicU64]>;

/// The locks that one connection holds, a bit for each.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Held {
    shared: u8,
    exclusive: u8,
}

/// The regions and locks of one database.
#[derive(Default)]
pub(crate) struct SharedMemory {
    users: u32,
    regions: Vec<Region>,
    locks: [Lock; LOCKS],
}

#[derive(Clone, Copy, Default)]
struct Lock {
    shared: u32,
    exclusive: bool,
}

impl SharedMemory {
    /// Counts another connection that uses the memory.
    pub(crate) fn join(&mut self) {
        self.users += 1;
    }

    /// Ends the use by a connection. The last one leaves nothing: the index is made again from the log.
    pub(crate) fn leave(&mut self, held: Held) {
        for index in 0..LOCKS {
            self.release(index, held);
        }
        self.users -= 1;
        if self.users == 0 {
            self.regions.clear();
        }
    }

    /// A region, which stays where it is until the last user leaves; none if it must be made first.
    pub(crate) fn region(&mut self, index: usize, bytes: usize, make: bool) -> Option<&Region> {
        while make && self.regions.len() <= index {
            let words = bytes.div_ceil(size_of::<AtomicU64>());
            self.regions.push((0..words).map(|_| AtomicU64::new(0)).collect());
        }
        self.regions.get(index)
    }

    /// Takes locks for a connection, all or none; false if another holds one of them.
    pub(crate) fn lock(&mut self, range: std::ops::Range<usize>, exclusive: bool, held: &mut Held) -> bool {
        let free = |index: usize| {
            let (lock, bit) = (self.locks[index], 1 << index);
            let others = lock.shared - u32::from(held.shared & bit != 0);
            let taken = lock.exclusive && held.exclusive & bit == 0;
            !taken && (!exclusive || others == 0)
        };
        if !range.clone().all(free) {
            return false;
        }
        for index in range {
            let (lock, bit) = (&mut self.locks[index], 1 << index);
            if exclusive {
                lock.exclusive = true;
                held.exclusive |= bit;
            } else if held.shared & bit == 0 {
                lock.shared += 1;
                held.shared |= bit;
            }
        }
        true
    }

    /// Gives locks of a connection back.
    pub(crate) fn unlock(&mut self, range: std::ops::Range<usize>, held: &mut Held) {
        for index in range {
            self.release(index, *held);
            held.shared &= !(1 << index);
            held.exclusive &= !(1 << index);
        }
    }

    fn release(&mut self, index: usize, held: Held) {
        let (lock, bit) = (&mut self.locks[index], 1 << index);
        lock.shared -= u32::from(held.shared & bit != 0);
        lock.exclusive &= held.exclusive & bit == 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_a_lock_and_a_writer_has_it_alone() {
        let mut memory = SharedMemory::default();
        let (mut one, mut two) = (Held::default(), Held::default());
        assert!(memory.lock(3..4, false, &mut one));
        assert!(memory.lock(3..4, false, &mut two));
        assert!(!memory.lock(3..4, true, &mut one), "the other reads");
        memory.unlock(3..4, &mut two);
        memory.unlock(3..4, &mut one);
        assert!(memory.lock(0..8, true, &mut one));
        assert!(!memory.lock(7..8, false, &mut two));
        assert!(!memory.lock(7..8, true, &mut two));
        memory.unlock(0..8, &mut one);
        assert!(memory.lock(7..8, true, &mut two));
    }

    #[test]
    fn locks_are_taken_all_or_none() {
        let mut memory = SharedMemory::default();
        let (mut one, mut two) = (Held::default(), Held::default());
        assert!(memory.lock(5..6, true, &mut one));
        assert!(!memory.lock(4..6, true, &mut two));
        assert!(memory.lock(4..5, true, &mut one), "nothing was left of the refused call");
    }

    #[test]
    fn a_connection_that_leaves_gives_its_locks_back_and_the_last_one_the_memory() {
        let mut memory = SharedMemory::default();
        let (mut one, mut two) = (Held::default(), Held::default());
        memory.join();
        memory.join();
        assert!(memory.region(1, 32768, false).is_none());
        let region = memory.region(1, 32768, true).unwrap().clone();
        assert_eq!(size_of_val(&*region), 32768);
        assert!(Arc::ptr_eq(memory.region(1, 32768, false).unwrap(), &region));
        assert!(memory.lock(0..2, true, &mut one));
        memory.leave(one);
        assert!(memory.lock(0..2, true, &mut two));
        memory.leave(two);
        assert!(memory.region(0, 32768, false).is_none());
    }
}
