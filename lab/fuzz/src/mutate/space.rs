//! Changes of the space map.

use super::{Number, fields};
use crate::image::{Image, write};
use arbitrary::Arbitrary;
use std::collections::BTreeMap;
use syncline_device::MemoryDevice;
use syncline_format::crc;
use syncline_format::space::BITS;
use syncline_format::superblock::Pointer;

const USED: usize = 24;
const BODY: usize = 32;

/// A change of one page of the space map.
#[derive(Arbitrary, Clone, Debug)]
pub enum PageEdit {
    /// A field of the header or of the first pointer.
    Field(u8, Number),
    /// Any byte.
    Byte(u16, u8),
    /// Mark a block used or free. All counts follow, up to the superblock's.
    Block(Number, bool),
}

/// The new root.
pub struct NewMap {
    /// The root page.
    pub root: Pointer,
    /// Change of the number of blocks in use.
    pub used: i64,
}

/// Applies the edits, each to the n-th page, and corrects everything above it; `None` if there are
/// none.
pub fn change(edits: &[(u8, &PageEdit)], image: &Image, device: &MemoryDevice) -> Option<NewMap> {
    let mut changed: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
    let mut counts: BTreeMap<usize, i64> = BTreeMap::new();
    let page = |place: usize| image.pages[place].what.1.to_vec();
    for (number, edit) in edits {
        let place = usize::from(*number) % image.pages.len();
        match edit {
            PageEdit::Field(field, value) => {
                let bytes = changed.entry(place).or_insert_with(|| page(place));
                fields::change(bytes, &fields::PAGE, *field, *value, image);
            }
            PageEdit::Byte(at, value) => {
                fields::change_byte(changed.entry(place).or_insert_with(|| page(place)), *at, *value);
            }
            PageEdit::Block(block, used) => {
                let block = block.resolve(0, image);
                let covers = |place: &usize| {
                    let id = image.pages[*place].what.0;
                    id.level == 0 && id.index == block / BITS
                };
                let Some(place) = (0..image.pages.len()).find(covers) else { continue };
                let bytes = changed.entry(place).or_insert_with(|| page(place));
                *counts.entry(place).or_default() += set_bit(bytes, block % BITS, *used);
            }
        }
    }
    finish(changed, counts, image, device)
}

/// Sets or clears a bit; returns the change of the number of set bits.
fn set_bit(bytes: &mut [u8], bit: u64, used: bool) -> i64 {
    let byte = &mut bytes[BODY + bit as usize / 8];
    let mask = 1 << (bit % 8);
    let was = *byte & mask != 0;
    *byte = if used { *byte | mask } else { *byte & !mask };
    i64::from(used) - i64::from(was)
}

/// Writes the pages, children first, and propagates checksums and counts upwards.
fn finish(
    mut changed: BTreeMap<usize, Vec<u8>>,
    mut counts: BTreeMap<usize, i64>,
    image: &Image,
    device: &MemoryDevice,
) -> Option<NewMap> {
    while let Some((place, mut bytes)) = changed.pop_first() {
        let page = &image.pages[place];
        let count = counts.remove(&place).unwrap_or(0);
        add(&mut bytes[USED..USED + 8], count);
        write(device, page.addr, &bytes);
        let checksum = crc(&bytes);
        let Some((parent, slot)) = page.parent else {
            let root = Pointer { checksum, ..image.superblock.space.page };
            return Some(NewMap { root, used: count });
        };
        let above = changed.entry(parent).or_insert_with(|| image.pages[parent].what.1.to_vec());
        let entry_bytes = 8 * image.geometry().metadata.copies() as usize + 8;
        let entry = &mut above[BODY + slot * entry_bytes..][..entry_bytes];
        entry[8..12].copy_from_slice(&checksum.to_le_bytes());
        add(&mut entry[12..16], count);
        *counts.entry(parent).or_default() += count;
    }
    None
}

/// Adds to a little-endian number of any length.
fn add(bytes: &mut [u8], count: i64) {
    let mut number = [0; 8];
    number[..bytes.len()].copy_from_slice(bytes);
    let sum = u64::from_le_bytes(number).wrapping_add_signed(count).to_le_bytes();
    bytes.copy_from_slice(&sum[..bytes.len()]);
}
