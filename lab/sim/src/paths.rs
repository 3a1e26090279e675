//! Checks the paths of inodes against the directories.

use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_fs::Filesystem;
use syncline_fs::types::{Ino, ROOT};

/// The entries of a directory.
type Entries = BTreeMap<Vec<u8>, Ino>;

/// Compares the paths that the inodes of a filesystem report with its directories. Without parent
/// pointers there is nothing to compare.
pub(crate) async fn compare_paths<'a>(
    fs: &Arc<Filesystem>,
    directories: impl Iterator<Item = (Ino, &'a Entries)>,
) -> Result<(), String> {
    if !fs.has_parent_pointers() {
        return Ok(());
    }
    let directories: BTreeMap<Ino, &Entries> = directories.collect();
    let mut expected: BTreeMap<Ino, Vec<Vec<u8>>> = BTreeMap::new();
    let mut waiting = vec![(ROOT, Vec::new())];
    while let Some((directory, path)) = waiting.pop() {
        for (name, ino) in directories.get(&directory).into_iter().flat_map(|entries| entries.iter()) {
            let below = [&path[..], b"/", name].concat();
            expected.entry(*ino).or_default().push(below.clone());
            if directories.contains_key(ino) {
                waiting.push((*ino, below));
            }
        }
    }
    for (ino, mut paths) in expected {
        paths.sort_unstable();
        let found = fs.paths(ino).await.map_err(|error| format!("paths of inode {ino}: {error}"))?;
        if found != paths {
            let shown = |paths: &[Vec<u8>]| -> Vec<String> {
                paths.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
            };
            return Err(format!("paths of inode {ino}: {:?}, not {:?}", shown(&found), shown(&paths)));
        }
    }
    Ok(())
}
