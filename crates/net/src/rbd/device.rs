//! An RBD image as a device.

use super::bounded::bounded;
use super::claims::Claims;
use super::cluster::{Cluster, Pool, Purpose};
use super::error::RbdError;
use super::flight::{Flight, Request, is_librbds_thread};
use super::flights::{Begun, Done, Flights, Pending};
use super::image::Image;
use super::library::libraries;
use super::lock;
use super::sentinel;
use super::spec::{RbdOptions, RbdSpec};
use super::watchman::{self, Expected};
use crate::NetCounters;
use bytes::Bytes;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use syncline_device::{AlignedBuf, BLOCK_BYTES, Claim, Completion, Device, DeviceError, Operation};

/// How long dropping a device waits for the cluster to release its lock. A lock that is not
/// released is found ownerless after 30 s (`lock.rs`).
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// An image of a Ceph cluster.
///
/// For writing, it is locked against every other client from before the first read until it is
/// dropped (promise P7). librbd's threads serve it, so open it after any fork.
pub struct RbdDevice {
    parts: Option<Parts>,
    flights: Arc<Flights>,
    options: RbdOptions,
    spec: RbdSpec,
    /// One enlargement at a time.
    growing: Arc<Mutex<()>>,
}

/// The parts that have to be closed, off librbd's threads.
struct Parts {
    image: Arc<Image>,
    claims: Arc<Claims>,
    watchman: JoinHandle<()>,
}

/// How to come by an image.
#[derive(Clone, Copy)]
enum Way {
    Open,
    TakeOver,
}

impl RbdDevice {
    /// Opens an image. For writing, it must not be in use; a lock that a dead client left behind is
    /// broken. Read-only, it must not be in use either, unless only data that does not change is read
    /// ([`RbdOptions::beside_writer`]).
    pub fn open(spec: &RbdSpec, options: &RbdOptions) -> Result<Arc<Self>, DeviceError> {
        Self::by(Way::Open, spec, options).map_err(|error| error.opening(spec))
    }

    /// Opens an image for writing, and keeps its present holder from ever writing it again.
    pub fn take_over(spec: &RbdSpec, options: &RbdOptions) -> Result<Arc<Self>, DeviceError> {
        let options = RbdOptions { read_only: false, beside_writer: false, ..options.clone() };
        Self::by(Way::TakeOver, spec, &options).map_err(|error| error.opening(spec))
    }

    /// Creates an image of this size (rounded down to a multiple of 4096) and opens it. It is thin:
    /// the cluster finds the room when something is written.
    pub fn create(spec: &RbdSpec, size_bytes: u64, options: &RbdOptions) -> Result<Arc<Self>, DeviceError> {
        let options = RbdOptions { read_only: false, beside_writer: false, ..options.clone() };
        let size_bytes = size_bytes - size_bytes % BLOCK_BYTES as u64;
        in_pool(spec, &options, move |pool, spec| Image::create(pool, spec, size_bytes))
            .and_then(|()| Self::by(Way::Open, spec, &options))
            .map_err(|error| error.creating(spec))
    }

    /// Removes an image that nobody has open.
    pub fn remove(spec: &RbdSpec, options: &RbdOptions) -> Result<(), DeviceError> {
        in_pool(spec, options, Image::remove).map_err(|error| error.opening(spec))
    }

    fn by(way: Way, spec: &RbdSpec, options: &RbdOptions) -> Result<Arc<Self>, RbdError> {
        let read_only = options.read_only || options.beside_writer;
        let options = RbdOptions { read_only, ..options.clone() };
        let (work_spec, work_options) = (spec.clone(), options.clone());
        let limit = options.open_limit + options.lock_wait;
        let (image, expected, size_bytes) =
            bounded(limit, "rbd-open", move || prepare(way, &work_spec, &work_options))??;
        let size_bytes = size_bytes - size_bytes % BLOCK_BYTES as u64;
        tracing::debug!(image = %spec, size_bytes, read_only, "device opened");
        let flights = Flights::new(spec.to_string(), spec.pool.clone(), size_bytes);
        let ours = image.pool.cluster.client();
        let image = Arc::new(image);
        let claims = Claims::new(image.clone());
        let watchman = watchman::start(&flights, &image, &claims, expected, &options)?;
        let parts = Some(Parts { image, claims, watchman });
        let device = Self { parts, flights, options, spec: spec.clone(), growing: Arc::default() };
        sentinel::start(&device.flights, ours, spec, &device.options)?;
        Ok(Arc::new(device))
    }

