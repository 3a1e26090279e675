//! The whole path of an fsync without the kernel and the device, with receipts and without.

use super::Routine;
use crate::BenchError;
use std::hint::black_box;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Background, MemoryDevice, Spawn, WorkerOptions, block_on};
use syncline_format::BLOCK_BYTES;
use syncline_fs::types::{Caller, FileType, Ino, ROOT, Timestamp};
use syncline_fs::{Call, Filesystem, FsError, Inodes, Options, Receipt, Receipts};
use syncline_store::{FormatOptions, Store, StoreOptions, format};

/// Size of the device, in memory.
const DEVICE_BYTES: u64 = 256 << 20;
/// Blocks of the file, which are overwritten in turn.
const BLOCKS: u64 = 256;

/// A filesystem with a file, and the thread that its background work runs on.
struct Opened {
    fs: Arc<Filesystem>,
    ino: Ino,
    _spawn: Arc<dyn Spawn>,
}

fn failed(error: FsError) -> BenchError {
    BenchError::Engine { what: "the filesystem", said: error.to_string() }
}

impl Opened {
    fn new(options: Options) -> Result<Self, BenchError> {
        let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default())?);
        let device = MemoryDevice::new(DEVICE_BYTES);
        let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp::default());
        let opened = block_on(async {
            format(device.clone(), FormatOptions::default(), root, spawn.clone()).await?;
            let (store, _) = Store::open(device, StoreOptions::default(), spawn.clone()).await?;
            let fs = Filesystem::open(store, spawn.clone(), options).await?;
            let caller = Caller { uid: 0, gid: 0 };
            let ino = fs.mknod(caller, ROOT, b"file", FileType::Regular, 0o644, 0).await?.ino;
            fs.fsync(ino, false).await?;
            Ok((fs, ino))
        });
        let (fs, ino) = opened.map_err(failed)?;
        Ok(Self { fs, ino, _spawn: spawn })
    }

    fn fsync(&self) {
        block_on(self.fs.fsync(self.ino, false)).expect("memory does not fail");
    }
}

/// Storing one receipt.
pub(super) fn receipt() -> Result<Routine, BenchError> {
    let receipts = Receipts::new(Options::default().receipts_max);
    let receipt = Receipt::new(Call::Fsync, Inodes::of([2]));
    Ok(Box::new(move || receipts.record(black_box(receipt))))
}

fn without() -> Options {
    Options { receipts_max: 0, ..Options::default() }
}

/// An fsync of a file that is already durable.
pub(super) fn elided() -> Result<Routine, BenchError> {
    elided_with(Options::default())
}

pub(super) fn elided_without() -> Result<Routine, BenchError> {
    elided_with(without())
}

fn elided_with(options: Options) -> Result<Routine, BenchError> {
    let opened = Opened::new(options)?;
    Ok(Box::new(move || opened.fsync()))
}

/// An fsync of a file after a block was overwritten.
pub(super) fn written() -> Result<Routine, BenchError> {
    written_with(Options::default())
}

pub(super) fn written_without() -> Result<Routine, BenchError> {
    written_with(without())
}

fn written_with(options: Options) -> Result<Routine, BenchError> {
    let opened = Opened::new(options)?;
    let block = AlignedBuf::copy_from(&[7; BLOCK_BYTES]).into_bytes();
    let mut next = 0;
    Ok(Box::new(move || {
        let offset = (next % BLOCKS) * BLOCK_BYTES as u64;
        next += 1;
        let write = opened.fs.write(opened.ino, offset, block.clone(), false);
        block_on(write).expect("memory does not fail, and the same blocks need no more room");
        opened.fsync();
    }))
}
