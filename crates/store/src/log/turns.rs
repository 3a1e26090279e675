//! The members of a group who wait: all for the end of the group, and one of them for its turn to
//! drive it.
//!
//! An event of `event-listener` wakes its listeners under a lock that each of them takes next, so
//! 64 threads that were woken wait for one another again. Here a member that was called takes no lock that
//! the members share.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use syncline_sync::Mutex;
use syncline_sync::atomic::{AtomicU8, Ordering};

/// Nobody has called.
const WAITING: u8 = 0;
/// It is this member's turn, and no other's.
const TURN: u8 = 1;
/// The group has ended, or the turn was used.
const ENDED: u8 = 2;

/// The members who wait.
#[derive(Default)]
pub(super) struct Turns(Mutex<VecDeque<Arc<Seat>>>);

struct Seat {
    called: AtomicU8,
    waker: Mutex<Option<Waker>>,
}

impl Turns {
    /// Takes a seat. Before awaiting the turn, the caller checks again whether the group has ended or
    /// needs a driver: earlier calls do not reach this seat.
    pub(super) fn wait(&self) -> Turn<'_> {
        let seat = Arc::new(Seat { called: AtomicU8::new(WAITING), waker: Mutex::default() });
        self.0.lock().push_back(seat.clone());
        Turn { turns: self, seat }
    }

    /// Calls the member who has waited longest.
    pub(super) fn call_one(&self) {
        let first = self.0.lock().pop_front();
        if let Some(seat) = first {
            seat.call(TURN);
        }
    }

    /// Calls everybody: the group has ended.
    pub(super) fn call_all(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        all.into_iter().for_each(|seat| seat.call(ENDED));
    }
}

impl Seat {
    fn call(&self, call: u8) {
        self.called.store(call, Ordering::Release);
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A member who waits. Dropping it passes an unused turn on.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    seat: Arc<Seat>,
}

impl Future for Turn<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.seat.called.load(Ordering::Acquire) == WAITING {
            let mut waker = self.seat.waker.lock();
            // A call that came before the lock found no waker.
            if self.seat.called.load(Ordering::Acquire) == WAITING {
                *waker = Some(context.waker().clone());
                return Poll::Pending;
            }
        }
        // The caller uses its turn now.
        self.seat.called.store(ENDED, Ordering::Release);
        Poll::Ready(())
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        match self.seat.called.load(Ordering::Acquire) {
            ENDED => {}
            TURN => self.turns.call_one(),
            _ => {
                let mut seats = self.turns.0.lock();
                let before = seats.len();
                seats.retain(|seat| !Arc::ptr_eq(seat, &self.seat));
                let was_called = seats.len() == before;
                drop(seats);
                if was_called {
                    self.turns.call_one();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};

    fn is_called(turn: &mut Turn<'_>) -> bool {
        block_on(poll_once(turn)).is_some()
    }

    #[test]
    fn one_turn_goes_to_who_has_waited_longest() {
        let turns = Turns::default();
        let [mut first, mut second] = [turns.wait(), turns.wait()];
        turns.call_one();
        assert!(is_called(&mut first) && !is_called(&mut second));
        drop(first);
        assert!(!is_called(&mut second), "the turn was used");
        turns.call_one();
        assert!(is_called(&mut second));
    }

    #[test]
    fn a_turn_that_is_not_used_is_passed_on() {
        let turns = Turns::default();
        let (first, gone, mut last) = (turns.wait(), turns.wait(), turns.wait());
        drop(gone);
        turns.call_one();
        drop(first);
        assert!(is_called(&mut last));
    }

    #[test]
    fn the_end_calls_everybody() {
        let turns = Turns::default();
        let mut all: Vec<_> = (0..5).map(|_| turns.wait()).collect();
        assert!(!is_called(&mut all[0]));
        turns.call_all();
        assert!(all.iter_mut().all(is_called));
        let mut late = turns.wait();
        drop(all);
        assert!(!is_called(&mut late), "an end is no turn");
    }

    #[test]
    fn threads_are_woken() {
        let turns = Turns::default();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| block_on(turns.wait()));
            }
            let waiting = || turns.0.lock().len();
            while waiting() < 8 {
                std::thread::yield_now();
            }
            (0..3).for_each(|_| turns.call_one());
            turns.call_all();
        });
    }
}
