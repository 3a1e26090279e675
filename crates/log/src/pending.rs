//! The pending log: changes already encoded as records, in the order in which transactions
//! committed.

use std::collections::HashMap;
use std::mem;
use syncline_format::batch::{
    HEADER_BYTES, PUT_PREFIX_BYTES, Records, push_delete, push_free, push_name, push_put, void_put,
};
use syncline_format::{BlockAddr, BlockRun, Crc, Geometry, Key};

/// Number of item kinds counted separately, by their on-disk number; kinds with larger numbers are
/// counted as 0.
pub const ITEM_KINDS: usize = 16;

/// The memory of a sealed log, for the next one.
#[derive(Default)]
pub struct Spare(Vec<u8>);

/// Most keys that an empty log keeps room for.
const PUTS_MAX: usize = 1024;

/// Largest capacity given to an empty log.
const ROOM_BYTES_MAX: usize = 4 << 20;

/// Numbers of records of each sort.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PendingCounts {
    /// Items set.
    pub puts: u64,
    /// Items removed.
    pub deletes: u64,
    /// Runs of data blocks named.
    pub names: u64,
    /// Runs of blocks freed.
    pub frees: u64,
    /// Puts that replaced an earlier put in the same unsealed batch instead of being added to it.
    pub coalesced: u64,
    /// Items that the batch sets, by kind number: those put, minus those replaced or removed again.
    pub items: [u32; ITEM_KINDS],
}

impl PendingCounts {
    fn plus(self, other: Self) -> Self {
        let mut items = self.items;
        items.iter_mut().zip(other.items).for_each(|(mine, more)| *mine += more);
        Self {
            puts: self.puts + other.puts,
            deletes: self.deletes + other.deletes,
            names: self.names + other.names,
            frees: self.frees + other.frees,
            coalesced: self.coalesced + other.coalesced,
            items,
        }
    }
}

fn kind_of(key: Key) -> usize {
    let kind = usize::from(key.kind);
    if kind < ITEM_KINDS { kind } else { 0 }
}

/// The newest put of a key in the buffer.
struct Put {
    at: usize,
    value_len: usize,
}

/// Records gathered since the last seal.
///
/// A put of a key that already has one here replaces it: in place if the length is the same,
/// otherwise by voiding the old record. A delete ends that: the next put of the key is a new
/// record. Within a batch only the order of changes of one key matters, because a batch applies
/// wholly or not at all.
pub struct Pending {
    /// Space for the batch header, then the records.
    buffer: Vec<u8>,
    puts: HashMap<Key, Put, foldhash::fast::RandomState>,
    counts: PendingCounts,
    objects_delta: i64,
    named_blocks: u64,
}

impl Default for Pending {
    fn default() -> Self {
        Self {
            buffer: vec![0; HEADER_BYTES],
            puts: HashMap::default(),
            counts: PendingCounts::default(),
            objects_delta: 0,
            named_blocks: 0,
        }
    }
}

impl Pending {
    /// Adds a changed item.
    pub fn put(&mut self, key: Key, value: &[u8]) {
        self.counts.puts += 1;
        let at = self.buffer.len();
        if let Some(put) = self.puts.get_mut(&key) {
            self.counts.coalesced += 1;
            if put.value_len == value.len() {
                let from = put.at + PUT_PREFIX_BYTES;
                self.buffer[from..from + value.len()].copy_from_slice(value);
                return;
            }
            void_put(&mut self.buffer, put.at);
            *put = Put { at, value_len: value.len() };
        } else {
            self.puts.insert(key, Put { at, value_len: value.len() });
            self.counts.items[kind_of(key)] += 1;
        }
        push_put(&mut self.buffer, key, value);
    }

    /// Adds the removal of an item.
    pub fn delete(&mut self, key: Key) {
        self.counts.deletes += 1;
        if let Some(put) = self.puts.remove(&key) {
            void_put(&mut self.buffer, put.at);
            self.counts.items[kind_of(key)] -= 1;
        }
        push_delete(&mut self.buffer, key);
    }

    /// Adds the naming of data blocks.
    pub fn name(&mut self, start: BlockAddr, checksums: &[Crc]) {
        self.counts.names += 1;
        self.named_blocks += checksums.len() as u64;
        push_name(&mut self.buffer, start, checksums);
    }

