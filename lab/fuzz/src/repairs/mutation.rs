//! Changes one item of an image, among all the items that it shows: in the tree and in the log.

use crate::bases::{EVERYTHING, IMAGES, open, store_options};
use crate::image::Image;
use crate::mutate::{Case, Change, LogRecord, Number, PageEdit, Place, Plant, change_item};
use crate::run::run;
use arbitrary::{Arbitrary, Unstructured};
use bytes::Bytes;
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::LazyLock;
use syncline_format::items::extent::Extent;
use syncline_format::{Key, Kind};

/// One in this many seeds starts from one of the smaller images.
const OTHERS_EACH: u64 = 4;
/// Bytes from which an arbitrary change is made.
const BYTES: usize = 96;

/// All items of each image, after replay.
static LIVE: LazyLock<Vec<Vec<(Key, Bytes)>>> = LazyLock::new(|| IMAGES.iter().map(live).collect());

fn live(image: &Image) -> Vec<(Key, Bytes)> {
    let device = image.device.snapshot();
    run(|world| async move {
        let fs = open(device, &world, store_options(8, true)).await.expect("a base image opens");
        let all = fs.store().scan(Key::MIN, Key::MAX, usize::MAX).await;
        all.expect("a base image can be read").items
    })
}

fn index(seed: u64) -> usize {
    if seed % OTHERS_EACH == 1 { (seed / OTHERS_EACH) as usize % EVERYTHING } else { EVERYTHING }
}

/// The level of the tree node in which a case changes one byte, if that is all it changes.
pub fn rotten_node(case: &Case, image: &Image) -> Option<u8> {
    match case.changes[..] {
        [Change::Raw(Place::Node(place), ..)] => {
            Some(image.nodes[usize::from(place) % image.nodes.len()].what.level())
        }
        _ => None,
    }
}

/// True if a case changes only the space map.
pub fn only_space_map(case: &Case) -> bool {
    case.changes.iter().all(|change| matches!(change, Change::Page(..)))
}

/// The image that a seed changes.
pub fn image(seed: u64) -> &'static Image {
    &IMAGES[index(seed)]
}

/// The change that a seed makes.
pub fn case(seed: u64) -> Case {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let number = index(seed);
    let mut chooser = Chooser { image: &IMAGES[number], live: &LIVE[number], rng: &mut rng };
    let mut changes = vec![chooser.change()];
    if chooser.rng.random_bool(0.15) {
        changes.push(chooser.change());
    }
    Case { base: 0, changes }
}

struct Chooser<'a> {
    image: &'static Image,
    live: &'static [(Key, Bytes)],
    rng: &'a mut ChaCha8Rng,
}

