//! A write in flight, and its outcome.

use super::Ticket;
use crate::DeviceError;
use std::fmt;
use std::sync::Arc;
use syncline_sync::{Event, Mutex};

/// Runs once when a write ends.
pub type WriteHook = Box<dyn FnOnce(&Result<Ticket, DeviceError>) + Send>;

/// A write in flight; clones refer to the same write. Dropping all of them cancels nothing.
#[derive(Clone)]
pub struct WriteHandle(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    ended: Event,
}

#[derive(Default)]
struct State {
    outcome: Option<Result<Ticket, DeviceError>>,
    hooks: Vec<WriteHook>,
}

impl WriteHandle {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    /// Waits for the write to complete; returns its ticket or its error.
    pub async fn wait(&self) -> Result<Ticket, DeviceError> {
        loop {
            if let Some(outcome) = self.outcome() {
                return outcome;
            }
            let listener = self.0.ended.listen();
            // It may have ended before we listened.
            if let Some(outcome) = self.outcome() {
                return outcome;
            }
            listener.await;
        }
    }

    /// True if both refer to the same write.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The outcome if it is known already.
    pub fn outcome(&self) -> Option<Result<Ticket, DeviceError>> {
        self.0.state.lock().outcome.clone()
    }

    /// Runs `hook` once when the write ends (at once if it already has). It must not block.
    pub fn on_end(&self, hook: WriteHook) {
        let mut state = self.0.state.lock();
        match state.outcome.clone() {
            Some(outcome) => {
                drop(state);
                hook(&outcome);
            }
            None => state.hooks.push(hook),
        }
    }

    /// Ends the write: runs the hooks first, in the order they were added, then wakes the waiters.
    pub(super) fn end(&self, outcome: Result<Ticket, DeviceError>) {
        let mut state = self.0.state.lock();
        debug_assert!(state.outcome.is_none(), "a write ends once");
        state.outcome = Some(outcome.clone());
        let hooks = std::mem::take(&mut state.hooks);
        drop(state);
        for hook in hooks {
            hook(&outcome);
        }
        self.0.ended.notify(usize::MAX);
    }
}

impl fmt::Debug for WriteHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WriteHandle").field(&self.outcome()).finish()
    }
}
