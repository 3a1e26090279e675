//! A set of block numbers that is empty for most files, and only a word until it has an element.

use std::collections::BTreeSet;
use std::ops::Range;

#[derive(Default)]
#[expect(clippy::box_collection, reason = "the set alone is three words")]
pub(crate) struct Numbers(Option<Box<BTreeSet<u64>>>);

impl Numbers {
    pub(crate) fn len(&self) -> u64 {
        self.0.as_ref().map_or(0, |set| set.len() as u64)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        self.0.as_ref().is_some_and(|set| set.contains(&number))
    }

    /// The numbers in a range.
    pub(crate) fn within(&self, range: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(move |set| set.range(range.clone())).copied()
    }

    /// Adds a number; true if it was not here.
    pub(crate) fn insert(&mut self, number: u64) -> bool {
        self.0.get_or_insert_default().insert(number)
    }

    pub(crate) fn remove(&mut self, number: u64) {
        if let Some(set) = &mut self.0 {
            set.remove(&number);
        }
    }
}
