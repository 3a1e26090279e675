//! The durability class of a file or directory, in the flags of its inode item: bits 8 and 9 are
//! the class, bits 16 to 23 the seconds of class `ordered`.

use super::inode::FLAGS;
use std::fmt;
use std::str::FromStr;

/// Flags: the class; 0 if the inode has none of its own.
pub const FLAG_CLASS: u32 = 3 << CLASS_SHIFT;
/// Flags: the seconds of class [`Durability::Ordered`]; 0 for any other.
pub const FLAG_WITHIN: u32 = 0xff << WITHIN_SHIFT;
/// All flags of this file.
pub const FLAGS_DURABILITY: u32 = FLAG_CLASS | FLAG_WITHIN;

const CLASS_SHIFT: u32 = 8;
const WITHIN_SHIFT: u32 = 16;

const FSYNC: u32 = 1;
const ORDERED: u32 = 2;
const STRICT: u32 = 3;

/// When changes of a file or directory become durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// When a program syncs them (P1).
    #[default]
    Fsync,
    /// A sync fixes their place in history, and at most so many seconds later a flush begins that
    /// makes them durable. Never 0.
    Ordered(u8),
    /// Before the change is answered.
    Strict,
}

impl Durability {
    /// The seconds of class `ordered` if nobody says how many.
    pub const WITHIN_DEFAULT: u8 = 5;

    /// The class in an inode's flags, if it has one of its own.
    pub fn of(flags: u32) -> Option<Self> {
        let within = (flags & FLAG_WITHIN) >> WITHIN_SHIFT;
        match ((flags & FLAG_CLASS) >> CLASS_SHIFT, within) {
            (FSYNC, 0) => Some(Self::Fsync),
            (ORDERED, 1..) => Some(Self::Ordered(within as u8)),
            (STRICT, 0) => Some(Self::Strict),
            _ => None,
        }
    }

    /// The flags for this class.
    pub fn flags(self) -> u32 {
        match self {
            Self::Fsync => FSYNC << CLASS_SHIFT,
            Self::Ordered(within) => ORDERED << CLASS_SHIFT | u32::from(within.max(1)) << WITHIN_SHIFT,
            Self::Strict => STRICT << CLASS_SHIFT,
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fsync => f.write_str("fsync"),
            Self::Ordered(within) => write!(f, "ordered:{within}"),
            Self::Strict => f.write_str("strict"),
        }
    }
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let within = |seconds: &str| seconds.parse().ok().filter(|within| *within > 0);
        match text.split_once(':') {
            None if text == "fsync" => Ok(Self::Fsync),
            None if text == "ordered" => Ok(Self::Ordered(Self::WITHIN_DEFAULT)),
            None if text == "strict" => Ok(Self::Strict),
            Some(("ordered", seconds)) => within(seconds)
                .map(Self::Ordered)
                .ok_or_else(|| format!("'{seconds}' is not a number of seconds from 1 to 255")),
            _ => Err(format!("'{text}' is no durability class: fsync, ordered, ordered:SECONDS or strict")),
        }
    }
}

/// These flags without those of an invalid class.
pub(super) fn sound(flags: u32) -> u32 {
    match Durability::of(flags) {
        Some(_) => flags,
        None => flags & !FLAGS_DURABILITY,
    }
}

const _: () = assert!(FLAGS & FLAGS_DURABILITY == FLAGS_DURABILITY);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_read_as_it_was_written() {
        for class in [Durability::Fsync, Durability::Ordered(1), Durability::Ordered(255), Durability::Strict]
        {
            assert_eq!(Durability::of(class.flags()), Some(class));
            assert_eq!(sound(class.flags()), class.flags());
        }
        assert_eq!(Durability::of(0), None);
    }

    #[test]
    fn a_class_is_understood_as_it_is_shown() {
        for class in [Durability::Fsync, Durability::Ordered(7), Durability::Strict] {
            assert_eq!(class.to_string().parse(), Ok(class));
        }
        assert_eq!("ordered".parse(), Ok(Durability::Ordered(Durability::WITHIN_DEFAULT)));
        for wrong in ["", "Ordered", "ordered:", "ordered:0", "ordered:256", "ordered:-1", "strict:5"] {
            wrong.parse::<Durability>().unwrap_err();
        }
    }

    #[test]
    fn seconds_belong_to_a_class() {
        let without_seconds = ORDERED << CLASS_SHIFT;
        for flags in [without_seconds, 5 << WITHIN_SHIFT, Durability::Strict.flags() | 5 << WITHIN_SHIFT] {
            assert_eq!((Durability::of(flags), sound(flags | 1)), (None, 1), "{flags:#x}");
        }
    }
}
