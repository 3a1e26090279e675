//! The checks made while a simulated engine runs: at each moment of rest, and before and after an
//! hour of it.
//!
//! At a moment of rest no task can run before a timer ends: every task sleeps or waits, and no
//! device operation is in flight. Then every block that is not free has exactly one owner, and the
//! memory in use is what the counters say. After an hour without requests all of that is unchanged,
//! nothing was written, and no task ran more often than the limits here allow. Before it, everything
//! that was dirty has been written back, if the device is sound.

use crate::lab::Work;
use crate::{Latency, RecordingDevice, Simulation, Stalled, Wakes};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use std::time::Duration;
use syncline_fs::Filesystem;
use syncline_store::{Held, Store};

/// Most polls of one task in a second without requests.
pub const WAKES_MAX: u64 = 2;
/// Most polls of all tasks of an engine in such a second.
pub const WAKES_OF_ALL_MAX: u64 = 3;

/// By then all pending work has ended, even on a device whose flushes take a minute.
const SETTLE: Duration = Duration::from_secs(1800);
/// Length of the rest.
const REST_SECONDS: u64 = 3600;

/// Moments of rest between two comparisons of named data with the device.
const MOMENTS_BETWEEN_READS: u64 = 8;

/// The speed of a life's devices and threads.
pub(crate) struct Pace {
    pub(crate) latency: Latency,
    /// Tasks run late, one at a time.
    pub(crate) late: bool,
}

impl Pace {
    /// The speed of most devices.
    pub(crate) fn usual(pressure: bool) -> Self {
        let often = if pressure { 4 } else { Latency::default().slow_one_in };
        Self { latency: Latency { slow_one_in: often, ..Latency::default() }, late: false }
    }

    /// Slow devices and, in every second life, threads that get no CPU time for a while.
    pub(crate) fn slow(rng: &mut ChaCha8Rng, stalls_fail: bool) -> Self {
        Self { late: rng.random(), latency: Latency::slow(rng, stalls_fail) }
    }
}

/// An engine as an outside observer can watch it.
pub trait Watched: Send + Sync {
    /// Checks what must hold at any moment: memory within its limits, counters that agree.
    fn limits(&self) -> Result<(), String>;
    /// Checks that every block has one owner; false if that can't be determined now.
    fn owners(&self) -> Result<bool, String>;
    /// Checks that named data is on the device, unless it is in memory. To be called only at a
    /// moment of rest.
    fn contents(&self) -> Result<(), String>;
    /// Checks that the background has no work left, after a rest longer than dirty data may wait.
    fn written_back(&self) -> Result<(), String>;
    /// The state that an hour of rest must not change.
    fn held(&self) -> Result<String, String>;
    /// Checks that everything can be read and is correct.
    fn verify(&self) -> Work<()>;
}

/// Statistics of the watched lives.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Rested {
    /// Moments of rest.
    pub moments: u64,
    /// Moments at which the owner of every block was compared.
    pub compared: u64,
    /// Hours of rest.
    pub hours: u64,
    /// Virtual time that passed.
    pub virtual_ns: u64,
}

impl Rested {
    /// Adds another life's figures.
    pub fn add(&mut self, other: Self) {
        self.moments += other.moments;
        self.compared += other.compared;
        self.hours += other.hours;
        self.virtual_ns += other.virtual_ns;
    }

    /// Makes the checks of a moment of rest.
    pub(crate) fn look(&mut self, watched: &dyn Watched) -> Result<(), String> {
        self.moments += 1;
        watched.limits()?;
        self.compared += u64::from(watched.owners()?);
        if self.moments.is_multiple_of(MOMENTS_BETWEEN_READS) {
            watched.contents()?;
        }
        Ok(())
    }
}

/// Lets an hour pass without requests.
pub(crate) fn rest(
    simulation: &Simulation,
    watched: &dyn Watched,
    log: &RecordingDevice,
) -> Result<Rested, String> {
    let mut rested = Rested::default();
    let started_ns = simulation.now_ns();
    sleep(simulation, SETTLE)?;
    simulation.run(watched.verify()).map_err(|stalled| format!("at rest: {stalled:?}"))??;
    rested.look(watched)?;
    watched.written_back()?;
    let (before, events) = (watched.held()?, log.position());
    simulation.take_wakes();
    for second in 1..=REST_SECONDS {
        sleep(simulation, Duration::from_secs(1))?;
        let Wakes { most, total, .. } = simulation.take_wakes();
        if most > WAKES_MAX || total > WAKES_OF_ALL_MAX {
            return Err(format!(
                "in second {second} of a rest one task ran {most} times, and all of them {total} times"
            ));
        }
        if second % 60 == 0 {
            rested.look(watched)?;
        }
    }
    let (after, written) = (watched.held()?, log.position() - events);
    if before != after {
        return Err(format!("an hour of rest made of {before} {after}"));
    }
    if written > 0 {
        return Err(format!("the device was asked {written} things in an hour of rest"));
    }
    rested.hours = 1;
    rested.virtual_ns = simulation.now_ns() - started_ns;
    Ok(rested)
}

