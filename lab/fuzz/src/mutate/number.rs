//! Numbers that are likely to trigger bugs.

use crate::image::Image;
use arbitrary::Arbitrary;

/// A number for a field: near a limit, an address or object of the image, or a small change of the
/// old value.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Number {
    /// Near zero.
    Small(u8),
    /// Near the greatest value.
    Top(u8),
    /// Near the greatest signed value, which is the limit of most counters in the format.
    Half(u8),
    /// A power of two.
    Bit(u8),
    /// A power of two less one.
    Mask(u8),
    /// An object of the image, or the next one.
    Object(u8),
    /// Address of a tree node.
    Node(u8),
    /// Address of a page of the space map.
    Page(u8),
    /// Address of a block of file data.
    Data(u8),
    /// Address of a batch, or of the place of the next one.
    Log(u8),
    /// Any block.
    Block(u16),
    /// Near the last block.
    End(i8),
    /// A little more or less than before.
    Add(i8),
    /// One bit flipped.
    Flip(u8),
    /// The fuzzer's own choice.
    Exact(u64),
}

impl Number {
    /// The number, for a field that holds `old`.
    pub fn resolve(self, old: u64, image: &Image) -> u64 {
        let pick = |list: &mut dyn ExactSizeIterator<Item = u64>, number: u8| {
            let count = list.len().max(1);
            list.nth(usize::from(number) % count).unwrap_or(0)
        };
        match self {
            Self::Small(number) => u64::from(number),
            Self::Top(number) => u64::MAX - u64::from(number),
            Self::Half(number) => (i64::MAX as u64 - 128).wrapping_add(u64::from(number)),
            Self::Bit(bit) => 1 << (bit % 64),
            Self::Mask(bit) => (1 << (bit % 64)) - 1,
            Self::Object(number) => match usize::from(number) % (image.objects.len() + 1) {
                0 => image.superblock.next_object,
                index => image.objects[index - 1],
            },
            Self::Node(number) => pick(&mut image.nodes.iter().map(|node| node.addr), number),
            Self::Page(number) => pick(&mut image.pages.iter().map(|page| page.addr), number),
            Self::Data(number) => pick(&mut image.data.iter().map(|block| block.addr), number),
            Self::Log(0) => image.superblock.log.addr,
            Self::Log(number) => pick(&mut image.batches.iter().map(|batch| batch.header.next), number),
            Self::Block(number) => u64::from(number) % image.geometry().total_blocks,
            Self::End(distance) => image.geometry().total_blocks.wrapping_add_signed(i64::from(distance)),
            Self::Add(distance) => old.wrapping_add_signed(i64::from(distance)),
            Self::Flip(bit) => old ^ 1 << (bit % 64),
            Self::Exact(number) => number,
        }
    }
}
