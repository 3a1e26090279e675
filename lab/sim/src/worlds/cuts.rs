//! All images that a power cut may leave at one position of a log: each subset of the writes that
//! no flush covered, each of them torn in several ways.

use super::disk::{Block, Image, blocks_of};
use crate::{Event, SECTOR_BYTES};
use bytes::Bytes;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fmt;
use std::sync::LazyLock;
use syncline_device::BLOCK_BYTES;

const SECTORS_PER_BLOCK: usize = BLOCK_BYTES / SECTOR_BYTES;

/// The contents of a discarded block, which nothing should read.
static DISCARDED: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(vec![0xd1; BLOCK_BYTES]));

/// How much is tried at one position.
#[derive(Clone, Copy, Debug)]
pub struct Thoroughness {
    /// Up to this many open writes, all subsets are tried; for more, a sample.
    pub exhaustive_writes: usize,
    /// Size of that sample.
    pub sampled_subsets: usize,
    /// Tear each open write in every way, once with the others kept and once with them lost;
    /// otherwise tear only the last one.
    pub tear_each: bool,
    /// Number of cuts with every write torn at random.
    pub sampled_tears: usize,
}

/// The way in which a write is torn at sectors of 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tear {
    /// Only the first sector arrived.
    First,
    /// The first half.
    FirstHalf,
    /// All but the last sector.
    AllButLast,
    /// All but the first sector.
    AllButFirst,
    /// The second half.
    SecondHalf,
    /// Only one sector in the middle.
    Middle,
    /// Every other sector.
    Alternate,
    /// A random choice of sectors.
    Random(u64),
}

const TEARS: [Tear; 7] = [
    Tear::First,
    Tear::FirstHalf,
    Tear::AllButLast,
    Tear::AllButFirst,
    Tear::SecondHalf,
    Tear::Middle,
    Tear::Alternate,
];

/// The fate of one write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Lost,
    Kept,
    Torn(Tear),
}

/// Description of a cut, for a message.
#[derive(Clone)]
pub(super) struct Cut {
    fates: Vec<(usize, u64, usize, Fate)>,
    reversed: bool,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.fates.is_empty() {
            return write!(f, "nothing was on its way");
        }
        for (index, (event, addr, blocks, fate)) in self.fates.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            let fate = match fate {
                Fate::Lost => "lost".to_owned(),
                Fate::Kept => "there".to_owned(),
                Fate::Torn(tear) => format!("torn ({tear:?})"),
            };
            write!(f, "{separator}write {event} ({blocks} blocks at {addr}) {fate}")?;
        }
        if self.reversed { write!(f, ", in reverse order") } else { Ok(()) }
    }
}

struct OpenWrite {
    /// Position of its submission.
    event: usize,
    ended: Option<usize>,
    blocks: Vec<(u64, Block)>,
}

/// Walks a log from front to back.
pub(super) struct Cuts<'a> {
    events: &'a [Event],
    position: usize,
    durable: Image,
    open: Vec<OpenWrite>,
    thoroughness: Thoroughness,
}

impl<'a> Cuts<'a> {
    /// Cuts of a device that held `base` before the first event.
    pub(super) fn new(base: &Image, events: &'a [Event], thoroughness: Thoroughness) -> Self {
        Self { events, position: 0, durable: base.clone(), open: Vec::new(), thoroughness }
    }

    /// Advances by one event; returns true if different images are legal from here on.
    pub(super) fn advance(&mut self) -> bool {
        let at = self.position;
        self.position += 1;
        match &self.events[at] {
            Event::Write { offset, bufs } => {
                let blocks = blocks_of(*offset, bufs);
                let blocks = blocks.map(|(addr, bytes)| (addr, self.durable.block(addr, bytes))).collect();
                self.open.push(OpenWrite { event: at, ended: None, blocks });
                true
            }
            Event::WriteEnded { id, ok } => {
                assert!(ok, "no device fails here");
                if let Some(write) = self.open.iter_mut().find(|write| write.event == *id) {
                    write.ended = Some(at);
                }
                false
            }
            Event::WriteDropped { id } => {
                self.open.retain(|write| write.event != *id);
                true
            }
            Event::FlushEnded { id, ok } => {
                assert!(ok, "no device fails here");
                self.settle(*id)
            }
            Event::Discard { offset, len_bytes } => {
                let blocks = offset / BLOCK_BYTES as u64..(offset + len_bytes) / BLOCK_BYTES as u64;
                for addr in blocks {
                    let gone = self.durable.block(addr, DISCARDED.clone());
                    self.durable.put(addr, gone);
                }
                true
            }
            Event::Flush => false,
        }
    }

    /// A flush submitted at `submitted` succeeded: writes that had ended before that are durable
    /// (R4).
    fn settle(&mut self, submitted: usize) -> bool {
        let covered = |write: &mut OpenWrite| write.ended.is_some_and(|ended| ended < submitted);
        let mut durable: Vec<OpenWrite> = self.open.extract_if(.., covered).collect();
        durable.sort_by_key(|write| write.ended);
        let changed = !durable.is_empty();
        for (addr, block) in durable.into_iter().flat_map(|write| write.blocks) {
            self.durable.put(addr, block);
        }
        changed
    }

