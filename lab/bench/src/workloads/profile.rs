//! The ffsb profile of K2: the distribution of file sizes, and the frequency of each operation.

use rand::Rng;

/// Operations of the profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Read a whole file.
    ReadAll,
    /// Create a file and write it.
    Create,
    /// Create a file, write it and fsync it.
    CreateFsync,
    /// Remove a file.
    Delete,
    /// Write at the end.
    Append,
    /// Write at the end, then fsync.
    AppendFsync,
    /// stat.
    Stat,
    /// Overwrite a whole file.
    WriteAll,
    /// Overwrite a whole file, then fsync.
    WriteAllFsync,
    /// Open and close.
    OpenClose,
}

/// The frequency of each operation.
const WEIGHTS: [(Operation, u32); 10] = [
    (Operation::ReadAll, 4),
    (Operation::CreateFsync, 2),
    (Operation::Delete, 1),
    (Operation::Append, 1),
    (Operation::AppendFsync, 1),
    (Operation::Stat, 1),
    (Operation::Create, 1),
    (Operation::WriteAll, 1),
    (Operation::WriteAllFsync, 1),
    (Operation::OpenClose, 1),
];

/// The percentage of files with each size, in KiB.
const SIZES_KIB: [(u64, u32); 11] = [
    (1, 10),
    (2, 15),
    (4, 16),
    (8, 16),
    (16, 15),
    (32, 10),
    (64, 8),
    (128, 4),
    (256, 3),
    (512, 2),
    (1024, 1),
];

/// Bytes of an append.
pub const APPEND_BYTES: u64 = 64 << 10;
/// Bytes of each read or write when a whole file is read or written.
pub const PIECE_BYTES: usize = 512 << 10;
/// Files in a directory.
pub const FILES_PER_DIRECTORY: u64 = 100;

/// The next operation.
pub fn operation(rng: &mut impl Rng) -> Operation {
    pick(&WEIGHTS, rng)
}

/// The size of the next file, in bytes.
pub fn size_bytes(rng: &mut impl Rng) -> u64 {
    pick(&SIZES_KIB, rng) << 10
}

/// Mean size of a file.
pub fn mean_bytes() -> u64 {
    let all: u64 = SIZES_KIB.iter().map(|&(_, weight)| u64::from(weight)).sum();
    SIZES_KIB.iter().map(|&(kib, weight)| (kib << 10) * u64::from(weight)).sum::<u64>() / all
}

fn pick<T: Copy>(table: &[(T, u32)], rng: &mut impl Rng) -> T {
    let all = table.iter().map(|&(_, weight)| weight).sum();
    let mut at = rng.random_range(0..all);
    for &(what, weight) in table {
        if at < weight {
            return what;
        }
        at -= weight;
    }
    unreachable!("the number is less than all weights together")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    #[test]
    fn the_profile_is_that_of_the_table() {
        assert_eq!(SIZES_KIB.iter().map(|&(_, weight)| weight).sum::<u32>(), 100);
        assert_eq!(mean_bytes(), 4632 * 1024 / 100);
        let mut rng = StdRng::seed_from_u64(1);
        let drawn: Vec<_> = (0..14_000).map(|_| operation(&mut rng)).collect();
        for (what, weight) in WEIGHTS {
            let count = drawn.iter().filter(|&&drawn| drawn == what).count() as u32;
            assert!((weight * 900..weight * 1100).contains(&count), "{what:?}: {count}");
        }
        let mean = (0..20_000).map(|_| size_bytes(&mut rng)).sum::<u64>() / 20_000;
        assert!(mean.abs_diff(mean_bytes()) < mean_bytes() / 10, "{mean}");
    }
}
