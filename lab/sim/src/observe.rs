//! Reads everything that a filesystem shows.

use crate::model::{Body, Entries, Node, Times, Tree};
use crate::paths::compare_paths;
use std::sync::Arc;
use syncline_fs::types::{Attributes, FileType, Ino, ROOT};
use syncline_fs::{Filesystem, FsError};

/// Bytes of a file and entries of a directory that one call reads: few, so that several calls are needed.
const READ_BYTES: usize = 64 << 10;
const READ_ENTRIES: usize = 7;
/// No workload writes a larger file.
const SIZE_MAX: u64 = 1 << 30;

/// Reads everything reachable from the root. An error is a violation: after a legal crash
/// everything is readable.
pub(crate) async fn observe(fs: &Arc<Filesystem>) -> Result<Tree<Vec<u8>>, String> {
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
    Ok(tree)
}

/// The times of an inode.
pub(crate) fn times(attributes: &Attributes) -> Times {
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

async fn read_directory(fs: &Arc<Filesystem>, ino: Ino) -> Result<Entries, FsError> {
    let mut entries = Entries::new();
    let mut cookie = 0;
    loop {
        let some = fs.readdir(ino, cookie, READ_ENTRIES).await?;
        let Some(last) = some.last() else { return Ok(entries) };
        cookie = last.cookie;
        let named = some.into_iter().filter(|entry| entry.name != b"." && entry.name != b"..");
        entries.extend(named.map(|entry| (entry.name, entry.ino)));
    }
}

async fn read_file(fs: &Arc<Filesystem>, attributes: &Attributes) -> Result<Vec<u8>, FsError> {
    if attributes.size > SIZE_MAX {
        return Err(FsError::Invalid("no file here is so large"));
    }
    // Otherwise only a file that grows would reveal it, and few do.
    if !fs.ends_in_zeros(attributes.ino).await? {
        return Err(FsError::Invalid("the last block of a file is not zeros behind the end"));
    }
    let mut contents = Vec::new();
    while (contents.len() as u64) < attributes.size {
        let pieces = fs.read(attributes.ino, contents.len() as u64, READ_BYTES).await?;
        let before = contents.len();
        pieces.iter().for_each(|piece| contents.extend_from_slice(piece));
        if contents.len() == before {
            return Err(FsError::Invalid("a read inside the file returned nothing"));
        }
    }
    Ok(contents)
}
