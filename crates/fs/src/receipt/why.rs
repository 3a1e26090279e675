//! Why a sync could not be answered at once.

use serde::{Serialize, Serializer};
use std::ops::{BitOr, BitOrAssign};

/// The reasons of a sync: what was not durable when it was called. An empty set means that there
/// was nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Why(u16);

/// Each reason with its name.
const NAMES: [(Why, &str); 11] = [
    (Why::DIRTY_DATA, "dirty_data"),
    (Why::WRITE_BACK, "write_back"),
    (Why::SIZE, "size"),
    (Why::MTIME, "mtime"),
    (Why::LOGGED, "logged"),
    (Why::NAME, "name"),
    (Why::ATTRIBUTES, "attributes"),
    (Why::ENTRIES, "entries"),
    (Why::LOADED, "loaded"),
    (Why::OTHERS, "others"),
    (Why::SWITCHED_OFF, "switched_off"),
];

impl Why {
    /// The file had dirty data that was not being written yet.
    pub const DIRTY_DATA: Self = Self(1);
    /// Write-back of the file, or another sync of it, was under way.
    pub const WRITE_BACK: Self = Self(1 << 1);
    /// The size in the log differed.
    pub const SIZE: Self = Self(1 << 2);
    /// The modification time in the log differed.
    pub const MTIME: Self = Self(1 << 3);
    /// Data of the file had been logged, by write-back, a truncation or a barrier, and no flush had
    /// covered that.
    pub const LOGGED: Self = Self(1 << 4);
    /// The file had been created, renamed, linked or unlinked, and no flush had covered that.
    pub const NAME: Self = Self(1 << 5);
    /// Attributes of the file had been changed, and no flush had covered that.
    pub const ATTRIBUTES: Self = Self(1 << 6);
    /// Entries or attributes of the directory had been changed, and no flush had covered that.
    pub const ENTRIES: Self = Self(1 << 7);
    /// The inode was read into memory while operations that may have changed it were not durable.
    pub const LOADED: Self = Self(1 << 8);
    /// Changes elsewhere were not durable, and after a crash a prefix of history must come back
    /// (P1).
    pub const OTHERS: Self = Self(1 << 9);
    /// Everything was durable, but eliding flushes is switched off.
    pub const SWITCHED_OFF: Self = Self(1 << 10);

    /// Adds a reason if it holds.
    pub fn add_if(&mut self, holds: bool, reason: Self) {
        if holds {
            *self |= reason;
        }
    }

    /// True if all of these reasons are set.
    pub fn has(self, reasons: Self) -> bool {
        self.0 & reasons.0 == reasons.0
    }

    /// True if there is no reason.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The names of the reasons.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        NAMES.into_iter().filter(move |(reason, _)| self.has(*reason)).map(|(_, name)| name)
    }
}

impl BitOr for Why {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Why {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl Serialize for Why {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.names())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_apart_and_have_names() {
        let mut all = Why::default();
        for (reason, name) in NAMES {
            assert!(!all.has(reason), "{name} is used twice");
            all |= reason;
        }
        assert_eq!(all.names().count(), NAMES.len());
        assert_eq!((Why::NAME | Why::SIZE).names().collect::<Vec<_>>(), ["size", "name"]);
        assert!(Why::default().is_empty());
    }
}
