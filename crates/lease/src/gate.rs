//! Whether the lease is valid now. Once it is not, it never is again.

use crate::LeaseLost;
use crate::clock::Clock;
use crate::lab::Canary;
use crate::options::Times;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;
use syncline_format::FormatError;
use syncline_format::lease::Lease;

type Listener = Box<dyn FnOnce(&LeaseLost) + Send>;

/// The validity of one lease, shared by everybody who has to know.
pub struct Gate {
    clock: Arc<dyn Clock>,
    /// The lease is valid before this moment of the clock. It only grows.
    valid_until_ns: AtomicU64,
    /// Set with `State::why`, and never taken back.
    closed: AtomicBool,
    /// Renewals that counted, and were answered when less than half of the time was left.
    late: AtomicU64,
    state: Mutex<State>,
    times: Times,
    term: u64,
    nonce: [u8; 16],
    canary: Option<Canary>,
    /// The thread that renews, which tells the listeners.
    renewer: OnceLock<Thread>,
}

#[derive(Default)]
struct State {
    why: Option<LeaseLost>,
    listeners: Vec<Listener>,
    /// Why the newest renewal failed, if it did.
    trouble: Option<String>,
}

impl Gate {
    /// The gate of a lease that was just taken.
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        times: Times,
        lease: &Lease,
        valid_until: Duration,
        canary: Option<Canary>,
    ) -> Arc<Self> {
        Arc::new(Self {
            clock,
            valid_until_ns: AtomicU64::new(nanoseconds(valid_until)),
            closed: AtomicBool::new(false),
            late: AtomicU64::new(0),
            state: Mutex::default(),
            times,
            term: lease.term,
            nonce: lease.nonce,
            canary,
            renewer: OnceLock::new(),
        })
    }

    /// Fails if the lease is not valid at this moment, and then for ever.
    pub fn check(&self) -> Result<(), LeaseLost> {
        let now = self.clock.now();
        if !self.closed.load(Ordering::SeqCst) && now < self.valid_until() {
            return Ok(());
        }
        self.check_slowly()
    }

    /// Fails if an operation that was begun may not be sent any more. It may be sent until the lease
    /// expires, also while the lease is being released: the lease is given back when all operations
    /// that were begun have ended.
    pub fn check_begun(&self) -> Result<(), LeaseLost> {
        match self.lost() {
            Some(LeaseLost::Released) if self.clock.now() < self.valid_until() => Ok(()),
            _ => self.check(),
        }
    }

    #[cold]
    fn check_slowly(&self) -> Result<(), LeaseLost> {
        let mut state = self.state.lock();
        if let Some(why) = &state.why {
            return Err(why.clone());
        }
        // A renewal may have been answered meanwhile: it took the lock, and found the lease valid.
        if self.clock.now() < self.valid_until() {
            return Ok(());
        }
        Err(self.expire(&mut state))
    }

    /// True if the lease is valid; decides nothing.
    pub fn is_valid(&self) -> bool {
        !self.closed.load(Ordering::SeqCst) && self.clock.now() < self.valid_until()
    }

    /// Why the lease was lost, if it was.
    pub fn lost(&self) -> Option<LeaseLost> {
        // Every read asks.
        if !self.closed.load(Ordering::SeqCst) {
            return None;
        }
        self.state.lock().why.clone()
    }

    /// Whether a block is still this holder's. If not, the lease is lost.
    pub fn check_block(&self, found: &Result<Option<Lease>, FormatError>) -> Result<(), LeaseLost> {
        match LeaseLost::by_block(found, self.term, &self.nonce) {
            None => Ok(()),
            Some(why) => Err(self.lose(why)),
        }
    }

    /// Ends the lease. The first reason stays and is returned; only the name of another holder takes
    /// the place of a time that was over.
    pub fn lose(&self, why: LeaseLost) -> LeaseLost {
        self.close(&mut self.state.lock(), why)
    }

    /// A renewal that was sent at `sent` was answered. It counts only if the lease has not expired
    /// meanwhile: another may hold it by now.
    pub(crate) fn extend(&self, sent: Duration) -> Result<(), LeaseLost> {
        let mut state = self.state.lock();
        // The clock is read behind the lock, so not before any check that came first.
        let now = self.clock.now();
        if let Some(why) = &state.why {
            return Err(why.clone());
        }
        if now >= self.valid_until() && self.canary != Some(Canary::Revive) {
            return Err(self.expire(&mut state));
        }
        if self.valid_until().saturating_sub(now) < self.times.valid() / 2 {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
        let from = if self.canary == Some(Canary::CountFromEnd) { now } else { sent };
        self.valid_until_ns.fetch_max(nanoseconds(from + self.times.valid()), Ordering::SeqCst);
        state.trouble = None;
        Ok(())
    }

    /// A renewal failed: if the lease expires, this is the reason.
    pub(crate) fn note(&self, trouble: String) {
        tracing::warn!("the device lease could not be renewed: {trouble}");
        self.state.lock().trouble = Some(trouble);
    }

    /// Renewals that counted, and were answered when less than half of the time was left.
    pub(crate) fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    /// Until when the lease is valid.
    pub fn valid_until(&self) -> Duration {
        Duration::from_nanos(self.valid_until_ns.load(Ordering::SeqCst))
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(crate) fn times(&self) -> Times {
        self.times
    }

    pub(crate) fn term(&self) -> u64 {
        self.term
    }

    pub(crate) fn canary(&self) -> Option<Canary> {
        self.canary
    }

    /// Calls `listener` when the lease is lost: on the thread that renews, or here and now if it is
    /// lost already. A release is no loss.
    pub(crate) fn on_lost(&self, listener: Listener) {
        let mut state = self.state.lock();
        match state.why.clone() {
            None => state.listeners.push(listener),
            Some(why) => {
                drop(state);
                if why != LeaseLost::Released {
                    listener(&why);
                }
            }
        }
    }

    /// Tells the listeners. For the thread that renews, so that none of them runs on a thread that
    /// has to answer the device's operations.
    pub(crate) fn tell_listeners(&self) {
        let mut state = self.state.lock();
        let Some(why) = state.why.clone() else { return };
        let listeners = std::mem::take(&mut state.listeners);
        drop(state);
        if why != LeaseLost::Released {
            listeners.into_iter().for_each(|listener| listener(&why));
        }
    }

    /// The calling thread is woken when the lease is lost.
    pub(crate) fn renewed_by_this_thread(&self) {
        let _ = self.renewer.set(std::thread::current());
    }

    fn expire(&self, state: &mut State) -> LeaseLost {
        let trouble = state.trouble.clone().unwrap_or_else(|| "the device did not answer".into());
        let why = LeaseLost::Expired { within: self.times.valid(), trouble };
        if self.canary == Some(Canary::Revive) { why } else { self.close(state, why) }
    }

    fn close(&self, state: &mut State, why: LeaseLost) -> LeaseLost {
        match (&state.why, &why) {
            (None, _) => {}
            // The block says who has it, after the time was over.
            (Some(LeaseLost::Expired { .. }), LeaseLost::TakenBy { .. }) => {
                state.why = Some(why.clone());
                return why;
            }
            (Some(first), _) => return first.clone(),
        }
        if why != LeaseLost::Released {
            // The listeners tell people, once it is known who has it now.
            tracing::info!("{why}");
        }
        state.why = Some(why.clone());
        self.closed.store(true, Ordering::SeqCst);
        if let Some(renewer) = self.renewer.get() {
            renewer.unpark();
        }
        why
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
