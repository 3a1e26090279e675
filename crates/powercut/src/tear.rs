//! The part of the writes that no flush covered that survives a power cut.

use bytes::Bytes;
use rand::Rng;
use rand::seq::SliceRandom;
use std::sync::Arc;
use syncline_device::{AlignedBuf, BLOCK_BYTES, Device};

/// The unit at which a write may be torn.
pub const SECTOR_BYTES: usize = 512;

/// A write whose fate is open.
#[derive(Clone, Debug)]
pub struct Volatile {
    /// Byte offset.
    pub offset: u64,
    /// The data to write there.
    pub bufs: Vec<Bytes>,
    /// The device had reported it as done.
    pub ended: bool,
}

/// How much a power cut destroys; every mood is legal, and each finds different bugs.
#[derive(Clone, Copy, Debug)]
enum Mood {
    /// No unflushed write survives.
    LoseAll,
    /// Exactly the writes that had ended survive.
    KeepEnded,
    /// All writes survive.
    KeepAll,
    /// Each write on its own: kept, lost or torn.
    Mixed {
        /// Chance, in 256, to be kept.
        keep: u8,
        /// Chance, in 256, to be torn if not kept.
        tear: u8,
    },
    /// All but one survive; that one is lost or torn.
    AllButOne,
    /// Only one survives.
    OnlyOne,
}

impl Mood {
    fn pick(rng: &mut impl Rng) -> Self {
        match rng.random_range(0..16) {
            0 => Self::LoseAll,
            1 => Self::KeepEnded,
            2 => Self::KeepAll,
            3..6 => Self::AllButOne,
            6..8 => Self::OnlyOne,
            _ => Self::Mixed { keep: rng.random(), tear: rng.random() },
        }
    }
}

/// The fate of one write.
pub(crate) enum Fate {
    Kept,
    Lost,
    Torn,
}

/// Decides the fate of each write, at random by the seed.
pub(crate) fn decide(writes: &[Volatile], rng: &mut impl Rng) -> Vec<Fate> {
    let mood = Mood::pick(rng);
    let chosen = if writes.is_empty() { 0 } else { rng.random_range(0..writes.len()) };
    let mut fates = Vec::with_capacity(writes.len());
    for (index, write) in writes.iter().enumerate() {
        let lost_or_torn = |rng: &mut dyn rand::RngCore| if rng.random() { Fate::Torn } else { Fate::Lost };
        let fate = match mood {
            Mood::LoseAll => Fate::Lost,
            Mood::KeepAll => Fate::Kept,
            Mood::KeepEnded if write.ended => Fate::Kept,
            Mood::KeepEnded => Fate::Lost,
            Mood::AllButOne if index == chosen => lost_or_torn(rng),
            Mood::AllButOne => Fate::Kept,
            Mood::OnlyOne if index == chosen => Fate::Kept,
            Mood::OnlyOne => Fate::Lost,
            Mood::Mixed { keep, .. } if rng.random::<u8>() < keep => Fate::Kept,
            Mood::Mixed { tear, .. } if rng.random::<u8>() < tear => Fate::Torn,
            Mood::Mixed { .. } => Fate::Lost,
        };
        fates.push(fate);
    }
    fates
}

/// Lets a random part of `writes` reach `device`, in a random order, torn at sectors.
pub(crate) fn survive(device: &Arc<dyn Device>, writes: Vec<Volatile>, rng: &mut impl Rng) {
    let fates = decide(&writes, rng);
    let mut fates: Vec<(Volatile, Fate)> = writes.into_iter().zip(fates).collect();
    if rng.random() {
        fates.shuffle(rng);
    }
    for (write, fate) in fates {
        match fate {
            Fate::Lost => {}
            Fate::Kept => put(device, write.offset, write.bufs),
            Fate::Torn => tear(device, &write, rng),
        }
    }
}

/// Lets some sectors of a write reach the device.
pub fn tear(device: &Arc<dyn Device>, write: &Volatile, rng: &mut impl Rng) {
    let sectors = write.bufs.iter().map(Bytes::len).sum::<usize>() / SECTOR_BYTES;
    let cut = rng.random_range(0..=sectors);
    let way = rng.random_range(0..4);
    let mut keep: Vec<bool> = (0..sectors)
        .map(|sector| match way {
            0 => sector < cut,
            1 => sector >= cut,
            2 => rng.random(),
            // One sector is missing.
            _ => sector != cut % sectors.max(1),
        })
        .collect();
    for (index, bytes) in write.bufs.iter().flat_map(|buf| buf.chunks(BLOCK_BYTES)).enumerate() {
        let offset = write.offset + (index * BLOCK_BYTES) as u64;
        let wanted: Vec<bool> = keep.drain(..BLOCK_BYTES / SECTOR_BYTES).collect();
        if wanted.iter().any(|wanted| *wanted) {
            let mut block = get(device, offset, BLOCK_BYTES);
            for (sector, _) in wanted.iter().enumerate().filter(|(_, wanted)| **wanted) {
                let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                block[range.clone()].copy_from_slice(&bytes[range]);
            }
            put(device, offset, vec![block.into_bytes()]);
        }
    }
}

/// Writes to a device. The laboratory's devices complete within the call: nothing else runs in
/// between, not even under a scheduler.
pub fn put(device: &Arc<dyn Device>, offset: u64, bufs: Vec<Bytes>) {
    let told = |result| {
        if let Err(error) = result {
            tracing::error!("a write that was to survive failed: {error}");
        }
    };
    device.write(offset, bufs, Box::new(told));
}

/// Reads from a device that completes at once; returns zeros if the read fails.
pub fn get(device: &Arc<dyn Device>, offset: u64, len_bytes: usize) -> AlignedBuf {
    let (sender, answer) = std::sync::mpsc::channel();
    let done = move |result| drop(sender.send(result));
    device.read(offset, AlignedBuf::zeroed(len_bytes), Box::new(done));
    answer.try_recv().ok().and_then(Result::ok).unwrap_or_else(|| AlignedBuf::zeroed(len_bytes))
}
