//! Why the space map could not be read or written.

use syncline_device::DeviceError;
use syncline_format::space::PageId;
use syncline_format::{BlockAddr, FormatError};

/// Why a space map could not be loaded or persisted.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SpaceError {
    /// A page could not be read.
    #[error("reading the space map: {0}")]
    Device(#[from] DeviceError),
    /// A page is not what the pointer to it says.
    #[error("page {} on level {} of the space map, block {addr}: {source}", page.index, page.level)]
    Corrupt {
        /// Which page.
        page: PageId,
        /// Where it was read.
        addr: BlockAddr,
        /// What is wrong.
        source: FormatError,
    },
    /// The root in the superblock does not fit the size of the image.
    #[error("the space map's root is on level {found}, an image of this size has it on level {expected}")]
    RootLevel {
        /// Level in the superblock.
        found: u8,
        /// Level that follows from the size.
        expected: u8,
    },
    /// The map does not name one of its own pages, or two of them name the same block.
    #[error("page {} on level {} of the space map lies in block {addr}, which the map calls free", page.index, page.level)]
    OwnPageFree {
        /// Which page.
        page: PageId,
        /// Where it lies.
        addr: BlockAddr,
    },
    /// The image is larger than this program can manage.
    #[error(
        "an image of {total_blocks} blocks is larger than the {} that can be managed",
        syncline_format::space::MAX_BLOCKS
    )]
    TooLarge {
        /// Its size in blocks.
        total_blocks: u64,
    },
    /// No block is left for the pages of the map. The checkpoint may be tried again when there are some.
    #[error("no space left for {pages} pages of the space map")]
    NoSpace {
        /// Pages that still need a block.
        pages: u64,
    },
    /// A frozen map was persisted a second time.
    #[error("the space map of generation {generation} was persisted already")]
    AlreadyPersisted {
        /// Its generation.
        generation: u64,
    },
}
