//! Overwrites parts of blocks that may be rotten: writing a part must not make the rest of a
//! damaged block valid.

use crate::rot::seen::Survey;
use syncline::{Filesystem, OpenOptions};

/// Plain, shared, in the log, compressed, kept by snapshots, inline in the inode.
const FILES: [&str; 6] =
    ["/large", "/copy", "/logged", "/packed/units", "/directory/changing", "/directory/17"];
const BLOCK: usize = 4096;
/// Offset in a block, and the new bytes.
const AT: usize = 7;
const PART: &[u8] = b"NEW";

/// The writes that were made.
pub struct Overwritten {
    /// File, block, and whether it was synced.
    parts: Vec<(&'static str, usize, bool)>,
}

/// Writes to every second block of some files and syncs them.
pub fn overwrite(fs: &Filesystem, expected: &Survey) -> Overwritten {
    let mut parts = Vec::new();
    for path in FILES {
        let Ok(file) = OpenOptions::new().write(true).open(fs, path) else { continue };
        let blocks = (0..).step_by(2).take_while(|index| expected.block(path, *index).is_some());
        let mut written = Vec::new();
        for index in blocks {
            if file.write_all_at(PART, (index * BLOCK + AT) as u64).is_ok() {
                written.push(index);
            }
        }
        let synced = file.sync_all().is_ok();
        parts.extend(written.into_iter().map(|index| (path, index, synced)));
    }
    Overwritten { parts }
}

impl Overwritten {
    /// The expected contents afterwards. Unsynced writes may be there or not: whichever `found`
    /// shows.
    pub fn expected(&self, before: &Survey, found: &Survey) -> Survey {
        let mut expected = before.clone();
        for &(path, index, synced) in &self.parts {
            let Some(Ok(block)) = before.block(path, index) else { continue };
            let mut changed = block.clone();
            changed[AT..AT + PART.len()].copy_from_slice(PART);
            if synced || found.block(path, index) == Some(&Ok(changed.clone())) {
                expected.put_block(path, index, changed);
            }
        }
        expected
    }
}
