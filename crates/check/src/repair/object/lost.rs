//! The parts of an object that were lost with tree nodes.

use super::{Nature, Object};
use crate::object::REGULAR;
use crate::repair::flaw::Flaw;
use crate::repair::planner::Planner;
use crate::repair::unreadable;
use syncline_format::items::inode::InodeItem;
use syncline_format::{BLOCK_BYTES, Kind};

impl Object {
    /// Makes sure that parts lost with a tree node do not read as if they had never existed.
    pub(super) async fn lost(&mut self, planner: &mut Planner) {
        if self.is_being_removed() || planner.view.lost.is_empty() {
            return;
        }
        let item = self.inode.as_ref().and_then(|value| InodeItem::decode(value).ok());
        let told = item.map(|item| (item.blocks, item.xattr_items));
        let number = self.number;
        if self.facts.is_directory() {
            let any = !unreadable::lost_offsets(planner, number, Kind::Dirent).is_empty();
            if any {
                planner.lose(number, "names in this directory may be lost".to_owned());
            }
        } else if self.facts.file_type == REGULAR {
            self.lost_contents(planner, told.map(|(units, _)| units)).await;
        }
        let missing = told.map_or(0, |(_, items)| items.saturating_sub(self.xattrs.items));
        if missing > 0 && !unreadable::lost_offsets(planner, number, Kind::Xattr).is_empty() {
            planner.lose(number, format!("{missing} extended attributes lost"));
        }
    }

    /// Handles the lost contents of a file, of which `units` should exist.
    async fn lost_contents(&mut self, planner: &mut Planner, units: Option<u64>) {
        let number = self.number;
        let end = match self.nature {
            Nature::Whole => self.facts.size.div_ceil(BLOCK_BYTES as u64),
            _ => self.extent_end,
        };
        let pieces_lost = !unreadable::lost_offsets(planner, number, Kind::Unplaced).is_empty();
        if self.has_unplaced && pieces_lost {
            // An extent there may be older than the lost data in the log.
            planner.torn.insert(number);
            planner.lose(number, "some of its last writes are lost → lost+found".to_owned());
            return;
        }
        // A file that has all the blocks its inode counts has lost none.
        if units.is_some_and(|units| units <= self.units()) {
            return;
        }
        let mut lost = unreadable::blocks(planner, number, end).await;
        if self.inline_bytes.is_some() {
            // The first block lies in the inode item.
            lost.iter_mut().for_each(|range| range.start = range.start.max(1));
            lost.retain(|range| !range.is_empty());
        }
        let Some(first) = lost.first().map(|range| range.start) else { return };
        let blocks = unreadable::count(&lost);
        if unreadable::keep_lost(planner, number, &lost) {
            if planner.flaw != Some(Flaw::LostBecomesZeros) {
                self.extent_blocks += blocks;
            }
            let what =
                format!("{blocks} blocks from file block {first} on lost → reading them fails, as before");
            return planner.lose(number, what);
        }
        planner.torn.insert(number);
        let what = format!("some of {blocks} blocks from file block {first} on lost → lost+found");
        planner.lose(number, what);
    }
}
