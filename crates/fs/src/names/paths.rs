//! The paths of an inode, from parent pointers: no directory is read.

use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::{Inode, ParentName};
use crate::names::parents::decode_parent;
use crate::types::{FileType, Ino, ROOT};
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use syncline_format::{Key, Kind};

/// Items read at a time.
const ITEMS_EACH: usize = 256;
/// How often to start over because the names changed meanwhile.
const ATTEMPTS: usize = 16;

impl Filesystem {
    /// All paths of an inode from the root, in the order of their bytes.
    ///
    /// [`FsError::NoParentPointers`] if the image keeps none, [`FsError::Stale`] if there is no
    /// such inode, [`FsError::NoName`] if it has no name left.
    pub async fn paths(&self, ino: Ino) -> Result<Vec<Vec<u8>>, FsError> {
        if !self.has_parent_pointers() {
            return Err(FsError::NoParentPointers);
        }
        let inode = self.inode(ino).await?;
        if ino == ROOT {
            return Ok(vec![b"/".to_vec()]);
        }
        // Directories stay below their parents while this is held.
        let _rename = self.rename_lease.lock().await;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let names = self.names_of(&inode).await?;
            if names.is_empty() {
                let removed = inode.state.lock().attr.nlink == 0;
                return Err(if removed { FsError::NoName } else { lost(ino) });
            }
            match self.paths_of(&names).await {
                // A name may be gone, and its directory with it.
                Err(_) if attempts < ATTEMPTS && self.names_of(&inode).await? != names => {}
                paths => return paths,
            }
        }
    }

    /// The names in an inode's parent pointers.
    async fn names_of(&self, inode: &Inode) -> Result<Vec<ParentName>, FsError> {
        let _lease = inode.lease.read().await;
        let (mut names, items) = {
            let state = inode.state.lock();
            (state.meta.parents.short.to_vec(), state.meta.parents.items)
        };
        if items > 0 {
            let (from, to) =
                (Key::new(inode.ino, Kind::Parent, 0), Key::new(inode.ino, Kind::Parent, u64::MAX));
            let each = |key: Key, value: &Bytes| {
                names.push((&decode_parent(key, value)?).into());
                Ok(())
            };
            self.each_item(from, to, ITEMS_EACH, each).await?;
        }
        names.sort_unstable();
        Ok(names)
    }

    async fn paths_of(&self, names: &[ParentName]) -> Result<Vec<Vec<u8>>, FsError> {
        let mut known: HashMap<Ino, Arc<[u8]>> = HashMap::from([(ROOT, Arc::from(&b""[..]))]);
        let mut paths = Vec::with_capacity(names.len());
        for name in names {
            let directory = match known.get(&name.parent) {
                Some(path) => path.clone(),
                None => {
                    let path = self.directory_path(name.parent, &known).await?;
                    known.insert(name.parent, path.clone());
                    path
                }
            };
            paths.push([&directory, &b"/"[..], &name.name].concat());
        }
        paths.sort_unstable();
        Ok(paths)
    }

    /// The path of a directory, built upwards to one that is known already. In a damaged image the
    /// way up may lead nowhere, or in a circle.
    async fn directory_path(&self, dir: Ino, known: &HashMap<Ino, Arc<[u8]>>) -> Result<Arc<[u8]>, FsError> {
        let mut way: Vec<Arc<[u8]>> = Vec::new();
        let mut seen = HashSet::new();
        let mut at = dir;
        let top = loop {
            if let Some(path) = known.get(&at) {
                break path;
            }
            if !seen.insert(at) {
                return Err(lost(at));
            }
            let inode = match self.inode(at).await {
                Err(FsError::Stale) => return Err(lost(at)),
                inode => inode?,
            };
            let names = self.names_of(&inode).await?;
            let (FileType::Directory, [name]) = (inode.file_type, &names[..]) else { return Err(lost(at)) };
            way.push(name.name.clone());
            at = name.parent;
        };
        let mut path = top.to_vec();
        for name in way.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Ok(path.into())
    }
}

/// The error for an inode whose parent pointers can't be right.
fn lost(ino: Ino) -> FsError {
    FsError::corrupt(ino, "inode", "parent pointers")
}
