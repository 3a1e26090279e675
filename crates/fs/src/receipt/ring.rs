//! The last receipts of a filesystem.

use super::Receipt;
use parking_lot::Mutex;

/// A bounded number of receipts; each new one replaces the oldest. The ring allocates once; its
/// memory is touched only as it fills.
pub struct Receipts {
    capacity: usize,
    kept: Mutex<Kept>,
}

struct Kept {
    /// Serial number of the newest receipt.
    newest: u64,
    /// The receipt with serial number s lies at (s − 1) modulo the capacity.
    slots: Vec<Receipt>,
}

impl Receipts {
    /// A ring with this capacity; with 0, nothing is kept.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, kept: Mutex::new(Kept { newest: 0, slots: Vec::with_capacity(capacity) }) }
    }

    /// True when nothing is kept.
    pub fn is_off(&self) -> bool {
        self.capacity == 0
    }

    /// Numbers a receipt and keeps it.
    pub fn record(&self, mut receipt: Receipt) {
        if self.is_off() {
            return;
        }
        let mut kept = self.kept.lock();
        kept.newest += 1;
        receipt.serial = kept.newest;
        let at = (kept.newest - 1) as usize % self.capacity;
        match kept.slots.get_mut(at) {
            Some(slot) => *slot = receipt,
            None => kept.slots.push(receipt),
        }
    }

    /// At most `max` of the newest receipts that are `wanted`, oldest first. Recording blocks while
    /// this looks.
    pub fn recent(&self, max: usize, wanted: impl Fn(&Receipt) -> bool) -> Vec<Receipt> {
        let kept = self.kept.lock();
        let oldest = kept.newest - kept.slots.len() as u64;
        let newest_first =
            (oldest..kept.newest).rev().map(|index| &kept.slots[index as usize % self.capacity]);
        let mut receipts: Vec<Receipt> =
            newest_first.filter(|receipt| wanted(receipt)).take(max).copied().collect();
        drop(kept);
        receipts.reverse();
        receipts
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Call, Inodes};
    use super::*;

    fn serials(receipts: &Receipts, max: usize, ino: Option<u64>) -> Vec<u64> {
        let wanted = |receipt: &Receipt| ino.is_none_or(|ino| receipt.is_about(ino));
        receipts.recent(max, wanted).iter().map(|receipt| receipt.serial).collect()
    }

    #[test]
    fn the_last_ones_are_kept_in_order() {
        let receipts = Receipts::new(4);
        assert!(serials(&receipts, 10, None).is_empty());
        for ino in 1..=11 {
            receipts.record(Receipt::new(Call::Fsync, Inodes::of([ino % 2])));
            let newest: Vec<u64> = (ino.saturating_sub(3).max(1)..=ino).collect();
            assert_eq!(serials(&receipts, 10, None), newest);
        }
        assert_eq!(serials(&receipts, 2, None), [10, 11]);
        assert_eq!(serials(&receipts, 10, Some(1)), [9, 11]);
        assert_eq!(serials(&receipts, 1, Some(0)), [10]);
    }

    #[test]
    fn a_ring_without_room_keeps_nothing() {
        let receipts = Receipts::new(0);
        receipts.record(Receipt::new(Call::Syncfs, Inodes::default()));
        assert!(receipts.is_off() && serials(&receipts, 10, None).is_empty());
    }

    #[test]
    fn of_many_files_the_first_are_listed() {
        let receipt = Receipt::new(Call::SyncMany, Inodes::of(10..30));
        assert_eq!((receipt.files, receipt.inodes.listed().len()), (20, 8));
        assert!(receipt.is_about(17) && !receipt.is_about(18) && !receipt.is_about(0));
    }
}
