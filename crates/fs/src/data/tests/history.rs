//! Crashes at any moment between operations: each block of a file is as it was at some moment since
//! the last fsync, and the contents past the end are gone for good (promises P1 and P2).

use super::model::{Pair, Step, step};
use super::*;
use proptest::prelude::*;

/// Contents of the files after each step since they were last durable.
struct History {
    versions: Vec<Vec<Vec<u8>>>,
}

impl History {
    fn new(pair: &Pair) -> Self {
        Self { versions: pair.model.values().map(|bytes| vec![bytes.clone()]).collect() }
    }

    fn note(&mut self, pair: &Pair, step: &Step) {
        for (file, versions) in self.versions.iter_mut().enumerate() {
            let durable = match step {
                Step::Fsync { file: synced, .. } => *synced == file,
                Step::SyncAll => true,
                _ => false,
            };
            if durable {
                versions.clear();
            }
            if versions.last() != Some(&pair.model[&file]) {
                versions.push(pair.model[&file].clone());
            }
        }
    }

    /// Fails unless each block of the file is from one of the versions.
    fn judge(&self, file: usize, found: &[u8]) {
        let versions = &self.versions[file];
        let longest = versions.iter().map(Vec::len).max().unwrap_or(0);
        let shortest = versions.iter().map(Vec::len).min().unwrap_or(0);
        assert!((shortest..=longest).contains(&found.len()), "file {file} has {} bytes", found.len());
        for (index, block) in found.chunks(4096).enumerate() {
            let same = |version: &Vec<u8>| {
                let start = (index * 4096).min(version.len());
                let known = &version[start..(start + block.len()).min(version.len())];
                block.starts_with(known) && block[known.len()..].iter().all(|&byte| byte == 0)
            };
            // The end of the file may have been in this block, at any of the sizes that the file
            // had.
            let cut = |version: &Vec<u8>| {
                let start = (index * 4096).min(version.len());
                let known = &version[start..(start + block.len()).min(version.len())];
                let common = known.iter().zip(block).take_while(|(a, b)| a == b).count();
                block[common..].iter().all(|&byte| byte == 0)
                    && versions.iter().any(|other| other.len() <= start + common)
            };
            assert!(
                versions.iter().any(|version| same(version) || cut(version)),
                "file {file}, block {index}"
            );
        }
    }
}

proptest! {
    #[test]
    fn a_crash_leaves_blocks_as_they_once_were(
        steps in proptest::collection::vec(step(), 1..40),
        logged in any::<bool>(),
        compressed in any::<bool>(),
    ) {
        let mut pair = match compressed {
            true => Pair::compressed(Mount::new(), Algorithm::Zstd),
            false => Pair::new(Mount::new()),
        };
        pair.mount.fsync(ROOT);
        let mut history = History::new(&pair);
        for step in steps.iter().filter(|step| !matches!(step, Step::Crash | Step::Reopen)) {
            pair = pair.apply(step);
            history.note(&pair, step);
        }
        if logged {
            // All commits survive, but no more data than they name.
            pair.mount.fsync(ROOT);
        }
        pair.mount = pair.mount.crash();
        pair.find_again();
        for (file, &ino) in pair.inos.iter().enumerate() {
            let size = pair.mount.size(ino);
            let found = pair.mount.read(ino, 0, size as usize);
            history.judge(file, &found);
            pair.mount.truncate(ino, size + 300_000).unwrap();
            let grown = pair.mount.read(ino, size, 400_000);
            prop_assert_eq!(grown.len(), 300_000);
            prop_assert!(grown.iter().all(|&byte| byte == 0), "file {} had something past its end", file);
            pair.mount.check_items(ino);
        }
    }
}
