//! Counts the extents on each shared block and compares them with the image's reference counts.

use syncline_format::items::shared::{COUNT_MIN, SHARED_BLOCKS_MAX, SharedRun, piece_start};
use syncline_format::{BlockRun, Geometry, Key};

/// Extents with the mark, and the image's reference counts.
#[derive(Default)]
pub(crate) struct References {
    extents: Vec<BlockRun>,
    items: Vec<SharedRun>,
}

/// A run of blocks with the same number of references.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Counted {
    pub(crate) run: BlockRun,
    pub(crate) count: u32,
}

/// Blocks whose count is wrong. A block without a count has one reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wrong {
    pub(crate) run: BlockRun,
    pub(crate) told: u32,
    pub(crate) found: u32,
}

impl References {
    /// Adds an extent with the mark. It must lie inside the image.
    pub(crate) fn extent(&mut self, run: BlockRun) {
        self.extents.push(run);
    }

    /// Takes an item with a reference count; returns false if it can't be one. Items come in key
    /// order.
    pub(crate) fn item(&mut self, geometry: Geometry, key: Key, value: &[u8]) -> bool {
        let Ok(item) = SharedRun::decode(key.offset, value) else { return false };
        let follows = self.items.last().is_none_or(|last| last.run.end() <= item.run.start);
        if follows && geometry.contains(item.run) {
            self.items.push(item);
            return true;
        }
        false
    }

    /// The reference counts that were read.
    pub(crate) fn items(&self) -> &[SharedRun] {
        &self.items
    }

    /// The blocks of all extents, in order, each run with the number of extents on it.
    pub(crate) fn found(&self) -> Vec<Counted> {
        let mut ends: Vec<(u64, bool)> =
            self.extents.iter().flat_map(|run| [(run.start, true), (run.end(), false)]).collect();
        ends.sort_unstable();
        let mut found: Vec<Counted> = Vec::new();
        let (mut from, mut count) = (0, 0);
        for (at, begins) in ends {
            if count > 0 && at > from {
                match found.last_mut() {
                    Some(last) if last.count == count && last.run.end() == from => {
                        last.run.blocks += at - from
                    }
                    _ => found.push(Counted { run: BlockRun::new(from, at - from), count }),
                }
            }
            from = at;
            // As many extents begin as end, and none ends before it begins, so the count never
            // underflows.
            count = if begins { count + 1 } else { count - 1 };
        }
        found
    }

    /// The runs whose count in the items differs from the count found.
    pub(crate) fn wrong(&self, found: &[Counted]) -> Vec<Wrong> {
        let told = self.items.iter().map(|item| Counted { run: item.run, count: item.count });
        let mut ends: Vec<u64> =
            told.clone().chain(found.iter().copied()).flat_map(|it| [it.run.start, it.run.end()]).collect();
        ends.sort_unstable();
        ends.dedup();
        let told: Vec<Counted> = told.collect();
        let at = |list: &[Counted], block: u64| {
            let index = list.partition_point(|it| it.run.end() <= block);
            list.get(index).filter(|it| it.run.start <= block).map_or(0, |it| it.count)
        };
        let pieces = ends.windows(2).filter_map(|ends| {
            let (told, found) = (at(&told, ends[0]), at(found, ends[0]));
            let right = told == found || (told == 0 && found == 1);
            (!right).then(|| Wrong { run: BlockRun::new(ends[0], ends[1] - ends[0]), told, found })
        });
        pieces.collect()
    }
}

/// The reference-count items that state these counts.
pub(crate) fn to_items(found: &[Counted]) -> Vec<SharedRun> {
    let mut items = Vec::new();
    for &Counted { run, count } in found.iter().filter(|it| it.count >= COUNT_MIN) {
        let mut at = run.start;
        while at < run.end() {
            let end = run.end().min(piece_start(at) + SHARED_BLOCKS_MAX);
            items.push(SharedRun { run: BlockRun::new(at, end - at), count });
            at = end;
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(start: u64, blocks: u64, count: u32) -> Counted {
        Counted { run: BlockRun::new(start, blocks), count }
    }

    #[test]
    fn overlapping_extents_are_counted_and_compared() {
        let mut references = References::default();
        for (start, blocks) in [(100, 10), (105, 10), (105, 2), (200, 1)] {
            references.extent(BlockRun::new(start, blocks));
        }
        let found = references.found();
        let expected = [
            counted(100, 5, 1),
            counted(105, 2, 3),
            counted(107, 3, 2),
            counted(110, 5, 1),
            counted(200, 1, 1),
        ];
        assert_eq!(found, expected);
        for item in to_items(&found) {
            let geometry = Geometry {
                total_blocks: 4096,
                node_bytes: 4096,
                metadata: syncline_format::Metadata::Single,
            };
            assert!(references.item(
                geometry,
                Key::new(0, syncline_format::Kind::Shared, item.run.start),
                &item.encode()
            ));
        }
        assert_eq!(references.wrong(&found), []);
        references.items[0].count = 2;
        references.items.push(SharedRun { run: BlockRun::new(300, 4), count: 2 });
        let wrong = references.wrong(&found);
        assert_eq!(wrong[0], Wrong { run: BlockRun::new(105, 2), told: 2, found: 3 });
        assert_eq!(wrong[1], Wrong { run: BlockRun::new(300, 4), told: 2, found: 0 });
        references.items.clear();
        assert_eq!(references.wrong(&found).len(), 2);
    }

    #[test]
    fn items_end_where_a_piece_of_the_device_does() {
        let items = to_items(&[counted(1000, 2000, 2)]);
        assert_eq!(items.iter().map(|item| item.run.blocks).collect::<Vec<_>>(), [24, 1024, 952]);
    }
}