impl Chooser<'_> {
    fn change(&mut self) -> Change {
        match self.rng.random_range(0..16) {
            0 => self.stray(),
            1 | 2 => self.elsewhere(),
            3 => {
                let block = self.block();
                Change::Page(0, PageEdit::Block(Number::Exact(block), self.rng.random()))
            }
            4 => Change::Superblock(0, self.rng.random(), self.arbitrary()),
            5 | 6 => {
                let (key, _) = self.item();
                append(vec![LogRecord::DeletePlanted(raw(key, Vec::new()))])
            }
            7 | 8 => self.field(),
            9 => self.key(),
            10 => self.swap(),
            11 | 12 => self.rot(),
            _ => self.arbitrary(),
        }
    }

    fn arbitrary<T: for<'b> Arbitrary<'b>>(&mut self) -> T {
        loop {
            let mut bytes = [0; BYTES];
            self.rng.fill_bytes(&mut bytes);
            if let Ok(value) = T::arbitrary_take_rest(Unstructured::new(&bytes)) {
                return value;
            }
        }
    }

    /// Changes a byte of a tree node: an inner node, a leaf, or a leaf that begins in the middle of
    /// a file's extents.
    fn rot(&mut self) -> Change {
        let (nodes, sort) = (&self.image.nodes, self.rng.random_range(0..3));
        let of_sort = |place: &usize| {
            let node = &nodes[*place].what;
            match sort {
                0 => node.level() > 0,
                1 => node.level() == 0,
                _ => node.level() == 0 && node.first_key().is_some_and(|key| key.kind == Kind::Extent as u8),
            }
        };
        let places: Vec<usize> = (0..nodes.len()).filter(of_sort).collect();
        let place = places.choose(self.rng).copied().unwrap_or(0);
        Change::Raw(Place::Node(place as u16), self.rng.random(), self.rng.random())
    }

    /// Any item; rare kinds are as likely as common ones.
    fn item(&mut self) -> (Key, Bytes) {
        let mut kinds: Vec<u8> = self.live.iter().map(|(key, _)| key.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let kind = *kinds.choose(self.rng).expect("there are items");
        self.of_kind(kind).expect("there is one of this kind")
    }

    fn of_kind(&mut self, kind: u8) -> Option<(Key, Bytes)> {
        let items: Vec<_> = self.live.iter().filter(|(key, _)| key.kind == kind).collect();
        items.choose(self.rng).map(|item| (*item).clone())
    }

    /// An item of an unknown kind, mostly before all other items of its object.
    fn stray(&mut self) -> Change {
        let (key, _) = self.of_kind(Kind::Inode as u8).expect("there are inodes");
        let kind = if self.rng.random_bool(0.7) { 0 } else { self.rng.random_range(12..=255) };
        let plant = raw(Key { kind, offset: self.rng.random_range(0..9), ..key }, vec![1]);
        if self.rng.random() { Change::Plant(plant) } else { append(vec![LogRecord::Put(plant)]) }
    }

    /// An extent moved to other blocks, with correct checksums.
    fn elsewhere(&mut self) -> Change {
        let Some((key, value)) = self.of_kind(Kind::Extent as u8) else { return self.stray() };
        let shared = Extent::decode(key.offset, &value).is_ok_and(|extent| extent.shared);
        let plant = Plant::Extent {
            object: Number::Exact(key.object),
            file_block: Number::Exact(key.offset),
            addr: Number::Exact(self.block()),
            blocks: self.rng.random_range(0..3),
            right: self.rng.random_bool(0.9),
            shared: shared ^ self.rng.random_bool(0.2),
            packed: None,
        };
        if self.rng.random() { Change::Plant(plant) } else { append(vec![LogRecord::Put(plant)]) }
    }

    /// A block of a structure or of data, equally likely.
    fn block(&mut self) -> u64 {
        let image = self.image;
        let superblock = &image.superblock;
        match self.rng.random_range(0..8) {
            0 | 1 => superblock.snapshots.addr,
            2 => image.nodes.choose(self.rng).map_or(0, |node| node.addr),
            3 => image.pages.choose(self.rng).map_or(0, |page| page.addr),
            4 => superblock.log.segment.start + self.rng.random_range(0..superblock.log.segment.blocks),
            5 | 6 => image.data.choose(self.rng).map_or(0, |block| block.addr),
            _ => self.rng.random_range(0..superblock.geometry.total_blocks + 2),
        }
    }

    /// Changes a field or a byte of an item.
    fn field(&mut self) -> Change {
        let (key, value) = self.item();
        let mut bytes = value.to_vec();
        if self.rng.random_bool(0.7) {
            let number = self.arbitrary();
            change_item(key.kind, &mut bytes, self.rng.random(), number, self.image);
        } else if let Some(at) = (!bytes.is_empty()).then(|| self.rng.random_range(0..bytes.len())) {
            bytes[at] ^= 1 << self.rng.random_range(0..8);
        }
        append(vec![LogRecord::Put(raw(key, bytes))])
    }

    /// Moves an item to another key, or duplicates it.
    fn key(&mut self) -> Change {
        let (key, value) = self.item();
        let number: Number = self.arbitrary();
        let other = match self.rng.random_range(0..3) {
            0 => Key { object: number.resolve(key.object, self.image), ..key },
            1 => Key { kind: self.rng.random_range(0..13), ..key },
            _ => Key { offset: number.resolve(key.offset, self.image), ..key },
        };
        let mut records = vec![LogRecord::Put(raw(other, value.to_vec()))];
        if self.rng.random() {
            records.insert(0, LogRecord::DeletePlanted(raw(key, Vec::new())));
        }
        append(records)
    }

    /// Swaps the values of two items of one kind.
    fn swap(&mut self) -> Change {
        let (one, first) = self.item();
        let (other, second) = self.of_kind(one.kind).expect("there is one of this kind");
        append(vec![LogRecord::Put(raw(one, second.to_vec())), LogRecord::Put(raw(other, first.to_vec()))])
    }
}

/// A batch that claims to be durable.
fn append(records: Vec<LogRecord>) -> Change {
    Change::Append(records, true, 0)
}

fn raw(key: Key, value: Vec<u8>) -> Plant {
    let (object, offset) = (Number::Exact(key.object), Number::Exact(key.offset));
    Plant::Raw { object, kind: key.kind, offset, value }
}
