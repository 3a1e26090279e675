//! One power cut and every image that it may leave: the caller chooses the fate of each open write.

use crate::SECTOR_BYTES;
use crate::tear::{self, Volatile, decide, put, tear};
use bytes::Bytes;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use syncline_device::{Device, MemoryDevice};

/// The fate of a write that no flush covered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fate {
    /// It is on the device.
    Kept,
    /// It is not on the device.
    Lost,
    /// Some of its sectors are on the device; the seed decides which.
    Torn(u64),
}

/// A power cut: the contents that are certainly on the device, and the writes whose fate is open.
#[derive(Clone)]
pub struct Cut {
    durable: Arc<MemoryDevice>,
    version: u64,
    open: Vec<(usize, Volatile)>,
}

impl Cut {
    pub(crate) fn new(durable: Arc<MemoryDevice>, version: u64, open: Vec<(usize, Volatile)>) -> Self {
        Self { durable, version, open }
    }

    /// Identifies the durable contents: two cuts of one record with the same version have the same.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The positions at which the open writes were submitted, ascending.
    pub fn open(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.open.iter().map(|(id, _)| *id)
    }

    /// The bytes that an open write covers: offset and length.
    pub fn range(&self, index: usize) -> (u64, u64) {
        let write = &self.open[index].1;
        (write.offset, write.bufs.iter().map(|buf| buf.len() as u64).sum())
    }

    /// The image left if the open writes have these fates; writes without a fate are lost. Kept
    /// writes arrive in the order of submission.
    pub fn image(&self, fates: &[Fate]) -> Arc<MemoryDevice> {
        let image = self.durable.snapshot();
        let device: Arc<dyn Device> = image.clone();
        for ((_, write), fate) in self.open.iter().zip(fates) {
            match fate {
                Fate::Lost => {}
                Fate::Kept => put(&device, write.offset, write.bufs.clone()),
                Fate::Torn(seed) => tear(&device, write, &mut ChaCha8Rng::seed_from_u64(*seed)),
            }
        }
        image
    }

    /// Random fates, determined by the seed.
    pub fn fates(&self, seed: u64) -> Vec<Fate> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let writes: Vec<Volatile> = self.open.iter().map(|(_, write)| write.clone()).collect();
        let decided = decide(&writes, &mut rng);
        let torn = |rng: &mut ChaCha8Rng| Fate::Torn(rng.random_range(0..1 << 16));
        decided
            .into_iter()
            .map(|fate| match fate {
                tear::Fate::Kept => Fate::Kept,
                tear::Fate::Lost => Fate::Lost,
                tear::Fate::Torn => torn(&mut rng),
            })
            .collect()
    }

    /// Number of sectors in an open write, at which it can be torn.
    pub fn sectors(&self, index: usize) -> usize {
        self.open[index].1.bufs.iter().map(Bytes::len).sum::<usize>() / SECTOR_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CrashImages, RecordingDevice};
    use syncline_device::{DeviceExt, block_on};

    #[test]
    fn each_fate_gives_the_image_it_says() {
        let memory = MemoryDevice::new(1 << 20);
        let base = memory.snapshot();
        let device = RecordingDevice::new(memory);
        let write = |offset, fill: u8| {
            block_on(device.write_at(offset, vec![Bytes::from(vec![fill; 4096])])).unwrap();
        };
        write(0, 1);
        block_on(device.flush_all()).unwrap();
        let flushed = device.position();
        write(4096, 2);
        write(8192, 3);
        let mut images = CrashImages::new(&base, device.events(), 0);
        assert_eq!(images.cut(flushed).open().len(), 0);
        let cut = images.cut(device.position());
        assert_eq!(cut.open().collect::<Vec<_>>(), [flushed, flushed + 2]);
        assert_eq!((cut.range(1), cut.sectors(1)), ((8192, 4096), 8));
        let firsts = |fates: &[Fate]| {
            let image = cut.image(fates).image();
            [image[0], image[4096], image[8192]]
        };
        assert_eq!(firsts(&[]), [1, 0, 0]);
        assert_eq!(firsts(&[Fate::Kept, Fate::Lost]), [1, 2, 0]);
        assert_eq!(firsts(&[Fate::Lost, Fate::Kept]), [1, 0, 3]);
        let torn: std::collections::BTreeSet<usize> = (0..50)
            .map(|seed| {
                cut.image(&[Fate::Torn(seed)]).image()[4096..8192].iter().filter(|byte| **byte == 2).count()
            })
            .collect();
        assert!(torn.iter().all(|bytes| bytes.is_multiple_of(SECTOR_BYTES)) && torn.len() > 3, "{torn:?}");
        assert_eq!(cut.fates(7), cut.fates(7));
        let chosen: std::collections::HashSet<Vec<Fate>> = (0..50).map(|seed| cut.fates(seed)).collect();
        assert!(chosen.len() > 5);
    }
}
