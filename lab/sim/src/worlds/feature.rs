//! The features of this filesystem beyond names and data: snapshots, quotas, compression, durability
//! classes, defragmenting, access control lists. Defines their words in workloads, their effect on the
//! model, and the calls.

use super::state::State;
use super::step::{Path, number, path};
use crate::model::Body;
use libc::{EBUSY, EEXIST, ENOENT, ENOTDIR, EOPNOTSUPP};
use std::fmt;
use std::sync::Arc;
use syncline_fs::types::{Algorithm, Ino, XattrMode};
use syncline_fs::{Durability, Filesystem, FsError, QuotaLimits};

/// Name of the xattr with the access control list.
pub(super) const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
/// Permissions of a file with the list of [`access_list`].
const LISTED_PERMISSIONS: u16 = 0o650;

/// A call of one of these features.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Feature {
    /// Make a snapshot of this name.
    Snapshot(Path),
    /// Delete a snapshot.
    DeleteSnapshot(Path),
    /// Set how data written to a file, or files created in a directory, are compressed from now on;
    /// `None`: no longer.
    Compress(Path, Option<Algorithm>),
    /// Set the durability class of a file, or of files created in a directory; `None`: the mount's.
    Class(Path, Option<Durability>),
    /// Rewrite a file's contents as its compression attribute asks.
    Rewrite(Path),
    /// Rewrite scattered extents together, shared or not.
    Defragment(Path),
    /// Set limits for a directory tree.
    Quota(Path, QuotaLimits),
    /// Remove the limits.
    Unquota(Path),
    /// Set an access control list with one more user; always the same list.
    AccessList(Path),
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Snapshot(name) => write!(f, "snapshot {name}"),
            Self::DeleteSnapshot(name) => write!(f, "delete-snapshot {name}"),
            Self::Compress(at, how) => write!(f, "compress {at} {}", name_of(*how)),
            Self::Class(at, class) => write!(f, "class {at} {}", class_name(*class)),
            Self::Rewrite(at) => write!(f, "rewrite {at}"),
            Self::Defragment(at) => write!(f, "defragment {at}"),
            Self::Quota(at, QuotaLimits { bytes, inodes }) => write!(f, "quota {at} {bytes} {inodes}"),
            Self::Unquota(at) => write!(f, "unquota {at}"),
            Self::AccessList(at) => write!(f, "acl {at}"),
        }
    }
}

/// Parses a feature; `None` if the words are not one.
pub(super) fn parse(words: &[&str]) -> Result<Option<Feature>, String> {
    Ok(Some(match *words {
        ["snapshot", name] => Feature::Snapshot(path(name)),
        ["delete-snapshot", name] => Feature::DeleteSnapshot(path(name)),
        ["compress", at, how] => Feature::Compress(path(at), algorithm(how)?),
        ["class", at, "none"] => Feature::Class(path(at), None),
        ["class", at, class] => Feature::Class(path(at), Some(class.parse()?)),
        ["rewrite", at] => Feature::Rewrite(path(at)),
        ["defragment", at] => Feature::Defragment(path(at)),
        ["quota", at, bytes, inodes] => {
            Feature::Quota(path(at), QuotaLimits { bytes: number(bytes)?, inodes: number(inodes)? })
        }
        ["unquota", at] => Feature::Unquota(path(at)),
        ["acl", at] => Feature::AccessList(path(at)),
        _ => return Ok(None),
    }))
}

/// The word for an algorithm.
pub(super) fn name_of(how: Option<Algorithm>) -> &'static str {
    match how {
        Some(Algorithm::Lz4) => "lz4",
        Some(Algorithm::Zstd) => "zstd",
        None => "no",
    }
}

fn class_name(class: Option<Durability>) -> String {
    class.map_or_else(|| "none".to_owned(), |class| class.to_string())
}

/// The algorithm that a word stands for.
pub(super) fn algorithm(word: &str) -> Result<Option<Algorithm>, String> {
    let all = [Some(Algorithm::Lz4), Some(Algorithm::Zstd), None];
    let found = all.into_iter().find(|how| name_of(*how) == word);
    found.ok_or_else(|| format!("{word:?} is no way to compress"))
}

impl Feature {
    /// The file or directory that the call is about.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::Snapshot(_) | Self::DeleteSnapshot(_) => None,
            Self::Compress(at, _)
            | Self::Class(at, _)
            | Self::Rewrite(at)
            | Self::Defragment(at)
            | Self::Quota(at, _)
            | Self::Unquota(at)
            | Self::AccessList(at) => Some(at),
        }
    }
}

/// An access control list with one more user, who may read, and a group whose rights the mask
/// limits.
fn access_list(mask: u16, owner: u16, others: u16) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let entries =
        [(1, owner, NOBODY), (2, 4, 1234), (4, 7, NOBODY), (16, mask, NOBODY), (32, others, NOBODY)];
    let entry = |(tag, permissions, id): (u16, u16, u32)| {
        let mut bytes = tag.to_le_bytes().to_vec();
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
        bytes
    };
    let version = 2_u32.to_le_bytes();
    version.into_iter().chain(entries.into_iter().flat_map(entry)).collect()
}

/// The list of a file that has one, for these permissions.
pub(super) fn access_list_of(permissions: u16) -> Vec<u8> {
    access_list(permissions >> 3 & 7, permissions >> 6 & 7, permissions & 7)
}

