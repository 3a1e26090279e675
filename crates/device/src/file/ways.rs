//! One image can be reached in several ways: by its file, loop devices over it, partitions of
//! these. A lock of the open file excludes others who came the same way; this module excludes those
//! who came another way (promise P7).
//!
//! - Opening a loop device also locks the bytes below it, where someone who opens the file locks
//!   them.
//! - Opening anything for writing claims the loop devices over the same bytes, as the kernel does
//!   for a filesystem that it mounts. Loop devices that only give a mount of ours its name are left alone:
//!   nothing is written through them, and one of a daemon that has died must not keep the image from
//!   the next.
//! - A block device is claimed as well, until the kernel claims it for the mount.
//!
//! A file or device that can't be examined (in another namespace, deleted, or not accessible to
//! this user) is not a reason to refuse; only use is.

use super::lock::lock;
use super::loops::{self, Below, Identity, WHOLE};
use super::open::Refusal;
use parking_lot::Mutex;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The most loop devices on top of each other that are followed; more than occur in practice.
const DEPTH_MAX: usize = 8;

/// How an image is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    Write,
    Read,
    /// Reads data that no writer changes: conflicts with nobody.
    Beside,
}

/// Excludes those who reach the same bytes in another way, as long as it is held.
#[derive(Default)]
pub(crate) struct Others {
    /// The claim on the opened block device, while it is ours.
    pub(super) own: Mutex<Option<File>>,
    /// The files and devices below the opened one, from there downwards, as far as they could be
    /// opened, each with the byte at which the image begins in it.
    pub(super) below: Vec<(File, u64)>,
    /// Loop devices over the same bytes.
    pub(super) above: Mutex<Vec<File>>,
}

/// Locks and claims everything else through which the same bytes can be reached.
pub(super) fn meet(file: &File, how: Use) -> Result<Others, Refusal> {
    let identity = Identity::of(&file.metadata().map_err(Refusal::Failed)?);
    let mut others = Others::default();
    if how == Use::Write {
        claim_above(identity, &WHOLE, None, DEPTH_MAX, others.above.get_mut())?;
    }
    let mut bytes = WHOLE;
    while others.below.len() < DEPTH_MAX {
        let Some(below) = loops::below(others.below.last().map_or(file, |(file, _)| file), &bytes) else {
            break;
        };
        bytes = below.bytes.clone();
        if how == Use::Write {
            claim_above(below.identity, &bytes, Some(below.number), DEPTH_MAX, others.above.get_mut())?;
        }
        let Some(file) = open_below(&below, how)? else { break };
        if how == Use::Beside {
            others.below.push((file, bytes.start));
            continue;
        }
        match lock(&file, how == Use::Read, &bytes) {
            Ok(true) => others.below.push((file, bytes.start)),
            Ok(false) => return Err(Refusal::Locked(file)),
            Err(error) => {
                tracing::debug!(path = %below.path.display(), %error, "no locks below this loop device");
                break;
            }
        }
    }
    Ok(others)
}

/// Claims the loop devices over these bytes, and those over them in turn, except for the opened
/// one, which its opener has claimed.
fn claim_above(
    identity: Identity,
    bytes: &Range<u64>,
    opened: Option<u64>,
    depth: usize,
    claimed: &mut Vec<File>,
) -> Result<(), Refusal> {
    if depth == 0 {
        return Ok(());
    }
    for above in loops::above(identity, bytes) {
        if Some(above.number) == opened || above.is_for_a_mount {
            continue;
        }
        match open_alone(&above.path, File::options().read(true)) {
            Ok(device) => claimed.push(device),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                return Err(Refusal::Claimed(above.path));
            }
            // An ordinary user may not open it, but can list the mounts.
            Err(_) if is_mounted(&above.path, above.number) => return Err(Refusal::Claimed(above.path)),
            Err(error) => {
                tracing::debug!(path = %above.path.display(), %error, "this loop device can't be claimed");
            }
        }
        claim_above(Identity::Block { number: above.number }, &WHOLE, None, depth - 1, claimed)?;
    }
    Ok(())
}

/// Opens a block device exclusively.
pub(super) fn open_alone(path: &Path, how: &mut fs::OpenOptions) -> io::Result<File> {
    // Only for block devices: for them the kernel takes O_EXCL to mean "no mounted filesystem and
    // no other exclusive opener".
    how.custom_flags(libc::O_EXCL).open(path)
}

/// Opens what is below a loop device; `None` if it can't be opened, or is something else by now.
fn open_below(below: &Below, use_: Use) -> Result<Option<File>, Refusal> {
    let is_it = |metadata: io::Result<fs::Metadata>| {
        metadata.is_ok_and(|metadata| Identity::of(&metadata) == below.identity)
    };
    // An unrelated file at that path is not opened: merely opening it can have effects.
    if !is_it(fs::metadata(&below.path)) {
        tracing::debug!(path = %below.path.display(), "what lies below this loop device is not there");
        return Ok(None);
    }
    let mut how = File::options();
    how.read(true).write(use_ == Use::Write);
    let device = matches!(below.identity, Identity::Block { .. });
    let whole_device = device && below.bytes == WHOLE && use_ != Use::Beside;
    let opened = if whole_device { open_alone(&below.path, &mut how) } else { how.open(&below.path) };
    match opened {
        Ok(file) => Ok(is_it(file.metadata()).then_some(file)),
        Err(error) if whole_device && error.raw_os_error() == Some(libc::EBUSY) => {
            Err(Refusal::Claimed(below.path.clone()))
        }
        Err(error) => {
            tracing::debug!(path = %below.path.display(), %error, "what lies below this loop device can't be opened");
            Ok(None)
        }
    }
}

/// True if it is mounted, as far as this process can see.
fn is_mounted(path: &Path, number: u64) -> bool {
    let device = format!("{}:{}", libc::major(number), libc::minor(number));
    crate::mounts().is_ok_and(|mounts| {
        mounts.iter().any(|mount| mount.device == device || Path::new(&mount.source) == path)
    })
}
