//! Reads a recovered filesystem and compares it with its history.

use super::history::FsHistory;
use crate::model::{Node, Times, Tree};
use crate::observe::observe;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_fs::Filesystem;
use syncline_fs::types::Ino;

pub(super) type Contents = BTreeMap<Ino, Vec<u8>>;

/// Checks that the filesystem shows exactly the tree after transaction `op`, and only allowed data
/// in every file. Returns a history that starts there.
pub(super) async fn verify(
    fs: &Arc<Filesystem>,
    history: &FsHistory,
    op: u64,
    position: usize,
) -> Result<FsHistory, String> {
    let least = history.promised_at(position);
    if op < least {
        return Err(format!("transaction {op} came back; {least} was promised"));
    }
    history.check_whole(op)?;
    // Before anything is read.
    for (ino, newest, older) in history.accessed_at(position) {
        let Ok(attributes) = fs.getattr(ino).await else { continue };
        let found = attributes.atime;
        // A newer time is right, too. The clock may go back, so only times that are known to be old are wrong.
        let is_old = found == attributes.btime || older.contains(&found);
        if attributes.nlink > 0 && found != newest && is_old {
            return Err(format!("inode {ino} has the old access time {found:?}; {newest:?} was promised"));
        }
    }
    let (found, contents) = read_all(fs).await?;
    let expected = history.tree_after(op)?;
    if let Some(difference) = difference(&found, &expected) {
        return Err(format!("after transaction {op}: {difference}"));
    }
    let carried = history.carried_by_names(op);
    for (ino, bytes) in &contents {
        let carried = carried.get(ino).map_or(&[][..], Vec::as_slice);
        history
            .check_file(*ino, bytes, (op, position), carried)
            .map_err(|what| format!("after transaction {op}, file {ino}: {what}"))?;
    }
    Ok(FsHistory::starting_with(found, &contents, op))
}

pub(super) fn difference(found: &Tree, expected: &Tree) -> Option<String> {
    let inos = found.nodes.keys().chain(expected.nodes.keys());
    let wrong = inos.filter(|ino| found.nodes.get(*ino) != expected.nodes.get(*ino)).min()?;
    Some(format!("inode {wrong} is {:?}, not {:?}", found.nodes.get(wrong), expected.nodes.get(wrong)))
}

/// Reads everything reachable from the root: the tree, without times, and the contents of files.
pub(super) async fn read_all(fs: &Arc<Filesystem>) -> Result<(Tree, Contents), String> {
    let (mut tree, mut contents) = (Tree::default(), Contents::new());
    for (ino, node) in observe(fs).await?.nodes {
        let (node, data) = Arc::unwrap_or_clone(node).apart();
        contents.extend(data.map(|data| (ino, data)));
        tree.nodes.insert(ino, Arc::new(Node { times: Times::default(), ..node }));
    }
    Ok((tree, contents))
}
