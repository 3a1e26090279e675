//! The lock on an image: nobody else may write it (promise P7).
//!
//! It is RBD's exclusive lock, taken with `rbd_lock_acquire` before the first write and held until
//! the device is closed. That call also tells librbd to leave the lock alone. Otherwise librbd takes
//! it by itself before a write and hands it over to whoever asks, and two hosts would write in turn.
//! RBD's advisory locks play no part: they keep nobody from writing.
//!
//! **Why the former holder can't write.** Breaking a lock puts its holder on the cluster's blocklist
//! first, as a client with a number that no other client ever has. It ends after ten years
//! (`cluster.rs`). librbd waits until its own client knows the map of the cluster that says so, and
//! takes the lock then. An OSD answers a request only when it knows a map at least as new as the
//! sender's. So an OSD that has answered anything of the new holder's refuses all of the former
//! holder's requests, also those that were sent before the take-over and arrive only now.
//!
//! An OSD that has answered nothing of the new holder's yet may still take a write of the former one.
//! To everybody that is a write from before the take-over: whatever the new holder reads or writes
//! there comes after it. So what the former holder acknowledged because of it is there when the new
//! one looks, and what the new holder has looked at does not change any more.
//!
//! **A holder that died** leaves its lock behind. Its watch on the image runs out 30 s after its
//! last sign of life. Then whoever opens the image for writing breaks the lock as above.
//!
//! **Readers.** The exclusive lock has no other side, so readers take none. A reader is refused while
//! the image has a lock, and fails from the next check on when somebody has taken it
//! (`watchman.rs`). A writer is not refused because of readers. The difference to image files: there
//! a reader keeps writers out. Here it may read blocks while they change, and their checksums tell
//! (promise P4); a writer that comes and goes between two checks is not noticed.

use super::error::{Errno, RbdError};
use super::holder::LockHolder;
use super::image::Image;
use super::spec::{Canary, RbdOptions, RbdSpec};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Between two looks at a lock that is held.
const PAUSE: Duration = Duration::from_millis(100);
/// How often a lock may be lost to others that come at the same moment.
const TRIES: u32 = 5;

/// Takes the lock of an image that nobody has; returns the address under which we have it.
pub(super) fn acquire(image: &Image, spec: &RbdSpec, options: &RbdOptions) -> Result<String, RbdError> {
    check_lockable(image, spec)?;
    if options.canary == Some(Canary::AutomaticLock) {
        return Ok(String::new());
    }
    let give_up = Instant::now() + options.lock_wait;
    let mut tries = 0;
    loop {
        match holder(image)? {
            // librbd would ask it to hand the lock over, which others do: a virtual machine, for
            // one, without noticing what that means.
            Some(holder) if holder.client.is_some() => {
                if Instant::now() >= give_up {
                    return Err(RbdError::InUse { holder });
                }
                sleep(PAUSE);
                continue;
            }
            Some(dead) => tracing::warn!("{dead} left the lock of {spec} behind: it is fenced now"),
            None => {}
        }
        // This breaks the lock of a holder that has no watch any more, and only that.
        match try_acquire(image, spec)? {
            Some(address) => return Ok(address),
            None => tries += 1,
        }
        if tries >= TRIES {
            return Err(lost(image));
        }
    }
}

/// Takes the lock from whoever has it.
pub(super) fn take_over(image: &Image, spec: &RbdSpec, options: &RbdOptions) -> Result<String, RbdError> {
    check_lockable(image, spec)?;
    if options.canary == Some(Canary::AutomaticLock) {
        return Ok(String::new());
    }
    for _ in 0..TRIES {
        if let Some(holder) = holder(image)? {
            match image.break_lock(&holder.address) {
                Ok(()) => tracing::warn!("{holder} is fenced from {spec} now"),
                // It released the lock meanwhile, or another one has it.
                Err(Errno(libc::ENOENT)) => {}
                Err(Errno(libc::EBUSY)) => continue,
                Err(Errno(libc::EPERM | libc::EACCES)) => {
                    return Err(RbdError::MayNotFence { entity: spec.entity(), holder });
                }
                Err(errno) => return Err(RbdError::refused("break the lock", errno.io())),
            }
        }
        if let Some(address) = try_acquire(image, spec)? {
            return Ok(address);
        }
    }
    Err(lost(image))
}

/// Refuses a reader while the image has a holder.
pub(super) fn check_unused(image: &Image) -> Result<(), RbdError> {
    match holder(image)? {
        Some(holder) => Err(RbdError::InUse { holder }),
        None => Ok(()),
    }
}

fn check_lockable(image: &Image, spec: &RbdSpec) -> Result<(), RbdError> {
    match image.is_lockable().map_err(RbdError::errno("read the image's features"))? {
        true => Ok(()),
        false => Err(RbdError::NotLockable { image: spec.plain() }),
    }
}

fn holder(image: &Image) -> Result<Option<LockHolder>, RbdError> {
    image.lock_holder().map_err(RbdError::errno("find out who has the lock"))
}

/// The address under which we have the lock, or `None` if somebody else was faster.
fn try_acquire(image: &Image, spec: &RbdSpec) -> Result<Option<String>, RbdError> {
    match image.acquire() {
        Ok(()) => {}
        Err(Errno(libc::EROFS | libc::EBUSY | libc::EAGAIN)) => return Ok(None),
        Err(errno @ Errno(libc::EPERM | libc::EACCES)) => {
            // Only breaking a dead holder's lock takes more rights than opening the image did.
            return Err(match holder(image)? {
                Some(holder) => RbdError::MayNotFence { entity: spec.entity(), holder },
                None => RbdError::refused("take the lock", errno.io()),
            });
        }
        Err(errno) => return Err(RbdError::refused("take the lock", errno.io())),
    }
    let owner = image.lock_owner().map_err(RbdError::errno("find out who has the lock"))?;
    let address = owner.ok_or_else(|| RbdError::refused("keep the lock", Errno(libc::EBUSY).io()))?;
    image.introduce(&address);
    Ok(Some(address))
}

fn lost(image: &Image) -> RbdError {
    match holder(image) {
        Ok(Some(holder)) => RbdError::InUse { holder },
        Ok(None) => RbdError::refused("take the lock", Errno(libc::EBUSY).io()),
        Err(error) => error,
    }
}
