//! A clock that waits for threads that get no processor.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};
use syncline_lease::Clock;

/// It runs this much faster than the machine's clock.
const FASTER: u32 = 4;
/// A thread that is awake looks at the clock again within this time, or the clock stands still.
const AWAKE: Duration = Duration::from_millis(50);
/// The name of the threads that renew leases.
const RENEWER: &str = "syncline-lease";

/// Runs four times as fast as the machine's clock, so that a lease of four seconds takes one. It
/// never passes the moment until which a thread sleeps before that thread has woken and looked. On a
/// busy machine it is slow, and no lease expires because its thread was late.
#[derive(Clone)]
pub struct PatientClock(Arc<Mutex<State>>);

struct State {
    now: Duration,
    looked: Instant,
    /// The threads that are waited for.
    threads: HashMap<ThreadId, Waiting>,
    /// Leases that were taken, and threads of theirs that have slept.
    taken: usize,
    renewers: usize,
}

struct Waiting {
    /// The clock goes no further before this thread has looked.
    limit: Duration,
    sleeps: bool,
}

impl State {
    fn advance(&mut self) -> Duration {
        let looked = Instant::now();
        let free = self.now + (looked - self.looked) * FASTER;
        let limit = self.threads.values().map(|thread| thread.limit).min();
        self.now = limit.map_or(free, |limit| free.min(limit)).max(self.now);
        self.looked = looked;
        self.now
    }

    fn waits_for_this_thread(&mut self, limit: Duration, sleeps: bool) {
        self.threads.insert(thread::current().id(), Waiting { limit, sleeps });
    }
}

impl PatientClock {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            now: Duration::from_secs(1000),
            looked: Instant::now(),
            threads: HashMap::new(),
            taken: 0,
            renewers: 0,
        })))
    }

    /// The clock waits for the calling thread until the result is dropped.
    pub fn hold(&self) -> Held {
        let mut state = self.0.lock().unwrap();
        let limit = state.advance() + AWAKE;
        state.waits_for_this_thread(limit, false);
        Held { clock: self.clone(), thread: thread::current().id() }
    }

    /// The same, and no renewal is under way meanwhile.
    pub fn between_renewals(&self) -> Held {
        let held = self.hold();
        super::eventually("all threads sleep", || {
            let state = self.0.lock().unwrap();
            let limit = state.threads[&held.thread].limit;
            let past = |thread: &Waiting| thread.sleeps && thread.limit > limit;
            state.threads.iter().all(|(id, thread)| *id == held.thread || past(thread))
        });
        held
    }
}

impl Clock for PatientClock {
    fn now(&self) -> Duration {
        let mut state = self.0.lock().unwrap();
        let now = state.advance();
        if state.threads.contains_key(&thread::current().id()) {
            state.waits_for_this_thread(now + AWAKE, false);
        }
        now
    }

    fn sleep(&self, until: Duration) -> Duration {
        let mut state = self.0.lock().unwrap();
        let now = state.advance();
        let current = thread::current();
        let known = state.threads.contains_key(&current.id());
        if !known && current.name() == Some(RENEWER) {
            state.renewers += 1;
            ENDS.set(Some(Held { clock: self.clone(), thread: current.id() }));
        }
        if known || current.name() == Some(RENEWER) {
            state.waits_for_this_thread(until.max(now), true);
        }
        (until.saturating_sub(now) / FASTER).max(Duration::from_millis(1))
    }
}

/// The clock waits for a thread until this is dropped.
pub struct Held {
    clock: PatientClock,
    thread: ThreadId,
}

impl Held {
    /// Waits until the clock waits for the thread of the lease that was taken.
    pub fn taken(self) {
        self.clock.0.lock().unwrap().taken += 1;
        super::eventually("all leases have their threads", || {
            let state = self.clock.0.lock().unwrap();
            state.renewers >= state.taken
        });
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.clock.0.lock().unwrap();
        state.advance();
        state.threads.remove(&self.thread);
    }
}

thread_local! {
    /// Of a thread that renews.
    static ENDS: RefCell<Option<Held>> = const { RefCell::new(None) };
}
