//! The calls of a workload, made on the filesystem.

use super::feature;
use super::state::{State, contents};
use super::step::{Path, Step};
use crate::model::RenameKind;
use bytes::Bytes;
use std::sync::Arc;
use syncline_device::AlignedBuf;
use syncline_fs::types::{Caller, FileType, Ino, RenameFlags, SetAttributes, XattrMode};
use syncline_fs::{Action, Filesystem, FsError};

pub(super) const CALLER: Caller = Caller { uid: 1000, gid: 100 };

/// Makes the call; returns the number of the inode that it created, or 0. Names are looked up in
/// the model, as the kernel looks them up in its cache.
pub(super) async fn call(fs: &Arc<Filesystem>, state: &State, step: &Step, tag: u64) -> Result<Ino, i32> {
    let errno = |error: FsError| error.errno();
    let above = |path: &Path| state.find(&path.parent());
    let name = |path: &Path| path.name().as_bytes().to_vec();
    let created = match step {
        Step::Create(at) => {
            fs.mknod(CALLER, above(at)?, &name(at), FileType::Regular, 0o644, 0).await.map_err(errno)?
        }
        Step::Mkdir(at) => fs.mkdir(CALLER, above(at)?, &name(at), 0o755).await.map_err(errno)?,
        Step::Symlink(at, len) => {
            fs.symlink(CALLER, above(at)?, &name(at), &vec![b't'; *len]).await.map_err(errno)?
        }
        Step::Publish(at, len) => {
            let made = fs.tmpfile(CALLER, above(at)?, 0o644, true).await.map_err(errno)?;
            let named = async {
                fs.write(made.ino, 0, payload(tag, 0, *len), false).await?;
                fs.link(made.ino, above(at).expect("looked up before"), &name(at)).await
            };
            let named = named.await.map_err(errno);
            fs.release_file(made.ino);
            fs.forget(made.ino, 1);
            named?
        }
        Step::Link(from, to) => {
            let ino = state.find(from)?;
            fs.link(ino, above(to)?, &name(to)).await.map_err(errno)?
        }
        Step::Feature(feature) => return feature::call(fs, state, feature).await.map(|()| 0),
        _ => return call_on_existing(fs, state, step, tag).await.map_err(errno_or).map(|()| 0),
    };
    // The kernel would forget it sooner or later; forgetting at once triggers most.
    fs.forget(created.ino, 1);
    Ok(created.ino)
}

/// The model did not find the path, or the filesystem refused the call.
enum Refused {
    Path(i32),
    Call(FsError),
}

impl From<FsError> for Refused {
    fn from(error: FsError) -> Self {
        Self::Call(error)
    }
}

impl From<i32> for Refused {
    fn from(errno: i32) -> Self {
        Self::Path(errno)
    }
}

fn errno_or(refused: Refused) -> i32 {
    match refused {
        Refused::Path(errno) => errno,
        Refused::Call(error) => error.errno(),
    }
}

async fn call_on_existing(fs: &Arc<Filesystem>, state: &State, step: &Step, tag: u64) -> Result<(), Refused> {
    let above = |path: &Path| state.find(&path.parent());
    let name = |path: &Path| path.name().as_bytes().to_vec();
    match step {
        Step::Unlink(at) => fs.unlink(above(at)?, &name(at)).await?,
        Step::Rmdir(at) => fs.rmdir(above(at)?, &name(at)).await?,
        Step::Rename(from, to, kind) => {
            let flags = RenameFlags {
                no_replace: *kind == RenameKind::NoReplace,
                exchange: *kind == RenameKind::Exchange,
                whiteout: None,
            };
            fs.rename(above(from)?, &name(from), above(to)?, &name(to), flags).await?
        }
        Step::Write(at, offset, len) => {
            fs.write(state.find(at)?, *offset, payload(tag, *offset, *len), false).await?
        }
        Step::Transaction(at, offset, len) => transact(fs, at, *offset, payload(tag, *offset, *len)).await?,
        Step::Append(at, len) => {
            let ino = state.find(at)?;
            let end = state.tree.nodes[&ino].data().map_or(0, <[u8]>::len) as u64;
            fs.append(ino, payload(tag, end, *len), false).await.map(drop)?
        }
        Step::Truncate(at, size) => {
            let set = SetAttributes { size: Some(*size), ..SetAttributes::default() };
            fs.setattr(CALLER, state.find(at)?, set).await.map(drop)?
        }
        Step::SetXattr(at, name, len) => {
            let value = contents(tag, 0, *len);
            fs.setxattr(state.find(at)?, name.name().as_bytes(), &value, XattrMode::Set).await?
        }
        Step::RemoveXattr(at, name) => fs.removexattr(state.find(at)?, name.name().as_bytes()).await?,
        Step::Chmod(at, mode) => {
            let set = SetAttributes { permissions: Some(*mode), ..SetAttributes::default() };
            fs.setattr(CALLER, state.find(at)?, set).await.map(drop)?
        }
        Step::Allocate(at, what, offset, len) => {
            fs.allocate(state.find(at)?, *what, *offset, *len, false).await?
        }
        Step::Copy(from, to) => copy(fs, state.find(from)?, state.find(to)?).await?,
        Step::Create(_)
        | Step::Mkdir(_)
        | Step::Symlink(..)
        | Step::Publish(..)
        | Step::Link(..)
        | Step::Feature(_) => {
            unreachable!("handled by the caller")
        }
    }
    Ok(())
}

/// Writes a range in two parts of one transaction. (With nothing dirty before, it is one transaction of the
/// store.)
async fn transact(fs: &Arc<Filesystem>, at: &Path, offset: u64, whole: Bytes) -> Result<(), FsError> {
    fs.syncfs().await?;
    let half = whole.len() / 2;
    let write = |offset: u64, data: Bytes| syncline_fs::Step {
        path: at.to_string().into_bytes(),
        action: Action::Write { offset, data },
    };
    let steps = [write(offset, whole.slice(..half)), write(offset + half as u64, whole.slice(half..))];
    fs.transact(CALLER, &steps).await.map_err(|refused| refused.cause().clone())
}

/// Copies a whole file over the beginning of another, in as many calls as it takes.
async fn copy(fs: &Arc<Filesystem>, from: Ino, to: Ino) -> Result<(), FsError> {
    let mut done = 0;
    loop {
        match fs.copy_range((from, done), (to, done), u64::MAX >> 1, false).await? {
            0 => return Ok(()),
            bytes => done += bytes,
        }
    }
}

/// Always aligned: whether the filesystem copies a payload must not depend on memory addresses.
fn payload(tag: u64, offset: u64, len: usize) -> Bytes {
    AlignedBuf::copy_from(&contents(tag, offset, len)).into_bytes().slice(..len)
}