    /// Adds the freeing of blocks.
    pub fn free(&mut self, run: BlockRun) {
        self.counts.frees += 1;
        push_free(&mut self.buffer, run);
    }

    /// Adds a change of the number of objects.
    pub fn count_objects(&mut self, delta: i64) {
        self.objects_delta += delta;
    }

    /// True when there is nothing to seal.
    pub fn is_empty(&self) -> bool {
        self.buffer.len() == HEADER_BYTES && self.objects_delta == 0
    }

    /// Length of the records in bytes.
    pub fn payload_bytes(&self) -> usize {
        self.buffer.len() - HEADER_BYTES
    }

    /// Number of data blocks named.
    pub fn named_blocks(&self) -> u64 {
        self.named_blocks
    }

    /// Change of the number of objects.
    pub fn objects_delta(&self) -> i64 {
        self.objects_delta
    }

    /// Counts of the gathered records.
    pub fn counts(&self) -> PendingCounts {
        self.counts
    }

    /// The space for the header and the records, as one slice.
    pub(crate) fn buffer(&self) -> &[u8] {
        &self.buffer
    }

    /// Appends changes that were gathered later, as when a seal had to be undone.
    pub fn append(&mut self, later: Pending) {
        let shift = self.buffer.len() - HEADER_BYTES;
        self.buffer.extend_from_slice(&later.buffer[HEADER_BYTES..]);
        // Only the newest put of a key may be replaced in place, and a put in this log may have
        // been removed in the later one.
        self.puts =
            later.puts.into_iter().map(|(key, put)| (key, Put { at: put.at + shift, ..put })).collect();
        self.objects_delta += later.objects_delta;
        self.named_blocks += later.named_blocks;
        self.counts = self.counts.plus(later.counts);
    }

    /// Copies the same changes one record at a time and returns the number of copies: the cost of
    /// sealing if items were not gathered in the form in which they are logged. For measurements.
    pub fn copied_item_by_item(&self, geometry: Geometry) -> (Self, u64) {
        let mut buffer = vec![0; HEADER_BYTES];
        let mut records = Records::new(&self.buffer[HEADER_BYTES..], geometry);
        let mut copies = 0;
        while let Some(Ok(_)) = records.next() {
            let end = self.buffer.len() - records.remaining_bytes();
            buffer.extend_from_slice(&self.buffer[buffer.len()..end]);
            copies += 1;
        }
        debug_assert_eq!(buffer, self.buffer);
        let (counts, objects_delta, named_blocks) = (self.counts, self.objects_delta, self.named_blocks);
        (Self { buffer, puts: HashMap::default(), counts, objects_delta, named_blocks }, copies)
    }

    /// Takes everything gathered and leaves an empty log, which gathers in the memory of `spare`.
    pub fn take(&mut self, spare: Spare) -> Pending {
        let mut buffer = spare.0;
        buffer.clear();
        // Batches are much alike.
        buffer.reserve(self.buffer.len().min(ROOM_BYTES_MAX));
        buffer.resize(HEADER_BYTES, 0);
        // Values are replaced in place only while the batch gathers.
        let mut puts = mem::take(&mut self.puts);
        puts.clear();
        if puts.capacity() > PUTS_MAX {
            puts = HashMap::default();
        }
        let counts = PendingCounts::default();
        mem::replace(self, Self { buffer, puts, counts, objects_delta: 0, named_blocks: 0 })
    }

