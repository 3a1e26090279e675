//! Reads a recovered filesystem and compares it with its history.

use super::history::FsHistory;
use crate::model::{Body, Node, Tree};
use crate::paths::compare_paths;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_fs::types::{Attributes, FileType, Ino, ROOT};
use syncline_fs::{Filesystem, FsError};

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

/// Reads everything reachable from the root.
pub(super) async fn read_all(fs: &Arc<Filesystem>) -> Result<(Tree, Contents), String> {
    let (mut tree, mut contents) = (Tree::empty(), Contents::new());
    let mut waiting = vec![ROOT];
    while let Some(ino) = waiting.pop() {
        let node =
            read_node(fs, ino, &mut contents).await.map_err(|error| format!("inode {ino}: {error}"))?;
        if let Body::Directory(entries) = &node.body {
            waiting.extend(entries.values().filter(|ino| !tree.nodes.contains_key(ino)));
        }
        tree.nodes.insert(ino, Arc::new(node));
    }
    let directories = tree.nodes.iter().filter_map(|(ino, node)| match &node.body {
        Body::Directory(entries) => Some((*ino, entries)),
        _ => None,
    });
    compare_paths(fs, directories).await?;
    Ok((tree, contents))
}

async fn read_node(fs: &Arc<Filesystem>, ino: Ino, contents: &mut Contents) -> Result<Node, FsError> {
    let attributes = fs.getattr(ino).await?;
    let body = match attributes.file_type {
        FileType::Directory => Body::Directory(read_directory(fs, ino).await?),
        FileType::Symlink => Body::Symlink(fs.readlink(ino).await?.to_vec()),
        _ => {
            contents.insert(ino, read_file(fs, &attributes).await?);
            // Otherwise only a file that grows would reveal it, and few do.
            if !fs.ends_in_zeros(ino).await? {
                return Err(FsError::Invalid("the last block of a file is not zeros behind the end"));
            }
            Body::File(())
        }
    };
    let mut node = Node::new(body, attributes.permissions);
    node.nlink = attributes.nlink;
    node.compression = fs.file_flags(ino).await?.compression;
    node.class = fs.durability(ino).await?.0;
    let names = fs.listxattr(ino).await?;
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        node.xattrs.insert(name.to_vec(), fs.getxattr(ino, name).await?.to_vec());
    }
    Ok(node)
}

async fn read_directory(fs: &Arc<Filesystem>, ino: Ino) -> Result<BTreeMap<Vec<u8>, Ino>, FsError> {
    let mut entries = BTreeMap::new();
    let mut cookie = 0;
    loop {
        let some = fs.readdir(ino, cookie, 7).await?;
        let Some(last) = some.last() else { return Ok(entries) };
        cookie = last.cookie;
        entries.extend(
            some.into_iter()
                .filter(|entry| entry.name != b"." && entry.name != b"..")
                .map(|entry| (entry.name, entry.ino)),
        );
    }
}

async fn read_file(fs: &Arc<Filesystem>, attributes: &Attributes) -> Result<Vec<u8>, FsError> {
    let mut contents = Vec::new();
    while (contents.len() as u64) < attributes.size {
        let pieces = fs.read(attributes.ino, contents.len() as u64, 64 << 10).await?;
        let before = contents.len();
        pieces.iter().for_each(|piece| contents.extend_from_slice(piece));
        if contents.len() == before {
            return Err(FsError::Invalid("a read inside the file returned nothing"));
        }
    }
    Ok(contents)
}