    /// Calls `each` with every image of a cut at this position, possibly more than once. Ends at
    /// the first error.
    pub(super) fn each<E>(
        &self,
        seed: u64,
        mut each: impl FnMut(&Image, &dyn Fn() -> Cut) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ (self.position as u64) << 20);
        let orders: &[bool] = if self.overlapping() { &[false, true] } else { &[false] };
        for fates in self.fates(&mut rng) {
            for &reversed in orders {
                let image = self.image(&fates, reversed);
                each(&image, &|| self.cut(&fates, reversed))?;
            }
        }
        Ok(())
    }

    /// One image of a cut at this position, with each write lost, kept or torn at random.
    pub(super) fn any(&self, rng: &mut ChaCha8Rng) -> (Image, Cut) {
        let fates: Vec<Fate> = (0..self.open.len())
            .map(|_| match rng.random_range(0..4) {
                0 => Fate::Lost,
                1 | 2 => Fate::Kept,
                _ => Fate::Torn(Tear::Random(rng.random())),
            })
            .collect();
        let reversed = self.overlapping() && rng.random();
        (self.image(&fates, reversed), self.cut(&fates, reversed))
    }

    /// True if two open writes overlap: which of them came last is then open, too.
    fn overlapping(&self) -> bool {
        let addrs = |write: &OpenWrite| {
            write.blocks.first().map_or(0..0, |(addr, _)| *addr..addr + write.blocks.len() as u64)
        };
        self.open.iter().enumerate().any(|(index, one)| {
            let one = addrs(one);
            self.open[..index].iter().map(addrs).any(|other| one.start < other.end && other.start < one.end)
        })
    }

    fn cut(&self, fates: &[Fate], reversed: bool) -> Cut {
        let fates = self.open.iter().zip(fates).map(|(write, fate)| {
            let addr = write.blocks.first().map_or(0, |(addr, _)| *addr);
            (write.event, addr, write.blocks.len(), *fate)
        });
        Cut { fates: fates.collect(), reversed }
    }

    fn fates(&self, rng: &mut ChaCha8Rng) -> Vec<Vec<Fate>> {
        let writes = self.open.len();
        let mut all = self.subsets(rng);
        let torn = |index: usize, tear: Tear, others: Fate| {
            let mut fates = vec![others; writes];
            fates[index] = Fate::Torn(tear);
            fates
        };
        let first = if self.thoroughness.tear_each { 0 } else { writes.saturating_sub(1) };
        for index in first..writes {
            for tear in TEARS {
                all.push(torn(index, tear, Fate::Kept));
                if writes > 1 {
                    all.push(torn(index, tear, Fate::Lost));
                }
            }
        }
        if writes > 0 {
            for _ in 0..self.thoroughness.sampled_tears {
                let random = (0..writes).map(|_| Fate::Torn(Tear::Random(rng.random())));
                all.push(random.collect());
            }
        }
        all
    }

    fn subsets(&self, rng: &mut ChaCha8Rng) -> Vec<Vec<Fate>> {
        let writes = self.open.len();
        let fate = |kept: bool| if kept { Fate::Kept } else { Fate::Lost };
        let subset = |chosen: u64| (0..writes).map(|index| fate(chosen >> index & 1 == 1)).collect();
        if writes <= self.thoroughness.exhaustive_writes {
            return (0..1_u64 << writes).map(subset).collect();
        }
        let mut all = vec![vec![Fate::Lost; writes], vec![Fate::Kept; writes]];
        for index in 0..writes {
            all.push((0..writes).map(|other| fate(other == index)).collect());
            all.push((0..writes).map(|other| fate(other != index)).collect());
        }
        for _ in 0..self.thoroughness.sampled_subsets {
            all.push((0..writes).map(|_| fate(rng.random())).collect());
        }
        all
    }

    fn image(&self, fates: &[Fate], reversed: bool) -> Image {
        let mut image = self.durable.clone();
        let mut writes: Vec<_> = self.open.iter().zip(fates).collect();
        if reversed {
            writes.reverse();
        }
        for (write, fate) in writes {
            match fate {
                Fate::Lost => {}
                Fate::Kept => write.blocks.iter().for_each(|(addr, block)| image.put(*addr, block.clone())),
                Fate::Torn(tear) => put_torn(&mut image, write, *tear),
            }
        }
        image
    }
}

