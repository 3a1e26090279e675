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
use std::time::Duration;

/// How long those who wait for an answer wait for the name of who has the lock.
const LOOK_LIMIT: Duration = Duration::from_secs(1);

/// Watches over the operations of a device until it is closed and all are answered.
pub(super) fn run(flights: &Flights, spec: &RbdSpec, options: &RbdOptions) {
    match flights.next_task(options.wait) {
        Task::Explain(errno) => {
            let holder = look(spec, options);
            flights.break_off(&Broken::Fenced { errno, holder });
        }
        Task::End => {}
    }
}

/// Who has the lock now. A client that was fenced is told nothing any more, so another one asks.
fn look(spec: &RbdSpec, options: &RbdOptions) -> Option<LockHolder> {
    let spec = spec.clone();
    let options = RbdOptions { open_limit: LOOK_LIMIT, ..options.clone() };
    let asked = bounded(LOOK_LIMIT, "rbd-look", move || -> Result<Option<LockHolder>, RbdError> {
        let cluster = Cluster::connect(libraries()?, &spec, &options, Purpose::Look)?;
        let image = Image::open(Pool::open(cluster, &spec)?, &spec, true)?;
        let holder = image.lock_holder().map_err(RbdError::errno("find out who has the lock"))?;
        // Closing takes longer than the answer may.
        std::thread::spawn(move || drop(image));
        Ok(holder)
    });
    match asked.and_then(|answer| answer) {
        Ok(holder) => holder,
        Err(error) => {
            tracing::warn!("who has the lock of the image is not known: {error}");
            None
        }
    }
}

/// Starts the thread.
pub(super) fn start(flights: &Arc<Flights>, spec: &RbdSpec, options: &RbdOptions) -> Result<(), RbdError> {
    let (flights, spec, options) = (flights.clone(), spec.clone(), options.clone());
    let started = std::thread::Builder::new()
        .name("rbd-sentinel".to_owned())
        .spawn(move || run(&flights, &spec, &options));
    started.map(drop).map_err(|source| RbdError::refused("start a thread", source))
}
