//! Which threads are a device's own: dropping a device in a completion must not wait for them.

use std::cell::Cell;

thread_local! {
    static OWN: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as a device's own.
pub(super) fn enter() {
    OWN.set(true);
}

/// True on a device's own thread.
pub(super) fn is_current() -> bool {
    OWN.get()
}
