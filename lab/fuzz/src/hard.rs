//! An image that a check calls clean bears everything that may be done with it, and stays clean.
//!
//! A decoder may accept a number that is close to the greatest number: code that counts on from such a
//! number reaches the end of all numbers. So such an image is used as hard as in years of life: snapshots
//! come and go, files are made until there is no room, and it is unmounted and mounted again.

use crate::bases::{CALLER, open, store_options};
use crate::run::{run, run_here};
use crate::walk::walk;
use bytes::Bytes;
use std::sync::Arc;
use syncline_check::{CheckError, Report};
use syncline_device::MemoryDevice;
use syncline_fs::types::{FileType, Ino, ROOT};
use syncline_fs::{Allocation, Filesystem, FsError};
use syncline_sim::Simulation;

/// Mounts of one use.
const MOUNTS: u8 = 2;
/// Files made in a mount.
const FILES: usize = 24;
/// ENOSPC and EDQUOT: all that a sound image may answer to changes for which it has no room.
const NO_ROOM: [i32; 2] = [28, 122];

/// Runs a check.
pub fn examine(device: &Arc<MemoryDevice>) -> Result<Report, CheckError> {
    let simulation = Simulation::new(0);
    let mut tell = |_| {};
    let work = syncline_check::check(device.clone(), simulation.spawner(), &mut tell);
    run_here(work)
}

/// True if nothing is wrong and nothing was left out.
pub fn is_sound(report: &Report) -> bool {
    report.is_clean() && !report.incomplete
}

/// Uses an image hard if a check calls it clean; false if it does not. An error says how the image failed.
pub fn hold(device: &Arc<MemoryDevice>) -> Result<bool, String> {
    if !examine(device).is_ok_and(|report| is_sound(&report)) {
        return Ok(false);
    }
    for number in 0..MOUNTS {
        let device = device.clone();
        let used = run(move |world| async move {
            let fs = open(device, &world, store_options(20 + number, false)).await?;
            let used = use_hard(&fs).await;
            let walked = walk(&fs).await;
            fs.close().await?;
            fs.store().close().await?;
            used?;
            Ok::<_, FsError>(walked.error)
        });
        match used {
            Ok(None) => {}
            Ok(Some(error)) => return Err(format!("in mount {number} {error}")),
            Err(error) => return Err(format!("mount {number}: {error}")),
        }
    }
    match examine(device) {
        Ok(report) if is_sound(&report) => Ok(true),
        Ok(report) => Err(format!("it is not sound any more: {:#?}", report.findings)),
        Err(error) => Err(format!("it can't be checked any more: {error}")),
    }
}

/// Takes no room for an answer.
fn unless_full<T>(done: Result<T, FsError>) -> Result<Option<T>, FsError> {
    match done {
        Err(error) if NO_ROOM.contains(&error.errno()) => Ok(None),
        done => done.map(Some),
    }
}

async fn make(fs: &Arc<Filesystem>, dir: Ino, name: &str) -> Result<Option<Ino>, FsError> {
    let made = fs.mknod(CALLER, dir, name.as_bytes(), FileType::Regular, 0o644, 0).await;
    let made = unless_full(made)?;
    made.iter().for_each(|made| fs.forget(made.ino, 1));
    Ok(made.map(|made| made.ino))
}

/// Snapshots, files and all free blocks are used, and all of it is removed again.
async fn use_hard(fs: &Arc<Filesystem>) -> Result<(), FsError> {
    let Some(dir) = unless_full(fs.mkdir(CALLER, ROOT, b"used hard", 0o755).await)? else {
        return unless_full(fs.syncfs().await).map(drop);
    };
    fs.forget(dir.ino, 1);
    let first = unless_full(fs.create_snapshot("used hard").await)?;
    for index in 0..FILES {
        let Some(ino) = make(fs, dir.ino, &format!("{index}")).await? else { break };
        let data = Bytes::from(vec![index as u8 + 1; 5000 * (index % 4 + 1)]);
        unless_full(fs.write(ino, 0, data, false).await)?;
        unless_full(fs.fsync(ino, false).await)?;
    }
    let second = unless_full(fs.create_snapshot("used harder").await)?;
    let filler = make(fs, dir.ino, "filler").await?;
    if let Some(ino) = filler {
        fill(fs, ino).await?;
    }
    for index in (0..FILES).step_by(2) {
        remove(fs, dir.ino, &format!("{index}")).await?;
    }
    if first.is_some() {
        fs.delete_snapshot("used hard").await?;
    }
    unless_full(fs.syncfs().await)?;
    remove(fs, dir.ino, "filler").await?;
    for index in (1..FILES).step_by(2) {
        remove(fs, dir.ino, &format!("{index}")).await?;
    }
    if second.is_some() {
        fs.delete_snapshot("used harder").await?;
    }
    fs.rmdir(ROOT, b"used hard").await?;
    fs.syncfs().await
}

/// Preallocates until nothing is left, then writes a little.
async fn fill(fs: &Arc<Filesystem>, ino: Ino) -> Result<(), FsError> {
    let (mut at, mut len) = (0, 8 << 20);
    while len >= 4096 {
        let what = Allocation::Preallocate { keep_size: false };
        match unless_full(fs.allocate(ino, what, at, len, false).await)? {
            Some(()) => at += len,
            None => len /= 2,
        }
    }
    for piece in 0..8 {
        unless_full(fs.write(ino, at + piece * 4096, Bytes::from(vec![9; 4096]), false).await)?;
    }
    unless_full(fs.fsync(ino, false).await).map(drop)
}

async fn remove(fs: &Arc<Filesystem>, dir: Ino, name: &str) -> Result<(), FsError> {
    match fs.unlink(dir, name.as_bytes()).await {
        Err(FsError::NotFound) => Ok(()),
        removed => removed,
    }
}
