//! The future behind every operation of this crate: a value that a completion puts there once.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use syncline_sync::Mutex;

enum State<T> {
    Waiting(Option<Waker>),
    Ready(T),
    /// The sender was dropped without an answer.
    Abandoned,
    /// The receiver has the answer, or was dropped.
    Finished,
}

struct Slot<T>(Mutex<State<T>>);

/// The end that sends the answer.
pub(crate) struct Sender<T>(Option<Arc<Slot<T>>>);

/// The end that waits. `None` means that the operation was dropped unanswered, so that no waiter
/// hangs for ever.
pub(crate) struct Receiver<T>(Arc<Slot<T>>);

/// A connected pair.
pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let slot = Arc::new(Slot(Mutex::new(State::Waiting(None))));
    (Sender(Some(slot.clone())), Receiver(slot))
}

impl<T> Sender<T> {
    /// Sends the answer.
    pub(crate) fn send(mut self, value: T) {
        if let Some(slot) = self.0.take() {
            slot.settle(State::Ready(value));
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            slot.settle(State::Abandoned);
        }
    }
}

impl<T> Slot<T> {
    fn settle(&self, outcome: State<T>) {
        let mut state = self.0.lock();
        let before = match *state {
            // The receiver is gone: drop the answer, outside the lock.
            State::Finished => outcome,
            _ => std::mem::replace(&mut *state, outcome),
        };
        drop(state);
        if let State::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<T> Receiver<T> {
    /// True once there is an answer, or there can be none.
    pub(crate) fn is_settled(&self) -> bool {
        !matches!(*self.0.0.lock(), State::Waiting(_))
    }
}

impl<T> Future for Receiver<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.0.0.lock();
        match &mut *state {
            State::Waiting(waker) => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            _ => match std::mem::replace(&mut *state, State::Finished) {
                State::Ready(value) => Poll::Ready(Some(value)),
                _ => Poll::Ready(None),
            },
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *self.0.0.lock(), State::Finished);
        drop(before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::block_on;

    #[test]
    fn an_answer_arrives_from_another_thread() {
        let (sender, receiver) = channel();
        let answering = std::thread::spawn(move || sender.send(7));
        assert_eq!(block_on(receiver), Some(7));
        answering.join().unwrap();
    }

    #[test]
    fn a_dropped_sender_resolves_the_receiver() {
        let (sender, receiver) = channel::<u32>();
        drop(sender);
        assert!(receiver.is_settled());
        assert_eq!(block_on(receiver), None);
    }

    #[test]
    fn an_answer_nobody_waits_for_is_dropped_at_once() {
        let value = Arc::new(());
        let (sender, receiver) = channel();
        drop(receiver);
        sender.send(value.clone());
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
