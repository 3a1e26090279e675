//! Mechanisms that can be switched off to measure what each one saves. For measurement only:
//! without a mechanism the store is just as safe, only slower.

use std::fmt;
use std::str::FromStr;

/// A mechanism that can be switched off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

impl Ablation {
    /// All mechanisms.
    pub const ALL: [Self; 8] = [
        Self::XattrSkip,
        Self::FlushElide,
        Self::FlushGroup,
        Self::DirBulk,
        Self::ReflinkMark,
        Self::ParentShortform,
        Self::WriteThrough,
        Self::DataInLog,
    ];

    /// The mechanism's name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::XattrSkip => "xattr-skip",
            Self::FlushElide => "flush-elide",
            Self::FlushGroup => "flush-group",
            Self::DirBulk => "dir-bulk",
            Self::ReflinkMark => "reflink-mark",
            Self::ParentShortform => "parent-shortform",
            Self::WriteThrough => "write-through",
            Self::DataInLog => "data-in-log",
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Ablation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Ablation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|ablation| ablation.name() == text).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|ablation| ablation.name()).collect();
            format!("choose from {}", names.join(", "))
        })
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
    fn names_lead_back_and_sets_hold_what_was_put_in() {
        for ablation in Ablation::ALL {
            assert_eq!(ablation.name().parse(), Ok(ablation));
            let set: Ablations = [ablation].into_iter().collect();
            assert_eq!(set.iter().collect::<Vec<_>>(), [ablation]);
        }
        assert!("xattrskip".parse::<Ablation>().unwrap_err().contains("xattr-skip, flush-elide"));
    }
}
