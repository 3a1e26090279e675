//! Stops an operation at one of the places where the program may yield, for as long as others need.

use std::cell::RefCell;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use syncline_store::GiveWay;

/// Longest time for an operation that is not stopped: far longer than any takes on the slowest
/// machine.
const OPERATION_MAX: Duration = Duration::from_secs(120);

thread_local! {
    /// Where this thread's operation is to be stopped.
    static STOP: RefCell<Option<Arc<Stop>>> = const { RefCell::new(None) };
}

/// Where background work is to be stopped.
#[derive(Clone, Default)]
pub struct Background(Arc<Mutex<Option<Arc<Stop>>>>);

impl Background {
    /// Stops background work there.
    pub fn stop(&self, stop: Arc<Stop>) {
        *self.0.lock().expect("no panic under it") = Some(stop);
    }

    /// Stops each thread where its [`Stop`] says, and background threads where `self` says.
    pub fn stopping(&self) -> GiveWay {
        let background = self.0.clone();
        GiveWay::calling(move |place| {
            let own = STOP.with_borrow(Clone::clone);
            let stop = own.or_else(|| background.lock().expect("no panic under it").clone());
            stop.into_iter().for_each(|stop| stop.pass(place));
        })
    }
}

/// The places at which an operation is stopped.
pub struct Stop {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of places to pass before the stop; `None`: no stop.
    left: Option<u32>,
    at: Option<&'static Location<'static>>,
    ended: bool,
}

/// The progress of an operation.
#[derive(Clone, Copy)]
pub enum Progress {
    /// It is stopped at this place.
    Stopped(&'static Location<'static>),
    Ended,
    /// Neither within the time: it waits for others.
    Waits,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped(place) => write!(f, "is stopped at {}:{}", place.file(), place.line()),
            Self::Ended => f.write_str("has ended"),
            Self::Waits => f.write_str("waits"),
        }
    }
}

impl Stop {
    /// Stops after `passed` places, if the operation gets that far.
    pub fn after(passed: Option<u32>) -> Arc<Self> {
        let state = State { left: passed, ..State::default() };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Runs an operation that is to be stopped here, on the calling thread.
    pub fn during(self: &Arc<Self>, operation: impl FnOnce()) {
        struct Ended<'a>(&'a Stop);
        impl Drop for Ended<'_> {
            fn drop(&mut self) {
                STOP.set(None);
                self.0.state.lock().expect("no panic under it").ended = true;
                self.0.changed.notify_all();
            }
        }
        let _ended = Ended(self);
        STOP.set(Some(self.clone()));
        operation();
    }

    fn pass(&self, place: &'static Location<'static>) {
        let mut state = self.state.lock().expect("no panic under it");
        match &mut state.left {
            None => return,
            Some(0) => state.at = Some(place),
            Some(left) => return *left -= 1,
        }
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| state.at.is_some()).expect("no panic under it"));
    }

    /// Waits until the operation is stopped or has ended, at most this long.
    pub fn progress(&self, most: Duration) -> Progress {
        let state = self.state.lock().expect("no panic under it");
        let going = |state: &mut State| !state.ended && state.at.is_none();
        let (state, _) = self.changed.wait_timeout_while(state, most, going).expect("no panic under it");
        match state.at {
            _ if state.ended => Progress::Ended,
            Some(place) => Progress::Stopped(place),
            None => Progress::Waits,
        }
    }

    pub fn is_stopped(&self) -> bool {
        matches!(self.progress(Duration::ZERO), Progress::Stopped(_))
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.progress(Duration::ZERO), Progress::Ended)
    }

    /// Lets the operation continue, to be stopped again after this many places, or to its end.
    pub fn let_go(&self, passed: Option<u32>) {
        let mut state = self.state.lock().expect("no panic under it");
        (state.left, state.at) = (passed, None);
        self.changed.notify_all();
    }

    /// Waits for the operation to end, or ends the program: a hanging thread can't be cancelled.
    pub fn wait(&self, about: &str) {
        if !matches!(self.progress(OPERATION_MAX), Progress::Ended) {
            eprintln!("{about}: an operation does not end");
            std::process::abort();
        }
    }
}
