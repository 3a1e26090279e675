//! Mechanisms that can be switched off to measure what each one saves. For measurement only:
//! without a mechanism the store is just as safe, only slower.

syncline_rules::rules! {
    /// A mechanism that can be switched off.
    pub enum Ablation {
        /// S1: every fsync logs all extended attributes of its inode again.
        XattrSkip,
        /// S2: every fsync flushes, even if an earlier flush has already covered everything it must
        /// cover.
        FlushElide,
        /// S2: every fsync writes its own batch and issues its own flush; none waits for another's.
        FlushGroup,
        /// S3: nothing is sealed until a caller asks (or 32 MiB are pending), and then item by item.
        DirBulk,
        /// S5: every change of extents takes the lock of shared blocks and looks up their reference
        /// counts.
        ReflinkMark,
        /// S4: every parent pointer goes to an item of its own.
        ParentShortform,
        /// A flush is always a request of its own, even where the device can flush behind a write.
        WriteThrough,
        /// A sync places all dirty data, however little, instead of logging small amounts whole.
        DataInLog,
    }
}

impl Ablation {
    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of mechanisms that are switched off.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Ablations(u8);

impl Ablations {
    /// Switches a mechanism off.
    pub fn insert(&mut self, ablation: Ablation) {
        self.0 |= ablation.bit();
    }

    /// True when the mechanism is switched off.
    pub fn contains(self, ablation: Ablation) -> bool {
        self.0 & ablation.bit() != 0
    }

    /// The mechanisms that are switched off.
    pub fn iter(self) -> impl Iterator<Item = Ablation> {
        Ablation::ALL.into_iter().filter(move |ablation| self.contains(*ablation))
    }
}

impl FromIterator<Ablation> for Ablations {
    fn from_iter<I: IntoIterator<Item = Ablation>>(ablations: I) -> Self {
        let mut set = Self::default();
        ablations.into_iter().for_each(|ablation| set.insert(ablation));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_was_put_in() {
        for ablation in Ablation::ALL {
            let set: Ablations = [ablation].into_iter().collect();
            assert_eq!(set.iter().collect::<Vec<_>>(), [ablation]);
        }
    }
}
