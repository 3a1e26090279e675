//! The most synced files, from receipts.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use syncline_fs::{Call, Receipt};
use syncline_store::Cover;

/// How many files are reported.
const TOLD_MAX: usize = 64;
const BLOCK_BYTES: u64 = syncline_format::BLOCK_BYTES as u64;

/// The files that were synced most since a receipt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Busiest {
    /// Number of the newest receipt examined.
    pub serial: u64,
    /// Receipts examined.
    pub receipts: u64,
    /// Receipts that were pushed out before they could be examined.
    pub missed: u64,
    /// The files, most syncs first.
    pub files: Vec<BusyFile>,
}

/// The totals of one file's or directory's syncs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BusyFile {
    /// Its inode number.
    pub inode: u64,
    /// Calls about it.
    pub syncs: u64,
    /// Calls that needed no flush.
    pub elided: u64,
    /// Nanoseconds in all calls.
    pub total_ns: u64,
    /// Nanoseconds of the longest call.
    pub max_ns: u64,
    /// Bytes that the calls wrote themselves, including those in the inode item.
    pub bytes: u64,
}

impl Busiest {
    /// Computed from those of these receipts whose number is above `since`.
    pub fn of(since: u64, receipts: &[Receipt]) -> Self {
        let mut files: HashMap<u64, BusyFile> = HashMap::new();
        for receipt in receipts.iter().filter(|receipt| receipt.call != Call::Syncfs) {
            for &inode in receipt.inodes.listed() {
                files.entry(inode).or_insert(BusyFile { inode, ..BusyFile::default() }).add(receipt);
            }
        }
        let mut files: Vec<BusyFile> = files.into_values().collect();
        files.sort_by_key(|file| (std::cmp::Reverse(file.syncs), file.inode));
        files.truncate(TOLD_MAX);
        let serial = receipts.last().map_or(since, |newest| newest.serial);
        let count = receipts.len() as u64;
        Self { serial, receipts: count, missed: serial.saturating_sub(since).saturating_sub(count), files }
    }
}

impl BusyFile {
    fn add(&mut self, receipt: &Receipt) {
        self.syncs += 1;
        self.elided += u64::from(matches!(receipt.cover, Cover::Elided));
        self.total_ns += receipt.times_ns.total;
        self.max_ns = self.max_ns.max(receipt.times_ns.total);
        // For a call on many files, the receipt does not say what each of them wrote.
        if receipt.files == 1 {
            let blocks = receipt.submitted.blocks + receipt.submitted.blocks_in_log;
            self.bytes += blocks * BLOCK_BYTES + receipt.submitted.inline_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_fs::Inodes;

    fn receipt(serial: u64, call: Call, inodes: &[u64], total: u64) -> Receipt {
        let mut made = Receipt::new(call, Inodes::of(inodes.iter().copied()));
        made.serial = serial;
        made.times_ns.total = total;
        made.submitted.blocks = 2;
        made
    }

    #[test]
    fn files_are_added_up_and_those_synced_most_come_first() {
        let mut receipts = vec![
            receipt(8, Call::Fsync, &[5], 10),
            receipt(9, Call::Fdatasync, &[7], 20),
            receipt(10, Call::Syncfs, &[5, 6], 1000),
            receipt(11, Call::SyncMany, &[7, 9], 40),
        ];
        receipts[1].cover = Cover::Elided;
        let busiest = Busiest::of(5, &receipts);
        assert_eq!((busiest.serial, busiest.receipts, busiest.missed), (11, 4, 2));
        let told: Vec<_> = busiest.files.iter().map(|file| (file.inode, file.syncs, file.bytes)).collect();
        assert_eq!(told, [(7, 2, 8192), (5, 1, 8192), (9, 1, 0)]);
        let first = &busiest.files[0];
        assert_eq!((first.elided, first.total_ns, first.max_ns), (1, 60, 40));
        let none = Busiest::of(11, &[]);
        assert_eq!((none.serial, none.missed, none.files.len()), (11, 0, 0));
    }
}
