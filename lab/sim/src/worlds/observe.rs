//! Reads everything that a filesystem shows.

use super::state::State;
use crate::model::{Body, Node, Times, Tree};
use crate::paths::compare_paths;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_fs::types::{Attributes, FileType, Ino, ROOT};
use syncline_fs::{Filesystem, FsError};

/// Reads everything reachable from the root. An error is a violation: after a legal crash
/// everything is readable.
pub(super) async fn observe(fs: &Arc<Filesystem>) -> Result<State, String> {
    let mut tree = Tree::default();
    let mut waiting = vec![ROOT];
    while let Some(ino) = waiting.pop() {
        if tree.nodes.contains_key(&ino) {
            continue;
        }
        let node = read_node(fs, ino).await.map_err(|error| format!("inode {ino}: {error}"))?;
        if let Body::Directory(entries) = &node.body {
            waiting.extend(entries.values());
        }
        tree.nodes.insert(ino, Arc::new(node));
    }
    let directories = tree.nodes.iter().filter_map(|(ino, node)| match &node.body {
        Body::Directory(entries) => Some((*ino, entries)),
        _ => None,
    });
    compare_paths(fs, directories).await?;
    Ok(State::of(tree))
}

/// Copies the filesystem's current times into the model's inodes.
pub(super) async fn stamp(fs: &Arc<Filesystem>, state: &mut State) -> Result<(), String> {
    let inos: Vec<Ino> = state.tree.nodes.keys().copied().collect();
    for ino in inos {
        let attributes = fs.getattr(ino).await.map_err(|error| format!("inode {ino}: {error}"))?;
        let times = times(&attributes);
        if state.tree.nodes[&ino].times != times {
            state.node_mut(ino).times = times;
        }
    }
    Ok(())
}

fn times(attributes: &Attributes) -> Times {
    Times { mtime: attributes.mtime, ctime: attributes.ctime, fixed: (attributes.btime, attributes.atime) }
}

async fn read_node(fs: &Arc<Filesystem>, ino: Ino) -> Result<Node<Vec<u8>>, FsError> {
    let attributes = fs.getattr(ino).await?;
    let body = match attributes.file_type {
        FileType::Directory => Body::Directory(read_directory(fs, ino).await?),
        FileType::Symlink => Body::Symlink(fs.readlink(ino).await?.to_vec()),
        _ => Body::File(read_file(fs, &attributes).await?),
    };
    let mut node = Node::new(body, attributes.permissions);
    node.nlink = attributes.nlink;
    node.times = times(&attributes);
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
        let some = fs.readdir(ino, cookie, 16).await?;
        let Some(last) = some.last() else { return Ok(entries) };
        cookie = last.cookie;
        for entry in some.into_iter().filter(|entry| entry.name != b"." && entry.name != b"..") {
            entries.insert(entry.name, entry.ino);
        }
    }
}

async fn read_file(fs: &Arc<Filesystem>, attributes: &Attributes) -> Result<Vec<u8>, FsError> {
    let len = usize::try_from(attributes.size).ok().filter(|len| *len <= 1 << 20);
    let len = len.ok_or(FsError::Invalid("no file here is so large"))?;
    if !fs.ends_in_zeros(attributes.ino).await? {
        return Err(FsError::Invalid("the last block of a file is not zeros behind the end"));
    }
    let contents = fs.read(attributes.ino, 0, len).await?.concat();
    if contents.len() == len { Ok(contents) } else { Err(FsError::Invalid("a read ended before the file")) }
}
