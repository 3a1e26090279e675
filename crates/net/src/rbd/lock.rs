//! The lock on an image: nobody else may write it (promise P7).
//!
//! It is RBD's exclusive lock, taken with `rbd_lock_acquire` before the first write and held until the
//! device is closed. That call also tells librbd to leave the lock alone. Otherwise librbd takes it by
//! itself before a write and hands it over to any client that asks, and two hosts would write in turn.
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
//! To everybody that is a write from before the take-over: all reads and writes of the new holder there
//! come after it. So everything that the former holder acknowledged because of it is there when the new
//! holder looks, and contents that the new holder has read do not change any more.
//!
//! **A holder that died** leaves its lock behind. Its watch on the image runs out 30 s after its last
//! sign of life. Then the next client that opens the image for writing breaks the lock as above.
//!
//! **A lock that was taken away by hand**, with fencing switched off, leaves a holder that writes until
//! it looks for its lock the next time. That holder has its name in the image's metadata, and it has
//! the image open: so the next holder fences it first. (A holder that is cut off at that moment is not
//! seen.)
//!
//! **Readers.** The exclusive lock has no shared form, so readers take none. A reader is refused while
//! a living client has the lock. A reader fails at the first check that finds a living holder
//! (`watchman.rs`): a new one, or one that was cut off and is back. The lock of a dead holder keeps
//! nobody from reading. A writer is not refused because of readers. Image files differ: there a reader
//! keeps writers out. Here a reader may read blocks while they change, and their checksums tell
//! (promise P4); it does not notice a writer that comes and goes between two checks.

use super::error::{Errno, RbdError};
use super::holder::LockHolder;
use super::image::{Image, Locker};
use super::spec::{Canary, RbdOptions, RbdSpec};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Between two looks at a lock that is held.
const PAUSE: Duration = Duration::from_millis(100);
const LOOK: &str = "find the holder of the lock";
/// How long a client may keep an image open after it has released its lock.
const LEAVING: Duration = Duration::from_secs(1);
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
        match locker(image, spec)? {
            None => fence_who_lost_it(image, spec, options)?,
            Some(locker) => {
                let holder = describe(image, &locker)?;
                if holder.alive && Instant::now() >= give_up {
                    // librbd would ask the holder to hand the lock over. Other programs do that: a
                    // virtual machine, for one, without noticing the consequences.
                    return Err(RbdError::InUse { holder });
                }
                if holder.alive {
                    sleep(PAUSE);
                    continue;
                }
                break_lock(image, spec, options, &locker, &holder)?;
            }
        }
        match try_acquire(image)? {
            Some(name) => return Ok(name),
            None => tries += 1,
        }
    }
    Err(lost(image, spec))
}

/// Takes the lock from its present holder.
pub(super) fn take_over(image: &Image, spec: &RbdSpec, options: &RbdOptions) -> Result<String, RbdError> {
    check_lockable(image, spec)?;
    if options.canary == Some(Canary::AutomaticLock) {
        return Ok(String::new());
    }
    for _ in 0..TRIES {
        match locker(image, spec)? {
            None => fence_who_lost_it(image, spec, options)?,
            Some(locker) => break_lock(image, spec, options, &locker, &describe(image, &locker)?)?,
        }
        if let Some(name) = try_acquire(image)? {
            return Ok(name);
        }
    }
    Err(lost(image, spec))
}

/// Keeps a holder from writing, and takes its lock away. If another one has the lock by now, that
/// one keeps it.
fn break_lock(
    image: &Image,
    spec: &RbdSpec,
    options: &RbdOptions,
    locker: &Locker,
    holder: &LockHolder,
) -> Result<(), RbdError> {
    fence(image, spec, options, holder)?;
    match image.remove_locker(locker) {
        Ok(()) | Err(Errno(libc::ENOENT)) => Ok(()),
        Err(errno) => Err(RbdError::refused("break the lock", errno.io())),
    }
}

/// Nobody has the lock. It may have been taken away without a fence, by hand, from a Syncline that
/// has not noticed yet and goes on writing: that one is fenced. One that is just closing the image is
/// given the time to go.
fn fence_who_lost_it(image: &Image, spec: &RbdSpec, options: &RbdOptions) -> Result<(), RbdError> {
    let until = Instant::now() + LEAVING;
    while let Some(holder) = image.last_holder().map_err(RbdError::errno(LOOK))? {
        if Instant::now() >= until {
            return fence(image, spec, options, &holder);
        }
        sleep(PAUSE);
    }
    Ok(())
}

/// Keeps a client from ever writing again.
fn fence(image: &Image, spec: &RbdSpec, options: &RbdOptions, holder: &LockHolder) -> Result<(), RbdError> {
    if options.canary == Some(Canary::Unfenced) {
        return Ok(());
    }
    image.pool.cluster.fence(&holder.address).map_err(|errno| match errno {
        Errno(libc::EPERM | libc::EACCES) => {
            RbdError::MayNotFence { entity: spec.entity(), holder: holder.clone() }
        }
        errno => RbdError::refused("fence the former holder", errno.io()),
    })?;
    tracing::warn!("{holder} is fenced from {spec} now");
    Ok(())
}

/// Refuses a reader while the image has a holder.
pub(super) fn check_unused(image: &Image) -> Result<(), RbdError> {
    match writer(image).map_err(RbdError::errno(LOOK))? {
        Some(holder) => Err(RbdError::InUse { holder }),
        None => Ok(()),
    }
}

/// The client that may write to an image that we only read. An advisory lock guards nothing, and a
/// holder that the cluster has lost touch with writes nothing before it is alive again.
pub(super) fn writer(image: &Image) -> Result<Option<LockHolder>, Errno> {
    let locker = image.locker()?.filter(|locker| !locker.by_hand);
    let holder = locker.map(|locker| image.describe(&locker)).transpose()?;
    Ok(holder.filter(|holder| holder.alive))
}

fn check_lockable(image: &Image, spec: &RbdSpec) -> Result<(), RbdError> {
    match image.is_lockable().map_err(RbdError::errno("read the image's features"))? {
        true => Ok(()),
        false => Err(RbdError::NotLockable { image: spec.plain() }),
    }
}

/// The client that has the lock. It is an error if the lock was taken by hand: nobody may break that.
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