    /// True if it refuses changes.
    pub fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    /// Why it answers nothing any more: it was fenced, or the cluster was away for too long.
    pub fn broken(&self) -> Option<Arc<io::Error>> {
        self.flights.broken()
    }

    /// Calls `listener` when the device answers nothing any more, before those who wait for it are
    /// told; at once if that was before. It must not wait for the device.
    pub fn on_broken(&self, listener: impl FnOnce(&Arc<io::Error>) + Send + 'static) {
        self.flights.on_broken(Box::new(listener));
    }

    /// The counters so far.
    pub fn counters(&self) -> NetCounters {
        self.flights.counters.snapshot(self.flights.now())
    }

    fn parts(&self) -> &Parts {
        self.parts.as_ref().expect("only dropping takes them away")
    }

    fn start(&self, offset: u64, len_bytes: u64, done: Done, request: Request) {
        let pending = Pending { started: Instant::now(), offset, len_bytes, done };
        if let Begun::Send(number) = self.flights.begin(pending) {
            Flight::send(&self.parts().image, &self.flights, number, offset, request);
        }
    }

    fn check(&self, operation: Operation, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        let block = BLOCK_BYTES as u64;
        let whole = offset.is_multiple_of(block) && len_bytes.is_multiple_of(block);
        let inside = offset.checked_add(len_bytes).is_some_and(|end| end <= self.size_bytes());
        if !whole || !inside {
            return Err(out_of_range(operation, offset, len_bytes));
        }
        Ok(())
    }

    fn check_change(&self, operation: Operation, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.check(operation, offset, len_bytes)?;
        if self.options.read_only {
            let source = io::Error::from_raw_os_error(libc::EROFS);
            return Err(DeviceError::io(operation, offset, len_bytes, source));
        }
        Ok(())
    }
}

impl Device for RbdDevice {
    fn size_bytes(&self) -> u64 {
        self.flights.size_bytes()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        let len_bytes = buf.len() as u64;
        match self.check(Operation::Read, offset, len_bytes) {
            Err(error) => done(Err(error)),
            Ok(()) if buf.is_empty() => done(Ok(buf)),
            Ok(()) => self.start(offset, len_bytes, Done::Read(done), Request::Read(buf)),
        }
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let len_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        match self.check_change(Operation::Write, offset, len_bytes) {
            Err(error) => done(Err(error)),
            Ok(()) if bufs.iter().any(|buf| !buf.len().is_multiple_of(BLOCK_BYTES)) => {
                done(Err(out_of_range(Operation::Write, offset, len_bytes)));
            }
            Ok(()) if len_bytes == 0 => done(Ok(())),
            Ok(()) => {
                let done = Done::Other(Operation::Write, done);
                self.start(offset, len_bytes, done, Request::Write(bufs));
            }
        }
    }

    fn flush(&self, done: Completion<()>) {
        if self.options.read_only {
            // Nothing was written. librbd refuses a flush of an image that is open for reading.
            return done(Ok(()));
        }
        self.start(0, 0, Done::Other(Operation::Flush, done), Request::Flush);
    }

    fn enlarge(&self, size_bytes: u64, done: Completion<u64>) {
        if self.options.read_only {
            let source = io::Error::from_raw_os_error(libc::EROFS);
            return done(Err(DeviceError::io(Operation::Write, 0, size_bytes, source)));
        }
        let pending = Pending { started: Instant::now(), offset: 0, len_bytes: 0, done: Done::Size(done) };
        let Begun::Send(number) = self.flights.begin(pending) else { return };
        let (image, flights) = (self.parts().image.clone(), self.flights.clone());
        let (growing, spec) = (self.growing.clone(), self.spec.clone());
        // librbd waits for the cluster as long as it takes; the sentinel ends the device before.
        let work = move || {
            let _alone = growing.lock();
            let result = enlarge(&image, &flights, &spec, size_bytes);
            drop(image);
            flights.end_size(number, result);
        };
        if let Err(source) = thread::Builder::new().name("rbd-enlarge".to_owned()).spawn(work) {
            let (path, source) = (self.spec.to_string(), Arc::new(source));
            self.flights.end_size(number, Err(DeviceError::Extend { path, source }));
        }
    }

    fn claim_snapshot(&self, number: u64, claim: Claim) -> Result<bool, DeviceError> {
        if let Some(source) = self.flights.broken() {
            return Err(DeviceError::Io { operation: Operation::Read, offset: 0, len_bytes: 0, source });
        }
        let claims = self.parts().claims.clone();
        bounded(self.options.open_limit, "rbd-claim", move || claims.claim(number, claim))
            .and_then(|answer| answer)
            .map_err(|error| error.opening(&self.spec))
    }

