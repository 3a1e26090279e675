//! Taking the lease of a real device, on the calling thread.

use crate::claim::{Claim, Event, How, Step};
use crate::status::Counters;
use crate::thread::Renewer;
use crate::traffic::Traffic;
use crate::{LEASE_OFFSET, LeaseError, LeaseOptions, Leased};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, SystemTime};
use syncline_device::{AlignedBuf, BLOCK_BYTES, Completion, Device, DeviceError, DeviceExt, Operation};
use syncline_format::lease::Lease;

/// The caller is asked this often whether it still wants the lease.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// How to take the lease from a holder that has not released it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakeOver {
    /// End its lease, and wait until it has certainly expired.
    WhenExpired,
    /// End its lease and go on at once. Only if it is known to be off: a host that is only cut off
    /// goes on writing until its lease expires, and both destroy the image.
    AtOnce,
}

/// A wait during the taking of the lease.
#[derive(Debug)]
pub enum Progress<'a> {
    /// For a holder to expire, for at most `left`.
    Holder {
        /// The block that is there: the holder's, or this host's own while it takes over.
        lease: &'a Lease,
        /// The time that is left.
        left: Duration,
    },
    /// For the device.
    Device,
}

/// The lease of an image as it lies on the device, for messages; `None` if nobody ever had it. It
/// may be changing.
pub async fn look(device: &Arc<dyn Device>) -> Result<Option<Lease>, LeaseError> {
    if device.size_bytes() < LEASE_OFFSET + BLOCK_BYTES as u64 {
        return Err(LeaseError::TooSmall);
    }
    let block = device.read_at(LEASE_OFFSET, BLOCK_BYTES).await?;
    Lease::decode(&block).map_err(LeaseError::Damaged)
}

impl Leased {
    /// Takes the lease of `device`, and renews it until the result is dropped.
    ///
    /// If another host holds it, this waits until it is certain whether that one lives: it is refused
    /// as soon as the holder renews, and goes on when the holder has expired. `progress` is called a
    /// few times a second meanwhile, and may end the waiting.
    ///
    /// Everything that was read before is void: the former holder may have written until now.
    pub fn acquire(
        device: Arc<dyn Device>,
        options: &LeaseOptions,
        progress: impl FnMut(Progress<'_>) -> ControlFlow<()>,
    ) -> Result<Arc<Self>, LeaseError> {
        take(device, options, How::Wait, progress)
    }

    /// Takes the lease of `device` also from a holder that lives, which can never write again.
    pub fn take_over(
        device: Arc<dyn Device>,
        options: &LeaseOptions,
        how: TakeOver,
        progress: impl FnMut(Progress<'_>) -> ControlFlow<()>,
    ) -> Result<Arc<Self>, LeaseError> {
        let how = match how {
            TakeOver::WhenExpired => How::TakeOver,
            TakeOver::AtOnce => {
                tracing::warn!(
                    "the device lease is taken without waiting: if its former holder is not off, both destroy the image"
                );
                How::AtOnce
            }
        };
        take(device, options, how, progress)
    }
}

fn take(
    device: Arc<dyn Device>,
    options: &LeaseOptions,
    how: How,
    progress: impl FnMut(Progress<'_>) -> ControlFlow<()>,
) -> Result<Arc<Leased>, LeaseError> {
    options.check()?;
    if device.size_bytes() < LEASE_OFFSET + BLOCK_BYTES as u64 {
        return Err(LeaseError::TooSmall);
    }
    if !device.reads_bypass_caches() && !options.cached_by_server {
        return Err(LeaseError::Cached);
    }
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let claim = Claim::new(options, how, rand::random(), since_1970.as_nanos() as u64);
    let claimed = Taking { device: &device, options, claim, progress }.run()?;
    let gate = Claim::gate(options, &claimed);
    let (traffic, counters) = (Arc::<Traffic>::default(), Arc::<Counters>::default());
    let renewer =
        Renewer::start(device.clone(), gate.clone(), claimed.lease, traffic.clone(), counters.clone())?;
    Ok(Leased::new(device, gate, traffic, counters, renewer))
}

struct Taking<'a, P> {
    device: &'a Arc<dyn Device>,
    options: &'a LeaseOptions,
    claim: Claim,
    progress: P,
}

impl<P: FnMut(Progress<'_>) -> ControlFlow<()>> Taking<'_, P> {
    fn run(mut self) -> Result<crate::claim::Claimed, LeaseError> {
        let clock = self.options.clock.clone();
        let mut event = Event::Begin;
        loop {
            event = match self.claim.step(clock.now(), event) {
                Step::Read => Event::Read(Lease::decode(&self.read()?)),
                Step::Write(lease) => {
                    let block = AlignedBuf::copy_from(&lease.encode()).into_bytes();
                    let (done, answer) = completion();
                    self.device.write(LEASE_OFFSET, vec![block], done);
                    self.wait(answer, Operation::Write)?;
                    Event::Done
                }
                Step::Flush => {
                    let (done, answer) = completion();
                    self.device.flush(done);
                    self.wait(answer, Operation::Flush)?;
                    Event::Done
                }
                Step::Pause(time) => {
                    self.pause(clock.now() + time)?;
                    Event::Done
                }
                Step::Done(claimed) => return Ok(*claimed),
                Step::Refused(error) => return Err(error),
            };
        }
    }

    fn read(&mut self) -> Result<AlignedBuf, LeaseError> {
        let (done, answer) = completion();
        self.device.read(LEASE_OFFSET, AlignedBuf::for_read(BLOCK_BYTES), done);
        self.wait(answer, Operation::Read)
    }

    /// Waits for the device, which has its own limits.
    fn wait<T>(
        &mut self,
        answer: Receiver<Result<T, DeviceError>>,
        operation: Operation,
    ) -> Result<T, LeaseError> {
        self.device.submit();
        loop {
            match answer.recv_timeout(ASK_EVERY) {
                Ok(answer) => return Ok(answer?),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(DeviceError::Abandoned { operation }.into());
                }
                Err(RecvTimeoutError::Timeout) => self.ask(false)?,
            }
        }
    }

    fn pause(&mut self, until: Duration) -> Result<(), LeaseError> {
        let clock = self.options.clock.clone();
        while clock.now() < until {
            self.ask(true)?;
            std::thread::sleep(clock.sleep(until).min(ASK_EVERY));
        }
        Ok(())
    }

    fn ask(&mut self, pausing: bool) -> Result<(), LeaseError> {
        let waits_for = self.claim.waits_for(self.options.clock.now());
        let progress = match waits_for.filter(|_| pausing) {
            Some((lease, left)) => Progress::Holder { lease, left },
            None if pausing => return Ok(()),
            None => Progress::Device,
        };
        match (self.progress)(progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(LeaseError::Interrupted),
        }
    }
}

/// A completion that sends the answer to this thread.
fn completion<T: Send + 'static>() -> (Completion<T>, Receiver<Result<T, DeviceError>>) {
    let (sender, receiver): (SyncSender<Result<T, DeviceError>>, _) = sync_channel(1);
    let done = move |answer| {
        let _ = sender.send(answer);
    };
    (Box::new(done), receiver)
}