impl State {
    /// Applies the call to the model, or fails with the same errno.
    pub(super) fn apply_feature(&mut self, feature: &Feature) -> Result<(), i32> {
        match feature {
            Feature::Snapshot(name) => {
                let now = Self { snapshots: Default::default(), ..self.clone() };
                if self.snapshots.contains_key(name) {
                    return Err(EEXIST);
                }
                self.snapshots.insert(name.clone(), Arc::new(now));
                Ok(())
            }
            Feature::DeleteSnapshot(name) => self.snapshots.remove(name).map(drop).ok_or(ENOENT),
            Feature::Compress(at, how) => {
                let ino = self.find(at)?;
                if matches!(self.tree.nodes[&ino].body, Body::Symlink(_)) {
                    return Err(EOPNOTSUPP);
                }
                self.node_mut(ino).compression = *how;
                Ok(())
            }
            Feature::Class(at, class) => {
                let ino = self.find(at)?;
                if matches!(self.tree.nodes[&ino].body, Body::Symlink(_)) {
                    return Err(EOPNOTSUPP);
                }
                self.node_mut(ino).class = *class;
                Ok(())
            }
            Feature::Rewrite(at) | Feature::Defragment(at) => self.file(at).map(drop),
            Feature::Quota(at, limits) => self.set_quota(at, *limits),
            Feature::Unquota(at) => {
                let root = self.find(at)?;
                if !matches!(self.tree.nodes[&root].body, Body::Directory(_)) {
                    return Err(ENOTDIR);
                }
                self.quotas.remove(&root).ok_or(ENOENT)?;
                self.members.retain(|_, tree| *tree != root);
                Ok(())
            }
            Feature::AccessList(at) => {
                let ino = self.find(at)?;
                if matches!(self.tree.nodes[&ino].body, Body::Symlink(_)) {
                    return Err(EOPNOTSUPP);
                }
                let node = self.node_mut(ino);
                node.permissions = LISTED_PERMISSIONS;
                node.xattrs.insert(ACCESS_LIST.into(), access_list_of(LISTED_PERMISSIONS));
                Ok(())
            }
        }
    }

    fn set_quota(&mut self, at: &Path, limits: QuotaLimits) -> Result<(), i32> {
        let root = self.find(at)?;
        if !matches!(self.tree.nodes[&root].body, Body::Directory(_)) {
            return Err(ENOTDIR);
        }
        match self.members.get(&root) {
            Some(tree) if *tree != root => return Err(EBUSY),
            Some(_) => {}
            None => {
                let below = self.below(root);
                if below.iter().any(|ino| self.quotas.contains_key(ino)) {
                    return Err(EBUSY);
                }
                for ino in below {
                    // An inode that also has a name in another tree keeps counting there.
                    self.members.entry(ino).or_insert(root);
                }
            }
        }
        self.quotas.insert(root, limits);
        Ok(())
    }

    /// A directory and everything that has a name in it or below it.
    fn below(&self, dir: Ino) -> Vec<Ino> {
        let mut found = vec![dir];
        let mut next = 0;
        while let Some(ino) = found.get(next).copied() {
            next += 1;
            if let Body::Directory(entries) = &self.tree.nodes[&ino].body {
                let new: Vec<Ino> = entries.values().filter(|ino| !found.contains(ino)).copied().collect();
                found.extend(new);
            }
        }
        found
    }
}

/// Makes the call. Names are looked up in the model.
pub(super) async fn call(fs: &Arc<Filesystem>, state: &State, feature: &Feature) -> Result<(), i32> {
    let errno = |error: FsError| error.errno();
    let ino = feature.path().map_or(Ok(0), |path| state.find(path))?;
    match feature {
        Feature::Snapshot(name) => fs.create_snapshot(name.name()).await.map(drop).map_err(errno),
        Feature::DeleteSnapshot(name) => fs.delete_snapshot(name.name()).await.map_err(errno),
        Feature::Compress(_, how) => fs.set_compression(ino, *how).await.map_err(errno),
        Feature::Class(_, class) => fs.set_durability(ino, *class).await.map_err(errno),
        Feature::Rewrite(_) => rewrite(fs, ino).await.map_err(errno),
        Feature::Defragment(_) => defragment(fs, ino).await.map_err(errno),
        Feature::Quota(_, limits) => fs.set_quota(ino, *limits).await.map(drop).map_err(errno),
        Feature::Unquota(_) => fs.remove_quota(ino).await.map_err(errno),
        Feature::AccessList(_) => {
            let list = access_list_of(LISTED_PERMISSIONS);
            fs.setxattr(ino, ACCESS_LIST, &list, XattrMode::Set).await.map_err(errno)
        }
    }
}

async fn rewrite(fs: &Arc<Filesystem>, ino: Ino) -> Result<(), FsError> {
    let mut next = Some(0);
    while let Some(offset) = next {
        next = fs.rewrite(ino, offset).await?.next;
    }
    Ok(())
}

async fn defragment(fs: &Arc<Filesystem>, ino: Ino) -> Result<(), FsError> {
    let mut next = Some(0);
    while let Some(block) = next {
        next = fs.defragment(ino, block, true).await?.next;
    }
    Ok(())
}

/// The effect of a chmod on the list of a file that has one.
pub(super) fn follow_mode(xattrs: &mut std::collections::BTreeMap<Vec<u8>, Vec<u8>>, permissions: u16) {
    if let Some(list) = xattrs.get_mut(ACCESS_LIST) {
        *list = access_list_of(permissions);
    }
}
