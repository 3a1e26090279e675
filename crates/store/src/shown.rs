//! A lock whose holder leaves some numbers where everybody may read them without it.
//!
//! Each admission asks how much waits for the device. That is counted under `log` and `commit`, and who only asks shall not queue
//! there with those who seal and commit.

use std::ops::{Deref, DerefMut};
use syncline_sync::{Mutex, MutexGuard};

/// A state of which others read some numbers.
pub(crate) trait Show {
    /// The numbers, as atomics.
    type Numbers: Default;

    /// Stores them as they are now.
    fn show(&self, numbers: &Self::Numbers);
}

/// A lock that shows the numbers of its state, as they were when it was last let go of.
pub(crate) struct Shown<T: Show> {
    state: Mutex<T>,
    numbers: T::Numbers,
}

impl<T: Show> Shown<T> {
    pub(crate) fn new(state: T) -> Self {
        let numbers = T::Numbers::default();
        state.show(&numbers);
        Self { state: Mutex::new(state), numbers }
    }

    /// Waits for the state.
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        Guard { state: self.state.lock(), numbers: &self.numbers }
    }

    /// The numbers. Whoever waits for one of them to change is to be told after the lock was let go of.
    pub(crate) fn numbers(&self) -> &T::Numbers {
        &self.numbers
    }
}

/// The state, for its holder alone.
pub(crate) struct Guard<'a, T: Show> {
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
        // Before the lock opens: the numbers never go back to those of an earlier holder.
        self.state.show(self.numbers);
    }
}
