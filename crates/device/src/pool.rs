//! Threads for operations that would block: discards, and all I/O where io_uring is not allowed.

use crate::mailbox::Mailbox;
use crate::request::Request;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The most threads, and so the most operations running at once.
const MOST_THREADS: usize = 8;
/// A thread with nothing to do ends after this long.
const IDLE: Duration = Duration::from_secs(5);

static POOL: Pool = Pool {
    state: Mutex::new(State { queue: VecDeque::new(), idle: 0, threads: 0 }),
    work_arrived: Condvar::new(),
};

struct Pool {
    state: Mutex<State>,
    work_arrived: Condvar,
}

struct State {
    queue: VecDeque<Job>,
    idle: usize,
    threads: usize,
}

struct Job {
    request: Request,
    /// The worker on whose thread the completion must run; if `None`, it runs on the pool's own
    /// thread.
    deliver_to: Option<Arc<Mailbox>>,
}

impl Job {
    fn run(self) {
        let finished = self.request.run_blocking();
        match self.deliver_to {
            Some(mailbox) => mailbox.deliver(finished),
            None => finished.deliver(),
        }
    }
}

/// Carries out `request` on a thread of the pool.
pub(crate) fn start(request: Request, deliver_to: Option<Arc<Mailbox>>) {
    let mut state = POOL.state.lock();
    state.queue.push_back(Job { request, deliver_to });
    if state.queue.len() <= state.idle {
        POOL.work_arrived.notify_one();
        return;
    }
    if state.threads >= MOST_THREADS {
        return;
    }
    state.threads += 1;
    drop(state);
    let spawned = std::thread::Builder::new().name("syncline-io-pool".into()).spawn(serve);
    if let Err(error) = spawned {
        let mut state = POOL.state.lock();
        state.threads -= 1;
        if state.threads > 0 {
            // The existing threads will get to it.
            return;
        }
        // No thread can be created: slowly here is better than never.
        tracing::warn!(%error, "no thread for device I/O: it runs on the caller's");
        let jobs = std::mem::take(&mut state.queue);
        drop(state);
        jobs.into_iter().for_each(Job::run);
    }
}

fn serve() {
    // A completion that panics ends its thread; the count must still be right.
    struct Leaving;
    impl Drop for Leaving {
        fn drop(&mut self) {
            POOL.state.lock().threads -= 1;
        }
    }
    let leaving = Leaving;
    loop {
        let mut state = POOL.state.lock();
        while state.queue.is_empty() {
            state.idle += 1;
            let waited = POOL.work_arrived.wait_for(&mut state, IDLE);
            state.idle -= 1;
            if waited.timed_out() && state.queue.is_empty() {
                // Still under the lock, so that no job can arrive counting on this thread.
                state.threads -= 1;
                std::mem::forget(leaving);
                return;
            }
        }
        let Some(job) = state.queue.pop_front() else { continue };
        drop(state);
        job.run();
    }
}
