//! The log of an image.

use super::from_bytes;
use crate::bases::store_options;
use crate::mutate::{BatchEdit, Case, Change, LogRecord, Number};
use crate::run::run;
use arbitrary::Arbitrary;
use std::sync::Arc;
use syncline_device::MemoryDevice;
use syncline_format::Key;
use syncline_store::{Chunk, Store, StoreError};

/// Changes to the log only.
#[derive(Arbitrary, Debug)]
pub(crate) struct Input {
    base: u8,
    changes: Vec<LogChange>,
}

#[derive(Arbitrary, Debug)]
enum LogChange {
    Edit(u8, BatchEdit),
    Append(Vec<LogRecord>, bool, i8),
    /// A field of the superblock that locates the log.
    Start(u8, Number),
}

/// Fields of the superblock, from the generation to the log, by their number in the mutator's
/// table.
const LOG_FIELDS: std::ops::Range<u8> = 7..27;

/// Opens the store on an image with a changed log, read-only and for writing.
///
/// - Neither panics nor hangs: the store opens, or returns a proper error.
/// - Opening read-only writes nothing.
/// - If both open, both hold the same items, before and after the checkpoint that ends recovery;
///   and the image that recovery leaves opens again, clean, with the same items.
/// - Counters stay within their limits.
pub fn replay(bytes: &[u8]) {
    let Some(input) = from_bytes::<Input>(bytes) else { return };
    let change = |change| match change {
        LogChange::Edit(batch, edit) => Change::Batch(batch, edit),
        LogChange::Append(records, durable, delta) => Change::Append(records, durable, delta),
        LogChange::Start(field, number) => {
            Change::Superblock(0, LOG_FIELDS.start + field % LOG_FIELDS.len() as u8, number)
        }
    };
    let case = Case { base: input.base, changes: input.changes.into_iter().map(change).collect() };
    let device = case.device();
    let read_only = items(&device, true);
    let written = items(&device, false);
    if let (Ok(read_only), Ok(written)) = (&read_only, &written) {
        assert_eq!(read_only, written, "read-only and for writing show one image");
    }
    if let Ok(written) = written {
        let again = items(&device, true).expect("what recovery left can be opened");
        assert_eq!(again, written, "recovery keeps what it found");
    }
}

/// All items of the store, or the error at which reading them ended.
type Items = Result<Vec<(Key, bytes::Bytes)>, String>;

/// Opens the store, reads everything and closes it.
fn items(device: &Arc<MemoryDevice>, read_only: bool) -> Result<Items, StoreError> {
    let device = if read_only { device.snapshot() } else { device.clone() };
    let before = device.allocated_bytes();
    let same = device.clone();
    let found = run(|world| async move {
        let (store, report) = Store::open(device, store_options(9, read_only), world.spawn).await?;
        assert!(report.records >= report.batches.saturating_sub(1) || report.batches < 1 << 16);
        let found = all(&store).await;
        let space = store.space();
        assert!(space.named <= store.geometry().total_blocks);
        store.close().await?;
        Ok(found)
    });
    assert!(!read_only || same.allocated_bytes() == before, "read-only means that nothing is written");
    found
}

async fn all(store: &Store) -> Items {
    let mut items = Vec::new();
    let mut from = Key::MIN;
    loop {
        let chunk: Chunk = store.scan(from, Key::MAX, 500).await.map_err(|error| error.to_string())?;
        let last = chunk.items.last().map(|(key, _)| *key);
        items.extend(chunk.items);
        match last.and_then(Key::next) {
            Some(next) if !chunk.complete => {
                assert!(next > from, "a scan goes on");
                from = next;
            }
            _ => return Ok(items),
        }
    }
}
