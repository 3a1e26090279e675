//! Epoch pins: cheap proof that no reader that could hold an address is left (rule R2).
//!
//! Pins are counted in one of two slots. When freed blocks are released, new pins switch to the
//! other slot; the blocks become reusable when the slot left behind is empty. Blocks released
//! meanwhile wait for the next switch. Taking a pin costs two atomic operations on a cache line
//! that few threads share.

use std::sync::Arc;
use syncline_sync::atomic::{AtomicUsize, Ordering};
use syncline_sync::thread_number;

const SHARDS: usize = 16;

/// Pins of some of the threads, by slot. Aligned to have its cache lines for itself.
#[repr(align(128))]
#[derive(Default)]
struct Shard {
    slots: [AtomicUsize; 2],
}

/// While it exists, blocks that are released are not reused.
pub struct Pin {
    shard: Arc<Shard>,
    slot: usize,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.shard.slots[self.slot].fetch_sub(1, Ordering::SeqCst);
    }
}

/// Counts the pins.
#[derive(Default)]
pub(crate) struct Pins {
    shards: [Arc<Shard>; SHARDS],
    current: AtomicUsize,
}

impl Pins {
    /// Takes a pin in the current slot.
    pub(crate) fn pin(&self) -> Pin {
        let shard = &self.shards[thread_number() % SHARDS];
        loop {
            let slot = self.current.load(Ordering::SeqCst);
            shard.slots[slot].fetch_add(1, Ordering::SeqCst);
            // A switch in between may already have found the slot empty. Only a pin that was
            // counted while its slot was current is sure to be waited for by every later switch.
            if self.current.load(Ordering::SeqCst) == slot {
                return Pin { shard: Arc::clone(shard), slot };
            }
            shard.slots[slot].fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Switches new pins to the other slot, which must be drained; returns the slot left behind.
    pub(crate) fn switch(&self) -> usize {
        self.current.fetch_xor(1, Ordering::SeqCst)
    }

    /// True when a slot that was left behind has no pin any more.
    pub(crate) fn drained(&self, slot: usize) -> bool {
        // No pin enters a slot left behind, so each shard stays empty once it is.
        self.shards.iter().all(|shard| shard.slots[slot].load(Ordering::SeqCst) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64};
    use std::time::Duration;

    #[test]
    fn a_slot_left_behind_drains_when_its_pins_end() {
        let pins = Pins::default();
        let old = pins.pin();
        let slot = pins.switch();
        let new = pins.pin();
        assert!(!pins.drained(slot));
        drop(old);
        assert!(pins.drained(slot), "the newer pin is not in the way");
        let slot = pins.switch();
        assert!(!pins.drained(slot));
        drop(new);
        assert!(pins.drained(slot));
    }

    /// Readers pin, read the published value, and check after a while that it was not retired under
    /// them.
    #[test]
    fn nothing_a_pinned_reader_found_is_retired_under_it() {
        let pins = Pins::default();
        let published = AtomicU64::new(1);
        let retired_up_to = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !stop.load(Ordering::SeqCst) {
                        let _pin = pins.pin();
                        let found = published.load(Ordering::SeqCst);
                        std::hint::spin_loop();
                        assert!(retired_up_to.load(Ordering::SeqCst) < found, "retired under a pin");
                    }
                });
            }
            let deadline = std::time::Instant::now() + Duration::from_millis(200);
            while std::time::Instant::now() < deadline {
                let old = published.fetch_add(1, Ordering::SeqCst);
                let slot = pins.switch();
                while !pins.drained(slot) {
                    std::thread::yield_now();
                }
                retired_up_to.store(old, Ordering::SeqCst);
            }
            stop.store(true, Ordering::SeqCst);
        });
        assert!(retired_up_to.load(Ordering::SeqCst) > 1);
    }
}
