//! The thread that ends a device: when it was fenced, or when the cluster is away for too long.

use super::bounded::bounded;
use super::broken::Broken;
use super::cluster::{Cluster, Pool, Purpose};
use super::error::RbdError;
use super::flights::{Flights, Task};
use super::holder::LockHolder;
use super::image::Image;
use super::library::libraries;
use super::spec::{RbdOptions, RbdSpec};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Watches over the operations of a device until it is closed and all are answered.
fn run(flights: &Flights, ours: &str, spec: &RbdSpec, options: &RbdOptions) {
    match flights.next_task(options.wait) {
        Task::Explain(errno) => {
            let holder = look(ours, spec, options);
            flights.break_off(&Broken::Fenced { errno, holder });
        }
        Task::End => {}
    }
}

/// The present holder of the lock. A client that was fenced gets no answers any more, so another one
/// asks.
fn look(ours: &str, spec: &RbdSpec, options: &RbdOptions) -> Option<LockHolder> {
    let (ours, spec, started) = (ours.to_owned(), spec.clone(), Instant::now());
    let limit = options.name_wait;
    let options = RbdOptions { open_limit: limit, ..options.clone() };
    let asked = bounded(limit, "rbd-look", move || -> Result<Option<LockHolder>, RbdError> {
        let cluster = Cluster::connect(libraries()?, &spec, &options, Purpose::Look)?;
        let image = Image::open(Pool::open(cluster, &spec)?, &spec, true)?;
        let failed = RbdError::errno("find the holder of the lock");
        // A client that takes over fences first, and has the lock a little later.
        while started.elapsed() < limit {
            let locker = image.locker().map_err(&failed)?;
            if let Some(locker) = locker.filter(|locker| locker.client != ours) {
                let holder = image.describe(&locker).map_err(&failed)?;
                // It introduces itself when it has the lock.
                if holder.about.is_some() || started.elapsed() > limit / 2 {
                    // Closing takes longer than the answer may.
                    std::thread::spawn(move || drop(image));
                    return Ok(Some(holder));
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(None)
    });
    match asked.and_then(|answer| answer) {
        Ok(holder) => holder,
        Err(error) => {
            tracing::warn!("the holder of the image's lock is not known: {error}");
            None
        }
    }
}

/// Starts the thread. `ours` is the device's name in the cluster.
pub(super) fn start(
    flights: &Arc<Flights>,
    ours: String,
    spec: &RbdSpec,
    options: &RbdOptions,
) -> Result<(), RbdError> {
    let (flights, spec, options) = (flights.clone(), spec.clone(), options.clone());
    let started = std::thread::Builder::new()
        .name("rbd-sentinel".to_owned())
        .spawn(move || run(&flights, &ours, &spec, &options));
    started.map(drop).map_err(|source| RbdError::refused("start a thread", source))
}
