//! The lock on an image: nobody else may write it (promise P7).
//!
//! It is RBD's exclusive lock, taken with `rbd_lock_acquire` before the first write and held until
//! the device is closed. That call also tells librbd to leave the lock alone. Otherwise librbd takes
//! it by itself before a write and hands it over to whoever asks, and two hosts would write in turn.
//! RBD's advisory locks play no part: they keep nobody from writing.
//!
//! **Why the former holder can't write.** Before its lock is broken, its client is put on the cluster's
//! blocklist, by its address, which no other client ever has. It stays there for ten years: Ceph's own
//! hour is too short for a process that is stopped overnight (`cluster.rs`). We wait until our own
//! client knows the map of the cluster that says so, and break the lock then. An OSD answers a request
//! only when it knows a map at least as new as the sender's. So an OSD that has answered anything of
//! the new holder's refuses all of the former holder's requests, also those that were sent before the
//! take-over and arrive only now. (`rbd_lock_break` does the same steps, for an hour.)
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
use super::image::{Image, Locker};
use super::spec::{Canary, RbdOptions, RbdSpec};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Between two looks at a lock that is held.
const PAUSE: Duration = Duration::from_millis(100);
const LOOK: &str = "find out who has the lock";
/// How often a lock may be lost to others that come at the same moment.
const TRIES: u32 = 5;

/// Takes the lock of an image that nobody has; returns the name under which we have it.
pub(super) fn acquire(image: &Image, spec: &RbdSpec, options: &RbdOptions) -> Result<String, RbdError> {
    check_lockable(image, spec)?;
    if options.canary == Some(Canary::AutomaticLock) {
        return Ok(String::new());
    }
    let give_up = Instant::now() + options.lock_wait;
    let mut tries = 0;
    while tries < TRIES {
        if let Some(locker) = locker(image, spec)? {
            let holder = describe(image, &locker)?;
            if !holder.alive {
                fence(image, spec, options, &locker, holder)?;
            } else if Instant::now() >= give_up {
                // librbd would ask it to hand the lock over, which others do: a virtual machine, for
                // one, without noticing what that means.
                return Err(RbdError::InUse { holder });
            } else {
                sleep(PAUSE);
                continue;
            }
        }
        match try_acquire(image)? {
            Some(name) => return Ok(name),
            None => tries += 1,
        }
    }
    Err(lost(image, spec))
}

/// Takes the lock from whoever has it.
pub(super) fn take_over(image: &Image, spec: &RbdSpec, options: &RbdOptions) -> Result<String, RbdError> {
    check_lockable(image, spec)?;
    if options.canary == Some(Canary::AutomaticLock) {
        return Ok(String::new());
    }
    for _ in 0..TRIES {
        if let Some(locker) = locker(image, spec)? {
            let holder = describe(image, &locker)?;
            fence(image, spec, options, &locker, holder)?;
        }
        if let Some(name) = try_acquire(image)? {
            return Ok(name);
        }
    }
    Err(lost(image, spec))
}

/// Keeps a holder from writing, and takes its lock away. If another one has the lock by now, that
/// one keeps it.
fn fence(
    image: &Image,
    spec: &RbdSpec,
    options: &RbdOptions,
    locker: &Locker,
    holder: LockHolder,
) -> Result<(), RbdError> {
    if options.canary != Some(Canary::Unfenced) {
        image.pool.cluster.fence(&locker.address).map_err(|errno| match errno {
            Errno(libc::EPERM | libc::EACCES) => {
                RbdError::MayNotFence { entity: spec.entity(), holder: holder.clone() }
            }
            errno => RbdError::refused("fence the former holder", errno.io()),
        })?;
        tracing::warn!("{holder} is fenced from {spec} now");
    }
    match image.remove_locker(locker) {
        Ok(()) | Err(Errno(libc::ENOENT)) => Ok(()),
        Err(errno) => Err(RbdError::refused("break the lock", errno.io())),
    }
}

/// Refuses a reader while the image has a holder.
pub(super) fn check_unused(image: &Image) -> Result<(), RbdError> {
    match image.locker().map_err(RbdError::errno(LOOK))? {
        // An advisory lock guards nothing.
        Some(locker) if !locker.by_hand => Err(RbdError::InUse { holder: describe(image, &locker)? }),
        _ => Ok(()),
    }
}

fn check_lockable(image: &Image, spec: &RbdSpec) -> Result<(), RbdError> {
    match image.is_lockable().map_err(RbdError::errno("read the image's features"))? {
        true => Ok(()),
        false => Err(RbdError::NotLockable { image: spec.plain() }),
    }
}

/// Who has the lock. A lock that was taken by hand is nobody's to break.
fn locker(image: &Image, spec: &RbdSpec) -> Result<Option<Locker>, RbdError> {
    match image.locker().map_err(RbdError::errno(LOOK))? {
        Some(Locker { by_hand: true, client, .. }) => {
            Err(RbdError::LockedByHand { client, image: spec.plain() })
        }
        locker => Ok(locker),
    }
}

fn describe(image: &Image, locker: &Locker) -> Result<LockHolder, RbdError> {
    image.describe(locker).map_err(RbdError::errno(LOOK))
}

/// The name under which we have the lock, or `None` if somebody else was faster.
fn try_acquire(image: &Image) -> Result<Option<String>, RbdError> {
    match image.acquire() {
        Ok(()) => {}
        Err(Errno(libc::EROFS | libc::EBUSY | libc::EAGAIN)) => return Ok(None),
        Err(errno) => return Err(RbdError::refused("take the lock", errno.io())),
    }
    let ours = image.pool.cluster.client();
    // Somebody may have taken it over meanwhile.
    if image.locker().map_err(RbdError::errno(LOOK))?.is_none_or(|locker| locker.client != ours) {
        return Ok(None);
    }
    image.introduce(&ours);
    Ok(Some(ours))
}

fn lost(image: &Image, spec: &RbdSpec) -> RbdError {
    match locker(image, spec).and_then(|locker| locker.map(|locker| describe(image, &locker)).transpose()) {
        Ok(Some(holder)) => RbdError::InUse { holder },
        Ok(None) => RbdError::refused("take the lock", Errno(libc::EBUSY).io()),
        Err(error) => error,
    }
}
