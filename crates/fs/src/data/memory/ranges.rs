//! A set of file blocks, kept as ranges.

use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint ranges that do not touch each other.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Ranges {
    /// End by start.
    ends: BTreeMap<u64, u64>,
    blocks: u64,
}

impl Ranges {
    /// The empty set.
    pub(crate) const NONE: Self = Self { ends: BTreeMap::new(), blocks: 0 };

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Blocks in all ranges.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ends.iter().map(|(&start, &end)| start..end)
    }

    /// The ranges that overlap `range` or touch it.
    pub(crate) fn around(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        if self.ends.is_empty() {
            return Vec::new();
        }
        let before = self.ends.range(..range.start).next_back().filter(|&(_, &end)| end >= range.start);
        let inside = self.ends.range(range.start..=range.end.max(range.start));
        before.into_iter().chain(inside).map(|(&start, &end)| start..end).collect()
    }

    /// The parts of `range` that are in the set.
    pub(crate) fn within(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let cut = |found: Range<u64>| found.start.max(range.start)..found.end.min(range.end);
        self.around(range).into_iter().map(cut).filter(|part| part.start < part.end).collect()
    }

    /// The parts of `range` that are not in the set.
    pub(crate) fn gaps(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        for found in self.within(range) {
            if at < found.start {
                gaps.push(at..found.start);
            }
            at = found.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }

    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let mut joined = range.clone();
        for found in self.around(&range) {
            self.ends.remove(&found.start);
            self.blocks -= found.end - found.start;
            joined = joined.start.min(found.start)..joined.end.max(found.end);
        }
        self.blocks += joined.end - joined.start;
        self.ends.insert(joined.start, joined.end);
    }

    pub(crate) fn remove(&mut self, range: &Range<u64>) {
        for part in self.within(range) {
            let (start, end) =
                self.ends.range(..=part.start).next_back().map(|(&s, &e)| (s, e)).expect("it is here");
            self.ends.remove(&start);
            if start < part.start {
                self.ends.insert(start, part.start);
            }
            if part.end < end {
                self.ends.insert(part.end, end);
            }
            self.blocks -= part.end - part.start;
        }
    }
}

/// Joins ascending numbers into ranges.
pub(crate) fn number_ranges(numbers: impl Iterator<Item = u64>) -> SmallVec<[Range<u64>; 2]> {
    let mut ranges: SmallVec<[Range<u64>; 2]> = SmallVec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some(last) if last.end == number => last.end += 1,
            _ => ranges.push(number..number + 1),
        }
    }
    ranges
}

/// Number of blocks in these ranges.
pub(crate) fn count(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn ranges_follow_a_set_of_numbers(
            steps in proptest::collection::vec((any::<bool>(), 0..60u64, 0..12u64), 1..80)
        ) {
            let (mut ranges, mut model) = (Ranges::default(), BTreeSet::new());
            for (insert, start, len) in steps {
                let range = start..start + len;
                if insert {
                    ranges.insert(range.clone());
                    model.extend(range.clone());
                } else {
                    ranges.remove(&range);
                    model.retain(|block| !range.contains(block));
                }
                prop_assert_eq!(ranges.iter().flatten().collect::<BTreeSet<_>>(), model.clone());
                prop_assert_eq!(ranges.blocks(), model.len() as u64);
                let apart: Vec<_> = ranges.iter().collect();
                prop_assert!(apart.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", apart);
                let asked = start / 2..start + 20;
                let here: Vec<u64> = ranges.within(&asked).into_iter().flatten().collect();
                prop_assert_eq!(here, model.iter().copied().filter(|block| asked.contains(block)).collect::<Vec<_>>());
                let gaps: Vec<u64> = ranges.gaps(&asked).into_iter().flatten().collect();
                prop_assert_eq!(gaps, asked.clone().filter(|block| !model.contains(block)).collect::<Vec<_>>());
            }
        }
    }
}
