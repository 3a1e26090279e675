//! A device whose operations end when the schedule decides: on tasks of their own, in any order,
//! after any time.

use crate::control::stir;
use bytes::Bytes;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;
use syncline_device::{AlignedBuf, Completion, Device, Spawn};
use syncline_sync::yield_point;

/// Tasks that carry operations out.
const TASKS: usize = 2;

type Job = Box<dyn FnOnce() + Send>;

/// How long the device takes.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// One in this many operations ends within the call that submits it; 0: none.
    pub at_once_one_in: u32,
    /// One in this many operations is slow; 0: none.
    pub slow_one_in: u32,
    /// The longest time that a slow operation takes.
    pub slowest: Duration,
}

/// Carries out each operation on the device below, which completes it at once, in a separate task.
pub struct LateDevice {
    inner: Arc<dyn Device>,
    jobs: Arc<Jobs>,
}

struct Jobs(Mutex<State>);

struct State {
    pace: Pace,
    rng: ChaCha8Rng,
    waiting: Vec<Job>,
    idle: Vec<Waker>,
    ended: bool,
}

impl LateDevice {
    /// Makes `inner` late; the seed decides which operations.
    pub fn start(inner: Arc<dyn Device>, spawn: &Arc<dyn Spawn>, pace: Pace, seed: u64) -> Arc<Self> {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        let state = State { pace, rng, waiting: Vec::new(), idle: Vec::new(), ended: false };
        let jobs = Arc::new(Jobs(Mutex::new(state)));
        for _ in 0..TASKS {
            spawn.spawn(Box::pin(work(jobs.clone(), spawn.clone())));
        }
        Arc::new(Self { inner, jobs })
    }

    fn run(&self, operation: impl FnOnce(&dyn Device) + Send + 'static) {
        yield_point();
        let mut state = self.jobs.state();
        let one_in = state.pace.at_once_one_in;
        if one_in > 0 && state.rng.random_range(0..one_in) == 0 {
            drop(state);
            return operation(&*self.inner);
        }
        let inner = self.inner.clone();
        state.waiting.push(Box::new(move || operation(&*inner)));
        let idle = state.idle.pop();
        drop(state);
        idle.into_iter().for_each(Waker::wake);
    }
}

impl Drop for LateDevice {
    fn drop(&mut self) {
        let mut state = self.jobs.state();
        state.ended = true;
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        idle.into_iter().for_each(Waker::wake);
    }
}

impl Jobs {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Also reports errors to the scheduler.
fn telling(done: Completion<()>) -> Completion<()> {
    Box::new(move |result| {
        if result.is_err() {
            stir();
        }
        done(result);
    })
}

async fn work(jobs: Arc<Jobs>, spawn: Arc<dyn Spawn>) {
    loop {
        let next = std::future::poll_fn(|context| {
            let mut state = jobs.state();
            if state.waiting.is_empty() {
                if state.ended {
                    return Poll::Ready(None);
                }
                state.idle.push(context.waker().clone());
                return Poll::Pending;
            }
            let count = state.waiting.len();
            let chosen = state.rng.random_range(0..count);
            let job = state.waiting.swap_remove(chosen);
            let (one_in, slowest) = (state.pace.slow_one_in, state.pace.slowest);
            let slow = one_in > 0 && state.rng.random_range(0..one_in) == 0;
            let nap = slow.then(|| slowest.mul_f64(state.rng.random()));
            Poll::Ready(Some((job, nap)))
        });
        let Some((job, nap)) = next.await else { return };
        if let Some(nap) = nap {
            spawn.sleep(nap).await;
        }
        yield_point();
        job();
    }
}

impl Device for LateDevice {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        self.run(move |inner| inner.read(offset, buf, done));
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        self.run(move |inner| inner.write(offset, bufs, telling(done)));
    }

    fn flush(&self, done: Completion<()>) {
        self.run(move |inner| inner.flush(telling(done)));
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        self.run(move |inner| inner.discard(offset, len_bytes, done));
    }
}