    fn discards(&self) -> bool {
        !self.options.read_only
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        match self.check_change(Operation::Discard, offset, len_bytes) {
            Err(error) => done(Err(error)),
            Ok(()) if len_bytes == 0 => done(Ok(())),
            Ok(()) => {
                let done = Done::Other(Operation::Discard, done);
                self.start(offset, len_bytes, done, Request::Discard(len_bytes));
            }
        }
    }
}

impl Drop for RbdDevice {
    fn drop(&mut self) {
        self.flights.close();
        let Some(parts) = self.parts.take() else { return };
        let (sender, receiver) = sync_channel::<()>(1);
        // Closing waits for the operations under way and for the cluster. On one of librbd's threads
        // (the last user of the device may be a completion) it would wait for itself.
        let closing = thread::Builder::new().name("rbd-close".to_owned()).spawn(move || {
            let Parts { image, claims, watchman } = parts;
            let _ = watchman.join();
            drop((claims, image));
            let _ = sender.send(());
        });
        match closing {
            Ok(_) if is_librbds_thread() => {}
            Ok(_) => {
                if receiver.recv_timeout(CLOSE_LIMIT).is_err() {
                    tracing::warn!(image = %self.spec, "closing the image takes long; its lock may remain for a while");
                }
            }
            Err(error) => tracing::error!(image = %self.spec, "the image is not closed: no thread ({error})"),
        }
    }
}

fn out_of_range(operation: Operation, offset: u64, len_bytes: u64) -> DeviceError {
    let why = "the range is not made of whole blocks inside the device";
    DeviceError::io(operation, offset, len_bytes, io::Error::new(io::ErrorKind::InvalidInput, why))
}

/// Opens the image, and takes the lock or sees that nobody has it.
fn prepare(way: Way, spec: &RbdSpec, options: &RbdOptions) -> Result<(Image, Expected, u64), RbdError> {
    let cluster = Cluster::connect(libraries()?, spec, options, Purpose::Use)?;
    let image = Image::open(Pool::open(cluster, spec)?, spec, options.read_only)?;
    if options.canary.is_none() {
        image.check_settings(spec)?;
    }
    let expected = match way {
        Way::Open if options.beside_writer => Expected::Anything,
        Way::Open if options.read_only => {
            lock::check_unused(&image)?;
            Expected::Nobodys
        }
        Way::Open => Expected::Ours(lock::acquire(&image, spec, options)?),
        Way::TakeOver => Expected::Ours(lock::take_over(&image, spec, options)?),
    };
    // With the lock: nobody changes it in between.
    let size_bytes = image.size_bytes().map_err(RbdError::errno("read the image's size"))?;
    Ok((image, expected, size_bytes))
}

/// Makes the image this large, if it is smaller; returns its size. It may have been made larger by
/// somebody else.
fn enlarge(image: &Image, flights: &Flights, spec: &RbdSpec, size_bytes: u64) -> Result<u64, DeviceError> {
    let extend = |error: RbdError| DeviceError::Extend {
        path: spec.to_string(),
        source: Arc::new(io::Error::new(error.kind(), error)),
    };
    if let Some(source) = flights.broken() {
        return Err(DeviceError::Extend { path: spec.to_string(), source });
    }
    let size = || image.size_bytes().map_err(RbdError::errno("read the image's size"));
    if size().map_err(extend)? < size_bytes {
        image.grow(size_bytes).map_err(|errno| {
            if errno.means_fenced() {
                flights.doubt(Some(errno));
            }
            extend(RbdError::refused("make the image larger", errno.io()))
        })?;
    }
    let found = size().map_err(extend)?;
    Ok(flights.grown(found - found % BLOCK_BYTES as u64))
}

/// Does something in a pool, in good time.
fn in_pool<T: Send + 'static>(
    spec: &RbdSpec,
    options: &RbdOptions,
    work: impl FnOnce(&Pool, &RbdSpec) -> Result<T, RbdError> + Send + 'static,
) -> Result<T, RbdError> {
    let (spec, options) = (spec.clone(), options.clone());
    bounded(options.open_limit, "rbd-pool", move || {
        let cluster = Cluster::connect(libraries()?, &spec, &options, Purpose::Use)?;
        work(&Pool::open(cluster, &spec)?, &spec)
    })?
}