fn sleep(simulation: &Simulation, duration: Duration) -> Result<(), String> {
    let ended = simulation.run(simulation.spawner().sleep(duration));
    ended.map_err(|stalled: Stalled| format!("at rest: {stalled:?}"))
}

/// Limits of a store's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Log and data that no flush covers yet.
    pub(crate) unflushed_bytes: u64,
    /// The part of it that is log not yet sealed.
    pub(crate) pending_log_bytes: u64,
    /// Changes that are not in the tree yet.
    pub(crate) memtable_bytes: u64,
}

/// A store that is watched.
pub(crate) struct WatchedStore {
    pub(crate) store: Arc<Store>,
    pub(crate) limits: Limits,
    /// The device may fail, so the store may become read-only.
    pub(crate) faulty: bool,
    /// Reads everything that should be there.
    pub(crate) verify: Box<dyn Fn() -> Work<()> + Send + Sync>,
    /// Compares the device with what should be on it.
    pub(crate) contents: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
}

impl Watched for WatchedStore {
    fn limits(&self) -> Result<(), String> {
        let held: Held = self.store.held()?;
        let Limits { unflushed_bytes, mut pending_log_bytes, memtable_bytes } = self.limits;
        // A checkpoint that fails gives back the log it had taken, on top of the log that came
        // meanwhile.
        pending_log_bytes *= if self.faulty { 2 } else { 1 };
        let exceeds = held.unflushed_bytes() > unflushed_bytes
            || held.pending_log_bytes > pending_log_bytes
            || held.memtable_bytes > memtable_bytes;
        if exceeds && !held.leaving_log {
            return Err(format!("more is held in memory than {:?}: {held:?}", self.limits));
        }
        match self.store.read_only_reason() {
            Some(reason) if !self.faulty => Err(format!("it has turned read-only: {reason}")),
            _ => Ok(()),
        }
    }

    fn owners(&self) -> Result<bool, String> {
        self.store.audit_blocks().transpose().map(|compared| compared.is_some())
    }

    fn written_back(&self) -> Result<(), String> {
        Ok(())
    }

    fn held(&self) -> Result<String, String> {
        Ok(format!("{:?}", self.store.held()?))
    }

    fn contents(&self) -> Result<(), String> {
        (self.contents)()
    }

    fn verify(&self) -> Work<()> {
        (self.verify)()
    }
}

/// A filesystem that is watched.
pub(crate) struct WatchedFs {
    pub(crate) fs: Arc<Filesystem>,
    pub(crate) store: WatchedStore,
    pub(crate) dirty_bytes_max: u64,
}

impl Watched for WatchedFs {
    fn limits(&self) -> Result<(), String> {
        self.store.limits()?;
        let dirty = self.fs.counters().dirty_bytes;
        if dirty > self.dirty_bytes_max {
            return Err(format!("{dirty} bytes are dirty, at most {} may be", self.dirty_bytes_max));
        }
        Ok(())
    }

    fn owners(&self) -> Result<bool, String> {
        self.fs.dirty_held()?;
        self.store.owners()
    }

    fn written_back(&self) -> Result<(), String> {
        match (self.fs.counters().dirty_bytes, self.fs.postponed()) {
            (0, (0, 0)) => Ok(()),
            (_, (0, 0)) if self.store.faulty => Ok(()),
            (dirty, (removals, access_times)) => Err(format!(
                "after a long rest {dirty} bytes are dirty, {removals} removals and {access_times} access times wait"
            )),
        }
    }

    fn held(&self) -> Result<String, String> {
        Ok(format!("{} bytes dirty and {}", self.fs.dirty_held()?, self.store.held()?))
    }

    fn contents(&self) -> Result<(), String> {
        self.store.contents()
    }

    fn verify(&self) -> Work<()> {
        self.store.verify()
    }
}
