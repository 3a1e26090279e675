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
    /// A page does not match the pointer to it.
    #[error("page {} on level {} of the space map, block {addr}: {source}", page.index, page.level)]
    Corrupt {
        /// The page.
        page: PageId,
        /// The block it was read from.
        addr: BlockAddr,
        /// The error in the page.
        source: FormatError,
    },
    /// The level of the root in the superblock does not match the size of the image.
    #[error("the space map's root is on level {found}, an image of this size has it on level {expected}")]
    RootLevel {
        /// Level in the superblock.
        found: u8,
        /// Level that follows from the size.
        expected: u8,
    },
    /// A map does not name a block that one of its own pages lies in.
    #[error("page {} on level {} of the space map lies in block {addr}, which the map calls free", page.index, page.level)]
    OwnPageFree {
        /// The page.
        page: PageId,
        /// Its block.
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
    /// No block is left for the pages of the map. The checkpoint may be retried when some are free.
    #[error("no space left for {pages} pages of the space map")]
    NoSpace {
        /// Pages that still need a block.
        pages: u64,
    },
    /// A frozen map was persisted twice.
    #[error("the space map of generation {generation} was persisted already")]
    AlreadyPersisted {
        /// Its generation.
        generation: u64,
    },
}
