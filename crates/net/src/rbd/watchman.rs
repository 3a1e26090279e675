//! The thread that looks now and then whether the image is still ours.
//!
//! An operation that meets a fence says so. A device that is idle, or that reads data from its memory,
//! would not notice; and a lock can be taken away without a fence, by somebody who has switched fencing
//! off.

use super::broken::Broken;
use super::claims::{Claims, RENEWED_EVERY};
use super::error::RbdError;
use super::flights::Flights;
use super::image::Image;
use super::lock;
use super::spec::{Canary, RbdOptions};
use std::sync::Arc;
use std::thread::JoinHandle;

/// The state of the lock that has to remain.
pub(super) enum Expected {
    /// We have the lock, under this name.
    Ours(String),
    /// Nobody has it who is alive.
    Nobodys,
    /// Any state: only data that does not change is read.
    Anything,
}

/// Looks until the device is closed or broken. The calls wait for the cluster as long as it takes,
/// which is why another thread ends the device (`sentinel.rs`).
fn run(flights: &Flights, image: &Image, claims: &Claims, expected: &Expected, options: &RbdOptions) {
    while flights.works_after(options.check_every.min(RENEWED_EVERY)) {
        check_lock(flights, image, expected);
        if let Ok(now_bytes) = image.size_bytes() {
            let before_bytes = flights.size_bytes();
            if now_bytes < before_bytes {
                // librbd cuts writes off at the end of the image and calls them done.
                flights.break_off(&Broken::Shrunk { before_bytes, now_bytes });
            }
        }
        if let Some(number) = claims.renew() {
            flights.break_off(&Broken::Unclaimed { number });
        }
    }
}

fn check_lock(flights: &Flights, image: &Image, expected: &Expected) {
    match expected {
        Expected::Ours(name) => match image.locker() {
            Ok(locker) if locker.as_ref().is_none_or(|locker| locker.client != *name) => flights.doubt(None),
            Err(errno) if errno.means_fenced() => flights.doubt(Some(errno)),
            // The cluster may be away; it tells the next time.
            _ => {}
        },
        Expected::Nobodys => match lock::writer(image) {
            Ok(Some(holder)) => flights.break_off(&Broken::Written { holder }),
            Err(errno) if errno.means_fenced() => flights.doubt(Some(errno)),
            _ => {}
        },
        Expected::Anything => {}
    }
}

/// Starts the thread.
pub(super) fn start(
    flights: &Arc<Flights>,
    image: &Arc<Image>,
    claims: &Arc<Claims>,
    expected: Expected,
    options: &RbdOptions,
) -> Result<JoinHandle<()>, RbdError> {
    let expected = match options.canary {
        Some(Canary::AutomaticLock | Canary::Unfenced) => Expected::Anything,
        None => expected,
    };
    let (flights, image, claims) = (flights.clone(), image.clone(), claims.clone());
    let options = options.clone();
    std::thread::Builder::new()
        .name("rbd-watchman".to_owned())
        .spawn(move || run(&flights, &image, &claims, &expected, &options))
        .map_err(|source| RbdError::refused("start a thread", source))
}