    /// The larger of `spare` and this log's own memory, which has been sealed.
    pub fn into_spare(self, spare: Spare) -> Spare {
        let mine = self.buffer.capacity();
        if mine > ROOM_BYTES_MAX || mine <= spare.0.capacity() { spare } else { Spare(self.buffer) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_format::Metadata;
    use syncline_format::batch::Record;

    const GEOMETRY: Geometry = Geometry { total_blocks: 4096, node_bytes: 16384, metadata: Metadata::Dup };

    fn key(offset: u64) -> Key {
        Key { object: 7, kind: 1, offset }
    }

    fn records(pending: &Pending) -> Vec<Record<'_>> {
        Records::new(&pending.buffer()[HEADER_BYTES..], GEOMETRY)
            .map(Result::unwrap)
            .filter(|record| *record != Record::Void)
            .collect()
    }

    #[test]
    fn a_later_put_of_a_key_replaces_the_earlier_one() {
        let mut pending = Pending::default();
        pending.put(key(0), b"one");
        pending.put(key(1), b"x");
        let len = pending.payload_bytes();
        pending.put(key(0), b"two");
        assert_eq!(pending.payload_bytes(), len, "same length: in place");
        pending.put(key(0), b"three");
        assert_eq!(records(&pending), [Record::Put(key(1), b"x"), Record::Put(key(0), b"three")]);
        assert_eq!(pending.counts().coalesced, 2);
    }

    #[test]
    fn nothing_coalesces_across_a_delete() {
        let mut pending = Pending::default();
        pending.put(key(0), b"one");
        pending.delete(key(0));
        pending.put(key(0), b"two");
        assert_eq!(records(&pending), [Record::Delete(key(0)), Record::Put(key(0), b"two")]);
    }

    #[test]
    fn what_was_removed_in_between_is_not_replaced_in_place() {
        let (mut pending, mut later) = (Pending::default(), Pending::default());
        pending.put(key(0), b"one");
        later.delete(key(0));
        pending.append(later);
        pending.put(key(0), b"two");
        let newest = [Record::Put(key(0), b"one"), Record::Delete(key(0)), Record::Put(key(0), b"two")];
        assert_eq!(records(&pending), newest);
        pending.put(key(0), b"six");
        assert_eq!(records(&pending).len(), 3, "which is then replaced as ever");
    }

    #[test]
    fn what_comes_behind_a_seal_taken_back_is_still_replaced_in_place() {
        let mut pending = Pending::default();
        pending.put(key(0), b"one");
        let mut taken = pending.take(Spare::default());
        pending.put(key(0), b"two");
        taken.append(pending);
        taken.put(key(0), b"six");
        assert_eq!(records(&taken), [Record::Put(key(0), b"one"), Record::Put(key(0), b"six")]);
    }

    /// The background seals batches that pass a mebibyte.
    #[test]
    fn large_batches_leave_their_memory_to_the_next() {
        let (mut pending, mut spare) = (Pending::default(), Spare::default());
        for round in 0..3 {
            let mut offset = 0;
            while pending.payload_bytes() < 1 << 20 {
                pending.put(key(offset), &[7; 100]);
                offset += 1;
            }
            spare = pending.take(spare).into_spare(Spare::default());
            assert!(spare.0.capacity() > 1 << 20, "round {round}");
            spare = Pending::default().into_spare(spare);
            assert!(spare.0.capacity() > 1 << 20, "an empty batch does not replace it");
        }
    }

    #[test]
    fn items_are_counted_by_kind_and_once() {
        let mut pending = Pending::default();
        for _ in 0..3 {
            pending.put(key(0), b"again");
        }
        pending.put(key(1), b"x");
        pending.put(Key { kind: 3, ..key(0) }, b"y");
        pending.put(Key { kind: 200, ..key(0) }, b"unknown");
        pending.delete(key(1));
        let items = pending.counts().items;
        assert_eq!((items[0], items[1], items[3]), (1, 1, 1));
        assert_eq!(items.iter().sum::<u32>(), 3);
    }

    #[test]
    fn a_copy_item_by_item_is_the_same() {
        let mut pending = Pending::default();
        pending.put(key(0), b"one");
        pending.put(key(0), b"longer");
        pending.delete(key(1));
        pending.name(500, &[1, 2, 3]);
        pending.free(BlockRun::new(100, 2));
        let (copy, copies) = pending.copied_item_by_item(GEOMETRY);
        assert_eq!(copy.buffer(), pending.buffer());
        assert_eq!((copies, copy.counts(), copy.named_blocks()), (5, pending.counts(), 3));
    }

    #[test]
    fn taking_leaves_nothing() {
        let mut pending = Pending::default();
        assert!(pending.is_empty());
        pending.count_objects(1);
        assert!(!pending.is_empty());
        pending.free(BlockRun::new(100, 2));
        let taken = pending.take(Spare::default());
        assert_eq!(taken.counts().frees, 1);
        assert!(pending.is_empty());
    }
}
