//! Claims on Syncline's snapshots in the image: who mounts one keeps others from deleting it.
//!
//! A claim is a RADOS lock of the snapshot's number on the image's header object, which is where
//! RBD's own lock is. It ends by itself a minute after it was last renewed, so that a reader that
//! died keeps nobody waiting for long.

use super::cluster::c_string;
use super::error::{Errno, RbdError};
use super::image::Image;
use super::library::LOCK_MAY_RENEW;
use libc::timeval;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::time::Duration;
use syncline_device::Claim;

/// How long a claim lasts that is not renewed.
const LASTS: Duration = Duration::from_secs(60);
/// The longest time between renewals.
pub(super) const RENEWED_EVERY: Duration = Duration::from_secs(15);
/// The device among the locks of its client: each device is a client of its own.
const COOKIE: &CStr = c"syncline";
/// `LIBRADOS_LOCK_FLAG_MUST_RENEW`: fails if the lock has ended.
const LOCK_MUST_RENEW: u8 = 2;

/// The claims of one device.
pub(super) struct Claims {
    image: Arc<Image>,
    held: Mutex<BTreeMap<u64, Claim>>,
}

impl Claims {
    pub(super) fn new(image: Arc<Image>) -> Arc<Self> {
        Arc::new(Self { image, held: Mutex::default() })
    }

    /// Claims a snapshot, or gives up the claim; false if others have it.
    pub(super) fn claim(&self, number: u64, claim: Claim) -> Result<bool, RbdError> {
        let mut held = self.held.lock();
        let failed = RbdError::errno("claim the snapshot");
        if claim == Claim::Released {
            held.remove(&number);
            return match self.unlock(number)? {
                Ok(()) | Err(Errno(libc::ENOENT)) => Ok(true),
                Err(errno) => Err(failed(errno)),
            };
        }
        match self.lock(number, claim, LOCK_MAY_RENEW)? {
            Ok(()) => {
                held.insert(number, claim);
                Ok(true)
            }
            Err(Errno(libc::EBUSY)) => Ok(false),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Renews all claims; returns the number of one that has ended.
    pub(super) fn renew(&self) -> Option<u64> {
        let mut held = self.held.lock();
        let ended = |(&number, &claim): (&u64, &Claim)| match self.lock(number, claim, LOCK_MUST_RENEW) {
            Ok(Err(Errno(libc::ENOENT | libc::EBUSY))) => Some(number),
            _ => None,
        };
        let ended = held.iter().find_map(ended)?;
        held.remove(&ended);
        Some(ended)
    }

    fn lock(&self, number: u64, claim: Claim, flags: u8) -> Result<Result<(), Errno>, RbdError> {
        let (header, name) = (self.header()?, name(number)?);
        let pool = &self.image.pool;
        let rados = &pool.cluster.libraries.rados;
        let mut lasts = timeval { tv_sec: LASTS.as_secs() as _, tv_usec: 0 };
        let (header, name, cookie) = (header.as_ptr(), name.as_ptr(), COOKIE.as_ptr());
        // SAFETY: the pool is open; all strings end with a zero; the duration is valid for the call.
        let locked = unsafe {
            match claim {
                Claim::Shared => (rados.rados_lock_shared)(
                    pool.handle,
                    header,
                    name,
                    cookie,
                    COOKIE.as_ptr(),
                    c"".as_ptr(),
                    &raw mut lasts,
                    flags,
                ),
                _ => (rados.rados_lock_exclusive)(
                    pool.handle,
                    header,
                    name,
                    cookie,
                    c"".as_ptr(),
                    &raw mut lasts,
                    flags,
                ),
            }
        };
        Ok(Errno::check(locked.into()).map(drop))
    }

    fn unlock(&self, number: u64) -> Result<Result<(), Errno>, RbdError> {
        let (header, name) = (self.header()?, name(number)?);
        let pool = &self.image.pool;
        let unlock = pool.cluster.libraries.rados.rados_unlock;
        // SAFETY: the pool is open; all strings end with a zero.
        let unlocked = unsafe { unlock(pool.handle, header.as_ptr(), name.as_ptr(), COOKIE.as_ptr()) };
        Ok(Errno::check(unlocked.into()).map(drop))
    }

    fn header(&self) -> Result<CString, RbdError> {
        self.image.header().map_err(RbdError::errno("read the image's id"))
    }
}

fn name(number: u64) -> Result<CString, RbdError> {
    c_string("a lock", format!("syncline.snapshot.{number}"))
}
