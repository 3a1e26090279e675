//! A lock that publishes some numbers of its state, so that they can be read without taking it.
//!
//! Each admission asks how much waits for the device. That is counted under `log` and `commit`, and
//! admissions should not queue there behind callers that seal and commit.

use std::ops::{Deref, DerefMut};
use syncline_sync::{Mutex, MutexGuard};

/// A state that publishes some numbers.
pub(super) trait Show {
    /// The numbers, as atomics.
    type Numbers: Default;

    /// Stores the current numbers.
    fn show(&self, numbers: &Self::Numbers);
}

/// A lock that publishes the numbers of its state as of the last unlock.
pub(super) struct Shown<T: Show> {
    state: Mutex<T>,
    numbers: T::Numbers,
}

impl<T: Show> Shown<T> {
    pub(super) fn new(state: T) -> Self {
        let numbers = T::Numbers::default();
        state.show(&numbers);
        Self { state: Mutex::new(state), numbers }
    }

    /// Locks the state.
    pub(super) fn lock(&self) -> Guard<'_, T> {
        Guard { state: self.state.lock(), numbers: &self.numbers }
    }

    /// The published numbers. A waiter for a change of one of them must be notified after the
    /// unlock.
    pub(super) fn numbers(&self) -> &T::Numbers {
        &self.numbers
    }
}

/// Exclusive access to the state.
pub(super) struct Guard<'a, T: Show> {
    state: MutexGuard<'a, T>,
    numbers: &'a T::Numbers,
}

impl<T: Show> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.state
    }
}

impl<T: Show> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.state
    }
}

impl<T: Show> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // Before the unlock: the numbers never go back to those of an earlier holder.
        self.state.show(self.numbers);
    }
}
