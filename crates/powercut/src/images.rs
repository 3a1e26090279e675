//! Images that a power cut may leave, made from a recorded log.
//!
//! They use only what the device promises: a write is certainly present if a flush that was
//! submitted after the write ended has succeeded. Of the other writes any subset may be present, in
//! any order, torn at any sector.

use crate::tear::{Volatile, put, survive, tear};
use crate::{Cut, Event};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_device::{AlignedBuf, BLOCK_BYTES, Device, MemoryDevice};

/// Walks a log once, from front to back, and makes images at positions on the way.
pub struct CrashImages {
    events: Vec<Event>,
    position: usize,
    /// The contents that every image up to the current position has.
    durable: Arc<MemoryDevice>,
    /// Writes that may be present, by the position of their submission; with the position at which
    /// they ended.
    open: BTreeMap<usize, (Volatile, Option<usize>)>,
    rng: ChaCha8Rng,
    /// Counts the changes of `durable`.
    version: u64,
}

impl CrashImages {
    /// Images of a device that held `base` before the first of `events`. `seed` decides the remains
    /// of writes that the device itself reported as failed.
    pub fn new(base: &MemoryDevice, events: Vec<Event>, seed: u64) -> Self {
        Self {
            events,
            position: 0,
            durable: base.snapshot(),
            open: BTreeMap::new(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            version: 0,
        }
    }

    /// A power cut after the first `position` events, with the fate of each open write undecided.
    /// Positions must not decrease.
    pub fn cut(&mut self, position: usize) -> Cut {
        self.advance_to(position);
        let open = self.open.iter().map(|(id, (write, _))| (*id, write.clone())).collect();
        Cut::new(self.durable.snapshot(), self.version, open)
    }

    /// One image of a power cut after the first `position` events; another seed gives another
    /// image. Positions must not decrease.
    pub fn at(&mut self, position: usize, seed: u64) -> Arc<MemoryDevice> {
        self.advance_to(position);
        let image = self.durable.snapshot();
        let device: Arc<dyn Device> = image.clone();
        let open = self.open.values().map(|(write, _)| write.clone()).collect();
        survive(&device, open, &mut ChaCha8Rng::seed_from_u64(seed));
        image
    }

    /// Number of writes whose fate is open at the current position.
    pub fn open_writes(&self) -> usize {
        self.open.len()
    }

    fn advance_to(&mut self, position: usize) {
        assert!(position >= self.position && position <= self.events.len(), "positions go forward");
        while self.position < position {
            self.advance();
        }
    }

    fn advance(&mut self) {
        let at = self.position;
        self.position += 1;
        match &self.events[at] {
            Event::Write { offset, bufs } => {
                let write = Volatile { offset: *offset, bufs: bufs.clone(), ended: false };
                self.open.insert(at, (write, None));
            }
            Event::WriteEnded { id, ok: true } => {
                if let Some((write, ended)) = self.open.get_mut(id) {
                    write.ended = true;
                    *ended = Some(at);
                }
            }
            Event::WriteDropped { id } => {
                self.open.remove(id);
            }
            Event::WriteEnded { id, ok: false } => {
                let id = *id;
                self.settle_lost(id);
            }
            Event::FlushEnded { id, ok: true } => {
                let id = *id;
                self.settle_durable(id);
            }
            Event::FlushEnded { ok: false, .. } => {
                // The device may have dropped its cache or not (rule R6); later flushes do not
                // cover these writes.
                let ended: Vec<usize> =
                    self.open.iter().filter(|(_, (_, ended))| ended.is_some()).map(|(id, _)| *id).collect();
                ended.into_iter().for_each(|id| self.settle_lost(id));
            }
            Event::Flush => {}
            Event::Discard { offset, len_bytes } => {
                let (offset, len_bytes) = (*offset, *len_bytes);
                self.discard(offset, len_bytes);
            }
        }
    }

    /// A flush submitted at `submitted` succeeded: all writes that had ended before it are durable,
    /// applied in the order in which they ended.
    fn settle_durable(&mut self, submitted: usize) {
        let mut durable: Vec<(usize, usize)> = self
            .open
            .iter()
            .filter_map(|(id, (_, ended))| Some((ended.filter(|ended| *ended < submitted)?, *id)))
            .collect();
        durable.sort_unstable();
        self.version += 1;
        let device: Arc<dyn Device> = self.durable.clone();
        for (_, id) in durable {
            if let Some((write, _)) = self.open.remove(&id) {
                put(&device, write.offset, write.bufs);
            }
        }
    }

    /// The device gave up on a write: some of it may be present, until it is overwritten.
    fn settle_lost(&mut self, id: usize) {
        let Some((write, _)) = self.open.remove(&id) else { return };
        self.version += 1;
        let device: Arc<dyn Device> = self.durable.clone();
        match self.rng.random_range(0..3) {
            0 => {}
            1 => tear(&device, &write, &mut self.rng),
            _ => put(&device, write.offset, write.bufs),
        }
    }

    /// The contents of a discarded range are undefined from now on: each block has its old contents
    /// or zeros.
    fn discard(&mut self, offset: u64, len_bytes: u64) {
        self.version += 1;
        let device: Arc<dyn Device> = self.durable.clone();
        for block in (offset..offset + len_bytes).step_by(BLOCK_BYTES) {
            if self.rng.random() {
                put(&device, block, vec![AlignedBuf::zeroed(BLOCK_BYTES).into_bytes()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecordingDevice;
    use bytes::Bytes;
    use syncline_device::DeviceExt;
    use syncline_device::block_on;

    fn block(fill: u8) -> Bytes {
        Bytes::from(vec![fill; BLOCK_BYTES])
    }

    #[test]
    fn what_a_flush_covers_is_in_every_image_and_the_rest_in_some() {
        let memory = MemoryDevice::new(1 << 20);
        let base = memory.snapshot();
        let device = RecordingDevice::new(memory);
        block_on(device.write_at(0, vec![block(1)])).unwrap();
        block_on(device.flush_all()).unwrap();
        block_on(device.write_at(4096, vec![block(2), block(2)])).unwrap();
        let mut images = CrashImages::new(&base, device.events(), 1);
        let (mut whole, mut absent, mut torn) = (0, 0, 0);
        for seed in 0..200 {
            let image = images.at(device.position(), seed).image();
            assert!(image[..4096].iter().all(|byte| *byte == 1));
            let there = image[4096..3 * 4096].chunks(512).filter(|sector| sector[0] == 2).count();
            assert!(
                image[4096..3 * 4096].chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0]))
            );
            match there {
                0 => absent += 1,
                16 => whole += 1,
                _ => torn += 1,
            }
        }
        assert!(whole > 20 && absent > 20 && torn > 20, "{whole} {absent} {torn}");
    }

    #[test]
    fn a_write_that_ended_after_the_flush_was_submitted_is_not_covered() {
        let base = MemoryDevice::new(1 << 20);
        let events = vec![
            Event::Write { offset: 0, bufs: vec![block(1)] },
            Event::Flush,
            Event::WriteEnded { id: 0, ok: true },
            Event::FlushEnded { id: 1, ok: true },
        ];
        let lost = (0..50).any(|seed| {
            let mut images = CrashImages::new(&base, events.clone(), 1);
            images.at(4, seed).image()[0] == 0
        });
        assert!(lost);
    }

    #[test]
    fn a_failed_flush_leaves_writes_that_no_later_flush_redeems() {
        let base = MemoryDevice::new(1 << 20);
        let events = vec![
            Event::Write { offset: 0, bufs: vec![block(1)] },
            Event::WriteEnded { id: 0, ok: true },
            Event::Flush,
            Event::FlushEnded { id: 2, ok: false },
            Event::Flush,
            Event::FlushEnded { id: 4, ok: true },
        ];
        let found: Vec<u8> =
            (0..50).map(|seed| CrashImages::new(&base, events.clone(), seed).at(6, 1).image()[0]).collect();
        assert!(found.contains(&0) && found.contains(&1));
    }
}