fn put_torn(image: &mut Image, write: &OpenWrite, tear: Tear) {
    let sectors = write.blocks.len() * SECTORS_PER_BLOCK;
    let arrived = tear.arrived(sectors);
    for ((addr, block), arrived) in write.blocks.iter().zip(arrived.chunks(SECTORS_PER_BLOCK)) {
        if arrived.iter().all(|arrived| *arrived) {
            image.put(*addr, block.clone());
        } else if arrived.iter().any(|arrived| *arrived) {
            let mut bytes = image.get(*addr).to_vec();
            for sector in (0..SECTORS_PER_BLOCK).filter(|sector| arrived[*sector]) {
                let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                bytes[range.clone()].copy_from_slice(&block.bytes[range]);
            }
            let block = image.block(*addr, Bytes::from(bytes));
            image.put(*addr, block);
        }
    }
}

impl Tear {
    /// The sectors of a write that reached the device.
    fn arrived(self, sectors: usize) -> Vec<bool> {
        let mut rng = match self {
            Self::Random(seed) => Some(ChaCha8Rng::seed_from_u64(seed)),
            _ => None,
        };
        let mut arrived = |sector: usize| match self {
            Self::First => sector == 0,
            Self::FirstHalf => sector < sectors / 2,
            Self::AllButLast => sector + 1 < sectors,
            Self::AllButFirst => sector > 0,
            Self::SecondHalf => sector >= sectors / 2,
            Self::Middle => sector == sectors / 2,
            Self::Alternate => sector.is_multiple_of(2),
            Self::Random(_) => rng.as_mut().is_some_and(|rng| rng.random()),
        };
        (0..sectors).map(&mut arrived).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use syncline_device::MemoryDevice;

    const THOROUGH: Thoroughness =
        Thoroughness { exhaustive_writes: 4, sampled_subsets: 8, tear_each: true, sampled_tears: 2 };

    fn write(addr: u64, fill: u8) -> Event {
        Event::Write { offset: addr * 4096, bufs: vec![Bytes::from(vec![fill; BLOCK_BYTES])] }
    }

    /// First bytes of these two blocks, in every image after all of `events`.
    fn images(events: &[Event], addrs: [u64; 2]) -> BTreeSet<[u8; 2]> {
        let mut cuts = Cuts::new(&Image::of(&MemoryDevice::new(1 << 20)), events, THOROUGH);
        events.iter().for_each(|_| {
            cuts.advance();
        });
        let mut found = BTreeSet::new();
        let each = |image: &Image, _: &dyn Fn() -> Cut| {
            found.insert(addrs.map(|addr| image.get(addr)[0]));
            Ok::<_, ()>(())
        };
        cuts.each(1, each).unwrap();
        found
    }

    #[test]
    fn every_subset_of_what_no_flush_covered_comes_up() {
        let ended = |id| Event::WriteEnded { id, ok: true };
        let mut events = vec![write(1, 7), write(2, 8), ended(0), ended(1)];
        assert_eq!(images(&events, [1, 2]), [[0, 0], [0, 8], [7, 0], [7, 8]].into());
        events.push(Event::Flush);
        events.push(Event::FlushEnded { id: 4, ok: true });
        assert_eq!(images(&events, [1, 2]), [[7, 8]].into());
    }

    #[test]
    fn a_flush_does_not_cover_what_ended_after_it_began() {
        let events = [
            write(1, 7),
            Event::Flush,
            Event::WriteEnded { id: 0, ok: true },
            Event::FlushEnded { id: 1, ok: true },
        ];
        assert_eq!(images(&events, [1, 1]), [[0, 0], [7, 7]].into());
    }

    #[test]
    fn either_of_two_writes_of_one_block_may_come_last() {
        assert_eq!(images(&[write(1, 7), write(1, 8)], [1, 1]), [[0, 0], [7, 7], [8, 8]].into());
    }

    #[test]
    fn writes_are_torn_at_sectors_in_every_way() {
        let events = [write(1, 9)];
        let mut cuts = Cuts::new(&Image::of(&MemoryDevice::new(1 << 20)), &events, THOROUGH);
        cuts.advance();
        let mut found = BTreeSet::new();
        let each = |image: &Image, _: &dyn Fn() -> Cut| {
            let sectors = image.get(1).chunks(SECTOR_BYTES);
            assert!(sectors.clone().all(|sector| sector.iter().all(|byte| *byte == sector[0])));
            found.insert(sectors.map(|sector| sector[0] / 9).collect::<Vec<_>>());
            Ok::<_, ()>(())
        };
        cuts.each(1, each).unwrap();
        for expected in [
            [0, 0, 0, 0, 0, 0, 0, 0],
            [1, 1, 1, 1, 1, 1, 1, 1],
            [1, 0, 0, 0, 0, 0, 0, 0],
            [1, 1, 1, 1, 0, 0, 0, 0],
            [1, 1, 1, 1, 1, 1, 1, 0],
            [0, 1, 1, 1, 1, 1, 1, 1],
            [0, 0, 0, 0, 1, 1, 1, 1],
            [0, 0, 0, 0, 1, 0, 0, 0],
            [1, 0, 1, 0, 1, 0, 1, 0],
        ] {
            assert!(found.contains(&expected[..]), "{expected:?}");
        }
    }
}
