//! Merges two ordered streams of changes; the upper one hides the lower one.

use bytes::Bytes;
use std::iter::Peekable;
use syncline_format::Key;

type Change = (Key, Option<Bytes>);

/// Merges two streams of changes in key order; where both have a key, the upper stream's change
/// wins.
pub(crate) struct Newest<U: Iterator<Item = Change>, L: Iterator<Item = Change>> {
    upper: Peekable<U>,
    lower: Peekable<L>,
}

impl<U: Iterator<Item = Change>, L: Iterator<Item = Change>> Newest<U, L> {
    /// Puts `upper` over `lower`.
    pub(crate) fn new(upper: U, lower: L) -> Self {
        Self { upper: upper.peekable(), lower: lower.peekable() }
    }
}

impl<U: Iterator<Item = Change>, L: Iterator<Item = Change>> Iterator for Newest<U, L> {
    type Item = Change;

    fn next(&mut self) -> Option<Change> {
        let Some((upper, _)) = self.upper.peek() else { return self.lower.next() };
        let Some((lower, _)) = self.lower.peek() else { return self.upper.next() };
        if lower < upper {
            return self.lower.next();
        }
        if lower == upper {
            self.lower.next();
        }
        self.upper.next()
    }
}

/// The first `max` items that exist, and whether more follow.
pub(crate) fn take_live(changes: impl Iterator<Item = Change>, max: usize) -> (Vec<(Key, Bytes)>, bool) {
    let mut live = changes.filter_map(|(key, value)| Some((key, value?)));
    let items: Vec<_> = live.by_ref().take(max).collect();
    let cut = items.len() == max && live.next().is_some();
    (items, cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(offset: u64, value: Option<&'static str>) -> Change {
        (Key { object: 1, kind: 1, offset }, value.map(Bytes::from))
    }

    #[test]
    fn the_upper_stream_hides_the_lower_and_tombstones_hide_items() {
        let upper = [change(1, Some("new")), change(2, None), change(4, Some("four"))];
        let lower = [
            change(0, Some("zero")),
            change(1, Some("old")),
            change(2, Some("gone")),
            change(5, Some("five")),
        ];
        let (items, cut) = take_live(Newest::new(upper.into_iter(), lower.into_iter()), 3);
        let values: Vec<_> = items.iter().map(|(_, value)| value.clone()).collect();
        assert_eq!(values, ["zero", "new", "four"]);
        assert!(cut);
    }
}
