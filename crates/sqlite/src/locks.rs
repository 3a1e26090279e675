//! The locks of a database file, as SQLite defines them: any number of readers, one writer.
//!
//! A writer first takes RESERVED, beside the readers. For EXCLUSIVE it keeps new readers out
//! (PENDING) and comes back until the last reader has gone.

/// The lock levels of a connection, in SQLite's order and with SQLite's numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) enum Level {
    #[default]
    None,
    Shared,
    Reserved,
    Pending,
    Exclusive,
}

impl Level {
    pub(crate) fn from_number(number: i32) -> Option<Self> {
        [Self::None, Self::Shared, Self::Reserved, Self::Pending, Self::Exclusive]
            .get(usize::try_from(number).ok()?)
            .copied()
    }
}

/// All locks of a file. Each connection keeps its own level and passes it in.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    /// Connections that hold SHARED or more.
    holders: u32,
    /// The level of the one connection that holds more than SHARED.
    writer: Option<Level>,
}

impl Locks {
    /// Raises the lock of a connection as far as the others allow, and returns what it holds then.
    pub(crate) fn raise(&mut self, held: Level, wanted: Level) -> Level {
        if held >= wanted {
            return held;
        }
        if held == Level::None {
            // Only a reader becomes a writer.
            if wanted != Level::Shared || self.writer >= Some(Level::Pending) {
                return held;
            }
            self.holders += 1;
            return Level::Shared;
        }
        if held == Level::Shared && self.writer.is_some() {
            return held;
        }
        let reached = match wanted {
            Level::Exclusive if self.holders > 1 => Level::Pending,
            _ => wanted,
        };
        self.writer = Some(reached);
        reached
    }

    /// Lowers the lock of a connection to SHARED or none.
    pub(crate) fn lower(&mut self, held: Level, to: Level) -> Level {
        if held <= to {
            return held;
        }
        if held > Level::Shared {
            self.writer = None;
        }
        if to == Level::None {
            self.holders -= 1;
        }
        to
    }

    /// True if some connection may be about to write.
    pub(crate) fn is_reserved(&self) -> bool {
        self.writer.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::Level::{Exclusive, None, Pending, Reserved, Shared};
    use super::*;

    #[test]
    fn a_writer_waits_for_readers_and_keeps_new_ones_out() {
        let mut locks = Locks::default();
        let reader = locks.raise(None, Shared);
        let writer = locks.raise(None, Shared);
        assert_eq!(locks.raise(writer, Reserved), Reserved);
        assert!(locks.is_reserved());
        assert_eq!(locks.raise(None, Shared), Shared, "readers come in beside RESERVED");
        assert_eq!(locks.raise(Reserved, Exclusive), Pending);
        assert_eq!(locks.raise(None, Shared), None, "PENDING keeps readers out");
        assert_eq!(locks.lower(reader, None), None);
        assert_eq!(locks.raise(Pending, Exclusive), Pending, "the other reader is still there");
        locks.lower(Shared, None);
        assert_eq!(locks.raise(Pending, Exclusive), Exclusive);
        assert_eq!(locks.raise(None, Shared), None);
        assert_eq!(locks.lower(Exclusive, Shared), Shared);
        assert!(!locks.is_reserved());
        assert_eq!(locks.raise(None, Shared), Shared);
    }

    #[test]
    fn there_is_one_writer() {
        let mut locks = Locks::default();
        let first = locks.raise(None, Shared);
        let second = locks.raise(None, Shared);
        assert_eq!(locks.raise(first, Reserved), Reserved);
        assert_eq!(locks.raise(second, Reserved), Shared);
        assert_eq!(locks.raise(second, Exclusive), Shared, "not for a recovery either");
        locks.lower(Reserved, None);
        assert_eq!(locks.raise(second, Exclusive), Exclusive, "straight from SHARED, as a recovery does");
    }

    #[test]
    fn every_order_of_calls_keeps_the_rules() {
        use rand::{Rng, SeedableRng};
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(1);
        for _ in 0..200 {
            let mut locks = Locks::default();
            let mut held = [None; 4];
            for _ in 0..200 {
                let who = random.random_range(0..held.len());
                held[who] = match random.random_range(0..5) {
                    0 => locks.lower(held[who], None),
                    1 => locks.lower(held[who], Shared),
                    2 => locks.raise(held[who], Shared),
                    3 => locks.raise(held[who], Reserved),
                    _ => locks.raise(held[who], Exclusive),
                };
                let above = |level| held.iter().filter(|held| **held > level).count();
                assert!(above(Shared) <= 1, "{held:?}");
                assert!(above(Pending) == 0 || above(None) == 1, "{held:?}");
                assert_eq!(locks.is_reserved(), above(Shared) == 1, "{held:?}");
            }
        }
    }
}
