//! Images with one changed field whose checksums are right. A decoder must refuse them, or bear them.

use crate::bases;
use crate::image::{Image, read, write};
use crate::mutate::{BatchEdit, Case, Change, Number, fields};
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use syncline_device::MemoryDevice;
use syncline_format::snapshots::{Snapshot, decode_block};
use syncline_format::space::{decode_bitmap, encode_bitmap};
use syncline_format::{BLOCK_BYTES, BlockRun, crc};

/// The numbers that a field gets.
const NUMBERS: [Number; 16] = [
    Number::Small(0),
    Number::Small(1),
    Number::Small(31),
    Number::Small(32),
    Number::Top(0),
    Number::Half(128),
    Number::Half(127),
    Number::Half(129),
    Number::Bit(62),
    Number::Mask(32),
    Number::Add(1),
    Number::Add(-1),
    Number::Add(64),
    Number::Log(1),
    Number::Node(0),
    Number::End(0),
];

/// The structure that has the field.
#[derive(Clone, Copy, Debug)]
enum Of {
    Superblock,
    /// The n-th batch.
    Batch(u8),
    /// The n-th entry of the table of snapshots.
    Snapshot(usize),
}

/// One changed field of a base image.
#[derive(Clone, Copy, Debug)]
pub struct Single {
    base: u8,
    of: Of,
    /// Its offset and length.
    field: fields::Field,
    number: Number,
}

/// Base images, by the numbers of inputs, with their contents: a log, snapshots, everything.
const LOGGED: [u8; 2] = [4, 5];
const WITH_SNAPSHOTS: u8 = 224;

impl Single {
    /// All of them, in an order that the numbers decide.
    pub fn all(rng: &mut ChaCha8Rng) -> Vec<Self> {
        let mut all = Vec::new();
        let mut add = |base, of, list: &[fields::Field]| {
            for &field in list {
                all.extend(NUMBERS.map(|number| Self { base, of, field, number }));
            }
        };
        add(WITH_SNAPSHOTS, Of::Superblock, &fields::SUPERBLOCK);
        add(LOGGED[0], Of::Superblock, &fields::SUPERBLOCK);
        for base in LOGGED {
            let batches = bases::image(base).batches.len() as u8;
            for batch in [0, batches / 2, batches.saturating_sub(1)] {
                add(base, Of::Batch(batch), &fields::BATCH);
            }
        }
        (0..2).for_each(|entry| add(WITH_SNAPSHOTS, Of::Snapshot(entry), &fields::SNAPSHOT));
        all.shuffle(rng);
        all
    }

    /// The change of a superblock or of a batch at this offset.
    pub fn superblock(offset: usize, value: u64) -> Self {
        Self::at(WITH_SNAPSHOTS, Of::Superblock, &fields::SUPERBLOCK, offset, value)
    }

    /// The same for the last batch of a log.
    pub fn last_batch(offset: usize, value: u64) -> Self {
        let batches = bases::image(LOGGED[0]).batches.len() as u8;
        Self::at(LOGGED[0], Of::Batch(batches - 1), &fields::BATCH, offset, value)
    }

    /// The same for the newest snapshot.
    pub fn snapshot(offset: usize, value: u64) -> Self {
        Self::at(WITH_SNAPSHOTS, Of::Snapshot(1), &fields::SNAPSHOT, offset, value)
    }

    fn at(base: u8, of: Of, list: &[fields::Field], offset: usize, value: u64) -> Self {
        let field = list.iter().find(|(at, _)| *at == offset).expect("a field begins there");
        Self { base, of, field: *field, number: Number::Exact(value) }
    }

    /// The image.
    pub fn device(&self) -> Arc<MemoryDevice> {
        let index = |list: &[fields::Field]| list.iter().position(|field| *field == self.field);
        let change = match self.of {
            Of::Superblock => {
                Change::Superblock(0, index(&fields::SUPERBLOCK).expect("its own") as u8, self.number)
            }
            Of::Batch(batch) => {
                let field = index(&fields::BATCH).expect("its own") as u8;
                Change::Batch(batch, BatchEdit::Field(field, self.number))
            }
            Of::Snapshot(entry) => {
                let image = bases::image(self.base);
                let device = image.device.snapshot();
                change_entry(image, &device, entry, |bytes| {
                    fields::change(bytes, &[self.field], 0, self.number, image);
                });
                return device;
            }
        };
        Case { base: self.base, changes: vec![change] }.device()
    }
}

/// Changes an entry in the table of snapshots, which has one block.
fn change_entry(image: &Image, device: &MemoryDevice, entry: usize, change: impl FnOnce(&mut [u8])) {
    const ENTRIES: usize = 64;
    const ENTRY_BYTES: usize = 336;
    let table = image.superblock.snapshots;
    let mut block: Vec<u8> = read(device, BlockRun::new(table.addr, 1)).into();
    let from = ENTRIES + entry * ENTRY_BYTES;
    change(&mut block[from..from + ENTRY_BYTES]);
    write(device, table.addr, &block);
    for addr in image.geometry().superblock_copies(image.slot) {
        let mut bytes: Vec<u8> = read(device, BlockRun::new(addr, 1)).into();
        bytes[280..284].copy_from_slice(&crc(&block).to_le_bytes());
        let checksum = crc(&bytes[12..BLOCK_BYTES]);
        bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
        write(device, addr, &bytes);
    }
}

/// The names of the snapshots in the image with snapshots.
pub fn names_of_snapshots() -> Vec<String> {
    table(bases::image(WITH_SNAPSHOTS)).into_iter().map(|snapshot| snapshot.name).collect()
}

fn table(image: &Image) -> Vec<Snapshot> {
    let table = image.superblock.snapshots;
    let block = read(&image.device, BlockRun::new(table.addr, 1));
    decode_block(&block, image.geometry(), table).expect("a sound table").0
}

/// An image with snapshots. The space map of the snapshot numbered `entry` calls its own page free, with
/// all checksums right. Nobody knows which other blocks that map should name.
pub fn without_own_page(entry: usize) -> Arc<MemoryDevice> {
    let image = bases::image(WITH_SNAPSHOTS);
    let device = image.device.snapshot();
    let page = table(image)[entry].space.page;
    let mut block: Vec<u8> = read(&device, BlockRun::new(page.addr, 1)).into();
    let (mut words, _) = decode_bitmap(&block, image.geometry(), 0, page).expect("a sound page");
    words[(page.addr / 64) as usize] &= !(1 << (page.addr % 64));
    let changed = encode_bitmap(&mut block, 0, page.addr, &words);
    write(&device, page.addr, &block);
    change_entry(image, &device, entry, |bytes| {
        bytes[48..52].copy_from_slice(&changed.page.checksum.to_le_bytes());
        bytes[64..72].copy_from_slice(&u64::from(changed.used).to_le_bytes());
    });
    device
}
