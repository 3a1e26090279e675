//! The device lease: who takes it, and what its errors are for the caller.

use crate::How;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::{Device, DeviceError, block_on};
use syncline_format::superblock::FEATURE_LEASE;
use syncline_lease::{
    BootClock, Clock, LEASE_OFFSET, LeaseError, LeaseOptions, LeaseState, Leased, Permit, look,
};
use syncline_net::nbd::{Fence, ReadBlock};

/// Takes the lease of a device. `over_unknown` allows to take a block that holds something else,
/// when an image is made there; `cached_by_server`, that reads come from a cache that all hosts
/// share.
pub(crate) fn take(
    device: Arc<dyn Device>,
    name: &str,
    how: &How,
    over_unknown: bool,
    cached_by_server: bool,
) -> Result<Arc<Leased>, DeviceError> {
    let options = LeaseOptions { over_unknown, cached_by_server, ..how.lease.clone() };
    #[cfg(feature = "canaries")]
    let options = crate::canaries::lease(options);
    let mut progress = |step: syncline_lease::Progress<'_>| match &how.waiting {
        Some(waiting) => waiting(&step),
        None => ControlFlow::Continue(()),
    };
    let taken = match how.take_over {
        Some(take_over) => Leased::take_over(device, &options, take_over, &mut progress),
        None => Leased::acquire(device, &options, &mut progress),
    };
    taken.map_err(|error| refused(name, error))
}

/// Refuses a device that can only be read while somebody has its lease. It waits for the holder as
/// a writer does: until the holder renews, or has certainly died. Nothing keeps others from taking it later.
pub(crate) fn require_free(
    device: &Arc<dyn Device>,
    name: &str,
    how: &How,
    cached_by_server: bool,
) -> Result<(), DeviceError> {
    const POLL: Duration = Duration::from_millis(500);
    let refused = |error| refused(name, error);
    let held = || match block_on(look(device)) {
        Ok(found) => Ok(found.filter(|lease| lease.state != LeaseState::Released)),
        Err(error) => Err(refused(error)),
    };
    let Some(first) = held()? else { return Ok(()) };
    let in_use = |lease| Err(refused(LeaseError::InUse(Box::new(lease))));
    if !device.reads_bypass_caches() && !cached_by_server {
        // A renewal would not be seen.
        return in_use(first);
    }
    let lasts = Duration::from_millis(u64::from(first.duration_ms) + u64::from(first.guard_ms));
    // Clocks may differ by an eighth.
    let (wait, clock) = (lasts * 9 / 8, BootClock);
    let began = clock.now();
    loop {
        // The beginning of the read counts.
        let left = (began + wait).saturating_sub(clock.now());
        match held()? {
            None => return Ok(()),
            Some(lease) if lease != first => return in_use(lease),
            Some(_) if left.is_zero() => return Ok(()),
            Some(lease) => {
                let step = syncline_lease::Progress::Holder { lease: &lease, left };
                if how.waiting.as_ref().is_some_and(|waiting| waiting(&step).is_break()) {
                    return Err(refused(LeaseError::Interrupted));
                }
            }
        }
        std::thread::sleep(POLL);
    }
}

/// True if every writer must hold the lease: the superblocks say so, or somebody has had it, and the
/// superblocks can't be read. A device without a filesystem demands nothing.
pub(crate) fn is_demanded(device: &Arc<dyn Device>) -> bool {
    match block_on(syncline_store::read_superblocks(device)) {
        Ok(slots) => slots.superblock.features & FEATURE_LEASE != 0,
        Err(_) => matches!(block_on(look(device)), Ok(Some(_))),
    }
}

/// A lease that was not got, as the error of opening the image.
fn refused(name: &str, error: LeaseError) -> DeviceError {
    let kind = match &error {
        LeaseError::InUse(_) | LeaseError::TakenMeanwhile(_) | LeaseError::Resists(_) => {
            io::ErrorKind::ResourceBusy
        }
        LeaseError::Device(error) => error.io_error().map_or(io::ErrorKind::Other, |error| error.kind()),
        LeaseError::Interrupted => io::ErrorKind::Interrupted,
        _ => io::ErrorKind::Other,
    };
    DeviceError::Open { path: name.to_owned(), source: Arc::new(io::Error::new(kind, error)) }
}

/// Keeps an NBD client from sending anything again when another host has taken the lease.
pub(crate) struct LeaseFence(pub(crate) Permit);

impl Fence for LeaseFence {
    fn may_write(&self, image: &mut dyn ReadBlock) -> Result<(), DeviceError> {
        let mut block = vec![0; syncline_device::BLOCK_BYTES];
        image.read_block(LEASE_OFFSET, &mut block)?;
        Ok(self.0.check_block(&block)?)
    }

    fn may_still_write(&self) -> Result<(), DeviceError> {
        Ok(self.0.check()?)
    }

    fn may_send(&self) -> Result<(), DeviceError> {
        Ok(self.0.check_begun()?)
    }
}
