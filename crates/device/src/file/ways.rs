//! One image, several ways to it: its file, loop devices of it, partitions of these. A lock of the open file knows the others who came
//! the same way; here are met those who came another (promise P7).
//!
//! - Who opens a loop device locks the bytes below it as well, where one who opens the file locks them.
//! - Who opens anything for writing claims the loop devices over the same bytes, as the kernel does for a filesystem that it mounts.
//!
//! What can't be looked at (a file of another namespace, one that was deleted, one that this user may not open) keeps nobody from
//! anything: only use does.

use super::lock::lock;
use super::loops::{self, Below, Identity, WHOLE};
use super::open::Refusal;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Loop devices over loop devices; more than anybody has.
const DEPTH_MAX: usize = 8;

/// How somebody uses an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    Write,
    Read,
    /// Reads what no writer changes: in nobody's way, and nobody in its.
    Beside,
}

/// What keeps out those who come to the same bytes by another way, as long as it is open.
#[derive(Default)]
pub(crate) struct Others {
    /// The files and devices below the one that was opened, from there downwards, where they could be opened, each with the byte at
    /// which it begins there.
    pub(super) below: Vec<(File, u64)>,
    /// Loop devices over the same bytes.
    above: Vec<File>,
}

/// Meets all others.
pub(super) fn meet(file: &File, how: Use) -> Result<Others, Refusal> {
    let identity = Identity::of(&file.metadata().map_err(Refusal::Failed)?);
    let mut others = Others::default();
    if how == Use::Write {
        claim_above(identity, &WHOLE, None, DEPTH_MAX, &mut others.above)?;
    }
    let mut bytes = WHOLE;
    while others.below.len() < DEPTH_MAX {
        let Some(below) = loops::below(others.below.last().map_or(file, |(file, _)| file), &bytes) else {
            break;
        };
        bytes = below.bytes.clone();
        if how == Use::Write {
            claim_above(below.identity, &bytes, Some(below.number), DEPTH_MAX, &mut others.above)?;
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

/// Claims the loop devices over these bytes, and those over these. But for the one that was opened, which its opener claimed.
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
        if Some(above.number) == opened {
            continue;
        }
        match open_alone(&above.path, File::options().read(true)) {
            Ok(device) => claimed.push(device),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                return Err(Refusal::Claimed(above.path));
            }
            // An ordinary user may not open it, but can see what is mounted.
            Err(_) if is_mounted(&above.path, above.number) => return Err(Refusal::Claimed(above.path)),
            Err(error) => {
                tracing::debug!(path = %above.path.display(), %error, "this loop device can't be claimed");
            }
        }
        claim_above(Identity::Block { number: above.number }, &WHOLE, None, depth - 1, claimed)?;
    }
    Ok(())
}

/// Opens a block device as the only one.
pub(super) fn open_alone(path: &Path, how: &mut fs::OpenOptions) -> io::Result<File> {
    // Only for block devices: there the kernel takes it as "no mounted filesystem and nobody else who asked".
    how.custom_flags(libc::O_EXCL).open(path)
}

/// Opens what lies below a loop device; `None` where it can't be had, or is something else by now.
fn open_below(below: &Below, use_: Use) -> Result<Option<File>, Refusal> {
    let is_it = |metadata: io::Result<fs::Metadata>| {
        metadata.is_ok_and(|metadata| Identity::of(&metadata) == below.identity)
    };
    // Nothing that lies there by chance is opened: opening alone can have effects.
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

/// True if the kernel has mounted it, where this process sees it.
fn is_mounted(path: &Path, number: u64) -> bool {
    let device = format!("{}:{}", libc::major(number), libc::minor(number));
    crate::mounts().is_ok_and(|mounts| {
        mounts.iter().any(|mount| mount.device == device || Path::new(&mount.source) == path)
    })
}
